//! The way into the table: charge, place, entry.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use umemcg_base::assert_no_locks_held;
use umemcg_group::{Charge, Group};
use umemcg_reclaim::{ChargeEffort, ListSlot};

use super::removing::{Evicted, RemovalGuard, end};
use super::{CachedObjects, DeclineReason, count_bytes};
use crate::object_cache::entry::{Entry, Mark};
use crate::object_cache::flight::Flight;
use crate::object_cache::payer::Payer;
use crate::object_cache::queue::Queue;
use crate::object_cache::removal_cause::RemovalCause;
use crate::object_cache::shard::Tables;

/// The room for ghosts and other state of a group is adjusted once in this many inserts.
const LOOK_AROUND_EVERY: u64 = 64;
/// A caller that must not sleep evicts objects of its own group itself, if neither their average
/// size nor the new object is larger than this.
const SMALL_BYTES: u64 = 64 << 10;

/// The charge and the place of an object, needed before it is put in the table. Counted in the
/// statistics of its group.
pub(super) struct ChargedSlot<K, V> {
    /// To the payer's owner.
    charge: Charge,
    slot: ListSlot,
    payer: Arc<Payer>,
    /// The object it replaces; the listener is still to be called, and a ghost to be left.
    evicted: Option<Evicted<K, V>>,
}

/// The source of the memory for an object.
pub(super) enum Funds {
    /// The caller reclaims if there is no room.
    Reclaim,
    /// Only free room, or the room of small objects of the same group.
    AtOnce,
    /// It is charged already.
    Paid(Charge),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    /// Charges for an object and takes a place in the lists for it. No lock may be held.
    pub(super) fn charge_slot(
        &self,
        group: &Arc<Group>,
        bytes: u64,
        funds: Funds,
    ) -> Result<ChargedSlot<K, V>, DeclineReason> {
        if u32::try_from(bytes).is_err() {
            return Err(DeclineReason::TooLarge { bytes });
        }
        if !matches!(funds, Funds::Paid(_))
            && let Some(payer) = self.payers.get(group.owner()).filter(|payer| payer.is_alone())
            // If forced charges exceed the limit, only reclaim brings the usage below it.
            && (group.max_bytes().saturating_sub(bytes) + 1..=group.max_bytes()).contains(&group.usage_bytes())
            && (matches!(funds, Funds::Reclaim) || self.exchanges_quickly(&payer, bytes))
            && let Some((charge, evicted)) = self.exchange(group, &payer, bytes)
        {
            return Ok(ChargedSlot { charge, slot: evicted.slot, payer, evicted: Some(evicted) });
        }
        let mut group = Arc::clone(group);
        let mut funds = funds;
        // Bounded by the depth of the tree: each round is for a group further up.
        loop {
            // A refusal is no `oom` event, because a cache can do without the object.
            let charge = match &mut funds {
                Funds::Reclaim => self.reclaimer.charge(&group, bytes, ChargeEffort::Opportunistic),
                Funds::AtOnce => self.reclaimer.charge(&group, bytes, ChargeEffort::Immediate),
                Funds::Paid(charge) => Ok(charge.split(charge.bytes())),
            };
            let charge = charge.map_err(DeclineReason::Refused)?;
            let payer = self.payers.of(charge.owner());
            if payer.owner() != charge.owner() {
                // The group was removed just now, and has no state here.
                group = payer.owner().resolve();
                if let Funds::Paid(paid) = &mut funds {
                    *paid = group.charge_forced(charge.bytes());
                }
                continue;
            }
            let slot = self.lists[0].reserve(0).map_err(|_| DeclineReason::ListsFull)?;
            count_bytes(&group, charge.owner(), charge.bytes() as i64);
            return Ok(ChargedSlot { charge, slot, payer, evicted: None });
        }
    }

    /// Returns whether an object can take the place of others in a moment: none is large, and no
    /// listener is called.
    fn exchanges_quickly(&self, payer: &Payer, bytes: u64) -> bool {
        self.listener.0.is_none() && bytes.max(payer.mean_bytes()) <= SMALL_BYTES
    }

    /// Stores a value. If the embedder's code panics on the way, the value and its charge are
    /// released, and the listener is called for the replaced value. When the value is declined, the
    /// old value of the key is removed nevertheless. A loaded value is stored only if its load has
    /// not been cancelled.
    pub(crate) fn store(
        &self,
        group: &Arc<Group>,
        hash: u64,
        key: K,
        value: V,
        flight: Option<&Arc<Flight<V>>>,
    ) -> Result<(), (K, V, DeclineReason)> {
        assert_no_locks_held("an insert");
        self.victim_hints.look_ahead(group.owner(), &self.lists[0], &self.shards);
        let bytes = self.weigh(&key, &value);
        match self.charge_slot(group, bytes, Funds::Reclaim) {
            Ok(paid) => {
                self.place(group, hash, (key, value), paid, flight);
                Ok(())
            }
            Err(reason) => {
                self.decline(group, hash, &key, flight);
                Err((key, value, reason))
            }
        }
    }

    /// Declines a value: the key has no value from now on.
    pub(super) fn decline(&self, group: &Arc<Group>, hash: u64, key: &K, flight: Option<&Arc<Flight<V>>>) {
        self.payers.of(group.owner()).note_declined();
        match flight {
            Some(flight) => self.end_load(hash, flight),
            None => drop(self.remove(hash, key, RemovalCause::Outdated)),
        }
    }

    /// Puts a value in the table, with its charge and its place in the lists.
    pub(super) fn place(
        &self,
        group: &Arc<Group>,
        hash: u64,
        (key, value): (K, V),
        paid: ChargedSlot<K, V>,
        flight: Option<&Arc<Flight<V>>>,
    ) {
        let ChargedSlot { charge, slot, payer, evicted } = paid;
        let ghost = evicted.as_ref().and_then(|evicted| evicted.ghost);
        let queue = if payer.exchange_ghosts(hash, ghost) { Queue::Main } else { Queue::Probation };
        let (_, bytes) = charge.into_raw();
        let nr_inserted = payer.note_inserted(bytes);
        if nr_inserted.is_multiple_of(LOOK_AROUND_EVERY) {
            payer.fit_ghosts(group);
            payer.look_around(group);
        }
        let entry = Entry { key, value, payer, slot, mark: Mark::new(queue, bytes) };
        let mut loose =
            RemovalGuard { objects: self, entry: Some(entry), why: RemovalCause::Outdated, evicted };
        if let Some(old) = self.put(hash, &mut loose, flight) {
            self.finish_removal(old, RemovalCause::Replaced);
        }
        drop(loose);
        let bytes_max = self.bytes_max.load(Relaxed);
        if bytes_max != u64::MAX {
            self.keep_within(bytes_max, group);
        }
    }

    /// Puts an entry in the table and on its list, unless its load has been cancelled. Returns the
    /// replaced entry. The embedder's code runs first, then the table changes.
    fn put(
        &self,
        hash: u64,
        loose: &mut RemovalGuard<'_, K, V, S>,
        flight: Option<&Arc<Flight<V>>>,
    ) -> Option<Entry<K, V>> {
        let key = &loose.entry.as_ref()?.key;
        let now = self.expiry.now();
        let shard = self.shards.of(hash);
        // Before the lock: flights are dropped after it.
        let mut cancelled = Vec::new();
        let mut tables = shard.tables.write();
        if tables.is_closed {
            return None;
        }
        if flight.is_some() || !tables.flights.is_empty() {
            let is_ours = |other: &Arc<Flight<V>>| flight.is_some_and(|ours| Arc::ptr_eq(ours, other));
            if flight.is_some() && tables.flights.find(hash, |(_, there)| is_ours(there)).is_none() {
                return None;
            }
            cancelled = tables.take_flights(hash, |there| there == key);
        }
        let there = tables.find(hash, |there| there.key == *key).map(|(at, _)| at);
        if there.is_none() {
            tables.make_room(|entry| self.hash(&entry.key));
        }
        let entry = loose.entry.take()?;
        let (at, out) = match there {
            None => {
                let at = tables.put(hash, entry, now);
                shard.note_places(&tables);
                (at, None)
            }
            Some(at) => (at, tables.replace(at, entry, now)),
        };
        tables.publish_bytes(&self.bytes);
        self.enlist_new(&mut tables, at, out.as_ref());
        drop(tables);
        end(cancelled);
        out
    }

    /// Puts a new entry of a locked shard on its list.
    fn enlist_new(&self, tables: &mut Tables<K, V>, at: u32, replaced: Option<&Entry<K, V>>) {
        let token = tables.token(at);
        let Some(entry) = tables.get_mut(at) else { return };
        // Uses belong to the key, so they are kept.
        if replaced.is_some_and(|old| old.mark.queue() == Queue::Main) {
            entry.mark.promote();
        }
        // Before the entry is on a list: a walk of the list must find the token.
        self.lists[0].set_token(entry.slot, token);
        entry.payer.enlist(&self.lists, entry.mark.queue(), entry.slot);
    }
}
