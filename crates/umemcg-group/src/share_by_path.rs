//! A bounded number of units, divided among all groups.

use std::collections::HashMap;

use crate::GroupPath;

/// The units held by groups, with one bound for all groups together.
///
/// Each level counts the units of its group and everything below it. A group may take more while
/// the counts on its path, including the root's, add up to no more than the bound. So a single
/// tenant gets half of the bound, and *n* greedy tenants get one part of *n* + 1 each, leaving a
/// part for the next one. A tenant gains nothing by creating groups, since its part is divided
/// among them: a single group below a tenant gets a third of the bound, leaving a part for another
/// group of the tenant.
#[derive(Debug)]
pub struct ShareByPath {
    /// (C)
    nr_max: u64,
    nr: u64,
    /// By the number of the group; only groups with units.
    by_level: HashMap<u64, u64>,
}

impl ShareByPath {
    /// Creates a share with the bound `nr_max`; no group has any units.
    pub fn new(nr_max: u64) -> Self {
        Self { nr_max, nr: 0, by_level: HashMap::new() }
    }

    /// Returns whether a group may have `nr` more.
    pub fn fits(&self, path: &GroupPath, nr: u64) -> bool {
        let of_level = |level| self.by_level.get(level).copied().unwrap_or(0).saturating_add(nr);
        let levels = path.levels().iter().map(of_level);
        levels.fold(self.nr.saturating_add(nr), u64::saturating_add) <= self.nr_max
    }

    /// Counts `nr` more for a group, if they fit.
    pub fn take(&mut self, path: &GroupPath, nr: u64) -> bool {
        let fits = self.fits(path, nr);
        if fits {
            self.add(path, nr);
        }
        fits
    }

    /// Counts `nr` more for a group, whether or not they fit.
    pub fn add(&mut self, path: &GroupPath, nr: u64) {
        self.nr += nr;
        for level in path.levels() {
            *self.by_level.entry(*level).or_default() += nr;
        }
    }

    /// Counts `nr` less for a group.
    pub fn give(&mut self, path: &GroupPath, nr: u64) {
        self.nr -= nr;
        for level in path.levels() {
            if let Some(held) = self.by_level.get_mut(level) {
                *held -= nr;
                if *held == 0 {
                    self.by_level.remove(level);
                }
            }
        }
    }

    /// Returns the units held by all groups.
    pub fn nr(&self) -> u64 {
        self.nr
    }
}

#[cfg(all(test, not(any(loom, schedule))))]
mod tests {
    use super::*;
    use crate::testing::hundred_below;
    use crate::{Group, GroupTree};

    /// Takes units one by one; returns the number taken.
    fn take_all(share: &mut ShareByPath, path: &[u64]) -> u64 {
        (0..).take_while(|_| share.take(&GroupPath::new(path), 1)).count() as u64
    }

    #[test]
    fn greedy_tenants_leave_a_part_for_the_next() {
        let mut share = ShareByPath::new(1024);
        let taken = [1, 2, 3].map(|tenant| take_all(&mut share, &[tenant]));
        assert_eq!(taken, [512, 256, 128]);
        share.give(&GroupPath::new(&[1]), 512);
        assert_eq!(take_all(&mut share, &[4]), 320);
        for (tenant, nr) in [(2, 256), (3, 128), (4, 320)] {
            share.give(&GroupPath::new(&[tenant]), nr);
        }
        assert!(share.nr() == 0 && share.by_level.is_empty());
    }

    #[test]
    fn a_tenant_gains_nothing_by_a_hundred_groups_of_its_own() {
        let mut share = ShareByPath::new(1024);
        let of_many: u64 = (100..200).map(|below| take_all(&mut share, &[1, below])).sum();
        assert!(of_many <= 512, "{of_many}");
        let of_other = take_all(&mut share, &[2]);
        assert!(of_other >= (1024 - of_many) / 2, "{of_other}");
        let mut share = ShareByPath::new(1024);
        assert_eq!(take_all(&mut share, &[1, 100]), 341, "a part is left for another one below");
    }

    #[test]
    fn a_group_of_the_third_level_gains_nothing_by_a_hundred_groups() {
        let tree = GroupTree::new(1 << 30);
        let tenant = tree.create(tree.root(), "tenant".as_ref()).unwrap();
        let second = tree.create(&tenant, "second".as_ref()).unwrap();
        let [many, one] = ["many", "one"].map(|name| tree.create(&second, name.as_ref()).unwrap());
        let mut share = ShareByPath::new(1024);
        let mut take = |group: &Group| take_all(&mut share, GroupPath::of(group).levels());
        let of_many: u64 = hundred_below(&tree, &many).iter().map(|group| take(group)).sum();
        assert_eq!((of_many, take(&one)), (255, 64));
    }
}
