//! Pages handed over: another cache above this one has them now, and keeps them for the readers of
//! both.

use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::{PAGE_SHIFT, pages_for};

use super::File;
use crate::index::{Entry, LockedIndex};

/// Flags that keep a page here: it is not durable, or is being filled.
const KEPT: Flag = Flag::from_bits(
    Flag::DIRTY.bits() | Flag::WRITEBACK.bits() | Flag::UNSTABLE.bits() | Flag::LOCKED.bits(),
);

impl File {
    /// Sets whether another cache keeps the pages read and written here. If so, this cache frees
    /// them as soon as they are durable. The last page of the file stays: the next append needs the
    /// rest of it.
    pub fn set_kept_above(&self, is_kept_above: bool) {
        self.is_kept_above.store(is_kept_above, Ordering::Relaxed);
    }

    /// Returns whether another cache keeps the pages read and written here.
    pub fn is_kept_above(&self) -> bool {
        self.is_kept_above.load(Ordering::Relaxed)
    }

    /// Frees newly durable pages, if another cache has them.
    pub(super) fn give_up_durable(&self, pages: &[(u64, FrameId)]) {
        if !self.is_kept_above() {
            return;
        }
        let last = self.len().saturating_sub(1) >> PAGE_SHIFT;
        for run in pages.chunk_by(|a, b| a.0 + 1 == b.0) {
            let end = (run[0].0 + run.len() as u64).min(last);
            self.give_up_clean(run[0].0 << PAGE_SHIFT, end.saturating_sub(run[0].0) << PAGE_SHIFT);
        }
    }

    /// Notes refaults in the cache above, which has counted them.
    pub fn note_refaults(&self, nr: u64) {
        self.fetch_counts.note_refaults(nr);
    }

    /// Notes that the cache above drops outdated pages: to fetch them again is no refault.
    pub fn note_dropped_above(&self) {
        self.fetch_counts.begin_anew();
    }

    /// Frees the clean pages of `len` bytes from `offset` on with no other user. Returns the number
    /// of pages freed. They leave no shadow: the cache above may give them back without a read.
    /// Never sleeps; no lock may be held.
    pub fn give_up_clean(&self, offset: u64, len: u64) -> u64 {
        if self.is_memory() || len == 0 {
            return 0;
        }
        let first = offset >> PAGE_SHIFT;
        let mut frozen = Vec::new();
        {
            let index = self.index.lock();
            for page in first..first + pages_for(offset, len) {
                if let Entry::Page(frame) = index.get(page)
                    && self.freeze_clean(&index, page, frame)
                {
                    frozen.push(frame);
                }
            }
        }
        self.cache.reclaimer().free_frozen(&frozen);
        frozen.len() as u64
    }

    /// Takes a page out of the file if it is clean and has the base reference alone.
    fn freeze_clean(&self, index: &LockedIndex<'_>, page: u64, frame: FrameId) -> bool {
        let record = self.record(frame);
        // Checked before the freeze, so that a reader seldom meets a page frozen for nothing.
        if record.test(KEPT) || !record.freeze_from(1) {
            return false;
        }
        // A writer marks the page dirty before it drops its pin, so this look is the last word.
        if record.test(KEPT) {
            record.unfreeze_to(1);
            return false;
        }
        index.remove(page);
        record.file.store(0, Ordering::Relaxed);
        true
    }
}
