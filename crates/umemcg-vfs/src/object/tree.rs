//! The known names of a volume: names that the kernel refers to, the directories above them, and
//! names kept for cached pages.
//!
//! A name is an inode: an object has no other. One lock guards all of them. Nothing is called with
//! it held. An operation returns the names that it removes, and they are dropped without the lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use umemcg::OwnerId;

use super::content::Content;
use super::kernel_copy::KernelCopy;
use super::node::{Cached, Facts, Node, NodeCharge, Told, ino_of};
use super::stored_names::StoredNames;
use super::stream::Stream;
use crate::attr::{FileKind, NodeId};
use crate::bucket::ObjectInfo;
use crate::name_lists::NameLists;

/// The remains of names without references; dropped without the lock.
#[derive(Debug)]
#[must_use]
pub(super) struct Removed {
    _content: Option<Arc<Content>>,
    _kernel_copy: Option<Arc<KernelCopy>>,
    _charge: Option<NodeCharge>,
    /// The group that paid, and how much, if the kernel was asked to forget it.
    pub(super) asked: Option<(OwnerId, u64)>,
}

impl Removed {
    /// Takes the remains of a removed name.
    fn of(gone: &mut Node, asked: Option<(OwnerId, u64)>) -> Self {
        let (content, kernel_copy) = (gone.content.take(), gone.kernel_copy.take());
        Self { _content: content, _kernel_copy: kernel_copy, _charge: gone.charge.take(), asked }
    }
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<NodeId, Box<Node>>,
    stored: StoredNames,
}

impl Tree {
    pub(super) fn new(now: Instant) -> Self {
        let told = Told { at: now, thread: 0 };
        let mut root = Node::new("".into(), (NodeId::ROOT, 0), (Facts::Directory(None), told));
        (root.nlookup, root.ino) = (1, 1);
        Self { nodes: HashMap::from([(NodeId::ROOT, Box::new(root))]), stored: StoredNames::default() }
    }

    /// Returns a known name.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn get(&self, node: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(&node).filter(|found| !found.is_gone).map(|found| &**found).ok_or(Errno::STALE)
    }

    /// Like [`get`](Self::get), mutable.
    pub(super) fn get_mut(&mut self, node: NodeId) -> Result<&mut Node, Errno> {
        let found = self.nodes.get_mut(&node).filter(|found| !found.is_gone);
        found.map(|found| &mut **found).ok_or(Errno::STALE)
    }

    /// Returns the inode number of the directory of a name.
    pub(super) fn parent_ino(&self, node: NodeId) -> u64 {
        let parent = self.nodes.get(&node).map(|node| node.parent);
        parent.and_then(|parent| self.nodes.get(&parent)).map_or(1, |parent| parent.ino)
    }

    /// Returns the names from the root to a node.
    fn components(&self, node: NodeId) -> Result<Vec<Arc<str>>, Errno> {
        let (mut names, mut at) = (Vec::new(), node);
        while at != NodeId::ROOT {
            let found = self.get(at)?;
            names.push(Arc::clone(&found.name));
            at = found.parent;
        }
        names.reverse();
        Ok(names)
    }

    /// Returns the directories above a node, its own first; also for a node without a name.
    pub(super) fn above(&self, node: NodeId) -> Vec<NodeId> {
        let parent = |node: &NodeId| self.nodes.get(node).map(|found| found.parent);
        let first = Some(node).filter(|&node| node != NodeId::ROOT).as_ref().and_then(parent);
        std::iter::successors(first, |at| if *at == NodeId::ROOT { None } else { parent(at) }).collect()
    }

    /// Returns the path of a node, without a slash at either end.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn path(&self, node: NodeId) -> Result<String, Errno> {
        Ok(self.components(node)?.join("/"))
    }

    /// Returns the prefix of the keys of a directory: empty, or with a slash at its end.
    ///
    /// # Errors
    /// `ESTALE`, `ENOTDIR`.
    pub(super) fn prefix(&self, node: NodeId) -> Result<String, Errno> {
        if self.get(node)?.facts.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let mut prefix = self.path(node)?;
        if !prefix.is_empty() {
            prefix.push('/');
        }
        Ok(prefix)
    }

    /// Returns the directory of a node, and its name there.
    pub(super) fn name_of(&self, node: NodeId) -> Option<(NodeId, Arc<str>)> {
        let found = self.get(node).ok()?;
        Some((found.parent, Arc::clone(&found.name)))
    }

    /// Returns the inode number of a name of a directory, known or not.
    pub(super) fn ino_below(&self, parent: NodeId, name: &str) -> u64 {
        match self.child(parent, name) {
            Some((_, known)) => known.ino,
            None => self.nodes.get(&parent).map_or(0, |directory| ino_of(directory.ino, name)),
        }
    }

    /// Returns the node of a known name.
    pub(super) fn child(&self, parent: NodeId, name: &str) -> Option<(NodeId, &Node)> {
        let node = *self.nodes.get(&parent)?.children.get(name)?;
        Some((node, &**self.nodes.get(&node)?))
    }

    /// Returns whether a name belongs to this node.
    pub(super) fn stands_for(&self, (parent, name): (NodeId, &str), node: NodeId) -> bool {
        self.child(parent, name).is_some_and(|(found, _)| found == node)
    }

    /// Counts a lookup of a known name, and takes over newer facts about it. `None` if the name has
    /// to be [entered](Self::enter) anew: a node has one version, so that neither attributes nor
    /// mappings of two versions meet in the kernel's inode.
    pub(super) fn count_known(
        &mut self,
        lists: Option<&NameLists>,
        (parent, name): (NodeId, &str),
        facts: &Facts,
        told: Told,
    ) -> Option<NodeId> {
        let node = *self.nodes.get(&parent)?.children.get(name)?;
        let found = self.nodes.get_mut(&node)?;
        if told.at >= found.told.at && found.nr_staged == 0 {
            if !found.facts.is_same(facts) {
                return None;
            }
            found.facts.learn(facts);
            found.told = told;
            // For the open files.
            if let Some(content) = &found.content {
                content.learn(found.facts.attributes());
            }
        }
        self.note_below(parent, told);
        self.count(lists, node).ok()?;
        Some(node)
    }

    /// Returns the known facts about a name, with its attributes, if a listing shows the same
    /// version and nothing contradicts them.
    pub(super) fn known_facts(&self, parent: NodeId, name: &str, listed: &Facts) -> Option<Facts> {
        let (_, found) = self.child(parent, name)?;
        let is_as_before = match (&found.facts, listed) {
            (Facts::Object(known), Facts::Object(listed)) => {
                known.is_same(listed) && known.modified.seconds == listed.modified.seconds
            }
            (known, listed) => known.is_same(listed),
        };
        let shown = found.shown();
        ((is_as_before || found.is_staged()) && shown.attributes().is_some()).then_some(shown)
    }

    /// Notes that the store reported a name in a directory: so the directory exists.
    fn note_below(&mut self, directory: NodeId, told: Told) {
        if let Ok(found) = self.get_mut(directory)
            && told.at > found.told.at
        {
            found.told = Told { thread: 0, ..told };
        }
    }

    /// Counts a lookup of the kernel.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn count(&mut self, lists: Option<&NameLists>, node: NodeId) -> Result<(), Errno> {
        let found = self.get_mut(node)?;
        found.place.looked_up(found.nlookup > 0);
        (found.nlookup, found.is_kept) = (found.nlookup + 1, false);
        if let Some(lists) = lists {
            found.list(lists, node);
        }
        Ok(())
    }

    /// Enters a name as a new node and counts a lookup. The previous node of the name is gone then.
    ///
    /// # Errors
    /// `ESTALE` when the directory is gone, `EAGAIN` when a name was removed from it since the
    /// store reported this; the charge comes back.
    pub(super) fn enter(
        &mut self,
        lists: &NameLists,
        node: NodeId,
        (parent, name): (NodeId, &str),
        (facts, told): (Facts, Told),
        charge: NodeCharge,
    ) -> Result<Vec<Removed>, (Errno, NodeCharge)> {
        match self.get(parent) {
            Err(errno) => return Err((errno, charge)),
            Ok(found) if found.emptied.is_some_and(|emptied| emptied >= told.at) => {
                return Err((Errno::AGAIN, charge));
            }
            Ok(_) => {}
        }
        let replaced = self.unlink(lists, parent, name, told.at);
        let name: Arc<str> = name.into();
        self.note_below(parent, told);
        let Ok(directory) = self.get_mut(parent) else { return Err((Errno::STALE, charge)) };
        directory.children.insert(Arc::clone(&name), node);
        directory.pins += 1;
        let mut entered = Node::new(name, (parent, directory.ino), (facts, told));
        (entered.charge, entered.nlookup) = (Some(charge), 1);
        entered.list(lists, node);
        self.nodes.insert(node, Box::new(entered));
        Ok(replaced)
    }

    /// Notes that a name belonged to nothing, or to something else, at a time. A node known from a
    /// later report stays.
    pub(super) fn unlink(
        &mut self,
        lists: &NameLists,
        parent: NodeId,
        name: &str,
        at: Instant,
    ) -> Vec<Removed> {
        if self.child(parent, name).is_some_and(|(_, found)| found.told.at > at || found.nr_staged > 0) {
            return Vec::new();
        }
        self.take_out(lists, parent, name)
    }

    /// Removes a name, whatever the store has reported of it.
    fn remove(&mut self, lists: &NameLists, parent: NodeId, name: &str) -> Vec<Removed> {
        let node = self.child(parent, name).map(|(node, _)| node);
        if let Some(found) = node.and_then(|node| self.nodes.get_mut(&node)) {
            found.was_removed = true;
        }
        self.take_out(lists, parent, name)
    }

    /// Removes the name of a node, unless another node has it by now: the remover may have been
    /// killed during a request to the store, and then no longer keeps others out of the directory.
    pub(super) fn remove_node(
        &mut self,
        lists: &NameLists,
        node: NodeId,
        (parent, name): (NodeId, &str),
    ) -> Vec<Removed> {
        if self.stands_for((parent, name), node) { self.remove(lists, parent, name) } else { Vec::new() }
    }

    /// Returns whether the name of a node was removed here, or given to another file.
    pub(super) fn was_removed(&self, node: NodeId) -> bool {
        self.removed(node).is_some()
    }

    /// Returns a node in use whose name was removed here, or given to another file.
    pub(super) fn removed(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(&node).filter(|found| found.was_removed).map(|found| &**found)
    }

    /// Like [`get_mut`](Self::get_mut), also for a node whose name was removed.
    pub(super) fn get_used_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        let found = self.nodes.get_mut(&node)?;
        (!found.is_gone || found.was_removed).then_some(&mut **found)
    }

    fn take_out(&mut self, lists: &NameLists, parent: NodeId, name: &str) -> Vec<Removed> {
        let Some(directory) = self.nodes.get_mut(&parent) else { return Vec::new() };
        let Some(node) = directory.children.remove(name) else { return Vec::new() };
        if let Some(found) = self.nodes.get_mut(&node) {
            (found.is_gone, found.is_kept) = (true, false);
        }
        self.remove_unreferenced(lists, node)
    }

    /// Notes that a file has unsaved changes, and keeps it.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn stage(&mut self, node: NodeId) -> Result<(), Errno> {
        self.pin(node)?;
        self.count_staged(node, 1);
        Ok(())
    }

    /// Ends [`stage`](Self::stage).
    pub(super) fn unstage(&mut self, lists: Option<&NameLists>, node: NodeId) -> Vec<Removed> {
        self.count_staged(node, -1);
        self.unpin(lists, node, false)
    }

    /// Attaches a stream to its file, and keeps the file as [`stage`](Self::stage) does. Returns
    /// `false` if the stream is attached already.
    ///
    /// # Errors
    /// `EBUSY` when another stream is attached; `ESTALE`.
    pub(super) fn attach(&mut self, stream: &Arc<Stream>) -> Result<bool, Errno> {
        let found = self.get_mut(stream.node)?;
        match &found.stream {
            Some(other) if Arc::ptr_eq(other, stream) => return Ok(false),
            Some(_) => return Err(Errno::BUSY),
            None => found.stream = Some(Arc::clone(stream)),
        }
        self.stage(stream.node)?;
        Ok(true)
    }

    /// Ends [`attach`](Self::attach), if the stream is attached.
    pub(super) fn detach(
        &mut self,
        lists: Option<&NameLists>,
        stream: &Stream,
    ) -> Option<(Arc<Stream>, Vec<Removed>)> {
        let found = self.nodes.get_mut(&stream.node)?;
        let attached = found.stream.take_if(|attached| std::ptr::eq(&**attached, stream))?;
        Some((attached, self.unstage(lists, stream.node)))
    }

    /// Returns the stream attached to a file, named or not.
    pub(super) fn stream_of(&self, node: NodeId) -> Option<Arc<Stream>> {
        self.nodes.get(&node)?.stream.clone()
    }

    fn count_staged(&mut self, node: NodeId, change: i32) {
        let mut at = node;
        while let Some(found) = self.nodes.get_mut(&at) {
            found.nr_staged = found.nr_staged.saturating_add_signed(change);
            if at == NodeId::ROOT {
                break;
            }
            at = found.parent;
        }
    }

    /// Returns the names in a directory without an object yet, and their facts; in order.
    pub(super) fn new_names(&self, directory: NodeId) -> Vec<(Arc<str>, Facts)> {
        let Some(found) = self.nodes.get(&directory).filter(|found| found.is_staged()) else {
            return Vec::new();
        };
        let children = found.children.iter().filter_map(|(name, node)| Some((name, self.nodes.get(node)?)));
        let staged = children.filter(|(_, child)| child.is_staged());
        let mut names: Vec<_> = staged.map(|(name, child)| (Arc::clone(name), child.shown())).collect();
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        names
    }

    /// Notes that a name was removed from a directory here.
    pub(super) fn note_emptied(&mut self, directory: NodeId) {
        if let Ok(found) = self.get_mut(directory) {
            found.emptied = Some(Instant::now());
            found.changed = found.emptied;
        }
    }

    /// Notes that the store has a new version of a file from here.
    pub(super) fn note_stored(&mut self, node: NodeId, info: ObjectInfo) -> Option<&mut Node> {
        let Self { nodes, stored } = self;
        let found = nodes.get_mut(&node).filter(|found| !found.is_gone)?;
        stored.note(found.parent, &found.name);
        found.facts = Facts::Object(info);
        found.told = Told { at: Instant::now(), thread: 0 };
        Some(found)
    }

    /// Returns whether a file was stored from here since the store was asked about its name.
    pub(super) fn is_stored_since(&self, (parent, name): (NodeId, &str), told: Told) -> bool {
        self.stored.is_stored_since(parent, name, told.at)
    }

    /// Notes that a name was made in a directory here.
    pub(super) fn note_changed(&mut self, directory: NodeId) {
        if let Ok(found) = self.get_mut(directory) {
            found.changed = Some(Instant::now());
        }
    }

    /// Returns whether a name was made in a directory or removed from it here since a time.
    pub(super) fn has_changed(&self, directory: NodeId, since: Instant) -> bool {
        let changed = self.get(directory).ok().and_then(|found| found.changed);
        changed.is_some_and(|changed| changed >= since)
    }

    /// Gives a node another name, unless it has lost the old one. The previous node of the new name
    /// is gone then.
    pub(super) fn rename(
        &mut self,
        lists: &NameLists,
        node: NodeId,
        (parent, name): (NodeId, &str),
        (new_parent, new_name): (NodeId, &str),
    ) -> Vec<Removed> {
        if !self.stands_for((parent, name), node) {
            // The previous node of the new name is replaced all the same.
            return self.remove(lists, new_parent, new_name);
        }
        let mut removed = self.remove(lists, new_parent, new_name);
        let Some((node, found)) = self.child(parent, name) else { return removed };
        let nr_staged = found.nr_staged as i32;
        let new_name: Arc<str> = new_name.into();
        let Some(directory) = self.nodes.get_mut(&new_parent) else { return removed };
        directory.children.insert(Arc::clone(&new_name), node);
        directory.pins += 1;
        self.count_staged(parent, -nr_staged);
        self.count_staged(new_parent, nr_staged);
        if let Some(found) = self.nodes.get_mut(&node) {
            (found.parent, found.name) = (new_parent, new_name);
            found.told = Told { at: Instant::now(), thread: 0 };
        }
        if let Some(directory) = self.nodes.get_mut(&parent) {
            directory.children.remove(name);
            directory.pins = directory.pins.saturating_sub(1);
        }
        removed.extend(self.remove_unreferenced(lists, parent));
        removed
    }

    /// Returns the known nodes below a directory.
    pub(super) fn below(&self, directory: NodeId) -> Vec<NodeId> {
        let (mut below, mut at) = (Vec::new(), 0);
        let mut directory = Some(directory);
        while let Some(found) = directory.and_then(|directory| self.nodes.get(&directory)) {
            below.extend(found.children.values());
            directory = below.get(at).copied();
            at += 1;
        }
        below
    }

    /// Keeps a node.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn pin(&mut self, node: NodeId) -> Result<(), Errno> {
        self.get_mut(node)?.pins += 1;
        Ok(())
    }

    /// Ends [`pin`](Self::pin). The node is kept if it `has_pages`. A stored draft goes with the
    /// last pin: the store has its bytes.
    pub(super) fn unpin(&mut self, lists: Option<&NameLists>, node: NodeId, has_pages: bool) -> Vec<Removed> {
        let mut removed = Vec::new();
        if let Some(found) = self.nodes.get_mut(&node) {
            found.pins = found.pins.saturating_sub(1);
            let has_draft = found.content.as_ref().is_some_and(|content| content.draft().is_some());
            if has_draft && found.pins == 0 {
                let content = found.content.take();
                removed.push(Removed { asked: None, _content: content, _kernel_copy: None, _charge: None });
            }
            let has_pages = has_pages && !has_draft;
            found.is_kept |= has_pages && found.nlookup == 0 && !found.is_gone;
        }
        removed.extend(lists.into_iter().flat_map(|lists| self.remove_unreferenced(lists, node)));
        removed
    }

    /// Releases lookups of the kernel; an excess is ignored. The node is kept if it `has_pages`.
    pub(super) fn forget(
        &mut self,
        lists: &NameLists,
        node: NodeId,
        nr: u64,
        has_pages: bool,
    ) -> Vec<Removed> {
        if node == NodeId::ROOT {
            return Vec::new();
        }
        if let Some(found) = self.nodes.get_mut(&node) {
            found.nlookup = found.nlookup.saturating_sub(nr);
            found.is_kept = has_pages && found.nlookup == 0 && !found.is_gone;
            found.list(lists, node);
        }
        self.remove_unreferenced(lists, node)
    }

    /// Returns the kernel's copy of a node, if it may have one; also for a node without a name.
    pub(super) fn kernel_copy(&self, node: NodeId) -> Option<Arc<KernelCopy>> {
        self.nodes.get(&node)?.kernel_copy.clone()
    }

    /// Returns the kernel's copy of a node: `fresh`, if none was noted before.
    pub(super) fn kernel_copy_or(
        &mut self,
        node: NodeId,
        fresh: &Arc<KernelCopy>,
    ) -> Option<Arc<KernelCopy>> {
        let found = self.nodes.get_mut(&node)?;
        Some(Arc::clone(found.kernel_copy.get_or_insert_with(|| Arc::clone(fresh))))
    }

    /// Returns whether the kernel refers to a node.
    pub(super) fn is_looked_up(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|found| found.nlookup > 0)
    }

    /// Removes a node kept only for its pages, once none is left.
    pub(super) fn drop_kept(&mut self, lists: &NameLists, node: NodeId) -> Vec<Removed> {
        match self.nodes.get_mut(&node).filter(|found| found.nlookup == 0) {
            Some(found) => found.is_kept = false,
            None => return Vec::new(),
        }
        self.remove_unreferenced(lists, node)
    }

    /// Removes an unreferenced node, and the directories that only it referred to.
    fn remove_unreferenced(&mut self, lists: &NameLists, node: NodeId) -> Vec<Removed> {
        let (mut removed, mut at) = (Vec::new(), node);
        while at != NodeId::ROOT && self.nodes.get(&at).is_some_and(|found| !found.is_referenced()) {
            let Some(mut gone) = self.nodes.remove(&at) else { break };
            gone.place.leave(lists);
            let asked = gone.charge.as_ref().filter(|_| gone.place.was_asked());
            let asked = asked.map(|charge| (charge.owner(), gone.bytes()));
            removed.push(Removed::of(&mut gone, asked));
            let Some(parent) = self.nodes.get_mut(&gone.parent) else { break };
            parent.pins = parent.pins.saturating_sub(1);
            if parent.children.get(&gone.name) == Some(&at) {
                parent.children.remove(&gone.name);
            }
            if parent.children.capacity() > 64 && parent.children.len() < parent.children.capacity() / 8 {
                parent.children.shrink_to(2 * parent.children.len());
            }
            at = gone.parent;
        }
        if self.nodes.capacity() > 256 && self.nodes.len() < self.nodes.capacity() / 8 {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
        removed
    }

    /// Returns a node that no process is known to use.
    pub(super) fn idle_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        let found = self.nodes.get_mut(&node).filter(|found| found.nlookup > 0 && found.pins == 0)?;
        Some(found)
    }

    /// Returns the possible holders of cached pages of a node that no process is known to use.
    pub(super) fn idle(&mut self, node: NodeId) -> Option<Cached> {
        let found = self.idle_mut(node)?;
        if found.place.take_used() { None } else { Some(found.cached()) }
    }

    /// Forgets all but the root, for good.
    pub(super) fn take_all(&mut self, lists: Option<&NameLists>) -> Vec<Removed> {
        let root = self.nodes.remove(&NodeId::ROOT);
        let mut removed = Vec::with_capacity(self.nodes.len());
        for (_, mut gone) in self.nodes.drain() {
            if let Some(lists) = lists {
                gone.place.leave(lists);
            }
            removed.push(Removed::of(&mut gone, None));
        }
        if let Some(mut root) = root {
            (root.pins, root.children) = (0, HashMap::new());
            self.nodes.insert(NodeId::ROOT, root);
        }
        removed
    }

    /// Returns the number of known names, without the root.
    pub(super) fn nr_nodes(&self) -> usize {
        self.nodes.len() - 1
    }
}
