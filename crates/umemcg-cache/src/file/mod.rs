//! One file's cached content.
//!
//! Life: [`PageCache::open_file`](crate::PageCache::open_file) makes it, the layer above holds it
//! while the inode is known, the flusher holds it while it is dirty. The last holder drops it; its
//! pages go with it. Frame records name it by its number in the table of files.
//!
//! Locks, outermost first: `flush` (one write-back at a time), `content` (shared by reads from the
//! store, writes and write-back; exclusive for truncation), the page lock flag, the index lock. A
//! hit takes none of them. An exclusive operation first waits for the fills of the store.
//!
//! Each operation has a file of its own: `hit`, `read`, `write`, `flush`, `truncate`. A miss has
//! pages filled: by its thread (`fill`), or by the store (`store_fill`, listed in `store_fills`)
//! while no thread waits (`started_read`), or before the read comes (`read_ahead`). `write_behind`
//! notices long sequential writes. `new_pages` takes charge, frames and index nodes for pages to
//! enter the file, `dirty_pages` counts pages to be written, and `memory` has the operations
//! special to files without a store.

mod dirty_pages;
mod fetch_counts;
mod fill;
mod flush;
mod hand_over;
mod hit;
mod memory;
mod new_pages;
mod read;
mod read_ahead;
mod revalidate;
mod started_read;
mod store_fill;
mod store_fills;
mod truncate;
mod write;
mod write_behind;
mod write_pause;

use std::fmt;
use std::io;
use std::sync::Arc;

use fetch_counts::FetchCounts;
pub(crate) use flush::Durability;
pub use started_read::{ReadStep, StartedRead, WaitingRead};
use store_fills::StoreFills;
use thiserror::Error;
use umemcg_arena::{Arena, FrameId, FrameRecord};
use umemcg_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use umemcg_base::{ErrorCursor, ErrorSequence, PAGE_SHIFT, Rank, RankedMutex, RankedRwLock};
use umemcg_group::{Group, OwnerId, Refused};
use umemcg_reclaim::PageOwner;
use write_behind::WriteSequence;
pub use write_pause::WritePause;

use crate::cache_core::CacheCore;
use crate::dirty::dirty_file::{DirtyFile, TurnWritten};
use crate::dirty::list_position::ListPosition;
use crate::dirty::owner::DirtyOwner;
use crate::dirty::queue_mark::QueueMark;
use crate::dirty::refusal::{Refusals, errno_of};
use crate::file_table::FileNumber;
use crate::flush_pace::FlushPace;
use crate::index::{Entry, Index};
use crate::quota::GuardedQuota;
use crate::store::{FILE_LEN_MAX, GuardedStore, StoreId};
use crate::store_writeback::StoreWriteback;

/// Page number after the last possible one.
pub(crate) const PAGES_END: u64 = u64::MAX >> PAGE_SHIFT;

/// Why an operation on a file failed.
#[derive(Debug, Error)]
pub enum FileError {
    /// The group of the writer, or the file's quota, has no room for a page that lives in memory
    /// alone.
    #[error("no room for another page")]
    NoSpace,
    /// The backing store reported an error.
    #[error("backing store: {0}")]
    Store(#[from] io::Error),
    /// An error of earlier write-back, reported to this open file for the first time.
    #[error("earlier write-back failed with error {0}")]
    Writeback(i32),
    /// The file would become larger than files can be.
    #[error("the file would grow beyond {FILE_LEN_MAX} bytes")]
    TooLarge,
    /// This group has no room even for the bookkeeping.
    #[error("group {} is out of memory", .0.group.path().display())]
    NoMemory(Refused),
    /// The daemon is shutting down.
    #[error("the cache is shut down")]
    ShutDown,
}

/// One file's cached content; see the module text. Aligned so that writers of one file change no
/// cache line needed by readers of another.
#[repr(align(64))]
pub struct File {
    cache: Arc<CacheCore>,
    /// Identity in frame records; never 0. (C)
    pub(crate) id: u32,
    /// The cache's; here so that a hit reads no cache line with counts of others' misses.
    pub(crate) arena: Arc<Arena>,
    store: GuardedStore,
    /// Bounds the pages of a file that lives in the pool alone; none for all others. (C)
    quota: Option<GuardedQuota>,
    writeback: Arc<StoreWriteback>,
    /// Length in bytes as readers and writers see it. Grows under `content` shared, changes
    /// otherwise under it exclusively.
    len: AtomicU64,
    /// Length of the file in the store, as far as we know: beyond it everything reads as zero. (A)
    store_len: AtomicU64,
    pub(crate) index: Index,
    content: RankedRwLock<()>,
    /// Where the store begins reads: the fills begun by it.
    store_fills: Option<Arc<StoreFills>>,
    /// Held by a write that may make the file longer, over charging and reclaim: the offset of an
    /// append is fixed, and a refused write leaves no trace.
    growth: RankedMutex<()>,
    flush: RankedMutex<()>,
    /// A look has made unstable pages dirty again since the flush under way began. Release, and
    /// Acquire in the flush: it sees these pages.
    is_redirtied: AtomicBool,
    /// A flush is repeated for such pages: looks wait for its end. Relaxed: a late one costs a
    /// repetition.
    is_flushed_again: AtomicBool,
    errors: ErrorSequence,
    /// Refusals of its flushes, since one succeeded.
    refusals: Refusals,
    /// Pages with `Flag::DIRTY`. (A)
    nr_dirty: AtomicU64,
    /// Pages with `Flag::WRITEBACK`. (A)
    nr_writeback: AtomicU64,
    /// Pages with `Flag::UNSTABLE`. (A)
    nr_unstable: AtomicU64,
    /// Pages that went to the store past the cache since it last confirmed the whole file. (A)
    nr_through: AtomicU64,
    /// Pages not durable and not yet in the store's count. (index lock)
    uncounted: AtomicI64,
    /// The owner of these pages. (index lock)
    uncounted_owner: AtomicU32,
    /// Its mark in its store's queue, and the time at which it became dirty.
    queue_mark: QueueMark,
    /// Its position in its store's lists. (the lock of the store's queue)
    list_position: ListPosition,
    /// The owner of its dirty data.
    dirty_owner: DirtyOwner,
    /// The position at which interrupted write-back continues. (A)
    flush_at: AtomicU64,
    sequence: WriteSequence,
    fetch_counts: FetchCounts,
    /// It has no name and is not open, so its data need not be written. (A)
    discarded: AtomicBool,
    /// Another cache keeps the pages read and written here. (A)
    is_kept_above: AtomicBool,
    /// Given back when the file is dropped, after its pages.
    _number: FileNumber<File>,
    /// As long as a file lives, reclaim can ask for its pages.
    _page_owner: Arc<dyn PageOwner>,
}

/// The parts of a new file provided by its cache.
pub(crate) struct FileParts {
    pub(crate) number: FileNumber<File>,
    pub(crate) cache: Arc<CacheCore>,
    pub(crate) page_owner: Arc<dyn PageOwner>,
    pub(crate) store: GuardedStore,
    pub(crate) writeback: Arc<StoreWriteback>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("id", &self.id)
            .field("len", &self.len())
            .field("nr_dirty", &self.nr_dirty)
            .field("nr_unstable", &self.nr_unstable)
            .finish_non_exhaustive()
    }
}

impl File {
    pub(crate) fn new(parts: FileParts, len: u64, quota: Option<GuardedQuota>) -> Self {
        let FileParts { number, cache, page_owner, store, writeback } = parts;
        let id = number.id();
        Self {
            id,
            index: Index::new(cache.nodes(), id),
            arena: Arc::clone(cache.arena()),
            store_fills: store
                .begins_reads()
                .then(|| Arc::new(StoreFills::new(cache.read_pace(store.source_id())))),
            cache,
            store,
            writeback,
            len: AtomicU64::new(len),
            // No store has data of a file in memory.
            store_len: AtomicU64::new(if quota.is_some() { 0 } else { len }),
            quota,
            content: RankedRwLock::new(Rank::FileContent, ()),
            growth: RankedMutex::new(Rank::FileGrowth, ()),
            flush: RankedMutex::new(Rank::FileFlush, ()),
            is_redirtied: AtomicBool::new(false),
            is_flushed_again: AtomicBool::new(false),
            errors: ErrorSequence::new(),
            refusals: Refusals::default(),
            nr_dirty: AtomicU64::new(0),
            nr_writeback: AtomicU64::new(0),
            nr_unstable: AtomicU64::new(0),
            nr_through: AtomicU64::new(0),
            uncounted: AtomicI64::new(0),
            uncounted_owner: AtomicU32::new(0),
            queue_mark: QueueMark::default(),
            list_position: ListPosition::default(),
            dirty_owner: DirtyOwner::default(),
            flush_at: AtomicU64::new(0),
            sequence: WriteSequence::default(),
            fetch_counts: FetchCounts::default(),
            discarded: AtomicBool::new(false),
            is_kept_above: AtomicBool::new(false),
            _number: number,
            _page_owner: page_owner,
        }
    }

    /// Returns the length in bytes. The cache's length is authoritative; the store follows.
    pub fn len(&self) -> u64 {
        // Acquire: pairs with the Release in `publish_len`; data written before the length grew is
        // seen.
        self.len.load(Ordering::Acquire)
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn publish_len(&self, len: u64) {
        // Release: pairs with the Acquire in `len`.
        self.len.store(len, Ordering::Release);
    }

    /// Returns the number of dirty pages.
    pub fn nr_dirty(&self) -> u64 {
        self.nr_dirty.load(Ordering::Relaxed)
    }

    /// Returns the group on whose list of dirty files it is; none while it is clean. For tests and
    /// tools.
    pub fn dirty_group(&self) -> Option<Arc<Group>> {
        self.dirty_owner.group()
    }

    /// Returns the number of pages not durable yet: dirty, under write-back or unstable. A page on
    /// its way from one state to the next may count twice.
    pub fn nr_unclean(&self) -> u64 {
        // Acquire: pairs with the Release decrements in `flush`, each after the increment of the
        // next state; the reads follow the order of the states.
        self.nr_dirty.load(Ordering::Acquire)
            + self.nr_writeback.load(Ordering::Acquire)
            + self.nr_unstable.load(Ordering::Acquire)
            + self.nr_through.load(Ordering::Acquire)
    }

    /// Returns whether everything written so far is durable in the store's data.
    pub fn is_stable(&self) -> bool {
        // A page whose durability was refused goes back from unstable to dirty: one more look at
        // the first state.
        self.nr_unclean() == 0 && self.nr_dirty.load(Ordering::Acquire) == 0
    }

    /// Returns the number of pages not yet written to the store: dirty, or under write-back. A page
    /// on its way may count twice.
    pub fn nr_unwritten(&self) -> u64 {
        // Acquire: as in `nr_unclean`.
        self.nr_dirty.load(Ordering::Acquire) + self.nr_writeback.load(Ordering::Acquire)
    }

    /// Returns whether everything written so far is in the store, durable or not.
    pub fn is_in_store(&self) -> bool {
        // A refused page goes back from write-back to dirty: one more look at the first state.
        self.nr_unwritten() == 0 && self.nr_dirty.load(Ordering::Acquire) == 0
    }

    /// Returns the store of its backing file.
    pub fn store_id(&self) -> StoreId {
        self.store.id()
    }

    /// Returns the position of a newly opened file in the sequence of write-back errors.
    pub fn sample_error(&self) -> ErrorCursor {
        self.errors.sample()
    }

    /// Returns whether a write-back error has ever been noted.
    pub fn has_failed(&self) -> bool {
        !self.errors.is_clear()
    }

    /// Reports a write-back error not yet seen by this open file.
    ///
    /// # Errors
    /// [`FileError::Writeback`], once per error and open file.
    pub fn check_error(&self, cursor: &ErrorCursor) -> Result<(), FileError> {
        self.errors.check_and_advance(cursor).map_err(FileError::Writeback)
    }

    /// Records the result of a flush, for open files and for waiting writers.
    fn note_flushed<T>(&self, result: &io::Result<T>) {
        match result {
            Ok(_) => self.refusals.taken(),
            Err(error) => {
                self.errors.record(errno_of(error));
                self.refusals.refused(errno_of(error));
                self.writeback.refusals.refused(errno_of(error));
            }
        }
    }

    /// Returns the errno of the store's refusal of this file's data, or of all data, if there is
    /// one.
    fn refusal(&self) -> Option<i32> {
        self.refusals.of_file().or_else(|| self.writeback.refusals.of_store())
    }

    fn record(&self, frame: FrameId) -> &FrameRecord {
        self.arena.record(frame)
    }

    /// Returns whether any page is in the cache now; walks over the leaves of shadows before the
    /// first.
    pub fn has_cached_pages(&self) -> bool {
        self.index.lock().has_page()
    }

    /// Returns the number of pages in the cache; for tests and tools, walks the index.
    pub fn nr_cached_pages(&self) -> u64 {
        let index = self.index.lock();
        let (mut nr, mut from) = (0, 0);
        while let Some((page, entry)) = index.next_occupied(from, PAGES_END) {
            nr += u64::from(matches!(entry, Entry::Page(_)));
            from = page + 1;
        }
        nr
    }
}

impl DirtyFile for File {
    fn id(&self) -> u32 {
        self.id
    }
    fn is_stable(&self) -> bool {
        Self::is_stable(self)
    }
    fn queue_mark(&self) -> &QueueMark {
        &self.queue_mark
    }
    fn list_position(&self) -> &ListPosition {
        &self.list_position
    }
    fn dirty_owner(&self) -> &DirtyOwner {
        &self.dirty_owner
    }
    fn flush_turn(self: Arc<Self>, pace: &FlushPace) -> io::Result<TurnWritten> {
        Self::write_turn(&self, pace)
    }
    fn confirm_turn(self: Arc<Self>) -> io::Result<()> {
        Self::confirm_written(&self)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.drop_all_pages();
    }
}

/// Returns the owner handle charged for a frame.
fn owner_of(record: &FrameRecord) -> OwnerId {
    umemcg_reclaim::owner_from(record.owner.load(Ordering::Relaxed))
}
