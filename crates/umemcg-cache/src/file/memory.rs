//! Files that live in the pool alone: no store is behind them, and a missing page is a hole and
//! reads as zeroes.
//!
//! Their pages are on no list, so reclaim never meets them; they are counted as `shmem` and as
//! unevictable, never as dirty, and are gone when they are cut off, punched out, or when the file
//! is dropped. A [`PageQuota`](crate::PageQuota) bounds them beside the groups: a write refused by
//! either fails with [`FileError::NoSpace`] and does not exceed a limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::{PAGE_SHIFT, PAGE_SIZE, PAGE_SIZE_U64, assert_no_locks_held};
use umemcg_group::Group;
use umemcg_reclaim::ChargeEffort;

use super::new_pages::NewPages;
use super::{File, FileError, owner_of};
use crate::index::Entry;
use crate::store::FILE_LEN_MAX;

/// Pages made in one batch of an allocation.
const BATCH_PAGES: u64 = 256;

/// Marks kept by a page that moves to a new frame.
const CARRIED: Flag = Flag::from_bits(
    Flag::UPTODATE.bits() | Flag::ACCESSED.bits() | Flag::REFERENCED.bits() | Flag::UNEVICTABLE.bits(),
);

impl File {
    /// Returns whether it lives in the pool alone.
    #[inline]
    pub fn is_memory(&self) -> bool {
        self.quota.is_some()
    }

    /// Returns the zero page for a hole, pinned; `None` when the page is there after all.
    pub(super) fn pin_hole(&self, page: u64) -> Option<FrameId> {
        if let Entry::Page(_) = self.index.lock().get(page) {
            return None;
        }
        let frame = self.cache.zero_page()?;
        self.record(frame).try_pin().then_some(frame)
    }

    /// Takes quota for new pages, and frees the pages beyond it. `None` when it allows none.
    pub(super) fn within_quota<'f>(&self, mut new: NewPages<'f>) -> Option<NewPages<'f>> {
        let Some(quota) = &self.quota else { return Some(new) };
        let nr_wanted = new.frames.len() as u64;
        let nr = quota.take_up_to(nr_wanted);
        let excess = new.frames.split_off(nr as usize);
        if !excess.is_empty() {
            self.cache.arena().free(&excess);
            drop(new.charge.split((nr_wanted - nr) * PAGE_SIZE_U64));
        }
        (nr > 0).then_some(new)
    }

    /// Makes pages for the holes of a byte range, charged to `group`, and with `grow` extends the
    /// file to the end of the range. Existing pages stay. First checks the room for the whole
    /// range, so a refusal changes nothing. A part stays allocated only if others take the room
    /// meanwhile.
    ///
    /// # Errors
    /// [`FileError::NoSpace`], [`FileError::TooLarge`].
    pub fn allocate_memory(
        self: &Arc<Self>,
        group: &Arc<Group>,
        offset: u64,
        len: u64,
        grow: bool,
    ) -> Result<(), FileError> {
        assert_no_locks_held("an allocation");
        let end = offset.checked_add(len).filter(|&end| end <= FILE_LEN_MAX).ok_or(FileError::TooLarge)?;
        let (first, end_page) = (offset >> PAGE_SHIFT, end.div_ceil(PAGE_SIZE_U64));
        let quota = self.quota.as_ref().ok_or(FileError::NoSpace)?;
        let _growth = grow.then(|| self.growth.lock());
        let mut nr_missing = self.nr_missing(first, end_page);
        let bytes = nr_missing.checked_mul(PAGE_SIZE_U64).ok_or(FileError::NoSpace)?;
        let charge = self.cache.reclaimer().charge(group, bytes, ChargeEffort::Full);
        let mut charge = charge.map_err(|_| FileError::NoSpace)?;
        let nr_free = quota.take_up_to(nr_missing);
        quota.give(nr_free);
        if nr_free < nr_missing {
            return Err(FileError::NoSpace);
        }
        let mut page = first;
        loop {
            page = self.next_missing(page, end_page);
            if page >= end_page {
                break;
            }
            let batch_end = end_page.min(page + BATCH_PAGES);
            // None if others were faster.
            let wanted = self.nr_missing(page, batch_end);
            if wanted == 0 {
                continue;
            }
            // Gives up their share of the charge made above, so that they can be charged.
            let share = wanted.min(nr_missing);
            nr_missing -= share;
            drop(charge.split(share * PAGE_SIZE_U64));
            let new = self.new_pages(group, page, wanted, wanted, true).ok_or(FileError::NoSpace)?;
            self.insert_zeroed(page, batch_end, new);
        }
        if grow {
            let _content = self.content.read();
            self.grow(end);
        }
        Ok(())
    }

    /// Puts zeroed pages where `page..end` has holes, as far as they reach.
    fn insert_zeroed(self: &Arc<Self>, page: u64, end: u64, mut new: NewPages<'_>) {
        let arena = self.cache.arena();
        for &frame in &new.frames {
            arena.zero(frame, 0, PAGE_SIZE);
        }
        let mut inserted = Vec::with_capacity(new.frames.len());
        let content = self.content.read();
        {
            let index = self.index.lock();
            let (mut at, owner) = (page, new.charge.owner());
            while at < end && !new.frames.is_empty() {
                let stop = index.insert_run(at..end, &mut new.frames, &mut new.nodes, |page, frame, _| {
                    self.adopt(frame, page, owner, 2);
                    self.record(frame).set(Flag::UPTODATE);
                    inserted.push(frame);
                });
                let Some(stop) = stop else { break };
                at = stop + 1;
            }
        }
        if let Some(&first) = inserted.first() {
            self.cache.reclaimer().count_unevictable(owner_of(self.record(first)), &inserted);
        }
        self.give_back(new, inserted.len() as u64);
        for frame in inserted {
            self.cache.waiters().unlock(arena, frame);
            self.cache.reclaimer().unpin(frame);
        }
        drop(content);
    }

    /// Returns the number of holes in `first..end`, in pages.
    fn nr_missing(&self, first: u64, end: u64) -> u64 {
        let index = self.index.lock();
        let (mut nr_there, mut from) = (0, first);
        while let Some((page, _)) = index.next_occupied(from, end) {
            nr_there += 1;
            from = page + 1;
        }
        end - first - nr_there
    }

    /// Returns the first hole of `from..end`, or `end`.
    fn next_missing(&self, from: u64, end: u64) -> u64 {
        let index = self.index.lock();
        let mut at = from;
        while at < end && index.next_occupied(at, end).is_some_and(|(page, _)| page == at) {
            at += 1;
        }
        at
    }

    /// Returns the offset of the next byte of data at or after `offset`; none when only a hole
    /// follows.
    pub fn seek_data(&self, offset: u64) -> Option<u64> {
        let len = self.len();
        let (first, end) = (offset >> PAGE_SHIFT, len.div_ceil(PAGE_SIZE_U64));
        let (page, _) = self.index.lock().next_occupied(first, end)?;
        Some((page << PAGE_SHIFT).max(offset)).filter(|&found| found < len)
    }

    /// Returns the offset of the next hole at or after `offset`; the end of the file is one.
    pub fn seek_hole(&self, offset: u64) -> u64 {
        let len = self.len();
        let page = self.next_missing(offset >> PAGE_SHIFT, len.div_ceil(PAGE_SIZE_U64));
        (page << PAGE_SHIFT).max(offset).min(len)
    }

    /// Moves the page in `old` to the frozen frame `new`. Returns whether it did; `old` is frozen
    /// then.
    pub(crate) fn move_page(&self, old: FrameId, new: FrameId) -> bool {
        let _content = self.content_alone();
        let index = self.index.lock();
        let (record, to) = (self.record(old), self.record(new));
        let page = record.index.load(Ordering::Relaxed);
        let is_ours = record.file.load(Ordering::Relaxed) == self.id && index.get(page) == Entry::Page(old);
        // The base reference alone: no reader has it pinned, and from here none can.
        if !is_ours || !record.freeze_from(1) {
            return false;
        }
        debug_assert!(!record.test(Flag::LOCKED), "a page is locked under `content` only");
        self.arena.copy_frame(old, new);
        to.owner.store(record.owner.load(Ordering::Relaxed), Ordering::Relaxed);
        to.file.store(self.id, Ordering::Relaxed);
        to.index.store(page, Ordering::Relaxed);
        to.start_with(Flag::from_bits(record.flags().bits() & CARRIED.bits()));
        index.replace(page, new);
        to.unfreeze_to(1);
        record.file.store(0, Ordering::Relaxed);
        true
    }

    /// Gives back the quota of `nr` pages that leave the file.
    pub(super) fn give_quota(&self, nr: u64) {
        if let Some(quota) = &self.quota {
            quota.give(nr);
        }
    }
}
