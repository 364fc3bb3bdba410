//! Counting a file's dirty pages: on the page, in the file, in its group and in its store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{Group, StatItem};

use super::File;
use crate::dirty::paced_writers::is_foreign;
use crate::dirty::settings::GroupDirty;
use crate::index::{LockedIndex, Mark};

/// The store's count of pages not yet durable may lack this part of a file's dirty pages …
const UNCOUNTED_SHARE: u64 = 8;
/// … and not more than this many.
const UNCOUNTED_PAGES_MAX: u64 = 16;

impl File {
    /// Counts pages of an owner that changed state, in the group and the groups above.
    #[inline]
    pub(super) fn account(&self, owner: u32, item: StatItem, pages: i64) {
        if !umemcg_reclaim::mechanism::counts_dirty_for_groups() {
            return;
        }
        umemcg_reclaim::owner_from(owner).count(item, pages * PAGE_SIZE_U64 as i64);
    }

    /// Counts pages that changed state, one call for each run of one owner.
    pub(super) fn account_run(&self, pages: &[(u64, FrameId)], item: StatItem, sign: i64) {
        self.runs_of_owners(pages).for_each(|(owner, nr)| self.account(owner, item, sign * nr));
    }

    /// Returns the runs of adjacent pages with one owner: the owner, and the number of pages.
    pub(super) fn runs_of_owners(&self, pages: &[(u64, FrameId)]) -> impl Iterator<Item = (u32, i64)> {
        let owner = |&(_, frame): &(u64, FrameId)| self.record(frame).owner.load(Ordering::Relaxed);
        pages.chunk_by(move |a, b| owner(a) == owner(b)).map(move |run| (owner(&run[0]), run.len() as i64))
    }

    /// Adds pages to the store's count of pages not yet durable; `pages` may be negative. Additions
    /// may wait here, up to an eighth of the file's dirty pages, so that not every page writes to a
    /// cache line shared by all writers of the store.
    pub(super) fn count_unclean(&self, _index: &LockedIndex<'_>, owner: u32, pages: i64) {
        let before = self.uncounted_owner.swap(owner, Ordering::Relaxed);
        let mut uncounted = self.uncounted.load(Ordering::Relaxed);
        if before != owner && uncounted != 0 {
            self.writeback.add_unclean(before, std::mem::take(&mut uncounted));
        }
        uncounted += pages;
        let may_wait = (self.nr_dirty.load(Ordering::Relaxed) / UNCOUNTED_SHARE).min(UNCOUNTED_PAGES_MAX);
        let waits = (0..=may_wait as i64).contains(&uncounted);
        self.uncounted.store(if waits { uncounted } else { 0 }, Ordering::Relaxed);
        if !waits {
            self.writeback.add_unclean(owner, uncounted);
        }
    }

    /// Adds pages to the store's count of pages not yet durable (`sign` 1), or subtracts them (-1).
    pub(super) fn count_unclean_run(&self, index: &LockedIndex<'_>, pages: &[(u64, FrameId)], sign: i64) {
        self.runs_of_owners(pages).for_each(|(owner, nr)| self.count_unclean(index, owner, sign * nr));
    }

    /// Counts newly dirty pages: marks, file, group, pool. Under the index lock, so that no thread
    /// can count them as clean before.
    pub(super) fn note_dirty(&self, index: &LockedIndex<'_>, pages: &[(u64, FrameId)]) {
        for &(page, _) in pages {
            index.mark(page, Mark::Dirty, true);
        }
        self.nr_dirty.fetch_add(pages.len() as u64, Ordering::Relaxed);
        self.account_run(pages, StatItem::FileDirty, 1);
        self.count_unclean_run(index, pages, 1);
    }

    /// Marks pages dirty after the caller has written to them. The caller has pinned them and holds
    /// `content`. Returns the pages that were not dirty before.
    ///
    /// A writer that finds a page already dirty is done with it: its data is durable when the file
    /// is. So no thread may see the flag before a sync finds the page: the flag comes last, under
    /// the lock of the index.
    pub(super) fn mark_dirty(self: &Arc<Self>, pages: &[(u64, FrameId)]) -> Vec<(u64, FrameId)> {
        // The copy comes before the flag, so the thread that clears the flag sees the copy.
        let is_dirty = |&(_, frame): &(u64, FrameId)| self.record(frame).set_again(Flag::DIRTY);
        if self.is_memory() || pages.iter().all(is_dirty) {
            return Vec::new();
        }
        let fresh: Vec<_> = {
            let index = self.index.lock();
            let is_clean = |&(_, frame): &(u64, FrameId)| !self.record(frame).test(Flag::DIRTY);
            let fresh: Vec<_> = pages.iter().copied().filter(is_clean).collect();
            self.note_dirty(&index, &fresh);
            pages.iter().for_each(|&(_, frame)| self.record(frame).set(Flag::DIRTY));
            fresh
        };
        self.queue_dirty(&fresh);
        fresh
    }

    /// Notes the newly dirty pages that a group of another tenant than the writer's pays for: the
    /// next pause of the writer's group counts them.
    pub(super) fn note_foreign(&self, writer: &Arc<Group>, fresh: &[(u64, FrameId)]) {
        for (owner, nr) in self.runs_of_owners(fresh) {
            let foreign = umemcg_reclaim::owner_from(owner)
                .with_group(|payer| is_foreign(writer, payer).then(|| Arc::clone(payer)));
            if let Some(payer) = foreign {
                self.writeback.paced.note_foreign(writer, payer, nr as u64 * PAGE_SIZE_U64);
                // It is to have that pause soon.
                GroupDirty::of(writer).set_credit(0);
            }
        }
    }

    /// Queues the file with its store's dirty files. The owner of these pages becomes the file's
    /// owner, unless it has one already.
    pub(super) fn queue_dirty(self: &Arc<Self>, fresh: &[(u64, FrameId)]) {
        let owner = |&(_, frame): &(u64, FrameId)| self.record(frame).owner.load(Ordering::Relaxed);
        let Some(first) = fresh.first().map(owner) else { return };
        let other = fresh.iter().map(owner).find(|&owner| owner != first);
        self.writeback.note_dirty(self, first);
        if let Some(other) = other {
            self.dirty_owner.note_dirtied(other);
        }
    }

    /// Notes that pages went to the store past the cache: the store has to confirm them before the
    /// file is durable.
    pub(super) fn note_written_through(self: &Arc<Self>, nr: u64, owner: u32) {
        // Release: pairs with the loads in `nr_unclean`.
        self.nr_through.fetch_add(nr, Ordering::Release);
        self.writeback.note_dirty(self, owner);
    }
}
