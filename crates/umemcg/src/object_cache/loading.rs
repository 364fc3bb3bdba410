//! One loader for each key: who asks for a key that is being loaded waits for it.
//!
//! A flight stands in the shard of its key, under the same lock as the entries. Whoever inserts or removes the key takes the
//! flight away, and then what is being loaded is not kept: it may be older than what the other one knows.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_base::sync::{Condvar, Mutex};
use umemcg_group::Group;

use super::inner::Inner;

/// A value on its way.
#[derive(Debug)]
pub(super) struct Flight<V> {
    state: Mutex<State<V>>,
    landed: Condvar,
}

#[derive(Debug)]
enum State<V> {
    InTheAir,
    Value(V),
    /// The loader failed or panicked; somebody else may try.
    Lost,
}

impl<V: Clone> Flight<V> {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::InTheAir), landed: Condvar::new() }
    }

    /// Waits for the value; none when its loader had none.
    pub(super) fn wait(&self) -> Option<V> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::InTheAir => self.landed.wait(&mut state),
                State::Value(value) => return Some(value.clone()),
                State::Lost => return None,
            }
        }
    }

    /// Ends the wait.
    pub(super) fn land(&self, value: Option<V>) {
        *self.state.lock() = value.map_or(State::Lost, State::Value);
        self.landed.notify_all();
    }
}

/// Who one is that asks for a key which is not there.
pub(super) enum Boarding<V> {
    /// It has come meanwhile.
    Resident,
    /// Somebody loads it: wait.
    Passenger(Arc<Flight<V>>),
    /// Load it.
    Pilot(Arc<Flight<V>>),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Inner<K, V, S> {
    /// Starts a flight for a key, or joins the one that there is.
    pub(super) fn board(&self, hash: u64, key: &K) -> Boarding<V>
    where
        K: Clone,
    {
        let mut tables = self.shards.of(hash).tables.write();
        if tables.find(hash, |entry| entry.key == *key).is_some() {
            return Boarding::Resident;
        }
        if let Some((_, flight)) = tables.flights.find(hash, |(there, _)| there == key) {
            return Boarding::Passenger(Arc::clone(flight));
        }
        let flight = Arc::new(Flight::new());
        let stored = (key.clone(), Arc::clone(&flight));
        tables.flights.insert_unique(hash, stored, |(key, _)| self.hash(key));
        Boarding::Pilot(flight)
    }

    pub(super) fn note_miss(&self, group: &Arc<Group>) {
        self.note_missing();
        self.payers.of(group.owner()).note_miss();
    }
}

/// Ends a flight when it is dropped, whatever its pilot does.
pub(super) struct Landing<'a, K: Hash + Eq, V: Clone, S: BuildHasher> {
    pub(super) inner: &'a Inner<K, V, S>,
    pub(super) hash: u64,
    pub(super) flight: &'a Arc<Flight<V>>,
    pub(super) value: Option<V>,
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Landing<'_, K, V, S> {
    /// Loads a value, stores it if it can be, and shares it with who waits.
    pub(super) fn fly<E>(
        mut self,
        group: &Arc<Group>,
        key: K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let value = load()?;
        self.value = Some(value.clone());
        // Declined: those who wait have it all the same.
        let _ = self.inner.store(group, self.hash, key, value.clone(), Some(self.flight));
        Ok(value)
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Drop for Landing<'_, K, V, S> {
    fn drop(&mut self) {
        self.inner.end_flight(self.hash, self.flight);
        self.flight.land(self.value.take());
    }
}
