//! The seam to whoever keeps references to inodes beside us: the kernel above a mount, which has names and inodes in its
//! own cache and can be asked to let go of some.

use std::fmt;
use std::sync::Arc;

use crate::attr::NodeId;
use crate::volumes::Outward;

/// An inode that nobody is known to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// Which.
    pub node: NodeId,
    /// A directory that may be somebody's working directory must not lose its name.
    pub is_directory: bool,
    /// The names that are known, each with its directory; empty unless [`KernelCache::asks_by_name`].
    pub names: Vec<(NodeId, Box<[u8]>)>,
}

/// Who remembers names and inodes of a volume and can be asked to forget.
///
/// What is forgotten comes back as [`Volume::forget`](crate::Volume::forget), at once or later. What is in use (open, a working
/// directory, a directory with children that are remembered) stays.
pub trait KernelCache: Send + Sync + fmt::Debug {
    /// Whether an inode is asked for by its names.
    fn asks_by_name(&self) -> bool;

    /// Asks to let go of inodes. Never waits; false when it cannot be asked just now. Called with no lock held.
    fn let_go(&self, idle: Vec<Idle>) -> bool;
}

/// The kernel as one of many volumes sees it, which knows its inodes by other ids.
#[derive(Debug)]
pub(crate) struct ForMember {
    pub(crate) kernel: Arc<dyn KernelCache>,
    pub(crate) outward: Outward,
}

impl KernelCache for ForMember {
    fn asks_by_name(&self) -> bool {
        self.kernel.asks_by_name()
    }

    fn let_go(&self, mut idle: Vec<Idle>) -> bool {
        // An inode that has no id there is not known there.
        idle.retain_mut(|idle| match self.outward.node(idle.node) {
            Ok(node) => {
                idle.node = node;
                idle.names.retain_mut(|(parent, _)| {
                    self.outward.node(*parent).is_ok_and(|outward| {
                        *parent = outward;
                        true
                    })
                });
                true
            }
            Err(_) => false,
        });
        self.kernel.let_go(idle)
    }
}
