//! Write-back of one file: dirty pages go out in long vectored writes, become unstable, and are
//! clean once the store has confirmed them.
//!
//! 1. Under `content` shared and the index lock, a run of contiguous dirty pages becomes *under
//!    write-back*.
//! 2. It is written. On success the pages are *unstable*; on error they are dirty again and the
//!    error is noted.
//! 3. The store is asked to make the range durable. On success the unstable pages are clean; on
//!    error they are dirty again, so that data dropped by the store is not lost.
//!
//! A page may be changed meanwhile: it then becomes dirty again, and is written once more.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId, Segment};
use umemcg_base::{
    ErrorCursor, Idle, PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, Rank, Wait, assert_may_wait,
    assert_no_locks_held,
};
use umemcg_group::StatItem;

use super::{File, FileError, PAGES_END};
use crate::dirty::dirty_file::TurnWritten;
use crate::flush_pace::FlushPace;
use crate::index::{Entry, Mark};

/// The guarantee of a flush when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The data is durable as far as the store can say without committing metadata.
    Range,
    /// The data is durable.
    Data,
    /// Data and metadata are durable.
    Full,
}

/// A flush ends after this many refused runs; after fewer it continues with the next run.
const NR_FAILED_RUNS_MAX: u32 = 8;

/// Returns the runs of adjacent pages in leaves. A leaf is given by its first page and a mask of
/// pages.
fn runs_of(leaves: &[(u64, u64)]) -> impl Iterator<Item = Range<u64>> {
    let mut pages = leaves.iter().flat_map(|&(first, mask)| runs_of_mask(first, mask)).peekable();
    std::iter::from_fn(move || {
        let mut run = pages.next()?;
        while let Some(next) = pages.next_if(|next| next.start == run.end) {
            run.end = next.end;
        }
        Some(run)
    })
}

/// Runs of set bits, as pages from `first` on.
fn runs_of_mask(first: u64, mut mask: u64) -> impl Iterator<Item = Range<u64>> {
    std::iter::from_fn(move || {
        let start = mask.trailing_zeros();
        (mask != 0).then(|| {
            let end = start + (mask >> start).trailing_ones();
            mask &= u64::MAX.checked_shl(end).unwrap_or(0);
            first + u64::from(start)..first + u64::from(end)
        })
    })
}

/// A run refused by the store.
struct FailedRun {
    /// The page after it.
    end: u64,
    error: io::Error,
}

/// Written pages, their confirmation not yet requested.
#[derive(Debug, Default, Clone, Copy)]
struct Piece {
    /// The range around them.
    span: Option<(u64, u64)>,
    nr: u64,
}

impl Piece {
    fn with(self, other: Self) -> Self {
        let span = match (self.span, other.span) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        Self { span, nr: self.nr + other.nr }
    }
}

/// The pages written by a flush so far.
#[derive(Debug, Default)]
struct FlushProgress {
    nr: u64,
    /// The page after the last one.
    next: u64,
    /// The piece being written.
    piece: Piece,
    /// The piece before it, not yet confirmed: the store brings it to the device while the next
    /// piece is copied.
    before: Piece,
    /// The number of refused runs, and the error of the first.
    nr_failed: u32,
    error: Option<io::Error>,
}

/// Pages no longer unstable. They are not pinned, so clean ones may be gone.
#[derive(Debug, Default)]
struct ConfirmedPages {
    /// All of them.
    done: Vec<(u64, FrameId)>,
    /// The pages dirty again.
    dirtied: Vec<(u64, FrameId)>,
}

impl File {
    /// Writes dirty data and returns when it is durable. Reports this and earlier errors to the
    /// open file of `cursor`. Sleeps as long as the store needs.
    ///
    /// # Errors
    /// [`FileError::Writeback`] once per error and open file. Unwritten data stays dirty and is
    /// tried again.
    pub fn fsync(self: &Arc<Self>, data_only: bool, cursor: &ErrorCursor) -> Result<(), FileError> {
        let durability = if data_only { Durability::Data } else { Durability::Full };
        let flushed = self.flush_range(0, PAGES_END, durability);
        self.check_error(cursor)?;
        flushed.map_err(FileError::Store)
    }

    /// Makes the bytes `offset..offset + len` durable, as `O_DSYNC` demands after a write.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    pub fn sync_written(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        data_only: bool,
        cursor: &ErrorCursor,
    ) -> Result<(), FileError> {
        let durability = if data_only { Durability::Data } else { Durability::Full };
        let end = (offset + len).div_ceil(PAGE_SIZE_U64);
        let flushed = self.flush_range(offset >> PAGE_SHIFT, end, durability);
        self.check_error(cursor)?;
        flushed.map_err(FileError::Store)
    }

    /// Writes dirty data and returns when the store has confirmed it, as background write-back
    /// does: without committing metadata, and without reporting an error to any open file.
    ///
    /// # Errors
    /// The store's error. Unwritten data stays dirty and is tried again.
    pub fn write_back(self: &Arc<Self>) -> io::Result<()> {
        self.flush_range(0, PAGES_END, Durability::Range)
    }

    /// Writes dirty data to the store, for a reader of the store. Background write-back has it
    /// confirmed later.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    pub fn write_out(self: &Arc<Self>) -> io::Result<()> {
        assert_no_locks_held("a flush");
        let _flush = self.flush.lock();
        let mut written = FlushProgress::default();
        let dirty = self.index.lock().marked_leaves(0, PAGES_END, Mark::Dirty);
        let mut write = || {
            for run in runs_of(&dirty) {
                self.write_dirty(run.start, run.end, &FlushPace::UNCONFIRMED, &mut written)?;
            }
            written.error.take().map_or(Ok(()), Err)
        };
        let result = write();
        if result.is_err() {
            self.note_flushed(&result);
        }
        result
    }

    /// Asks the flusher to start soon; returns immediately.
    pub fn start_writeback(self: &Arc<Self>) {
        if !self.is_stable() {
            self.writeback.flush_soon(&**self);
        }
    }

    /// Flushes pages `first..end`. May sleep for as long as the store does; no lock may be held.
    pub(crate) fn flush_range(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        durability: Durability,
    ) -> io::Result<()> {
        assert_no_locks_held("a flush");
        let _flush = self.flush.lock();
        self.is_redirtied.store(false, Ordering::Relaxed);
        let mut result = self.flush_once(first, end, durability);
        // A look made pages dirty again after they were written: the store may have confirmed the
        // file without them.
        while result.is_ok() && self.is_redirtied.swap(false, Ordering::Acquire) {
            self.is_flushed_again.store(true, Ordering::Relaxed);
            result = self.flush_once(first, end, durability);
        }
        self.is_flushed_again.store(false, Ordering::Relaxed);
        self.note_flushed(&result);
        result
    }

    fn flush_once(self: &Arc<Self>, first: u64, end: u64, durability: Durability) -> io::Result<()> {
        let mut written = FlushProgress::default();
        // Only pages dirty now, so that a writer cannot keep a sync from ending.
        let dirty = self.index.lock().marked_leaves(first, end, Mark::Dirty);
        for run in runs_of(&dirty) {
            self.write_dirty(run.start, run.end, &FlushPace::WHOLE, &mut written)?;
        }
        if durability == Durability::Range {
            self.confirm_rest(&written, first, end)?;
        } else {
            // By range first: then the store also drops its copy of a long file.
            let before = self.confirm(written.before.span, Durability::Range);
            self.confirm(Some((first, end)), durability).and(before)?;
        }
        written.error.map_or(Ok(()), Err)
    }

    /// Runs one turn of background write-back, at `pace`, from where the last one stopped. More
    /// pages may be dirty when the written pages reach the pace's budget. Less than a run is left
    /// unconfirmed, for [`confirm_written`](Self::confirm_written).
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    pub(super) fn write_turn(self: &Arc<Self>, pace: &FlushPace) -> io::Result<TurnWritten> {
        assert_no_locks_held("a flush");
        let _flush = self.flush.lock();
        let start = self.flush_at.load(Ordering::Relaxed);
        let mut written = FlushProgress::default();
        let result = self
            .write_dirty(start, PAGES_END, pace, &mut written)
            .and_then(|()| self.write_dirty(0, start, pace, &mut written));
        self.flush_at.store(written.next, Ordering::Relaxed);
        let is_unconfirmed = result.is_ok() && written.error.is_none() && written.nr < pace.run as u64;
        if is_unconfirmed {
            return Ok(TurnWritten { pages: written.nr, is_unconfirmed });
        }
        let result = result
            .and_then(|()| self.confirm_rest(&written, 0, PAGES_END))
            .and_then(|()| written.error.map_or(Ok(()), Err));
        self.note_flushed(&result);
        result.map(|()| TurnWritten { pages: written.nr, is_unconfirmed })
    }

    /// Has the store confirm the pages left unconfirmed by turns of background write-back.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    pub(super) fn confirm_written(self: &Arc<Self>) -> io::Result<()> {
        assert_no_locks_held("a flush");
        let _flush = self.flush.lock();
        let result = self.confirm_rest(&FlushProgress::default(), 0, PAGES_END);
        self.note_flushed(&result);
        result
    }

    /// Writes dirty pages of `first..end` in order until there are no more or the pace's budget is
    /// used up. Confirms pieces on the way, so that during a long flush its pages become evictable
    /// and their group's writers may continue. A piece is confirmed after the next one was written,
    /// so that the device always has work. Skips refused runs, and records them.
    fn write_dirty(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        pace: &FlushPace,
        written: &mut FlushProgress,
    ) -> io::Result<()> {
        let mut from = first;
        while written.nr < pace.budget && written.nr_failed < NR_FAILED_RUNS_MAX {
            let (start, nr) = match self.write_run(from, end, pace.run) {
                Ok(Some(run)) => run,
                Ok(None) => break,
                Err(failed) => {
                    from = failed.end;
                    written.next = from;
                    written.nr_failed += 1;
                    written.error.get_or_insert(failed.error);
                    continue;
                }
            };
            from = start + nr;
            written.next = from;
            written.nr += nr;
            written.piece = written.piece.with(Piece { span: Some((start, from)), nr });
            if written.piece.nr >= pace.confirm {
                let before = std::mem::replace(&mut written.before, std::mem::take(&mut written.piece));
                if let Err(error) = self.confirm(before.span, Durability::Range) {
                    // The store may have lost the next piece with it. Confirm that piece, too: no
                    // page may wait for an answer after this flush.
                    let next = std::mem::take(&mut written.before);
                    return self.confirm(next.span, Durability::Range).and(Err(error));
                }
            }
        }
        Ok(())
    }

    /// Confirms the pages not confirmed by `write_dirty`. Earlier flushes may have left unstable
    /// pages anywhere in `first..end`.
    fn confirm_rest(self: &Arc<Self>, written: &FlushProgress, first: u64, end: u64) -> io::Result<()> {
        let rest = written.before.with(written.piece);
        let is_more =
            self.nr_unstable.load(Ordering::Relaxed) > rest.nr || self.nr_through.load(Ordering::Relaxed) > 0;
        self.confirm(if is_more { Some((first, end)) } else { rest.span }, Durability::Range)
    }

    /// Writes the next run of contiguous dirty pages in `from..end`, at most `max`; returns its
    /// first page and length.
    fn write_run(self: &Arc<Self>, from: u64, end: u64, max: usize) -> Result<Option<(u64, u64)>, FailedRun> {
        let content = self.content.read();
        let run = self.begin_run(from, end, max);
        let Some(&(start, _)) = run.first() else { return Ok(None) };
        self.account_run(&run, StatItem::FileWriteback, 1);
        self.account_run(&run, StatItem::FileDirty, -1);
        self.vote_for_owner(&run);
        self.writeback.begin_io();
        let result = self.write_pages(start << PAGE_SHIFT, &run);
        self.writeback.end_io(if result.is_ok() { run.len() as u64 * PAGE_SIZE_U64 } else { 0 });
        self.end_run(&run, result.is_ok());
        for &(_, frame) in &run {
            self.cache.reclaimer().unpin(frame);
        }
        drop(content);
        let nr = run.len() as u64;
        result.map_err(|error| FailedRun { end: start + nr, error })?;
        Ok(Some((start, nr)))
    }

    /// Pins the next run of contiguous dirty pages in `from..end`, at most `max`, and counts them
    /// as under write-back.
    fn begin_run(&self, from: u64, end: u64, max: usize) -> Vec<(u64, FrameId)> {
        let mut run: Vec<(u64, FrameId)> = Vec::new();
        let index = self.index.lock();
        let mut at = from;
        while run.len() < max
            && let Some(page) = index.next_marked(at, end, Mark::Dirty)
        {
            if run.last().is_some_and(|&(last, _)| last + 1 != page) {
                break;
            }
            at = page + 1;
            let Entry::Page(frame) = index.get(page) else { continue };
            if !self.record(frame).try_pin() {
                continue;
            }
            // Acquire in `change`: data copied before the dirty flag was set is seen by the write.
            self.record(frame).change(Flag::DIRTY, Flag::WRITEBACK);
            index.mark(page, Mark::Dirty, false);
            run.push((page, frame));
        }
        self.nr_writeback.fetch_add(run.len() as u64, Ordering::Relaxed);
        // Release: pairs with the loads in `nr_unclean`.
        self.nr_dirty.fetch_sub(run.len() as u64, Ordering::Release);
        run
    }

    /// Ends a written or refused run: its pages are unstable, or dirty again.
    fn end_run(&self, run: &[(u64, FrameId)], is_written: bool) {
        let index = self.index.lock();
        let (mut changed, mut counted_twice) = (Vec::new(), Vec::new());
        for &(page, frame) in run {
            let record = self.record(frame);
            if !is_written {
                if !record.change(Flag::WRITEBACK, Flag::DIRTY).intersects(Flag::DIRTY) {
                    changed.push((page, frame));
                }
            } else if !record.change(Flag::WRITEBACK, Flag::UNSTABLE).intersects(Flag::UNSTABLE) {
                index.mark(page, Mark::Unstable, true);
                changed.push((page, frame));
            } else {
                counted_twice.push((page, frame));
            }
        }
        if is_written {
            self.nr_unstable.fetch_add(changed.len() as u64, Ordering::Relaxed);
            self.account_run(&changed, StatItem::FileUnstable, 1);
        } else {
            self.note_dirty(&index, &changed);
        }
        // Release: pairs with the loads in `nr_unclean`.
        self.nr_writeback.fetch_sub(run.len() as u64, Ordering::Release);
        self.account_run(run, StatItem::FileWriteback, -1);
        // Pages that became dirty again have just been counted a second time, too.
        self.count_unclean_run(&index, if is_written { &counted_twice } else { run }, -1);
    }

    /// Votes for the owner of the file's dirty data with the pages of a run.
    fn vote_for_owner(&self, run: &[(u64, FrameId)]) {
        for (owner, nr) in self.runs_of_owners(run) {
            self.dirty_owner.vote(owner, nr as u64);
        }
    }

    /// Writes pages to the store, clipped at the end of the file.
    fn write_pages(&self, offset: u64, run: &[(u64, FrameId)]) -> io::Result<()> {
        let end = self.len();
        let segments: Vec<Segment> = run
            .iter()
            .map(|&(page, frame)| {
                let left = end.saturating_sub(page << PAGE_SHIFT).min(PAGE_SIZE as u64);
                Segment { frame, offset: 0, len: left as u16 }
            })
            .filter(|segment| segment.len > 0)
            .collect();
        self.write_fully(&segments, offset).1
    }

    /// Writes all segments, even if the store's single writes are short. Returns the number of
    /// bytes accepted by the store, even if it refused the rest.
    pub(super) fn write_fully(&self, segments: &[Segment], offset: u64) -> (usize, io::Result<()>) {
        assert_may_wait(Rank::StoreIo, "a write to the store");
        let _idle = Idle::begin(Wait::Perhaps);
        let arena = self.cache.arena();
        let mut rest = segments.to_vec();
        let mut done = 0;
        while !rest.is_empty() {
            let mut written = match self.store.write_at(arena, &rest, offset + done as u64) {
                Ok(0) => return (done, Err(io::Error::from(io::ErrorKind::WriteZero))),
                Ok(written) => written,
                Err(error) => return (done, Err(error)),
            };
            done += written;
            self.store_len.fetch_max(offset + done as u64, Ordering::Relaxed);
            let whole = rest
                .iter()
                .take_while(|segment| {
                    let fits = usize::from(segment.len) <= written;
                    if fits {
                        written -= usize::from(segment.len);
                    }
                    fits
                })
                .count();
            rest.drain(..whole);
            if written > 0 {
                rest[0].offset += written as u16;
                rest[0].len -= written as u16;
            }
        }
        (done, Ok(()))
    }

    /// Asks the store to make a span of pages durable, and makes its unstable pages clean, or dirty
    /// again.
    fn confirm(self: &Arc<Self>, span: Option<(u64, u64)>, durability: Durability) -> io::Result<()> {
        let Some((first, end)) = span else { return Ok(()) };
        // Acquire: pairs with the Release in `note_written_through`; pages counted here are in the
        // store.
        let nr_through = self.nr_through.load(Ordering::Acquire);
        assert_may_wait(Rank::StoreIo, "a sync of the store");
        self.writeback.begin_io();
        let idle = Idle::begin(Wait::Perhaps);
        let result = match durability {
            Durability::Range => self.store.sync_pages(first, end),
            Durability::Data => self.store.sync(true),
            Durability::Full => self.store.sync(false),
        };
        drop(idle);
        self.writeback.end_io(0);
        if nr_through > 0 && (durability != Durability::Range || (first, end) == (0, PAGES_END)) {
            // Also on failure: there is nothing to write again, and the error is reported.
            self.nr_through.fetch_sub(nr_through, Ordering::Release);
        }
        let ConfirmedPages { done, dirtied } = self.end_unstable(first, end, result.is_ok());
        if !dirtied.is_empty() {
            self.queue_dirty(&dirtied);
        }
        if result.is_ok() {
            self.give_up_durable(&done);
        }
        self.cache.writeback().note_progress();
        result
    }

    /// Makes the unstable pages of a span clean, or dirty again when the store has refused to make
    /// them durable. They count as not durable until reclaim may take them. Meanwhile the locked
    /// index keeps them, not a pin: a thread waiting for durability would otherwise find all these
    /// pages in use.
    fn end_unstable(&self, first: u64, end: u64, is_durable: bool) -> ConfirmedPages {
        let mut confirmed = ConfirmedPages::default();
        let ConfirmedPages { done, dirtied } = &mut confirmed;
        let mut rotate = Vec::new();
        let index = self.index.lock();
        let mut from = first;
        while let Some(page) = index.next_marked(from, end, Mark::Unstable) {
            from = page + 1;
            let Entry::Page(frame) = index.get(page) else { continue };
            let record = self.record(frame);
            index.mark(page, Mark::Unstable, false);
            done.push((page, frame));
            if is_durable {
                record.clear(Flag::UNSTABLE);
                if record.test(Flag::RECLAIM) && !record.test(Flag::DIRTY) {
                    rotate.push(frame);
                }
            } else if !record.change(Flag::UNSTABLE, Flag::DIRTY).intersects(Flag::DIRTY) {
                dirtied.push((page, frame));
            }
        }
        if !dirtied.is_empty() {
            self.note_dirty(&index, dirtied);
        }
        self.cache.reclaimer().rotate_to_tail(&rotate);
        // Release: pairs with the loads in `nr_unclean`.
        self.nr_unstable.fetch_sub(done.len() as u64, Ordering::Release);
        self.account_run(done, StatItem::FileUnstable, -1);
        self.count_unclean_run(&index, done, -1);
        drop(index);
        confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_on_from_leaf_to_leaf() {
        let leaves = [(0, 0b1011), (64, 1 << 63), (128, u64::MAX), (192, 1), (320, 1)];
        let runs: Vec<_> = runs_of(&leaves).collect();
        assert_eq!(runs, [0..2, 3..4, 127..193, 320..321]);
    }
}
