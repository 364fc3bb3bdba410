//! A pool with its tree of groups, reclaimer and page cache, put together as the engine does it,
//! with background reclaim but without the thread that empties sparse blocks.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umemcg_arena::Arena;
use umemcg_base::PAGE_SIZE_U64;
use umemcg_cache::dirty::thresholds::unclean_bytes;
use umemcg_cache::overrun::OVERRUN_ARENA_BYTES;
use umemcg_cache::{BackingStore, DirtyBounds, File, LostData, PageCache, PageQuota};
use umemcg_group::{CreateError, Group, GroupTree, RemoveError};
use umemcg_reclaim::shrinker::Registration;
use umemcg_reclaim::{Kswapd, MAX_RECLAIM_RETRIES, PageOwner, Reason, Reclaimer};

/// Longest that a group's dirty data may take to become durable.
const WRITE_MAX: Duration = Duration::from_secs(60);
/// Pages that one step of emptying sparse blocks looks at.
const SPARSE_BATCH: usize = 2048;

/// See the module text.
pub struct Pool {
    tree: Arc<GroupTree>,
    arena: Arc<Arena>,
    reclaimer: Arc<Reclaimer>,
    cache: Arc<PageCache>,
    /// Ends its workers before the cache is dropped.
    kswapd: Kswapd,
    /// Unregisters before the cache is dropped.
    _shadow_shrinker: Registration,
}

impl Pool {
    pub fn new(pool_bytes: u64) -> Arc<Self> {
        let tree = GroupTree::new(pool_bytes);
        // A page in flight beyond the pool has a frame, too.
        let arena = Arena::new(pool_bytes + OVERRUN_ARENA_BYTES).unwrap();
        let reclaimer = Arc::new(Reclaimer::new(Arc::clone(&arena), Arc::clone(&tree)).unwrap());
        let cache = PageCache::new(Arc::clone(&reclaimer)).unwrap();
        let _shadow_shrinker = cache.register_shadow_shrinker();
        let kswapd = Kswapd::start(&reclaimer, 2).unwrap();
        Arc::new(Self { tree, arena, reclaimer, cache, kswapd, _shadow_shrinker })
    }

    pub fn root(&self) -> &Arc<Group> {
        self.tree.root()
    }
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
    pub fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }
    pub fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.reclaimer
    }

    pub fn create_group(&self, parent: &Arc<Group>, name: &OsStr) -> Result<Arc<Group>, CreateError> {
        self.tree.create(parent, name).inspect(|group| DirtyBounds::inherit(parent, group))
    }

    pub fn remove_group(&self, group: &Arc<Group>) -> Result<(), RemoveError> {
        umemcg_group::hit_counters::collect_hits();
        self.tree.remove(group, |dying, parent| {
            self.reclaimer.splice_to_parent(dying, parent);
            self.cache.hand_over_dirty(dying, parent);
        })?;
        self.kswapd.group_removed(group);
        Ok(())
    }

    /// Sets a hard limit and reclaims what is beyond it, as far as that can be had.
    pub fn set_max(&self, group: &Arc<Group>, limit: u64) {
        let limit = if limit == u64::MAX { limit } else { limit & !(PAGE_SIZE_U64 - 1) };
        group.store_max(limit);
        self.reclaimer.limit_changed(group);
        self.reclaim_to(group, limit, |pages| self.reclaimer.reclaim(group, pages, Reason::Direct).pages());
    }

    /// Reclaims `bytes` of a group and everything below it, or what can be had.
    pub fn reclaim(&self, group: &Arc<Group>, bytes: u64) {
        let (goal, mut reclaimed, mut retries) = (bytes / PAGE_SIZE_U64, 0, MAX_RECLAIM_RETRIES);
        while reclaimed < goal && retries > 0 {
            match self.reclaimer.reclaim(group, goal - reclaimed, Reason::Proactive).pages() {
                0 => retries -= 1,
                pages => reclaimed += pages,
            }
        }
    }

    /// Writes a group's dirty data, then drops as much of its cache as possible.
    pub fn force_empty(&self, group: &Arc<Group>) {
        let deadline = Instant::now() + WRITE_MAX;
        while unclean_bytes(group) > 0 {
            assert!(Instant::now() < deadline, "dirty data is not written");
            self.cache.start_writeback(group);
            self.cache.wait_for_writeback(Duration::from_millis(50));
        }
        self.reclaim_to(group, 0, |pages| self.reclaimer.reclaim_from_all(group, pages, &|| false).pages());
    }

    /// Reclaims until a group is not above `limit`, or several times in vain.
    fn reclaim_to(&self, group: &Group, limit: u64, reclaim: impl Fn(u64) -> u64) {
        let mut retries = MAX_RECLAIM_RETRIES;
        while retries > 0 {
            group.drain_stocks();
            let excess = group.usage_bytes().saturating_sub(limit);
            if excess == 0 {
                return;
            }
            if reclaim(excess.div_ceil(PAGE_SIZE_U64)) == 0 {
                retries -= 1;
            }
        }
    }

    /// Drops clean pages and unused objects of the whole pool.
    pub fn drop_caches(&self) {
        self.reclaimer.drop_pages(self.root());
        self.reclaimer.drop_slab(self.root());
    }

    /// Empties sparse blocks and returns free memory to the operating system.
    pub fn trim(&self) {
        while self.cache.empty_sparse_blocks(SPARSE_BATCH) > 0 {}
        self.arena.trim(0);
        self.cache.trim_nodes();
    }

    pub fn open_file(&self, store: Arc<dyn BackingStore>, len: u64) -> io::Result<Arc<File>> {
        self.cache.open_file(store, len)
    }

    pub fn open_memory_file(&self, quota: Arc<dyn PageQuota>, len: u64) -> io::Result<Arc<File>> {
        self.cache.open_memory_file(quota, len)
    }

    pub fn sync_all(&self, timeout: Duration) -> Vec<LostData> {
        self.cache.sync_all(timeout)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.cache.close();
    }
}
