//! The pages being read ahead of readers, and the limit on their number.
//!
//! Such pages are locked until the store has filled them, so reclaim cannot take them back. They
//! count against the lowest limit of their reader's group and the groups above it. All readers
//! below the group with that limit together have at most a quarter of it under way.

use std::collections::BTreeMap;
use std::sync::Arc;

use umemcg_base::{LeafMutex, PAGE_SIZE_U64};
use umemcg_group::Group;

/// Read-ahead may use one part in this many of a limit.
const LIMIT_PART: u64 = 4;

/// See the module text: the number of pages under way, by the id of the group with the limit.
#[derive(Debug, Clone, Default)]
pub(crate) struct AheadRoom(Arc<LeafMutex<BTreeMap<u64, u64>>>);

/// The limit on pages read ahead for a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AheadLimit {
    group: u64,
    nr_pages: u64,
}

impl AheadLimit {
    pub(crate) fn of(group: &Group) -> Self {
        let lowest = group.ancestors().min_by_key(|at| at.max_bytes()).unwrap_or(group);
        Self { group: lowest.id(), nr_pages: lowest.max_bytes() / LIMIT_PART / PAGE_SIZE_U64 }
    }

    /// Returns the limit in pages.
    pub(crate) fn nr_pages(self) -> u64 {
        self.nr_pages
    }
}

impl AheadRoom {
    /// Claims `nr` pages if they are within the limit.
    pub(crate) fn try_claim(&self, limit: AheadLimit, nr: u64) -> Option<AheadClaim> {
        let mut claimed = self.0.lock();
        let now = claimed.get(&limit.group).copied().unwrap_or(0);
        if now + nr > limit.nr_pages {
            return None;
        }
        claimed.insert(limit.group, now + nr);
        Some(AheadClaim { room: self.clone(), group: limit.group, nr })
    }
}

/// Pages claimed for read-ahead; returned when dropped.
#[derive(Debug)]
pub(crate) struct AheadClaim {
    room: AheadRoom,
    group: u64,
    nr: u64,
}

impl Drop for AheadClaim {
    fn drop(&mut self) {
        let mut claimed = self.room.0.lock();
        if let Some(nr) = claimed.get_mut(&self.group) {
            *nr -= self.nr;
            if *nr == 0 {
                claimed.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::GroupTree;

    #[test]
    fn groups_below_a_limit_share_a_quarter_of_it() {
        let tree = GroupTree::new(1 << 30);
        let parent = tree.create(tree.root(), "p".as_ref()).unwrap();
        parent.store_max(16 << 20);
        let [a, b] = ["a", "b"].map(|name| tree.create(&parent, name.as_ref()).unwrap());
        b.store_max(4 << 20);
        let room = AheadRoom::default();
        let claim = |group: &Group, nr| room.try_claim(AheadLimit::of(group), nr);
        let first = claim(&a, 1000).unwrap();
        assert!(claim(&a, 25).is_none() && claim(&parent, 25).is_none());
        assert!(claim(&b, 257).is_none() && claim(&b, 256).is_some(), "a lower limit counts alone");
        assert!(claim(tree.root(), 1 << 16).is_some());
        drop(first);
        assert!(claim(&parent, 1024).is_some() && room.0.lock().is_empty());
    }
}
