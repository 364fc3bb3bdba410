//! Protection from one reclaim: the groups to leave alone, and the part of the other groups' lists
//! not to scan (`kernel-semantics` §2.3, §2.4).
//!
//! A group using no more than its effective `min` is never visited. A group using no more than its
//! effective `low` is visited only after a whole reclaim without it freed nothing, and each visit
//! counts a `low` event. From a group using more, the share is taken of its usage beyond the
//! protection, so there is no cliff: the nearer to its protection, the gentler the reclaim. The
//! target of the reclaim is not protected from it; only protection below the target counts.
//!
//! Bytes [leaving](crate::Leaving) a group count as gone: they will not come back, and usage falls
//! too late to protect the rest. The claims of its siblings are computed from their full usage.

use std::sync::Arc;

use umemcg_group::{EffectiveProtection, EventKind, Group};

use crate::group_reclaim::leaving_bytes;
use crate::scan_control::ProtectedShare;

/// The protection of groups from one reclaim.
#[derive(Debug)]
pub(crate) struct ReclaimProtection<'r> {
    effective: EffectiveProtection<'r>,
    /// Nothing else is left: only `min` counts.
    overrides_low: bool,
    /// A group was skipped, or scanned less, for its `low`.
    low_was_in_the_way: bool,
}

impl<'r> ReclaimProtection<'r> {
    /// Creates the protection from a reclaim starting at `root`. With `overrides_low`, only `min`
    /// counts from the beginning.
    pub(crate) fn new(root: &'r Arc<Group>, recursive: bool, overrides_low: bool) -> Self {
        let effective = EffectiveProtection::new(root, recursive);
        Self { effective, overrides_low, low_was_in_the_way: false }
    }

    /// Begins a new round: usages have changed.
    pub(crate) fn refresh(&mut self) {
        self.effective.refresh();
    }

    /// Returns whether `low` protected anything from this reclaim.
    pub(crate) fn low_was_in_the_way(&self) -> bool {
        self.low_was_in_the_way
    }

    /// Gives up `low`: from here on only `min` counts. Returns `true` if this makes a difference.
    pub(crate) fn give_up_low(&mut self) -> bool {
        let makes_a_difference = self.low_was_in_the_way && !self.overrides_low;
        self.overrides_low = true;
        makes_a_difference
    }

    /// Returns the protected share of the group; `None` if the group must not be visited.
    #[doc(alias = "mem_cgroup_below_min")]
    #[doc(alias = "mem_cgroup_below_low")]
    pub(crate) fn protected_share(&mut self, group: &Arc<Group>) -> Option<ProtectedShare> {
        if !self.effective.is_any() {
            return Some(ProtectedShare::NOTHING);
        }
        let protection = self.effective.of(group);
        if protection.is_none() {
            return Some(ProtectedShare::NOTHING);
        }
        let usage_bytes = group.usage_bytes().saturating_sub(leaving_bytes(group));
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
        Some(ProtectedShare { protected_bytes, usage_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::GroupTree;

    #[test]
    fn low_gives_way_in_the_end_and_is_counted_and_min_never_does() {
        let tree = GroupTree::new(1 << 30);
        let [low, min] = ["low", "min"].map(|name| tree.create(tree.root(), name.as_ref()).unwrap());
        let _held = [&low, &min].map(|group| group.try_charge(1 << 20).unwrap());
        low.set_low(u64::MAX);
        min.set_min(u64::MAX);
        let mut protection = ReclaimProtection::new(tree.root(), true, false);
        assert!(protection.protected_share(&min).is_none() && !protection.low_was_in_the_way());
        assert!(protection.protected_share(&low).is_none() && protection.low_was_in_the_way());
        assert!(protection.protected_share(tree.root()).is_some(), "the target is not protected from itself");
        assert!(protection.give_up_low() && !protection.give_up_low());
        assert!(protection.protected_share(&min).is_none());
        assert_eq!(low.event_count_local(EventKind::Low), 0);
        assert_eq!(protection.protected_share(&low).unwrap().exposed(1000), 1000);
        assert_eq!((low.event_count_local(EventKind::Low), min.event_count(EventKind::Low)), (1, 0));
        assert_eq!(tree.root().event_count(EventKind::Low), 1, "counted above, too");
    }
}
