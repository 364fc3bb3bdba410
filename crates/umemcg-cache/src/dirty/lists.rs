//! The dirty files of one store, kept by group: each group that has any has a list, the longest dirty first. A group without
//! dirty files has none, so what nobody writes to costs nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use umemcg_group::Group;

use crate::file::File;

#[derive(Debug)]
struct List {
    group: Arc<Group>,
    files: VecDeque<Arc<File>>,
}

/// See the file's head. Guarded by the store's queue lock.
#[derive(Debug, Default)]
pub(crate) struct DirtyLists {
    by_group: BTreeMap<u64, List>,
}

/// The nearest group that has not been removed.
fn living(mut group: &Arc<Group>) -> &Arc<Group> {
    while group.is_dead()
        && let Some(parent) = group.parent()
    {
        group = parent;
    }
    group
}

impl DirtyLists {
    /// Whether there is no dirty file.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_group.is_empty()
    }

    /// Puts a file at the end of its group's list.
    pub(crate) fn push(&mut self, group: &Arc<Group>, file: Arc<File>) {
        // Whoever removes the group marks it first and takes this lock afterwards, to hand the list over.
        let group = living(group);
        let list = self
            .by_group
            .entry(group.id())
            .or_insert_with(|| List { group: Arc::clone(group), files: VecDeque::new() });
        list.files.push_back(file);
    }

    /// Of the first `left` files of a group takes the first that `is_due`; those before it go to the end. `left` becomes how
    /// many are still to be looked at.
    pub(crate) fn take(
        &mut self,
        group: u64,
        left: &mut usize,
        is_due: impl Fn(&File) -> bool,
    ) -> Option<Arc<File>> {
        let list = self.by_group.get_mut(&group)?;
        let mut taken = None;
        while *left > 0
            && taken.is_none()
            && let Some(file) = list.files.pop_front()
        {
            *left -= 1;
            if is_due(&file) {
                taken = Some(file);
            } else {
                list.files.push_back(file);
            }
        }
        if list.files.is_empty() {
            self.by_group.remove(&group);
        }
        taken
    }

    /// Takes a file off its group's list; false when it is not there. Looks through the list.
    pub(crate) fn remove(&mut self, group: &Arc<Group>, file: &Arc<File>) -> bool {
        let group = living(group).id();
        let Some(list) = self.by_group.get_mut(&group) else { return false };
        let Some(at) = list.files.iter().position(|there| Arc::ptr_eq(there, file)) else { return false };
        list.files.remove(at);
        if list.files.is_empty() {
            self.by_group.remove(&group);
        }
        true
    }

    /// The groups that have dirty files, with how many.
    pub(crate) fn groups(&self) -> Vec<(Arc<Group>, usize)> {
        self.by_group.values().map(|list| (Arc::clone(&list.group), list.files.len())).collect()
    }

    /// The files in which a group, or one below it, may have dirty pages: its own, and those that several groups share.
    pub(crate) fn files_of<'l>(&'l self, group: &'l Group) -> impl Iterator<Item = &'l Arc<File>> {
        self.by_group.values().flat_map(move |list| {
            let is_own = living(&list.group).is_descendant_of(group);
            list.files.iter().filter(move |file| is_own || file.dirty_owner.is_shared())
        })
    }

    /// All files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<File>> {
        self.by_group.values().flat_map(|list| &list.files)
    }

    /// A group has been removed: what it has is its parent's, behind what the parent has.
    pub(crate) fn hand_over(&mut self, dying: &Arc<Group>, parent: &Arc<Group>) {
        if let Some(list) = self.by_group.remove(&dying.id()) {
            for file in list.files {
                self.push(parent, file);
            }
        }
    }
}
