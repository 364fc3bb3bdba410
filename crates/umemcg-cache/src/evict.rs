//! The page cache as a [`PageOwner`]: what reclaim may ask of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_group::Group;
use umemcg_reclaim::{Eviction, PageOwner, Shadow};

use crate::cache::PageCache;

impl PageOwner for PageCache {
    fn evict(&self, frame: FrameId, shadow: Shadow) -> Eviction {
        let record = self.arena().record(frame);
        let id = record.file.load(Ordering::Relaxed);
        if id == 0 {
            return Eviction::Gone;
        }
        let Some(file) = self.file(id) else { return Eviction::Busy };
        {
            let index = file.index.lock();
            if record.file.load(Ordering::Relaxed) != id {
                return Eviction::Gone;
            }
            let page = record.index.load(Ordering::Relaxed);
            // Our pin and the base reference, nobody else's; from here no reader can come.
            if record.test(Flag::LOCKED) || !record.freeze_from(2) {
                return Eviction::Busy;
            }
            // A writer marks the page dirty before he drops his pin, so this look is the last word.
            if record.test(Flag::DIRTY | Flag::WRITEBACK | Flag::UNSTABLE | Flag::LOCKED) {
                record.unfreeze_to(2);
                return Eviction::Busy;
            }
            index.leave_shadow(page, shadow);
            record.file.store(0, Ordering::Relaxed);
        }
        Eviction::Evicted
    }

    fn start_writeback(&self, group: &Arc<Group>) {
        self.flush_group(group);
    }

    fn wait_for_writeback(&self, timeout: Duration) -> bool {
        self.wait_for_progress(timeout)
    }

    fn writeback_progress(&self) -> u64 {
        self.nr_progress()
    }
}
