//! The ways out of the table: removal by a caller, by age, by another value of the same key. Also
//! the rest of a removal once an entry is out, shared with eviction.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_base::contained;
use umemcg_group::{Charge, StatItem};
use umemcg_reclaim::ListSlot;

use super::CachedObjects;
use crate::object_cache::entry::Entry;
use crate::object_cache::flight::Flight;
use crate::object_cache::payer::Payer;
use crate::object_cache::removal_cause::RemovalCause;
use crate::object_cache::shard::Tables;

/// Flights taken out of a table, with their keys.
pub(super) type Flights<K, V> = Vec<(K, Arc<Flight<V>>)>;

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    /// Removes a key. Also cancels its loads: their values may be older than this removal.
    fn take<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> (Option<Entry<K, V>>, Flights<K, V>)
    where
        K: Borrow<Q>,
    {
        let mut cancelled = Vec::new();
        let mut tables = self.shards.of(hash).tables.write();
        if !tables.flights.is_empty() {
            cancelled = tables.take_flights(hash, |there| there.borrow() == key);
        }
        let there = tables.find(hash, |entry| entry.key.borrow() == key).map(|(at, _)| at);
        let entry = there.and_then(|at| self.take_out(&mut tables, hash, at));
        drop(tables);
        (entry, cancelled)
    }

    /// Takes the entry of that hash out of a place of a locked shard.
    pub(super) fn take_out(&self, tables: &mut Tables<K, V>, hash: u64, at: u32) -> Option<Entry<K, V>> {
        let entry = tables.take(hash, at)?;
        tables.publish_bytes(&self.bytes);
        tables.shrink_if_sparse(|entry| self.hash_of(entry), |slot, token| self.note_moved(slot, token));
        Some(entry)
    }

    /// Records the new place of an entry.
    pub(super) fn note_moved(&self, slot: ListSlot, token: u64) {
        self.lists[0].set_token(slot, token);
    }

    /// Removes a key and returns its value.
    pub(crate) fn remove<Q: Eq + ?Sized>(&self, hash: u64, key: &Q, why: RemovalCause) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (entry, cancelled) = self.take(hash, key);
        let loose = RemovalGuard { objects: self, entry, why, evicted: None };
        let value = match &loose.entry {
            Some(entry) => Some(entry.value.clone()),
            // A value waiting for a worker.
            None => cancelled.iter().find_map(|(_, flight)| flight.value()),
        };
        end(cancelled);
        value
    }

    /// Removes the object of a slot, if it has expired.
    pub(crate) fn remove_expired(&self, hash: u64, slot: ListSlot) {
        let now = self.expiry.now();
        let mut tables = self.shards.of(hash).tables.write();
        let Some((at, _)) = tables.find(hash, |entry| entry.slot == slot) else { return };
        if !self.expiry.is_over(tables.age(at), now) {
            return;
        }
        let Some(entry) = self.take_out(&mut tables, hash, at) else { return };
        drop(tables);
        self.finish_removal(entry, RemovalCause::Expired);
    }

    /// Finishes the removal of an entry taken out of its table: removes it from its list, releases
    /// its charge, calls the listener. No lock may be held.
    pub(super) fn finish_removal(&self, entry: Entry<K, V>, why: RemovalCause) {
        let Entry { key, value, payer, slot, mark } = entry;
        let (owner, bytes) = (payer.owner(), mark.bytes());
        if let Some(group) = owner.try_resolve() {
            group.stat_add(StatItem::SlabReclaimable, -(bytes as i64));
        }
        let list = &self.lists[mark.queue() as usize];
        list.remove(slot);
        payer.note_removed(why, 1, bytes);
        drop(payer);
        // Before another object can get the slot.
        self.release_charge(mark.has_pin(), slot, Charge::from_raw(owner, bytes));
        list.release(slot);
        self.listener.call(key, value, why);
    }

    /// Finishes an eviction: releases charge and slot, leaves a ghost, calls the listener. No lock
    /// may be held.
    pub(super) fn finish_eviction(&self, payer: &Payer, evicted: Evicted<K, V>) {
        let Evicted { key, value, charge, slot, ghost } = evicted;
        if ghost.is_some() {
            payer.add_ghosts(ghost.into_iter());
        }
        self.lists[0].release(slot);
        drop(charge);
        self.listener.call(key, value, RemovalCause::Evicted);
    }

    /// Removes every object. With `closes`, the tables accept no more objects.
    pub(crate) fn clear(&self, why: RemovalCause, closes: bool) {
        for shard in self.shards.iter() {
            let (entries, flights) = {
                let mut tables = shard.tables.write();
                tables.is_closed |= closes;
                let entries = tables.take_all();
                tables.publish_bytes(&self.bytes);
                (entries, std::mem::take(&mut tables.flights))
            };
            end(flights);
            entries.into_iter().for_each(|entry| self.finish_removal(entry, why));
        }
    }
}

/// An evicted object, on no list and already counted as gone in its group's figures, with its
/// charge and slot.
pub(super) struct Evicted<K, V> {
    pub(super) key: K,
    pub(super) value: V,
    pub(super) charge: Charge,
    pub(super) slot: ListSlot,
    /// The ghost it leaves.
    pub(super) ghost: Option<u64>,
}

/// Objects in no table: one about to be inserted, and the objects it replaces. The drop finishes
/// their removal, so also when a key or a value panics.
pub(super) struct RemovalGuard<'a, K, V, S>
where
    K: Hash + Eq,
    V: Clone,
    S: BuildHasher,
{
    pub(super) objects: &'a CachedObjects<K, V, S>,
    /// `None` once it is in the table.
    pub(super) entry: Option<Entry<K, V>>,
    /// The cause of its removal.
    pub(super) why: RemovalCause,
    /// The object evicted for it; the listener is still to be called.
    pub(super) evicted: Option<Evicted<K, V>>,
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Drop for RemovalGuard<'_, K, V, S> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.objects.finish_removal(entry, self.why);
        }
        if let Some(Evicted { key, value, .. }) = self.evicted.take() {
            self.objects.listener.call(key, value, RemovalCause::Evicted);
        }
    }
}

/// Drops a container of keys or values; their destructors may panic.
pub(super) fn end<T>(what: T) {
    if let Err(panic) = contained(|| drop(what)) {
        tracing::error!(%panic, "the end of a key or a value of a cache panicked");
    }
}
