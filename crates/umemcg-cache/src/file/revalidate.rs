//! A file changed in its store, past this cache: clean pages are forgotten, data not yet durable
//! wins.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::{PAGE_SHIFT, Rank, assert_may_wait};
use umemcg_group::StatItem;

use super::{File, PAGES_END};
use crate::index::{Entry, LockedIndex, Mark};

impl File {
    /// Drops every clean page: the file changed outside. Dirty and unstable pages stay.
    pub fn invalidate_clean(self: &Arc<Self>) {
        if self.is_memory() {
            return;
        }
        let _content = self.content_alone();
        self.drop_pages(0, PAGES_END, true);
    }

    /// Checks whether the file was changed from outside. `look` finds out, with write-back kept
    /// out. It returns the length of the store's file, or `None` when nothing has changed. Clean
    /// pages are forgotten. Data not yet durable stays and wins: it is written again, and the file
    /// reaches at least to its end. A sync under way writes it again before it returns; if it has
    /// done so once, this call waits for it, so it must not come from within a call of the store.
    /// `look` may take the store's own locks, none of ours.
    pub fn revalidate(self: &Arc<Self>, look: impl FnOnce() -> Option<u64>) {
        assert_may_wait(Rank::FileFlush, "a look at a file");
        // Each look could have the sync repeated once more.
        let _flush = self.is_flushed_again.load(Ordering::Relaxed).then(|| self.flush.lock());
        let content = self.content_alone();
        let Some(len) = look() else { return };
        let (unclean_end, dirtied) = {
            let index = self.index.lock();
            let dirtied = self.redirty_unstable(&index);
            let (mut end, mut from) = (0, 0);
            while let Some(page) = index.next_marked(from, PAGES_END, Mark::Dirty) {
                end = page + 1;
                from = page + 1;
            }
            ((end << PAGE_SHIFT).min(self.len()), dirtied)
        };
        self.drop_pages(0, PAGES_END, true);
        self.store_len.store(len, Ordering::Relaxed);
        self.publish_len(len.max(unclean_end));
        drop(content);
        self.queue_dirty(&dirtied);
    }

    /// Makes unstable pages dirty again: the store may have lost them since. Returns the newly
    /// dirty pages.
    fn redirty_unstable(&self, index: &LockedIndex<'_>) -> Vec<(u64, FrameId)> {
        let (mut unstable, mut dirtied, mut from) = (Vec::new(), Vec::new(), 0);
        while let Some(page) = index.next_marked(from, PAGES_END, Mark::Unstable) {
            from = page + 1;
            let Entry::Page(frame) = index.get(page) else { continue };
            if !self.record(frame).try_pin() {
                continue;
            }
            index.mark(page, Mark::Unstable, false);
            self.is_redirtied.store(true, Ordering::Release);
            unstable.push((page, frame));
            if !self.record(frame).change(Flag::UNSTABLE, Flag::DIRTY).intersects(Flag::DIRTY) {
                dirtied.push((page, frame));
            }
        }
        self.note_dirty(index, &dirtied);
        // Release: pairs with the loads in `nr_unclean`.
        self.nr_unstable.fetch_sub(unstable.len() as u64, Ordering::Release);
        self.account_run(&unstable, StatItem::FileUnstable, -1);
        self.count_unclean_run(index, &unstable, -1);
        unstable.iter().for_each(|&(_, frame)| self.cache.reclaimer().unpin(frame));
        dirtied
    }
}
