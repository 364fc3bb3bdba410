//! Replacements of whole functions for visiting groups and asking shrinkers: none.

use std::sync::Arc;

use umemcg_group::Group;

use crate::protection::ReclaimProtection;
use crate::reclaimer::Reclaimer;
use crate::scan_control::{Pass, Progress};

/// Shrinks groups of a subtree in another way than in two rounds.
#[inline(always)]
pub(crate) fn shrink_otherwise(
    _reclaimer: &Reclaimer,
    _root: &Arc<Group>,
    _pass: &Pass,
    _protection: &mut ReclaimProtection<'_>,
    _enough: &dyn Fn(&Progress) -> bool,
) -> Option<(Progress, bool)> {
    None
}

/// Asks shrinkers for the objects of a group in another way than by its map.
#[inline(always)]
pub(crate) fn ask_otherwise(_reclaimer: &Reclaimer, _group: &Arc<Group>, _pass: &Pass) -> Option<Progress> {
    None
}
