//! The tenant of a group.

use std::iter;
use std::sync::Arc;

use umemcg::Group;

/// Returns the tenant of a group: its ancestor just below the root, or the root for the root
/// itself.
pub(crate) fn tenant(group: &Arc<Group>) -> &Arc<Group> {
    let path = iter::successors(Some(group), |at| at.parent());
    path.filter(|at| at.parent().is_some()).last().unwrap_or(group)
}
