//! Writes: find or make the pages, copy, mark dirty, grow the length. What a write touches is in the cache when it
//! returns; the flusher takes it from there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId, Segment};
use umemcg_base::{PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, RankedReadGuard, assert_no_locks_held, pages_for};
use umemcg_group::{Group, StatItem};
use umemcg_reclaim::LruKind;

use crate::file::{FILE_LEN_MAX, File, FileError, owner_of};
use crate::hit::mark_accessed;
use crate::index::Entry;
use crate::read::NewPages;

/// Pages handled in one round of charge, insertion and copy.
const WRITE_BATCH_PAGES: u64 = 256;

/// A page that a write copies into: pinned, and locked by us when it is new.
struct Target {
    page: u64,
    frame: FrameId,
    /// We inserted it: nobody else has seen its contents.
    new: bool,
    /// It goes to the active list, by refault distance.
    active: bool,
}

/// How far a round came.
enum Round {
    Written(usize),
    NoRoom,
    /// A page must be read first, or is locked: needs sleep.
    MustSleep,
}

impl File {
    /// Writes `data` at `offset`, growing the file when needed; pages that are not there are charged to `group`. Returns
    /// how much was accepted, always all of it. May sleep for memory and for the store; no lock may be held.
    ///
    /// # Errors
    /// [`FileError::TooLarge`]; [`FileError::Store`] when a page that is partly overwritten cannot be read, or when
    /// the write goes uncached and the store refuses it. What was accepted before the error stays.
    pub fn write(self: &Arc<Self>, group: &Arc<Group>, offset: u64, data: &[u8]) -> Result<usize, FileError> {
        assert_no_locks_held("a write");
        check_range(offset, data.len())?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let batch = batch_len(at, data.len() - done);
            match self.write_round(group, at, &data[done..done + batch], true) {
                Ok(Round::Written(nr)) => done += nr,
                Ok(Round::NoRoom) if self.is_memory() => match done {
                    0 => return Err(FileError::NoSpace),
                    _ => break,
                },
                Ok(Round::NoRoom | Round::MustSleep) => {
                    let one = (PAGE_SIZE - (at as usize & (PAGE_SIZE - 1))).min(batch);
                    self.write_uncached(group, at, &data[done..done + one])?;
                    done += one;
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes at the end of the file. Returns where, and how much.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn append(self: &Arc<Self>, group: &Arc<Group>, data: &[u8]) -> Result<(u64, usize), FileError> {
        // Claim the range first: appends of others go behind it. A reader sees zeroes there until the copy is done.
        let offset = {
            let _content = self.content.read();
            let _size = self.size.lock();
            let offset = self.len();
            check_range(offset, data.len())?;
            self.publish_len(offset + data.len() as u64);
            offset
        };
        self.write(group, offset, data).map(|nr| (offset, nr))
    }

    /// Writes only if that needs no sleep: every page is there or can be had at once, nothing must be read.
    pub fn try_write(self: &Arc<Self>, group: &Arc<Group>, offset: u64, data: &[u8]) -> Option<usize> {
        if check_range(offset, data.len()).is_err() || batch_len(offset, data.len()) < data.len() {
            return None;
        }
        match self.write_round(group, offset, data, false) {
            Ok(Round::Written(nr)) if nr == data.len() => Some(nr),
            _ => None,
        }
    }

    /// One round: at most [`WRITE_BATCH_PAGES`] pages.
    fn write_round(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        data: &[u8],
        may_sleep: bool,
    ) -> Result<Round, FileError> {
        if data.is_empty() {
            return Ok(Round::Written(0));
        }
        let first = offset >> PAGE_SHIFT;
        let nr_pages = pages_for(offset, data.len() as u64);
        let missing =
            (first..first + nr_pages).filter(|&p| !matches!(self.index.lookup(p), Entry::Page(_))).count();
        let mut new = None;
        let mut covered = nr_pages;
        if missing > 0 {
            let Some(pages) = self.new_pages(group, first, missing as u64, 1, may_sleep) else {
                return Ok(Round::NoRoom);
            };
            if (pages.frames.len() as u64) < missing as u64 {
                // Room for some only: as far as they reach.
                covered = self.reach(first, nr_pages, pages.frames.len() as u64);
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
            return Ok(Round::MustSleep);
        };
        let end = (offset + data.len() as u64).min((first + covered) << PAGE_SHIFT);
        let targets = self.targets(group, first, first + covered, new);
        let outcome = self.copy_in(offset, &data[..(end - offset) as usize], &targets, may_sleep, &content);
        drop(content);
        match outcome {
            Ok(0) if !may_sleep => Ok(Round::MustSleep),
            // Evicted between look-up and insertion, so that nothing could be placed: try again from the top.
            Ok(nr) => Ok(Round::Written(nr)),
            Err(error) => Err(error),
        }
    }

    /// How many pages from `first` on can be had with `nr_frames` new ones.
    fn reach(&self, first: u64, nr_pages: u64, nr_frames: u64) -> u64 {
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

    /// Pins the pages `first..end`, inserting new locked ones where they are missing. May be shorter than asked when a
    /// page was evicted since it was counted.
    fn targets(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        end: u64,
        mut new: Option<NewPages>,
    ) -> Vec<Target> {
        let mut targets = Vec::with_capacity((end - first) as usize);
        let mut inserted = 0;
        let mut page = first;
        // Pages that are there are pinned without the lock; the lock is taken once, for the first that is missing.
        while page < end
            && let Some(frame) = self.pin_page(page)
        {
            targets.push(Target { page, frame, new: false, active: false });
            page += 1;
        }
        if page < end {
            self.fetch_records(new.as_ref().map_or(&[], |new| &new.frames));
            let index = self.index.lock();
            while page < end {
                if let Some(frame) = self.pin_page(page) {
                    targets.push(Target { page, frame, new: false, active: false });
                    page += 1;
                    continue;
                }
                let Some(pages) = &mut new else { break };
                let owner = pages.charge.owner();
                let place = |page, frame, shadow| {
                    self.adopt(frame, page, owner, 2);
                    inserted += 1;
                    let active = self.judge_refault(shadow, group, frame);
                    targets.push(Target { page, frame, new: true, active });
                };
                let Some(stop) = index.insert_run(page..end, &mut pages.frames, &mut pages.nodes, place)
                else {
                    unreachable!("the reserve was made for the largest case")
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

    /// Copies `data` into the targets, marks them dirty, unlocks and unpins all of them. Returns bytes copied, from the
    /// start of `data` on.
    fn copy_in(
        self: &Arc<Self>,
        offset: u64,
        data: &[u8],
        targets: &[Target],
        may_sleep: bool,
        _content: &RankedReadGuard<'_, ()>,
    ) -> Result<usize, FileError> {
        let arena = self.cache.arena();
        let end = offset + data.len() as u64;
        let mut dirtied = Vec::with_capacity(targets.len());
        let mut done = 0;
        let mut error = None;
        for target in targets {
            let start = target.page << PAGE_SHIFT;
            let from = offset.max(start);
            let to = end.min(start + PAGE_SIZE_U64);
            let whole = from == start && (to == start + PAGE_SIZE_U64 || to >= self.len());
            let record = self.record(target.frame);
            if target.new {
                if !whole {
                    match self.prepare_partial(target, may_sleep) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(failure) => {
                            error = Some(failure);
                            break;
                        }
                    }
                } else if to < start + PAGE_SIZE_U64 {
                    arena.zero(target.frame, (to - start) as usize, (start + PAGE_SIZE_U64 - to) as usize);
                }
            } else if !record.test(Flag::UPTODATE) {
                if !may_sleep {
                    break;
                }
                self.cache.waiters().wait_unlocked(arena, target.frame);
                if !record.test(Flag::UPTODATE) {
                    break;
                }
            }
            if record.file.load(Ordering::Relaxed) != self.id {
                break;
            }
            arena.copy_in(target.frame, (from - start) as usize, &data[done..done + (to - from) as usize]);
            if target.new {
                record.mark(Flag::ACCESSED);
                record.set(Flag::UPTODATE);
            } else {
                mark_accessed(record, record.flags());
            }
            dirtied.push((target.page, target.frame));
            done += (to - from) as usize;
        }
        // Longer first: a flusher writes a dirty page only as far as the file reaches, and calls it written.
        if done > 0 {
            self.grow(offset + done as u64);
        }
        self.mark_dirty(&dirtied);
        self.release_targets(targets, dirtied.len());
        match error {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// A new page of which only a part is written needs its other contents. False when that means I/O and we may not
    /// sleep.
    fn prepare_partial(&self, target: &Target, may_sleep: bool) -> Result<bool, FileError> {
        let arena = self.cache.arena();
        let start = target.page << PAGE_SHIFT;
        let mut read = 0;
        if start < self.store_len.load(Ordering::Relaxed).min(self.len()) {
            if !may_sleep {
                return Ok(false);
            }
            let segment = Segment { frame: target.frame, offset: 0, len: PAGE_SIZE as u16 };
            read = self.store.read_at(arena, &[segment], start)?;
        }
        arena.zero(target.frame, read, PAGE_SIZE - read);
        Ok(true)
    }

    /// Puts new pages on the lists, unlocks them, drops all pins; pages that were not written (`targets[written..]`) and are
    /// new leave the file again.
    fn release_targets(&self, targets: &[Target], written: usize) {
        let reclaimer = self.cache.reclaimer();
        let mut lists: [Vec<FrameId>; 2] = [Vec::new(), Vec::new()];
        for target in &targets[..written] {
            if target.new {
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
                if i >= written {
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

    /// The file is at least `end` bytes long now.
    pub(crate) fn grow(&self, end: u64) {
        if end > self.len() {
            let _size = self.size.lock();
            if end > self.len() {
                self.publish_len(end);
            }
        }
    }

    /// Writes straight to the store: `group` has no room for one page. Excludes everything else on this file, because
    /// the page is in nobody's cache meanwhile.
    fn write_uncached(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        data: &[u8],
    ) -> Result<(), FileError> {
        let _content = self.content.write();
        let page = offset >> PAGE_SHIFT;
        let in_page = offset as usize & (PAGE_SIZE - 1);
        if let Some(frame) = self.pin_uptodate(page) {
            // It came back meanwhile.
            self.cache.arena().copy_in(frame, in_page, data);
            self.mark_dirty(&[(page, frame)]);
            self.grow(offset + data.len() as u64);
            self.cache.reclaimer().unpin(frame);
            return Ok(());
        }
        group.stat_add(StatItem::UncachedIo, 1);
        let frames = self.cache.reserve().take(1);
        self.cache.arena().copy_in(frames[0], in_page, data);
        let segment = Segment { frame: frames[0], offset: in_page as u16, len: data.len() as u16 };
        let result = self.write_fully(&[segment], offset);
        self.cache.reserve().give(frames);
        result?;
        self.store_len.fetch_max(offset + data.len() as u64, Ordering::Relaxed);
        self.grow(offset + data.len() as u64);
        Ok(())
    }
}

fn check_range(offset: u64, len: usize) -> Result<(), FileError> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= FILE_LEN_MAX => Ok(()),
        _ => Err(FileError::TooLarge),
    }
}

/// Bytes of a round: up to the end of the batch of pages that `offset` starts in.
fn batch_len(offset: u64, len: usize) -> usize {
    let room = WRITE_BATCH_PAGES * PAGE_SIZE_U64 - (offset & (PAGE_SIZE_U64 - 1));
    len.min(room as usize)
}
