//! A volume with names and data in the pool alone.
//!
//! All names are in one tree under one lock (`tree`), inodes beside it (`inode`); content is a file
//! of the engine without a store. Everything is charged to the group of its creator or writer:
//! pages as unevictable shared memory; names, inodes, link texts and attributes as unreclaimable
//! slab. If a group or the volume's size has no room for an operation, even after reclaim, it fails
//! with `ENOSPC`. Everything is dropped with the volume.
//!
//! Locks: the tree, then one inode's attributes. Both are leaves to the rest of the program:
//! nothing is charged, uncharged or dropped under them.

mod acl;
mod attributes;
mod config;
mod create;
mod directory;
mod inode;
mod names;
mod open;
mod quota;
mod tree;
mod xattrs;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use umemcg_base::{PAGE_SIZE_U64, Rank, RankedRwLock};

use crate::attr::{Attr, Entry, NodeId};
use crate::caller::Caller;
use crate::error::VfsError;
use crate::kernel_cache::KernelCache;
use crate::volume::{Lookup, Volume, VolumeKind, next_store_id};
pub use config::TmpfsConfig;
use inode::Inode;
use quota::VolumeQuota;
use tree::Tree;
use umemcg::Engine;
use umemcg::files::{File, StoreId};

/// Node ids from a volume's base up to this offset are reserved for its root.
const FIRST_NODE: u64 = 64;

/// See the module text.
#[derive(Debug)]
pub struct Tmpfs {
    store_id: StoreId,
    size: Arc<VolumeQuota>,
    tree: RankedRwLock<Tree>,
    /// (A) The next node id. Relaxed: only uniqueness matters.
    next_node: AtomicU64,
    /// The volume itself, for the handles of open directories.
    me: std::sync::Weak<Self>,
    kernel: OnceLock<Arc<dyn KernelCache>>,
    /// Last, because everything above gives memory back to it.
    engine: Arc<Engine>,
}

impl Tmpfs {
    /// Creates an empty volume; its node ids are above `node_base`.
    pub fn new(engine: &Arc<Engine>, config: &TmpfsConfig, node_base: u64) -> Arc<Self> {
        let root = Inode::root(config, node_base + NodeId::ROOT.0);
        Arc::new_cyclic(|me| Self {
            store_id: next_store_id(),
            size: Arc::new(VolumeQuota::new(config.size_bytes.map(|bytes| bytes.div_ceil(PAGE_SIZE_U64)))),
            tree: RankedRwLock::new(Rank::Names, Tree::new(root)),
            next_node: AtomicU64::new(node_base + FIRST_NODE),
            me: me.clone(),
            kernel: OnceLock::new(),
            engine: Arc::clone(engine),
        })
    }

    /// Returns the number of inodes, the root among them.
    pub fn nr_inodes(&self) -> usize {
        self.tree.read().nr_nodes()
    }

    /// Returns an inode by its id.
    ///
    /// # Errors
    /// `ESTALE`.
    fn inode(&self, node: NodeId) -> Result<Arc<Inode>, Errno> {
        self.tree.read().get(node).map(Arc::clone)
    }

    fn entry(inode: &Inode, attr: Attr) -> Entry {
        Entry { node: inode.node, generation: 0, attr }
    }
}

impl Lookup for Tmpfs {
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
        // Only messages about write-back use the path. There is no write-back here.
        None
    }

    fn set_kernel(&self, kernel: Arc<dyn KernelCache>) {
        // Later calls have no effect.
        let _ = self.kernel.set(kernel);
    }

    /// Mapped pages stay in the kernel's cache until they are unmapped.
    fn make_kernel_forget(&self, node: NodeId, _offset: u64, _len: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.attributes_changed(node);
        }
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
