//! A volume whose names and data live in the pool alone.
//!
//! All names are in one tree under one lock (`tree`), inodes beside it (`inode`); content is a
//! file of the engine that has no store. Everything is charged to the group that causes it: pages
//! as unevictable shared memory, names, inodes, link texts and attributes as slab that cannot be
//! reclaimed. An operation for which a group or the volume's size has no room fails with `ENOSPC`,
//! after reclaim. Everything is dropped with the volume.
//!
//! Locks: the tree, then one inode's attributes. Both are leaves to the rest of the program:
//! nothing is charged, given back or dropped under them.

mod acl;
mod attributes;
mod config;
mod directory;
mod inode;
mod names;
mod open;
mod quota;
mod tree;
mod xattrs;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use umemcg_base::{PAGE_SIZE, PAGE_SIZE_U64, Rank, RankedRwLock};

use crate::attr::{Attr, Entry, FileKind, NodeId, SetAttr, StatFs};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::host_directory::next_store_id;
use crate::volume::{Volume, VolumeDir, VolumeFile, VolumeKind};
pub use config::TmpfsConfig;
use inode::{Inode, New};
use quota::Size;
use tree::Tree;
use umemcg::{Engine, File, StoreId};

/// Longest text of a symbolic link, in bytes (`PATH_MAX` less the zero).
const TARGET_BYTES_MAX: usize = 4095;
/// Ids from a volume's base to here are its root's.
const FIRST_NODE: u64 = 64;

/// See the module text.
#[derive(Debug)]
pub struct Tmpfs {
    store_id: StoreId,
    size: Arc<Size>,
    tree: RankedRwLock<Tree>,
    /// (A) The next node id. Relaxed: only uniqueness matters.
    next_node: AtomicU64,
    /// The tree is an `Arc` of its own volume, so that open directories find it.
    me: std::sync::Weak<Self>,
    /// Last, because everything above gives memory back to it.
    engine: Arc<Engine>,
}

impl Tmpfs {
    /// Creates an empty volume; its node ids are above `node_base`.
    pub fn new(engine: &Arc<Engine>, config: &TmpfsConfig, node_base: u64) -> Arc<Self> {
        let root = Inode::root(config, node_base + NodeId::ROOT.0);
        Arc::new_cyclic(|me| Self {
            store_id: next_store_id(),
            size: Arc::new(Size::new(config.size_bytes.map(|bytes| bytes.div_ceil(PAGE_SIZE_U64)))),
            tree: RankedRwLock::new(Rank::Names, Tree::new(root)),
            next_node: AtomicU64::new(node_base + FIRST_NODE),
            me: me.clone(),
            engine: Arc::clone(engine),
        })
    }

    /// Inodes, the root among them.
    pub fn nr_inodes(&self) -> usize {
        self.tree.read().nr_nodes()
    }

    fn entry(inode: &Inode, attr: Attr) -> Entry {
        Entry { node: inode.node, generation: 0, attr }
    }
}

impl Volume for Tmpfs {
    fn kind(&self) -> VolumeKind {
        let pages = |pages: u64| pages.saturating_mul(PAGE_SIZE_U64);
        VolumeKind::Tmpfs { size_bytes: self.size.max().map(pages), used_bytes: pages(self.size.used()) }
    }

    fn store_id(&self) -> StoreId {
        self.store_id
    }

    fn path_of(&self, node: NodeId) -> Option<PathBuf> {
        let components = self.tree.read().path(node)?;
        Some(components.iter().rev().map(|name| OsStr::from_bytes(name)).collect())
    }

    fn path_of_content(&self, _file: &Arc<File>) -> Option<PathBuf> {
        // Asked about data that is not durable, of which there is none here.
        None
    }

    fn lookup(&self, _caller: &Caller, parent: NodeId, name: &OsStr) -> Result<Entry, VfsError> {
        let tree = self.tree.read();
        let inode = tree.lookup(parent, name)?;
        inode.count_lookup();
        Ok(Self::entry(inode, tree.attr(inode)))
    }

    fn forget(&self, node: NodeId, nr_lookups: u64) {
        let is_last = {
            let tree = self.tree.read();
            tree.get(node).is_ok_and(|inode| inode.forget(nr_lookups))
        };
        if is_last {
            let gone = self.tree.write().reap(node);
            drop(gone);
        }
    }

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
        // As many as the free memory could hold.
        let ffree = margin.saturating_mul(PAGE_SIZE_U64) / inode::INODE_BYTES;
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
        Ok(self.make(caller, parent, name, &New { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target })?.1)
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        rdev: u64,
    ) -> Result<Entry, VfsError> {
        let kind = match FileKind::from_mode(mode) {
            Some(FileKind::Directory | FileKind::Symlink) => return Err(Errno::INVAL.into()),
            Some(kind) => kind,
            None if mode & 0o170_000 == 0 => FileKind::Regular,
            None => return Err(Errno::INVAL.into()),
        };
        Ok(self.make(caller, parent, name, &New { kind, mode, rdev, target: None })?.1)
    }

    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &OsStr, mode: u32) -> Result<Entry, VfsError> {
        let new = New { kind: FileKind::Directory, mode: mode & 0o1777, rdev: 0, target: None };
        Ok(self.make(caller, parent, name, &new)?.1)
    }

    fn unlink(&self, _caller: &Caller, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
        let gone = self.tree.write().unlink(parent, name, false)?;
        drop(gone);
        Ok(())
    }

    fn rmdir(&self, parent: NodeId, name: &OsStr) -> Result<(), VfsError> {
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
    ) -> Result<(), VfsError> {
        if flags.contains(RenameFlags::WHITEOUT) {
            return Ok(self.rename_with_whiteout(caller, (parent, name), (new_parent, new_name), flags)?);
        }
        let gone = self.tree.write().rename((parent, name), (new_parent, new_name), flags)?;
        drop(gone);
        Ok(())
    }

    fn link(
        &self,
        caller: &Caller,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry, VfsError> {
        self.link_to(caller, node, new_parent, new_name)
    }

    fn open(&self, caller: &Caller, node: NodeId, flags: OFlags) -> Result<Arc<dyn VolumeFile>, VfsError> {
        let inode = self.inode(node)?;
        Ok(self.open_inode(caller, inode, flags)?)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let (entry, file) = self.create_file(caller, parent, name, mode, flags)?;
        Ok((entry, file))
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: u32,
        flags: OFlags,
    ) -> Result<(Entry, Arc<dyn VolumeFile>), VfsError> {
        let (entry, file) = self.create_nameless(caller, parent, mode, flags)?;
        Ok((entry, file))
    }

    fn opendir(&self, caller: &Caller, node: NodeId) -> Result<Arc<dyn VolumeDir>, VfsError> {
        Ok(self.open_directory(caller, node)?)
    }

    fn getxattr(&self, node: NodeId, name: &OsStr) -> Result<Vec<u8>, VfsError> {
        Ok(self.inode(node)?.getxattr(name)?)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: XattrFlags,
        kill_set_gid: bool,
    ) -> Result<(), VfsError> {
        Ok(self.inode(node)?.setxattr(&self.engine, caller, name, value, flags, kill_set_gid)?)
    }

    fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, VfsError> {
        Ok(self.inode(node)?.listxattr(caller.uid == 0))
    }

    fn removexattr(&self, node: NodeId, name: &OsStr) -> Result<(), VfsError> {
        Ok(self.inode(node)?.removexattr(name)?)
    }

    fn syncfs(&self) -> Result<(), VfsError> {
        Ok(())
    }

    fn nodes_end(&self) -> u64 {
        self.next_node.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn abandon(&self) {
        let gone = self.tree.write().take_all();
        drop(gone);
    }
}
