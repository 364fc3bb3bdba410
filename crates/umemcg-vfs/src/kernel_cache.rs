//! The trait of the kernel above a mount, which caches names and inodes and can be asked to forget
//! some.

use std::fmt;

use crate::attr::NodeId;

/// An inode that no process is known to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdleInode {
    /// The inode.
    pub node: NodeId,
    /// A directory that may be a working directory must not lose its name.
    pub is_directory: bool,
    /// The names that are known, each with its directory; empty unless
    /// [`KernelCache::asks_by_name`].
    pub names: Vec<(NodeId, Box<[u8]>)>,
}

/// A cache that remembers names and inodes of a volume and can be asked to forget.
///
/// A forgotten inode comes back as [`Lookup::forget`](crate::Lookup::forget), immediately or later.
/// An inode in use (open, a working directory, a directory with children that are remembered)
/// stays.
pub trait KernelCache: Send + Sync + fmt::Debug {
    /// Returns whether an inode is asked for by its names.
    fn asks_by_name(&self) -> bool;

    /// Asks to let go of inodes. Never waits; false when it cannot be asked just now. Called with
    /// no lock held.
    fn let_go(&self, idle: Vec<IdleInode>) -> bool;
}
