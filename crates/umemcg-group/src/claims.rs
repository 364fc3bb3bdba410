//! Protection (`memory.min`, `memory.low`): the part of it claimed by a group, and the division of
//! a parent's protection among its children (`kernel-semantics` §3.3).
//!
//! A group *claims* the smaller of its setting and its usage. The claims of a group's children are
//! added up on demand, over only the children with a setting. So charging never checks protection,
//! and groups without a setting cost nothing. If very many children have a setting, the sum is
//! recomputed less often; see [`CLAIMS_EXACT`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::LeafMutex;

use crate::counter::CounterNode;

/// With up to this many protected children, the sum of their claims is computed for each query.
/// With *n* times as many, it is computed for every *n*-th query, and whenever the parent's usage
/// has changed by more than one part in [`CLAIMS_DRIFT`]. So a query visits no more than this many
/// children on average.
pub const CLAIMS_EXACT: usize = 64;
/// See [`CLAIMS_EXACT`].
pub const CLAIMS_DRIFT: u64 = 64;

/// Two amounts in bytes: memory never reclaimed, and memory reclaimed only when nothing else is
/// left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Protection {
    /// Hard: never reclaimed.
    pub min: u64,
    /// Best effort: reclaimed when nothing else is left.
    pub low: u64,
}

impl Protection {
    /// No protection.
    pub const NONE: Self = Self { min: 0, low: 0 };

    /// Returns whether both amounts are zero.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), low: self.low.saturating_add(other.low) }
    }
}

/// The protection of a level of the tree, to be divided among its children.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Bytes charged to the parent and everything below it.
    pub usage: u64,
    /// Protected bytes of this usage.
    pub effective: u64,
    /// The sum of its children's claims, in bytes.
    pub claimed: u64,
}

/// Returns the part of the parent's protection for a child with `usage` and `setting`, in bytes. A
/// claim counts in full unless all claims together exceed the parent's protection; then it counts
/// in proportion. With `recursive`, the unclaimed part is divided among the children in proportion
/// to their usage beyond their claims.
#[doc(alias = "effective_protection")]
pub fn share(parent: Level, usage: u64, setting: u64, recursive: bool) -> u64 {
    let claim = usage.min(setting);
    if parent.claimed > parent.effective {
        return proportion(claim, parent.effective, parent.claimed);
    }
    let unclaimed = parent.effective - parent.claimed;
    if !recursive || usage <= claim || parent.usage <= parent.claimed {
        return claim;
    }
    claim.saturating_add(proportion(unclaimed, usage - claim, parent.usage - parent.claimed))
}

/// Returns `of × part / whole`, rounded down.
fn proportion(of: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
}

/// The protection settings of one group, and its children with settings.
#[derive(Debug)]
pub(crate) struct ProtectionSettings {
    /// (C) The counter of the group; valid until the group is removed, and not used after that.
    node: &'static CounterNode,
    /// (A) `memory.min` in bytes.
    pub(crate) min: AtomicU64,
    /// (A) `memory.low` in bytes.
    pub(crate) low: AtomicU64,
    /// (A) A floor under `min` in bytes: the guarantees of the group and its descendants.
    pub(crate) guaranteed: AtomicU64,
    pub(crate) claimants: LeafMutex<Claimants>,
}

/// The children with a setting. Locked after the child's `limit_lock`; nothing is locked under it.
#[derive(Debug, Default)]
pub(crate) struct Claimants {
    /// By serial.
    pub(crate) by_id: BTreeMap<u64, Arc<ProtectionSettings>>,
    /// The sum of claims when last computed.
    sum: Protection,
    /// The parent's usage at that time.
    usage: u64,
    /// The number of further queries to answer with this sum.
    pub(crate) nr_uses_left: usize,
}

impl ProtectionSettings {
    pub(crate) fn new(node: &'static CounterNode) -> Self {
        let zero = || AtomicU64::new(0);
        Self { node, min: zero(), low: zero(), guaranteed: zero(), claimants: LeafMutex::default() }
    }

    pub(crate) fn settings(&self) -> Protection {
        Protection {
            min: self.min.load(Relaxed).max(self.guaranteed.load(Relaxed)),
            low: self.low.load(Relaxed),
        }
    }

    fn claim(&self) -> Protection {
        let (usage, settings) = (self.node.usage(), self.settings());
        Protection { min: usage.min(settings.min), low: usage.min(settings.low) }
    }

    /// Returns the sum of the children's claims; see [`CLAIMS_EXACT`].
    pub(crate) fn claimed_below(&self) -> Protection {
        let mut claimants = self.claimants.lock();
        if claimants.by_id.is_empty() {
            return Protection::NONE;
        }
        let usage = self.node.usage();
        let has_drifted = usage.abs_diff(claimants.usage) > claimants.usage / CLAIMS_DRIFT;
        if claimants.nr_uses_left == 0 || has_drifted {
            claimants.sum =
                claimants.by_id.values().fold(Protection::NONE, |sum, child| sum.plus(child.claim()));
            claimants.usage = usage;
            claimants.nr_uses_left = claimants.by_id.len().div_ceil(CLAIMS_EXACT);
        }
        claimants.nr_uses_left -= 1;
        claimants.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECURSIVE: bool = true;

    fn level(usage: u64, effective: u64, claimed: u64) -> Level {
        Level { usage, effective, claimed }
    }

    #[test]
    fn a_claim_counts_in_full_while_the_parent_has_enough() {
        assert_eq!(share(level(100, 60, 50), 40, 30, !RECURSIVE), 30);
        assert_eq!(share(level(100, 60, 50), 20, 30, !RECURSIVE), 20, "no more than is used");
    }

    #[test]
    fn claims_beyond_what_the_parent_has_are_cut_in_proportion() {
        // The kernel's own test: 50 for two children claiming 50 and 25.
        let mib = 1 << 20;
        let parent = level(100 * mib, 50 * mib, 75 * mib);
        assert_eq!(share(parent, 50 * mib, 75 * mib, RECURSIVE), 50 * mib * 50 / 75);
        assert_eq!(share(parent, 50 * mib, 25 * mib, RECURSIVE), 50 * mib * 25 / 75);
        assert_eq!(share(parent, 50 * mib, 0, RECURSIVE), 0);
        assert_eq!(share(level(100, 0, 10), 10, 10, RECURSIVE), 0);
    }

    #[test]
    fn unclaimed_protection_goes_down_by_use_beyond_claims() {
        let parent = level(100, 60, 20);
        assert_eq!(share(parent, 50, 10, RECURSIVE), 10 + 40 * 40 / 80);
        assert_eq!(share(parent, 50, 10, !RECURSIVE), 10);
        assert_eq!(share(parent, 10, 10, RECURSIVE), 10, "a claim of everything gets no more");
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = level(1 << 62, u64::MAX, 0);
        assert_eq!(share(most, 1 << 62, u64::MAX, RECURSIVE), 1 << 62);
        assert_eq!(share(most, 1 << 61, 0, RECURSIVE), u64::MAX / 2);
        assert_eq!(share(level(1 << 62, 1 << 40, u64::MAX), 1 << 62, u64::MAX, RECURSIVE), 1 << 38);
    }
}
