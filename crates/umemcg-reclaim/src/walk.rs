//! The round-robin walk over a subtree that concurrent reclaimers share.
//!
//! Every group that is ever a root of reclaim keeps a position and a generation. A walker takes the group after the
//! position and moves it on; the walker that reaches the end raises the generation, and who started under an older one
//! stops. So N reclaimers together make one round, not N (`kernel-semantics` §2.4).
//!
//! A rule says of each group whether the walk visits it, passes it by, or passes by everything below it as well.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use umemcg_group::Group;

use crate::lruvec::ReclaimPart;

#[derive(Debug, Default)]
struct Position {
    /// The group handed out last; none at the start of a round. Weak: a walk keeps no group alive.
    last: Option<Weak<Group>>,
    generation: u64,
}

/// Where the shared walk over one group's subtree stands.
#[derive(Debug, Default)]
pub struct WalkPosition {
    inner: Mutex<Position>,
}

impl WalkPosition {
    pub(crate) fn new() -> Self {
        Self::default()
    }
}

/// What a walk does with a group that it comes to.
#[doc(alias = "mem_cgroup_filter_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "soft limits are next")]
pub(crate) enum WalkVerdict {
    /// Hands it out.
    Visit,
    /// Passes it by, and goes on below it.
    #[doc(alias = "SKIP")]
    Skip,
    /// Passes it by with everything below it.
    #[doc(alias = "SKIP_TREE")]
    SkipSubtree,
}

/// What a walk asks of every group that it comes to. Called with the walk's position locked: it must be short and take no
/// lock that reclaim holds.
pub(crate) type WalkRule<'a> = &'a dyn Fn(&Arc<Group>) -> WalkVerdict;

/// One reclaimer's part in a shared walk.
#[doc(alias = "mem_cgroup_iter")]
pub(crate) struct SharedWalk<'a> {
    root: &'a Arc<Group>,
    nr_nodes: usize,
    rule: WalkRule<'a>,
    /// The generation in which this walker started; `None` before its first step.
    generation: Option<u64>,
}

impl<'a> SharedWalk<'a> {
    /// A walker over those groups of `root` and everything below it that `rule` has visited.
    pub(crate) fn new(root: &'a Arc<Group>, nr_nodes: usize, rule: WalkRule<'a>) -> Self {
        Self { root, nr_nodes, rule, generation: None }
    }
}

impl Iterator for SharedWalk<'_> {
    type Item = Arc<Group>;

    fn next(&mut self) -> Option<Arc<Group>> {
        let mut position = ReclaimPart::of(self.root, self.nr_nodes).position.inner.lock();
        match self.generation {
            None => self.generation = Some(position.generation),
            Some(mine) if mine != position.generation => return None,
            Some(_) => {}
        }
        // A group that died since is skipped to the start of the round: nothing is lost, its pages are the parent's. But for
        // the root of the walk itself, from which the round would start for ever.
        let is_place = |group: &Arc<Group>| Arc::ptr_eq(group, self.root) || !group.is_dead();
        let mut last = position.last.take().and_then(|weak| weak.upgrade()).filter(is_place);
        let mut below_too = true;
        // Bounded by the groups below the root: every step goes on in their order.
        loop {
            let Some(next) = next_occupied(self.root, last.as_ref(), below_too, self.nr_nodes) else {
                position.generation += 1;
                return None;
            };
            match (self.rule)(&next) {
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

/// The groups of a subtree in which there may be anything, one walker's own round.
#[derive(Debug)]
pub(crate) struct OccupiedGroups<'a> {
    root: &'a Arc<Group>,
    nr_nodes: usize,
    last: Option<Arc<Group>>,
    is_over: bool,
}

impl<'a> OccupiedGroups<'a> {
    pub(crate) fn new(root: &'a Arc<Group>, nr_nodes: usize) -> Self {
        Self { root, nr_nodes, last: None, is_over: false }
    }
}

impl Iterator for OccupiedGroups<'_> {
    type Item = Arc<Group>;

    fn next(&mut self) -> Option<Arc<Group>> {
        if self.is_over {
            return None;
        }
        let next = next_occupied(self.root, self.last.as_ref(), true, self.nr_nodes);
        self.is_over = next.is_none();
        self.last.clone_from(&next);
        next
    }
}

/// The next group in the subtree of `root` after `after` in which there may be anything, parents before children; groups on
/// the way to one count. `None` starts with `root` itself; without `below_too`, what is below `after` is left out. The
/// position may be a group that was removed meanwhile.
fn next_occupied(
    root: &Arc<Group>,
    after: Option<&Arc<Group>>,
    below_too: bool,
    nr_nodes: usize,
) -> Option<Arc<Group>> {
    #[cfg(feature = "baseline")]
    if crate::baseline::visits_every_group() && below_too {
        return Group::next_in_subtree(root, after);
    }
    let Some(after) = after else { return Some(Arc::clone(root)) };
    if below_too && let Some(child) = next_child(after, 0, nr_nodes) {
        return Some(child);
    }
    let mut at = after;
    // Bounded by the depth of `after`.
    while !Arc::ptr_eq(at, root) {
        let parent = at.parent()?;
        if let Some(younger) = next_child(parent, at.id(), nr_nodes) {
            return Some(younger);
        }
        at = parent;
    }
    None
}

fn next_child(of: &Arc<Group>, after: u64, nr_nodes: usize) -> Option<Arc<Group>> {
    let presence = ReclaimPart::of(of, nr_nodes).presence();
    let mut after = after;
    loop {
        let child = presence.next_child(after)?;
        match child.upgrade() {
            Some(group) => return Some(group),
            // Gone without having been removed from the tree: only its tree's end does that.
            None => after += 1,
        }
    }
}
