//! The order of eviction. Each group has two queues. New objects wait on *probation*, about a
//! fiftieth of all. An object used there, or inserted again while its ghost exists, moves to the
//! *main* queue. There a used object goes round again. An unused object is evicted, and from
//! probation it leaves a ghost. So a stream of objects used only once passes through probation and
//! disturbs nothing.
//!
//! Reclaim, an insert at the limit, and a cache above its own bound all evict in the same way; see
//! `eviction.rs`.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use umemcg_group::{Charge, EventKind, Group};
use umemcg_reclaim::shrinker::{Count, Scan, Scanned, ShrinkTarget, Shrinker, Usage};
use umemcg_reclaim::{Reason, SWAP_CLUSTER_MAX};

use super::eviction::Eviction;
use super::removing::Evicted;
use super::{CachedObjects, NO_BOUND, has_its_share};
use crate::object_cache::payer::Payer;
use crate::object_cache::queue::Queue;
use crate::object_cache::removal_cause::RemovalCause;
use crate::object_cache::shard::Tables;

/// Objects scanned at once: few, so that a small group does not lose more than necessary.
const BATCH: u64 = 16;
/// Rounds to bring a cache below its own bound.
const ROUNDS_MAX: u32 = 64;

/// Rounds of an insert searching for objects to replace, before reclaim is called.
const EXCHANGE_LOOKS_MAX: u32 = 64;

impl<K, V, S> CachedObjects<K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    fn count_of(&self, group: &Group) -> (u64, u64) {
        let [probation, main] = &self.lists;
        (probation.count(group), main.count(group))
    }

    /// Visits up to `nr` objects of a group and evicts the unused ones, until `wanted` bytes are
    /// free. Returns the visited objects and the freed bytes. The result may exceed `wanted` by the
    /// last evicted object, and by earlier ones larger than the group's average.
    fn shrink(&self, group: &Arc<Group>, nr: u64, wanted: u64, reason: Reason) -> Scanned {
        let payer = self.payers.get(group.owner());
        let (probation, main) = self.count_of(group);
        let bytes = payer.as_ref().map_or(0, |payer| payer.bytes());
        let mean = bytes.checked_div(probation + main).unwrap_or(0).max(1);
        let lists = self.lists.each_ref().map(|list| list.known(group));
        let known = lists.each_ref().map(Option::as_ref);
        let mut eviction = Eviction::new(self, group, payer.as_ref(), known);
        let mut scanned = 0;
        while scanned < nr && eviction.freed_bytes() < wanted {
            let let_go = |payer: &Payer, evicted| self.finish_eviction(payer, evicted);
            let most = (wanted - eviction.freed_bytes()).div_ceil(mean);
            match eviction.look::<{ BATCH as usize }>(nr - scanned, most, let_go) {
                0 => break,
                nr_looked => scanned += nr_looked,
            }
        }
        if let Some(payer) = &payer
            && reason == Reason::Kswapd
        {
            payer.note_evicted_by_workers(eviction.nr_evicted());
        }
        Scanned { scanned, freed_bytes: eviction.freed_bytes(), ..Scanned::default() }
    }

    /// Evicts objects of a group until they free `bytes`. Returns a charge of that size and the
    /// last evicted object, whose place now belongs to the caller. Reclaim would do the same in a
    /// group without other memory, but with an uncharge and a charge at every level. `None` if the
    /// eviction frees too little; the evicted bytes are then uncharged. No lock may be held.
    pub(super) fn exchange(
        &self,
        group: &Arc<Group>,
        payer: &Arc<Payer>,
        bytes: u64,
    ) -> Option<(Charge, Evicted<K, V>)> {
        let known = [Queue::Probation, Queue::Main].map(|queue| payer.list_handle(queue));
        let mut eviction = Eviction::new(self, group, Some(payer), known);
        let mut hoard = Charge::from_raw(payer.owner(), 0);
        let mut last: Option<Evicted<K, V>> = None;
        for _ in 0..EXCHANGE_LOOKS_MAX {
            let nr_looked = eviction.look::<1>(BATCH, 1, |_, mut evicted| {
                hoard.merge(evicted.charge.split(evicted.charge.bytes()));
                if let Some(before) = last.replace(evicted) {
                    self.finish_eviction(payer, before);
                }
            });
            if nr_looked == 0 || hoard.bytes() >= bytes {
                break;
            }
        }
        self.victim_hints.note(payer.owner(), known);
        let last = last?;
        if hoard.bytes() < bytes {
            self.finish_eviction(payer, last);
            return None;
        }
        eviction.hand_on(bytes);
        if payer.nr_inserted_here().is_multiple_of(SWAP_CLUSTER_MAX) {
            // As often as reclaim would count it.
            group.event(EventKind::Max);
        }
        Some((hoard.split(bytes), last))
    }

    /// Sets the cache's own bound, and from now on counts all bytes together.
    pub(crate) fn bound_bytes(&self, bytes_max: u64) {
        for shard in self.shards.iter() {
            shard.tables.write().count_bytes_in(&self.bytes);
        }
        self.bytes_max
            .store(if bytes_max == NO_BOUND { bytes_max } else { bytes_max.min(i64::MAX as u64) }, Relaxed);
    }

    /// Evicts until the cache is within its own bound: from the inserting group, as long as it has
    /// its share, otherwise from the group with the most bytes. No lock may be held.
    pub(super) fn keep_within(&self, bytes_max: u64, group: &Arc<Group>) {
        for _ in 0..ROUNDS_MAX {
            let over = self.bytes.load(Relaxed).saturating_sub(bytes_max as i64);
            if over <= 0 {
                return;
            }
            let payer = self.payers.of(group.owner());
            let has_its_share = has_its_share(&payer, self.payers.nr(), bytes_max);
            if has_its_share && self.shrink(group, BATCH, over as u64, Reason::Direct).freed_bytes > 0 {
                continue;
            }
            let most = self.payers.all().into_iter().max_by_key(|(_, payer)| payer.bytes());
            let Some(most) = most.and_then(|(owner, _)| owner.try_resolve()) else { return };
            self.shrink(&most, BATCH, over as u64, Reason::Direct);
        }
    }

    /// Removes every expired object.
    pub(crate) fn sweep_expired(&self) {
        if !self.expiry.is_on() {
            return;
        }
        let now = self.expiry.now();
        for shard in self.shards.iter() {
            let mut old = Vec::new();
            {
                let mut tables = shard.tables.write();
                let is_over = |tables: &Tables<K, V>, at| self.expiry.is_over(tables.age(at), now);
                let moved = |slot, token| self.note_moved(slot, token);
                old.extend(tables.take_those(is_over, |entry| self.hash_of(entry), moved));
                tables.publish_bytes(&self.bytes);
            }
            for entry in old {
                self.finish_removal(entry, RemovalCause::Expired);
            }
        }
    }
}

impl<K, V, S> Shrinker for CachedObjects<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn name(&self) -> String {
        self.name.clone()
    }

    fn seeks(&self) -> u32 {
        self.seeks
    }

    fn batch(&self) -> u64 {
        BATCH
    }

    fn count(&self, target: &ShrinkTarget<'_>) -> Count {
        match self.count_of(target.group) {
            (0, 0) => Count::Empty,
            (probation, main) => Count::Objects(probation + main),
        }
    }

    fn scan(&self, target: &ShrinkTarget<'_>, nr: u64) -> Scan {
        Scan::Done(self.shrink(target.group, nr, target.wanted_bytes, target.reason))
    }

    fn usage(&self, target: &ShrinkTarget<'_>) -> Usage {
        let (probation, main) = self.count_of(target.group);
        let bytes = self.payers.get(target.group.owner()).map_or(0, |payer| payer.bytes());
        Usage { objects: probation + main, reclaimable: probation + main, bytes }
    }

    fn reparent(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        self.payers.reparent(dying.owner(), parent.owner());
    }
}
