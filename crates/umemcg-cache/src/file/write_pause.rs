//! The pause of a writer after a write: none, as long as its group's pacing clock says, or until
//! there is room below a limit.
//!
//! A write spends its group's *credit*, a part of the room below the free run point at the last
//! check. When the credit is used up, the writer checks the group and every group above it again:
//!
//! 1. a level above its background threshold wakes flushers;
//! 2. a level at its limit holds the writer;
//! 3. else the least position ratio of all levels counts (the smaller of the group's and the
//!    pool's);
//! 4. if all levels are below their free run points, there is new credit and no writer waits.
//!
//! The credit is an eighth of the smallest gap, 1 MiB at most. So at a level the amount of dirty
//! data exceeds the free run point by no more than an eighth of the gap for each thread writing
//! below it before any writer is paced, and exceeds the limit by no more than this amount and one
//! write of each writer (a write is accepted first and answered later).
//!
//! No writer waits for a store that refuses data; see `dirty::refusal`.
//!
//! A writer may make pages of another tenant dirty. It then also waits for the group charged for
//! them, the *payer* (see `dirty::paced_writers`). It is paced from the payer's background
//! threshold on, earlier than the payer's own writers. So the dirty data of such writers settles
//! below the point where the payer's own writers are paced. Beyond that point it keeps the least
//! share of a tenant's part of the store, however many groups the payer's tenant has. At the
//! payer's limit it is held, as the payer's own writers are, or it could keep the payer there. One
//! tenant's writers waiting for payers of another tenant go on one by one.
//!
//! A level with less than an eighth of its threshold dirty on a store does not slow writers to this
//! store: it is over the threshold because of another, perhaps hanging, store, and only writers to
//! the other store can help. Dirty data of other groups on the writer's store makes no difference.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use umemcg_base::{PAGE_SIZE_U64, Rank, assert_may_wait};
use umemcg_group::{Group, GroupPath};
use umemcg_reclaim::stall::StalledHere;

use super::File;
use crate::dirty::lease;
use crate::dirty::lists::living;
use crate::dirty::paced_writers::{ForeignBytes, is_foreign};
use crate::dirty::settings::GroupDirty;
use crate::dirty::thresholds::{DIRTY_FLOOR, Level, levels};
use crate::dirty::throttle::{PAUSE_MAX, PAUSE_MIN, POSITION_RATIO_MAX, hold, paced_rate, position_ratio};

/// Credit is this part of the room below the free run point…
const CREDIT_SHARE: u64 = 8;
/// … but not more than this, in bytes.
const CREDIT_MAX: u64 = 1 << 20;
/// A level with no more than this part of its threshold on a store does not slow writers to it.
const STORE_SHARE: u64 = 8;
/// With no more than this many pages on a store, no level slows its writers, whatever its
/// threshold.
const STORE_FREE_PAGES: u64 = DIRTY_FLOOR / STORE_SHARE / PAGE_SIZE_U64;
/// The interval at which a level over its threshold wakes all stores' flushers.
const WAKE_INTERVAL: Duration = Duration::from_millis(20);

/// The result of checking all levels.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LevelCheck {
    /// No writer waits, and none need check again before this many bytes are written.
    Free(u64),
    /// This many bytes a second for the whole group.
    Paced(f64),
    /// Some level is at its limit.
    Held(Duration),
}

/// An accepted write whose writer has to pause.
#[derive(Debug)]
#[must_use = "the writer is not slowed by it"]
pub struct WritePause {
    file: Arc<File>,
    group: Arc<Group>,
    /// The end of the time reserved for it, on the cache's clock.
    due: Duration,
    /// The notes of other tenants' pages that still delay the writer, one payer after the other.
    foreign: Vec<ForeignBytes>,
}

impl WritePause {
    /// Returns the remaining pause: at most [`PAUSE_MAX`], after which the caller calls this again.
    /// `None` when the writer may continue.
    pub fn remaining(&mut self) -> Option<Duration> {
        let (file, group) = (&self.file, &self.group);
        let own = match file.look(group, group) {
            LevelCheck::Free(_) => None,
            // No writer waits for data refused by the store; the next write fails instead.
            LevelCheck::Held(remaining) => file.refusal().is_none().then_some(remaining),
            LevelCheck::Paced(_) => {
                let remaining = self.due.saturating_sub(file.cache.writeback().now());
                (!remaining.is_zero()).then_some(remaining.min(PAUSE_MAX))
            }
        };
        own.max(file.foreign_wait(group, &mut self.foreign))
    }
}

impl File {
    /// Returns, after a write of `written` bytes by `group` was accepted, whether and how the
    /// writer has to be slowed. Never sleeps itself; see [`throttle`](Self::throttle) for a caller
    /// that may.
    #[doc(alias = "balance_dirty_pages_ratelimited")]
    #[inline]
    #[doc(hidden)]
    pub fn write_pause(self: &Arc<Self>, group: &Arc<Group>, written: usize) -> Option<WritePause> {
        if lease::spend(group.id(), written as u64) {
            None
        } else {
            self.write_pause_unleased(group, written)
        }
    }

    #[inline(never)]
    fn write_pause_unleased(self: &Arc<Self>, group: &Arc<Group>, written: usize) -> Option<WritePause> {
        if self.writeback.nr_unclean() <= STORE_FREE_PAGES {
            // The noted pages are durable by now, or very few: no later writer waits for them.
            drop(self.writeback.paced.take_foreign(group));
            lease::take(group.id(), STORE_FREE_PAGES * PAGE_SIZE_U64 * lease::LEASE_SHARE);
            return None;
        }
        if self.is_memory()
            || GroupDirty::if_present(group).is_some_and(|dirty| dirty.spend(group.id(), written as u64))
        {
            return None;
        }
        let now = self.cache.writeback().now();
        let due = self.own_due(group, now, written as u64);
        let mut foreign = self.writeback.paced.take_foreign(group);
        // Below the payer's background threshold no writer waits.
        foreign.retain(|note| !matches!(self.look(group, living(&note.payer)), LevelCheck::Free(_)));
        if self.foreign_wait(group, &mut foreign).is_none() && due < now + PAUSE_MIN {
            return None;
        }
        Some(WritePause { file: Arc::clone(self), group: Arc::clone(group), due, foreign })
    }

    /// Reserves time for a write by `group`. Returns the end of that time; `now` if the writer need
    /// not wait for its own group.
    fn own_due(&self, group: &Arc<Group>, now: Duration, bytes: u64) -> Duration {
        match self.look(group, group) {
            LevelCheck::Free(credit) => {
                GroupDirty::of(group).set_credit(credit);
                self.writeback.paced.forget_clock(group);
                now
            }
            LevelCheck::Held(_) if self.refusal().is_some() => now,
            // It reserves time for its bytes like any other write, besides waiting for room.
            LevelCheck::Held(_) => {
                self.reserve(group, now, bytes, self.rate(group, 1.0)).max(now + PAUSE_MIN)
            }
            LevelCheck::Paced(rate) => self.reserve(group, now, bytes, rate),
        }
    }

    /// Removes payers from the end of the list until one of them still delays the writer. Returns
    /// the wait for this payer; later payers are not checked.
    fn foreign_wait(&self, writer: &Arc<Group>, foreign: &mut Vec<ForeignBytes>) -> Option<Duration> {
        while let Some(last) = foreign.last() {
            let wait = self.payer_wait(writer, last);
            if wait.is_some() {
                return wait;
            }
            foreign.pop();
        }
        None
    }

    /// Lets a writer that has made pages of a payer dirty go on in its turn. Otherwise returns the
    /// wait before it asks again. Also when the payer has no more dirty data than its background
    /// threshold, waiting writers go on one by one: all of them at once would fill its dirty room.
    fn payer_wait(&self, writer: &Arc<Group>, foreign: &ForeignBytes) -> Option<Duration> {
        let payer = living(&foreign.payer);
        // A removed payer's pages may be the writer's own by now, or the root's.
        if self.refusal().is_some() || !is_foreign(writer, payer) {
            return None;
        }
        let rate = match self.look(writer, payer) {
            LevelCheck::Free(_) => self.foreign_rate(POSITION_RATIO_MAX),
            LevelCheck::Paced(rate) => rate,
            LevelCheck::Held(remaining) => return Some(remaining),
        };
        let tenants = (GroupPath::of(payer).tenant(), GroupPath::of(writer).tenant());
        self.writeback.paced.pass(tenants, self.cache.writeback().now(), foreign.bytes, rate)
    }

    /// Sleeps as long as the writer has to be slowed after such a write, in pauses of at most
    /// [`PAUSE_MAX`]. Counts as a stall of the group. No lock may be held.
    #[doc(alias = "balance_dirty_pages")]
    pub fn throttle(self: &Arc<Self>, group: &Arc<Group>, written: usize) {
        self.throttle_unless(group, written, &|| false);
    }

    /// Like [`throttle`](Self::throttle), and returns early when `cancelled`, called between the
    /// pauses, returns `true`.
    pub fn throttle_unless(
        self: &Arc<Self>,
        group: &Arc<Group>,
        written: usize,
        cancelled: &dyn Fn() -> bool,
    ) {
        assert_may_wait(Rank::DirtyRoom, "a dirty throttle");
        let Some(mut pause) = self.write_pause(group, written) else { return };
        let _stalled = StalledHere::begin(group);
        while !cancelled()
            && let Some(remaining) = pause.remaining()
        {
            self.cache.writeback().wait_for_progress(remaining);
        }
    }

    /// Refuses a write of a group held at a dirty limit because the store refuses its dirty data.
    ///
    /// # Errors
    /// The store's last error.
    pub(super) fn check_refusal(self: &Arc<Self>, group: &Arc<Group>) -> io::Result<()> {
        match self.refusal().filter(|_| !self.is_memory()) {
            Some(errno) if matches!(self.look(group, group), LevelCheck::Held(_)) => {
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => Ok(()),
        }
    }

    /// Reserves time on the group's virtual clock. A write near the limit costs no more than a
    /// whole pause, or than its share of the store's time if that is longer: at the limit itself
    /// the writer is held anyway, and the state has changed after a pause.
    fn reserve(&self, group: &Group, now: Duration, bytes: u64, rate: f64) -> Duration {
        let at_least = (bytes as f64 / PAUSE_MAX.as_secs_f64()).min(self.rate(group, 1.0));
        self.writeback.paced.reserve(group, now, bytes, rate.max(at_least))
    }

    fn rate(&self, group: &Group, position_ratio: f64) -> f64 {
        paced_rate(self.writeback.write_bandwidth(), position_ratio, self.writeback.nr_sharing(group))
    }

    /// Returns the rate of a tenant's writers to the pages of another: a share of the latter's part
    /// of the store, however many groups divide that part.
    fn foreign_rate(&self, position_ratio: f64) -> f64 {
        paced_rate(self.writeback.write_bandwidth(), position_ratio, self.writeback.nr_tenants())
    }

    /// Checks all levels of the payer. Skips levels shared with a writer of another group, and
    /// paces that writer earlier.
    fn look(&self, writer: &Arc<Group>, payer: &Arc<Group>) -> LevelCheck {
        let (cache, of_others) = (&self.cache, !Arc::ptr_eq(writer, payer));
        let now = cache.writeback().now();
        let (mut ratio, mut held, mut gap) = (POSITION_RATIO_MAX, None::<Duration>, u64::MAX);
        for Level { group: level, thresholds, unclean } in levels(cache.reclaimer(), payer) {
            if of_others && writer.is_descendant_of(level) {
                continue;
            }
            if unclean > thresholds.background {
                self.writeback.wake();
                if GroupDirty::of(level).may_wake(now.as_millis() as u64, WAKE_INTERVAL) {
                    cache.flush_over_background(level);
                }
            }
            let free_run = thresholds.free_run();
            let paced_from = if of_others { thresholds.background } else { free_run };
            if unclean <= paced_from {
                gap = gap.min(paced_from - unclean);
                continue;
            }
            if self.writeback.unclean_bytes(level) <= thresholds.foreground / STORE_SHARE {
                gap = 0;
                continue;
            }
            let limit = GroupDirty::of(level).smoothed.lock().update(now, thresholds.foreground, unclean);
            if unclean >= limit {
                let remaining = hold(unclean, free_run, self.writeback.write_bandwidth());
                held = Some(held.unwrap_or_default().max(remaining));
            }
            let paced_to = if of_others { free_run } else { limit };
            ratio = ratio.min(position_ratio(unclean, paced_from, paced_to));
            gap = 0;
        }
        match held {
            Some(remaining) => LevelCheck::Held(remaining),
            None if gap == 0 && ratio < POSITION_RATIO_MAX => LevelCheck::Paced(match of_others {
                true => self.foreign_rate(ratio),
                false => self.rate(payer, ratio),
            }),
            None => LevelCheck::Free((gap / CREDIT_SHARE).min(CREDIT_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use umemcg_arena::{Arena, Segment};
    use umemcg_group::GroupTree;
    use umemcg_reclaim::Reclaimer;

    use super::*;
    use crate::page_cache::PageCache;
    use crate::store::{BackingStore, StoreId};

    /// A store that takes everything.
    #[derive(Debug)]
    struct Sink;

    impl BackingStore for Sink {
        fn store_id(&self) -> StoreId {
            StoreId(1)
        }
        fn read_at(&self, _: &Arena, _: &[Segment], _: u64) -> io::Result<usize> {
            Ok(0)
        }
        fn write_at(&self, _: &Arena, segments: &[Segment], _: u64) -> io::Result<usize> {
            Ok(segments.iter().map(|segment| usize::from(segment.len)).sum())
        }
        fn sync_range(&self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn sync(&self, _: bool) -> io::Result<()> {
            Ok(())
        }
        fn set_len(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn notes_last_until_a_pause_finds_the_store_clean() {
        let tree = GroupTree::new(64 << 20);
        let arena = Arena::new(64 << 20).unwrap();
        let cache = PageCache::new(Arc::new(Reclaimer::new(arena, Arc::clone(&tree)).unwrap())).unwrap();
        let [a, b] = ["a", "b"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let file = cache.open_file(Arc::new(Sink), 0).unwrap();
        let cursor = file.sample_error();
        let clean = || file.fsync(true, &cursor).unwrap();
        let noted = || file.writeback.paced.take_foreign(&a).iter().map(|note| note.bytes).sum::<u64>();
        file.write(&b, 0, &[1; 16384]).unwrap();
        clean();
        file.write(&a, 0, &[2; 16384]).unwrap();
        assert_eq!(noted(), 16384);
        clean();
        file.zero_range(&a, 100, 5000, || Ok(())).unwrap();
        assert_eq!(noted(), 8192, "the edges of a hole");
        clean();
        file.write(&a, 0, &[3; 16384]).unwrap();
        assert!(file.write_pause(&a, 16384).is_none());
        assert_eq!(noted(), 0);
        cache.close();
    }
}
