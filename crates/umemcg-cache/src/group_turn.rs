//! The turns of groups in a round of a store's write-back: how much of whose dirty data is written.

use std::collections::HashMap;
use std::sync::Arc;

use umemcg_base::assert_no_locks_held;
use umemcg_group::Group;

use crate::pool_writeback::PoolWriteback;

/// The amount of a group's dirty data to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushGoal {
    /// Until the group is below its background threshold.
    ToBackground,
    /// All of it: reclaim has met nothing else.
    All,
}

/// A group's turns in a round.
#[derive(Debug)]
pub(crate) struct GroupTurn {
    pub(crate) group: Arc<Group>,
    /// Files still to be looked at.
    pub(crate) left: usize,
    /// It, or a group above it, is over its background threshold, or reclaim wants it written.
    pub(crate) is_over: bool,
    /// The latter.
    pub(crate) all: bool,
    /// True if files shared with other groups are written, too.
    pub(crate) shared: bool,
}

/// Plans this round's turns, in the order of `first` and then of the groups' ages. Reads the counts
/// of every group and of those above it, so no lock may be held.
pub(crate) fn plan(
    groups: &[(Arc<Group>, usize)],
    pool: &PoolWriteback,
    wanted: &[(Arc<Group>, FlushGoal)],
    first: &[u64],
) -> Vec<GroupTurn> {
    assert_no_locks_held("the plan of a round");
    let limits = pool.dirty_limits();
    // Nothing of its own is here.
    let shared = wanted.iter().any(|(group, how)| {
        !groups.iter().any(|(list, _)| list.is_descendant_of(group))
            && (*how == FlushGoal::All || limits.is_over_background(group))
    });
    let turn = |(group, left): &(Arc<Group>, usize)| {
        let all = wanted.iter().any(|(over, how)| *how == FlushGoal::All && group.is_descendant_of(over));
        let is_over = all || limits.is_over_background(group);
        GroupTurn { group: Arc::clone(group), left: *left, is_over, all, shared }
    };
    let mut turns: Vec<GroupTurn> = groups.iter().map(turn).collect();
    let places: HashMap<u64, usize> = first.iter().copied().zip(0..).collect();
    turns.sort_by_key(|turn| places.get(&turn.group.id()).copied().unwrap_or(usize::MAX));
    turns
}
