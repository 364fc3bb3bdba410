//! The engine: one pool, one tree of groups, one page cache, and the threads that maintain them.

mod limits;
mod protection;
mod reservation;

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use umemcg_arena::Arena;
use umemcg_base::PAGE_SIZE_U64;
use umemcg_cache::overrun::OVERRUN_ARENA_BYTES;
use umemcg_cache::{BackingStore, DirtyBounds, File, LostData, PageCache, PageQuota, StoreId};
use umemcg_group::{Charge, CreateError, Group, GroupTree, RemoveError, RenameError};
use umemcg_reclaim::shrinker::Registration;
use umemcg_reclaim::{ChargeError, Kswapd, Reclaimer};

pub use limits::{Cancelled, DropCaches, LimitError, ReclaimError};
pub use reservation::{DIRTY_WAIT_MAX, Guarantee, Reservation, ReserveError};

use crate::commitments::Commitments;
use crate::janitor::Janitor;

/// The smallest pool, in bytes.
pub const POOL_BYTES_MIN: u64 = 2 << 20;

/// Most threads of background reclaim unless the embedder wants more.
const NR_KSWAPD_DEFAULT_MAX: usize = 4;
/// The pool's low mark is this part of the pool below its size, the high mark twice that…
const POOL_MARK_SHARE: u64 = 64;
/// … but no more than this many bytes.
const POOL_MARK_BYTES_MAX: u64 = 64 << 20;

/// The configuration of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Capacity of the pool in bytes; the root group's limit. Rounded down to a page.
    pub pool_bytes: u64,
    /// Memory nodes that lists and frames are divided into; 1 unless a test wants more.
    pub nr_nodes: usize,
    /// Threads that reclaim in the background for groups with watermarks; 0 means one for each
    /// processor, four at most.
    pub nr_kswapd: usize,
    /// True if the pool itself has watermarks from the start, so that callers usually need not
    /// reclaim when the whole pool is full.
    pub pool_marks: bool,
    /// True if protection (`memory.min`, `memory.low`) that no child of a group claims is handed
    /// down to all of them, as with `memory_recursiveprot`, which distributions mount with.
    pub recursive_protection: bool,
}

impl Default for EngineConfig {
    /// Returns a configuration of 256 MiB on one node.
    fn default() -> Self {
        Self {
            pool_bytes: 256 << 20,
            nr_nodes: 1,
            nr_kswapd: 0,
            pool_marks: false,
            recursive_protection: true,
        }
    }
}

/// Why an engine could not be created.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The pool is too small to work.
    #[error("a pool of {pool_bytes} bytes is too small: {POOL_BYTES_MIN} bytes is the least")]
    PoolTooSmall {
        /// The requested size.
        pool_bytes: u64,
    },
    /// The operating system refused memory or a thread.
    #[error("cannot set up the pool: {0}")]
    System(#[from] io::Error),
}

/// One pool of memory shared by a tree of groups.
#[derive(Debug)]
pub struct Engine {
    tree: Arc<GroupTree>,
    arena: Arc<Arena>,
    reclaimer: Arc<Reclaimer>,
    cache: Arc<PageCache>,
    /// Ends its workers before the cache is dropped.
    kswapd: Kswapd,
    /// Unregisters before the cache is dropped.
    _shadow_shrinker: Registration,
    janitor: Janitor,
    /// Guarantees and reservations by group.
    commitments: Commitments,
}

impl Engine {
    /// Reserves the pool's address space and starts the engine's threads. Memory is taken as it is
    /// used.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn new(config: EngineConfig) -> Result<Arc<Self>, EngineError> {
        let pool_bytes = config.pool_bytes & !(PAGE_SIZE_U64 - 1);
        if pool_bytes < POOL_BYTES_MIN {
            return Err(EngineError::PoolTooSmall { pool_bytes: config.pool_bytes });
        }
        let nr_nodes = config.nr_nodes.max(1);
        let tree = GroupTree::new(pool_bytes);
        // A page in flight beyond the pool has a frame, too.
        let arena = Arena::new(pool_bytes + OVERRUN_ARENA_BYTES, nr_nodes)?;
        let reclaimer = Reclaimer::new(Arc::clone(&arena), Arc::clone(&tree), nr_nodes)?;
        let reclaimer = Arc::new(reclaimer.with_recursive_protection(config.recursive_protection));
        let cache = PageCache::new(Arc::clone(&reclaimer))?;
        let janitor = Janitor::start(Arc::downgrade(&cache))?;
        let _shadow_shrinker = cache.register_shadow_shrinker();
        let nr_workers = match config.nr_kswapd {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(NR_KSWAPD_DEFAULT_MAX),
            nr => nr,
        };
        let kswapd = Kswapd::start(&reclaimer, nr_workers)?;
        if config.pool_marks {
            // The high distance first: each must fit the other.
            let distance = (pool_bytes / POOL_MARK_SHARE).min(POOL_MARK_BYTES_MAX);
            let set = reclaimer.set_high_wmark_distance(tree.root(), 2 * distance);
            set.and_then(|()| reclaimer.set_low_wmark_distance(tree.root(), distance))
                .map_err(|_| EngineError::PoolTooSmall { pool_bytes })?;
        }
        Ok(Arc::new(Self {
            tree,
            arena,
            reclaimer,
            cache,
            kswapd,
            _shadow_shrinker,
            janitor,
            commitments: Commitments::default(),
        }))
    }

    /// Returns the groups.
    pub fn tree(&self) -> &Arc<GroupTree> {
        &self.tree
    }

    /// Returns the root group; its limit is the size of the pool.
    pub fn root(&self) -> &Arc<Group> {
        self.tree.root()
    }

    /// Returns the frames.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the page cache.
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// Returns the reclaimer, with which you register a [`Shrinker`](crate::Shrinker) of your own.
    pub fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.reclaimer
    }

    /// Returns the workers of background reclaim.
    pub fn kswapd(&self) -> &Kswapd {
        &self.kswapd
    }

    /// Creates a group below `parent`. The group's own state is charged to the parent, which may
    /// have to reclaim first, so this may sleep.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_group(&self, parent: &Arc<Group>, name: &OsStr) -> Result<Arc<Group>, CreateError> {
        let created = match self.tree.create(parent, name) {
            Err(CreateError::Refused(refused)) => {
                let reclaimed = self
                    .reclaimer
                    .reclaim(&refused.group, 1, umemcg_reclaim::Reason::Direct, &|| false)
                    .pages();
                if reclaimed == 0 {
                    refused.group.drain_stocks();
                }
                self.tree.create(parent, name)
            }
            other => other,
        };
        created.inspect(|group| DirtyBounds::inherit(parent, group))
    }

    /// Removes a group without children. Everything that it still holds belongs to its parent
    /// immediately.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub fn remove_group(&self, group: &Arc<Group>) -> Result<(), RemoveError> {
        umemcg_group::hit_counters::collect_hits();
        self.tree.remove(group, |dying, parent| {
            self.reclaimer.splice_to_parent(dying, parent);
            self.cache.hand_over_dirty(dying, parent);
        })?;
        self.kswapd.group_removed(group);
        // Wakes threads that wait for its events; there will be no more.
        group.announce();
        Ok(())
    }

    /// Renames a group below the same parent.
    ///
    /// # Errors
    /// [`RenameError`].
    pub fn rename_group(&self, group: &Arc<Group>, name: &OsStr) -> Result<(), RenameError> {
        self.tree.rename(group, name)
    }

    /// Charges `bytes` of your own memory to a group; dropping the charge releases them. May sleep
    /// while the group that refuses is reclaimed; no lock of this library may be held.
    ///
    /// # Errors
    /// [`ChargeError::Limit`] names the group from which nothing more can be reclaimed.
    #[doc(alias = "mem_cgroup_charge")]
    pub fn charge(&self, group: &Arc<Group>, bytes: u64) -> Result<Charge, ChargeError> {
        self.reclaimer.charge(group, bytes, &|| false)
    }

    /// Opens a cached file that is `len` bytes long in its store.
    ///
    /// # Errors
    /// When the write-back thread of a new store cannot be started.
    pub fn open_file(&self, store: Arc<dyn BackingStore>, len: u64) -> io::Result<Arc<File>> {
        self.cache.open_file(store, len)
    }

    /// Creates a file that lives in the pool alone. It has no store; its pages are charged to the
    /// group that writes them and cannot be reclaimed. It starts as one hole of `len` bytes.
    ///
    /// # Errors
    /// When the pool is full.
    pub fn open_memory_file(&self, quota: Arc<dyn PageQuota>, len: u64) -> io::Result<Arc<File>> {
        self.cache.open_memory_file(quota, len)
    }

    /// Makes all data durable that is dirty now. Blocks for at most `timeout`; returns the files
    /// that are not durable then.
    pub fn sync_all(&self, timeout: Duration) -> Vec<LostData> {
        self.cache.sync_all(timeout)
    }

    /// Like [`sync_all`](Self::sync_all), for the files of one store.
    pub fn sync_store(&self, store: StoreId, timeout: Duration) -> Vec<LostData> {
        self.cache.sync_store(store, timeout)
    }

    /// Runs a round of housekeeping now: empties sparse blocks, and returns free blocks and the
    /// heap's free pages to the operating system. Takes milliseconds for each hundred megabytes.
    pub fn trim(&self) {
        Janitor::round(&self.cache, 0);
        umemcg_arena::sys::trim_heap();
    }

    /// Flushes everything, blocking for at most `timeout`, and stops the threads. Returns the files
    /// that are not durable.
    pub fn shut_down(&self, timeout: Duration) -> Vec<LostData> {
        let lost = self.sync_all(timeout);
        self.cache.shut_down();
        self.janitor.stop();
        lost
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.cache.shut_down();
        self.janitor.stop();
    }
}
