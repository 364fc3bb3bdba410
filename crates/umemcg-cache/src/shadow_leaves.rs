//! Index leaves with shadow entries only: memory for pages evicted long ago, on lists by group. The
//! shadows to drop under pressure are chosen by the page cache.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_group::{OwnerId, StatItem};
use umemcg_reclaim::shrinker::ShrinkerId;
use umemcg_reclaim::{ListLru, ListSlot, Reclaimer};

use crate::index_node::NODE_BYTES;

/// The leaves, by group.
#[derive(Debug)]
pub(crate) struct ShadowLeaves {
    pub(crate) id: ShrinkerId,
    pub(crate) lru: ListLru,
    nr: AtomicU64,
}

impl ShadowLeaves {
    pub(crate) fn new(reclaimer: &Reclaimer) -> Self {
        let id = reclaimer.reserve_shrinker();
        Self { lru: ListLru::new(reclaimer, &id, 0), id, nr: AtomicU64::new(0) }
    }

    /// Notes a leaf of `owner`. Returns a number for [`remove`](Self::remove); 0 when there is no
    /// place.
    pub(crate) fn add(&self, owner: OwnerId, leaf: u32) -> u32 {
        let Ok(slot) = self.lru.reserve(u64::from(leaf)) else { return 0 };
        // The statistic first: a thread that finds the bit set by the list reads the statistic
        // next.
        owner.with_group(|group| group.stat_add(StatItem::ShadowNodes, NODE_BYTES as i64));
        self.lru.add(owner, slot);
        self.nr.fetch_add(1, Relaxed);
        slot.into_raw() + 1
    }

    pub(crate) fn remove(&self, owner: OwnerId, place: u32) {
        let slot = ListSlot::from_raw(place - 1);
        self.lru.remove(slot);
        self.lru.release(slot);
        owner.with_group(|group| group.stat_add(StatItem::ShadowNodes, -(NODE_BYTES as i64)));
        self.nr.fetch_sub(1, Relaxed);
    }

    /// Returns the number of leaves with shadows only.
    pub(crate) fn nr(&self) -> u64 {
        self.nr.load(Relaxed)
    }
}
