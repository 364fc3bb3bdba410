//! Frames: their references, their LRU lists, and the way back to the free list.
//!
//! A frame in a file's index carries one *base* reference; every reader, writer and reclaimer adds
//! one of its own (a pin). A thread taking a page out of its file clears its identity first and
//! then drops the base reference. A thread dropping the count to zero tries to freeze the frame;
//! exactly one succeeds, and frees it. A reader with a pin from a stale look-up finds the identity
//! changed and drops its pin in the same way, so no thread has to wait for readers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use umemcg_arena::{FrameFlags as Flag, FrameId};
use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{OwnerId, StatItem, uncharge_raw};

use super::Reclaimer;
use crate::group_reclaim::{GroupReclaim, owner_from, with_lists};
use crate::kswapd::wake_backed_off;
use crate::lruvec::LruKind;

impl Reclaimer {
    /// Drops one reference; frees the frame when it was the last.
    #[inline]
    pub fn unpin(&self, frame: FrameId) {
        let record = self.arena().record(frame);
        if record.unpin() == 0 && record.freeze() {
            self.free_frozen(&[frame]);
        }
    }

    /// Frees frames already frozen and taken out of their file by the caller. Each uncharges a page
    /// from its group.
    pub fn free_frozen(&self, frames: &[FrameId]) {
        let mut at = 0;
        while at < frames.len() {
            // Frames of one owner usually come together: one charge, one list, one statistics round
            // for the run.
            let owner = self.owner_of(frames[at]);
            let run = frames[at..].iter().take_while(|&&f| self.owner_of(f) == owner).count();
            self.free_run(owner_from(owner), &frames[at..at + run]);
            at += run;
        }
    }

    /// Returns the number of a frame's owner.
    pub(super) fn owner_of(&self, frame: FrameId) -> u32 {
        self.arena().record(frame).owner.load(Relaxed)
    }

    fn free_run(&self, owner: OwnerId, frames: &[FrameId]) {
        self.leave_lists(owner, frames);
        self.arena().free(frames);
        // The frames are back before the charge is: invariant 1 (a charge always finds a frame).
        uncharge_raw(owner, frames.len() as u64 * PAGE_SIZE_U64);
    }

    /// Takes pages off their lists, if still on one, and out of the gauges of their group.
    fn leave_lists(&self, owner: OwnerId, frames: &[FrameId]) {
        let arena = self.arena();
        let (mut inactive, mut active, mut unevictable) = (0i64, 0i64, 0i64);
        for &frame in frames {
            let record = arena.record(frame);
            if record.test(Flag::ON_LRU) {
                with_lists(owner, |lists, _| lists.remove(arena, frame));
            }
            if record.test(Flag::IN_GAUGES) {
                if record.test(Flag::ACTIVE) { active += 1 } else { inactive += 1 }
            }
            unevictable += i64::from(record.test(Flag::UNEVICTABLE));
        }
        let page = PAGE_SIZE_U64 as i64;
        let group = owner.resolve();
        if let Some(part) = GroupReclaim::if_present(&group)
            && part.lruvec().note_freed()
        {
            wake_backed_off(self.kswapd_queue(), &group);
        }
        if inactive != 0 {
            owner.count(StatItem::InactiveFile, -inactive * page);
        }
        if active != 0 {
            owner.count(StatItem::ActiveFile, -active * page);
        }
        if unevictable != 0 {
            group.stat_add(StatItem::Unevictable, -unevictable * page);
            group.stat_add(StatItem::Shmem, -unevictable * page);
        }
        owner.count(StatItem::PgPgOut, frames.len() as i64);
    }

    /// Puts new pages of one owner on a list, and takes its lock once. The pages are pinned.
    pub fn add_to_lists(&self, owner: OwnerId, frames: &[FrameId], kind: LruKind) {
        if frames.is_empty() {
            return;
        }
        let arena = self.arena();
        let item = match kind {
            LruKind::Inactive => StatItem::InactiveFile,
            LruKind::Active => StatItem::ActiveFile,
        };
        owner.count(item, frames.len() as i64 * PAGE_SIZE_U64 as i64);
        owner.count(StatItem::PgPgIn, frames.len() as i64);
        let group = with_lists(owner, |lists, group| {
            for &frame in frames {
                let record = arena.record(frame);
                if record.file.load(Relaxed) != 0 {
                    lists.add_with(arena, frame, kind, Flag::IN_GAUGES);
                } else {
                    // It left its file meanwhile and goes to no list any more; but it is in the
                    // gauges.
                    record.set(if kind == LruKind::Active {
                        Flag::ACTIVE | Flag::IN_GAUGES
                    } else {
                        Flag::IN_GAUGES
                    });
                }
            }
            Arc::clone(group)
        });
        GroupReclaim::of(&group).note_present(&group);
    }

    /// Counts new pages of one owner as unevictable, since no store has a copy. They go to no list,
    /// so reclaim never meets them. The pages are pinned.
    pub fn count_unevictable(&self, owner: OwnerId, frames: &[FrameId]) {
        for &frame in frames {
            self.arena().record(frame).set(Flag::UNEVICTABLE);
        }
        let (group, nr) = (owner.resolve(), frames.len() as i64);
        group.stat_add(StatItem::Unevictable, nr * PAGE_SIZE_U64 as i64);
        group.stat_add(StatItem::Shmem, nr * PAGE_SIZE_U64 as i64);
        group.stat_add(StatItem::PgPgIn, nr);
    }

    /// Takes a page off its list when it leaves its file while it is still pinned.
    pub fn forget_in_lists(&self, owner: OwnerId, frame: FrameId) {
        let arena = self.arena();
        with_lists(owner, |lists, _| lists.remove(arena, frame));
    }

    /// Moves pages skipped by reclaim to the old end of their lists, because their write-back is
    /// done now. The caller keeps them: it pins them, or holds the lock of their index.
    #[doc(alias = "folio_rotate_reclaimable")]
    pub fn rotate_to_tail(&self, frames: &[FrameId]) {
        let arena = self.arena();
        for run in frames.chunk_by(|&a, &b| self.owner_of(a) == self.owner_of(b)) {
            with_lists(owner_from(self.owner_of(run[0])), |lists, _| {
                for &frame in run {
                    arena.record(frame).clear(Flag::RECLAIM);
                    lists.rotate(arena, frame);
                }
            });
        }
    }

    /// Returns isolated pages to the lists they belong to by now, and drops the isolation pins.
    pub(crate) fn put_back(&self, frames: &[FrameId], kind: LruKind) {
        let arena = self.arena();
        let mut touched = None;
        for &frame in frames {
            let record = arena.record(frame);
            with_lists(owner_from(record.owner.load(Relaxed)), |lists, group| {
                // A page not in a file any more is not put back: the thread taking it out saw it on
                // no list, and only our pin keeps it.
                if record.file.load(Relaxed) != 0 {
                    lists.add(arena, frame, kind);
                    touched = Some(Arc::clone(group));
                } else if kind == LruKind::Active {
                    // The gauges follow this flag when the frame is freed.
                    record.set(Flag::ACTIVE);
                }
            });
            self.unpin(frame);
        }
        // The lists were empty meanwhile, and a walk may have marked the group as empty.
        if let Some(group) = touched {
            GroupReclaim::of(&group).note_present(&group);
        }
    }
}
