//! Further operations required by the cache traits of engines: lookups without side effects, passes
//! over all objects, and changes of bounds.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use umemcg_group::Group;

use super::ObjectCache;
use super::cached_objects::FoundPinned;
use super::pin::Pinned;

/// A time to live was set for a cache built without one; it keeps no ages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cache was built without a time to live or to idle, and keeps no ages")]
pub struct AgesNotKept;

impl<K, V, S> ObjectCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the value of a key like [`get`](Self::get), without counting a hit, a miss or a use.
    pub fn peek<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.objects.peek_with(self.objects.hash(key), key, V::clone)
    }

    /// Returns a handle like [`get_pinned`](Self::get_pinned), without counting a hit, a miss or a
    /// use: for a value just looked up.
    pub fn peek_pinned<Q>(&self, key: &Q) -> Option<Pinned<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.objects.find_pinned(self.objects.hash(key), key, false) {
            FoundPinned::Value(value) => Some(value),
            FoundPinned::Expired(_) | FoundPinned::Missing => None,
        }
    }

    /// Returns whether a key has an unexpired value. Counts nothing.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.objects.peek_with(self.objects.hash(key), key, |_| ()).is_some()
    }

    /// Calls `visit` with each unexpired object, in any order. The objects of one shard are cloned
    /// under its lock; no lock is held while `visit` runs, so it may use the cache. Objects
    /// inserted or removed meanwhile may be visited or not.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &V))
    where
        K: Clone,
    {
        self.objects
            .for_each_shard(|_, entries| entries.iter().for_each(|(_, key, value)| visit(key, value)));
    }

    /// Removes all objects rejected by `keeps` (`false`). Otherwise like
    /// [`for_each`](Self::for_each); an object replaced during the call of `keeps` stays.
    pub fn retain(&self, mut keeps: impl FnMut(&K, &V) -> bool)
    where
        K: Clone,
    {
        self.objects.for_each_shard(|shard, entries| {
            let goes = entries.iter().filter(|(_, key, value)| !keeps(key, value));
            let slots = goes.map(|(slot, ..)| *slot).collect();
            self.objects.remove_slots(shard, &slots);
        });
    }

    /// Removes all objects charged to `group` itself, and cancels its loads: loaded values are
    /// returned but not kept. Visits every object of the cache.
    pub fn clear_of(&self, group: &Arc<Group>) {
        self.objects.clear_of(group);
    }

    /// Changes the bound of the bytes of the whole cache; [`u64::MAX`] removes it. Evicts the
    /// excess. No lock of this library may be held.
    pub fn set_bytes_max(&self, bytes: u64) {
        self.objects.set_bytes_max(bytes);
    }

    /// Changes the time after insertion at which objects expire, also for present objects; `None`
    /// removes it.
    ///
    /// # Errors
    /// [`AgesNotKept`] when the builder set neither a time to live nor a time to idle.
    pub fn set_time_to_live(&self, time: Option<Duration>) -> Result<(), AgesNotKept> {
        if self.objects.expiry.set_time_to_live(time) { Ok(()) } else { Err(AgesNotKept) }
    }
}
