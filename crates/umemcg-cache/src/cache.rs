//! The page cache of one pool: the table of files, the index nodes, what is in flight beyond limits, the flushers, the
//! thresholds.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use umemcg_arena::Arena;
use umemcg_base::clock::{self, Clock, SystemClock};
use umemcg_base::sync::{Condvar, Instant, Mutex};
use umemcg_base::{PAGE_SIZE_U64, Rank, Table, assert_may_wait};
use umemcg_group::Group;
use umemcg_reclaim::{PageOwner, Reclaimer};

use crate::dirty::DirtyLimits;
use crate::domain::{Domain, LostData, Wanted};
use crate::file::File;
use crate::flush::{Durability, PAGES_END};
use crate::flushers::Flushers;
use crate::memory::{CalledQuota, PageQuota, ZeroPage};
use crate::node_pool::NodePool;
use crate::overrun::Overrun;
use crate::page_lock::PageWaiters;
use crate::shadow_leaves::ShadowLeaves;
use crate::store::{BackingStore, CalledStore, StoreId};

/// Files that are not durable yet, by number, with what the store said if it refused.
type Unsynced = HashMap<u32, Option<String>>;

/// Stores that one sync of everything serves at the same time; more than these that hang keep it from the others.
const NR_SYNC_THREADS_MAX: usize = 64;

/// File numbers in use, and those to use next.
#[derive(Debug, Default)]
struct FileNumbers {
    free: Vec<u32>,
    high: u32,
}

/// The page cache of one pool.
pub struct PageCache {
    reclaimer: Arc<Reclaimer>,
    nodes: Arc<NodePool>,
    overrun: Arc<Overrun>,
    waiters: PageWaiters,
    limits: DirtyLimits,
    clock: SystemClock,
    files: Table<Mutex<Weak<File>>>,
    numbers: Mutex<FileNumbers>,
    /// Stores that have files in the cache; an entry of one that has none any more is replaced or swept.
    domains: Mutex<BTreeMap<StoreId, Weak<Domain>>>,
    flushers: Arc<Flushers>,
    progress: (Mutex<u64>, Condvar),
    /// What holes of files in memory read as; made with the first of them.
    pub(crate) zero_page: OnceLock<ZeroPage>,
    pub(crate) making_zero_page: Mutex<()>,
    next_node: AtomicUsize,
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl PageCache {
    /// A cache over a pool. Registers itself as the owner of the pages. The arena is larger than the pool by
    /// [`OVERRUN_ARENA_BYTES`](crate::overrun::OVERRUN_ARENA_BYTES).
    ///
    /// # Errors
    /// When the operating system has no address space for the index nodes.
    pub fn new(reclaimer: Arc<Reclaimer>) -> io::Result<Arc<Self>> {
        let pool_bytes = reclaimer.tree().capacity_bytes();
        let cache = Arc::new(Self {
            nodes: Arc::new(NodePool::new(pool_bytes, ShadowLeaves::new(&reclaimer))?),
            overrun: Arc::default(),
            waiters: PageWaiters::default(),
            limits: DirtyLimits::new(Arc::clone(&reclaimer)),
            clock: SystemClock::new(),
            files: Table::new(),
            numbers: Mutex::default(),
            domains: Mutex::default(),
            flushers: Arc::default(),
            progress: (Mutex::new(0), Condvar::new()),
            zero_page: OnceLock::new(),
            making_zero_page: Mutex::new(()),
            next_node: AtomicUsize::new(0),
            reclaimer,
        });
        let owner: Arc<dyn PageOwner> = Arc::<Self>::clone(&cache);
        cache.reclaimer.set_page_owner(&owner);
        Ok(cache)
    }

    /// Starts caching a file that is `len` bytes long in its store.
    ///
    /// # Errors
    /// When a flusher for a new store cannot be started.
    pub fn open_file(self: &Arc<Self>, store: Arc<dyn BackingStore>, len: u64) -> io::Result<Arc<File>> {
        self.open(store, len, None)
    }

    pub(crate) fn open(
        self: &Arc<Self>,
        store: Arc<dyn BackingStore>,
        len: u64,
        quota: Option<Arc<dyn PageQuota>>,
    ) -> io::Result<Arc<File>> {
        let store = CalledStore::new(store);
        let domain = self.domain(store.id());
        let id = {
            let mut numbers = self.numbers.lock();
            numbers.free.pop().unwrap_or_else(|| {
                numbers.high += 1;
                numbers.high
            })
        };
        let file =
            Arc::new(File::new(id, Arc::clone(self), store, domain, (len, quota.map(CalledQuota::new))));
        *self.files.get_or_grow(id, || Mutex::new(Weak::new())).lock() = Arc::downgrade(&file);
        Ok(file)
    }

    pub(crate) fn forget_file(&self, id: u32) {
        if let Some(slot) = self.files.get(id) {
            *slot.lock() = Weak::new();
        }
        self.numbers.lock().free.push(id);
    }

    pub(crate) fn file(&self, id: u32) -> Option<Arc<File>> {
        self.files.get(id)?.lock().upgrade()
    }

    fn domain(self: &Arc<Self>, id: StoreId) -> Arc<Domain> {
        let mut domains = self.domains.lock();
        if let Some(domain) = domains.get(&id).and_then(Weak::upgrade) {
            return domain;
        }
        if domains.len().is_power_of_two() {
            domains.retain(|_, domain| domain.strong_count() > 0);
        }
        let domain = Domain::new(self, id);
        domains.insert(id, Arc::downgrade(&domain));
        domain
    }

    /// Stores that have files in the cache.
    fn living_domains(&self) -> Vec<Arc<Domain>> {
        self.domains.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// The frames.
    #[inline]
    pub fn arena(&self) -> &Arc<Arena> {
        self.reclaimer.arena()
    }

    /// The reclaimer.
    #[inline]
    pub fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.reclaimer
    }

    pub(crate) fn nodes(&self) -> &Arc<NodePool> {
        &self.nodes
    }

    /// Index nodes in use; each is charged.
    pub fn nr_index_nodes(&self) -> u32 {
        self.nodes.nr_in_use()
    }

    /// Gives memory of unused index nodes back to the operating system.
    pub fn trim_nodes(&self) {
        self.nodes.trim();
    }

    pub(crate) fn overrun(&self) -> &Arc<Overrun> {
        &self.overrun
    }

    pub(crate) fn waiters(&self) -> &PageWaiters {
        &self.waiters
    }

    /// Dirty thresholds and counts of the pool.
    pub fn dirty_limits(&self) -> &DirtyLimits {
        &self.limits
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }

    pub(crate) fn next_node(&self) -> usize {
        let nr = self.reclaimer.nr_nodes();
        if nr == 1 { 0 } else { self.next_node.fetch_add(1, Ordering::Relaxed) % nr }
    }

    /// Has everything dirty of a group and those below it written: its own files, and what it shares if it has none.
    pub(crate) fn flush_group(&self, group: &Arc<Group>) {
        self.want_flushed(group, Wanted::All);
    }

    /// Has a group's dirty files written until it is below its background threshold.
    pub(crate) fn flush_over_background(&self, group: &Arc<Group>) {
        self.want_flushed(group, Wanted::ToBackground);
    }

    fn want_flushed(&self, group: &Arc<Group>, wanted: Wanted) {
        for domain in self.living_domains() {
            if domain.nr_unclean() > 0 {
                domain.want_flushed(group, wanted);
            }
        }
    }

    /// Has all flushers look at what has become due.
    pub fn wake_flushers(&self) {
        for domain in self.living_domains() {
            domain.ring();
        }
    }

    /// A group has been removed: its dirty files are its parent's.
    pub fn hand_over_dirty(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        for domain in self.living_domains() {
            domain.hand_over(dying, parent);
        }
    }

    pub(crate) fn flushers(&self) -> &Arc<Flushers> {
        &self.flushers
    }

    pub(crate) fn writeback_progress(&self) {
        *self.progress.0.lock() += 1;
        self.progress.1.notify_all();
    }

    /// How often some write-back has finished.
    pub(crate) fn nr_progress(&self) -> u64 {
        *self.progress.0.lock()
    }

    pub(crate) fn wait_for_progress(&self, timeout: Duration) -> bool {
        assert_may_wait(Rank::Writeback, "a wait for write-back");
        let mut count = self.progress.0.lock();
        let before = *count;
        let deadline = Instant::now() + timeout;
        while *count == before {
            if self.progress.1.wait_until(&mut count, deadline).timed_out() {
                return *count != before;
            }
        }
        true
    }

    /// Every file with data that is not durable.
    pub fn unclean_files(&self) -> Vec<Arc<File>> {
        self.living_domains().iter().flat_map(|domain| domain.unclean_files()).collect()
    }

    /// Makes everything durable that is dirty now. Stores are served at the same time; sleeps until all are done or the
    /// timeout. Returns what is not durable then.
    pub fn sync_all(self: &Arc<Self>, timeout: Duration) -> Vec<LostData> {
        self.sync_where(timeout, |_| true)
    }

    /// The same for the files of one store.
    pub fn sync_store(self: &Arc<Self>, store: StoreId, timeout: Duration) -> Vec<LostData> {
        self.sync_where(timeout, |id| id == store)
    }

    fn sync_where(self: &Arc<Self>, timeout: Duration, is_meant: impl Fn(StoreId) -> bool) -> Vec<LostData> {
        let deadline = Instant::now() + timeout;
        let outcome: Arc<(Mutex<Unsynced>, Condvar)> = Arc::default();
        let mut by_store: BTreeMap<StoreId, Vec<Arc<File>>> = BTreeMap::new();
        for file in self.unclean_files().into_iter().filter(|file| is_meant(file.store.id())) {
            outcome.0.lock().insert(file.id, None);
            by_store.entry(file.store.id()).or_default().push(file);
        }
        let asked: Vec<Arc<File>> = by_store.values().flatten().cloned().collect();
        let nr_threads = by_store.len().min(NR_SYNC_THREADS_MAX);
        let stores = Arc::new(Mutex::new(by_store.into_values().collect::<Vec<_>>()));
        for _ in 0..nr_threads {
            let (outcome, stores) = (Arc::clone(&outcome), Arc::clone(&stores));
            // Left behind if a store hangs: nobody may wait for it longer than asked.
            let _ = clock::spawn_detached("umemcg-sync", move || {
                while let Some(files) = { stores.lock().pop() } {
                    for file in files {
                        let result = file.flush_range(0, PAGES_END, Durability::Full);
                        let mut open = outcome.0.lock();
                        match result {
                            Ok(()) => drop(open.remove(&file.id)),
                            Err(error) => drop(open.insert(file.id, Some(error.to_string()))),
                        }
                        drop(open);
                        outcome.1.notify_all();
                    }
                }
            });
        }
        let mut open = outcome.0.lock();
        while open.values().any(Option::is_none) {
            if outcome.1.wait_until(&mut open, deadline).timed_out() {
                break;
            }
        }
        asked
            .into_iter()
            .filter_map(|file| {
                let error = open.get(&file.id)?.clone();
                let pages = file.nr_unclean();
                Some(LostData { file, bytes: pages * PAGE_SIZE_U64, error })
            })
            .collect()
    }

    /// Stops the flushers. What is dirty stays in memory.
    pub fn shut_down(&self) {
        for domain in self.living_domains() {
            domain.stop();
        }
        self.flushers.stop();
    }
}
