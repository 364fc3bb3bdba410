//! [`Engine::snapshot`]: the figures of all groups, for metrics.

use std::path::Path;
use std::sync::Arc;

use umemcg_group::hit_counters::collect_hits;
use umemcg_group::{EventKind, Group, IdleStock, StatItem, apply_pending};

use super::Engine;

/// The figures of one group. All sizes are in bytes.
#[derive(Debug)]
#[non_exhaustive]
pub struct GroupSnapshot<'a> {
    /// The group.
    pub group: &'a Arc<Group>,
    /// Its path from the root.
    pub path: &'a Path,
    /// Bytes charged here and below, without stocks of threads.
    pub usage_bytes: u64,
    /// The highest usage since creation or the last reset, stocks included.
    pub peak_bytes: u64,
    /// The group's own limit; [`UNLIMITED`](crate::UNLIMITED) for none.
    pub max_bytes: u64,
    /// Bytes guaranteed to the group or its descendants.
    pub guaranteed_bytes: u64,
}

impl GroupSnapshot<'_> {
    /// Returns a statistic of the group and its descendants, in its [unit](StatItem::unit).
    pub fn stat_total(&self, item: StatItem) -> u64 {
        self.group.stat_total_applied(item).max(0) as u64
    }

    /// Returns a statistic of the group alone.
    pub fn stat_local(&self, item: StatItem) -> u64 {
        self.group.stat_local_applied(item).max(0) as u64
    }

    /// Returns the number of events of the group and its descendants.
    pub fn event_count(&self, kind: EventKind) -> u64 {
        self.group.event_count(kind)
    }

    /// Returns the number of events of the group alone.
    pub fn event_count_local(&self, kind: EventKind) -> u64 {
        self.group.event_count_local(kind)
    }
}

impl Engine {
    /// Calls `see` for every group, parents before children, with figures that include the pending
    /// statistics of threads. Groups may come and go meanwhile. Takes one or two microseconds for
    /// each group and no lock while `see` runs, so `see` may create groups, charge and reclaim.
    ///
    /// ```
    /// use umemcg::{Engine, EngineConfig, StatItem};
    ///
    /// let engine = Engine::new(EngineConfig::new(64 << 20))?;
    /// let mut lines = String::new();
    /// engine.snapshot(|figures| {
    ///     for &item in StatItem::ALL {
    ///         let (path, value) = (figures.path.display(), figures.stat_total(item));
    ///         lines += &format!("umemcg_{}{{group=\"{path}\"}} {value}\n", item.name());
    ///     }
    /// });
    /// assert!(lines.contains("umemcg_slab_reclaimable{group=\"/\"} 0\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn snapshot(&self, mut see: impl FnMut(&GroupSnapshot<'_>)) {
        collect_hits();
        apply_pending();
        let idle = IdleStock::read();
        let mut at = Group::next_in_subtree(self.root(), None);
        while let Some(group) = at {
            let path = group.path();
            see(&GroupSnapshot {
                group: &group,
                path: &path,
                usage_bytes: group.usage_bytes().saturating_sub(idle.of(&group)),
                peak_bytes: group.peak_bytes(),
                max_bytes: group.max_bytes(),
                guaranteed_bytes: group.guaranteed_bytes(),
            });
            at = Group::next_in_subtree(self.root(), Some(&group));
        }
    }
}
