//! The place of a group in the tree, as a value of its own.

use crate::Group;

/// Levels distinguished by a path.
const NR_LEVELS: usize = 8;

/// The groups from the root down to a group, by their [numbers](Group::id); a bound applies to each
/// of them. The root is left out, except in its own path: its own processes are a tenant like
/// others. The path of a group below the eighth level is that of its ancestor there, so that the
/// ancestor gains nothing by the groups in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupPath {
    levels: [u64; NR_LEVELS],
    len: u8,
}

impl GroupPath {
    /// Returns the path of a group.
    pub fn of(group: &Group) -> Self {
        let nr_below_root = group.ancestors().count() - 1;
        if nr_below_root == 0 {
            return Self::new(&[group.id()]);
        }
        let mut levels = [0; NR_LEVELS];
        for (level, at) in group.ancestors().zip((0..nr_below_root).rev()) {
            if let Some(number) = levels.get_mut(at) {
                *number = level.id();
            }
        }
        Self { levels, len: nr_below_root.min(NR_LEVELS) as u8 }
    }

    /// Returns a path of these numbers, from the top down: there must be at least one, and the
    /// first eight are used.
    pub fn new(numbers: &[u64]) -> Self {
        let len = numbers.len().min(NR_LEVELS);
        let mut levels = [0; NR_LEVELS];
        levels[..len].copy_from_slice(&numbers[..len]);
        Self { levels, len: len as u8 }
    }

    /// Returns the path with each number changed by `change`.
    #[must_use]
    pub fn map(mut self, change: impl Fn(u64) -> u64) -> Self {
        self.levels[..usize::from(self.len)].iter_mut().for_each(|level| *level = change(*level));
        self
    }

    /// Returns the numbers, from the top down.
    pub fn levels(&self) -> &[u64] {
        &self.levels[..usize::from(self.len)]
    }

    /// Returns the number of the tenant: the group just below the root.
    pub fn tenant(&self) -> u64 {
        self.levels[0]
    }
}

#[cfg(all(test, not(any(loom, schedule))))]
mod tests {
    use super::*;
    use crate::GroupTree;

    #[test]
    fn a_path_has_the_first_levels() {
        let tree = GroupTree::new(1 << 20);
        let mut group = std::sync::Arc::clone(tree.root());
        assert_eq!(GroupPath::of(&group).levels(), [group.id()]);
        let mut ids = Vec::new();
        for _ in 0..NR_LEVELS + 3 {
            group = tree.create(&group, "g".as_ref()).unwrap();
            ids.push(group.id());
            let (path, expected) = (GroupPath::of(&group), &ids[..ids.len().min(NR_LEVELS)]);
            assert_eq!((path.levels(), path.tenant()), (expected, ids[0]));
            assert_eq!(path, GroupPath::new(&ids));
            assert_eq!(path.map(|id| id | 1 << 60).tenant(), ids[0] | 1 << 60);
        }
    }
}
