//! The dirty files of one store, kept by group: each group with dirty files has a list, longest
//! dirty first. A group without dirty files has no list, so it costs nothing.
//!
//! The links of all lists lie in one table, and a file knows its place there: it leaves in O(1),
//! and a removed group's list goes to its parent in O(1).
//!
//! A group is marked as removed before its list is handed over. So the list of a file is the list
//! of the nearest group with one, upwards from the group under which the file was put.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use umemcg_base::held::note_step;
use umemcg_group::Group;

use crate::dirty::dirty_file::DirtyFile;
use crate::dirty::list_position::NO_POSITION;

/// An entry of the table. A free entry has no file.
#[derive(Debug)]
struct Link {
    /// With the group under which it was put.
    file: Option<(Arc<dyn DirtyFile>, Arc<Group>)>,
    prev: u32,
    next: u32,
}

/// The links of all lists.
#[derive(Debug, Default)]
struct Links(Vec<Link>);

impl Links {
    fn at(&mut self, place: u32) -> &mut Link {
        note_step();
        &mut self.0[place as usize]
    }
}

#[derive(Debug)]
struct List {
    group: Arc<Group>,
    head: u32,
    tail: u32,
    len: usize,
}

/// See the module text. Guarded by the store's queue lock.
#[derive(Debug, Default)]
pub(crate) struct DirtyLists {
    by_group: BTreeMap<u64, List>,
    links: Links,
    free: Vec<u32>,
}

/// Returns the nearest living group, from `group` upwards.
pub(crate) fn living(mut group: &Arc<Group>) -> &Arc<Group> {
    while group.is_dead()
        && let Some(parent) = group.parent()
    {
        group = parent;
    }
    group
}

impl DirtyLists {
    /// Returns whether there is no dirty file.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_group.is_empty()
    }

    /// Puts a file at the end of its group's list.
    pub(crate) fn push(&mut self, group: &Arc<Group>, file: Arc<dyn DirtyFile>) {
        // The thread that removes the group marks it first and takes this lock afterwards, to hand
        // the list over.
        let group = living(group);
        let place = self.free.pop().unwrap_or_else(|| {
            let links = &mut self.links.0;
            links.push(Link { file: None, prev: NO_POSITION, next: NO_POSITION });
            (links.len() - 1) as u32
        });
        file.list_position().0.store(place, Ordering::Relaxed);
        let list = list_of(&mut self.by_group, group);
        let file = Some((file, Arc::clone(group)));
        *self.links.at(place) = Link { file, prev: list.tail, next: NO_POSITION };
        match list.tail {
            NO_POSITION => list.head = place,
            tail => self.links.at(tail).next = place,
        }
        list.tail = place;
        list.len += 1;
    }

    /// Takes a file off its list; `None` when it is on none.
    pub(crate) fn remove(&mut self, file: &dyn DirtyFile) -> Option<Arc<dyn DirtyFile>> {
        let place = file.list_position().0.load(Ordering::Relaxed);
        if place == NO_POSITION { None } else { self.unlink(place) }
    }

    fn unlink(&mut self, place: u32) -> Option<Arc<dyn DirtyFile>> {
        let Link { file, prev, next } = self.links.at(place);
        let ((file, owner), prev, next) = (file.take()?, *prev, *next);
        let group = self.nearest_with_list(&owner).id();
        let list = self.by_group.get_mut(&group)?;
        match prev {
            NO_POSITION => list.head = next,
            prev => self.links.at(prev).next = next,
        }
        match next {
            NO_POSITION => list.tail = prev,
            next => self.links.at(next).prev = prev,
        }
        list.len -= 1;
        if list.len == 0 {
            self.by_group.remove(&group);
        }
        file.list_position().0.store(NO_POSITION, Ordering::Relaxed);
        if self.by_group.is_empty() {
            // The memory is freed with the last file.
            (self.links, self.free) = (Links::default(), Vec::new());
        } else {
            self.free.push(place);
        }
        Some(file)
    }

    /// Takes the first due file among the first `left` files of a group. Files before it go to the
    /// end. `left` becomes the number of files still to check.
    pub(crate) fn take(
        &mut self,
        group: u64,
        left: &mut usize,
        is_due: impl Fn(&dyn DirtyFile) -> bool,
    ) -> Option<Arc<dyn DirtyFile>> {
        while *left > 0
            && let Some(list) = self.by_group.get(&group)
        {
            *left -= 1;
            let (owner, place) = (Arc::clone(&list.group), list.head);
            let file = self.unlink(place)?;
            if is_due(&*file) {
                return Some(file);
            }
            self.push(&owner, file);
        }
        None
    }

    /// Returns the groups with dirty files, each with the number of its files.
    pub(crate) fn groups(&self) -> Vec<(Arc<Group>, usize)> {
        self.by_group.values().map(|list| (Arc::clone(&list.group), list.len)).collect()
    }

    /// Returns all files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<dyn DirtyFile>> {
        self.by_group.values().flat_map(|list| self.files_on(list))
    }

    fn files_on(&self, list: &List) -> impl Iterator<Item = &Arc<dyn DirtyFile>> {
        let links = std::iter::successors(self.links.0.get(list.head as usize), |link| {
            self.links.0.get(link.next as usize)
        });
        links.filter_map(|link| link.file.as_ref().map(|(file, _)| file))
    }

    /// Returns the nearest group upwards with a list.
    fn nearest_with_list<'g>(&self, mut group: &'g Arc<Group>) -> &'g Arc<Group> {
        while !self.by_group.contains_key(&group.id())
            && let Some(parent) = group.parent()
        {
            group = parent;
        }
        group
    }

    /// Moves the files of a removed group to its parent, behind the parent's own; or further up, if
    /// the parent has handed its list over itself.
    pub(crate) fn hand_over(&mut self, dying: &Arc<Group>, parent: &Arc<Group>) {
        let Some(theirs) = self.by_group.remove(&dying.id()) else { return };
        let mut heir = parent;
        while heir.is_dead()
            && !self.by_group.contains_key(&heir.id())
            && let Some(above) = heir.parent()
        {
            heir = above;
        }
        let list = list_of(&mut self.by_group, heir);
        match list.tail {
            NO_POSITION => list.head = theirs.head,
            tail => {
                self.links.at(tail).next = theirs.head;
                self.links.at(theirs.head).prev = tail;
            }
        }
        list.tail = theirs.tail;
        list.len += theirs.len;
    }
}

/// Returns the list of a group; creates it if there is none. A list without files does not stay.
fn list_of<'l>(by_group: &'l mut BTreeMap<u64, List>, group: &Arc<Group>) -> &'l mut List {
    let new = || List { group: Arc::clone(group), head: NO_POSITION, tail: NO_POSITION, len: 0 };
    by_group.entry(group.id()).or_insert_with(new)
}

#[cfg(test)]
mod tests {
    use std::io;

    use umemcg_group::GroupTree;

    use super::*;
    use crate::dirty::dirty_file::TurnWritten;
    use crate::dirty::list_position::ListPosition;
    use crate::dirty::owner::DirtyOwner;
    use crate::dirty::queue_mark::QueueMark;
    use crate::flush_pace::FlushPace;

    #[derive(Debug, Default)]
    struct Listed(u32, ListPosition);

    impl DirtyFile for Listed {
        fn id(&self) -> u32 {
            self.0
        }
        fn is_stable(&self) -> bool {
            unreachable!()
        }
        fn queue_mark(&self) -> &QueueMark {
            unreachable!()
        }
        fn list_position(&self) -> &ListPosition {
            &self.1
        }
        fn dirty_owner(&self) -> &DirtyOwner {
            unreachable!()
        }
        fn flush_turn(self: Arc<Self>, _: &FlushPace) -> io::Result<TurnWritten> {
            unreachable!()
        }
        fn confirm_turn(self: Arc<Self>) -> io::Result<()> {
            unreachable!()
        }
    }

    #[test]
    fn a_file_leaves_a_list_that_is_about_to_be_handed_over() {
        let tree = GroupTree::new(1 << 30);
        let parent = tree.create(tree.root(), "p".as_ref()).unwrap();
        let child = tree.create(&parent, "c".as_ref()).unwrap();
        let files: Vec<Arc<Listed>> =
            (0..4).map(|id| Arc::new(Listed(id, ListPosition::default()))).collect();
        let mut lists = DirtyLists::default();
        lists.push(&parent, Arc::<Listed>::clone(&files[0]));
        lists.push(&child, Arc::<Listed>::clone(&files[1]));
        lists.push(&child, Arc::<Listed>::clone(&files[2]));
        // Marked as removed; its list is handed over a moment later.
        tree.remove(&child, |_, _| ()).unwrap();
        lists.push(&child, Arc::<Listed>::clone(&files[3]));
        assert_eq!(lists.remove(&*files[1]).unwrap().id(), 1);
        lists.hand_over(&child, &parent);
        // The parent is gone before its child's list comes.
        tree.remove(&parent, |_, _| ()).unwrap();
        lists.hand_over(&parent, tree.root());
        let mut left = 10;
        let taken = std::iter::from_fn(|| lists.take(tree.root().id(), &mut left, |_| true));
        assert_eq!(taken.map(|file| file.id()).collect::<Vec<_>>(), [0, 3, 2]);
        assert!(lists.is_empty() && lists.links.0.is_empty());
    }

    #[test]
    fn a_list_passes_by_a_group_that_has_handed_over_its_own() {
        let tree = GroupTree::new(1 << 30);
        let parent = tree.create(tree.root(), "p".as_ref()).unwrap();
        let child = tree.create(&parent, "c".as_ref()).unwrap();
        let file = Arc::new(Listed::default());
        let mut lists = DirtyLists::default();
        lists.push(&child, Arc::<Listed>::clone(&file));
        tree.remove(&child, |_, _| ()).unwrap();
        tree.remove(&parent, |_, _| ()).unwrap();
        lists.hand_over(&parent, tree.root());
        lists.hand_over(&child, &parent);
        assert_eq!(lists.groups().len(), 1);
        assert_eq!(lists.groups()[0].0.id(), tree.root().id());
        assert!(lists.remove(&*file).is_some() && lists.is_empty());
    }
}
