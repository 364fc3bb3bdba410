//! Passes over all objects, and lookups without side effects.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use umemcg_group::Group;
use umemcg_reclaim::ListSlot;

use super::CachedObjects;
use super::removing::end;
use crate::object_cache::removal_cause::RemovalCause;
use crate::object_cache::shard::{Shard, Tables};

/// Clones of an object, and its identifying place in the lists.
pub(crate) type Visited<K, V> = (ListSlot, K, V);

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    /// Calls `look` with the value of a key, and counts nothing.
    pub(crate) fn peek_with<Q: Eq + ?Sized, R>(
        &self,
        hash: u64,
        key: &Q,
        look: impl FnOnce(&V) -> R,
    ) -> Option<R>
    where
        K: Borrow<Q>,
    {
        let now = self.expiry.now();
        let tables = self.shards.of(hash).tables.read();
        match tables.find(hash, |entry| entry.key.borrow() == key) {
            Some((at, entry)) => (!self.expiry.is_over(tables.age(at), now)).then(|| look(&entry.value)),
            None => {
                let of_key = tables.flights.iter_hash(hash).filter(|(there, _)| there.borrow() == key);
                of_key.filter_map(|(_, flight)| flight.value()).next().map(|value| look(&value))
            }
        }
    }

    /// Calls `visit` with clones of the objects of each shard, and no lock held.
    pub(crate) fn for_each_shard(&self, mut visit: impl FnMut(&Shard<K, V>, Vec<Visited<K, V>>))
    where
        K: Clone,
    {
        let now = self.expiry.now();
        for shard in self.shards.iter() {
            let tables = shard.tables.read();
            let there = tables.entries().filter(|&(at, _)| !self.expiry.is_over(tables.age(at), now));
            let entries =
                there.map(|(_, entry)| (entry.slot, entry.key.clone(), entry.value.clone())).collect();
            drop(tables);
            visit(shard, entries);
        }
    }

    /// Removes the objects of these places from a shard, as far as they still exist.
    pub(crate) fn remove_slots(&self, shard: &Shard<K, V>, slots: &HashSet<ListSlot>) {
        if slots.is_empty() {
            return;
        }
        let mut tables = shard.tables.write();
        let is_meant =
            |tables: &Tables<K, V>, at| tables.get(at).is_some_and(|entry| slots.contains(&entry.slot));
        let moved = |slot, token| self.note_moved(slot, token);
        let gone = tables.take_those(is_meant, |entry| self.hash_of(entry), moved);
        tables.publish_bytes(&self.bytes);
        drop(tables);
        gone.into_iter().for_each(|entry| self.finish_removal(entry, RemovalCause::Removed));
    }

    /// Removes the objects charged to a group, and cancels its loads.
    pub(crate) fn clear_of(&self, group: &Arc<Group>) {
        for shard in self.shards.iter() {
            let (slots, has_flights) = {
                let tables = shard.tables.read();
                let theirs = tables.entries().filter(|(_, entry)| {
                    let owner = entry.payer.owner();
                    // Objects of removed groups belong to the group above.
                    owner == group.owner() || owner.try_resolve().is_some_and(|it| Arc::ptr_eq(&it, group))
                });
                (theirs.map(|(_, entry)| entry.slot).collect(), !tables.flights.is_empty())
            };
            self.remove_slots(shard, &slots);
            if has_flights {
                let mut tables = shard.tables.write();
                let cancelled: Vec<_> =
                    tables.flights.extract_if(|(_, flight)| Arc::ptr_eq(flight.group(), group)).collect();
                drop(tables);
                end(cancelled);
            }
        }
    }

    /// Changes the cache's own bound, and evicts the excess.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        umemcg_base::assert_no_locks_held("a change of a cache's bound");
        self.bound_bytes(bytes_max);
        // Bounded by the objects: each turn except the last evicts some.
        loop {
            let before = self.bytes.load(Relaxed);
            if before.max(0).cast_unsigned() <= bytes_max {
                return;
            }
            self.keep_within(bytes_max, self.reclaimer.tree().root());
            if self.bytes.load(Relaxed) >= before {
                return;
            }
        }
    }
}
