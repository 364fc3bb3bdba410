//! What protection means to one reclaim: which groups it leaves alone, and which part of the others' lists it does not look at
//! (`kernel-semantics` §2.3, §2.4).
//!
//! A group that uses no more than its effective `min` is never visited; one that uses no more than its effective `low` only
//! when a whole reclaim without it has brought nothing, and that is counted as a `low` event. Of a group that uses more, the
//! share is taken of what is beyond its protection, so that there is no cliff: the nearer to its protection, the gentler. The
//! target of the reclaim is not protected from it; only what its groups were promised relative to it counts.

use std::sync::Arc;

use umemcg_group::{EffectiveProtection, EventKind, Group, Protection};

use crate::reclaim::{Reclaimer, SWAP_CLUSTER_MAX};

/// How much of what a group has is out of reclaim's reach, as a part of what it uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    protected_bytes: u64,
    usage_bytes: u64,
}

impl Kept {
    /// All of it can be reached.
    pub(crate) const NOTHING: Self = Self { protected_bytes: 0, usage_bytes: 0 };

    /// Of `size` pages or objects, those of which a share may be looked at; at least 32, where there are so many.
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

/// One reclaim's view of who is protected.
#[derive(Debug)]
pub(crate) struct Shield<'r> {
    effective: EffectiveProtection<'r>,
    /// Nothing else is left: only `min` counts.
    overrides_low: bool,
    /// A group was passed by, or looked at less, for its `low`.
    low_was_in_the_way: bool,
}

impl<'r> Shield<'r> {
    /// For a reclaim that starts at `root`. With `overrides_low`, from the beginning only `min` counts.
    pub(crate) fn new(root: &'r Arc<Group>, recursive: bool, overrides_low: bool) -> Self {
        let effective = EffectiveProtection::new(root, recursive);
        Self { effective, overrides_low, low_was_in_the_way: false }
    }

    /// A new round: usages have changed.
    pub(crate) fn refresh(&mut self) {
        self.effective.refresh();
    }

    /// Whether `low` kept anything from this reclaim.
    pub(crate) fn low_was_in_the_way(&self) -> bool {
        self.low_was_in_the_way
    }

    /// From here on only `min` counts. True when that makes a difference.
    pub(crate) fn give_up_low(&mut self) -> bool {
        let makes_a_difference = self.low_was_in_the_way && !self.overrides_low;
        self.overrides_low = true;
        makes_a_difference
    }

    /// What of the group is out of reach; `None` when the group is not to be visited.
    #[doc(alias = "mem_cgroup_below_min")]
    #[doc(alias = "mem_cgroup_below_low")]
    pub(crate) fn kept_of(&mut self, group: &Arc<Group>) -> Option<Kept> {
        if !self.effective.is_any() {
            return Some(Kept::NOTHING);
        }
        let protection = self.effective.of(group);
        if protection.is_none() {
            return Some(Kept::NOTHING);
        }
        let usage_bytes = group.usage_bytes();
        if usage_bytes <= protection.min {
            return None;
        }
        if usage_bytes <= protection.low {
            if !self.overrides_low {
                self.low_was_in_the_way = true;
                return None;
            }
            group.event(EventKind::Low);
        }
        let mut protected_bytes = protection.min;
        if !self.overrides_low && protection.low > protection.min {
            self.low_was_in_the_way = true;
            protected_bytes = protection.low;
        }
        Some(Kept { protected_bytes, usage_bytes })
    }
}

impl Reclaimer {
    /// Says whether protection that no child of a group claims is handed down to all of them; it is, unless said otherwise.
    #[must_use]
    #[doc(alias = "memory_recursiveprot")]
    pub fn with_recursive_protection(mut self, on: bool) -> Self {
        self.recursive_protection = on;
        self
    }

    /// How much of `group` is protected from a reclaim that starts at `root`, just now.
    pub fn effective_protection(&self, root: &Arc<Group>, group: &Arc<Group>) -> Protection {
        EffectiveProtection::new(root, self.recursive_protection).of(group)
    }

    pub(crate) fn shield<'r>(&self, root: &'r Arc<Group>, overrides_low: bool) -> Shield<'r> {
        Shield::new(root, self.recursive_protection, overrides_low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::GroupTree;

    fn kept(protected_bytes: u64, usage_bytes: u64) -> Kept {
        Kept { protected_bytes, usage_bytes }
    }

    #[test]
    fn what_is_looked_at_falls_with_protection_to_a_cluster() {
        assert_eq!(Kept::NOTHING.exposed(1000), 1000);
        assert_eq!(kept(25, 99).exposed(1000), 750);
        assert_eq!(kept(50, 99).exposed(1000), 500);
        assert_eq!(kept(99, 99).exposed(1000), 32, "never less than a cluster");
        assert_eq!(kept(200, 99).exposed(1000), 32, "a usage below its protection counts as that");
        assert_eq!(kept(99, 99).exposed(7), 7, "but never more than there is");
        assert_eq!(kept(u64::MAX, 0).exposed(u64::MAX), 32);
    }

    #[test]
    fn low_gives_way_in_the_end_and_is_counted_and_min_never_does() {
        let tree = GroupTree::new(1 << 30);
        let [low, min] = ["low", "min"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let _held = [&low, &min].map(|group| group.try_charge(1 << 20).unwrap());
        low.set_low(u64::MAX);
        min.set_min(u64::MAX);
        let mut shield = Shield::new(tree.root(), true, false);
        assert!(shield.kept_of(&min).is_none() && !shield.low_was_in_the_way());
        assert!(shield.kept_of(&low).is_none() && shield.low_was_in_the_way());
        assert!(shield.kept_of(tree.root()).is_some(), "the target is not protected from itself");
        assert!(shield.give_up_low() && !shield.give_up_low());
        assert!(shield.kept_of(&min).is_none());
        assert_eq!(low.event_count_local(EventKind::Low), 0);
        assert_eq!(shield.kept_of(&low).unwrap().exposed(1000), 1000);
        assert_eq!((low.event_count_local(EventKind::Low), min.event_count(EventKind::Low)), (1, 0));
        assert_eq!(tree.root().event_count(EventKind::Low), 1, "counted above, too");
    }
}
