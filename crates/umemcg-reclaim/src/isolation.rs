//! Isolated pages: off their lists, held by a thread about to evict them or put them back.
//!
//! A reclaim finding a group's lists empty does not know whether another thread has isolated the
//! last pages. So every isolation is counted at the group, and a charge checks the count before it
//! fails.

use std::ops::Deref;
use std::sync::Arc;

use umemcg_group::Group;

use crate::group_reclaim::GroupReclaim;
use crate::lruvec::Lists;

/// Isolated pages of a group; the isolation ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Isolation<G: Deref<Target = Group>> {
    group: G,
}

impl<G: Deref<Target = Group>> Isolation<G> {
    /// Begins an isolation of pages of the group's locked lists.
    pub(crate) fn begin(lists: &mut Lists, group: G) -> Self {
        lists.nr_isolations += 1;
        Self { group }
    }

    /// Returns whether it is of this group's lists.
    pub(crate) fn is_of(&self, group: &Group) -> bool {
        std::ptr::eq(&raw const *self.group, group)
    }
}

impl<G: Deref<Target = Group>> Drop for Isolation<G> {
    fn drop(&mut self) {
        if let Some(part) = GroupReclaim::if_present(&self.group) {
            part.lruvec().end_isolation();
        }
    }
}

/// Returns whether a thread has isolated pages of a group or a descendant. A group removed
/// meanwhile takes the count along.
pub(crate) fn has_isolated(root: &Arc<Group>) -> bool {
    let mut left = vec![Arc::clone(root)];
    while let Some(group) = left.pop() {
        if GroupReclaim::if_present(&group).is_some_and(|part| part.lruvec().has_isolated()) {
            return true;
        }
        left.extend(group.children());
    }
    false
}
