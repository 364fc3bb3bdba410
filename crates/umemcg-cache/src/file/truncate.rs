//! Taking pages out of a file: truncation, holes, invalidation, the end of the file's life.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::{
    PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, Rank, RankedWriteGuard, assert_may_wait, assert_no_locks_held,
};
use umemcg_group::{Group, StatItem};

use super::store_fills::Closed;
use super::{File, FileError, PAGES_END, owner_of};
use crate::index::{Entry, LockedIndex, Mark};
use crate::store::FILE_LEN_MAX;

/// No page is being filled or written; fields are dropped in order.
#[must_use]
pub(super) struct ContentAlone<'f> {
    _content: RankedWriteGuard<'f, ()>,
    _closed: Option<Closed<'f>>,
}

impl File {
    /// Waits until no page is being filled or written, and keeps it so.
    pub(super) fn content_alone(&self) -> ContentAlone<'_> {
        let closed = self.store_fills.as_ref().map(|fills| fills.close());
        ContentAlone { _content: self.content.write(), _closed: closed }
    }

    /// Cuts or extends the file. Extending adds zeroes; cutting drops the data beyond `len`.
    ///
    /// # Errors
    /// [`FileError::TooLarge`], or the store's refusal, which changes nothing.
    pub fn set_len(self: &Arc<Self>, len: u64) -> Result<(), FileError> {
        assert_no_locks_held("a truncation");
        if len > FILE_LEN_MAX {
            return Err(FileError::TooLarge);
        }
        let _content = self.content_alone();
        assert_may_wait(Rank::StoreIo, "a truncation of the store");
        self.store.set_len(len)?;
        let old = self.len();
        self.publish_len(len);
        if !self.is_memory() {
            self.store_len.store(len, Ordering::Relaxed);
        }
        if len < old {
            self.drop_pages(len.div_ceil(PAGE_SIZE_U64), PAGES_END, false);
            self.zero_cached(len, len.next_multiple_of(PAGE_SIZE_U64), None);
        }
        Ok(())
    }

    /// Makes a range read as zeroes after `store_change` has done so in the store. The store is
    /// changed with all other operations kept out; the length stays. Dirty pages in the range are
    /// forgotten, so `store_change` must also make the store's file as long as this one: those
    /// pages can no longer extend it. Pages partly in the range become dirty as by a write of
    /// `group`.
    ///
    /// # Errors
    /// The store's refusal, which changes nothing.
    pub fn zero_range(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        len: u64,
        store_change: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<(), FileError> {
        assert_no_locks_held("a hole punch");
        let end = offset.checked_add(len).filter(|&end| end <= FILE_LEN_MAX).ok_or(FileError::TooLarge)?;
        let _content = self.content_alone();
        store_change()?;
        let first_whole = offset.div_ceil(PAGE_SIZE_U64);
        let end_whole = end >> PAGE_SHIFT;
        if first_whole < end_whole {
            self.drop_pages(first_whole, end_whole, false);
        }
        // The edges: pages partly kept. Dirty ones carry the zeroes to the store themselves.
        self.zero_cached(offset, end.min(first_whole << PAGE_SHIFT), Some(group));
        if end_whole >= first_whole {
            self.zero_cached(offset.max(end_whole << PAGE_SHIFT), end, Some(group));
        }
        Ok(())
    }

    /// Runs a change of the store's allocation that may also extend the file to `new_len`.
    ///
    /// # Errors
    /// The store's refusal, which changes nothing.
    pub fn allocate(
        self: &Arc<Self>,
        new_len: Option<u64>,
        store_change: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<(), FileError> {
        assert_no_locks_held("an allocation");
        let _content = self.content_alone();
        store_change()?;
        if let Some(len) = new_len {
            self.store_len.fetch_max(len, Ordering::Relaxed);
            self.grow(len);
        }
        Ok(())
    }

    /// Drops the data of a file that has no name and is not open, without writing it.
    pub fn discard(self: &Arc<Self>) {
        self.discarded.store(true, Ordering::Relaxed);
        {
            let _content = self.content_alone();
            self.drop_pages(0, PAGES_END, false);
        }
        self.writeback.forget(&**self);
    }

    /// Zeroes `from..to` of one page if it is cached; a writer's zeroes make it dirty.
    fn zero_cached(self: &Arc<Self>, from: u64, to: u64, writer: Option<&Arc<Group>>) {
        if from >= to {
            return;
        }
        let page = from >> PAGE_SHIFT;
        // Under the lock: a pin without it also fails while reclaim has the page frozen for a
        // check.
        let pin = |index: LockedIndex<'_>| match index.get(page) {
            Entry::Page(frame) => self.record(frame).try_pin().then_some(frame),
            _ => None,
        };
        let Some(frame) = pin(self.index.lock()) else { return };
        let in_page = from as usize & (PAGE_SIZE - 1);
        self.cache.arena().zero(frame, in_page, (to - from) as usize);
        if let Some(writer) = writer {
            self.note_foreign(writer, &self.mark_dirty(&[(page, frame)]));
        }
        self.cache.reclaimer().unpin(frame);
    }

    /// Takes pages (and shadows) of `first..end` out of the file. With `clean_only`, dirty and
    /// unstable pages stay. The caller holds `content` exclusively, so no page is being filled or
    /// written.
    pub(super) fn drop_pages(&self, first: u64, end: u64, clean_only: bool) {
        self.fetch_counts.begin_anew();
        let mut from = first;
        loop {
            // In batches: the index lock is not held for a terabyte.
            let mut gone = Vec::new();
            {
                let index = self.index.lock();
                while gone.len() < 256
                    && let Some((page, entry)) = index.next_occupied(from, end)
                {
                    from = page + 1;
                    match entry {
                        Entry::Page(frame) => {
                            let keep = Flag::DIRTY | Flag::WRITEBACK | Flag::UNSTABLE;
                            if clean_only && self.record(frame).test(keep) {
                                continue;
                            }
                            self.detach(&index, page, frame);
                            gone.push(frame);
                        }
                        Entry::Shadow(_) | Entry::Empty => index.remove(page),
                    }
                }
            }
            if gone.is_empty() {
                return;
            }
        }
    }

    /// Takes one page out of the file: marks and counts, entry, identity, list, base reference.
    /// Readers that have it pinned keep the frame until they are done.
    pub(super) fn detach(&self, index: &LockedIndex<'_>, page: u64, frame: FrameId) {
        let record = self.record(frame);
        let owner = record.owner.load(Ordering::Relaxed);
        if record.test_and_clear(Flag::DIRTY) {
            index.mark(page, Mark::Dirty, false);
            self.nr_dirty.fetch_sub(1, Ordering::Relaxed);
            self.account(owner, StatItem::FileDirty, -1);
            self.count_unclean(index, owner, -1);
        }
        if record.test_and_clear(Flag::UNSTABLE) {
            index.mark(page, Mark::Unstable, false);
            self.nr_unstable.fetch_sub(1, Ordering::Relaxed);
            self.account(owner, StatItem::FileUnstable, -1);
            self.count_unclean(index, owner, -1);
        }
        index.remove(page);
        self.give_quota(1);
        record.file.store(0, Ordering::Relaxed);
        if record.test(Flag::ON_LRU) {
            self.cache.reclaimer().forget_in_lists(owner_of(record), frame);
        }
        // The base reference; the last one to leave frees.
        self.cache.reclaimer().unpin(frame);
    }

    /// Drops everything at the end of the file's life, when no other thread has it.
    pub(super) fn drop_all_pages(&self) {
        self.drop_pages(0, PAGES_END, false);
    }
}
