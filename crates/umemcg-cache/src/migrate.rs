//! Moving pages out of sparse 2 MiB blocks, so that whole blocks can go back to the operating system.

use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::PAGE_SHIFT;
use umemcg_reclaim::lruvec::with_lists;

use crate::cache::PageCache;
use crate::file::owner_of;
use crate::index::Entry;

/// Marks that a page takes with it to its new frame.
const CARRIED: Flag = Flag::from_bits(
    Flag::UPTODATE.bits()
        | Flag::DIRTY.bits()
        | Flag::UNSTABLE.bits()
        | Flag::REFERENCED.bits()
        | Flag::ACCESSED.bits()
        | Flag::WORKINGSET.bits()
        | Flag::RECLAIM.bits()
        | Flag::ACTIVE.bits()
        | Flag::IN_GAUGES.bits()
        | Flag::UNEVICTABLE.bits(),
);

impl PageCache {
    /// Moves up to `max` pages out of sparse blocks. Returns how many moved. Pages in use stay.
    #[doc(alias = "compact_zone")]
    pub fn migrate_sparse(&self, max: usize) -> usize {
        let candidates = self.arena().sparse_candidates(max);
        candidates.into_iter().filter(|&frame| self.migrate(frame)).count()
    }

    fn migrate(&self, old: FrameId) -> bool {
        let arena = self.arena();
        let record = arena.record(old);
        let Some(file) = self.file(record.file.load(Ordering::Relaxed)) else { return false };
        let mut new = Vec::with_capacity(1);
        if arena.alloc(arena.node_of(old), &mut new, 1) == 0 {
            return false;
        }
        let new = new[0];
        let moved = {
            let index = file.index.lock();
            let page = record.index.load(Ordering::Relaxed);
            let ours = record.file.load(Ordering::Relaxed) == file.id
                && page >> (64 - PAGE_SHIFT) == 0
                && index.get(page) == Entry::Page(old);
            // Only the base reference: nobody reads, writes, fills or flushes it.
            ours && record.freeze_from(1) && {
                if record.test(Flag::LOCKED | Flag::WRITEBACK) {
                    record.unfreeze_to(1);
                    false
                } else {
                    let to = arena.record(new);
                    arena.copy_frame(old, new);
                    to.owner.store(record.owner.load(Ordering::Relaxed), Ordering::Relaxed);
                    to.file.store(file.id, Ordering::Relaxed);
                    to.index.store(page, Ordering::Relaxed);
                    with_lists(
                        owner_of(record),
                        arena.node_of(old),
                        self.reclaimer().nr_nodes(),
                        |lists, _| {
                            // Under the list lock, which guards the list marks.
                            to.set(Flag::from_bits(record.flags().bits() & CARRIED.bits()));
                            lists.replace(arena, old, new);
                        },
                    );
                    index.replace(page, new);
                    to.unfreeze_to(1);
                    record.file.store(0, Ordering::Relaxed);
                    true
                }
            }
        };
        arena.free(&[if moved { old } else { new }]);
        moved
    }
}
