//! Single flight: of concurrent callers of a group missing the same key, one loads it and the
//! others wait for its value. Callers of another group do not wait for it: they load themselves,
//! and the first value is kept.
//!
//! The load is in the shard of its key, under the same lock as the entries. An insert or a removal
//! of the key takes the load out of the shard; its value is then handed to the waiters but not
//! stored, because it may be older than the insert or removal.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_group::Group;

use super::CachedObjects;
use super::removing::end;
use crate::object_cache::flight::{Flight, Joined, Ticket};

/// A flight with its key, as in a table.
type KeyedFlight<K, V> = (K, Arc<Flight<V>>);

/// The role of a caller after a miss.
pub(crate) enum Role<V> {
    /// Look again: the key has been inserted meanwhile.
    Resident,
    /// The value is on its way into the table.
    Value(V),
    /// Wait for the loading caller.
    Waiter(Arc<Flight<V>>, Ticket),
    /// Load it.
    Loader(Arc<Flight<V>>),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    /// Bytes of a flight: itself, and its place in the table; the table doubles when it grows.
    pub(super) const FLIGHT_BYTES: u64 =
        (size_of::<Flight<V>>() + 2 * size_of::<(K, Arc<Flight<V>>)>() + 32) as u64;

    /// Starts a load of a key, or joins one of the same group.
    pub(crate) fn join_load(&self, group: &Arc<Group>, hash: u64, key: &K) -> Role<V>
    where
        K: Clone,
    {
        let mut tables = self.shards.of(hash).tables.write();
        if tables.find(hash, |entry| entry.key == *key).is_some() {
            return Role::Resident;
        }
        let mut ours = None;
        for (_, flight) in tables.flights.iter_hash(hash).filter(|(there, _)| there == key) {
            if let Some(value) = flight.value() {
                return Role::Value(value);
            }
            if Arc::ptr_eq(flight.group(), group) {
                ours = Some(Arc::clone(flight));
            }
        }
        if let Some(flight) = ours {
            return match flight.join() {
                Joined::TakenOver => Role::Loader(flight),
                Joined::Waiting(ticket) => Role::Waiter(flight, ticket),
            };
        }
        let flight = Flight::new(group, Self::FLIGHT_BYTES);
        let stored = (key.clone(), Arc::clone(&flight));
        tables.flights.insert_unique(hash, stored, |(key, _)| self.hash(key));
        Role::Loader(flight)
    }

    pub(crate) fn note_miss(&self, group: &Arc<Group>) {
        self.note_missing();
        self.payers.of(group.owner()).note_miss();
    }

    /// Returns whether a flight is still in the table: it has not been cancelled.
    pub(super) fn is_in_flight(&self, hash: u64, flight: &Arc<Flight<V>>) -> bool {
        let tables = self.shards.of(hash).tables.read();
        tables.flights.iter_hash(hash).any(|(_, there)| Arc::ptr_eq(there, flight))
    }

    /// Removes a load from its shard, if it is still there.
    pub(crate) fn end_load(&self, hash: u64, flight: &Arc<Flight<V>>) {
        let taken = self.take_flight(hash, flight, |_| ((), true));
        end(taken);
    }

    /// The loader gives up. A waiter takes its place if there is one.
    pub(crate) fn abandon_load(&self, hash: u64, flight: &Arc<Flight<V>>) {
        let (wakers, taken) = self.take_flight(hash, flight, |stays| flight.abandon(stays));
        wakers.wake();
        end(taken);
    }

    /// A waiter leaves. A flight abandoned to its waiters leaves the table with the last of them.
    pub(crate) fn leave_load(&self, hash: u64, flight: &Arc<Flight<V>>, ticket: Ticket) {
        if flight.leave(ticket) {
            let taken = self.take_flight(hash, flight, |_| ((), flight.is_deserted()));
            end(taken);
        }
    }

    /// Calls `decide`, under the shard's lock, to learn whether to take a flight out of the table.
    /// Its argument is whether the flight is in the table. Returns its result and the removed
    /// flight, to be dropped with no lock held.
    fn take_flight<R>(
        &self,
        hash: u64,
        flight: &Arc<Flight<V>>,
        decide: impl FnOnce(bool) -> (R, bool),
    ) -> (R, Option<KeyedFlight<K, V>>) {
        let mut tables = self.shards.of(hash).tables.write();
        match tables.flights.find_entry(hash, |(_, there)| Arc::ptr_eq(there, flight)) {
            Ok(place) => {
                let (answer, leaves) = decide(true);
                (answer, leaves.then(|| place.remove().0))
            }
            Err(_) => (decide(false).0, None),
        }
    }
}
