//! The state of `populated`: whether processes live in a group or below it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use umemcg::Group;

use crate::membership::Membership;
use crate::waiters::Waiters;

/// The state of a group.
#[derive(Debug, Default)]
pub(crate) struct Populated {
    pub(crate) waiters: Arc<Waiters>,
    /// The result of the last check. (A)
    last: AtomicU64,
}

impl Populated {
    /// Returns the result of the last check: 0 or 1.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Records the result of a check.
    pub(crate) fn note(&self, is_populated: bool) {
        let now = u64::from(is_populated);
        if self.last.swap(now, Ordering::Relaxed) != now {
            self.waiters.wake_all();
        }
    }
}

/// Returns whether a process lives in the group or below it.
pub(crate) fn is_populated(membership: &dyn Membership, group: &Arc<Group>) -> bool {
    is_any_populated(group, &|at| membership.is_populated(at), &HashMap::new())
}

/// Returns whether a process lives in the group or below it. `lives_in` returns whether one lives
/// in a group itself. The subtrees in `known`, by the group's id, are not visited.
pub(crate) fn is_any_populated(
    group: &Arc<Group>,
    lives_in: &dyn Fn(&Arc<Group>) -> bool,
    known: &HashMap<u64, bool>,
) -> bool {
    let mut next = Some(Arc::clone(group));
    while let Some(at) = next {
        next = match known.get(&at.id()) {
            Some(true) => return true,
            Some(false) => Group::next_after_subtree(group, &at),
            None if lives_in(&at) => return true,
            None => Group::next_in_subtree(group, Some(&at)),
        };
    }
    false
}
