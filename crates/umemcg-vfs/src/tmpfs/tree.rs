//! The names of a tmpfs volume: one tree, changed under one lock. Objects removed from the tree are
//! returned, to be dropped with no lock held.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::directory::{Directory, Name};
use super::inode::Inode;
use crate::attr::{Attr, NodeId};
use crate::name::NAME_MAX;
use crate::name::component;
use crate::slab::Slab;

/// The most names of one inode.
const LINK_MAX: u32 = 65_000;
/// The most components between an inode and the root.
const DEPTH_MAX: usize = 1 << 16;

/// Objects removed from the tree.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct RemovedObjects {
    /// The inodes with changed names.
    pub(super) nodes: [Option<NodeId>; 2],
    _inodes: Vec<Arc<Inode>>,
    _directories: Vec<Directory>,
    _names: Vec<Slab>,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<NodeId, Arc<Inode>>,
    directories: HashMap<NodeId, Directory>,
}

impl Tree {
    pub(super) fn new(root: Arc<Inode>) -> Self {
        Self {
            nodes: HashMap::from([(NodeId::ROOT, root)]),
            directories: HashMap::from([(NodeId::ROOT, Directory::new(NodeId::ROOT))]),
        }
    }

    pub(super) fn nr_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// `ESTALE` if the inode is gone.
    pub(super) fn get(&self, node: NodeId) -> Result<&Arc<Inode>, Errno> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    /// Returns the entries of a directory.
    ///
    /// # Errors
    /// `ESTALE`, `ENOTDIR`.
    pub(super) fn directory(&self, node: NodeId) -> Result<&Directory, Errno> {
        match self.directories.get(&node) {
            Some(directory) => Ok(directory),
            None => Err(self.get(node).map_or(Errno::STALE, |_| Errno::NOTDIR)),
        }
    }

    /// Returns the attributes of an inode.
    pub(super) fn attr(&self, inode: &Inode) -> Attr {
        inode.attr(self.directories.get(&inode.node).map_or(0, Directory::len))
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<&Arc<Inode>, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let node = self.directory(parent)?.get(name.as_bytes()).ok_or(Errno::NOENT)?;
        self.get(node)
    }

    /// Returns the components from an inode up to the root by the names last used.
    pub(super) fn path(&self, node: NodeId) -> Option<Vec<Name>> {
        let mut components = Vec::new();
        let mut at = node;
        while at != NodeId::ROOT {
            let (parent, name) = self.nodes.get(&at)?.meta.lock().name.clone()?;
            components.push(name);
            if components.len() > DEPTH_MAX {
                return None;
            }
            at = parent;
        }
        Some(components)
    }

    /// Takes out an inode without references.
    pub(super) fn reap(&mut self, node: NodeId) -> RemovedObjects {
        let mut gone = RemovedObjects::default();
        self.reap_into(node, &mut gone);
        gone
    }

    fn reap_into(&mut self, node: NodeId, gone: &mut RemovedObjects) {
        if self.nodes.get(&node).is_some_and(|inode| inode.is_unheld()) {
            gone._inodes.extend(self.nodes.remove(&node));
            gone._directories.extend(self.directories.remove(&node));
        }
    }

    /// Empties the tree for good.
    pub(super) fn take_all(&mut self) -> RemovedObjects {
        RemovedObjects {
            nodes: [None; 2],
            _inodes: self.nodes.drain().map(|(_, inode)| inode).collect(),
            _directories: self.directories.drain().map(|(_, directory)| directory).collect(),
            _names: Vec::new(),
        }
    }

    /// Returns a directory that still has a name itself: only there can objects be created.
    pub(super) fn living_directory(&mut self, node: NodeId) -> Result<(Arc<Inode>, &mut Directory), Errno> {
        self.directory(node)?;
        let inode = Arc::clone(self.get(node)?);
        if inode.meta.lock().nlink == 0 {
            return Err(Errno::NOENT);
        }
        let directory = self.directories.get_mut(&node).ok_or(Errno::STALE)?;
        Ok((inode, directory))
    }

    /// Gives a new inode its name. `finish`, called with the directory and the inode, sets owner
    /// and mode.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` for a removed directory, `EMLINK`; the inode and its charge come back
    /// with the error.
    pub(super) fn insert_new(
        &mut self,
        parent: NodeId,
        name: &Name,
        inode: Arc<Inode>,
        charge: Slab,
        finish: impl FnOnce(&Inode, &Inode),
    ) -> Result<(), (Errno, Arc<Inode>, Slab)> {
        let (dir, directory) = match self.living_directory(parent) {
            Ok(found) => found,
            Err(errno) => return Err((errno, inode, charge)),
        };
        let is_directory = inode.is_directory();
        if directory.get(name).is_some() {
            return Err((Errno::EXIST, inode, charge));
        }
        if is_directory && dir.meta.lock().nlink >= LINK_MAX {
            return Err((Errno::MLINK, inode, charge));
        }
        finish(&dir, &inode);
        inode.meta.lock().name = Some((parent, Arc::clone(name)));
        directory.insert(Arc::clone(name), inode.node, charge);
        let mut meta = dir.meta.lock();
        meta.nlink += u32::from(is_directory);
        meta.changed_content();
        drop(meta);
        if is_directory {
            self.directories.insert(inode.node, Directory::new(parent));
        }
        self.nodes.insert(inode.node, inode);
        Ok(())
    }

    /// Adds an inode without a name.
    pub(super) fn insert_nameless(&mut self, inode: Arc<Inode>) {
        self.nodes.insert(inode.node, inode);
    }

    /// Gives an inode another name, and counts a lookup.
    pub(super) fn link(
        &mut self,
        node: NodeId,
        parent: NodeId,
        name: &Name,
        charge: Slab,
    ) -> Result<Arc<Inode>, (Errno, Slab)> {
        let inode = match self.get(node) {
            Ok(inode) => Arc::clone(inode),
            Err(errno) => return Err((errno, charge)),
        };
        let (dir, directory) = match self.living_directory(parent) {
            Ok(found) => found,
            Err(errno) => return Err((errno, charge)),
        };
        if directory.get(name).is_some() {
            return Err((Errno::EXIST, charge));
        }
        if inode.is_directory() {
            return Err((Errno::PERM, charge));
        }
        let mut meta = inode.meta.lock();
        match meta.nlink {
            0 if !meta.may_be_named => return Err((Errno::NOENT, charge)),
            LINK_MAX => return Err((Errno::MLINK, charge)),
            _ => meta.nlink += 1,
        }
        meta.name = Some((parent, Arc::clone(name)));
        meta.changed();
        drop(meta);
        directory.insert(Arc::clone(name), node, charge);
        dir.meta.lock().changed_content();
        inode.count_lookup();
        Ok(inode)
    }

    /// Removes a name of an empty directory or of another inode.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`.
    pub(super) fn unlink(
        &mut self,
        parent: NodeId,
        name: &OsStr,
        is_directory: bool,
    ) -> Result<RemovedObjects, Errno> {
        component(name)?;
        let inode = Arc::clone(self.lookup(parent, name)?);
        match (inode.is_directory(), is_directory) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if self.directory(inode.node)?.len() > 0 => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let mut gone = RemovedObjects::default();
        if let Some(directory) = self.directories.get_mut(&parent) {
            gone._names.extend(directory.remove(name.as_bytes()).map(|(_, charge)| charge));
        }
        let dir = Arc::clone(self.get(parent)?);
        {
            let mut meta = dir.meta.lock();
            meta.nlink -= u32::from(is_directory);
            meta.changed_content();
        }
        self.lost_name(&inode, &mut gone);
        Ok(gone)
    }

    /// Notes that an inode lost a name.
    fn lost_name(&mut self, inode: &Arc<Inode>, gone: &mut RemovedObjects) {
        {
            let mut meta = inode.meta.lock();
            meta.nlink = if inode.is_directory() { 0 } else { meta.nlink - 1 };
            meta.name = None;
            meta.changed();
        }
        gone.nodes[0] = Some(inode.node);
        self.reap_into(inode.node, gone);
    }

    /// Returns whether `node` is `above` or below it.
    fn is_below(&self, node: NodeId, above: NodeId) -> bool {
        let mut at = node;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return true;
            }
            match self.directories.get(&at) {
                Some(directory) if at != NodeId::ROOT => at = directory.parent,
                _ => return false,
            }
        }
        true
    }

    /// Renames; see [`Names::rename`](crate::volume::Names::rename).
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EINVAL`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EMLINK`.
    pub(super) fn rename(
        &mut self,
        (parent, name): (NodeId, &OsStr),
        (new_parent, new_name): (NodeId, &OsStr),
        flags: RenameFlags,
    ) -> Result<RemovedObjects, Errno> {
        let exchange = flags == RenameFlags::EXCHANGE;
        if !exchange && !RenameFlags::NOREPLACE.contains(flags) {
            return Err(Errno::INVAL);
        }
        component(name)?;
        component(new_name)?;
        let moved = Arc::clone(self.lookup(parent, name)?);
        self.living_directory(new_parent)?;
        let target = match self.lookup(new_parent, new_name) {
            Ok(target) => Some(Arc::clone(target)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        match &target {
            None if exchange => return Err(Errno::NOENT),
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EXIST),
            // Two names of one inode: nothing changes.
            Some(target) if Arc::ptr_eq(target, &moved) => return Ok(RemovedObjects::default()),
            _ => {}
        }
        // A directory cannot be moved below itself.
        if moved.is_directory() && self.is_below(new_parent, moved.node) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target.as_ref().filter(|target| target.is_directory())
            && self.is_below(parent, target.node)
        {
            return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        match target {
            Some(target) if exchange => {
                self.exchange((parent, name), &moved, (new_parent, new_name), &target);
                Ok(RemovedObjects { nodes: [Some(moved.node), Some(target.node)], ..Default::default() })
            }
            target => {
                self.check_replacement(parent, &moved, new_parent, target.as_ref())?;
                self.replace((parent, name), &moved, (new_parent, new_name), target.as_ref())
            }
        }
    }

    /// Checks whether an inode may get a name in `new_parent`, or the name of `target`.
    fn check_replacement(
        &self,
        parent: NodeId,
        moved: &Inode,
        new_parent: NodeId,
        target: Option<&Arc<Inode>>,
    ) -> Result<(), Errno> {
        if let Some(target) = target {
            match (moved.is_directory(), target.is_directory()) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if self.directory(target.node)?.len() > 0 => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        let crosses = moved.is_directory() && parent != new_parent;
        if crosses && target.is_none() && self.get(new_parent)?.meta.lock().nlink >= LINK_MAX {
            return Err(Errno::MLINK);
        }
        Ok(())
    }

    /// Gives an inode a new name, taken from `target` if there is one.
    fn replace(
        &mut self,
        (parent, name): (NodeId, &OsStr),
        moved: &Inode,
        (new_parent, new_name): (NodeId, &OsStr),
        target: Option<&Arc<Inode>>,
    ) -> Result<RemovedObjects, Errno> {
        let mut gone = RemovedObjects::default();
        let charge = self.directories.get_mut(&parent).and_then(|dir| dir.remove(name.as_bytes()));
        let (_, charge) = charge.ok_or(Errno::NOENT)?;
        let new_name: Name = new_name.as_bytes().into();
        if let Some(directory) = self.directories.get_mut(&new_parent) {
            gone._names.extend(directory.remove(&new_name).map(|(_, charge)| charge));
            directory.insert(Arc::clone(&new_name), moved.node, charge);
        }
        self.moved(moved, new_parent, new_name);
        // Links through `..`: one less in the old parent, and one more in the new parent unless a
        // directory was replaced.
        let (old_dir, new_dir) = (Arc::clone(self.get(parent)?), Arc::clone(self.get(new_parent)?));
        let touch = |dir: &Inode, more: u32, less: u32| {
            let mut meta = dir.meta.lock();
            meta.nlink = meta.nlink + more - less;
            meta.changed_content();
        };
        touch(&old_dir, 0, u32::from(moved.is_directory()));
        touch(
            &new_dir,
            u32::from(moved.is_directory()),
            u32::from(target.is_some_and(|target| target.is_directory())),
        );
        if let Some(target) = target {
            self.lost_name(target, &mut gone);
        }
        gone.nodes[1] = Some(moved.node);
        Ok(gone)
    }

    /// Notes the new name of an inode.
    fn moved(&mut self, inode: &Inode, parent: NodeId, name: Name) {
        let mut meta = inode.meta.lock();
        meta.name = Some((parent, name));
        meta.changed();
        drop(meta);
        if let Some(directory) = self.directories.get_mut(&inode.node) {
            directory.parent = parent;
        }
    }

    fn exchange(
        &mut self,
        (parent, name): (NodeId, &OsStr),
        inode: &Inode,
        (new_parent, new_name): (NodeId, &OsStr),
        other: &Inode,
    ) {
        for (dir, name, node) in [(parent, name, other.node), (new_parent, new_name, inode.node)] {
            if let Some(directory) = self.directories.get_mut(&dir) {
                directory.redirect(name.as_bytes(), node);
            }
        }
        self.moved(inode, new_parent, new_name.as_bytes().into());
        self.moved(other, parent, name.as_bytes().into());
        let came = |inode: &Inode| u32::from(inode.is_directory());
        for (dir, more, less) in [(parent, came(other), came(inode)), (new_parent, came(inode), came(other))]
        {
            if let Some(dir) = self.nodes.get(&dir) {
                let mut meta = dir.meta.lock();
                meta.nlink = meta.nlink + more - less;
                meta.changed_content();
            }
        }
    }
}
