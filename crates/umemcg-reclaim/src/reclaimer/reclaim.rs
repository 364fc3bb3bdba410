//! A reclaim: a root group, a goal, a reason, priorities 12 down to 0.
//!
//! At priority p every visited list is scanned by its length divided by 2^p, so gentle passes come
//! first and the whole list is scanned only when nothing else helped (`kernel-semantics` §2.3,
//! §2.4). Reclaim never writes dirty data: it skips dirty pages and wakes the flusher. When it
//! finds only dirty pages, it waits for write-back, for a bounded time.

use std::sync::Arc;

use umemcg_base::clock::Clock;
use umemcg_base::sync::Instant;
use umemcg_base::{PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::{Group, StatItem};

use super::Reclaimer;
use super::leaving::{LeavingWait, WaitFollowUp};
use crate::current_request::CurrentRequest;
use crate::group_reclaim::{GroupReclaim, leaving_bytes};
use crate::mechanism;
use crate::protection::ReclaimProtection;
use crate::rounds::{FirstRounds, shrink_in_rounds};
use crate::scan_control::{DEF_PRIORITY, Pass, Progress, Reason, SWAP_CLUSTER_MAX, WRITEBACK_WAIT};

/// Consecutive waits without a released byte before requested bytes are given up, unless they are
/// leaving. A busy kernel may take longer than one wait to begin. Bytes given up are requested
/// elsewhere: if they are released after all, the group loses both.
const WAITS_IN_VAIN_MAX: u32 = 6;

impl Reclaimer {
    /// Reclaims about `goal` pages from `root` and everything below it. May sleep. No lock may be
    /// held.
    ///
    /// Returns the progress; zero pages reclaimed means nothing can be freed.
    #[doc(alias = "try_to_free_mem_cgroup_pages")]
    pub fn reclaim(&self, root: &Arc<Group>, goal: u64, reason: Reason) -> Progress {
        self.reclaim_unless(root, goal, reason, &|| false)
    }

    /// Like [`reclaim`](Self::reclaim), and ends early when `cancelled` returns `true`.
    pub fn reclaim_unless(
        &self,
        root: &Arc<Group>,
        goal: u64,
        reason: Reason,
        cancelled: &dyn Fn() -> bool,
    ) -> Progress {
        self.reclaim_in(root, goal, reason, FirstRounds::default(), cancelled)
    }

    /// Like [`reclaim_unless`](Self::reclaim_unless), with these rounds.
    pub(super) fn reclaim_in(
        &self,
        root: &Arc<Group>,
        goal: u64,
        reason: Reason,
        first_rounds: FirstRounds,
        cancelled: &dyn Fn() -> bool,
    ) -> Progress {
        self.noteworthy.timed(root, reason, || {
            mechanism::in_reclaim(|| self.reclaim_now(root, goal, reason, first_rounds, cancelled))
        })
    }

    /// Like [`reclaim_unless`](Self::reclaim_unless), but ignores soft limits: all groups are asked
    /// from the beginning.
    pub fn reclaim_from_all(&self, root: &Arc<Group>, goal: u64, cancelled: &dyn Fn() -> bool) -> Progress {
        self.reclaim_now(root, goal, Reason::Proactive, FirstRounds::ignoring_soft_limits(), cancelled)
    }

    /// Like [`reclaim`](Self::reclaim), but never waits: dirty pages and requested bytes stay.
    /// Starts write-back if it finds only dirty pages.
    pub fn reclaim_promptly(&self, root: &Arc<Group>, goal: u64) -> Progress {
        let rounds = FirstRounds::without_waiting();
        self.noteworthy
            .timed(root, Reason::Direct, || self.reclaim_now(root, goal, Reason::Direct, rounds, &|| false))
    }

    fn reclaim_now(
        &self,
        root: &Arc<Group>,
        goal: u64,
        reason: Reason,
        first_rounds: FirstRounds,
        cancelled: &dyn Fn() -> bool,
    ) -> Progress {
        assert_no_locks_held("reclaim");
        let mut progress = Progress::default();
        if reason == Reason::Direct {
            root.stat_add(StatItem::AllocStall, 1);
        }
        let mut protection = self.protection_from(root, false);
        let freed_before = self.freed_bytes(root);
        loop {
            progress.add(self.reclaim_at_all_priorities(
                root,
                goal,
                reason,
                (&mut protection, first_rounds),
                cancelled,
            ));
            // Waits for leaving bytes before taking pages protected by `low`, and before failing.
            if progress.pages() == 0 && !first_rounds.never_waits {
                let wanted = (freed_before, goal.max(1));
                match self.wait_for_leaving(root, wanted, &first_rounds, cancelled) {
                    Some(freed_bytes) => progress.slab_bytes += freed_bytes,
                    None => return progress,
                }
            }
            // Once more at most, taking memory protected only by `low`.
            if progress.pages() > 0 || cancelled() || !protection.give_up_low() {
                return progress;
            }
        }
    }

    /// Reclaims from the gentlest priority to the last, until the goal is reached.
    fn reclaim_at_all_priorities(
        &self,
        root: &Arc<Group>,
        goal: u64,
        reason: Reason,
        (protection, mut first_rounds): (&mut ReclaimProtection<'_>, FirstRounds),
        cancelled: &dyn Fn() -> bool,
    ) -> Progress {
        let (needed, goal) = (goal.max(1), goal.max(SWAP_CLUSTER_MAX));
        let mut progress = Progress::default();
        // Bytes requested by earlier passes, and not requested again.
        let (mut coming, mut nr_waits_in_vain) = (0, 0);
        for priority in (0..=DEF_PRIORITY).rev() {
            // The last pass scans everything, so wait for leaving bytes first.
            if priority == 0 && std::mem::take(&mut coming) > 0 && progress.pages() < needed {
                let wanted = (self.freed_bytes(root), goal.saturating_sub(progress.pages()));
                let freed = self.wait_for_leaving(root, wanted, &first_rounds, cancelled);
                progress.slab_bytes += freed.unwrap_or(0);
            }
            protection.refresh();
            let before = progress;
            let released_before = self.pending_releases().released_bytes();
            first_rounds.is_last_chance = priority == 0 && progress.pages() == 0;
            let left = goal.saturating_sub(progress.pages() + coming / PAGE_SIZE_U64);
            let pass = Pass::new(priority, left, reason);
            let enough =
                |now: &Progress| now.pages() + now.releasing_bytes / PAGE_SIZE_U64 >= left || cancelled();
            if left > 0 {
                progress.add(shrink_in_rounds(self, root, &pass, protection, &mut first_rounds, &enough).0);
            }
            if progress.pages() >= goal || cancelled() {
                return progress;
            }
            let (scanned, dirty) = (progress.scanned - before.scanned, progress.dirty - before.dirty);
            if progress.reclaimed > before.reclaimed {
                GroupReclaim::of(root).backoff.note_freed_some();
            } else if scanned > 0 && dirty == scanned && (priority == 0 || has_only_dirty(root)) {
                self.wait_for_dirty(root, first_rounds.never_waits);
            }
            let requested = coming + progress.releasing_bytes - before.releasing_bytes;
            if requested > 0 && !first_rounds.never_waits {
                // Requested bytes complete the goal: leave the rest to later reclaims.
                if progress.pages() >= needed && progress.pages() + requested / PAGE_SIZE_U64 >= goal {
                    return progress;
                }
                let short = progress.short_bytes(goal);
                let (released, in_vain) = self.wait_for_requested(root, (released_before, requested, short));
                progress.slab_bytes += released;
                nr_waits_in_vain = if in_vain { nr_waits_in_vain + 1 } else { 0 };
                coming = self.still_coming(root, requested - released, nr_waits_in_vain);
                // If at least half has been released, the rest is as good as free.
                if released >= requested / 2 && progress.pages() + coming / PAGE_SIZE_U64 >= goal {
                    progress.slab_bytes += coming;
                    return progress;
                }
            }
        }
        progress
    }

    /// Waits for requested bytes. Returns the bytes freed, and whether it has waited in vain.
    fn wait_for_requested(&self, root: &Group, (before, requested, wanted): (u64, u64, u64)) -> (u64, bool) {
        if is_held_up(root) {
            return (0, false);
        }
        let released = self.pending_releases().wait(before, requested, wanted);
        (released, released == 0)
    }

    /// Returns the part of the requested `bytes` still expected after some waits in vain.
    fn still_coming(&self, root: &Group, bytes: u64, nr_waits_in_vain: u32) -> u64 {
        if nr_waits_in_vain < WAITS_IN_VAIN_MAX {
            return bytes;
        }
        let leaving = GroupReclaim::of(root).leaving_bytes();
        if leaving.hangs() { 0 } else { bytes.min(leaving.now()) }
    }

    /// Returns the total of leaving bytes of `root` and its descendants freed so far.
    fn freed_bytes(&self, root: &Group) -> u64 {
        GroupReclaim::of(root).leaving_bytes().freed()
    }

    /// Waits for bytes leaving `root` and its descendants until `nr_pages` have been freed since
    /// `freed_before` was read, as long as [`LeavingWait`] and the rounds allow. After a wait in
    /// vain, no reclaim waits again until something is freed. Returns the bytes freed; `None` if
    /// the thread's own request holds up releases, so that it must not wait.
    fn wait_for_leaving(
        &self,
        root: &Group,
        (freed_before, nr_pages): (u64, u64),
        rounds: &FirstRounds,
        cancelled: &dyn Fn() -> bool,
    ) -> Option<u64> {
        let leaving = GroupReclaim::of(root).leaving_bytes();
        let mut wait = LeavingWait::begin(Instant::now(), rounds.leaving_until);
        loop {
            let is_leaving = leaving.now() > 0;
            let freed = leaving.freed() - freed_before;
            let ends = freed >= nr_pages * PAGE_SIZE_U64 || !is_leaving || leaving.hangs();
            if ends || cancelled() {
                return Some(freed);
            }
            if CurrentRequest::holds_up_release() {
                return None;
            }
            match wait.follow_up(Instant::now(), freed) {
                WaitFollowUp::Wait => {}
                WaitFollowUp::End => return Some(freed),
                WaitFollowUp::GiveUp => {
                    leaving.note_hangs();
                    return Some(freed);
                }
            }
            let is_same = || leaving.now() > 0 && leaving.freed() - freed_before == freed;
            self.pending_releases().wait_while(is_same);
        }
    }

    /// Wakes the flusher, since only dirty pages were found, and waits for it a little, as long as
    /// waiting brings progress. Does not wait for a caller that never waits.
    fn wait_for_dirty(&self, root: &Arc<Group>, never_waits: bool) {
        if !mechanism::waits_for_dirty() {
            return;
        }
        let Some(owner) = self.page_owner() else { return };
        owner.start_writeback(root);
        if !never_waits && GroupReclaim::of(root).backoff.may_wait(self.clock().now()) {
            owner.wait_for_writeback(WRITEBACK_WAIT);
        }
    }
}

/// Returns whether bytes leave a group or its descendants, and the request of this thread holds up
/// releases.
pub(super) fn is_held_up(root: &Group) -> bool {
    leaving_bytes(root) > 0 && CurrentRequest::holds_up_release()
}

/// Returns whether, by the counts, almost no page of a group and its descendants is clean. A pass
/// may have found only dirty pages by chance; then the next one scans further. Ignores counts still
/// pending in threads, since this runs on the path of a charge.
fn has_only_dirty(root: &Group) -> bool {
    let pages =
        root.stat_total_applied(StatItem::InactiveFile) + root.stat_total_applied(StatItem::ActiveFile);
    let near = (pages.max(0) as u64).saturating_sub(SWAP_CLUSTER_MAX * PAGE_SIZE_U64);
    root.unclean_bytes_about(near) >= near
}
