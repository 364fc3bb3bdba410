//! Single flight: of the callers that miss the same key at the same time, one loads it and the
//! others wait for its value.
//!
//! The load stands in the shard of its key, under the same lock as the entries. An insert or a
//! removal of the key takes the load out of the shard; its value is then handed to the waiters but
//! not stored, because it may be older than the insert or removal.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use umemcg_group::Group;

use super::CachedObjects;
use crate::object_cache::in_flight::InFlight;

/// The role of a caller that missed a key.
pub(crate) enum Role<V> {
    /// Look again: the key has been inserted meanwhile.
    Resident,
    /// Wait for the caller that loads it.
    Waiter(Arc<InFlight<V>>),
    /// Load it.
    Loader(Arc<InFlight<V>>),
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> CachedObjects<K, V, S> {
    /// Starts a load of a key, or joins one in progress.
    pub(crate) fn join_load(&self, hash: u64, key: &K) -> Role<V>
    where
        K: Clone,
    {
        let mut tables = self.shards.of(hash).tables.write();
        if tables.find(hash, |entry| entry.key == *key).is_some() {
            return Role::Resident;
        }
        if let Some((_, flight)) = tables.flights.find(hash, |(there, _)| there == key) {
            return Role::Waiter(Arc::clone(flight));
        }
        let flight = Arc::new(InFlight::new());
        let stored = (key.clone(), Arc::clone(&flight));
        tables.flights.insert_unique(hash, stored, |(key, _)| self.hash(key));
        Role::Loader(flight)
    }

    pub(crate) fn note_miss(&self, group: &Arc<Group>) {
        self.note_missing();
        self.payers.of(group.owner()).note_miss();
    }
}

/// Ends a load when it is dropped, also when the loader fails or panics.
pub(crate) struct LoadGuard<'a, K: Hash + Eq, V: Clone, S: BuildHasher> {
    pub(crate) objects: &'a CachedObjects<K, V, S>,
    pub(crate) hash: u64,
    pub(crate) flight: &'a Arc<InFlight<V>>,
    pub(crate) value: Option<V>,
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> LoadGuard<'_, K, V, S> {
    /// Loads a value, stores it if it can be, and shares it with the waiters.
    pub(crate) fn run<E>(
        mut self,
        group: &Arc<Group>,
        key: K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let value = load()?;
        self.value = Some(value.clone());
        // Declined: the waiters get the value all the same.
        let _ = self.objects.store(group, self.hash, key, value.clone(), Some(self.flight));
        Ok(value)
    }
}

impl<K: Hash + Eq, V: Clone, S: BuildHasher> Drop for LoadGuard<'_, K, V, S> {
    fn drop(&mut self) {
        self.objects.end_load(self.hash, self.flight);
        self.flight.finish(self.value.take());
    }
}
