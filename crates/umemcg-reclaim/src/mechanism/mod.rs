//! The exchangeable mechanisms of reclaim: here, the shipped ones.
//!
//! Benchmarks compare them with earlier ones. With the feature `baseline` the module `baseline`
//! replaces this one, function for function, so no other file knows about it.

use std::sync::Arc;

use umemcg_group::{Group, OwnerId};

use crate::scan_control::{Progress, Round};

pub(crate) mod rounds;

/// Runs a reclaim.
#[inline(always)]
pub(crate) fn in_reclaim<R>(act: impl FnOnce() -> R) -> R {
    act()
}

/// Asks shrinkers for a group. `ask` gets the group whose objects are reclaimed for it.
#[inline(always)]
pub(crate) fn in_asking(group: &Arc<Group>, mut ask: impl FnMut(&Arc<Group>)) {
    ask(group);
}

/// Notes that a group's pages were visited, with this result.
#[inline(always)]
pub(crate) fn note_visit(_priority: u32, _progress: &Progress) {}

/// Returns whether objects are left alone.
#[inline(always)]
pub(crate) fn takes_pages_only() -> bool {
    false
}

/// Returns the owner on whose list an object of `owner` is put.
#[inline(always)]
pub(crate) fn list_owner(owner: OwnerId) -> OwnerId {
    owner
}

/// Returns whether the round over groups in excess checks every group, and is always made.
#[inline(always)]
pub(crate) fn skips_no_subtree() -> bool {
    false
}

/// Returns whether a walk visits empty groups, too.
#[inline(always)]
pub(crate) fn visits_every_group(_round: Round) -> bool {
    false
}

/// Returns whether reclaim waits for write-back when it finds only dirty pages.
#[inline(always)]
pub(crate) fn waits_for_dirty() -> bool {
    true
}

/// Returns whether the round over all groups follows a first round, when that is decided by its
/// result alone.
#[inline(always)]
pub(crate) fn follows_first_round(_first: &Progress) -> Option<bool> {
    None
}

/// Returns the round by whose rules the share of a list is computed.
#[inline(always)]
pub(crate) fn round_of_share(round: Round) -> Round {
    round
}

/// Returns the number of pages of an active list to scan, where the usual number is `share`.
#[inline(always)]
pub(crate) fn active_share(share: u64) -> u64 {
    share
}

/// Charges pages and gets frames for them.
#[inline(always)]
pub fn charge_to_frame<R>(act: impl FnOnce() -> R) -> R {
    act()
}

/// Returns whether dirty pages are counted for groups.
#[inline(always)]
pub fn counts_dirty_for_groups() -> bool {
    true
}
