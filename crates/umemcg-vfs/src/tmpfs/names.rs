//! Renaming, linking and removing inodes of a tmpfs volume. Memory is charged before the tree is
//! locked.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::Tmpfs;
use super::directory::{ENTRY_BYTES, Name};
use super::inode::{Inode, NewInode};
use crate::attr::{Entry, FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::name::component;
use crate::slab::Slab;
use crate::volume::Names;

impl Names for Tmpfs {
    fn unlink(&self, _caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Option<NodeId>, VfsError> {
        let gone = self.tree.write().unlink(parent, name, false)?;
        Ok(gone.nodes[0])
    }

    fn rmdir(&self, _caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
        let gone = self.tree.write().unlink(parent, name, true)?;
        drop(gone);
        Ok(())
    }

    fn rename(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new_parent: NodeId,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<[Option<NodeId>; 2], VfsError> {
        if flags.contains(RenameFlags::WHITEOUT) {
            return Ok(self.rename_with_whiteout(caller, (parent, name), (new_parent, new_name), flags)?);
        }
        let gone = self.tree.write().rename((parent, name), (new_parent, new_name), flags)?;
        Ok(gone.nodes)
    }

    fn link(
        &self,
        caller: &Caller,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry, VfsError> {
        let name: Name = component(new_name)?.to_bytes().into();
        let charge = Slab::take(&self.engine, &caller.group, ENTRY_BYTES + name.len() as u64)?;
        let linked = self.tree.write().link(node, new_parent, &name, charge);
        let inode = linked.map_err(|(errno, _)| errno)?;
        let attr = inode.attr(0);
        Ok(Self::entry(&inode, attr))
    }
}

impl Tmpfs {
    /// Renames and leaves a whiteout (a character device 0:0) under the old name, made by the
    /// caller.
    fn rename_with_whiteout(
        &self,
        caller: &Caller,
        (parent, name): (NodeId, &OsStr),
        (new_parent, new_name): (NodeId, &OsStr),
        flags: RenameFlags,
    ) -> Result<[Option<NodeId>; 2], Errno> {
        let old_name: Name = component(name)?.to_bytes().into();
        let new = NewInode { kind: FileKind::CharDevice, mode: 0, rdev: 0, target: None };
        let charge = Slab::take(&self.engine, &caller.group, ENTRY_BYTES + name.len() as u64)?;
        // Relaxed: only uniqueness matters.
        let node = NodeId(self.next_node.fetch_add(1, Ordering::Relaxed));
        let whiteout = Arc::new(Inode::new(&self.engine, &caller.group, &self.size, node, &new)?);
        // The kernel looks the whiteout up when it needs it.
        whiteout.forget(1);
        let finish = |dir: &Inode, inode: &Inode| inode.set_initial_attributes(caller, dir, &new, None);
        // Unused objects are dropped with no lock held.
        let (gone, unused) = {
            let mut tree = self.tree.write();
            let flags = flags.difference(RenameFlags::WHITEOUT);
            if flags.contains(RenameFlags::EXCHANGE) {
                return Err(Errno::INVAL);
            }
            let gone = tree.rename((parent, name), (new_parent, new_name), flags)?;
            // If both names lead to one inode, nothing changes, and there is no whiteout.
            (gone, tree.insert_new(parent, &old_name, whiteout, charge, finish))
        };
        drop(unused);
        Ok(gone.nodes)
    }
}
