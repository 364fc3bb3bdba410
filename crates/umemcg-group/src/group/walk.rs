//! Walking a subtree while groups come and go.

use std::ops::Bound;
use std::sync::Arc;

use super::Group;

impl Group {
    /// Returns the next group in the subtree of `root` after `after`, parents before children,
    /// older siblings before younger; `None` starts with `root` itself. `after` may have been
    /// removed meanwhile; the walk then continues where it would have been. Takes one lock per
    /// level and holds none on return.
    #[doc(alias = "mem_cgroup_iter")]
    pub fn next_in_subtree(root: &Arc<Group>, after: Option<&Arc<Group>>) -> Option<Arc<Group>> {
        let Some(after) = after else {
            return Some(Arc::clone(root));
        };
        if let Some((_, first)) = after.children.lock().by_id.first_key_value() {
            return Some(Arc::clone(first));
        }
        Self::next_after_subtree(root, after)
    }

    /// Returns the next group in the subtree of `root` after `after` and all groups below it, in
    /// the order of [`next_in_subtree`](Self::next_in_subtree).
    pub fn next_after_subtree(root: &Arc<Group>, after: &Arc<Group>) -> Option<Arc<Group>> {
        let mut at = after;
        // Bounded by the depth of `after`.
        while !Arc::ptr_eq(at, root) {
            let parent = at.parent()?;
            let younger = (Bound::Excluded(at.id()), Bound::Unbounded);
            if let Some((_, next)) = parent.children.lock().by_id.range(younger).next() {
                return Some(Arc::clone(next));
            }
            at = parent;
        }
        None
    }
}
