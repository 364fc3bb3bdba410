//! Charge, or reclaim from the refusing group and try again: the slow path of every allocation
//! (`kernel-semantics` §1.3).

use std::sync::Arc;

use thiserror::Error;
use umemcg_base::sync::thread;
use umemcg_base::{PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::{Charge, EventKind, Group, Refused, StatItem};

use super::Reclaimer;
use super::memory_high::note_charged;
use super::reclaim::is_held_up;
use crate::isolation::has_isolated;
use crate::scan_control::{MAX_RECLAIM_RETRIES, Reason};
use crate::stall::StalledHere;

/// A charge of at most this many pages is tried again after any progress at all.
const COSTLY_PAGES: u64 = 8;
/// Attempts whose freed memory other threads took, before a small charge is refused.
const MAX_LOST_RACES: u32 = 1024;

/// Looks for isolated pages before a charge fails; between the first ones the thread yields …
const ISOLATED_YIELDS: u32 = 100;
/// … and between the others, up to this many, it sleeps for 20 ms at most: two seconds in all, long
/// enough for a preempted thread to come back.
const ISOLATED_LOOKS_MAX: u32 = 200;

/// How hard a charge tries to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChargeEffort {
    /// Does not reclaim, never sleeps, and counts no event.
    #[doc(alias = "GFP_NOWAIT")]
    Immediate,
    /// For pages awaited by no request: like [`Surplus`](Self::Surplus), but goes over no
    /// `memory.high`, and reclaims only if the refusing group has enough clean pages used at most
    /// once, so reclaim need not scan any others.
    Ahead,
    /// For more than the caller was asked for, such as read-ahead: like
    /// [`Opportunistic`](Self::Opportunistic), but leaves a reserve to requested pages, and does
    /// not reclaim if the refusing group has background reclaim. Requests raising usage from below
    /// the mark to above the limit would otherwise reclaim each time, and the workers would never
    /// be woken.
    Surplus,
    /// For a caller able to do with less memory: makes one round of reclaim, and a refusal counts
    /// no `oom` event.
    #[doc(alias = "__GFP_NORETRY")]
    Opportunistic,
    /// Reclaims until nothing is left to reclaim.
    #[doc(alias = "GFP_KERNEL")]
    Full,
}

/// Why a charge failed for good.
#[derive(Debug, Clone, Error)]
pub enum ChargeError {
    /// This group is at its limit and has nothing left to give.
    #[error("{}", describe(.0))]
    Limit(Refused),
    /// The caller cancelled it.
    #[error("the charge was cancelled")]
    Cancelled,
}

fn describe(refused: &Refused) -> String {
    format!(
        "group {} refused {} bytes: it is at its limit of {} bytes and has nothing to reclaim",
        refused.group.path().display(),
        refused.wanted_bytes,
        refused.group.max_bytes()
    )
}

/// Returns whether a group has at least twice `bytes` in clean pages used at most once.
fn has_idle_pages(group: &Group, bytes: u64) -> bool {
    let total = |item| group.stat_total_applied(item).max(0) as u64;
    let unclean = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable].map(total);
    total(StatItem::InactiveFile).saturating_sub(unclean.iter().sum()) >= 2 * bytes
}

impl Reclaimer {
    /// Charges `bytes` to `group`. If the group or an ancestor refuses, reclaims from *that* group
    /// and tries again, as far as `effort` allows. May sleep unless the effort is
    /// [`Immediate`](ChargeEffort::Immediate); no lock may be held then.
    ///
    /// # Errors
    /// [`ChargeError::Limit`] names the full group; after a [`Full`](ChargeEffort::Full) effort it
    /// has nothing left to reclaim, and its `max` and `oom` events were counted.
    #[doc(alias = "mem_cgroup_try_charge")]
    pub fn charge(
        &self,
        group: &Arc<Group>,
        bytes: u64,
        effort: ChargeEffort,
    ) -> Result<Charge, ChargeError> {
        self.charge_unless(group, bytes, effort, &|| false)
    }

    /// Like [`charge`](Self::charge), and gives up when `cancelled` returns `true`.
    ///
    /// # Errors
    /// As [`charge`](Self::charge), or [`ChargeError::Cancelled`].
    pub fn charge_unless(
        &self,
        group: &Arc<Group>,
        bytes: u64,
        effort: ChargeEffort,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Charge, ChargeError> {
        if effort == ChargeEffort::Ahead && self.would_be_over_high(group, bytes) {
            return Err(ChargeError::Limit(Refused { group: Arc::clone(group), wanted_bytes: bytes }));
        }
        if matches!(effort, ChargeEffort::Ahead | ChargeEffort::Surplus)
            && let Some(full) = self.level_short_of_reserve(group, bytes)
        {
            return Err(ChargeError::Limit(Refused { group: full, wanted_bytes: bytes }));
        }
        match group.try_charge(bytes) {
            Ok(charge) => Ok(charge),
            Err(refused) if !self.reclaims_for(effort, &refused.group, bytes) => {
                Err(ChargeError::Limit(refused))
            }
            Err(refused) => {
                self.charge_slowly(group, bytes, refused, cancelled, effort == ChargeEffort::Full)
            }
        }
        .inspect(|_| note_charged(bytes))
    }

    /// Returns whether a charge with this effort reclaims from a group without room.
    fn reclaims_for(&self, effort: ChargeEffort, full: &Arc<Group>, bytes: u64) -> bool {
        match effort {
            ChargeEffort::Immediate => false,
            ChargeEffort::Ahead => !self.has_marks(full) && has_idle_pages(full, bytes),
            ChargeEffort::Surplus => !self.has_marks(full),
            ChargeEffort::Opportunistic | ChargeEffort::Full => true,
        }
    }

    /// Returns the lowest level with background reclaim where `bytes` more would use its reserve:
    /// half of the memory between its low mark and its limit, kept for requested pages. Without a
    /// reserve, a burst of read-ahead fills a small group completely, and the next page really
    /// needed finds no room before the workers have run.
    fn level_short_of_reserve(&self, group: &Arc<Group>, bytes: u64) -> Option<Arc<Group>> {
        let eats = |at: &&Arc<Group>| {
            let start = self.low_mark(at);
            let max = at.max_bytes();
            start < max && at.usage_bytes().saturating_add(bytes) > start + (max - start) / 2
        };
        std::iter::successors(Some(group), |at| at.parent()).find(eats).cloned()
    }

    fn charge_slowly(
        &self,
        group: &Arc<Group>,
        bytes: u64,
        mut refused: Refused,
        cancelled: &dyn Fn() -> bool,
        persistent: bool,
    ) -> Result<Charge, ChargeError> {
        assert_no_locks_held("a charge that may reclaim");
        let pages = bytes.div_ceil(PAGE_SIZE_U64);
        let _stalled = StalledHere::begin(group);
        let mut retries = if persistent { MAX_RECLAIM_RETRIES } else { 2 };
        let mut drained = false;
        let mut lost_races = 0;
        loop {
            if cancelled() {
                return Err(ChargeError::Cancelled);
            }
            let target = Arc::clone(&refused.group);
            target.event(EventKind::Max);
            // The charge is larger than the limit: no amount of reclaim makes room.
            let hopeless = bytes > target.max_bytes();
            let reclaim = || self.reclaim_unless(&target, pages, Reason::Direct, cancelled).pages();
            let reclaimed = if hopeless { 0 } else { reclaim() };
            refused = match group.try_charge(bytes) {
                Ok(charge) => return Ok(charge),
                Err(refused) => refused,
            };
            if !drained {
                // Stocks of other threads may hold the missing bytes.
                drained = true;
                target.drain_stocks();
                match group.try_charge(bytes) {
                    Ok(charge) => return Ok(charge),
                    Err(again) => refused = again,
                }
            }
            if reclaimed > 0 && pages <= COSTLY_PAGES && persistent && lost_races < MAX_LOST_RACES {
                lost_races += 1;
                continue;
            }
            // The caller goes on without. Another attempt would ask for further bytes.
            if reclaimed == 0 && is_held_up(&refused.group) {
                return Err(ChargeError::Limit(refused));
            }
            retries -= 1;
            if retries == 1 && persistent && self.wait_for_isolated(&refused.group, cancelled) {
                // The freed bytes may be in a stock.
                drained = false;
            }
            if retries == 0 || hopeless {
                if persistent {
                    refused.group.event(EventKind::Oom);
                    self.noteworthy.failed_charge(group, &refused);
                }
                return Err(ChargeError::Limit(refused));
            }
        }
    }

    /// Waits for pages of a group and its descendants isolated by other threads, up to
    /// [`ISOLATED_LOOKS_MAX`] looks. Returns whether it has waited.
    fn wait_for_isolated(&self, group: &Arc<Group>, cancelled: &dyn Fn() -> bool) -> bool {
        for nr_looks in 0..ISOLATED_LOOKS_MAX {
            if !has_isolated(group) || cancelled() {
                return nr_looks > 0;
            }
            if nr_looks < ISOLATED_YIELDS {
                thread::yield_now();
            } else {
                self.pending_releases().wait_while(|| has_isolated(group));
            }
        }
        true
    }
}
