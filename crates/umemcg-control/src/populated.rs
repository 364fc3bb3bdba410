//! The state of `populated`: whether processes live in a group or below it.

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
    let mut at = Group::next_in_subtree(group, None);
    while let Some(group_below) = at {
        if membership.is_populated(&group_below) {
            return true;
        }
        at = Group::next_in_subtree(group, Some(&group_below));
    }
    false
}
