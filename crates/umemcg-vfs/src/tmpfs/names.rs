//! Creating, renaming and linking inodes of a tmpfs volume. Memory is charged before the tree is
//! locked.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::Tmpfs;
use super::directory::{ENTRY_BYTES, Name};
use super::inode::{Inode, New};
use crate::attr::{Entry, FileKind, NodeId};
use crate::caller::Caller;
use crate::name::component;
use crate::slab::Slab;

impl Tmpfs {
    /// Returns an inode by its id.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn inode(&self, node: NodeId) -> Result<Arc<Inode>, Errno> {
        self.tree.read().get(node).map(Arc::clone)
    }

    /// Makes an inode under a name and counts a lookup. Charged to the caller's group; may sleep
    /// for that.
    ///
    /// # Errors
    /// `ENOSPC` and those of [`Tree::insert_new`].
    pub(super) fn make(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new: &New<'_>,
    ) -> Result<(Arc<Inode>, Entry), Errno> {
        let name: Name = component(name)?.to_bytes().into();
        // What is there already needs no memory, and a full group no reclaim, to be refused.
        if self.tree.read().directory(parent)?.get(&name).is_some() {
            return Err(Errno::EXIST);
        }
        let lists = self.inherited_lists(caller, parent, new)?;
        let charge = Slab::take(&self.engine, &caller.group, ENTRY_BYTES + name.len() as u64)?;
        // Relaxed: only uniqueness matters.
        let node = NodeId(self.next_node.fetch_add(1, Ordering::Relaxed));
        let inode = Arc::new(Inode::new(&self.engine, &caller.group, &self.size, node, new)?);
        let finish = |dir: &Inode, inode: &Inode| inode.born(caller, dir, new, lists);
        let inserted = self.tree.write().insert_new(parent, &name, Arc::clone(&inode), charge, finish);
        // What is not used is dropped with no lock held.
        inserted.map_err(|(errno, _, _)| errno)?;
        let attr = inode.attr(0);
        let entry = Self::entry(&inode, attr);
        Ok((inode, entry))
    }

    /// Makes a regular file without a name and counts a lookup. Charged to the caller's group; may
    /// sleep for that.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOTDIR`, `ENOENT` for a directory that was removed.
    pub(super) fn make_nameless(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
    ) -> Result<(Arc<Inode>, Entry), Errno> {
        let new = New { kind: FileKind::Regular, mode, rdev: 0, target: None };
        let lists = self.inherited_lists(caller, parent, &new)?;
        // Relaxed: only uniqueness matters.
        let node = NodeId(self.next_node.fetch_add(1, Ordering::Relaxed));
        let inode = Arc::new(Inode::new(&self.engine, &caller.group, &self.size, node, &new)?);
        {
            let mut tree = self.tree.write();
            let dir = tree.living_directory(parent)?.0;
            inode.born(caller, &dir, &new, lists);
            let mut meta = inode.meta.lock();
            (meta.nlink, meta.may_be_named) = (0, true);
            drop(meta);
            tree.insert_nameless(Arc::clone(&inode));
        }
        let entry = Self::entry(&inode, inode.attr(0));
        Ok((inode, entry))
    }

    /// Renames and leaves a whiteout (a character device 0:0) under the old name, made by the
    /// caller.
    pub(super) fn rename_with_whiteout(
        &self,
        caller: &Caller,
        (parent, name): (NodeId, &OsStr),
        (new_parent, new_name): (NodeId, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let old_name: Name = component(name)?.to_bytes().into();
        let new = New { kind: FileKind::CharDevice, mode: 0, rdev: 0, target: None };
        let charge = Slab::take(&self.engine, &caller.group, ENTRY_BYTES + name.len() as u64)?;
        // Relaxed: only uniqueness matters.
        let node = NodeId(self.next_node.fetch_add(1, Ordering::Relaxed));
        let whiteout = Arc::new(Inode::new(&self.engine, &caller.group, &self.size, node, &new)?);
        // The kernel looks it up when it wants to know it.
        whiteout.forget(1);
        let finish = |dir: &Inode, inode: &Inode| inode.born(caller, dir, &new, None);
        // What is not used is dropped with no lock held.
        let (gone, unused) = {
            let mut tree = self.tree.write();
            let flags = flags.difference(RenameFlags::WHITEOUT);
            if flags.contains(RenameFlags::EXCHANGE) {
                return Err(Errno::INVAL);
            }
            let gone = tree.rename((parent, name), (new_parent, new_name), flags)?;
            // Two names of one inode stay as they are; then there is no room for it.
            (gone, tree.insert_new(parent, &old_name, whiteout, charge, finish))
        };
        drop((gone, unused));
        Ok(())
    }

    /// See [`Volume::link`](crate::volume::Volume::link).
    pub(super) fn link_to(
        &self,
        caller: &Caller,
        node: NodeId,
        parent: NodeId,
        name: &OsStr,
    ) -> Result<Entry, crate::error::VfsError> {
        let name: Name = component(name)?.to_bytes().into();
        let charge = Slab::take(&self.engine, &caller.group, ENTRY_BYTES + name.len() as u64)?;
        let linked = self.tree.write().link(node, parent, &name, charge);
        let inode = linked.map_err(|(errno, _)| errno)?;
        let attr = inode.attr(0);
        Ok(Self::entry(&inode, attr))
    }
}
