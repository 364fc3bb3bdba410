//! The page cache as a [`PageOwner`]: evicts pages for reclaim.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use umemcg_arena::{FrameFlags as Flag, FrameId, FrameRecord};
use umemcg_group::Group;
use umemcg_reclaim::{Eviction, PageOwner, Shadow};

use super::PageCache;
use crate::file::File;
use crate::index::LockedIndex;

/// Most pages evicted under one hold of a file's index lock: readers and writers of the file wait
/// for it.
const RUN_PAGES_MAX: usize = 32;

/// Evicts the pages of one file at the start of `frames`, under one hold of its index lock. Returns
/// the number of frames handled, at least one.
fn evict_run(
    file: &File,
    frames: &[FrameId],
    shadow: &dyn Fn(FrameId, u64) -> Shadow,
    (fates, nr_evicted): (&mut Vec<Eviction>, &mut u64),
) -> usize {
    let index = file.index.lock();
    let mut nr = 0;
    for &frame in frames.iter().take(RUN_PAGES_MAX) {
        let record = file.arena.record(frame);
        let fate = if record.file.load(Ordering::Relaxed) != file.id {
            if nr > 0 {
                break;
            }
            Eviction::Gone
        } else if evict_one(&index, record, shadow(frame, *nr_evicted)) {
            *nr_evicted += 1;
            Eviction::Evicted
        } else {
            Eviction::Busy
        };
        fates.push(fate);
        nr += 1;
    }
    nr
}

/// Takes a page out of its file's index, if it is not in use and clean.
fn evict_one(index: &LockedIndex<'_>, record: &FrameRecord, shadow: Shadow) -> bool {
    // Only our pin and the base reference; once frozen, no reader can pin it.
    if record.test(Flag::LOCKED) || !record.freeze_from(2) {
        return false;
    }
    // A writer marks the page dirty before it drops its pin, so this look is the last word.
    if record.test(Flag::DIRTY | Flag::WRITEBACK | Flag::UNSTABLE | Flag::LOCKED) {
        record.unfreeze_to(2);
        return false;
    }
    index.leave_shadow(record.index.load(Ordering::Relaxed), shadow);
    record.file.store(0, Ordering::Relaxed);
    true
}

impl PageOwner for PageCache {
    fn evict(&self, frames: &[FrameId], shadow: &dyn Fn(FrameId, u64) -> Shadow, fates: &mut Vec<Eviction>) {
        let (mut left, mut nr_evicted) = (frames, 0);
        while let Some(&first) = left.first() {
            let id = self.arena().record(first).file.load(Ordering::Relaxed);
            let (fate, nr) = match self.file(id).filter(|_| id != 0) {
                // Frames come in the order of their reads or writes.
                Some(file) => (None, evict_run(&file, left, shadow, (fates, &mut nr_evicted))),
                None if id == 0 => (Some(Eviction::Gone), 1),
                None => (Some(Eviction::Busy), 1),
            };
            fates.extend(fate);
            left = &left[nr..];
        }
    }

    fn start_writeback(&self, group: &Arc<Group>) {
        self.core().flush_group(group);
    }

    fn wait_for_writeback(&self, timeout: Duration) -> bool {
        self.core().writeback().wait_for_progress(timeout)
    }

    fn writeback_progress(&self) -> u64 {
        self.core().writeback().nr_progress()
    }
}
