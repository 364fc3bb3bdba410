//! A queue in which tenants take turns, and, within each tenant, its groups at each level.
//!
//! A group with items costs up to 1 KiB here, and so does each group above it. No group is charged
//! for that, but for the items and for the groups (`docs/semantics/what-no-group-pays-for.md`).

use std::collections::{HashMap, VecDeque};

use crate::GroupPath;

/// The depth of the groups that a caller may select from: just below the tenants.
const DEPTH_OF_ASKED: usize = 1;

/// See the module text.
#[derive(Debug)]
pub struct TurnQueue<J> {
    root: Level<J>,
    len: usize,
}

/// A group with waiting items, of its own or of groups in it.
#[derive(Debug)]
struct Level<J> {
    /// Of the group itself, in the order of arrival.
    own: VecDeque<(GroupPath, J)>,
    /// By the number of the group; only groups with waiting items.
    below: HashMap<u64, Level<J>>,
    /// The numbers of the groups below, and `None` for the group itself; the next comes first.
    turn: VecDeque<Option<u64>>,
}

impl<J> Default for TurnQueue<J> {
    fn default() -> Self {
        Self { root: Level::default(), len: 0 }
    }
}

impl<J> Default for Level<J> {
    fn default() -> Self {
        Self { own: VecDeque::new(), below: HashMap::new(), turn: VecDeque::new() }
    }
}

impl<J> TurnQueue<J> {
    /// Adds an item of a group.
    pub fn push(&mut self, path: GroupPath, job: J) {
        let mut level = &mut self.root;
        for &group in path.levels() {
            if !level.below.contains_key(&group) {
                level.turn.push_back(Some(group));
            }
            level = level.below.entry(group).or_default();
        }
        if level.own.is_empty() {
            level.turn.push_back(None);
        }
        level.own.push_back((path, job));
        self.len += 1;
    }

    /// Takes out the next item.
    pub fn pop(&mut self) -> Option<(GroupPath, J)> {
        self.pop_of(&|_| true)
    }

    /// Takes out the next item for which `may` accepts the group just below its tenant. An item of
    /// the tenant itself needs no consent.
    pub fn pop_of(&mut self, may: &dyn Fn(u64) -> bool) -> Option<(GroupPath, J)> {
        self.pop_from_root(may, &|_| true)
    }

    /// Takes out the next item accepted by `fits`. Groups without such an item keep their turn.
    pub fn pop_fitting(&mut self, fits: &dyn Fn(&J) -> bool) -> Option<(GroupPath, J)> {
        self.pop_from_root(&|_| true, fits)
    }

    fn pop_from_root(
        &mut self,
        may: &dyn Fn(u64) -> bool,
        fits: &dyn Fn(&J) -> bool,
    ) -> Option<(GroupPath, J)> {
        let next = self.root.pop(0, may, fits);
        self.len -= usize::from(next.is_some());
        next
    }

    /// Returns whether [`pop_of`](Self::pop_of) would return an item.
    pub fn has_of(&self, may: &dyn Fn(u64) -> bool) -> bool {
        self.root.has(0, may)
    }

    /// Returns the number of parts of the size of a group's part of all turns, while every group
    /// with items has more.
    pub fn nr_parts(&self, path: &GroupPath) -> u64 {
        let (mut level, mut nr_parts) = (&self.root, 1_u64);
        let mut groups = path.levels().iter();
        loop {
            nr_parts = nr_parts.saturating_mul(level.turn.len().max(1) as u64);
            match groups.next().and_then(|group| level.below.get(group)) {
                Some(below) => level = below,
                None => return nr_parts,
            }
        }
    }

    /// Returns the number of tenants with items.
    pub fn nr_tenants(&self) -> u64 {
        self.root.turn.len() as u64
    }

    /// Takes out the items selected by `is_meant`.
    pub fn take_out(&mut self, is_meant: impl Fn(&J) -> bool) -> Vec<(GroupPath, J)> {
        let mut taken = Vec::new();
        self.root.take_out(&is_meant, &mut taken);
        self.len -= taken.len();
        taken
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<J> Level<J> {
    fn pop(
        &mut self,
        depth: usize,
        may: &dyn Fn(u64) -> bool,
        fits: &dyn Fn(&J) -> bool,
    ) -> Option<(GroupPath, J)> {
        for at in 0..self.turn.len() {
            let next = self.turn[at];
            let (popped, is_left) = match next {
                Some(group) if depth == DEPTH_OF_ASKED && !may(group) => continue,
                None => {
                    let first = self.own.iter().position(|(_, job)| fits(job));
                    (first.and_then(|first| self.own.remove(first)), !self.own.is_empty())
                }
                Some(group) => {
                    let below = self.below.get_mut(&group)?;
                    let popped = below.pop(depth + 1, may, fits);
                    let is_left = !below.turn.is_empty();
                    if !is_left {
                        self.below.remove(&group);
                    }
                    (popped, is_left)
                }
            };
            if popped.is_some() {
                self.turn.remove(at);
                self.turn.extend(is_left.then_some(next));
                return popped;
            }
        }
        None
    }

    fn has(&self, depth: usize, may: &dyn Fn(u64) -> bool) -> bool {
        self.turn.iter().any(|next| match next {
            None => true,
            Some(group) if depth == DEPTH_OF_ASKED => may(*group),
            Some(group) => self.below.get(group).is_some_and(|below| below.has(depth + 1, may)),
        })
    }

    fn take_out(&mut self, is_meant: &dyn Fn(&J) -> bool, taken: &mut Vec<(GroupPath, J)>) {
        let Self { own, below, turn } = self;
        let (out, stays): (VecDeque<_>, _) = own.drain(..).partition(|(_, job)| is_meant(job));
        taken.extend(out);
        *own = stays;
        below.values_mut().for_each(|level| level.take_out(is_meant, taken));
        below.retain(|_, level| !level.turn.is_empty());
        turn.retain(|next| next.map_or(!own.is_empty(), |group| below.contains_key(&group)));
    }
}

#[cfg(all(test, not(any(loom, schedule))))]
mod tests {
    use super::*;

    fn of(levels: &[u64], jobs: std::ops::Range<u32>, queue: &mut TurnQueue<u32>) {
        jobs.for_each(|job| queue.push(GroupPath::new(levels), job));
    }

    #[test]
    fn groups_take_turns_at_each_level_and_each_has_its_order() {
        let mut queue = TurnQueue::default();
        of(&[1, 2], 0..3, &mut queue);
        of(&[1, 3, 4], 10..12, &mut queue);
        of(&[1], 20..21, &mut queue);
        of(&[1, 3, 5], 30..33, &mut queue);
        assert_eq!(queue.len(), 9);
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|(_, job)| job).collect();
        assert_eq!(order, [0, 10, 20, 1, 30, 2, 11, 31, 32]);
        assert!(queue.is_empty() && queue.root.below.is_empty());
    }

    #[test]
    fn a_group_that_may_not_is_passed_over_and_keeps_its_turn() {
        let mut queue = TurnQueue::default();
        of(&[1, 2, 4], 0..2, &mut queue);
        of(&[1, 3], 10..12, &mut queue);
        let but_second = |group| group != 2;
        let next = |queue: &mut TurnQueue<u32>| queue.pop_of(&but_second).map(|(_, job)| job);
        assert_eq!([next(&mut queue), next(&mut queue), next(&mut queue)], [Some(10), Some(11), None]);
        assert!(!queue.has_of(&but_second) && queue.has_of(&|_| true) && queue.len() == 2);
        of(&[1], 20..21, &mut queue);
        assert_eq!([next(&mut queue), next(&mut queue)], [Some(20), None], "of the tenant itself");
        assert_eq!(queue.pop().map(|(_, job)| job), Some(0));
    }

    #[test]
    fn an_item_that_does_not_fit_keeps_its_place() {
        let mut queue = TurnQueue::default();
        of(&[1, 2], 0..3, &mut queue);
        of(&[1, 3], 10..11, &mut queue);
        of(&[4], 20..22, &mut queue);
        let next = |queue: &mut TurnQueue<u32>, least: u32| {
            queue.pop_fitting(&|job| *job >= least).map(|(_, job)| job)
        };
        let order = [10, 1, 1, 30, 0, 0, 0].map(|least| next(&mut queue, least));
        assert_eq!(order, [Some(10), Some(20), Some(1), None, Some(21), Some(0), Some(2)]);
        assert!(queue.is_empty() && queue.root.below.is_empty());
    }

    #[test]
    fn a_tenant_with_many_groups_has_the_part_of_one() {
        let mut queue = TurnQueue::default();
        let parts = |queue: &TurnQueue<u32>, path: &[u64]| queue.nr_parts(&GroupPath::new(path));
        assert_eq!(parts(&queue, &[1, 2]), 1);
        (100..250).for_each(|group| of(&[1, group], 0..1, &mut queue));
        of(&[2], 0..1, &mut queue);
        assert_eq!([&[1, 100][..], &[2], &[3]].map(|path| parts(&queue, path)), [300, 2, 2]);
        assert_eq!(queue.nr_tenants(), 2);
        // A group has a part beside the groups in it.
        of(&[2, 5, 6], 0..1, &mut queue);
        of(&[2, 5], 0..1, &mut queue);
        assert_eq!([&[2][..], &[2, 5], &[2, 5, 6]].map(|path| parts(&queue, path)), [4, 8, 8]);
    }

    #[test]
    fn what_is_taken_out_leaves_the_turns_of_the_rest() {
        let mut queue = TurnQueue::default();
        of(&[1, 2], 0..4, &mut queue);
        of(&[1, 3], 10..12, &mut queue);
        assert_eq!(queue.take_out(|job| job % 2 == 0 || *job > 9).len(), 4);
        assert_eq!((queue.len(), queue.root.below[&1].turn.len()), (2, 1));
        of(&[1, 3], 20..21, &mut queue);
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|(_, job)| job).collect();
        assert_eq!(order, [1, 20, 3]);
    }
}
