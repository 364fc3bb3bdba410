//! A group's soft limit: the bytes it may keep when other groups need room. Reclaim visits groups
//! above their soft limit first.

use std::sync::{Arc, Weak};

use super::Group;
use crate::excess::EXCESS_LAG_BYTES;
use crate::subtree_marks::{self, PathNode};

impl Group {
    /// Returns the soft limit in bytes; [`UNLIMITED`](crate::UNLIMITED) for none.
    #[inline]
    pub fn soft_limit_bytes(&self) -> u64 {
        self.node.soft_limit()
    }

    /// Sets the soft limit in bytes; [`UNLIMITED`](crate::UNLIMITED) for none. Reclaims nothing:
    /// the soft limit only determines the groups reclaimed first. Does nothing on a removed group.
    #[doc(hidden)]
    pub fn set_soft_limit(self: &Arc<Self>, bytes: u64) {
        {
            let _changing = self.limit_lock.lock();
            if self.is_dead() {
                return;
            }
            self.node.set_soft_limit(bytes);
        }
        self.update_excess();
    }

    /// Returns the bytes of usage above the soft limit; 0 without one.
    #[doc(alias = "soft_limit_excess")]
    #[inline]
    pub fn excess_bytes(&self) -> u64 {
        self.usage_bytes().saturating_sub(self.soft_limit_bytes())
    }

    /// Returns whether the group counts as over its soft limit. It does so as soon as its usage is
    /// above it, and until its usage has fallen [`EXCESS_LAG_BYTES`] below.
    pub fn is_in_excess(&self) -> bool {
        self.node.is_in_excess()
    }

    /// Returns the number of children in excess or with a descendant in excess. Takes no lock; 0
    /// means no group below this group is in excess.
    #[doc(alias = "children_in_excess")]
    #[doc(hidden)]
    pub fn nr_children_in_excess(&self) -> u32 {
        self.excess.subtree_marks().nr_children()
    }

    /// Returns the next child with an id above `after` that is in excess or has a descendant in
    /// excess.
    #[doc(hidden)]
    pub fn next_child_in_excess(&self, after: u64) -> Option<Arc<Group>> {
        let mut after = after;
        loop {
            let child = self.excess.subtree_marks().next_child(after)?;
            match child.upgrade() {
                Some(group) => return Some(group),
                // Only the end of a whole tree leaves such a group behind.
                None => after += 1,
            }
        }
    }

    /// Returns the number of descendants in excess. Takes time in proportion to their number.
    #[doc(hidden)]
    pub fn nr_in_excess_below(self: &Arc<Self>) -> u64 {
        let (mut nr, mut above) = (0, vec![Arc::clone(self)]);
        while let Some(group) = above.pop() {
            let mut child = group.next_child_in_excess(0);
            while let Some(at) = child {
                nr += u64::from(at.is_in_excess());
                child = group.next_child_in_excess(at.id());
                above.push(at);
            }
        }
        nr
    }

    /// Corrects the excess flag by the present usage, without any lag.
    #[doc(hidden)]
    pub fn update_excess(self: &Arc<Self>) {
        self.update_excess_with(0);
    }

    pub(crate) fn update_excess_with(self: &Arc<Self>, lag: u64) {
        self.excess.update::<true, _>(self.node, lag, || path_to_root(self));
    }

    /// Takes a removed group out of its parent's set. The group's soft limit has been cleared
    /// already.
    pub(crate) fn withdraw_excess(self: &Arc<Self>) {
        self.update_excess_with(EXCESS_LAG_BYTES);
        subtree_marks::note_removed(path_to_root(self));
    }
}

/// Returns the nodes from a group to the root.
fn path_to_root(group: &Arc<Group>) -> impl Iterator<Item = PathNode<'_, Weak<Group>>> {
    std::iter::successors(Some(group), |at| at.parent()).map(|at| PathNode {
        subtree_marks: at.excess.subtree_marks(),
        id: at.id(),
        child: Arc::downgrade(at),
    })
}
