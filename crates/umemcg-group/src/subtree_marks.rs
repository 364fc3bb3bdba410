//! Where in a subtree there is anything at all: a walk goes only there, and the groups that have
//! nothing cost nothing.
//!
//! Used for what reclaim finds in a group, and for groups over their soft limit
//! ([`crate::excess`]).
//!
//! Every group has a mark, and the set of its children in whose subtrees a mark is set. The mark is
//! a hint that errs on one side: a thread that adds something sets it; a walk that found nothing
//! clears it and looks again. Only a mark that changes takes locks, child before parent, up to the
//! first ancestor whose set does not change.

use std::collections::BTreeMap;
use std::ops::Bound;

use umemcg_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use umemcg_base::{LeafMutex, Rank};

/// One group's mark, and which children to visit. `C` is what a parent keeps of a child.
#[derive(Debug)]
pub struct SubtreeMarks<C> {
    /// Something may be in this group itself.
    here: AtomicBool,
    /// Children in the set; written under its lock.
    nr_children: AtomicU32,
    below: LeafMutex<Below<C>>,
}

#[derive(Debug)]
struct Below<C> {
    /// The parent's set has us.
    linked: bool,
    /// The group was removed: it is nowhere any more.
    dead: bool,
    /// By serial, as walks go.
    children: BTreeMap<u64, C>,
}

/// A step on the way up: a group's marks, its serial, and what its parent is to keep of it.
#[derive(Debug)]
pub struct Step<'a, C> {
    /// The group's.
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
                Below { linked: false, dead: false, children: BTreeMap::new() },
            ),
        }
    }
}

impl<C> SubtreeMarks<C> {
    /// Returns whether something may be in the group itself.
    pub fn is_here(&self) -> bool {
        self.here.load(Ordering::Relaxed)
    }

    /// Returns whether something may be in the group or below it.
    #[cfg(test)]
    fn is_anywhere(&self) -> bool {
        self.is_here() || !self.below.lock().children.is_empty()
    }

    /// Returns the number of children in whose subtrees something may be. Takes no lock.
    pub fn nr_children(&self) -> u32 {
        self.nr_children.load(Ordering::Relaxed)
    }

    /// The child's is locked.
    fn insert(&self, id: u64, child: C) {
        let mut below = self.below.lock_second();
        below.children.insert(id, child);
        self.nr_children.store(below.children.len() as u32, Ordering::Relaxed);
    }

    /// The child's is locked.
    fn remove(&self, id: u64) {
        let mut below = self.below.lock_second();
        below.children.remove(&id);
        self.nr_children.store(below.children.len() as u32, Ordering::Relaxed);
    }

    /// Returns the next child after the serial in whose subtree something may be.
    pub fn next_child(&self, after: u64) -> Option<C>
    where
        C: Clone,
    {
        let younger = (Bound::Excluded(after), Bound::Unbounded);
        self.below.lock().children.range(younger).next().map(|(_, child)| child.clone())
    }
}

/// Notes that something was added to the first group of `chain`, which leads to the root. A look
/// must find it there already.
pub fn note_present<'a, C: 'a>(mut chain: impl Iterator<Item = Step<'a, C>>) {
    let Some(first) = chain.next() else { return };
    // Release: pairs with the Acquire in `note_absent`. Unconditional, so that of an adder and a
    // clearer the later sees what the earlier did before.
    if !first.subtree_marks.here.swap(true, Ordering::Release) {
        link_up(first, chain);
    }
}

fn link_up<'a, C: 'a>(first: Step<'a, C>, chain: impl Iterator<Item = Step<'a, C>>) {
    let mut at = first;
    for parent in chain {
        {
            let mut below = at.subtree_marks.below.lock();
            // Relaxed: the mark that we set ourselves is seen, any other is for its setter to link
            // up.
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

/// Notes that nothing was found in the first group of `chain`. `still` looks again, after the mark
/// is cleared; if something is there now, the mark comes back. `LOOK_AGAIN` is off only in the
/// model that shows what it is good for.
pub fn note_absent<'a, const LOOK_AGAIN: bool, C: 'a>(
    mut chain: impl Iterator<Item = Step<'a, C>>,
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

/// Notes that the first group of `chain` was removed, and that what it had is the parent's.
pub fn note_removed<'a, C: 'a>(mut chain: impl Iterator<Item = Step<'a, C>>) {
    let Some(first) = chain.next() else { return };
    unlink_up(first, chain, true);
}

fn unlink_up<'a, C: 'a>(first: Step<'a, C>, chain: impl Iterator<Item = Step<'a, C>>, removed: bool) {
    let mut at = first;
    let mut dead = removed;
    for parent in chain {
        {
            let mut below = at.subtree_marks.below.lock();
            below.dead |= dead;
            // Relaxed: a thread that set the mark and has not linked it up yet waits for this lock
            // and links it up then.
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

    /// A root with two children, the first of which has a child.
    struct Family([SubtreeMarks<u64>; 4]);

    const ABOVE: [Option<usize>; 4] = [None, Some(0), Some(0), Some(1)];

    impl Family {
        fn chain(&self, from: usize) -> impl Iterator<Item = Step<'_, u64>> {
            std::iter::successors(Some(from), |&at| ABOVE[at]).map(|at| Step {
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
        assert!(!family.0[1].is_anywhere() && family.0[0].is_anywhere());
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
