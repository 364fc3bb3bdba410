//! Emptying sparse 2 MiB blocks, so that whole blocks can go back to the operating system and
//! resident memory follows usage down.
//!
//! Pages of files with a store are evicted: clean ones immediately, dirty ones once written. A page
//! of a file in memory has nowhere else to be, so it moves to another frame, with the file's
//! `content` held exclusively: no thread writes, fills, cuts or punches the file meanwhile, and a
//! reader that finds the old frame frozen asks the index again.

use std::sync::atomic::Ordering;

use umemcg_arena::FrameId;

use super::PageCache;

impl PageCache {
    /// Takes up to `max` pages out of sparse blocks, and has the dirty ones among them written for
    /// the next call. Returns how many left. Pages in use and those of protected groups stay. May
    /// sleep; no lock may be held.
    #[doc(alias = "compact_zone")]
    pub fn empty_sparse_blocks(&self, max: usize) -> usize {
        let candidates = self.arena().sparse_candidates(max);
        let outcome = self.reclaimer().evict_sparse(&candidates);
        let mut dirty: Vec<u32> = outcome.dirty.iter().map(|&frame| self.file_of(frame)).collect();
        dirty.dedup();
        for file in dirty.into_iter().filter_map(|id| self.file(id)) {
            file.start_writeback();
        }
        let moved = outcome.unevictable.into_iter().filter(|&frame| self.move_memory_page(frame));
        outcome.nr_evicted + moved.count()
    }

    fn file_of(&self, frame: FrameId) -> u32 {
        self.arena().record(frame).file.load(Ordering::Relaxed)
    }

    /// Moves a page of a file in memory to another frame, if it is not in use.
    fn move_memory_page(&self, old: FrameId) -> bool {
        let Some(file) = self.file(self.file_of(old)).filter(|file| file.is_memory()) else { return false };
        // The page has two frames for a moment.
        let root = self.reclaimer().tree().root();
        let Some(_claim) = self.core().overrun().try_claim(root, 1) else { return false };
        let mut new = Vec::with_capacity(1);
        if self.arena().alloc(&mut new, 1) == 0 {
            return false;
        }
        let moved = file.move_page(old, new[0]);
        self.arena().free(&[if moved { old } else { new[0] }]);
        moved
    }
}
