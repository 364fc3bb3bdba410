//! Writes: find or make the pages, copy, mark dirty, grow the length. When a write returns, its
//! data is in the cache; the flusher writes it to the store later.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId, Segment};
use umemcg_base::{
    Idle, PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, Rank, RankedReadGuard, Wait, Waiting, assert_may_wait,
    assert_no_locks_held, pages_for,
};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::LruKind;

use super::hit::mark_accessed;
use super::new_pages::NewPages;
use super::{File, FileError, owner_of};
use crate::index::Entry;
use crate::overrun::RequestClaim;
use crate::store::FILE_LEN_MAX;

/// Pages handled in one round of charge, insertion and copy.
const WRITE_BATCH_PAGES: u64 = 256;

/// A page to copy into: pinned, and locked by us when it is new.
struct WriteTarget {
    page: u64,
    frame: FrameId,
    /// We inserted it: no other thread has seen its contents.
    new: bool,
    /// It goes to the active list, by refault distance.
    active: bool,
    /// Its group has no room for it: it goes to the store and leaves the file before it is
    /// unlocked.
    is_overrun: bool,
}

impl WriteTarget {
    /// Returns the target of an existing page.
    fn there(page: u64, frame: FrameId) -> Self {
        Self { page, frame, new: false, active: false, is_overrun: false }
    }

    /// Returns the bytes of `offset..end` in this page.
    fn part_of(&self, offset: u64, end: u64) -> Range<u64> {
        let start = self.page << PAGE_SHIFT;
        offset.max(start)..end.min(start + PAGE_SIZE_U64)
    }
}

/// The result of one round.
enum RoundResult {
    Written(usize),
    NoRoom,
    /// A page must be read first, or is locked: needs sleep.
    MustSleep,
}

impl File {
    /// Writes `data` at `offset`, growing the file when needed; missing pages are charged to
    /// `group`. Returns the number of bytes accepted, less than `data.len()` only if an error
    /// followed. May sleep for memory and for the store; no lock may be held.
    ///
    /// # Errors
    /// [`FileError::TooLarge`]; [`FileError::Store`] when a partly overwritten page cannot be read,
    /// or when the store refuses data without room in the group. Data accepted before the error
    /// stays.
    pub fn write(self: &Arc<Self>, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, FileError> {
        assert_no_locks_held("a write");
        check_range(offset, data.len())?;
        self.check_refusal(group)?;
        let _growth = (offset + data.len() as u64 > self.len()).then(|| self.growth.lock());
        self.write_all(group, offset, data)
    }

    /// Writes at the end of the file. Returns the offset, and the number of bytes accepted.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn append(self: &Arc<Self>, group: &Arc<Group>, data: &[u8]) -> Result<(u64, usize), FileError> {
        assert_no_locks_held("an append");
        self.check_refusal(group)?;
        // Nothing else makes the file longer meanwhile, so a refused append leaves no trace.
        let _growth = self.growth.lock();
        let offset = self.len();
        check_range(offset, data.len())?;
        self.write_all(group, offset, data).map(|nr| (offset, nr))
    }

    /// Writes in rounds. A write that makes the file longer holds `growth`.
    fn write_all(self: &Arc<Self>, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, FileError> {
        let mut done = 0;
        let mut claim = RequestClaim::new(pages_for(offset, data.len() as u64));
        while done < data.len() {
            let at = offset + done as u64;
            let batch = batch_len(at, data.len() - done);
            match self.write_round(group, at, &data[done..done + batch], Some(&mut claim)) {
                Ok(RoundResult::Written(nr)) => done += nr,
                // Everything else is handled by sleeping.
                Ok(RoundResult::NoRoom | RoundResult::MustSleep) if done == 0 => {
                    return Err(FileError::NoSpace);
                }
                Err(error) if done == 0 => return Err(error),
                _ => break,
            }
        }
        Ok(done)
    }

    /// Writes only if that needs no sleep: every page is cached or available immediately, and
    /// nothing must be read.
    pub fn try_write(self: &Arc<Self>, group: &Arc<Group>, offset: u64, data: &[u8]) -> Option<usize> {
        if check_range(offset, data.len()).is_err() || batch_len(offset, data.len()) < data.len() {
            return None;
        }
        // If the store refuses data, a write may have to fail.
        if self.refusal().is_some() {
            return None;
        }
        let grows = offset + data.len() as u64 > self.len();
        let _growth = if grows { Some(self.growth.try_lock()?) } else { None };
        match self.write_round(group, offset, data, None) {
            Ok(RoundResult::Written(nr)) if nr == data.len() => Some(nr),
            _ => None,
        }
    }

    /// Writes one round: at most [`WRITE_BATCH_PAGES`] pages. May sleep when it is given the
    /// request's claim to pages beyond the limit of its group.
    fn write_round(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        data: &[u8],
        mut claim: Option<&mut RequestClaim>,
    ) -> Result<RoundResult, FileError> {
        if data.is_empty() {
            return Ok(RoundResult::Written(0));
        }
        let may_sleep = claim.is_some();
        let first = offset >> PAGE_SHIFT;
        let nr_pages = pages_for(offset, data.len() as u64);
        let is_missing = |&page: &u64| !matches!(self.index.lookup(page), Entry::Page(_));
        let mut missing_pages = (first..first + nr_pages).filter(is_missing);
        let first_missing = missing_pages.next();
        let mut new = None;
        let mut covered = nr_pages;
        if let Some(first_missing) = first_missing {
            let missing = 1 + missing_pages.count() as u64;
            let Some(pages) = self.pages_to_write(group, first_missing, missing, claim.as_deref_mut())?
            else {
                return Ok(RoundResult::NoRoom);
            };
            if (pages.frames.len() as u64) < missing {
                // Room for some only: as far as they reach.
                covered = self.nr_covered(first, nr_pages, pages.frames.len() as u64);
            }
            new = Some(pages);
        }
        let content = if may_sleep {
            self.content.read()
        } else if let Some(content) = self.content.try_read() {
            content
        } else {
            if let Some(new) = new {
                self.give_back(new, 0);
            }
            return Ok(RoundResult::MustSleep);
        };
        let page_locks = Waiting::on(Rank::Page);
        let nr_beyond = new.as_ref().filter(|new| new.is_overrun).map_or(0, |new| new.frames.len() as u64);
        let end = (offset + data.len() as u64).min((first + covered) << PAGE_SHIFT);
        let targets = self.targets(group, first, first + covered, new);
        let data = &data[..(end - offset) as usize];
        let outcome = self.copy_in(group, offset, data, &targets, may_sleep, &content);
        drop(page_locks);
        drop(content);
        if let Some(claim) = claim {
            // They are free again.
            claim.put_back(nr_beyond);
        }
        match outcome {
            Ok(0) if !may_sleep => Ok(RoundResult::MustSleep),
            // Evicted between look-up and insertion, so that nothing could be placed: try again
            // from the top.
            Ok(nr) => Ok(RoundResult::Written(nr)),
            Err(error) => Err(error),
        }
    }

    /// Returns pages for a write with `missing` pages missing from `first` on: fewer if the group
    /// has no room for all of them. If it has room for none, and the caller may sleep, the pages
    /// are beyond its limit; never for a file without a store.
    fn pages_to_write(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        missing: u64,
        claim: Option<&mut RequestClaim>,
    ) -> Result<Option<NewPages<'_>>, FileError> {
        let is_within = claim.as_ref().is_none_or(|claim| !claim.is_made());
        // All of them are requested, so none is refused for the reserve of a group with marks.
        let new_pages = || self.new_pages(group, first, missing, missing, claim.is_some());
        let within = if is_within { new_pages() } else { None };
        match claim {
            Some(claim) if within.is_none() && !self.is_memory() => {
                if is_within {
                    group.stat_add(StatItem::UncachedIo, 1);
                }
                self.pages_beyond_limit(group, first, missing, claim)
            }
            _ => Ok(within),
        }
    }

    /// Returns the number of pages from `first` on covered with `nr_frames` new ones.
    fn nr_covered(&self, first: u64, nr_pages: u64, nr_frames: u64) -> u64 {
        let mut left = nr_frames;
        for i in 0..nr_pages {
            if !matches!(self.index.lookup(first + i), Entry::Page(_)) {
                if left == 0 {
                    return i.max(1);
                }
                left -= 1;
            }
        }
        nr_pages
    }

    /// Pins the pages `first..end`, inserting new locked ones where they are missing. May be
    /// shorter than asked when a page was evicted since it was counted.
    fn targets(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        end: u64,
        mut new: Option<NewPages<'_>>,
    ) -> Vec<WriteTarget> {
        let mut targets = Vec::with_capacity((end - first) as usize);
        let mut inserted = 0;
        let mut page = first;
        // Existing pages are pinned without the lock; the lock is taken once, for the first missing
        // page.
        while page < end
            && let Some(frame) = self.pin_page(page)
        {
            targets.push(WriteTarget::there(page, frame));
            page += 1;
        }
        if page < end {
            self.fetch_records(new.as_ref().map_or(&[], |new| &new.frames));
            let index = self.index.lock();
            while page < end {
                if let Some(frame) = self.pin_page(page) {
                    targets.push(WriteTarget::there(page, frame));
                    page += 1;
                    continue;
                }
                let Some(pages) = &mut new else { break };
                let (owner, is_overrun) = (pages.charge.owner(), pages.is_overrun);
                let place = |page, frame, shadow| {
                    self.adopt(frame, page, owner, 2);
                    inserted += 1;
                    let active = self.is_workingset_refault(shadow, group, frame);
                    targets.push(WriteTarget { page, frame, new: true, active, is_overrun });
                };
                let Some(stop) = index.insert_run(page..end, &mut pages.frames, &mut pages.nodes, place)
                else {
                    break;
                };
                if stop == page {
                    break;
                }
                page = stop;
            }
        }
        if let Some(new) = new {
            self.give_back(new, inserted);
        }
        targets
    }

    /// Copies `data` into the targets, marks them dirty, or puts those beyond the limit into the
    /// store; unlocks and unpins all of them. Returns bytes copied, from the start of `data` on.
    fn copy_in(
        self: &Arc<Self>,
        writer: &Arc<Group>,
        offset: u64,
        data: &[u8],
        targets: &[WriteTarget],
        may_sleep: bool,
        _content: &RankedReadGuard<'_, ()>,
    ) -> Result<usize, FileError> {
        let mut dirtied = Vec::with_capacity(targets.len());
        let (mut at, mut done) = (0, 0);
        let mut outcome = Ok(true);
        while at < targets.len() && matches!(outcome, Ok(true)) {
            let (from, nr) =
                (offset + done as u64, targets[at..].iter().take_while(|t| t.is_overrun).count());
            if nr > 0 {
                let through = &targets[at..at + nr];
                match self.write_through(through, from, &data[done..]) {
                    (len, Ok(())) => done += len,
                    // The bytes accepted by the store are in the file. A retry of the rest is
                    // refused again, and then reported.
                    (len, Err(error)) => {
                        done += len;
                        outcome = Err(error.into());
                    }
                }
                at += nr;
                continue;
            }
            let target = &targets[at];
            let part = target.part_of(from, offset + data.len() as u64);
            let bytes = &data[done..done + (part.end - part.start) as usize];
            outcome = self.copy_into(target, part, bytes, may_sleep);
            if matches!(outcome, Ok(true)) {
                dirtied.push((target.page, target.frame));
                done += bytes.len();
                at += 1;
            }
        }
        // Longer first: a flusher writes a dirty page only as far as the file reaches, and calls it
        // written.
        if done > 0 {
            self.grow(offset + done as u64);
        }
        self.note_foreign(writer, &self.mark_dirty(&dirtied));
        if self.sequence.note(offset, done as u64) {
            self.start_writeback();
        }
        self.release_targets(targets, at);
        match outcome {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Copies bytes into one page. Returns `false` if the page has left the file, or needs a wait
    /// by a caller that may not sleep.
    fn copy_into(
        &self,
        target: &WriteTarget,
        part: Range<u64>,
        bytes: &[u8],
        may_sleep: bool,
    ) -> Result<bool, FileError> {
        let arena = self.cache.arena();
        let (start, record) = (target.page << PAGE_SHIFT, self.record(target.frame));
        let page_end = start + PAGE_SIZE_U64;
        let is_whole = part.start == start && (part.end == page_end || part.end >= self.len());
        if target.new {
            if !is_whole {
                if !self.prepare_partial(target, may_sleep)? {
                    return Ok(false);
                }
            } else if part.end < page_end {
                arena.zero(target.frame, (part.end - start) as usize, (page_end - part.end) as usize);
            }
        } else if !record.test(Flag::UPTODATE) {
            if !may_sleep {
                return Ok(false);
            }
            self.cache.waiters().wait_unlocked(arena, target.frame);
            if !record.test(Flag::UPTODATE) {
                return Ok(false);
            }
        }
        if record.file.load(Ordering::Relaxed) != self.id {
            return Ok(false);
        }
        arena.copy_in(target.frame, (part.start - start) as usize, bytes);
        if target.new {
            record.mark(Flag::ACCESSED);
            record.set(Flag::UPTODATE);
        } else {
            mark_accessed(record, record.flags());
        }
        Ok(true)
    }

    /// Writes bytes to the store through new locked pages beyond the limit of their group. Only the
    /// bytes of `data` go, so the rest of a page need not be known. Returns the number of bytes:
    /// all bytes of `data` in these pages, or fewer and the error.
    fn write_through(
        self: &Arc<Self>,
        through: &[WriteTarget],
        offset: u64,
        data: &[u8],
    ) -> (usize, io::Result<()>) {
        let arena = self.cache.arena();
        let mut segments = Vec::with_capacity(through.len());
        let mut done = 0;
        for target in through {
            let part = target.part_of(offset, offset + data.len() as u64);
            let (from, len) =
                ((part.start - (target.page << PAGE_SHIFT)) as u16, (part.end - part.start) as u16);
            arena.copy_in(target.frame, usize::from(from), &data[done..done + usize::from(len)]);
            segments.push(Segment { frame: target.frame, offset: from, len });
            done += usize::from(len);
        }
        let owner = owner_of(self.record(through[0].frame));
        owner.count(StatItem::PgPgIn, through.len() as i64);
        let (taken, result) = self.write_fully(&segments, offset);
        if taken > 0 {
            self.note_written_through(through.len() as u64, owner.into_raw());
        }
        (taken, result)
    }

    /// Fetches the other contents of a new page to be written in part. Returns `false` if this
    /// needs I/O and the caller may not sleep.
    fn prepare_partial(&self, target: &WriteTarget, may_sleep: bool) -> Result<bool, FileError> {
        let arena = self.cache.arena();
        let start = target.page << PAGE_SHIFT;
        let mut read = 0;
        if start < self.store_len.load(Ordering::Relaxed).min(self.len()) {
            if !may_sleep {
                return Ok(false);
            }
            let segment = Segment { frame: target.frame, offset: 0, len: PAGE_SIZE as u16 };
            assert_may_wait(Rank::StoreIo, "a read of the store");
            let _idle = Idle::begin(Wait::Perhaps);
            read = self.store.read_at(arena, &[segment], start)?;
        }
        arena.zero(target.frame, read, PAGE_SIZE - read);
        Ok(true)
    }

    /// Puts new pages on the lists, unlocks them, drops all pins; new pages not written
    /// (`targets[written..]`) leave the file again, and so do pages beyond the limit.
    fn release_targets(&self, targets: &[WriteTarget], written: usize) {
        let reclaimer = self.cache.reclaimer();
        let mut lists: [Vec<FrameId>; 2] = [Vec::new(), Vec::new()];
        for target in &targets[..written] {
            if target.new && !target.is_overrun {
                lists[usize::from(target.active)].push(target.frame);
            }
        }
        for (list, kind) in lists.iter().zip([LruKind::Inactive, LruKind::Active]) {
            if let (Some(&first), true) = (list.first(), self.is_memory()) {
                reclaimer.count_unevictable(owner_of(self.record(first)), list);
            } else if let Some(&first) = list.first() {
                reclaimer.add_to_lists(owner_of(self.record(first)), list, kind);
            }
        }
        for (i, target) in targets.iter().enumerate() {
            if target.new {
                if i >= written || target.is_overrun {
                    let index = self.index.lock();
                    if self.record(target.frame).file.load(Ordering::Relaxed) == self.id {
                        self.detach(&index, target.page, target.frame);
                    }
                }
                self.cache.waiters().unlock(self.cache.arena(), target.frame);
            }
            reclaimer.unpin(target.frame);
        }
    }

    /// Makes the file at least `end` bytes long. The caller holds `content`.
    pub(super) fn grow(&self, end: u64) {
        // Release: pairs with the Acquire in `len`.
        self.len.fetch_max(end, Ordering::Release);
    }
}

fn check_range(offset: u64, len: usize) -> Result<(), FileError> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= FILE_LEN_MAX => Ok(()),
        _ => Err(FileError::TooLarge),
    }
}

/// Returns the number of bytes of a round: at most to the end of a batch of pages, the first of
/// them the page of `offset`.
fn batch_len(offset: u64, len: usize) -> usize {
    let room = WRITE_BATCH_PAGES * PAGE_SIZE_U64 - (offset & (PAGE_SIZE_U64 - 1));
    len.min(room as usize)
}
