//! The known state of the groups: their tree, the last figures of each, and their folding.
//!
//! Only directories of unfolded groups are listed, and only visible groups are sampled often, so a
//! tree of thousands costs little. The figures of a group may be some intervals old; its rates are
//! over the time between its own samples. Nothing here reads a file.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::time::Instant;

use crate::args::TopSort;
use crate::group_sample::GroupSample;

use super::history::{Histories, Point};
use super::row::{ROW_STATS, Row};

/// The inode of the root. Every FUSE mount's root has it.
pub const ROOT: u64 = 1;
/// Groups above this depth are unfolded until they are folded: the root and its children.
const UNFOLDED_DEPTH: usize = 2;

/// The known state of a group.
#[derive(Debug)]
pub struct Group {
    /// Its name; empty for the root.
    pub name: OsString,
    /// The inode of its parent; the root is its own.
    pub parent: u64,
    /// Levels below the root.
    pub depth: usize,
    /// Inodes of its children, as far as they have been listed.
    pub children: Vec<u64>,
    /// Whether it has children, listed or not; `None` if not known.
    pub has_children: Option<bool>,
    /// The interval of the last listing of its children; 0 for never.
    pub listed_tick: u64,
    /// The interval of its last sample; 0 for never.
    pub sampled_tick: u64,
    /// Its figures; `None` before the first sample.
    pub row: Option<Row>,
    /// Its usage, possibly newer than its figures; `None` if not known.
    pub usage_bytes: Option<u64>,
    last: Option<(Instant, GroupSample)>,
    /// Whether the user has folded or unfolded it.
    is_unfolded: Option<bool>,
}

impl Group {
    fn new(name: OsString, parent: u64, depth: usize) -> Self {
        Self {
            name,
            parent,
            depth,
            children: Vec::new(),
            has_children: None,
            listed_tick: 0,
            sampled_tick: 0,
            row: None,
            usage_bytes: None,
            last: None,
            is_unfolded: None,
        }
    }

    /// Returns whether its children are shown.
    pub fn is_unfolded(&self) -> bool {
        self.is_unfolded.unwrap_or(self.depth < UNFOLDED_DEPTH)
    }

    fn weight(&self, sort: TopSort) -> f64 {
        // Groups with an unknown weight come last.
        let weight = match sort {
            TopSort::Usage => self.usage_bytes.map(|bytes| bytes as f64),
            _ => self.row.as_ref().map(|row| row.weight(sort)),
        };
        weight.unwrap_or(-1.0)
    }
}

/// The order and the filter of the lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    /// The column to sort by.
    pub sort: TopSort,
    /// The smallest comes first.
    pub is_reversed: bool,
    /// Only groups with this text in their path are shown, and their ancestors.
    pub filter: String,
}

/// The groups.
#[derive(Debug)]
pub struct Groups {
    known: HashMap<u64, Group>,
    histories: Histories,
    /// The number of the current interval, from 1.
    tick: u64,
}

impl Groups {
    /// Creates a tree with only the root known.
    pub fn new() -> Self {
        let root = Group { has_children: Some(true), ..Group::new(OsString::new(), ROOT, 0) };
        Self { known: HashMap::from([(ROOT, root)]), histories: Histories::default(), tick: 1 }
    }

    /// Starts the next interval.
    pub fn begin_tick(&mut self) {
        self.tick += 1;
    }

    /// Returns a group; `None` if it is gone.
    pub fn get(&self, group: u64) -> Option<&Group> {
        self.known.get(&group)
    }

    /// Takes the names of a group's children.
    pub fn take_listing(&mut self, group: u64, mut listed: Vec<(u64, OsString)>) {
        listed.retain(|(inode, _)| *inode != ROOT);
        let tick = self.tick;
        let Some(parent) = self.known.get_mut(&group) else { return };
        let depth = parent.depth + 1;
        parent.listed_tick = tick;
        parent.has_children = Some(!listed.is_empty());
        let before = std::mem::take(&mut parent.children);
        let now: HashSet<u64> = listed.iter().map(|(inode, _)| *inode).collect();
        before.iter().filter(|inode| !now.contains(inode)).for_each(|&inode| self.remove(inode));
        for (inode, name) in &listed {
            // The inode of a removed group is reused.
            let is_same =
                self.known.get(inode).is_some_and(|known| known.parent == group && known.name == *name);
            if !is_same {
                self.remove(*inode);
                self.known.insert(*inode, Group::new(name.clone(), group, depth));
            }
        }
        if let Some(parent) = self.known.get_mut(&group) {
            parent.children = listed.into_iter().map(|(inode, _)| inode).collect();
        }
    }

    /// Forgets the subtree of a group; the root stays.
    pub fn remove(&mut self, group: u64) {
        let mut left = if group == ROOT { Vec::new() } else { vec![group] };
        while let Some(inode) = left.pop() {
            self.histories.remove(inode);
            if let Some(gone) = self.known.remove(&inode) {
                left.extend(gone.children);
                if let Some(parent) = self.known.get_mut(&gone.parent) {
                    parent.children.retain(|&child| child != inode);
                }
            }
        }
    }

    /// Takes a sample of a group.
    pub fn take_sample(&mut self, group: u64, at: Instant, mut sample: GroupSample, has_children: bool) {
        let tick = self.tick;
        let Some(known) = self.known.get_mut(&group) else { return };
        sample.stat.retain(|name, _| ROW_STATS.contains(&name.as_str()));
        let row = match &known.last {
            Some((before, last)) => Row::between(last, &sample, at.saturating_duration_since(*before)),
            // A new group has no rates yet.
            None => Row::between(&sample, &sample, std::time::Duration::ZERO),
        };
        self.histories.add(group, tick, &row);
        known.has_children = Some(has_children);
        known.sampled_tick = tick;
        known.usage_bytes = Some(row.usage_bytes);
        known.row = Some(row);
        known.last = Some((at, sample));
    }

    /// Takes the usage of a group.
    pub fn take_usage(&mut self, group: u64, usage_bytes: u64) {
        let tick = self.tick;
        if let Some(known) = self.known.get_mut(&group) {
            known.usage_bytes = Some(usage_bytes);
            known.sampled_tick = tick;
        }
    }

    /// Returns a figure of the last `nr` intervals, the oldest first.
    pub fn history(&self, group: u64, nr: usize, figure: fn(&Point) -> f32) -> Vec<Option<f64>> {
        self.histories.last(group, self.tick, nr, figure)
    }

    /// Returns the names on the way from the root to a group.
    pub fn names(&self, group: u64) -> Vec<OsString> {
        let mut names = Vec::new();
        let mut at = group;
        while at != ROOT {
            let Some(known) = self.known.get(&at) else { break };
            names.push(known.name.clone());
            at = known.parent;
        }
        names.reverse();
        names
    }

    /// Returns the path of a group from the root: `/a/b`.
    pub fn path(&self, group: u64) -> OsString {
        let mut path = OsString::new();
        for name in self.names(group) {
            path.push("/");
            path.push(name);
        }
        if path.is_empty() { "/".into() } else { path }
    }

    /// Folds or unfolds a group.
    pub fn unfold(&mut self, group: u64, is_unfolded: bool) {
        if let Some(known) = self.known.get_mut(&group) {
            known.is_unfolded = Some(is_unfolded);
        }
    }

    /// Folds or unfolds all known groups in the subtree of a group.
    pub fn unfold_all(&mut self, group: u64, is_unfolded: bool) {
        let mut left = vec![group];
        while let Some(inode) = left.pop() {
            self.unfold(inode, is_unfolded);
            left.extend(self.known.get(&inode).into_iter().flat_map(|known| &known.children));
        }
    }

    /// Returns the children of a group in this order.
    pub fn sorted_children(&self, group: u64, order: &Order) -> Vec<u64> {
        let children = self.known.get(&group).into_iter().flat_map(|known| &known.children);
        let mut found: Vec<(u64, &Group)> =
            children.filter_map(|inode| Some((*inode, self.known.get(inode)?))).collect();
        found.sort_by(|(_, a), (_, b)| {
            let by_weight = match order.sort {
                TopSort::Name => Ordering::Equal,
                sort => b.weight(sort).total_cmp(&a.weight(sort)),
            };
            let ordered = by_weight.then_with(|| a.name.cmp(&b.name));
            if order.is_reversed { ordered.reverse() } else { ordered }
        });
        found.into_iter().map(|(inode, _)| inode).collect()
    }

    /// Returns the groups to show, each below its parent.
    pub fn lines(&self, order: &Order) -> Vec<u64> {
        let filter = order.filter.to_lowercase();
        let mut lines = Vec::new();
        let mut left = vec![(ROOT, String::new())];
        while let Some((inode, path)) = left.pop() {
            let Some(group) = self.known.get(&inode) else { continue };
            lines.push((inode, path.contains(&filter)));
            // A filter searches all groups.
            if group.is_unfolded() || !filter.is_empty() {
                let below = |child: u64| {
                    let name = self.known.get(&child).map_or(OsStr::new(""), |known| &known.name);
                    // Only a filter needs paths.
                    let path = match filter.is_empty() {
                        true => String::new(),
                        false => format!("{path}/{}", name.to_string_lossy().to_lowercase()),
                    };
                    (child, path)
                };
                left.extend(self.sorted_children(inode, order).into_iter().rev().map(below));
            }
        }
        self.with_groups_above(&lines)
    }

    /// Returns the matching lines, and the lines of their ancestors. Parents come first in `lines`.
    fn with_groups_above(&self, lines: &[(u64, bool)]) -> Vec<u64> {
        let mut shown = HashSet::new();
        for &(inode, is_match) in lines.iter().rev() {
            if is_match || shown.contains(&inode) {
                shown.insert(inode);
                shown.extend(self.known.get(&inode).map(|group| group.parent));
            }
        }
        lines
            .iter()
            .map(|(inode, _)| *inode)
            .filter(|&inode| shown.contains(&inode) || inode == ROOT)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn order(sort: TopSort) -> Order {
        Order { sort, is_reversed: false, filter: String::new() }
    }

    /// /a (with /a/x (with /a/x/deep) and /a/y), /b.
    fn tree() -> Groups {
        let mut groups = Groups::new();
        let listed =
            |names: &[(u64, &str)]| names.iter().map(|&(inode, name)| (inode, name.into())).collect();
        groups.take_listing(ROOT, listed(&[(3, "b"), (2, "a")]));
        groups.take_listing(2, listed(&[(4, "x"), (5, "y")]));
        groups.take_listing(4, listed(&[(6, "deep")]));
        for (inode, usage) in [(ROOT, 100), (2, 10), (3, 20), (4, 5), (5, 5), (6, 1)] {
            groups.take_usage(inode, usage);
        }
        groups
    }

    #[test]
    fn siblings_are_sorted_below_their_parent() {
        let groups = tree();
        assert_eq!(groups.lines(&order(TopSort::Usage)), [1, 3, 2, 4, 5]);
        assert_eq!(groups.lines(&order(TopSort::Name)), [1, 2, 4, 5, 3]);
        let reversed = Order { is_reversed: true, ..order(TopSort::Name) };
        assert_eq!(groups.lines(&reversed), [1, 3, 2, 5, 4]);
        assert_eq!(groups.path(6), "/a/x/deep");
        assert_eq!((groups.path(ROOT), groups.names(5)), ("/".into(), vec!["a".into(), "y".into()]));
    }

    #[test]
    fn folded_groups_hide_those_below_and_a_filter_finds_them() {
        let mut groups = tree();
        groups.unfold(4, true);
        assert_eq!(groups.lines(&order(TopSort::Name)), [1, 2, 4, 6, 5, 3]);
        groups.unfold_all(ROOT, false);
        assert_eq!(groups.lines(&order(TopSort::Name)), [1]);
        let filtered = |filter: &str| groups.lines(&Order { filter: filter.into(), ..order(TopSort::Name) });
        assert_eq!(filtered("DEE"), [1, 2, 4, 6], "with the groups above");
        assert_eq!(filtered("a/y"), [1, 2, 5]);
        assert_eq!(filtered("no such"), [1]);
    }

    #[test]
    fn groups_that_are_gone_take_those_below_with_them() {
        let mut groups = tree();
        groups.take_listing(ROOT, vec![(3, "b".into()), (7, "c".into())]);
        assert_eq!(groups.lines(&order(TopSort::Name)), [1, 3, 7]);
        assert!([2, 4, 5, 6].iter().all(|&inode| groups.get(inode).is_none()));
        // The number of a removed group is given to another.
        groups.take_listing(ROOT, vec![(3, "new".into())]);
        assert_eq!((groups.path(3), groups.get(3).unwrap().usage_bytes), ("/new".into(), None));
        groups.remove(ROOT);
        assert!(groups.get(ROOT).is_some());
    }

    #[test]
    fn rates_are_over_the_time_between_a_groups_own_samples() {
        let mut groups = tree();
        let start = Instant::now();
        let sample = |pages| GroupSample {
            usage_bytes: 7,
            stat: [("total_pgpgin".to_owned(), pages), ("other".to_owned(), 1)].into(),
            ..GroupSample::default()
        };
        groups.take_sample(2, start, sample(100), true);
        assert_eq!(groups.get(2).unwrap().row.as_ref().unwrap().pages_in_per_second, 0.0);
        groups.begin_tick();
        groups.begin_tick();
        groups.take_sample(2, start + Duration::from_secs(4), sample(180), true);
        assert_eq!(groups.get(2).unwrap().row.as_ref().unwrap().pages_in_per_second, 20.0);
        assert_eq!(groups.history(2, 3, |point| point.pages_in), [Some(0.0), None, Some(20.0)]);
        assert_eq!(groups.lines(&order(TopSort::Refaults))[1], 2, "what is not known comes last");
        // A sample of a group removed meanwhile.
        groups.take_sample(99, start, sample(1), false);
        assert!(groups.get(99).is_none());
    }
}
