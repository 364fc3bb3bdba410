//! Groups for tests, of the layers above too.

use std::sync::Arc;

use crate::{Group, GroupTree};

/// Creates a hundred groups below a group: it should gain nothing by them.
///
/// # Panics
/// If there is no room for them.
pub fn hundred_below(tree: &GroupTree, parent: &Arc<Group>) -> Vec<Arc<Group>> {
    (0..100).map(|nr: u32| tree.create(parent, nr.to_string().as_ref()).unwrap()).collect()
}
