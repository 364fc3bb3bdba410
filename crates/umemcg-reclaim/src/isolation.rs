//! Isolated pages: off their lists, with a thread that is about to evict them or to put them back.
//!
//! A reclaim that finds a group's lists empty cannot tell whether another thread has its last
//! pages. So a thread is counted at the group while it has some, and a charge asks for that before
//! it fails.

use std::ops::Deref;
use std::sync::Arc;

use umemcg_group::Group;

use crate::group_reclaim::GroupReclaim;

/// Isolated pages of a group, until this is dropped; from before they are taken off their lists.
#[derive(Debug)]
pub(crate) struct Isolation<G: Deref<Target = Group>>(G);

impl<G: Deref<Target = Group>> Isolation<G> {
    /// Begins an isolation of pages of a group that has lists.
    pub(crate) fn begin(group: G) -> Self {
        if let Some(part) = GroupReclaim::if_present(&group) {
            part.begin_isolation();
        }
        Self(group)
    }

    /// Returns the group.
    pub(crate) fn group(&self) -> &Group {
        &self.0
    }
}

impl<G: Deref<Target = Group>> Drop for Isolation<G> {
    fn drop(&mut self) {
        if let Some(part) = GroupReclaim::if_present(&self.0) {
            part.end_isolation();
        }
    }
}

/// Returns whether a thread has isolated pages of a group, or of one below it. A group that is
/// removed meanwhile takes the count along.
pub(crate) fn has_isolated(root: &Arc<Group>) -> bool {
    let mut left = vec![Arc::clone(root)];
    while let Some(group) = left.pop() {
        if GroupReclaim::if_present(&group).is_some_and(GroupReclaim::has_isolations) {
            return true;
        }
        left.extend(group.children());
    }
    false
}
