//! From control files to bytes: how much of a group's memory may be dirty.
//!
//! The *dirtyable* memory of a group is the memory available for its file data: the file pages of
//! the group and the groups below it, and the memory that it could still get. The latter is bounded
//! by the *headroom*, the least of limit minus usage over the group and every group above it, and
//! by free memory plus the clean file pages of other groups.
//!
//! - `free(g) = min(free + clean file pages elsewhere, min over g and above of (min(max, high) −
//!   usage))`
//! - `dirtyable(g) = free(g) + file pages of g's subtree`
//! - `avail(g) = min(dirtyable(g), dirtyable(pool))`, where the pool's is its free memory and all
//!   file pages
//! - `threshold = bytes` if the bytes are set, else `percent × avail / 100`
//!
//! The mail's formula counts only unused memory as free. But a page cache fills its pool, so a
//! group without pages would have almost nothing dirtyable. Linux has counted the clean pages of
//! others since it has per-group write-back.
//!
//! Then neither threshold is above half of the mark at which background reclaim stops, because
//! background reclaim frees clean pages only and would never come down to its mark. The foreground
//! threshold is at least [`DIRTY_FLOOR`], and the background threshold at least half of that, so
//! that a tiny group still writes in useful pieces. A background threshold not below the foreground
//! threshold becomes half of it.

use std::sync::Arc;

use umemcg_group::{Group, StatItem};
use umemcg_reclaim::Reclaimer;

use crate::dirty::settings::{DirtyBound, DirtyBounds};
use crate::dirty::throttle::Thresholds;

/// Dirty data allowed to every group whatever its limits, in bytes: two writes of the usual size.
pub const DIRTY_FLOOR: u64 = 256 << 10;

/// The inputs of a level's thresholds, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThresholdInputs {
    /// Of the pool: not charged to any group.
    pub pool_free: u64,
    /// Of the pool: file pages.
    pub pool_file: u64,
    /// Of the pool: not durable.
    pub pool_unclean: u64,
    /// The least of limit minus usage over the group and the groups above it; `u64::MAX` where
    /// there is no limit but the pool's.
    pub headroom: u64,
    /// File pages of the group and the groups below it.
    pub file: u64,
    /// Of these, not durable.
    pub unclean: u64,
}

impl ThresholdInputs {
    /// Returns the memory that the group could fill with file data, in bytes.
    #[doc(alias = "mem_cgroup_wb_stats")]
    #[doc(alias = "determine_dirtyable_memory")]
    pub fn dirtyable(&self) -> u64 {
        let other_file = self.pool_file.saturating_sub(self.file);
        let other_unclean = self.pool_unclean.saturating_sub(self.unclean);
        let elsewhere = self.pool_free + other_file.saturating_sub(other_unclean);
        self.file + self.headroom.min(elsewhere)
    }

    /// Returns the dirtyable memory, but never more than the whole pool's, in bytes.
    pub fn available(&self) -> u64 {
        self.dirtyable().min(self.pool_free + self.pool_file)
    }

    /// Returns the thresholds; `mark` is the usage at which background reclaim stops, `u64::MAX`
    /// for none.
    #[doc(alias = "domain_dirty_limits")]
    pub fn thresholds(&self, bounds: DirtyBounds, mark: u64) -> Thresholds {
        let bytes = |bound| match bound {
            DirtyBound::Bytes(bytes) => bytes,
            DirtyBound::Percent(percent) => (u128::from(self.available()) * u128::from(percent) / 100) as u64,
        };
        let bounded = |bound, floor| bytes(bound).min(mark / 2).max(floor);
        let foreground = bounded(bounds.foreground, DIRTY_FLOOR);
        let background = bounded(bounds.background, DIRTY_FLOOR / 2);
        Thresholds {
            background: if background >= foreground { foreground / 2 } else { background },
            foreground,
        }
    }
}

/// Returns the bytes of a group and the groups below it not yet durable: dirty, under write-back or
/// unstable.
pub fn unclean_bytes(group: &Group) -> u64 {
    let items = [StatItem::FileDirty, StatItem::FileWriteback, StatItem::FileUnstable];
    items.iter().map(|&item| group.stat_total(item)).sum::<i64>().max(0) as u64
}

fn file_bytes(group: &Group) -> u64 {
    let items = [StatItem::InactiveFile, StatItem::ActiveFile, StatItem::FileKernel];
    items.iter().map(|&item| group.stat_total_applied(item)).sum::<i64>().max(0) as u64
}

/// A level of the tree, as checked by a writer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level<'g> {
    pub(crate) group: &'g Arc<Group>,
    pub(crate) thresholds: Thresholds,
    /// Bytes not yet durable.
    pub(crate) unclean: u64,
}

/// Returns the group and every group above it, from the root down.
pub(crate) fn levels<'g>(reclaimer: &Reclaimer, group: &'g Arc<Group>) -> Vec<Level<'g>> {
    let mut chain: Vec<&Arc<Group>> = std::iter::successors(Some(group), |at| at.parent()).collect();
    chain.reverse();
    let root = chain[0];
    let mut room = ThresholdInputs {
        pool_free: root.max_bytes().saturating_sub(root.usage_bytes()),
        pool_file: file_bytes(root),
        pool_unclean: root.unclean_bytes_about(u64::MAX),
        headroom: u64::MAX,
        ..ThresholdInputs::default()
    };
    let mut levels = Vec::with_capacity(chain.len());
    for group in chain {
        if !group.is_root() {
            let limit = group.max_bytes().min(reclaimer.high(group));
            if limit != umemcg_group::UNLIMITED {
                room.headroom = room.headroom.min(limit.saturating_sub(group.usage_bytes()));
            }
        }
        room.file = file_bytes(group);
        room.unclean = group.unclean_bytes_about(u64::MAX);
        let thresholds = room.thresholds(DirtyBounds::of(group), reclaimer.high_mark(group));
        // Counts still pending in threads make no difference to a percentage threshold, but they do
        // near a threshold.
        levels.push(Level { group, thresholds, unclean: group.unclean_bytes_about(thresholds.background) });
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn bounds(foreground: DirtyBound, background: DirtyBound) -> DirtyBounds {
        DirtyBounds { foreground, background }
    }

    #[test]
    fn shares_are_of_what_could_be_file_data() {
        // A group of 100 MiB with 40 used, 30 of them file pages, in a pool with 500 free.
        let room = ThresholdInputs {
            pool_free: 500 * MIB,
            pool_file: 200 * MIB,
            headroom: 60 * MIB,
            file: 30 * MIB,
            ..ThresholdInputs::default()
        };
        assert_eq!((room.dirtyable(), room.available()), (90 * MIB, 90 * MIB));
        let thresholds = room.thresholds(DirtyBounds::default(), u64::MAX);
        assert_eq!(thresholds, Thresholds { background: 9 * MIB, foreground: 18 * MIB });
    }

    #[test]
    fn without_a_limit_it_is_the_free_and_the_clean_of_others() {
        let room = ThresholdInputs {
            pool_free: 100 * MIB,
            pool_file: 300 * MIB,
            pool_unclean: 50 * MIB,
            headroom: u64::MAX,
            file: 80 * MIB,
            unclean: 30 * MIB,
        };
        // Others have 220, 20 of them not clean.
        assert_eq!(room.dirtyable(), 80 * MIB + 100 * MIB + 200 * MIB);
        let fresh = ThresholdInputs { file: 0, unclean: 0, ..room };
        assert_eq!(fresh.available(), 350 * MIB, "a group that has nothing yet may write, too");
    }

    #[test]
    fn no_group_gets_more_than_the_pool() {
        let room = ThresholdInputs {
            pool_free: MIB,
            pool_file: 2 * MIB,
            headroom: u64::MAX,
            file: 50 * MIB,
            ..ThresholdInputs::default()
        };
        assert_eq!(room.available(), 3 * MIB);
    }

    #[test]
    fn bytes_stand_whatever_the_memory() {
        let given = bounds(DirtyBound::Bytes(8 * MIB), DirtyBound::Bytes(3 * MIB));
        let thresholds = ThresholdInputs::default().thresholds(given, u64::MAX);
        assert_eq!(thresholds, Thresholds { background: 3 * MIB, foreground: 8 * MIB });
        let mixed = bounds(DirtyBound::Bytes(8 * MIB), DirtyBound::Percent(10));
        let room = ThresholdInputs { pool_free: 40 * MIB, headroom: u64::MAX, ..ThresholdInputs::default() };
        assert_eq!(room.thresholds(mixed, u64::MAX).background, 4 * MIB);
    }

    #[test]
    fn a_background_that_is_not_below_is_half() {
        let given = bounds(DirtyBound::Bytes(8 * MIB), DirtyBound::Bytes(8 * MIB));
        assert_eq!(ThresholdInputs::default().thresholds(given, u64::MAX).background, 4 * MIB);
    }

    #[test]
    fn the_floor_lets_the_tiniest_group_write() {
        for given in
            [DirtyBound::Bytes(0), DirtyBound::Bytes(1), DirtyBound::Percent(0), DirtyBound::Percent(20)]
        {
            let thresholds = ThresholdInputs::default().thresholds(bounds(given, given), u64::MAX);
            assert_eq!(thresholds, Thresholds { background: DIRTY_FLOOR / 2, foreground: DIRTY_FLOOR });
        }
    }

    #[test]
    fn dirty_data_leaves_background_reclaim_room_to_reach_its_mark() {
        let given = bounds(DirtyBound::Bytes(80 * MIB), DirtyBound::Bytes(40 * MIB));
        let thresholds = ThresholdInputs::default().thresholds(given, 90 * MIB);
        assert_eq!(thresholds, Thresholds { background: 40 * MIB, foreground: 45 * MIB });
    }
}
