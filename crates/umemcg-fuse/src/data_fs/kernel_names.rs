//! The kernel's cache of names, inodes and file pages, as volumes see it: a cache that can be asked
//! to forget.
//!
//! A kernel with the PRUNE notification drops unused names and then the inodes, files before their
//! directories, without a lock that a request could hold. In older kernels names are invalidated.
//! This takes the lock of the directory, so the notifying thread may wait for a request, and no
//! request may wait for that thread. An invalidated name is dropped even if it is in use. This does
//! no harm to an open file, but would leave a working directory without a path, so directories are
//! not invalidated there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use umemcg_vfs::{IdleInode, KeptPages, KernelCache, NodeId, PageDrop};

use super::lifetimes::Lifetimes;
use crate::notifier::Notifier;

/// The most nodes in one notification.
const NR_NODES_MAX: usize = 512;

/// See the module text.
#[derive(Debug)]
pub(super) struct KernelNames {
    pub(super) notifier: Notifier,
    pub(super) lifetimes: Lifetimes,
}

impl KernelCache for KernelNames {
    fn asks_by_name(&self) -> bool {
        !self.notifier.can_prune()
    }

    fn let_go(&self, mut idle: Vec<IdleInode>) -> bool {
        if self.notifier.can_prune() {
            idle.sort_by_key(|idle| idle.is_directory);
            let nodes: Vec<u64> = idle.iter().map(|idle| idle.node.0).collect();
            return nodes.chunks(NR_NODES_MAX).all(|nodes| self.notifier.prune(nodes.to_vec()));
        }
        let files = idle.iter().filter(|idle| !idle.is_directory);
        let mut names = files.flat_map(|idle| &idle.names);
        names.all(|(parent, name)| self.notifier.inval_entry(parent.0, OsStr::from_bytes(name), false))
    }

    fn keeps_pages(&self) -> bool {
        self.lifetimes.pages
    }

    fn drop_pages(&self, drops: Vec<PageDrop>) {
        self.notifier.drop_pages(drops);
    }

    fn watch_pages(&self, kept: Box<dyn KeptPages>) {
        self.notifier.watch_pages(kept);
    }

    fn attribute_lifetime(&self) -> Duration {
        self.lifetimes.attr
    }

    fn is_exclusive(&self) -> bool {
        self.lifetimes.exclusive
    }

    fn opens_silently(&self) -> bool {
        self.lifetimes.silent_opens
    }

    fn attributes_changed(&self, node: NodeId) -> bool {
        self.notifier.inval_attributes_now(node.0)
    }

    fn can_be_told(&self) -> bool {
        self.lifetimes.watch && !self.lifetimes.attr.is_zero() && self.notifier.can_expire_all()
    }

    fn name_changed(&self, parent: NodeId, name: &OsStr, may_stay: bool) {
        self.notifier.inval_entry_now(parent.0, name, may_stay);
    }

    fn all_names_changed(&self) {
        self.notifier.expire_all_now();
    }
}
