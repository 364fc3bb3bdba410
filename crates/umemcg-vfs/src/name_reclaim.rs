//! Reclaim of names, the same for volumes of the host and of objects: the kernel is asked to forget
//! the oldest names of a group.
//!
//! A name pinned by a process (with an `O_PATH` descriptor, say) stays although the kernel was
//! asked, and perhaps another tenant pins it. Such a name is on a list of its own, which a scan
//! hardly looks at: each scan asks for a few of them again, the oldest ones, and reclaim waits for
//! those only if the group has no other idle names.

use umemcg::Group;
use umemcg::shrinker::{Scan, Scanned};

use crate::attr::{FileKind, NodeId};
use crate::kernel_cache::{IdleInode, KernelCache};
use crate::name_lists::{Listed, NR_PINNED_ASKED, NameLists};

/// The outcome of an attempt to make an inode leave.
#[derive(Debug)]
pub(crate) enum LeaveOutcome {
    /// The inode is in use, or the kernel did not forget it when it was last asked.
    Kept,
    /// The inode stays, but its cached content was dropped, freeing this many bytes.
    ContentDropped(u64),
    /// The kernel was asked before, and is expected to release this many bytes.
    Requested(u64),
    /// The inode is idle: the kernel should be asked to forget it.
    Idle {
        kind: FileKind,
        /// Its names, if the caller wants them.
        names: Vec<(NodeId, Box<[u8]>)>,
        /// The bytes freed with the inode.
        bytes: u64,
    },
}

/// The result of a look at some names.
#[derive(Debug, Default)]
struct Picked {
    freed_bytes: u64,
    /// Expected of earlier requests, and of the idle inodes.
    releasing_bytes: u64,
    idle: Vec<IdleInode>,
}

impl Picked {
    fn of(nodes: &[NodeId], by_name: bool, leave: &impl Fn(NodeId) -> LeaveOutcome) -> Self {
        let mut picked = Self::default();
        for &node in nodes {
            match leave(node) {
                LeaveOutcome::Kept => {}
                LeaveOutcome::ContentDropped(bytes) => picked.freed_bytes += bytes,
                LeaveOutcome::Requested(bytes) => picked.releasing_bytes += bytes,
                LeaveOutcome::Idle { kind: FileKind::Directory, .. } if by_name => {}
                LeaveOutcome::Idle { kind, names, bytes } => {
                    picked.releasing_bytes += bytes;
                    let names = if by_name { names } else { Vec::new() };
                    picked.idle.push(IdleInode { node, is_directory: kind == FileKind::Directory, names });
                }
            }
        }
        picked
    }
}

/// Asks the kernel to forget the oldest `nr` names of a group. `leave` decides for one of them;
/// `not_asked` is called for those whose requests the kernel does not take now.
pub(crate) fn ask_for_names(
    lists: &NameLists,
    kernel: &dyn KernelCache,
    (group, nr): (&Group, u64),
    leave: impl Fn(NodeId) -> LeaveOutcome,
    not_asked: impl Fn(NodeId),
) -> Scan {
    let by_name = kernel.asks_by_name();
    let names = lists.oldest(Listed::Names, group, nr);
    let pinned = lists.oldest(Listed::Pinned, group, nr.min(NR_PINNED_ASKED));
    let scanned = (names.len() + pinned.len()) as u64;
    let (picked, of_pinned) = (Picked::of(&names, by_name, &leave), Picked::of(&pinned, by_name, &leave));
    let mut done =
        Scanned { scanned, freed_bytes: picked.freed_bytes + of_pinned.freed_bytes, ..Scanned::default() };
    let idle: Vec<_> = picked.idle.into_iter().chain(of_pinned.idle).collect();
    let nodes: Vec<_> = idle.iter().map(|idle| idle.node).collect();
    if idle.is_empty() || kernel.let_go(idle) {
        done.releasing_bytes = match picked.releasing_bytes {
            0 => of_pinned.releasing_bytes,
            bytes => bytes,
        };
    } else {
        nodes.into_iter().for_each(not_asked);
    }
    if by_name {
        // The thread reporting the release may be waiting for the very request reclaiming here, so
        // reclaim must not wait for it.
        done.freed_bytes += std::mem::take(&mut done.releasing_bytes);
    }
    Scan::Done(done)
}
