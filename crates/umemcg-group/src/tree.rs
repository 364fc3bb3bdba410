//! The tree: groups are created, renamed, found and removed.
//!
//! Removal, in order:
//! 1. under the parent's and the group's own children lock: no child is left, the group is
//!    unlinked;
//! 2. the counter is marked dead (no limit, no soft limit, no new stocks);
//! 3. the layers above hand their lists over; until they are done the parent cannot be removed;
//! 4. it no longer counts as over its soft limit; the owner id is re-pointed to the parent, stocks
//!    of all threads are drained and the group's statistics move to the parent;
//! 5. the thread that drops the last `Arc` frees the group; the last charge frees the counter node.

use std::ffi::OsStr;
use std::path::{Component, Path};
use std::sync::Arc;

use crate::counter::UNLIMITED;
use crate::group::{GROUP_STATE_BYTES, Group, LEDGER, Refused, apply_to_group, update_stale_excess};
use crate::stats::{StatItem, sweep};

/// Longest name of a group.
const NAME_BYTES_MAX: usize = 255;

/// Why a group was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The parent has a child of this name.
    #[error("a group of that name exists")]
    Exists,
    /// The parent has been removed.
    #[error("the parent group has been removed")]
    ParentGone,
    /// Empty, `.`, `..`, longer than 255 bytes, or containing `/`, a newline or a zero byte.
    #[error("not a name for a group")]
    BadName,
    /// The group's own state does not fit under a limit.
    #[error("no room for the group's own state")]
    Refused(#[source] Refused),
}

/// Why a group was not removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// The group has children; remove them first. A child counts until its removal is complete.
    #[error("the group has children")]
    HasChildren,
    /// The root cannot be removed.
    #[error("the root group cannot be removed")]
    IsRoot,
    /// The group has been removed already.
    #[error("the group has been removed already")]
    Gone,
}

/// Why a group was not renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RenameError {
    /// The parent has another child of this name.
    #[error("a group of that name exists")]
    Exists,
    /// See [`CreateError::BadName`].
    #[error("not a name for a group")]
    BadName,
    /// The root has no name.
    #[error("the root group cannot be renamed")]
    IsRoot,
    /// The group has been removed.
    #[error("the group has been removed")]
    Gone,
}

/// One hierarchy of groups.
#[derive(Debug)]
pub struct GroupTree {
    root: Arc<Group>,
}

impl GroupTree {
    /// Creates a tree with only a root, whose limit is `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Arc<GroupTree> {
        let root = Group::new(Arc::from(OsStr::new("")), None, capacity_bytes);
        root.owner().set_group(Some(Arc::clone(&root)));
        Arc::new(GroupTree { root })
    }

    /// Returns the top group.
    pub fn root(&self) -> &Arc<Group> {
        &self.root
    }

    /// Returns the root's limit.
    pub fn capacity_bytes(&self) -> u64 {
        self.root.max_bytes()
    }

    /// Creates a group without a limit. Its state, [`GROUP_STATE_BYTES`], is charged to the parent;
    /// never reclaims.
    ///
    /// # Errors
    /// [`CreateError`]; nothing is changed then.
    #[doc(alias = "mem_cgroup_css_alloc")]
    pub fn create(&self, parent: &Arc<Group>, name: &OsStr) -> Result<Arc<Group>, CreateError> {
        if !is_name(name) {
            return Err(CreateError::BadName);
        }
        let name: Arc<OsStr> = Arc::from(name);
        // This first check avoids a charge for an existing name; the decisive one is below.
        if parent.is_dead() {
            return Err(CreateError::ParentGone);
        }
        if parent.child(&name).is_some() {
            return Err(CreateError::Exists);
        }
        let state = parent.try_charge(GROUP_STATE_BYTES).map_err(CreateError::Refused)?;
        let mut children = parent.children.lock();
        if parent.is_dead() {
            return Err(CreateError::ParentGone);
        }
        if children.by_name.contains_key(&name) {
            return Err(CreateError::Exists);
        }
        // The parent is alive under its lock, so the charge is the parent's own; the group's end
        // gives it back.
        let (owner, _) = state.into_raw();
        debug_assert_eq!(owner, parent.owner());
        let group = Group::new(Arc::clone(&name), Some(Arc::clone(parent)), UNLIMITED);
        group.owner().set_group(Some(Arc::clone(&group)));
        parent.stat_add(StatItem::GroupState, GROUP_STATE_BYTES as i64);
        children.by_id.insert(group.id(), Arc::clone(&group));
        children.by_name.insert(name, Arc::clone(&group));
        Ok(group)
    }

    /// Removes a group without children. Its charges stay and belong to the parent from now on.
    /// `handover` is called with the removed group and the parent, with no lock held, and moves the
    /// lists of the layers above.
    ///
    /// # Errors
    /// [`RemoveError`]; nothing is changed then.
    #[doc(alias = "mem_cgroup_css_offline")]
    pub fn remove(
        &self,
        group: &Arc<Group>,
        handover: impl FnOnce(&Arc<Group>, &Arc<Group>),
    ) -> Result<(), RemoveError> {
        let parent = group.parent().ok_or(RemoveError::IsRoot)?;
        {
            let mut siblings = parent.children.lock();
            if !siblings.by_id.contains_key(&group.id()) {
                return Err(RemoveError::Gone);
            }
            let children = group.children.lock_second();
            if !children.by_id.is_empty() || children.nr_leaving != 0 {
                return Err(RemoveError::HasChildren);
            }
            siblings.by_id.remove(&group.id());
            siblings.by_name.remove(&*group.name());
            siblings.nr_leaving += 1;
            // Under the group's own lock, so no group is created below it any more.
            group.mark_dead();
        }
        // The lists first: a thread finding a dead list resolves the owner again until it leads to
        // the parent, and by then the parent has everything. In the other order, a thread would
        // search the parent's list for an object still on the dying one.
        handover(group, parent);
        retire(group);
        parent.children.lock().nr_leaving -= 1;
        Ok(())
    }

    /// Renames a group below the same parent.
    ///
    /// # Errors
    /// [`RenameError`]; nothing is changed then.
    pub fn rename(&self, group: &Arc<Group>, name: &OsStr) -> Result<(), RenameError> {
        let parent = group.parent().ok_or(RenameError::IsRoot)?;
        if !is_name(name) {
            return Err(RenameError::BadName);
        }
        let name: Arc<OsStr> = Arc::from(name);
        let mut siblings = parent.children.lock();
        if !siblings.by_id.contains_key(&group.id()) {
            return Err(RenameError::Gone);
        }
        if let Some(there) = siblings.by_name.get(&name) {
            return if Arc::ptr_eq(there, group) { Ok(()) } else { Err(RenameError::Exists) };
        }
        siblings.by_name.remove(&*group.name());
        siblings.by_name.insert(Arc::clone(&name), Arc::clone(group));
        *group.name.write() = name;
        Ok(())
    }

    /// Returns the group at a path from the root: `/a/b`; `/` is the root.
    pub fn lookup(&self, path: &Path) -> Option<Arc<Group>> {
        let mut at = Arc::clone(&self.root);
        for component in path.components() {
            match component {
                Component::RootDir => {}
                Component::Normal(name) => {
                    let next = at.child(name)?;
                    at = next;
                }
                _ => return None,
            }
        }
        Some(at)
    }
}

impl Drop for GroupTree {
    /// Breaks the reference cycles between groups and their children.
    fn drop(&mut self) {
        let mut groups = Vec::new();
        let mut at = Group::next_in_subtree(&self.root, None);
        while let Some(group) = at {
            at = Group::next_in_subtree(&self.root, Some(&group));
            groups.push(group);
        }
        for group in groups.iter().rev() {
            group.mark_dead();
            group.unpublish();
            *group.children.lock() = Default::default();
        }
        LEDGER.purge_subtree(self.root.owner().into_raw());
        update_stale_excess();
    }
}

/// Retires a dead group: its owner id now means the parent, and its statistics move there.
fn retire(group: &Arc<Group>) {
    group.withdraw_excess();
    group.unpublish();
    // Pending changes are applied to this group; its statistics move afterward.
    LEDGER.purge::<true>(group.owner().into_raw(), &|pending| apply_to_group(group, pending));
    update_stale_excess();
    for item in StatItem::ALL {
        sweep(group.cells_upward(*item));
    }
}

fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    !bytes.is_empty()
        && bytes.len() <= NAME_BYTES_MAX
        && bytes != b"."
        && bytes != b".."
        && !bytes.iter().any(|byte| matches!(byte, b'/' | b'\n' | 0))
}
