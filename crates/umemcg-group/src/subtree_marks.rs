//! Marks on the groups to be visited by walks over a subtree, so other groups cost nothing.
//!
//! Used for groups with reclaimable memory, and for groups over their soft limit
//! (`excess`).
//!
//! Every group has a mark, and the set of its children with a mark in their subtrees. The mark is a
//! conservative hint. A thread adding something always sets it. A walk finding nothing clears it
//! and checks again. Only changing a mark takes locks, child before parent, up to the first
//! ancestor whose set does not change.

use std::collections::BTreeMap;
use std::ops::Bound;

use umemcg_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use umemcg_base::{LeafMutex, Rank};

/// One group's mark, and the children to visit. `C` is a parent's handle for a child.
#[derive(Debug)]
pub struct SubtreeMarks<C> {
    /// The mark of this group.
    here: AtomicBool,
    /// Number of children in the set; written under its lock.
    nr_children: AtomicU32,
    below: LeafMutex<MarkedChildren<C>>,
}

#[derive(Debug)]
struct MarkedChildren<C> {
    /// This group is in its parent's set.
    linked: bool,
    /// The group was removed; it is never put into a set again.
    dead: bool,
    /// By serial, in the order of walks.
    children: BTreeMap<u64, C>,
}

/// One group on the path to the root: its marks, its serial, and the handle for its parent's set.
#[derive(Debug)]
pub struct PathNode<'a, C> {
    /// The group's marks.
    pub subtree_marks: &'a SubtreeMarks<C>,
    /// The group's serial.
    pub id: u64,
    /// Handle for the parent's set.
    pub child: C,
}

impl<C> Default for SubtreeMarks<C> {
    fn default() -> Self {
        Self {
            here: AtomicBool::new(false),
            nr_children: AtomicU32::new(0),
            below: LeafMutex::with_rank(
                Rank::SubtreeMarks,
                MarkedChildren { linked: false, dead: false, children: BTreeMap::new() },
            ),
        }
    }
}

impl<C> SubtreeMarks<C> {
    /// Returns whether the group itself is marked.
    pub fn is_marked(&self) -> bool {
        self.here.load(Ordering::Relaxed)
    }

    /// Returns whether the group or any descendant is marked. Takes no lock.
    pub fn is_any_marked(&self) -> bool {
        self.is_marked() || self.nr_children() > 0
    }

    /// Returns the number of children with a mark in their subtrees. Takes no lock.
    pub fn nr_children(&self) -> u32 {
        self.nr_children.load(Ordering::Relaxed)
    }

    /// Changes the set of children. The caller holds the child's lock.
    fn insert(&self, id: u64, child: C) {
        let mut below = self.below.lock_second();
        below.children.insert(id, child);
        self.nr_children.store(below.children.len() as u32, Ordering::Relaxed);
    }

    /// Changes the set of children. The caller holds the child's lock.
    fn remove(&self, id: u64) {
        let mut below = self.below.lock_second();
        below.children.remove(&id);
        self.nr_children.store(below.children.len() as u32, Ordering::Relaxed);
    }

    /// Returns the next child after the serial `after` with a mark in its subtree.
    pub fn next_child(&self, after: u64) -> Option<C>
    where
        C: Clone,
    {
        let younger = (Bound::Excluded(after), Bound::Unbounded);
        self.below.lock().children.range(younger).next().map(|(_, child)| child.clone())
    }
}

/// Marks the first group of `chain`, a path to the root, after something was added to the group. A
/// walk must be able to find the addition already.
pub fn note_present<'a, C: 'a>(mut chain: impl Iterator<Item = PathNode<'a, C>>) {
    let Some(first) = chain.next() else { return };
    // Release: pairs with the Acquire in `note_absent`. Unconditional, so of an adding and a
    // clearing thread, the later to write the mark sees the earlier one's preceding writes.
    if !first.subtree_marks.here.swap(true, Ordering::Release) {
        link_up(first, chain);
    }
}

fn link_up<'a, C: 'a>(first: PathNode<'a, C>, chain: impl Iterator<Item = PathNode<'a, C>>) {
    let mut at = first;
    for parent in chain {
        {
            let mut below = at.subtree_marks.below.lock();
            // Relaxed: this thread sees its own mark; any other mark is linked up by the thread
            // setting it.
            let anything = at.subtree_marks.here.load(Ordering::Relaxed) || !below.children.is_empty();
            if below.linked || below.dead || !anything {
                return;
            }
            below.linked = true;
            parent.subtree_marks.insert(at.id, at.child);
        }
        at = parent;
    }
}

/// Clears the mark of the first group of `chain` after a walk found it empty. Then `still` checks
/// again; if it returns `true`, the mark is set again. `LOOK_AGAIN` is off only in the model
/// showing why it is needed.
pub fn note_absent<'a, const LOOK_AGAIN: bool, C: 'a>(
    mut chain: impl Iterator<Item = PathNode<'a, C>>,
    still: impl FnOnce() -> bool,
) {
    let Some(first) = chain.next() else { return };
    // Acquire: pairs with the Release in `note_present`.
    first.subtree_marks.here.swap(false, Ordering::Acquire);
    if LOOK_AGAIN && still() {
        // As in `note_present`.
        if !first.subtree_marks.here.swap(true, Ordering::Release) {
            link_up(first, chain);
        }
        return;
    }
    unlink_up(first, chain, false);
}

/// Takes the first group of `chain`, a removed group, out of its parent's set for good. Does not
/// mark the parent.
pub fn note_removed<'a, C: 'a>(mut chain: impl Iterator<Item = PathNode<'a, C>>) {
    let Some(first) = chain.next() else { return };
    unlink_up(first, chain, true);
}

fn unlink_up<'a, C: 'a>(first: PathNode<'a, C>, chain: impl Iterator<Item = PathNode<'a, C>>, removed: bool) {
    let mut at = first;
    let mut dead = removed;
    for parent in chain {
        {
            let mut below = at.subtree_marks.below.lock();
            below.dead |= dead;
            // Relaxed: a thread with a mark set but not yet linked up waits for this lock and links
            // it up then.
            let anything = at.subtree_marks.here.load(Ordering::Relaxed) || !below.children.is_empty();
            if !below.linked || (anything && !dead) {
                return;
            }
            below.linked = false;
            parent.subtree_marks.remove(at.id);
        }
        dead = false;
        at = parent;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A root with two children; the first child has a child.
    struct Family([SubtreeMarks<u64>; 4]);

    const ABOVE: [Option<usize>; 4] = [None, Some(0), Some(0), Some(1)];

    impl Family {
        fn chain(&self, from: usize) -> impl Iterator<Item = PathNode<'_, u64>> {
            std::iter::successors(Some(from), |&at| ABOVE[at]).map(|at| PathNode {
                subtree_marks: &self.0[at],
                id: at as u64,
                child: at as u64,
            })
        }
        fn children(&self, of: usize) -> Vec<u64> {
            std::iter::successors(self.0[of].next_child(0), |&at| self.0[of].next_child(at)).collect()
        }
    }

    fn family() -> Family {
        Family(std::array::from_fn(|_| SubtreeMarks::default()))
    }

    #[test]
    fn a_mark_is_seen_from_every_group_above_and_from_nowhere_else() {
        let family = family();
        note_present(family.chain(3));
        assert_eq!((family.children(0), family.children(1), family.children(2)), (vec![1], vec![3], vec![]));
        note_present(family.chain(2));
        assert_eq!(family.children(0), [1, 2]);
        note_absent::<true, _>(family.chain(3), || false);
        assert_eq!(family.children(0), [2]);
        assert!(!family.0[1].is_any_marked() && family.0[0].is_any_marked());
    }

    #[test]
    fn a_group_stays_linked_while_anything_is_below_it() {
        let family = family();
        note_present(family.chain(1));
        note_present(family.chain(3));
        note_absent::<true, _>(family.chain(1), || false);
        assert_eq!(family.children(0), [1]);
        note_absent::<true, _>(family.chain(3), || false);
        assert_eq!(family.children(0), Vec::<u64>::new());
    }

    #[test]
    fn a_second_look_that_finds_something_keeps_the_mark() {
        let family = family();
        note_present(family.chain(3));
        note_absent::<true, _>(family.chain(3), || true);
        assert_eq!(family.children(1), [3]);
    }

    #[test]
    fn a_removed_group_is_nowhere_and_stays_so() {
        let family = family();
        note_present(family.chain(3));
        note_removed(family.chain(3));
        assert_eq!(family.children(0), Vec::<u64>::new());
        note_absent::<true, _>(family.chain(3), || true);
        note_present(family.chain(3));
        assert_eq!(family.children(1), Vec::<u64>::new());
    }
}
