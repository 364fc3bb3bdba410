//! Dirty data: the amounts allowed to the pool and to each group, the slowing of writers above
//! these amounts, and the group that owns the data (mail per-cgroup-dirty-limits).
//!
//! [`settings`] holds the values of control files, [`thresholds`] turns them into bytes,
//! [`throttle`] is the arithmetic of pacing, and [`bandwidth`] measures a store's speed. How long a
//! writer pauses is computed by [`WritePause`](crate::WritePause); the clocks for it are in
//! `paced_writers`. `lists` and `owner` determine the files written by a group's write-back; the
//! flusher itself is `store_writeback`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::Group;
use umemcg_reclaim::Reclaimer;

pub mod bandwidth;
pub(crate) mod dirty_file;
pub(crate) mod dirty_queue;
pub(crate) mod lease;
pub(crate) mod list_position;
pub(crate) mod lists;
pub(crate) mod owner;
pub(crate) mod paced_writers;
pub(crate) mod queue_mark;
pub(crate) mod refusal;
pub mod settings;
pub mod thresholds;
pub mod throttle;
pub(crate) mod unclean_counts;

use settings::{DirtyBound, DirtyBounds, DirtyThreshold, GroupDirty};
use thresholds::{Level, levels, unclean_bytes};
use throttle::Thresholds;

/// Default age at which a dirty page is written regardless of thresholds.
pub const DIRTY_EXPIRE: Duration = Duration::from_secs(30);
/// Default interval at which the flusher looks for old pages.
pub const WRITEBACK_INTERVAL: Duration = Duration::from_secs(5);
/// The interval that stands for "never".
const INTERVAL_NEVER: Duration = Duration::from_secs(24 * 3600);

/// Thresholds of the pool and of all groups, and the times of write-back.
#[derive(Debug)]
pub struct DirtyLimits {
    reclaimer: Arc<Reclaimer>,
    /// (A)
    expire_ms: AtomicU64,
    /// 0 for never. (A)
    interval_ms: AtomicU64,
}

impl DirtyLimits {
    pub(crate) fn new(reclaimer: Arc<Reclaimer>) -> Self {
        let ms = |time: Duration| AtomicU64::new(time.as_millis() as u64);
        Self { reclaimer, expire_ms: ms(DIRTY_EXPIRE), interval_ms: ms(WRITEBACK_INTERVAL) }
    }

    /// Returns the number of the pool's pages not yet durable.
    pub fn nr_unclean(&self) -> u64 {
        unclean_bytes(self.reclaimer.tree().root()) / PAGE_SIZE_U64
    }

    /// Returns the thresholds of a group, in bytes; of the root, the pool's.
    pub fn thresholds(&self, group: &Arc<Group>) -> Thresholds {
        let levels = levels(&self.reclaimer, group);
        levels[levels.len() - 1].thresholds
    }

    /// Returns whether a group, or one above it, is over its background threshold.
    pub fn is_over_background(&self, group: &Arc<Group>) -> bool {
        self.gap_to_background(group).is_none()
    }

    /// Returns the number of bytes that may still become dirty before a group, or one above it, is
    /// over its background threshold; none if one is.
    pub(crate) fn gap_to_background(&self, group: &Arc<Group>) -> Option<u64> {
        let gap = |level: &Level<'_>| level.thresholds.background.checked_sub(level.unclean);
        levels(&self.reclaimer, group).iter().map(gap).min().flatten()
    }

    /// Returns the settings of a group's control files; for the root, those of the pool.
    pub fn bounds(&self, group: &Group) -> DirtyBounds {
        DirtyBounds::of(group)
    }

    /// Sets one of the two pairs. Takes effect with the next write.
    pub fn set_bound(&self, group: &Arc<Group>, which: DirtyThreshold, bound: DirtyBound) {
        GroupDirty::of(group).set(which, bound);
        // Invalidates credit granted under the old setting.
        let mut at = Some(Arc::clone(group));
        while let Some(below) = at {
            if let Some(dirty) = GroupDirty::if_present(&below) {
                dirty.set_credit(0);
            }
            at = Group::next_in_subtree(group, Some(&below));
        }
        lease::end_all();
    }

    /// Returns the age at which dirty data is written regardless of thresholds.
    pub fn expire(&self) -> Duration {
        Duration::from_millis(self.expire_ms.load(Ordering::Relaxed))
    }

    /// Sets it.
    pub fn set_expire(&self, age: Duration) {
        self.expire_ms.store(age.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the interval at which flushers look for old data; zero for never.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.load(Ordering::Relaxed))
    }

    /// Sets it. A sleeping flusher sees the change when it is woken.
    pub fn set_interval(&self, interval: Duration) {
        self.interval_ms.store(interval.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns how long a flusher sleeps when no thread wakes it.
    pub(crate) fn sleep(&self) -> Duration {
        Some(self.interval()).filter(|interval| !interval.is_zero()).unwrap_or(INTERVAL_NEVER)
    }
}
