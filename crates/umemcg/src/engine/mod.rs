//! The engine: one pool, one tree of groups, one page cache, and their maintenance threads.

mod account;
mod groups;
mod guarantee;
mod limits;
mod marks;
mod owned_group;
mod protection;
mod refusal;
mod reservation;
mod shrinkers;
mod snapshot;
mod waiting_growth;

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
use umemcg_reclaim::{ChargeEffort, ChargeError, Kswapd, MAX_RECLAIM_RETRIES, Reason, Reclaimer};

pub use account::Account;
pub use groups::Limits;
pub use guarantee::Guarantee;
pub use limits::{DropCaches, LimitError, ReclaimError};
pub use owned_group::OwnedGroup;
pub use refusal::Refusal;
pub use snapshot::GroupSnapshot;
pub use waiting_growth::DIRTY_WAIT_MAX;

use crate::commitments::Commitments;
use crate::group_workers::GroupWorkers;
use crate::janitor::Janitor;
use crate::lease::{Lease, Leases, Resizable};
use crate::removals::Removals;
use crate::waits::Waits;

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
#[non_exhaustive]
pub struct EngineConfig {
    /// Capacity of the pool in bytes; the root group's limit. Rounded down to a page.
    pub pool_bytes: u64,
    /// Threads that reclaim in the background for groups with watermarks; 0 means one for each
    /// processor, four at most.
    pub nr_kswapd: usize,
    /// True if the pool itself has watermarks from the start, so that callers usually need not
    /// reclaim when the whole pool is full.
    pub pool_marks: bool,
    /// True if protection (`memory.min`, `memory.low`) unclaimed by the children of a group is
    /// handed down to all of them, as with `memory_recursiveprot`, the usual mount option of
    /// distributions.
    pub recursive_protection: bool,
    /// True if the engine caches files. Without pages it keeps objects and charges alone, is as
    /// cheap to start for a terabyte as for a megabyte, and compiles on systems other than Linux.
    pub pages: bool,
}

impl EngineConfig {
    /// Returns the default configuration with a pool of `pool_bytes`.
    ///
    /// # Examples
    /// ```
    /// use umemcg::{Engine, EngineConfig};
    ///
    /// // For objects alone: no address space is reserved for pages.
    /// let engine = Engine::new(EngineConfig::new(1 << 40).pages(false))?;
    /// assert_eq!(engine.root().max_bytes(), 1 << 40);
    /// # Ok::<(), umemcg::EngineError>(())
    /// ```
    pub fn new(pool_bytes: u64) -> Self {
        Self { pool_bytes, ..Self::default() }
    }

    /// Sets whether the engine caches files; by default it does.
    #[must_use]
    pub fn pages(mut self, on: bool) -> Self {
        self.pages = on;
        self
    }

    /// Sets the number of background reclaim threads; by default one for each processor, four at
    /// most.
    #[must_use]
    pub fn nr_kswapd(mut self, nr: usize) -> Self {
        self.nr_kswapd = nr;
        self
    }

    /// Sets whether the pool itself has watermarks from the start; by default it has none.
    #[must_use]
    pub fn pool_marks(mut self, on: bool) -> Self {
        self.pool_marks = on;
        self
    }

    /// Sets whether protection unclaimed by the children of a group is handed down to all of them;
    /// by default it is.
    #[must_use]
    #[doc(alias = "memory_recursiveprot")]
    pub fn recursive_protection(mut self, on: bool) -> Self {
        self.recursive_protection = on;
        self
    }
}

impl Default for EngineConfig {
    /// Returns a configuration of 256 MiB.
    fn default() -> Self {
        Self {
            pool_bytes: 256 << 20,
            nr_kswapd: 0,
            pool_marks: false,
            recursive_protection: true,
            pages: true,
        }
    }
}

/// Why an engine could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
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
    group_workers: Arc<GroupWorkers>,
    leases: Arc<Leases>,
    /// The guarantees, by group.
    commitments: Commitments,
    /// Growths waiting for memory.
    waits: Arc<Waits>,
    removals: Removals,
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
        let tree = GroupTree::new(pool_bytes);
        let arena = if config.pages {
            // In-flight pages beyond the pool need frames, too.
            Arena::new(pool_bytes + OVERRUN_ARENA_BYTES)?
        } else {
            Arena::without_frames()?
        };
        let reclaimer = Reclaimer::new(Arc::clone(&arena), Arc::clone(&tree))?;
        let reclaimer = Arc::new(reclaimer.with_recursive_protection(config.recursive_protection));
        let cache = PageCache::new(Arc::clone(&reclaimer))?;
        let waits = Arc::new(Waits::default());
        let janitor = Janitor::start(Arc::downgrade(&cache), Arc::clone(&waits))?;
        let _shadow_shrinker = cache.register_shadow_shrinker();
        let nr_workers = match config.nr_kswapd {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(NR_KSWAPD_DEFAULT_MAX),
            nr => nr,
        };
        let kswapd = Kswapd::start(&reclaimer, nr_workers)?;
        if config.pool_marks {
            // The high distance first: the low one must be smaller.
            let distance = (pool_bytes / POOL_MARK_SHARE).min(POOL_MARK_BYTES_MAX);
            let set = reclaimer.set_high_wmark_distance(tree.root(), 2 * distance);
            set.and_then(|()| reclaimer.set_low_wmark_distance(tree.root(), distance))
                .map_err(|_| EngineError::PoolTooSmall { pool_bytes })?;
        }
        let group_workers = Arc::default();
        Ok(Arc::new(Self {
            tree,
            arena,
            reclaimer,
            cache,
            kswapd,
            _shadow_shrinker,
            janitor,
            leases: Leases::new(&group_workers),
            group_workers,
            commitments: Commitments::default(),
            waits,
            removals: Removals::default(),
        }))
    }

    /// Returns the groups.
    #[doc(hidden)]
    pub fn tree(&self) -> &Arc<GroupTree> {
        &self.tree
    }

    /// Returns the root group; its limit is the size of the pool.
    pub fn root(&self) -> &Arc<Group> {
        self.tree.root()
    }

    /// Returns the frames.
    #[doc(hidden)]
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the page cache.
    #[doc(hidden)]
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// Returns the reclaimer.
    #[inline]
    #[doc(hidden)]
    pub fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.reclaimer
    }

    /// Returns the workers of background reclaim.
    #[doc(hidden)]
    pub fn kswapd(&self) -> &Kswapd {
        &self.kswapd
    }

    pub(crate) fn group_workers(&self) -> &Arc<GroupWorkers> {
        &self.group_workers
    }

    /// Puts a third-party cache under the limit of a group. The capacity of the cache is charged to
    /// the group, grows with its usage up to `bytes_max`, and is reclaimed like any other memory.
    /// The cache must have been created with a capacity of zero or few bytes.
    /// `memory.kmem.slabinfo` shows the name; white space in it becomes `-`.
    ///
    /// The cache's memory beyond its values, such as its index, counts only as far as
    /// [`Resizable::used_bytes`] includes it. The first capacity is charged here, which may
    /// reclaim; no lock of this library may be held.
    pub fn lease(&self, group: &Arc<Group>, name: &str, cache: Arc<dyn Resizable>, bytes_max: u64) -> Lease {
        Lease::new(&self.leases, &self.reclaimer, (group, name), cache, bytes_max)
    }

    /// Creates a group below `parent`. The group's own state is charged to the parent; this may
    /// reclaim, and so may sleep.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create_group(&self, parent: &Arc<Group>, name: &OsStr) -> Result<Arc<Group>, CreateError> {
        let mut created = self.tree.create(parent, name);
        for _ in 0..MAX_RECLAIM_RETRIES {
            let Err(CreateError::Refused(refused)) = &created else { break };
            let full = Arc::clone(&refused.group);
            let reclaimed = self.reclaimer.reclaim(&full, 1, Reason::Direct).pages();
            if reclaimed == 0 {
                full.drain_stocks();
            }
            created = self.tree.create(parent, name);
            if reclaimed == 0 {
                break;
            }
        }
        created.inspect(|group| DirtyBounds::inherit(parent, group))
    }

    /// Removes a group without children. Its remaining memory belongs to its parent immediately.
    ///
    /// # Errors
    /// [`RemoveError`].
    pub fn remove_group(&self, group: &Arc<Group>) -> Result<(), RemoveError> {
        umemcg_group::hit_counters::collect_hits();
        self.tree.remove(group, |dying, parent| {
            self.reclaimer.splice_to_parent(dying, parent);
            self.cache.hand_over_dirty(dying, parent);
        })?;
        self.removals.note_ended();
        self.kswapd.group_removed(group);
        // Wakes threads waiting for its events; there will be no more.
        group.announce();
        self.waits.wake_all();
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
    /// while the refusing group is reclaimed; no lock of this library may be held.
    ///
    /// # Errors
    /// [`ChargeError::Limit`] names the group without anything more to reclaim.
    #[doc(alias = "mem_cgroup_charge")]
    pub fn charge(&self, group: &Arc<Group>, bytes: u64) -> Result<Charge, ChargeError> {
        self.reclaimer.charge(group, bytes, ChargeEffort::Full)
    }

    /// Like [`charge`](Self::charge), with another effort to make room: a caller able to do with
    /// less memory is [`Opportunistic`](ChargeEffort::Opportunistic), and an
    /// [`Immediate`](ChargeEffort::Immediate) charge never sleeps.
    ///
    /// # Errors
    /// [`ChargeError::Limit`] names the group without room.
    pub fn charge_with(
        &self,
        group: &Arc<Group>,
        bytes: u64,
        effort: ChargeEffort,
    ) -> Result<Charge, ChargeError> {
        self.reclaimer.charge(group, bytes, effort)
    }

    /// Opens a cached file of `len` bytes in its store.
    ///
    /// # Errors
    /// `Unsupported` from an engine without pages; else when the write-back thread of a new store
    /// cannot be started.
    pub fn open_file(&self, store: Arc<dyn BackingStore>, len: u64) -> io::Result<Arc<File>> {
        self.cache.open_file(store, len)
    }

    /// Creates a file living only in the pool. It has no store; its pages are charged to the
    /// writing group and cannot be reclaimed. It starts as one hole of `len` bytes.
    ///
    /// # Errors
    /// `Unsupported` from an engine without pages; else when the pool is full.
    pub fn open_memory_file(&self, quota: Arc<dyn PageQuota>, len: u64) -> io::Result<Arc<File>> {
        self.cache.open_memory_file(quota, len)
    }

    /// Makes all presently dirty data durable. Blocks for at most `timeout`; returns the files not
    /// durable by then.
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
    /// whose data is not durable.
    pub fn shut_down(&self, timeout: Duration) -> Vec<LostData> {
        let lost = self.sync_all(timeout);
        self.cache.shut_down();
        self.janitor.stop();
        lost
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.leases.stop();
        self.group_workers.stop();
        self.cache.close();
    }
}
