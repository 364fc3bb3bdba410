//! RocksDB's block cache under the limit of a tenant: a [`Resizable`] for [`Engine::lease`].
//!
//! Give each tenant's databases a cache of their own. RocksDB does not tell which database put a
//! block into a cache, so a cache that several tenants share can only be charged to a group above
//! all of them.
//!
//! What else a database holds is not in its block cache: write buffers, and, unless
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

/// An LRU block cache of RocksDB whose capacity follows what a group can pay for.
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

    /// Returns options of a database that is created if it is missing, and whose blocks are in this
    /// cache, those of indexes and filters, too.
    pub fn options(&self) -> Options {
        let mut blocks = BlockBasedOptions::default();
        blocks.set_block_cache(&self.0);
        blocks.set_cache_index_and_filter_blocks(true);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&blocks);
        options
    }

    /// Returns the bytes of blocks that iterators and reads hold just now. They stay in memory
    /// whatever the capacity is.
    pub fn pinned_bytes(&self) -> u64 {
        self.0.get_pinned_usage() as u64
    }
}

impl Resizable for BlockCache {
    /// With what RocksDB keeps beside each block.
    fn used_bytes(&self) -> u64 {
        self.0.get_usage() as u64
    }

    fn set_capacity(&self, bytes: u64) {
        // A handle of the same cache.
        let mut cache = self.0.clone();
        cache.set_capacity(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}
