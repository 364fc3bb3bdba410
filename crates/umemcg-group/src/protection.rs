//! Protection: memory that a group is promised (`memory.min`, `memory.low`), what it claims of that, and how a parent's
//! protection is divided among its children (`kernel-semantics` §3.3).
//!
//! A group *claims* the smaller of its setting and its usage. The claims of a group's children are added up when somebody asks,
//! over those children only that have a setting: charging never hears of protection, and groups without a setting cost
//! nothing, however many there are. Where very many have one, the sum is made anew only now and then; see [`CLAIMS_EXACT`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::sync::Mutex;

use crate::counter::{CounterNode, UNLIMITED};
use crate::group::Group;

/// Up to so many children with a setting, the sum of their claims is made anew each time it is asked for. Where there are
/// more, once in so many times as there are times this number of them, and whenever the parent's usage has changed by more than
/// one part in [`CLAIMS_DRIFT`] since: an answer costs no more than looking at this many children on average.
pub const CLAIMS_EXACT: usize = 64;
/// See [`CLAIMS_EXACT`].
pub const CLAIMS_DRIFT: u64 = 64;

/// Two amounts in bytes: one that is kept whatever happens, and one that is kept as long as there is anything else to take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Protection {
    /// Hard: never reclaimed.
    pub min: u64,
    /// Best effort: reclaimed when nothing else is left.
    pub low: u64,
}

impl Protection {
    /// Nothing.
    pub const NONE: Self = Self { min: 0, low: 0 };

    /// Whether it is nothing.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    fn plus(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), low: self.low.saturating_add(other.low) }
    }
}

/// What a level of the tree divides among its children.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Bytes charged to the parent and everything below it.
    pub usage: u64,
    /// How much of that is protected.
    pub effective: u64,
    /// What its children claim, together.
    pub claimed: u64,
}

/// The part of the parent's protection that a child with `usage` gets, if it was promised `setting`. A claim counts in full
/// unless the claims together are more than the parent has, and then in proportion. What nobody claims goes, if `recursive`, to
/// the children in proportion to what they use beyond their claims.
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

/// `of × part / whole`, rounded down.
fn proportion(of: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
}

/// What one group was promised, and which of its children were.
#[derive(Debug)]
pub(crate) struct Promises {
    /// (C) The counter of the group; good until the group is removed, and nobody asks after that.
    node: &'static CounterNode,
    /// (A) `memory.min` in bytes.
    min: AtomicU64,
    /// (A) `memory.low` in bytes.
    low: AtomicU64,
    /// (A) Least that `min` counts as: what has been guaranteed to the group and those below it.
    guaranteed: AtomicU64,
    claimants: Mutex<Claimants>,
}

/// The children that were promised anything. Locked after the child's `limit_lock`; nothing is locked under it.
#[derive(Debug, Default)]
struct Claimants {
    /// By serial.
    by_id: BTreeMap<u64, Arc<Promises>>,
    /// The sum of claims when last made.
    sum: Protection,
    /// The parent's usage then.
    usage: u64,
    /// How often it may still be given out.
    nr_uses_left: usize,
}

impl Promises {
    pub(crate) fn new(node: &'static CounterNode) -> Self {
        let zero = || AtomicU64::new(0);
        Self { node, min: zero(), low: zero(), guaranteed: zero(), claimants: Mutex::default() }
    }

    fn settings(&self) -> Protection {
        Protection {
            min: self.min.load(Relaxed).max(self.guaranteed.load(Relaxed)),
            low: self.low.load(Relaxed),
        }
    }

    fn claim(&self) -> Protection {
        let (usage, settings) = (self.node.usage(), self.settings());
        Protection { min: usage.min(settings.min), low: usage.min(settings.low) }
    }

    /// The sum of the children's claims; see [`CLAIMS_EXACT`].
    fn claimed_below(&self) -> Protection {
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

impl Group {
    /// What the group was promised: `memory.min` or, if that is more, what has been guaranteed; and `memory.low`. Nothing once
    /// it is removed.
    pub fn protection(&self) -> Protection {
        match self.promises.get() {
            Some(promises) if !self.is_dead() => promises.settings(),
            _ => Protection::NONE,
        }
    }

    /// `memory.min` as it was set, in bytes.
    pub fn min_bytes(&self) -> u64 {
        self.promises.get().map_or(0, |promises| promises.min.load(Relaxed))
    }

    /// `memory.low` as it was set, in bytes.
    pub fn low_bytes(&self) -> u64 {
        self.promises.get().map_or(0, |promises| promises.low.load(Relaxed))
    }

    /// Bytes that are guaranteed to the group or those below it.
    pub fn guaranteed_bytes(&self) -> u64 {
        self.promises.get().map_or(0, |promises| promises.guaranteed.load(Relaxed))
    }

    /// Sets `memory.min` in bytes; [`UNLIMITED`] for all the group has. Reclaims nothing. Does nothing on a removed group.
    pub fn set_min(&self, bytes: u64) {
        self.change_promises(|promises| promises.min.store(bytes, Relaxed));
    }

    /// Sets `memory.low`, as [`set_min`](Self::set_min).
    pub fn set_low(&self, bytes: u64) {
        self.change_promises(|promises| promises.low.store(bytes, Relaxed));
    }

    /// Sets the least that `memory.min` counts as.
    pub fn set_guaranteed(&self, bytes: u64) {
        assert!(bytes != UNLIMITED, "a guarantee has a size");
        self.change_promises(|promises| promises.guaranteed.store(bytes, Relaxed));
    }

    /// What the group claims of what it was promised: no more than it uses.
    pub fn claimed_bytes(&self) -> Protection {
        let (usage, settings) = (self.usage_bytes(), self.protection());
        Protection { min: usage.min(settings.min), low: usage.min(settings.low) }
    }

    /// What the groups directly below claim, together.
    #[doc(alias = "children_min_usage")]
    #[doc(alias = "children_low_usage")]
    pub fn claimed_below_bytes(&self) -> Protection {
        self.promises.get().map_or(Protection::NONE, |promises| promises.claimed_below())
    }

    /// Whether any group directly below was promised anything. If none was, nothing below is protected from reclaim of this group.
    pub(crate) fn has_claimants(&self) -> bool {
        self.promises.get().is_some_and(|promises| !promises.claimants.lock().by_id.is_empty())
    }

    fn promises(&self) -> &Arc<Promises> {
        self.promises.get_or_init(|| Arc::new(Promises::new(self.node)))
    }

    fn change_promises(&self, change: impl FnOnce(&Promises)) {
        let _changing = self.limit_lock.lock();
        if self.is_dead() {
            return;
        }
        change(self.promises());
        self.tell_parent();
    }

    /// Under the `limit_lock`: the parent's claimants are those of its living children that were promised anything.
    pub(crate) fn tell_parent(&self) {
        let (Some(promises), Some(parent)) = (self.promises.get(), &self.parent) else { return };
        let mut claimants = parent.promises().claimants.lock();
        if self.protection().is_none() {
            claimants.by_id.remove(&self.id());
        } else {
            claimants.by_id.insert(self.id(), Arc::clone(promises));
        }
        claimants.nr_uses_left = 0;
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
        // The kernel's own test: 50 for two children that claim 50 and 25.
        let mib = 1 << 20;
        let parent = level(100 * mib, 50 * mib, 75 * mib);
        assert_eq!(share(parent, 50 * mib, 75 * mib, RECURSIVE), 50 * mib * 50 / 75);
        assert_eq!(share(parent, 50 * mib, 25 * mib, RECURSIVE), 50 * mib * 25 / 75);
        assert_eq!(share(parent, 50 * mib, 0, RECURSIVE), 0);
        assert_eq!(share(level(100, 0, 10), 10, 10, RECURSIVE), 0);
    }

    #[test]
    fn what_nobody_claims_goes_down_in_proportion_to_use_beyond_claims() {
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
