//! The parameters and the progress of a pass of reclaim: reason, priority, goal, round, and the
//! protected share of a group.

use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::StatItem;

/// Pages requested by reclaim at once, and the smallest goal.
pub const SWAP_CLUSTER_MAX: u64 = 32;
/// The gentlest priority: a 4,096th of a list.
pub const DEF_PRIORITY: u32 = 12;
/// Longest single wait for write-back inside a reclaim.
pub const WRITEBACK_WAIT: Duration = Duration::from_millis(100);
/// Fruitless reclaims before a charge is given up.
pub const MAX_RECLAIM_RETRIES: u32 = 16;

/// The groups visited by a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Groups over their soft limit, and their descendants.
    InExcess,
    /// All.
    AllGroups,
}

/// The share of a group protected from this reclaim, as a fraction of its usage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProtectedShare {
    pub(crate) protected_bytes: u64,
    pub(crate) usage_bytes: u64,
}

impl ProtectedShare {
    /// Nothing is protected.
    pub(crate) const NOTHING: Self = Self { protected_bytes: 0, usage_bytes: 0 };

    /// Returns the unprotected number of `size` pages or objects; at least 32, or `size` if
    /// smaller.
    #[doc(alias = "apply_proportional_protection")]
    pub(crate) fn exposed(self, size: u64) -> u64 {
        if self.protected_bytes == 0 {
            return size;
        }
        let usage = u128::from(self.usage_bytes.max(self.protected_bytes)) + 1;
        let kept = u128::from(size) * u128::from(self.protected_bytes) / usage;
        (size - kept as u64).max(SWAP_CLUSTER_MAX).min(size)
    }
}

/// The reason for a reclaim. It only decides which statistics are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A refused charge, or a limit write.
    Direct,
    /// A background worker.
    Kswapd,
    /// `memory.reclaim`, `force_empty`, drop-caches.
    Proactive,
}

impl Reason {
    /// Returns the statistic of pages scanned by a reclaim for this reason.
    pub fn scan_item(self) -> StatItem {
        match self {
            Self::Direct => StatItem::PgScanDirect,
            Self::Kswapd => StatItem::PgScanKswapd,
            Self::Proactive => StatItem::PgScanProactive,
        }
    }

    /// Returns the statistic of pages freed by a reclaim for this reason.
    pub fn steal_item(self) -> StatItem {
        match self {
            Self::Direct => StatItem::PgStealDirect,
            Self::Kswapd => StatItem::PgStealKswapd,
            Self::Proactive => StatItem::PgStealProactive,
        }
    }
}

/// The progress of a reclaim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pages freed.
    pub reclaimed: u64,
    /// Pages looked at on inactive lists.
    pub scanned: u64,
    /// Scanned pages that are dirty, or written but not yet durable.
    pub dirty: u64,
    /// All pages on the lists scanned.
    pub reclaimable: u64,
    /// Bytes of objects freed.
    pub slab_bytes: u64,
    /// Objects looked at.
    pub slab_scanned: u64,
    /// Bytes of objects that another party was asked to free; bytes freed in time are also in
    /// `slab_bytes`.
    pub releasing_bytes: u64,
}

impl Progress {
    /// Returns everything freed, in pages; a part of a page counts as one.
    pub fn pages(&self) -> u64 {
        self.reclaimed + self.slab_bytes.div_ceil(PAGE_SIZE_U64)
    }

    /// Returns the bytes missing from a goal in pages.
    pub(crate) fn short_bytes(&self, goal: u64) -> u64 {
        goal.saturating_sub(self.pages()) * PAGE_SIZE_U64
    }

    pub(crate) fn add(&mut self, other: Progress) {
        self.reclaimed += other.reclaimed;
        self.scanned += other.scanned;
        self.dirty += other.dirty;
        self.reclaimable += other.reclaimable;
        self.slab_bytes += other.slab_bytes;
        self.slab_scanned += other.slab_scanned;
        self.releasing_bytes += other.releasing_bytes;
    }
}

/// One visit to a group: how hard, how much, and why.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    /// 12 gentle … 0 everything.
    pub(crate) priority: u32,
    /// Pages to free.
    pub(crate) goal: u64,
    /// Pages to free beyond the goal, as long as they are surplus on their list.
    pub(crate) ahead: u64,
    pub(crate) reason: Reason,
    pub(crate) round: Round,
    /// At least a batch of objects is requested, even if the share of this priority is smaller.
    pub(crate) insists: bool,
    /// The protected share of the group; known once it is visited.
    pub(crate) kept: ProtectedShare,
}

impl Pass {
    /// Creates the control of a scan for this many pages, at a priority, from all groups.
    pub(crate) fn new(priority: u32, goal: u64, reason: Reason) -> Self {
        Self {
            priority,
            goal,
            ahead: 0,
            reason,
            round: Round::AllGroups,
            insists: false,
            kept: ProtectedShare::NOTHING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(protected_bytes: u64, usage_bytes: u64) -> ProtectedShare {
        ProtectedShare { protected_bytes, usage_bytes }
    }

    #[test]
    fn what_is_looked_at_falls_with_protection_to_a_cluster() {
        assert_eq!(ProtectedShare::NOTHING.exposed(1000), 1000);
        assert_eq!(kept(25, 99).exposed(1000), 750);
        assert_eq!(kept(50, 99).exposed(1000), 500);
        assert_eq!(kept(99, 99).exposed(1000), 32, "never less than a cluster");
        assert_eq!(kept(200, 99).exposed(1000), 32, "a usage below its protection counts as that");
        assert_eq!(kept(99, 99).exposed(7), 7, "but never more than there is");
        assert_eq!(kept(u64::MAX, 0).exposed(u64::MAX), 32);
    }
}
