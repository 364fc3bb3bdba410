//! Reading a group's statistics, and applying changes to them: immediately, or together with other
//! pending changes of the thread (see [`crate::pending`]).

use std::sync::atomic::Ordering;

use super::{GROUPS, Group, LEDGER, OwnerId};
use crate::counter::NO_NODE;
use crate::pending::Pending;
use crate::stats::StatItem;
use crate::thread_stock::{THREAD_STOCK, with_stock};

impl OwnerId {
    /// Adds to a statistic of the owner's group and to the totals above. For statistics changing
    /// with each page. The change may stay pending in the thread: up to
    /// [`PENDING_BYTES_MAX`](crate::PENDING_BYTES_MAX), or as many pages, for each thread and owner
    /// at most.
    #[doc(alias = "mod_lruvec_page_state")]
    #[inline]
    #[doc(hidden)]
    pub fn count(self, item: StatItem, delta: i64) {
        let is_pending = item.pending_place().is_some_and(|place| {
            THREAD_STOCK.with(|thread_stock| LEDGER.add_pending(thread_stock, self.into_raw(), place, delta))
        });
        if !is_pending {
            self.count_at_once(item, delta);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_at_once(self, item: StatItem, delta: i64) {
        match item.pending_place() {
            Some(place) => with_stock(|thread_stock| {
                LEDGER.apply_with_pending(thread_stock, self.into_raw(), place, delta, &apply_one)
            }),
            None => self.with_group(|group| group.stat_add(item, delta)),
        }
    }
}

impl Group {
    pub(crate) fn metadata_total(&self) -> i64 {
        StatItem::ALL.iter().filter(|item| item.is_metadata()).map(|&item| self.stat_total(item)).sum()
    }

    /// Returns the sum of the statistics of [`StatItem::CHARGED`], for this group and its
    /// descendants. It equals the usage, except for stocks of threads and for charges with a
    /// statistic not yet updated.
    pub fn named_bytes(&self) -> u64 {
        StatItem::CHARGED.iter().map(|&item| self.stat_total(item)).sum::<i64>().max(0) as u64
    }

    /// Returns the bytes other than page data, of this group and its descendants: objects and
    /// bookkeeping.
    #[doc(alias = "kmem_usage")]
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_total().max(0) as u64
    }

    /// Returns the highest [`metadata_bytes`](Self::metadata_bytes) since creation or the last
    /// reset.
    pub fn metadata_peak_bytes(&self) -> u64 {
        self.metadata_peak.load(Ordering::Relaxed).max(0) as u64
    }

    /// Resets the peak of metadata to the present value.
    pub fn reset_metadata_peak(&self) {
        self.metadata_peak.store(self.metadata_total(), Ordering::Relaxed);
    }

    /// Returns a statistic of this group alone. May be negative for a moment while a group below is
    /// being removed. Exact when nothing changes. Reading a statistic of pages takes some
    /// microseconds when other threads have changes pending.
    pub fn stat_local(&self, item: StatItem) -> i64 {
        if item.pending_place().is_some() {
            apply_pending();
        }
        self.stats.local[item.index()].get()
    }

    /// Returns a statistic of this group and its descendants, removed ones included. Has the same
    /// accuracy and cost as [`stat_local`](Self::stat_local).
    pub fn stat_total(&self, item: StatItem) -> i64 {
        if item.pending_place().is_some() {
            apply_pending();
        }
        self.stat_total_applied(item)
    }

    /// Like [`stat_local`](Self::stat_local), but without pending changes of threads: one load.
    pub fn stat_local_applied(&self, item: StatItem) -> i64 {
        self.stats.local[item.index()].get()
    }

    /// Like [`stat_total`](Self::stat_total), but without pending changes of threads: one load.
    pub fn stat_total_applied(&self, item: StatItem) -> i64 {
        self.stats.total[item.index()].load(Ordering::Relaxed)
    }

    /// Returns the dirty bytes of this group and its descendants, including bytes under write-back
    /// and unstable bytes, for comparison with a threshold of `near` or more. Pending changes of
    /// threads are included only when they could make a difference.
    #[doc(hidden)]
    pub fn unclean_bytes_about(&self, near: u64) -> u64 {
        let unclean = &StatItem::PENDING[..StatItem::NR_UNCLEAN];
        let applied: i64 = unclean.iter().map(|&item| self.stat_total_applied(item)).sum();
        let slack = unclean.len() as u64 * LEDGER.pending_bytes_max();
        let pending = if applied.saturating_add_unsigned(slack) >= near.min(i64::MAX as u64) as i64 {
            let pending = THREAD_STOCK
                .with(|thread_stock| LEDGER.peek_pending(thread_stock, self.owner().into_raw(), &apply_one));
            pending[..unclean.len()].iter().sum()
        } else {
            0
        };
        (applied + pending).max(0) as u64
    }
}

/// Applies the pending changes of an owner to its nearest living group.
fn apply_one(pending: Pending) {
    let mut at = pending.node;
    // Bounded by the depth of the tree. If the tree is gone, nothing reads its numbers.
    while at != NO_NODE {
        if let Some(group) = GROUPS.get(at).map(|slot| slot.load())
            && let Some(group) = &*group
        {
            return apply_to_group(group, pending);
        }
        at = LEDGER.node(at).parent();
    }
}

pub(crate) fn apply_to_group(group: &Group, pending: Pending) {
    for (item, delta) in StatItem::PENDING.into_iter().zip(pending.deltas) {
        if delta != 0 {
            group.stat_add(item, delta);
        }
    }
}

/// Applies the pending changes of all threads, so statistics may then be read with
/// [`Group::stat_total_applied`] and [`Group::stat_local_applied`]. Takes some microseconds when
/// other threads have any.
pub fn apply_pending() {
    THREAD_STOCK.with(|thread_stock| LEDGER.apply_pending(thread_stock, &apply_one));
}

/// Returns the largest lag of a statistic read without pending changes, in bytes, all threads
/// together.
pub fn pending_bytes_max() -> u64 {
    LEDGER.pending_bytes_max()
}
