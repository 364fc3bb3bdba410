//! Reads that miss: plan a window, charge it, have it filled, and pin the requested pages.
//!
//! There is one loop for both forms of a read. [`File::read`] waits in it for the store and for
//! pages being filled by others. [`File::step_read`] leaves it instead, where the store begins
//! reads.

use std::sync::Arc;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::{PAGE_SHIFT, PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::hit_counters::count_hits;
use umemcg_group::{Group, StatItem};

use super::hit::{mark_accessed, segment_of};
use super::new_pages::NewPages;
use super::started_read::{ReadPosition, ReadState, ReadStep, ReadWait, StartedRead};
use super::store_fill::StoreFill;
use super::store_fills::FillNumber;
use super::{File, FileError};
use crate::pinned::PinnedPages;
use crate::readahead::Readahead;

/// The state of a page that a read needs.
enum Found {
    /// It is there, pinned; and whether it had been used before, or never was in a store.
    Here(FrameId, bool),
    Missing,
    /// The store has begun to read it for another read.
    BeingFilled(FillNumber),
}

impl File {
    /// Reads `len` bytes at `offset`, clipped at the end of the file, and before a page that the
    /// store fails to read. Missing pages are charged to `group`; a group without room for them
    /// gets at most [`OVERRUN_PAGES_PER_REQUEST`](crate::overrun::OVERRUN_PAGES_PER_REQUEST) of
    /// them, which are not kept. May sleep for memory and for the store; no lock may be held.
    ///
    /// # Errors
    /// [`FileError::Store`] when the store fails to read the first page, [`FileError::NoMemory`]
    /// when the pool has no index node for it.
    pub fn read(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        len: usize,
        readahead: &Readahead,
    ) -> Result<PinnedPages<'_>, FileError> {
        self.read_within(group, (offset, len), readahead, u64::MAX)
    }

    /// Like [`read`](Self::read), but the readahead window ends at page `window_end`, the first
    /// page already in a cache above this one.
    ///
    /// # Errors
    /// As there.
    pub fn read_within(
        self: &Arc<Self>,
        group: &Arc<Group>,
        (offset, len): (u64, usize),
        readahead: &Readahead,
        window_end: u64,
    ) -> Result<PinnedPages<'_>, FileError> {
        assert_no_locks_held("a read");
        let Some(mut state) = self.begin_reading(offset, len) else {
            return Ok(PinnedPages::new(&self.cache, 0));
        };
        state.at.window_end = window_end;
        let wait = self.advance(group, &mut state, readahead, false)?;
        debug_assert!(wait.is_none(), "a read that may wait does so itself");
        self.read_ahead(group, state.at.first_and_last(), readahead);
        Ok(Self::end_reading(group, state, readahead))
    }

    /// Continues a read, as [`read`](Self::read) does it, until it is done or has to wait for a
    /// read begun by its file's store. The first step is always the only one for a store that does
    /// not [begin reads](crate::BackingStore::begins_reads). All steps of a read are of one group.
    /// May sleep for memory; no lock may be held.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    ///
    /// # Panics
    /// When the read was started on another file.
    pub fn step_read(
        self: &Arc<Self>,
        group: &Arc<Group>,
        read: StartedRead,
        readahead: &Readahead,
    ) -> Result<ReadStep<'_>, FileError> {
        assert_no_locks_held("a read");
        let (range, window_end) = ((read.offset(), read.len()), read.window_end());
        let state = match read.into_kept(self) {
            Some(kept) => Some(kept.resume(&self.cache)),
            None => self.begin_reading(range.0, range.1),
        };
        let Some(mut state) = state else {
            return Ok(ReadStep::Done(PinnedPages::new(&self.cache, 0)));
        };
        state.at.window_end = window_end;
        let wait = self.advance(group, &mut state, readahead, self.begins_reads())?;
        if matches!(wait, None | Some(ReadWait::Fill(_) | ReadWait::OtherFill(_))) {
            self.read_ahead(group, state.at.first_and_last(), readahead);
        }
        match wait {
            Some(wait) => Ok(ReadStep::Waits(Box::new(self.waiting_read(range, state, wait)))),
            None => Ok(ReadStep::Done(Self::end_reading(group, state, readahead))),
        }
    }

    /// Returns a read of the range at its first page; `None` when there is nothing to read.
    fn begin_reading(&self, offset: u64, len: usize) -> Option<ReadState<'_>> {
        let end = self.len().min(offset.saturating_add(len as u64));
        let page = offset >> PAGE_SHIFT;
        let at = ReadPosition { offset, end, page, window_end: u64::MAX, nr_missed: 0 };
        (offset < end).then(|| ReadState::new(&self.cache, at))
    }

    /// Pins page after page, to the last page or to the first one not available. If the store is to
    /// begin the reads of missing pages (`by_completion`), returns the wait for them, if any; else
    /// `None`.
    fn advance(
        self: &Arc<Self>,
        group: &Arc<Group>,
        state: &mut ReadState<'_>,
        readahead: &Readahead,
        by_completion: bool,
    ) -> Result<Option<ReadWait>, FileError> {
        let (first, last) = state.at.first_and_last();
        while state.at.page <= last {
            let page = state.at.page;
            if let Some(error) = state.error.take() {
                return if page == first { Err(error.into()) } else { Ok(None) };
            }
            match self.find_filled(page, readahead, by_completion) {
                Found::Here(frame, was_used) => {
                    state.pinned.push(segment_of(page, state.at.offset, state.at.end, frame));
                    state.at.pass(was_used);
                    continue;
                }
                Found::BeingFilled(number) => return Ok(Some(ReadWait::OtherFill(number))),
                Found::Missing => {}
            }
            let begin = || self.cache.begun_reads().try_claim(group, self.store.source_id());
            let begun = match by_completion.then(|| state.begun.take().or_else(begin)) {
                Some(None) => return Ok(Some(ReadWait::BegunReads(Arc::clone(group)))),
                begun => begun.flatten(),
            };
            let within = match state.claim.is_made() {
                false => self.pages_within(group, &state.at, readahead),
                true => None,
            };
            let new = match within {
                Some(new) => new,
                None if by_completion && !state.claim.try_make(self.cache.overrun(), group) => {
                    return Ok(Some(ReadWait::Overrun(Arc::clone(group))));
                }
                None => match self.pages_beyond_limit(group, page, last - page + 1, &mut state.claim)? {
                    Some(new) => new,
                    // The request has used its whole claim.
                    None => return Ok(None),
                },
            };
            let wanted = page..last + 1;
            let Some(begun) = begun else {
                state.take(self.fill(group, new, wanted));
                continue;
            };
            let nr_new = new.frames.len() as u64;
            let begun = (begun, state.turn.take());
            let Some(fill) = StoreFill::begin(self, group, new, wanted, begun) else {
                state.claim.put_back(nr_new);
                return Ok(Some(ReadWait::Alone));
            };
            match fill.try_take() {
                Some(filled) => state.take(filled),
                None => return Ok(Some(ReadWait::Fill(fill))),
            }
        }
        Ok(None)
    }

    /// Returns the pages pinned by a read, and counts hits and misses.
    fn end_reading<'f>(group: &Arc<Group>, state: ReadState<'f>, readahead: &Readahead) -> PinnedPages<'f> {
        let ReadState { at, mut pinned, claim, .. } = state;
        let (first, _) = at.first_and_last();
        pinned.keep_claim(claim.into_inner());
        if at.page > first {
            readahead.note(at.page - 1, at.page);
            if at.nr_missed > 0 {
                group.owner().count(StatItem::CacheMiss, at.nr_missed as i64);
            }
            count_hits(group, at.page - first - at.nr_missed);
        }
        pinned
    }

    /// Pins an existing page, or a hole of a file in memory, once its contents are there. Waits for
    /// a page being filled by a thread; with `by_completion`, not for a page being filled by the
    /// store.
    fn find_filled(&self, page: u64, readahead: &Readahead, by_completion: bool) -> Found {
        loop {
            if let Some(frame) = self.pin_page(page) {
                let record = self.record(frame);
                if record.test(Flag::LOCKED)
                    && let Some(number) = self.store_fills.as_ref().and_then(|fills| fills.of_page(page))
                {
                    readahead.note_wait();
                    if by_completion {
                        self.cache.reclaimer().unpin(frame);
                        return Found::BeingFilled(number);
                    }
                }
                self.cache.waiters().wait_unlocked(self.cache.arena(), frame);
                if record.test(Flag::UPTODATE) {
                    let was_used = mark_accessed(record, record.flags());
                    return Found::Here(frame, was_used || self.is_memory());
                }
                // It has left the file: its fill failed, or it was beyond a limit. Our turn.
                self.cache.reclaimer().unpin(frame);
            } else if self.is_memory() {
                // None if the page has come meanwhile.
                if let Some(frame) = self.pin_hole(page) {
                    return Found::Here(frame, true);
                }
            } else {
                return Found::Missing;
            }
        }
    }

    /// Returns pages for a read whose next page is missing: with read-ahead, or fewer if the group
    /// has no room for all of them. `None` when it has room for none.
    fn pages_within(
        self: &Arc<Self>,
        group: &Arc<Group>,
        at: &ReadPosition,
        readahead: &Readahead,
    ) -> Option<NewPages<'_>> {
        let ((first, last), page) = (at.first_and_last(), at.page);
        let needed = last - page + 1;
        // Only the requested pages: above its `memory.high` a group is slowed in proportion to its
        // charges.
        let is_exact = self.is_read_ahead_above() || self.cache.reclaimer().is_over_high(group);
        let window_max = self.window_max(group, readahead);
        let window = if is_exact { needed } else { readahead.plan(first, (page, needed), window_max) };
        // Up to the last page of the file; beyond it there is nothing to read ahead.
        let file_end = self.len().div_ceil(PAGE_SIZE_U64);
        let window_end = (page + window).min(file_end).min(at.window_end).max(last + 1);
        let new = self.new_pages(group, page, window_end - page, needed, true);
        match &new {
            None => group.stat_add(StatItem::UncachedIo, 1),
            Some(new) if self.reads_ahead() => {
                readahead.begin_window(last, page + new.frames.len() as u64);
            }
            Some(_) => {}
        }
        new
    }
}
