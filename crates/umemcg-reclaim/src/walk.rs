//! The round-robin walk over a subtree, shared by concurrent reclaimers.
//!
//! Every group ever used as a root of reclaim keeps a position and a generation. A walker takes the
//! group after the position and advances the position. The walker reaching the end raises the
//! generation, and walkers started under an older generation stop. So N reclaimers together make
//! one round, not N (`kernel-semantics` §2.4).
//!
//! There are two walks, each with its own position: over all groups, and over the groups in excess
//! of a soft limit (`Round`). The second walk goes from one group in excess to the next through the
//! sets kept by their parents ([`Group::next_child_in_excess`]); a subtree without a group in
//! excess is not even looked at (mail soft-limit-rework, patches 4 and 5).

use std::sync::Arc;

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::Group;

use crate::group_reclaim::GroupReclaim;
use crate::mechanism;
use crate::scan_control::Round;

/// A walk's action on a group.
#[doc(alias = "mem_cgroup_filter_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkVerdict {
    /// Returns it to the walker.
    Visit,
    /// Skips it, and continues below it.
    #[doc(alias = "SKIP")]
    Skip,
    /// Skips it with everything below it.
    #[doc(alias = "SKIP_TREE")]
    SkipSubtree,
}

/// Returns a group and its ancestors up to the root of a reclaim and no further: groups above the
/// root are under no pressure now.
fn up_to<'a>(root: &Arc<Group>, group: &'a Arc<Group>) -> impl Iterator<Item = &'a Arc<Group>> {
    std::iter::successors(Some(group), move |at| if Arc::ptr_eq(at, root) { None } else { at.parent() })
}

/// Returns whether a group is in excess for a reclaim of `root`: the group itself, or an ancestor
/// up to `root`.
#[doc(alias = "mem_cgroup_soft_reclaim_eligible")]
pub(crate) fn is_eligible(root: &Arc<Group>, group: &Arc<Group>) -> bool {
    up_to(root, group).any(|at| at.excess_bytes() > 0)
}

/// Returns the largest excess of the group and its ancestors up to `root`, in pages.
pub(crate) fn excess_pages(root: &Arc<Group>, group: &Arc<Group>) -> u64 {
    up_to(root, group).map(|at| at.excess_bytes()).max().unwrap_or(0) / PAGE_SIZE_U64
}

/// Returns the action of a walk of this round on a group.
pub(crate) fn verdict(root: &Arc<Group>, group: &Arc<Group>, round: Round) -> WalkVerdict {
    match round {
        Round::AllGroups => WalkVerdict::Visit,
        Round::InExcess if is_eligible(root, group) => WalkVerdict::Visit,
        Round::InExcess if mechanism::skips_no_subtree() => WalkVerdict::Skip,
        Round::InExcess => {
            if group.is_in_excess() {
                // No longer in excess. The next charge above its soft limit sets the flag again.
                group.update_excess();
            }
            if group.nr_children_in_excess() > 0 { WalkVerdict::Skip } else { WalkVerdict::SkipSubtree }
        }
    }
}

/// One reclaimer's part in a shared walk.
#[doc(alias = "mem_cgroup_iter")]
#[derive(Debug)]
pub(crate) struct SharedWalk<'a> {
    root: &'a Arc<Group>,
    round: Round,
    /// The generation in which this walker started; `None` before its first step.
    generation: Option<u64>,
}

impl<'a> SharedWalk<'a> {
    /// Creates a walker over the groups of this round in the subtree of `root`.
    pub(crate) fn new(root: &'a Arc<Group>, round: Round) -> Self {
        Self { root, round, generation: None }
    }
}

impl Iterator for SharedWalk<'_> {
    type Item = Arc<Group>;

    fn next(&mut self) -> Option<Arc<Group>> {
        let positions = &GroupReclaim::of(self.root).position;
        let mut position = match self.round {
            Round::AllGroups => &positions.all_groups,
            Round::InExcess => &positions.in_excess,
        }
        .lock();
        // In the walk over groups in excess, a first step may end immediately, because others have
        // left the walk at its end; it then begins the next round.
        let mut begins_again = self.generation.is_none() && self.round == Round::InExcess;
        match self.generation {
            None => self.generation = Some(position.generation),
            Some(mine) if mine != position.generation => return None,
            Some(_) => {}
        }
        // A group that has handed over to its parent is no place to continue from, so the round
        // starts again: nothing is lost, its pages are the parent's. The root of the walk and a
        // group about to hand over remain places: otherwise the round would start again forever.
        let is_place = |group: &Arc<Group>| {
            let has_all = || group.owner().try_resolve().is_some_and(|now| Arc::ptr_eq(&now, group));
            Arc::ptr_eq(group, self.root) || !group.is_dead() || has_all()
        };
        let mut last = position.last.take().and_then(|weak| weak.upgrade()).filter(is_place);
        begins_again &= last.is_some();
        let mut below_too = true;
        // Bounded by the number of groups below the root: every step advances in their order.
        loop {
            let Some(next) = next_group(self.root, last.as_ref(), below_too, self.round) else {
                position.generation += 1;
                if std::mem::take(&mut begins_again) {
                    self.generation = Some(position.generation);
                    (last, below_too) = (None, true);
                    continue;
                }
                return None;
            };
            match verdict(self.root, &next, self.round) {
                WalkVerdict::Visit => {
                    position.last = Some(Arc::downgrade(&next));
                    return Some(next);
                }
                WalkVerdict::Skip => below_too = true,
                WalkVerdict::SkipSubtree => below_too = false,
            }
            last = Some(next);
        }
    }
}

/// The occupied groups of a subtree, as one walker's own round.
#[derive(Debug)]
pub(crate) struct OccupiedGroups<'a> {
    root: &'a Arc<Group>,
    last: Option<Arc<Group>>,
    is_over: bool,
}

impl<'a> OccupiedGroups<'a> {
    pub(crate) fn new(root: &'a Arc<Group>) -> Self {
        Self { root, last: None, is_over: false }
    }
}

impl Iterator for OccupiedGroups<'_> {
    type Item = Arc<Group>;

    fn next(&mut self) -> Option<Arc<Group>> {
        if self.is_over {
            return None;
        }
        let next = next_group(self.root, self.last.as_ref(), true, Round::AllGroups);
        self.is_over = next.is_none();
        self.last.clone_from(&next);
        next
    }
}

/// Returns the next group after `after` in the subtree of `root` for a walk of this round, parents
/// before children, including groups on the way to such a group. `None` starts with `root` itself;
/// without `below_too`, the descendants of `after` are left out. `after` may be a group removed
/// meanwhile.
fn next_group(
    root: &Arc<Group>,
    after: Option<&Arc<Group>>,
    below_too: bool,
    round: Round,
) -> Option<Arc<Group>> {
    if mechanism::visits_every_group(round) {
        return Group::next_in_subtree(root, after);
    }
    let Some(after) = after else { return Some(Arc::clone(root)) };
    // Below a group in excess, all groups are visited.
    let next_child = |of: &Arc<Group>, after: u64| match round {
        Round::InExcess if !is_eligible(root, of) => of.next_child_in_excess(after),
        _ => next_occupied_child(of, after),
    };
    if below_too && let Some(child) = next_child(after, 0) {
        return Some(child);
    }
    let mut at = after;
    // Bounded by the depth of `after`.
    while !Arc::ptr_eq(at, root) {
        let parent = at.parent()?;
        if let Some(younger) = next_child(parent, at.id()) {
            return Some(younger);
        }
        at = parent;
    }
    None
}

/// Returns the next child whose subtree may hold pages or objects.
fn next_occupied_child(of: &Arc<Group>, after: u64) -> Option<Arc<Group>> {
    let subtree_marks = GroupReclaim::of(of).subtree_marks();
    let mut after = after;
    loop {
        let child = subtree_marks.next_child(after)?;
        match child.upgrade() {
            Some(group) => return Some(group),
            // Only the end of the whole tree drops a group without removing it.
            None => after += 1,
        }
    }
}
