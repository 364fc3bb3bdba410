//! Attributes by node id, the inherited access lists of new objects, and the statistics of the
//! volume.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rustix::io::Errno;
use umemcg_base::{PAGE_SIZE, PAGE_SIZE_U64};

use super::Tmpfs;
use super::acl::{self, Acl};
use super::inode::attributes::Inherited;
use super::inode::{INODE_BYTES, NewInode, Xattr};
use super::xattrs::XATTR_BYTES;
use crate::attr::{Attr, FileKind, NodeId, SetAttr, StatFs};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::slab::Slab;
use crate::volume::Attributes;

impl Attributes for Tmpfs {
    fn getattr(&self, node: NodeId) -> Result<Attr, VfsError> {
        let tree = self.tree.read();
        Ok(tree.attr(tree.get(node)?))
    }

    fn setattr(&self, _caller: &Caller, node: NodeId, change: &SetAttr) -> Result<Attr, VfsError> {
        let inode = self.inode(node)?;
        inode.change(change)?;
        Ok(self.tree.read().attr(&inode))
    }

    fn readlink(&self, node: NodeId) -> Result<OsString, VfsError> {
        let inode = self.inode(node)?;
        let target = inode.target.as_ref().ok_or(Errno::INVAL)?;
        Ok(OsString::from_vec(target.to_vec()))
    }

    fn statfs(&self) -> Result<StatFs, VfsError> {
        let root = self.engine.root();
        let pool = root.max_bytes() / PAGE_SIZE_U64;
        let margin = root.margin_bytes() / PAGE_SIZE_U64;
        let blocks = self.size.max().unwrap_or(pool);
        let free = self.size.max().map_or(margin, |max| max.saturating_sub(self.size.used()));
        let nr_inodes = self.nr_inodes() as u64;
        // The number of further inodes that fit in memory.
        let ffree = margin.saturating_mul(PAGE_SIZE_U64) / INODE_BYTES;
        Ok(StatFs {
            frsize: PAGE_SIZE_U64,
            bsize: PAGE_SIZE as u64,
            blocks,
            bfree: free,
            bavail: free.min(margin),
            files: nr_inodes + ffree,
            ffree,
            namemax: 255,
        })
    }
}

impl Tmpfs {
    /// Returns the access lists of a new object, inherited from the directory's default list, if
    /// there is one. They are charged to the caller's group.
    pub(super) fn inherited_lists(
        &self,
        caller: &Caller,
        parent: NodeId,
        new: &NewInode<'_>,
    ) -> Result<Option<Inherited>, Errno> {
        let dir = self.inode(parent)?;
        let default = dir.meta.lock().xattrs.get(acl::DEFAULT).map(|list| list.value.to_vec());
        let Some(default) = default.filter(|_| new.kind != FileKind::Symlink) else { return Ok(None) };
        let Some(list) = Acl::parse(&default)? else { return Ok(None) };
        let list = list.inherited(new.mode);
        let mut lists = Vec::new();
        let mut keep = |name: &'static [u8], value: Vec<u8>| {
            let bytes = XATTR_BYTES + (name.len() + value.len()) as u64;
            let charge = Slab::take(&self.engine, &caller.group, bytes)?;
            lists.push((name, Xattr { value: value.into(), _charge: charge }));
            Ok::<(), Errno>(())
        };
        if !list.is_minimal() {
            keep(acl::ACCESS, list.to_bytes())?;
        }
        if new.kind == FileKind::Directory {
            keep(acl::DEFAULT, default)?;
        }
        Ok(Some(Inherited { permissions: list.permissions(), lists }))
    }
}
