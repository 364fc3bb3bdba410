//! A group's numbers as a reader gets them, and how a change of one reaches the group: at once, or
//! with others that a thread has pending (see [`crate::pending`]).

use std::sync::atomic::Ordering;

use crate::counter::NO_NODE;
use crate::group::{GROUPS, Group, LEDGER, OwnerId};
use crate::pending::Pending;
use crate::stats::StatItem;
use crate::thread_stock::{KEEPER, with_stock};

impl OwnerId {
    /// Adds to one of the numbers of the owner's group that say what states its pages are in, and
    /// to the totals above. The change may wait in the thread: by
    /// [`PENDING_BYTES_MAX`](crate::PENDING_BYTES_MAX) for each thread and owner at most.
    #[doc(alias = "mod_lruvec_page_state")]
    #[inline]
    pub fn count(self, item: StatItem, delta: i64) {
        let is_pending = item.pending_place().is_some_and(|place| {
            KEEPER.with(|keeper| LEDGER.add_pending(keeper, self.into_raw(), place, delta))
        });
        if !is_pending {
            self.count_at_once(item, delta);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_at_once(self, item: StatItem, delta: i64) {
        match item.pending_place() {
            Some(place) => {
                with_stock(|keeper| LEDGER.tell_change(keeper, self.into_raw(), place, delta, &tell))
            }
            None => self.with_group(|group| group.stat_add(item, delta)),
        }
    }
}

impl Group {
    pub(crate) fn metadata_total(&self) -> i64 {
        StatItem::ALL.iter().filter(|item| item.is_metadata()).map(|&item| self.stat_total(item)).sum()
    }

    /// Returns what the statistics say is charged to this group and those below it: the usage,
    /// except for what threads hold in stock and what is on its way between a charge and its
    /// statistic.
    pub fn named_bytes(&self) -> u64 {
        StatItem::CHARGED.iter().map(|&item| self.stat_total(item)).sum::<i64>().max(0) as u64
    }

    /// Bytes that are no page data, of this group and all below it: objects and bookkeeping.
    #[doc(alias = "kmem_usage")]
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_total().max(0) as u64
    }

    /// Returns the highest [`metadata_bytes`](Self::metadata_bytes) since creation or the last
    /// reset.
    pub fn metadata_peak_bytes(&self) -> u64 {
        self.metadata_peak.load(Ordering::Relaxed).max(0) as u64
    }

    /// Starts that peak again from the bytes of now.
    pub fn reset_metadata_peak(&self) {
        self.metadata_peak.store(self.metadata_total(), Ordering::Relaxed);
    }

    /// Returns a number of this group alone. May be negative for a moment while a group below is
    /// being removed. Exact when nothing changes; the states of dirty data cost some microseconds
    /// when other threads have changes pending.
    pub fn stat_local(&self, item: StatItem) -> i64 {
        if item.pending_place().is_some() {
            tell_pending();
        }
        self.stats.local[item.index()].get()
    }

    /// Returns a number of this group and all below it, removed ones included. As exact, and as
    /// dear, as [`stat_local`](Self::stat_local).
    pub fn stat_total(&self, item: StatItem) -> i64 {
        if item.pending_place().is_some() {
            tell_pending();
        }
        self.stat_total_told(item)
    }

    /// Like [`stat_total`](Self::stat_total), without what threads have pending: one load.
    pub fn stat_total_told(&self, item: StatItem) -> i64 {
        self.stats.total[item.index()].load(Ordering::Relaxed)
    }

    /// Bytes of this group and all below it that are dirty, under write-back or unstable, for a
    /// caller that compares them with a threshold of `near` or more: when they may be near it, with
    /// what seems to be pending, else without.
    pub fn unclean_bytes_about(&self, near: u64) -> u64 {
        let told: i64 = StatItem::PENDING.iter().map(|&item| self.stat_total_told(item)).sum();
        let slack = StatItem::PENDING.len() as u64 * LEDGER.pending_bytes_max();
        let pending = if told.saturating_add_unsigned(slack) >= near.min(i64::MAX as u64) as i64 {
            LEDGER.glimpse_pending(self.owner().into_raw()).iter().sum()
        } else {
            0
        };
        (told + pending).max(0) as u64
    }
}

/// Tells the nearest living group of what was pending for an owner.
fn tell(pending: Pending) {
    let mut at = pending.node;
    // Bounded by the depth of the tree. The numbers of a tree that is gone are not read.
    while at != NO_NODE {
        if let Some(group) = GROUPS.get(at).map(|slot| slot.load())
            && let Some(group) = &*group
        {
            return tell_group(group, pending);
        }
        at = LEDGER.node(at).forward();
    }
}

pub(crate) fn tell_group(group: &Group, pending: Pending) {
    for (item, delta) in StatItem::PENDING.into_iter().zip(pending.deltas) {
        if delta != 0 {
            group.stat_add(item, delta);
        }
    }
}

/// Has everything told that threads have pending.
fn tell_pending() {
    KEEPER.with(|keeper| LEDGER.tell_pending(keeper, &tell));
}
