//! The number of pages of one store not yet durable: of all groups, and of each group with the
//! groups below it. Files add their pages in batches, so a count lags by an eighth of a file's
//! dirty pages.
//!
//! A group has an entry while it, or a group below it, has unclean pages here. A removed group's
//! pages belong to its parent, whose count includes them already. The entry of a group being
//! removed does not change until it is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use umemcg_base::LeafMutex;
use umemcg_group::Group;

use crate::dirty::lists::living;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct UncleanCounts {
    /// Of all groups. (A)
    total: AtomicU64,
    /// Subtree counts by group id, without the root and without zeros. A leaf lock.
    by_group: LeafMutex<HashMap<u64, u64>>,
}

impl UncleanCounts {
    /// Adds `pages`, which may be negative, to a group and the groups above it. Returns the new
    /// total.
    pub(crate) fn add(&self, group: &Arc<Group>, pages: i64) -> u64 {
        let mut by_group = self.by_group.lock();
        // The thread that removes the group marks it first and takes this lock afterwards, in
        // `forget`: an entry made here has a living group.
        let chain = std::iter::successors(Some(living(group)), |group| group.parent());
        for group in chain.take_while(|group| !group.is_root()) {
            let count = by_group.entry(group.id()).or_default();
            debug_assert!(*count as i64 + pages >= 0, "{count} and {pages} pages of {group:?}");
            *count = count.saturating_add_signed(pages);
            if *count == 0 {
                by_group.remove(&group.id());
            }
        }
        self.total.fetch_add(pages as u64, Ordering::Relaxed).wrapping_add_signed(pages)
    }

    /// Returns the pages of all groups.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Returns the pages of a group and the groups below it.
    pub(crate) fn of(&self, group: &Group) -> u64 {
        if group.is_root() {
            return self.total();
        }
        self.by_group.lock().get(&group.id()).copied().unwrap_or(0)
    }

    /// Drops the entry of a removed group.
    pub(crate) fn forget(&self, dying: &Group) {
        self.by_group.lock().remove(&dying.id());
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use umemcg_group::GroupTree;

    use super::*;

    fn child(tree: &GroupTree, parent: &Arc<Group>, name: &str) -> Arc<Group> {
        tree.create(parent, OsStr::new(name)).unwrap()
    }

    #[test]
    fn a_group_counts_what_is_below_it() {
        let tree = GroupTree::new(1 << 30);
        let parent = child(&tree, tree.root(), "parent");
        let (left, right) = (child(&tree, &parent, "left"), child(&tree, &parent, "right"));
        let counts = UncleanCounts::default();
        counts.add(&left, 5);
        counts.add(&right, 7);
        assert_eq!(counts.add(tree.root(), 1), 13);
        counts.add(&parent, 2);
        let of = |group| counts.of(group);
        assert_eq!((of(&left), of(&right), of(&parent), of(tree.root())), (5, 7, 14, 15));
        counts.add(&left, -5);
        assert_eq!((of(&left), of(&parent), counts.total()), (0, 9, 10));
    }

    #[test]
    fn pages_of_a_removed_group_are_its_parents() {
        let tree = GroupTree::new(1 << 30);
        let parent = child(&tree, tree.root(), "parent");
        let gone = child(&tree, &parent, "gone");
        let counts = UncleanCounts::default();
        counts.add(&gone, 5);
        tree.remove(&gone, |dying, _| counts.forget(dying)).unwrap();
        assert_eq!((counts.of(&gone), counts.of(&parent)), (0, 5));
        // By a thread that looked the group up before it was removed.
        counts.add(&gone, 3);
        counts.add(&gone, -8);
        assert_eq!((counts.of(&parent), counts.total()), (0, 0));
        assert!(counts.by_group.lock().is_empty());
    }

    #[test]
    fn pages_of_a_group_may_become_clean_amid_its_removal() {
        let tree = GroupTree::new(1 << 30);
        let parent = child(&tree, tree.root(), "parent");
        let gone = child(&tree, &parent, "gone");
        let counts = UncleanCounts::default();
        counts.add(&gone, 5);
        let removed = tree.remove(&gone, |dying, _| {
            assert_eq!(counts.add(dying, -5), 0);
            counts.forget(dying);
        });
        removed.unwrap();
        assert!(counts.by_group.lock().is_empty());
    }
}
