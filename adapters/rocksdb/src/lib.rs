//! RocksDB's block cache under the limit of a tenant: a [`Resizable`] for [`Engine::lease`].
//!
//! Give each tenant's databases a cache of their own. RocksDB does not report the database of a
//! cached block, so a cache shared by several tenants can only be charged to a common ancestor
//! group.
//!
//! A database also holds memory outside its block cache: write buffers, and, unless
//! `cache_index_and_filter_blocks` is set, the index and filter blocks of open tables.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use umemcg::{Engine, EngineConfig};
//! use umemcg_rocksdb::BlockCache;
//!
//! let engine = Engine::new(EngineConfig::new(1 << 30).pages(false))?;
//! let tenant = engine.create_group(engine.root(), "tenant".as_ref())?;
//!
//! let blocks = Arc::new(BlockCache::new()?);
//! let lease = engine.lease(&tenant, "blocks", Arc::clone(&blocks) as _, 512 << 20);
//! let db = rocksdb::DB::open(&blocks.options(), "/var/lib/tenant")?;
//! # drop((db, lease));
//! # Ok(())
//! # }
//! ```
//!
//! [`Engine::lease`]: umemcg::Engine::lease

use std::fmt;

use rocksdb::{BlockBasedOptions, Cache, Error, Options};
use umemcg::Resizable;

/// An LRU block cache of RocksDB with a capacity that follows its group's available memory.
pub struct BlockCache(Cache);

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache").field("used_bytes", &self.used_bytes()).finish_non_exhaustive()
    }
}

impl BlockCache {
    /// Creates a cache with no room; a lease gives it some.
    ///
    /// # Errors
    /// RocksDB's.
    pub fn new() -> Result<Self, Error> {
        Ok(Self(Cache::new_lru_cache(0)?))
    }

    /// Returns database options: the database is created if missing, and all its blocks go through
    /// this cache, including index and filter blocks.
    pub fn options(&self) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&self.0);
        blocks.set_cache_index_and_filter_blocks(true);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options
    }

    /// Returns the bytes of blocks pinned by iterators and reads at present. They stay in memory
    /// whatever the capacity.
    pub fn pinned_bytes(&self) -> u64 {
        self.0.get_pinned_usage() as u64
    }
}

impl Resizable for BlockCache {
    /// Includes RocksDB's overhead for each block.
    fn used_bytes(&self) -> u64 {
        self.0.get_usage() as u64
    }

    fn set_capacity(&self, bytes: u64) {
        // Another handle to the same cache.
        let mut cache = self.0.clone();
        cache.set_capacity(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}
