//! The page cache of one pool: opens files, finds them by their number, and makes everything
//! durable.

mod evict;
mod shadow_shrinker;
mod sparse;
mod sync;

use std::fmt;
use std::io;
use std::sync::Arc;

pub use sync::LostData;
use umemcg_arena::Arena;
use umemcg_group::Group;
use umemcg_reclaim::{PageOwner, Reclaimer};

use crate::cache_core::CacheCore;
use crate::dirty::DirtyLimits;
use crate::file::{File, FileParts};
use crate::file_table::FileTable;
use crate::quota::{GuardedQuota, PageQuota};
use crate::store::{BackingStore, GuardedStore, NoStore, StoreId};

/// The page cache of one pool.
pub struct PageCache {
    core: Arc<CacheCore>,
    files: Arc<FileTable<File>>,
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache").field("limits", self.dirty_limits()).finish_non_exhaustive()
    }
}

impl PageCache {
    /// Creates a cache over a pool. Registers itself as the owner of the pages. The arena is larger
    /// than the pool by [`OVERRUN_ARENA_BYTES`](crate::overrun::OVERRUN_ARENA_BYTES).
    ///
    /// # Errors
    /// When the operating system has no address space for the index nodes.
    pub fn new(reclaimer: Arc<Reclaimer>) -> io::Result<Arc<Self>> {
        let cache = Arc::new(Self { core: Arc::new(CacheCore::new(reclaimer)?), files: Arc::default() });
        let owner: Arc<dyn PageOwner> = Arc::<Self>::clone(&cache);
        cache.reclaimer().set_page_owner(&owner);
        Ok(cache)
    }

    /// Starts caching a file that is `len` bytes long in its store.
    ///
    /// # Errors
    /// `Unsupported` when the arena has no frames.
    pub fn open_file(self: &Arc<Self>, store: Arc<dyn BackingStore>, len: u64) -> io::Result<Arc<File>> {
        self.check_frames()?;
        Ok(self.open(store, len, None))
    }

    /// Creates a file of this length that lives in the pool alone. At first it is one hole.
    ///
    /// # Errors
    /// `Unsupported` when the arena has no frames; else when the pool has no zero page for holes.
    pub fn open_memory_file(self: &Arc<Self>, quota: Arc<dyn PageQuota>, len: u64) -> io::Result<Arc<File>> {
        self.check_frames()?;
        self.core.make_zero_page()?;
        Ok(self.open(Arc::new(NoStore), len, Some(quota)))
    }

    /// Returns an error if the cache was made for objects alone.
    fn check_frames(&self) -> io::Result<()> {
        if self.arena().nr_frames() > 0 {
            return Ok(());
        }
        let what = "the engine keeps no pages: create it with pages to open files";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    fn open(
        self: &Arc<Self>,
        store: Arc<dyn BackingStore>,
        len: u64,
        quota: Option<Arc<dyn PageQuota>>,
    ) -> Arc<File> {
        let store = GuardedStore::new(store);
        let number = self.files.take_number();
        let id = number.id();
        let writeback = self.core.store(store.id());
        let cache = Arc::clone(&self.core);
        let page_owner: Arc<dyn PageOwner> = Arc::<Self>::clone(self);
        let file = Arc::new(File::new(
            FileParts { number, cache, page_owner, store, writeback },
            len,
            quota.map(GuardedQuota::new),
        ));
        self.files.publish(id, &file);
        file
    }

    pub(crate) fn file(&self, id: u32) -> Option<Arc<File>> {
        self.files.get(id)
    }

    pub(crate) fn core(&self) -> &Arc<CacheCore> {
        &self.core
    }

    /// Returns the frames.
    #[inline]
    pub fn arena(&self) -> &Arc<Arena> {
        self.core.arena()
    }

    /// Returns the reclaimer.
    #[inline]
    pub fn reclaimer(&self) -> &Arc<Reclaimer> {
        self.core.reclaimer()
    }

    /// Returns the dirty thresholds and counts of the pool.
    pub fn dirty_limits(&self) -> &DirtyLimits {
        self.core.writeback().dirty_limits()
    }

    /// Returns the number of index nodes in use; each is charged.
    pub fn nr_index_nodes(&self) -> u32 {
        self.core.nodes().nr_in_use()
    }

    /// Gives memory of unused index nodes back to the operating system.
    pub fn trim_nodes(&self) {
        self.core.nodes().trim();
    }

    /// Returns the number of reads begun and not ended by a store, and the number waiting to be
    /// begun. The store is named by its [`source_id`](BackingStore::source_id).
    pub fn nr_reads_begun_and_waiting(&self, source: StoreId) -> (u64, u64) {
        self.core.begun_reads().on_store(source)
    }

    /// Makes all flushers check for due files.
    pub fn wake_flushers(&self) {
        for store in self.core.stores() {
            store.wake();
        }
    }

    /// Hands the dirty files of a removed group to its parent.
    pub fn hand_over_dirty(&self, dying: &Arc<Group>, parent: &Arc<Group>) {
        for store in self.core.stores() {
            store.hand_over(dying, parent);
        }
    }

    /// Returns every file with data not yet durable.
    pub fn unclean_files(&self) -> Vec<Arc<File>> {
        let numbers = self.core.stores().into_iter().flat_map(|store| store.unclean_files());
        numbers.filter_map(|id| self.file(id)).collect()
    }

    /// Stops the flushers. Dirty data stays in memory.
    pub fn shut_down(&self) {
        for store in self.core.stores() {
            store.stop();
        }
        self.core.writeback().flushers().stop();
    }

    /// Stops the flushers for good, and forgets the list of dirty files: at the end of the engine,
    /// when only users of a file keep it. Dirty data is lost with its file.
    pub fn close(&self) {
        self.shut_down();
        for store in self.core.stores() {
            store.close();
        }
    }
}
