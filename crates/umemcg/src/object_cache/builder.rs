//! The builder of an [`ObjectCache`].

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::thread::available_parallelism;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use umemcg_base::clock::Clock;
use umemcg_reclaim::ListLru;
use umemcg_reclaim::shrinker::DEFAULT_SEEKS;

use super::ObjectCache;
use super::cached_objects::{CachedObjects, HandedOver, NO_BOUND, Weigher};
use super::expiry::Expiry;
use super::payer::Payers;
use super::pin::Pins;
use super::queue::Queue;
use super::removal_cause::{Listener, RemovalCause};
use super::shard::Shards;
use super::striped_counter::StripedCounter;
use super::victim_hints::VictimHints;
use crate::engine::Engine;

/// Shards for each processor.
const SHARDS_PER_CPU: usize = 32;

/// Builds an [`ObjectCache`]; see [`ObjectCache::builder`].
#[must_use = "a cache is made by `build`"]
pub struct ObjectCacheBuilder<K, V, S = DefaultHashBuilder> {
    engine: Arc<Engine>,
    name: String,
    hasher: S,
    weigher: Option<Weigher<K, V>>,
    listener: Listener<K, V>,
    clock: Option<Arc<dyn Clock>>,
    time_to_live: Option<Duration>,
    time_to_idle: Option<Duration>,
    bytes_max: Option<u64>,
    capacity: usize,
    nr_shards: Option<usize>,
    seeks: u32,
}

impl<K, V, S> fmt::Debug for ObjectCacheBuilder<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCacheBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K, V> ObjectCacheBuilder<K, V> {
    pub(super) fn new(engine: &Arc<Engine>, name: &str) -> Self {
        Self {
            engine: Arc::clone(engine),
            name: name.split_whitespace().collect::<Vec<_>>().join("-"),
            hasher: DefaultHashBuilder::default(),
            weigher: None,
            listener: Listener(None),
            clock: None,
            time_to_live: None,
            time_to_idle: None,
            bytes_max: None,
            capacity: 0,
            nr_shards: None,
            seeks: DEFAULT_SEEKS,
        }
    }
}

impl<K, V, S> ObjectCacheBuilder<K, V, S> {
    /// Sets the function that returns the heap bytes of a key and its value.
    /// [`allocated_bytes`](super::allocated_bytes) is applied to the result, and the cache's own
    /// bytes for an object are added. Without a weigher, objects count as holding no heap memory.
    /// Called once for each insert, with no lock held.
    pub fn weigher(mut self, weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static) -> Self {
        self.weigher = Some(Box::new(weigh));
        self
    }

    /// Sets a listener called for every removed object with the cause, also when the cache is
    /// dropped. It runs with no lock held, on the removing thread, so it should be quick. It may
    /// use the cache, but not insert into it. Its panics are caught and logged.
    pub fn listener(mut self, listener: impl Fn(K, V, RemovalCause) + Send + Sync + 'static) -> Self {
        self.listener = Listener(Some(Box::new(listener)));
        self
    }

    /// Sets the time after insertion at which objects expire, at most about 100 days.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.time_to_live = Some(time);
        self
    }

    /// Sets the time without use after which objects expire.
    pub fn time_to_idle(mut self, time: Duration) -> Self {
        self.time_to_idle = Some(time);
        self
    }

    /// Sets the clock for ages, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Bounds the bytes of the whole cache, in addition to the limits of the groups.
    pub fn bytes_max(mut self, bytes: u64) -> Self {
        self.bytes_max = Some(bytes.min(i64::MAX as u64));
        self
    }

    /// Sets the initial capacity of the table, in objects.
    pub fn capacity(mut self, nr_objects: usize) -> Self {
        self.capacity = nr_objects;
        self
    }

    /// Sets the number of shards of the table, rounded up to a power of two. The default depends on
    /// the number of processors.
    pub fn shards(mut self, nr: usize) -> Self {
        self.nr_shards = Some(nr);
        self
    }

    /// Sets the cost of recreating an object, in the unit of
    /// [`Shrinker::seeks`](crate::shrinker::Shrinker::seeks): caches with more expensive objects
    /// lose fewer of them to reclaim.
    pub fn seeks(mut self, seeks: u32) -> Self {
        self.seeks = seeks;
        self
    }

    /// Sets the hasher of keys. The default is seeded anew for each cache.
    pub fn hasher<T>(self, hasher: T) -> ObjectCacheBuilder<K, V, T> {
        ObjectCacheBuilder {
            engine: self.engine,
            name: self.name,
            hasher,
            weigher: self.weigher,
            listener: self.listener,
            clock: self.clock,
            time_to_live: self.time_to_live,
            time_to_idle: self.time_to_idle,
            bytes_max: self.bytes_max,
            capacity: self.capacity,
            nr_shards: self.nr_shards,
            seeks: self.seeks,
        }
    }
}

impl<K, V, S> ObjectCacheBuilder<K, V, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Builds the cache and registers it with reclaim.
    pub fn build(self) -> ObjectCache<K, V, S> {
        let reclaimer = self.engine.reclaimer();
        let id = reclaimer.reserve_shrinker();
        let nr_shards = self.nr_shards.unwrap_or_else(|| {
            available_parallelism().map_or(4, std::num::NonZero::get).saturating_mul(SHARDS_PER_CPU)
        });
        let expiry = Expiry::new(self.clock, self.time_to_live, self.time_to_idle);
        let objects = Arc::new(CachedObjects {
            name: self.name,
            reclaimer: Arc::clone(reclaimer),
            shards: Shards::new(nr_shards, self.capacity, expiry.is_on()),
            hasher: self.hasher,
            lists: [Queue::Probation, Queue::Main].map(|queue| ListLru::new(reclaimer, &id, queue as u32)),
            payers: Payers::default(),
            victim_hints: VictimHints::new(),
            pins: Pins::new(),
            missing: StripedCounter::new(),
            expiry,
            weigher: self.weigher,
            listener: self.listener,
            seeks: self.seeks,
            bytes_max: AtomicU64::new(NO_BOUND),
            bytes: AtomicI64::new(0),
            workers: Arc::clone(self.engine.group_workers()),
            handed_over: Arc::new(HandedOver::default()),
        });
        if let Some(bytes_max) = self.bytes_max {
            objects.bound_bytes(bytes_max);
        }
        let registration = reclaimer.register_shrinker(id, Arc::<CachedObjects<K, V, S>>::clone(&objects));
        ObjectCache { objects, registration: Some(registration), _engine: self.engine }
    }
}
