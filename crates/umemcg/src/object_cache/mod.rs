//! A concurrent cache of the embedder's objects, each charged to the group that inserted it.
//!
//! ```text
//!   get ──▶ shard (shared lock) ──▶ entry: mark of use, hit counted, value cloned        no list lock
//!   insert ─▶ charge (may reclaim) ─▶ shard (exclusive lock): entry in, on a list        declined when refused
//!   reclaim ─▶ lists of one group ──▶ shard: entry out ─▶ charge back, listener          only that group's objects
//! ```
//!
//! Memory is bounded by the limits of the groups, as for everything else in the engine: caches,
//! pages and metadata compete in proportion to their sizes. The objects, with their loading and
//! eviction, are in `cached_objects`; the state of each group is in `payer.rs`.

mod blocking_wait;
mod builder;
mod cached_objects;
mod entry;
mod expiry;
mod flight;
mod get_or_load;
mod ghosts;
mod lookup;
mod operations;
mod payer;
mod pin;
mod queue;
mod removal_cause;
mod shard;
mod stats;
mod striped_counter;
mod victim_hints;
mod weight;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::DefaultHashBuilder;
use umemcg_group::Group;
use umemcg_reclaim::shrinker::Registration;

pub use builder::ObjectCacheBuilder;
pub use cached_objects::DeclineReason;
pub use lookup::{LoadGuard, LoadWait, Lookup};
pub use operations::AgesNotKept;
pub use pin::Pinned;
pub use removal_cause::RemovalCause;
pub use stats::ObjectStats;
pub use weight::allocated_bytes;

use crate::engine::Engine;
use cached_objects::{CachedObjects, Found, FoundPinned};

/// A concurrent cache whose objects are charged to groups.
///
/// Values are handed out as clones, so a large value belongs in an [`Arc`]. An object is charged to
/// the inserting group, with all of the cache's own memory for it. When the group, or an ancestor,
/// is at its limit, reclaim runs first. An insert without room is *declined*: the caller gets its
/// value back, and the key is removed. A group loses its own objects before those of other groups.
/// When it is removed, its objects belong to its parent.
///
/// Eviction works group by group. New objects are on probation; objects used since, or inserted
/// again soon after eviction, are kept while they are used. So a scan does not evict the objects in
/// use.
///
/// All methods may be called from many threads at once. `Eq`, `Hash` and `Clone` of keys and values
/// are called under a lock of the cache and must not use it.
///
/// # Panics
///
/// Keys, values, weigher, loader and clock may panic. The panic reaches the interrupted caller, and
/// the object about to be stored or returned is dropped with its charge. Nothing else changes.
/// Panics of the listener, of the destructor of a removed object, and of `Hash` during reclaim are
/// caught and logged, because the thread may belong to any caller.
///
/// ```
/// use std::ffi::OsStr;
/// use std::sync::Arc;
/// use umemcg::{Engine, EngineConfig, ObjectCache};
///
/// let engine = Engine::new(EngineConfig::new(16 << 20))?;
/// let tenant = engine.create_group(engine.root(), OsStr::new("tenant"))?;
/// engine.set_max(&tenant, 1 << 20);
///
/// let thumbnails: ObjectCache<u64, Arc<[u8]>> = ObjectCache::builder(&engine, "thumbnails")
///     .weigher(|_, image: &Arc<[u8]>| image.len() as u64 + 16)
///     .build();
/// for id in 0..1000 {
///     thumbnails.insert(&tenant, id, vec![0; 4096].into())?;
/// }
/// assert!(tenant.usage_bytes() <= 1 << 20);
/// assert!(thumbnails.stats_of(&tenant).evicted > 0);
///
/// let image = thumbnails.get_or_insert_with(&tenant, 1000, || vec![1; 4096].into());
/// assert_eq!(image[0], 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ObjectCache<K, V, S = DefaultHashBuilder>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    objects: Arc<CachedObjects<K, V, S>>,
    /// `None` only while being dropped.
    registration: Option<Registration>,
    /// Charges refer to its groups.
    _engine: Arc<Engine>,
}

/// A value that was not stored, returned with its key.
#[derive(Clone, thiserror::Error)]
#[error("not cached: {reason}")]
pub struct Declined<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// Why it was not stored.
    #[source]
    pub reason: DeclineReason,
}

impl<K, V> fmt::Debug for Declined<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declined").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<K, V> ObjectCache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Returns a builder for a cache in `engine`. `memory.kmem.slabinfo` shows the name; white
    /// space in it becomes `-`.
    pub fn builder(engine: &Arc<Engine>, name: &str) -> ObjectCacheBuilder<K, V> {
        ObjectCacheBuilder::new(engine, name)
    }
}

impl<K, V, S> ObjectCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns the value of a key, unless it is missing or expired. Takes only the lock of the
    /// key's shard, shared; never sleeps for memory.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.objects.hash(key);
        match self.objects.find(hash, key, None) {
            Found::Value(value) | Found::OfAnother(value) => Some(value),
            Found::OnItsWay(value, group) => {
                self.objects.payers.of(group.owner()).note_hit();
                Some(value)
            }
            Found::Missing => {
                self.objects.note_missing();
                None
            }
            Found::Expired(slot) => {
                self.objects.remove_expired(hash, slot);
                self.objects.note_missing();
                None
            }
        }
    }

    /// Like [`get`](Self::get), but counts the hit or the miss for `group`, whichever group is
    /// charged for the object.
    pub fn get_for<Q>(&self, group: &Arc<Group>, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.objects.hash(key);
        let found = self.objects.find_for(group, hash, key);
        if found.is_none() {
            self.objects.note_miss(group);
        }
        found
    }

    /// Like [`get`](Self::get), but returns a handle for keeping a value for a while: the value
    /// stays charged to its group until the last handle is dropped, even if it leaves the cache
    /// meanwhile. Until then reclaim does not evict the value, because eviction would free nothing.
    /// The first handle of an object takes the lock of its shard exclusively, and is charged to its
    /// group.
    ///
    /// A value waiting for a worker ([`insert_soon`](Self::insert_soon)) is not found.
    pub fn get_pinned<Q>(&self, key: &Q) -> Option<Pinned<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.objects.hash(key);
        match self.objects.find_pinned(hash, key, true) {
            FoundPinned::Value(value) => return Some(value),
            FoundPinned::Expired(slot) => self.objects.remove_expired(hash, slot),
            FoundPinned::Missing => {}
        }
        self.objects.note_missing();
        None
    }

    /// Stores a value and charges it to `group`; the key's previous value is removed. May sleep for
    /// reclaim; no lock of this library may be held.
    ///
    /// # Errors
    /// [`Declined`] without room even after reclaim. The key then has no value at all, so that no
    /// caller gets an outdated one.
    pub fn insert(&self, group: &Arc<Group>, key: K, value: V) -> Result<(), Declined<K, V>> {
        let hash = self.objects.hash(&key);
        let stored = self.objects.store(group, hash, key, value, None);
        stored.map_err(|(key, value, reason)| Declined { key, value, reason })
    }

    /// Like [`insert`](Self::insert), but never sleeps for memory: a worker of the group reclaims
    /// if necessary. Until then the value is charged, above the limit if need be, and found by
    /// lookups. It is declined when an eighth of the group's limit, or one larger object, already
    /// waits for the worker, or later, when the worker cannot make room.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_soon(&self, group: &Arc<Group>, key: K, value: V) -> Result<(), Declined<K, V>>
    where
        K: Clone,
    {
        let hash = self.objects.hash(&key);
        let stored = self.objects.store_soon(group, hash, key, value);
        stored.map_err(|(key, value, reason)| Declined { key, value, reason })
    }

    /// Blocks until no value of this cache waits for a worker. No lock of this library may be held.
    pub fn wait_for_workers(&self) {
        self.objects.handed_over.wait();
    }

    /// Removes a key and returns its value, unless expired. A value being loaded for the key is not
    /// kept.
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.objects.hash(key);
        self.objects.remove(hash, key, RemovalCause::Removed)
    }

    /// Removes all objects.
    pub fn clear(&self) {
        self.objects.clear(RemovalCause::Removed, false);
    }

    /// Removes all expired objects. Without a call they are removed by a lookup or when memory is
    /// needed; call this periodically if objects hold other resources than memory. Visits every
    /// object.
    pub fn sweep_expired(&self) {
        self.objects.sweep_expired();
    }

    /// Returns the number of objects, expired ones included.
    pub fn len(&self) -> usize {
        self.objects.shards.iter().map(|shard| shard.tables.read().len()).sum()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the statistics of the whole cache. A group being removed at the moment may be
    /// missing, or counted twice.
    pub fn stats(&self) -> ObjectStats {
        let mut stats = ObjectStats::default();
        self.objects.payers.all().iter().for_each(|(_, payer)| stats.add(&payer.stats()));
        stats.misses = self.objects.missing.sum(|stripe| &stripe.misses);
        stats
    }

    /// Returns the statistics of one group: of its inserted objects, of objects taken over from
    /// removed groups below, and of the lookups naming it. Takes the same time whatever the number
    /// of groups, and keeps no other thread from using the cache.
    pub fn stats_of(&self, group: &Group) -> ObjectStats {
        self.objects.payers.get(group.owner()).map_or_else(ObjectStats::default, |payer| payer.stats())
    }
}

impl<K, V, S> ObjectCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Calls `visit` with each group with statistics in this cache, in any order. Takes time in
    /// proportion to their number, once, and no lock is held while `visit` runs. A group removed
    /// meanwhile may be left out or visited as its parent.
    pub fn for_each_group(&self, mut visit: impl FnMut(&Arc<Group>, &ObjectStats)) {
        for (owner, payer) in self.objects.payers.all() {
            if let Some(group) = owner.try_resolve().filter(|group| group.owner() == owner) {
                visit(&group, &payer.stats());
            }
        }
    }
}

impl<K, V, S> Drop for ObjectCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn drop(&mut self) {
        // While still registered, so that a pass finds the lists empty and drops them.
        self.objects.clear(RemovalCause::Removed, true);
        self.objects.handed_over.wait();
        drop(self.registration.take());
    }
}

impl<K, V, S> fmt::Debug for ObjectCache<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}
