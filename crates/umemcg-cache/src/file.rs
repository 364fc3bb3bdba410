//! One file's cached content.
//!
//! Life: [`PageCache::open_file`](crate::PageCache::open_file) makes it, the layer above holds it
//! while the inode is known, the flusher holds it while it is dirty. The last holder drops it; its
//! pages go with it. Its number in the table of files is what frame records name as identity.
//!
//! Locks, outermost first: `flush` (one write-back at a time), `content` (shared by reads from the
//! store, writes and write-back; exclusive for truncation), the page lock flag, the index lock. A
//! read that hits takes none of them.

use std::fmt;
use std::io;
use std::sync::Arc;

use thiserror::Error;
use umemcg_arena::{Arena, FrameFlags as Flag, FrameId, FrameRecord};
use umemcg_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use umemcg_base::{ErrorCursor, ErrorSequence, PAGE_SHIFT, PAGE_SIZE_U64, Rank, RankedMutex, RankedRwLock};
use umemcg_group::{Group, OwnerId, Refused, StatItem};
use umemcg_reclaim::PageOwner;

use crate::cache_core::CacheCore;
use crate::dirty::dirty_file::DirtyFile;
use crate::dirty::list_position::ListPosition;
use crate::dirty::owner::DirtyOwner;
use crate::dirty::queue_mark::QueueMark;
use crate::dirty::refusal::{Refusals, errno_of};
use crate::file_table::FileNumber;
use crate::flush_pace::FlushPace;
use crate::index::{Entry, Index, LockedIndex, Mark};
use crate::quota::GuardedQuota;
use crate::store::{GuardedStore, StoreId};
use crate::store_writeback::StoreWriteback;

/// Largest file: what a signed 64-bit offset can name, in whole pages.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64 & !(PAGE_SIZE_U64 - 1);

/// The store's count of what is not durable may lack this part of a file's dirty pages …
const UNCOUNTED_SHARE: u64 = 8;
/// … and not more than this many.
const UNCOUNTED_PAGES_MAX: u64 = 16;

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

/// One file's cached content; see the module text. Aligned so that what a writer of one file
/// changes is on no line that readers of another need.
#[repr(align(64))]
pub struct File {
    pub(crate) cache: Arc<CacheCore>,
    /// Identity in frame records; never 0. (C)
    pub(crate) id: u32,
    /// The cache's; here so that a hit reads no line on which others' misses are counted.
    pub(crate) arena: Arc<Arena>,
    pub(crate) store: GuardedStore,
    /// Bounds the pages of a file that lives in the pool alone; none for all others. (C)
    pub(crate) quota: Option<GuardedQuota>,
    pub(crate) writeback: Arc<StoreWriteback>,
    /// Length in bytes as readers and writers see it. Grows under `content` shared, changes
    /// otherwise under it exclusively.
    pub(crate) len: AtomicU64,
    /// Length of the file in the store, as far as we know: beyond it everything reads as zero. (A)
    pub(crate) store_len: AtomicU64,
    pub(crate) index: Index,
    pub(crate) content: RankedRwLock<()>,
    /// Held by a write that may make the file longer, over charging and reclaim: where an append
    /// goes is known when it is done, and what is refused leaves no trace.
    pub(crate) growth: RankedMutex<()>,
    pub(crate) flush: RankedMutex<()>,
    pub(crate) errors: ErrorSequence,
    /// Of its flushes, since one went well.
    pub(crate) refusals: Refusals,
    /// Pages with `Flag::DIRTY`. (A)
    pub(crate) nr_dirty: AtomicU64,
    /// Pages with `Flag::WRITEBACK`. (A)
    pub(crate) nr_writeback: AtomicU64,
    /// Pages with `Flag::UNSTABLE`. (A)
    pub(crate) nr_unstable: AtomicU64,
    /// Pages that went to the store past the cache since it last confirmed the whole file. (A)
    pub(crate) nr_through: AtomicU64,
    /// Pages that are not durable and that the store's count does not have yet. (index lock)
    uncounted: AtomicI64,
    /// The group that they belong to. (index lock)
    uncounted_owner: AtomicU32,
    /// Its mark in its store's queue, and the time since which it has been dirty.
    pub(crate) queue_mark: QueueMark,
    /// Its position in its store's lists. (the lock of the store's queue)
    pub(crate) list_position: ListPosition,
    /// The owner of its dirty data.
    pub(crate) dirty_owner: DirtyOwner,
    /// The position at which interrupted write-back continues. (A)
    pub(crate) flush_at: AtomicU64,
    /// It has no name and is not open, so its data need not be written. (A)
    pub(crate) discarded: AtomicBool,
    /// Another cache has the pages that are read and written here. (A)
    pub(crate) is_kept_above: AtomicBool,
    /// Given back when the file is dropped, after its pages.
    _number: FileNumber<File>,
    /// As long as a file lives, reclaim can ask for its pages.
    _page_owner: Arc<dyn PageOwner>,
}

/// The parts of a new file that its cache provides.
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
            cache,
            store,
            writeback,
            len: AtomicU64::new(len),
            // No store has anything of a file in memory.
            store_len: AtomicU64::new(if quota.is_some() { 0 } else { len }),
            quota,
            content: RankedRwLock::new(Rank::FileContent, ()),
            growth: RankedMutex::new(Rank::FileGrowth, ()),
            flush: RankedMutex::new(Rank::FileFlush, ()),
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

    pub(crate) fn publish_len(&self, len: u64) {
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

    /// Returns the number of pages that are not durable yet: dirty, under write-back or unstable.
    /// One on its way from one state to the next may count twice.
    pub fn nr_unclean(&self) -> u64 {
        // Acquire: pairs with the Release decrements in `flush`, each after the increment of the
        // state that follows; the reads go the way that pages go.
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

    /// Returns the number of pages that the store has not been given yet: dirty, or under
    /// write-back. One on its way may count twice.
    pub fn nr_unwritten(&self) -> u64 {
        // Acquire: as in `nr_unclean`.
        self.nr_dirty.load(Ordering::Acquire) + self.nr_writeback.load(Ordering::Acquire)
    }

    /// Returns whether the store has been given everything written so far.
    pub fn is_in_store(&self) -> bool {
        // A page that the store refuses goes back from write-back to dirty: one more look at the
        // first state.
        self.nr_unwritten() == 0 && self.nr_dirty.load(Ordering::Acquire) == 0
    }

    /// Returns the store of its backing file.
    pub fn store_id(&self) -> StoreId {
        self.store.id()
    }

    /// Returns what an open file that starts now has seen of the file's write-back errors.
    pub fn sample_error(&self) -> ErrorCursor {
        self.errors.sample()
    }

    /// Returns whether a write-back error has ever been noted.
    pub fn has_failed(&self) -> bool {
        !self.errors.is_clear()
    }

    /// Reports a write-back error that this open file has not seen yet.
    ///
    /// # Errors
    /// [`FileError::Writeback`], once per error and open file.
    pub fn check_error(&self, cursor: &ErrorCursor) -> Result<(), FileError> {
        self.errors.check_and_advance(cursor).map_err(FileError::Writeback)
    }

    /// Records the result of a flush, for open files and for writers that wait for it.
    pub(crate) fn note_flushed<T>(&self, result: &io::Result<T>) {
        match result {
            Ok(_) => self.refusals.taken(),
            Err(error) => {
                self.errors.record(errno_of(error));
                self.refusals.refused(errno_of(error));
                self.writeback.refusals.refused(errno_of(error));
            }
        }
    }

    /// Returns the errno with which the store refuses this file's data or all data, if it does.
    pub(crate) fn refusal(&self) -> Option<i32> {
        self.refusals.of_file().or_else(|| self.writeback.refusals.of_store())
    }

    pub(crate) fn record(&self, frame: FrameId) -> &FrameRecord {
        self.arena.record(frame)
    }

    /// Counts pages of an owner that changed state, in the group and those above.
    #[inline]
    pub(crate) fn account(&self, owner: u32, item: StatItem, pages: i64) {
        if !umemcg_reclaim::mechanism::counts_dirty_for_groups() {
            return;
        }
        umemcg_reclaim::owner_from(owner).count(item, pages * PAGE_SIZE_U64 as i64);
    }

    /// Counts pages as the store's that are not durable, or are no longer. What is new may wait
    /// here, an eighth of the file's dirty pages at most, so that not each page writes to a line
    /// that all writers of the store share.
    pub(crate) fn count_unclean(&self, _index: &LockedIndex<'_>, owner: u32, pages: i64) {
        let before = self.uncounted_owner.swap(owner, Ordering::Relaxed);
        let mut uncounted = self.uncounted.load(Ordering::Relaxed);
        if before != owner && uncounted != 0 {
            self.writeback.add_unclean(before, std::mem::take(&mut uncounted));
        }
        uncounted += pages;
        let may_wait = (self.nr_dirty.load(Ordering::Relaxed) / UNCOUNTED_SHARE).min(UNCOUNTED_PAGES_MAX);
        let waits = (0..=may_wait as i64).contains(&uncounted);
        self.uncounted.store(if waits { uncounted } else { 0 }, Ordering::Relaxed);
        if !waits {
            self.writeback.add_unclean(owner, uncounted);
        }
    }

    /// Counts pages that became dirty: marks, file, group, pool. Under the index lock, so that no
    /// thread can count them as clean before. Their dirty flags were just set.
    pub(crate) fn note_dirty(&self, index: &LockedIndex<'_>, pages: &[(u64, FrameId)]) {
        for &(page, _) in pages {
            index.mark(page, Mark::Dirty, true);
        }
        self.nr_dirty.fetch_add(pages.len() as u64, Ordering::Relaxed);
        self.account_run(pages, StatItem::FileDirty, 1);
        self.count_unclean_run(index, pages, 1);
    }

    /// Marks pages dirty that the caller has pinned and just written to, with `content` held. The
    /// data was written before this call.
    pub(crate) fn mark_dirty(self: &Arc<Self>, pages: &[(u64, FrameId)]) {
        if self.is_memory() {
            return;
        }
        // The copy comes before the flag, so the thread that clears the flag sees the copy.
        let fresh: Vec<_> = pages
            .iter()
            .copied()
            .filter(|&(_, frame)| !self.record(frame).test_and_set(Flag::DIRTY))
            .collect();
        if fresh.is_empty() {
            return;
        }
        self.note_dirty(&self.index.lock(), &fresh);
        self.queue_dirty(&fresh);
    }

    /// Notes that pages went to the store past the cache: it has to confirm them before the file is
    /// durable.
    pub(crate) fn note_written_through(self: &Arc<Self>, nr: u64, owner: u32) {
        // Release: pairs with the loads in `nr_unclean`.
        self.nr_through.fetch_add(nr, Ordering::Release);
        self.writeback.note_dirty(self, owner);
    }

    /// Puts the file among its store's dirty ones; it belongs to the group whose pages these are,
    /// unless it belongs to one already.
    pub(crate) fn queue_dirty(self: &Arc<Self>, fresh: &[(u64, FrameId)]) {
        let owner = |&(_, frame): &(u64, FrameId)| self.record(frame).owner.load(Ordering::Relaxed);
        let Some(first) = fresh.first().map(owner) else { return };
        let other = fresh.iter().map(owner).find(|&owner| owner != first);
        self.writeback.note_dirty(self, first);
        if let Some(other) = other {
            self.dirty_owner.note_dirtied(other);
        }
    }

    /// Counts pages that changed state, one call for each run of one owner.
    pub(crate) fn account_run(&self, pages: &[(u64, FrameId)], item: StatItem, sign: i64) {
        self.runs_of_owners(pages).for_each(|(owner, nr)| self.account(owner, item, sign * nr));
    }

    /// Counts pages as the store's that are not durable (`sign` 1), or are no longer (-1).
    pub(crate) fn count_unclean_run(&self, index: &LockedIndex<'_>, pages: &[(u64, FrameId)], sign: i64) {
        self.runs_of_owners(pages).for_each(|(owner, nr)| self.count_unclean(index, owner, sign * nr));
    }

    /// Returns the owners of pages side by side, each with how many pages are its own.
    pub(crate) fn runs_of_owners(&self, pages: &[(u64, FrameId)]) -> impl Iterator<Item = (u32, i64)> {
        let owner = |&(_, frame): &(u64, FrameId)| self.record(frame).owner.load(Ordering::Relaxed);
        pages.chunk_by(move |a, b| owner(a) == owner(b)).map(move |run| (owner(&run[0]), run.len() as i64))
    }

    /// Drops every clean, unpinned page: the file changed outside. Dirty pages stay.
    pub fn invalidate_clean(self: &Arc<Self>) {
        if self.is_memory() {
            return;
        }
        let _content = self.content.write();
        self.drop_pages(0, u64::MAX >> PAGE_SHIFT, true);
    }

    /// Checks whether the file was changed from outside. `look` finds out with write-back kept out,
    /// and says how long the store's file is then, or `None` when there is nothing new. Clean pages
    /// are forgotten. What is not durable stays and wins: it is written again, and the file reaches
    /// at least as far. `look` may take the store's own locks, none of ours.
    pub fn revalidate(self: &Arc<Self>, look: impl FnOnce() -> Option<u64>) {
        let content = self.content.write();
        let Some(len) = look() else { return };
        let (unclean_end, dirtied) = {
            let index = self.index.lock();
            let dirtied = self.redirty_unstable(&index);
            let (mut end, mut from) = (0, 0);
            while let Some(page) = index.next_marked(from, u64::MAX >> PAGE_SHIFT, Mark::Dirty) {
                end = page + 1;
                from = page + 1;
            }
            ((end << PAGE_SHIFT).min(self.len()), dirtied)
        };
        self.drop_pages(0, u64::MAX >> PAGE_SHIFT, true);
        self.store_len.store(len, Ordering::Relaxed);
        self.publish_len(len.max(unclean_end));
        drop(content);
        self.queue_dirty(&dirtied);
    }

    /// Makes pages dirty that were written and have not been confirmed: the store may have lost
    /// them since. Returns those.
    fn redirty_unstable(&self, index: &LockedIndex<'_>) -> Vec<(u64, FrameId)> {
        let (mut unstable, mut dirtied, mut from) = (Vec::new(), Vec::new(), 0);
        while let Some(page) = index.next_marked(from, u64::MAX >> PAGE_SHIFT, Mark::Unstable) {
            from = page + 1;
            let Entry::Page(frame) = index.get(page) else { continue };
            if !self.record(frame).try_pin() {
                continue;
            }
            index.mark(page, Mark::Unstable, false);
            unstable.push((page, frame));
            if !self.record(frame).change(Flag::UNSTABLE, Flag::DIRTY).intersects(Flag::DIRTY) {
                dirtied.push((page, frame));
            }
        }
        self.note_dirty(index, &dirtied);
        // Release: pairs with the loads in `nr_unclean`.
        self.nr_unstable.fetch_sub(unstable.len() as u64, Ordering::Release);
        self.account_run(&unstable, StatItem::FileUnstable, -1);
        self.count_unclean_run(index, &unstable, -1);
        unstable.iter().for_each(|&(_, frame)| self.cache.reclaimer().unpin(frame));
        dirtied
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
        while let Some((page, entry)) = index.next_occupied(from, u64::MAX >> PAGE_SHIFT) {
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
    fn flush_turn(self: Arc<Self>, pace: &FlushPace) -> io::Result<u64> {
        Self::write_turn(&self, pace)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.drop_all_pages();
    }
}

/// Returns the owner handle that a frame is charged to.
pub(crate) fn owner_of(record: &FrameRecord) -> OwnerId {
    umemcg_reclaim::owner_from(record.owner.load(Ordering::Relaxed))
}
