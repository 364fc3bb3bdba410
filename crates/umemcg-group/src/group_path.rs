//! The place of a group in the tree, as a value of its own.

use crate::Group;

/// Levels distinguished by a path.
pub const NR_PATH_LEVELS: usize = 3;

/// The groups from the root down to a group, by their [numbers](Group::id); a bound applies to each
/// of them. The root is left out, except in its own path: its own processes are a tenant like
/// others. The path of a deeper group has the first levels and the group itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupPath {
    levels: [u64; NR_PATH_LEVELS],
    len: u8,
}

impl GroupPath {
    /// Returns the path of a group.
    pub fn of(group: &Group) -> Self {
        let below_root = || group.ancestors().filter(|level| !level.is_root());
        let Some(last) = below_root().count().checked_sub(1) else { return Self::new(&[group.id()]) };
        let len = (last + 1).min(NR_PATH_LEVELS);
        let mut levels = [0; NR_PATH_LEVELS];
        for (up, level) in below_root().enumerate() {
            match last - up {
                _ if up == 0 => levels[len - 1] = level.id(),
                at if at < len - 1 => levels[at] = level.id(),
                _ => {}
            }
        }
        Self { levels, len: len as u8 }
    }

    /// Returns a path of these numbers, from the top down: there must be at least one, and the
    /// first [`NR_PATH_LEVELS`] are used.
    pub fn new(numbers: &[u64]) -> Self {
        let len = numbers.len().min(NR_PATH_LEVELS);
        let mut levels = [0; NR_PATH_LEVELS];
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

    /// Returns the number of the group itself.
    pub fn group(&self) -> u64 {
        self.levels[usize::from(self.len) - 1]
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
    fn a_path_has_the_first_levels_and_the_group() {
        let tree = GroupTree::new(1 << 20);
        let mut group = std::sync::Arc::clone(tree.root());
        assert_eq!(GroupPath::of(&group).levels(), [group.id()]);
        let mut ids = Vec::new();
        for depth in 1..7 {
            group = tree.create(&group, "g".as_ref()).unwrap();
            ids.push(group.id());
            let path = GroupPath::of(&group);
            let expected: Vec<u64> = match depth {
                ..=NR_PATH_LEVELS => ids.clone(),
                _ => [&ids[..NR_PATH_LEVELS - 1], &[group.id()]].concat(),
            };
            assert_eq!((path.levels(), path.tenant()), (&expected[..], ids[0]));
            assert_eq!(path.group(), group.id());
            assert_eq!(path, GroupPath::new(&expected));
            assert_eq!(path.map(|id| id | 1 << 60).tenant(), ids[0] | 1 << 60);
        }
    }
}
