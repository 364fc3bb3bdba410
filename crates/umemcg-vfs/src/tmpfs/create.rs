//! New inodes of a tmpfs volume. Memory is charged before the tree is locked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Tmpfs;
use super::directory::{ENTRY_BYTES, Name};
use super::inode::{Inode, NewInode};
use super::open::OpenFile;
use crate::attr::{Entry, FileKind, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::name::component;
use crate::slab::Slab;
use crate::volume::{Create, Lookup, VolumeFile};

/// The most attempts of `create` while another thread keeps creating and removing the name.
const CREATE_TRIES_MAX: u32 = 8;
/// The longest text of a symbolic link, in bytes (`PATH_MAX` less the zero).
const TARGET_BYTES_MAX: usize = 4095;

impl Create for Tmpfs {
    fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry, VfsError> {
        match target.len() {
            0 => return Err(Errno::NOENT.into()),
            len if len > TARGET_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
            _ => {}
        }
        let target = Some(target.as_bytes());
        Ok(self
            .make(caller, parent, name, &NewInode { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target })?
            .1)
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        rdev: u64,
    ) -> Result<Entry, VfsError> {
        let kind = FileKind::of_new_node(mode)?;
        Ok(self.make(caller, parent, name, &NewInode { kind, mode, rdev, target: None })?.1)
    }

    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry, VfsError> {
        let new = NewInode { kind: FileKind::Directory, mode: mode & 0o1777, rdev: 0, target: None };
        Ok(self.make(caller, parent, name, &new)?.1)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let new = NewInode { kind: FileKind::Regular, mode, rdev: 0, target: None };
        let mut tries = 0;
        loop {
            tries += 1;
            let charge = self.room_for_handle(caller)?;
            match self.make(caller, parent, name, &new) {
                Ok((inode, entry)) => {
                    return Ok((entry, Arc::new(OpenFile::new(inode, caller, flags, charge))));
                }
                Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {}
                Err(errno) => return Err(errno.into()),
            }
            let found = {
                let tree = self.tree.read();
                tree.lookup(parent, name).map(|inode| {
                    inode.count_lookup();
                    Arc::clone(inode)
                })
            };
            let inode = match found {
                Err(Errno::NOENT) if tries < CREATE_TRIES_MAX => continue,
                found => found?,
            };
            let opened = self.open_inode(caller, Arc::clone(&inode), flags);
            let opened = opened.inspect_err(|_| self.forget(inode.node, 1))?;
            return Ok((Self::entry(&inode, inode.attr(0)), opened));
        }
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let charge = self.room_for_handle(caller)?;
        let (inode, entry) = self.make_nameless(caller, parent, mode)?;
        Ok((entry, Arc::new(OpenFile::new(inode, caller, flags, charge))))
    }
}

impl Tmpfs {
    /// Makes an inode under a name and counts a lookup. Charged to the caller's group; may sleep
    /// for the charge.
    ///
    /// # Errors
    /// `ENOSPC` and those of [`insert_new`](super::tree::Tree::insert_new).
    fn make(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        new: &NewInode<'_>,
    ) -> Result<(Arc<Inode>, Entry), Errno> {
        let name: Name = component(name)?.to_bytes().into();
        // An existing name is refused before anything is charged: a full group need not reclaim.
        if self.tree.read().directory(parent)?.get(&name).is_some() {
            return Err(Errno::EXIST);
        }
        let lists = self.inherited_lists(caller, parent, new)?;
        let charge = Slab::take(&self.engine, &caller.group, ENTRY_BYTES + name.len() as u64)?;
        // Relaxed: only uniqueness matters.
        let node = NodeId(self.next_node.fetch_add(1, Ordering::Relaxed));
        let inode = Arc::new(Inode::new(&self.engine, &caller.group, &self.size, node, new)?);
        let finish = |dir: &Inode, inode: &Inode| inode.set_initial_attributes(caller, dir, new, lists);
        let inserted = self.tree.write().insert_new(parent, &name, Arc::clone(&inode), charge, finish);
        // Unused objects are dropped with no lock held.
        inserted.map_err(|(errno, _, _)| errno)?;
        let attr = inode.attr(0);
        let entry = Self::entry(&inode, attr);
        Ok((inode, entry))
    }

    /// Makes a regular file without a name and counts a lookup. Charged to the caller's group; may
    /// sleep for the charge.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOTDIR`, `ENOENT` for a removed directory.
    fn make_nameless(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
    ) -> Result<(Arc<Inode>, Entry), Errno> {
        let new = NewInode { kind: FileKind::Regular, mode, rdev: 0, target: None };
        let lists = self.inherited_lists(caller, parent, &new)?;
        // Relaxed: only uniqueness matters.
        let node = NodeId(self.next_node.fetch_add(1, Ordering::Relaxed));
        let inode = Arc::new(Inode::new(&self.engine, &caller.group, &self.size, node, &new)?);
        {
            let mut tree = self.tree.write();
            let dir = tree.living_directory(parent)?.0;
            inode.set_initial_attributes(caller, &dir, &new, lists);
            let mut meta = inode.meta.lock();
            (meta.nlink, meta.may_be_named) = (0, true);
            drop(meta);
            tree.insert_nameless(Arc::clone(&inode));
        }
        let entry = Self::entry(&inode, inode.attr(0));
        Ok((inode, entry))
    }
}
