//! The positions of the shared walks over a group's subtree; [`crate::walk`] moves them.

use std::sync::Weak;

use umemcg_base::{Rank, RankedMutex};
use umemcg_group::Group;

#[derive(Debug, Default)]
pub(crate) struct Position {
    /// The group handed out last; none at the start of a round. Weak: a walk keeps no group alive.
    pub(crate) last: Option<Weak<Group>>,
    pub(crate) generation: u64,
}

/// The positions of the shared walks over one group's subtree.
#[derive(Debug)]
pub struct WalkPosition {
    pub(crate) all_groups: RankedMutex<Position>,
    pub(crate) in_excess: RankedMutex<Position>,
}

impl WalkPosition {
    pub(crate) fn new() -> Self {
        let start = || RankedMutex::new(Rank::WalkPosition, Position::default());
        Self { all_groups: start(), in_excess: start() }
    }
}
