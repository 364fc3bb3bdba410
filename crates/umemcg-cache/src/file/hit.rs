//! Reads that hit: every page is cached, so they take no lock and never sleep.
//!
//! There are two ways to read a page safely. A caller that passes its frame on (a reply copied by
//! the kernel) *pins* it. A caller that copies a few bytes reads *optimistically*: its result is
//! valid if the frame has not been frozen meanwhile. An optimistic read writes no shared memory, so
//! any number of threads read one page at full speed, and the processor fetches record and contents
//! at the same time.
//!
//! Either way, two hits on different files write no common cache line. A pin writes the frame's
//! record, which has a line to itself; both write the caller's [`Readahead`], which has one too,
//! and set the page's mark of use when it is not set. Nothing else is written: the cache behind a
//! file is borrowed, never counted.

use std::sync::atomic::Ordering;

use umemcg_arena::{Frame, FrameFlags as Flag, FrameId, FrameRecord, ReadStamp, Segment};
use umemcg_base::{PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64};

use super::File;
use crate::index::Entry;
use crate::pinned::PinnedPages;
use crate::readahead::Readahead;

/// A page found without a pin: data read from it is valid if its record validates afterwards.
struct OptimisticRead<'a> {
    frame: Frame<'a>,
    read_begin: ReadStamp,
    /// The page's marks.
    flags: Flag,
}

const LINE: usize = 64;
const _: () = assert!(
    align_of::<FrameRecord>() >= LINE && align_of::<Readahead>() >= LINE && align_of::<File>() >= LINE,
    "what a hit writes, and what it reads beside others' writes, has lines of its own"
);

impl File {
    /// Reads without ever sleeping, if every page is cached; the pages stay pinned while the result
    /// lives. Clipped at the end of the file. Declines once at each mark of read-ahead, so that
    /// [`read`](Self::read) or [`step_read`](Self::step_read) begins the next window.
    #[inline]
    pub fn try_read(&self, offset: u64, len: usize, readahead: &Readahead) -> Option<PinnedPages<'_>> {
        let end = self.len().min(offset.saturating_add(len as u64));
        if offset >= end {
            return Some(PinnedPages::new(&self.cache, 0));
        }
        let (first, last) = (offset >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
        if readahead.is_due(last) {
            return None;
        }
        let mut pinned = PinnedPages::new(&self.cache, (last - first + 1) as usize);
        for page in first..=last {
            let frame = self.pin_uptodate(page)?;
            pinned.push(segment_of(page, offset, end, frame));
        }
        let (again, mut nr_fetched) = (readahead.note(last, last + 1), 0);
        for segment in &pinned.segments()[usize::from(again && first == last)..] {
            let record = self.record(segment.frame);
            nr_fetched += u32::from(!mark_accessed(record, record.flags()));
        }
        if nr_fetched > 0 && !self.is_memory() {
            pinned.note_fetched(nr_fetched);
        }
        Some(pinned)
    }

    /// Copies bytes out without ever sleeping, if every page is cached; returns the number of
    /// bytes, fewer than there is room for at the end of the file. On `None` the buffer's contents
    /// are unspecified. Declines as [`try_read`](Self::try_read) does.
    #[inline]
    pub fn try_read_into(&self, offset: u64, into: &mut [u8], readahead: &Readahead) -> Option<usize> {
        let end = self.len().min(offset.saturating_add(into.len() as u64));
        if offset >= end {
            return Some(0);
        }
        let into = &mut into[..(end - offset) as usize];
        let (first, last) = (offset >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
        if readahead.is_due(last) {
            return None;
        }
        let from = (offset % PAGE_SIZE_U64) as usize;
        if first == last {
            let (record, flags) = self.copy_page(first, from, into)?;
            if !readahead.note(first, first + 1) {
                mark_accessed(record, flags);
            }
        } else {
            let (here, rest) = into.split_at_mut(PAGE_SIZE - from);
            let (record, flags) = self.copy_page(first, from, here)?;
            mark_accessed(record, flags);
            for (page, here) in (first + 1..).zip(rest.chunks_mut(PAGE_SIZE)) {
                let (record, flags) = self.copy_page(page, 0, here)?;
                mark_accessed(record, flags);
            }
            readahead.note(last, last + 1);
        }
        Some((end - offset) as usize)
    }

    /// Copies bytes of one page out, if it is there with its contents; returns its record and the
    /// marks it had.
    #[inline]
    fn copy_page(&self, page: u64, from: usize, into: &mut [u8]) -> Option<(&FrameRecord, Flag)> {
        let OptimisticRead { frame, read_begin, flags } = self.begin_optimistic_read(page)?;
        frame.copy_out(from, into);
        frame.record().validate(read_begin).then_some((frame.record(), flags))
    }

    /// Loads an aligned word in one piece without ever sleeping, if its page is cached and the file
    /// reaches so far.
    ///
    /// # Panics
    /// When the offset is not a multiple of eight.
    #[inline]
    pub fn try_load_u64(&self, offset: u64) -> Option<u64> {
        assert!(offset.is_multiple_of(8), "a word at {offset} is not aligned");
        if offset.checked_add(8)? > self.len() {
            return None;
        }
        let page = offset >> PAGE_SHIFT;
        let OptimisticRead { frame, read_begin, flags } = self.begin_optimistic_read(page)?;
        let word = frame.load_u64((offset % PAGE_SIZE_U64) as usize);
        if !frame.record().validate(read_begin) {
            return None;
        }
        mark_accessed(frame.record(), flags);
        Some(word)
    }

    /// Returns whether a frame, pinned or read optimistically, is this file's page.
    #[inline]
    fn is_page(&self, record: &FrameRecord, page: u64) -> bool {
        record.file.load(Ordering::Relaxed) == self.id && record.index.load(Ordering::Relaxed) == page
    }

    /// Starts a read of the page without a pin, if it is there with its contents.
    #[inline]
    fn begin_optimistic_read(&self, page: u64) -> Option<OptimisticRead<'_>> {
        let leaf = self.index.find(page);
        if let Some(read) = self.begin_optimistic_read_in(leaf.guess(page), page) {
            return Some(read);
        }
        match self.index.look_into(leaf, page) {
            Entry::Page(frame) => self.begin_optimistic_read_in(frame, page),
            _ => None,
        }
    }

    #[inline]
    fn begin_optimistic_read_in(&self, frame: FrameId, page: u64) -> Option<OptimisticRead<'_>> {
        let frame = self.arena.find(frame)?;
        let record = frame.record();
        let read_begin = record.read_begin()?;
        let flags = record.flags();
        let is_hit = self.is_page(record, page) && flags.intersects(Flag::UPTODATE);
        is_hit.then_some(OptimisticRead { frame, read_begin, flags })
    }

    /// Pins the frame if it still is this file's page. Its contents may not be there yet.
    #[inline]
    pub(super) fn pin_page(&self, page: u64) -> Option<FrameId> {
        let leaf = self.index.find(page);
        let guess = leaf.guess(page);
        // Checked first: pinning another file's page would write to that file's cache line.
        if self.arena.find(guess).is_some_and(|frame| self.is_page(frame.record(), page))
            && self.pin_frame(guess, page)
        {
            return Some(guess);
        }
        let Entry::Page(frame) = self.index.look_into(leaf, page) else { return None };
        self.pin_frame(frame, page).then_some(frame)
    }

    #[inline]
    fn pin_frame(&self, frame: FrameId, page: u64) -> bool {
        let record = self.record(frame);
        if !record.try_pin() {
            return false;
        }
        if self.is_page(record, page) {
            return true;
        }
        self.cache.reclaimer().unpin(frame);
        false
    }

    /// Pins the page if it is there with its contents.
    #[inline]
    pub(super) fn pin_uptodate(&self, page: u64) -> Option<FrameId> {
        let frame = self.pin_page(page)?;
        if self.record(frame).test(Flag::UPTODATE) {
            return Some(frame);
        }
        self.cache.reclaimer().unpin(frame);
        None
    }
}

/// Returns the part of a page covered by `offset..end`.
#[inline]
pub(super) fn segment_of(page: u64, offset: u64, end: u64, frame: FrameId) -> Segment {
    let start = page << PAGE_SHIFT;
    let from = offset.saturating_sub(start);
    let to = (end - start).min(PAGE_SIZE as u64);
    Segment { frame, offset: from as u16, len: (to - from) as u16 }
}

/// Marks the first use of a page, then the second: reclaim keeps pages used twice. `flags` are the
/// page's marks, as the caller has just read them. Returns whether it had been used before.
#[doc(alias = "mark_page_accessed")]
#[inline]
pub(super) fn mark_accessed(record: &FrameRecord, flags: Flag) -> bool {
    if flags.contains(Flag::ACCESSED | Flag::REFERENCED) {
        return true;
    }
    let was_used = flags.intersects(Flag::ACCESSED);
    record.mark(if was_used { Flag::REFERENCED } else { Flag::ACCESSED });
    was_used
}
