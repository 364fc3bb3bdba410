//! The caches of others, behind the same four functions and with the same hash function.

use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::sides::{Side, Value};

pub struct QuickCache(quick_cache::sync::Cache<u64, Arc<Value>, quick_cache::UnitWeighter, RandomState>);

impl QuickCache {
    pub fn new(capacity: usize) -> Self {
        Self(quick_cache::sync::Cache::with(
            capacity,
            capacity as u64,
            quick_cache::UnitWeighter,
            RandomState::default(),
            Default::default(),
        ))
    }
}

impl Side for QuickCache {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.key)
    }
    #[inline]
    fn insert(&self, key: u64, value: Arc<Value>) {
        self.0.insert(key, value);
    }
}

pub struct Foyer(foyer_memory::Cache<u64, Arc<Value>, RandomState>);

impl Foyer {
    pub fn new(capacity: usize) -> Self {
        let builder = foyer_memory::CacheBuilder::new(capacity)
            .with_eviction_config(foyer_memory::S3FifoConfig::default())
            .with_hash_builder(RandomState::default());
        Self(builder.build())
    }
}

impl Side for Foyer {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        // The cache lends the value; a clone would only cost it time.
        self.0.get(&key).map(|entry| entry.value().key)
    }
    #[inline]
    fn insert(&self, key: u64, value: Arc<Value>) {
        self.0.insert(key, value);
    }
}

pub struct Moka(moka::sync::Cache<u64, Arc<Value>, RandomState>);

impl Moka {
    pub fn new(capacity: usize) -> Self {
        let builder = moka::sync::Cache::builder().max_capacity(capacity as u64);
        Self(builder.build_with_hasher(RandomState::default()))
    }
}

impl Side for Moka {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.key)
    }
    #[inline]
    fn insert(&self, key: u64, value: Arc<Value>) {
        self.0.insert(key, value);
    }
    fn settle(&self) {
        self.0.run_pending_tasks();
    }
}

pub struct MiniMoka(mini_moka::sync::Cache<u64, Arc<Value>, RandomState>);

impl MiniMoka {
    pub fn new(capacity: usize) -> Self {
        let builder = mini_moka::sync::Cache::builder().max_capacity(capacity as u64);
        Self(builder.build_with_hasher(RandomState::default()))
    }
}

impl Side for MiniMoka {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|value| value.key)
    }
    #[inline]
    fn insert(&self, key: u64, value: Arc<Value>) {
        self.0.insert(key, value);
    }
    fn settle(&self) {
        use mini_moka::sync::ConcurrentCacheExt;
        self.0.sync();
    }
}
