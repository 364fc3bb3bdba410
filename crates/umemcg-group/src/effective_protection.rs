//! Effective protection: the bytes of a group protected from reclaim starting at one root, computed
//! top-down along the way to the group (`kernel-semantics` §3.3).
//!
//! The root is not protected from its own reclaim. A group directly below has its full protection
//! settings. Further down, a parent's protection is divided ([`share`]). A walk visits groups in
//! tree order, so consecutive groups share most of the levels above them, and the sum of claims is
//! computed once for each parent and walk.

use std::sync::Arc;

use crate::claims::{Level, Protection, share};
use crate::group::Group;

/// One level on the path to the group of the last query.
#[derive(Debug)]
struct KnownLevel {
    group: Arc<Group>,
    usage: u64,
    effective: Protection,
    /// `None` until needed.
    claimed: Option<Protection>,
}

/// The protection below one root, for one walk. Results are momentary estimates: usages change
/// meanwhile.
#[doc(alias = "mem_cgroup_calculate_protection")]
#[derive(Debug)]
pub struct EffectiveProtection<'r> {
    root: &'r Arc<Group>,
    recursive: bool,
    /// True if any group below the root is protected.
    is_any: bool,
    /// The levels from directly below the root to the group of the last query.
    path: Vec<KnownLevel>,
}

impl<'r> EffectiveProtection<'r> {
    /// Creates the protection for a reclaim starting at `root`. With `recursive`, protection
    /// claimed by no child is distributed as well.
    pub fn new(root: &'r Arc<Group>, recursive: bool) -> Self {
        Self { root, recursive, is_any: root.has_claimants(), path: Vec::new() }
    }

    /// Starts over with the present usages and settings.
    pub fn refresh(&mut self) {
        self.is_any = self.root.has_claimants();
        self.path.clear();
    }

    /// Returns whether anything below the root is protected at all.
    pub fn is_any(&self) -> bool {
        self.is_any
    }

    /// Returns the protected bytes of `group`. `group` is the root or below it.
    pub fn of(&mut self, group: &Arc<Group>) -> Protection {
        if !self.is_any || Arc::ptr_eq(group, self.root) {
            return Protection::NONE;
        }
        // Go back up to the nearest known level.
        let mut missing = vec![group];
        let mut nr_known = 0;
        while let Some(above) = missing.last().and_then(|at| at.parent()) {
            if Arc::ptr_eq(above, self.root) {
                break;
            }
            if let Some(at) = self.path.iter().rposition(|known| Arc::ptr_eq(&known.group, above)) {
                nr_known = at + 1;
                break;
            }
            missing.push(above);
        }
        self.path.truncate(nr_known);
        for group in missing.into_iter().rev() {
            let usage = group.usage_bytes();
            let effective = match self.path.last_mut() {
                None => group.protection(),
                Some(parent) => parent.share_of(group, usage, self.recursive),
            };
            self.path.push(KnownLevel { group: Arc::clone(group), usage, effective, claimed: None });
        }
        self.path.last().map_or(Protection::NONE, |known| known.effective)
    }
}

impl KnownLevel {
    fn share_of(&mut self, child: &Group, usage: u64, recursive: bool) -> Protection {
        // A share of nothing is nothing.
        if self.effective.is_none() {
            return Protection::NONE;
        }
        let group = &self.group;
        let claimed = *self.claimed.get_or_insert_with(|| group.claimed_below_bytes());
        let promised = child.protection();
        let level = |effective: u64, claimed: u64| Level { usage: self.usage, effective, claimed };
        Protection {
            min: share(level(self.effective.min, claimed.min), usage, promised.min, recursive),
            low: share(level(self.effective.low, claimed.low), usage, promised.low, recursive),
        }
    }
}
