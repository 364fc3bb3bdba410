//! The kernel's ids for the inodes of one of many volumes.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::attr::NodeId;
use crate::kernel_cache::{IdleInode, KeptPages, KeptWindow, KernelCache, PageDrop};

/// The low bits of a kernel-side id, identifying the inode inside its volume; the slot is above
/// them.
pub(crate) const LOCAL_BITS: u32 = 44;

/// Returns the slot of the volume with a kernel-side id: 0 for the directory of all volumes, and
/// for the only volume of a mount.
pub fn slot_of(id: u64) -> u32 {
    (id >> LOCAL_BITS) as u32
}

/// The low bits of a small inode number, identifying the inode inside its volume.
const SMALL_LOCAL_BITS: u32 = 23;
/// The slot's bits above them. Small numbers have 31 bits, for 32-bit programs without large-file
/// support.
const SMALL_SLOT_BITS: u32 = 8;

/// Returns the inode number shown for a volume's own number: small if slot and number are. Numbers
/// of different volumes differ. Slot 0 is the only volume's, or the one of the directory of all
/// volumes, which has the number 1.
pub(crate) fn shown_ino(slot: u32, ino: u64) -> u64 {
    if slot >> SMALL_SLOT_BITS == 0 && ino >> SMALL_LOCAL_BITS == 0 {
        u64::from(slot) << SMALL_LOCAL_BITS | ino
    } else {
        ino ^ u64::from(slot) << LOCAL_BITS
    }
}

/// Returns a volume's own inode number for a shown one.
pub(crate) fn own_ino(slot: u32, shown: u64) -> u64 {
    let small = shown & ((1 << SMALL_LOCAL_BITS) - 1);
    if shown_ino(slot, small) == shown { small } else { shown ^ u64::from(slot) << LOCAL_BITS }
}

/// Converts a volume's own ids of inodes into the kernel's ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelIds {
    /// `None`: the kernel's ids are the volume's own.
    pub(crate) slot: Option<u32>,
    pub(crate) root_id: u64,
}

impl KernelIds {
    pub(crate) fn node(self, node: NodeId) -> Result<NodeId, Errno> {
        match (self.slot, node) {
            (None, node) => Ok(node),
            (Some(_), NodeId::ROOT) => Ok(NodeId(self.root_id)),
            (Some(slot), NodeId(id)) if id >> LOCAL_BITS == 0 => {
                Ok(NodeId(u64::from(slot) << LOCAL_BITS | id))
            }
            _ => Err(Errno::OVERFLOW),
        }
    }

    /// Replaces a volume's own id by the kernel's. Returns `false` if there is none.
    fn translate(self, node: &mut NodeId) -> bool {
        self.node(*node).map(|kernel_id| *node = kernel_id).is_ok()
    }
}

/// The kernel's cache for one of many volumes. It takes the volume's own ids and passes on the
/// kernel's.
#[derive(Debug)]
pub(crate) struct MemberKernel {
    pub(crate) kernel: Arc<dyn KernelCache>,
    pub(crate) ids: KernelIds,
}

/// The pages of one of many volumes, by the kernel's ids.
#[derive(Debug)]
struct MemberPages {
    kept: Box<dyn KeptPages>,
    ids: KernelIds,
}

impl KeptPages for MemberPages {
    fn kept_windows(&self, place: &mut u32, nr: usize) -> Option<Vec<KeptWindow>> {
        let mut windows = self.kept.kept_windows(place, nr)?;
        windows.retain_mut(|window| self.ids.translate(&mut window.node));
        Some(windows)
    }
}

impl KernelCache for MemberKernel {
    fn asks_by_name(&self) -> bool {
        self.kernel.asks_by_name()
    }

    fn let_go(&self, mut idle: Vec<IdleInode>) -> bool {
        // The kernel does not know an inode without a kernel-side id.
        idle.retain_mut(|idle| {
            idle.names.retain_mut(|(parent, _)| self.ids.translate(parent));
            self.ids.translate(&mut idle.node)
        });
        self.kernel.let_go(idle)
    }

    fn keeps_pages(&self) -> bool {
        self.kernel.keeps_pages()
    }

    fn drop_pages(&self, mut drops: Vec<PageDrop>) {
        drops.retain_mut(|drop| self.ids.translate(&mut drop.node));
        self.kernel.drop_pages(drops);
    }

    fn watch_pages(&self, kept: Box<dyn KeptPages>) {
        self.kernel.watch_pages(Box::new(MemberPages { kept, ids: self.ids }));
    }

    fn attribute_lifetime(&self) -> Duration {
        self.kernel.attribute_lifetime()
    }

    fn is_exclusive(&self) -> bool {
        self.kernel.is_exclusive()
    }

    fn opens_silently(&self) -> bool {
        self.kernel.opens_silently()
    }

    fn attributes_changed(&self, node: NodeId) -> bool {
        self.ids.node(node).is_ok_and(|node| self.kernel.attributes_changed(node))
    }

    fn can_be_told(&self) -> bool {
        self.kernel.can_be_told()
    }

    fn name_changed(&self, parent: NodeId, name: &OsStr, may_stay: bool) {
        if let Ok(parent) = self.ids.node(parent) {
            self.kernel.name_changed(parent, name, may_stay);
        }
    }

    fn all_names_changed(&self) {
        self.kernel.all_names_changed();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn inode_numbers_differ_between_slots_and_lead_back() {
        let slots = [1, 2, 255, 256, (1 << (64 - LOCAL_BITS)) - 1];
        let inos = [1, 2, (1 << 23) - 1, 1 << 23, 1 << 31, (1 << LOCAL_BITS) - 1];
        let mut seen = HashSet::new();
        for (slot, ino) in slots.iter().flat_map(|&slot| inos.map(|ino| (slot, ino))) {
            let shown = shown_ino(slot, ino);
            assert!(seen.insert(shown), "{slot} {ino}");
            assert_eq!(own_ino(slot, shown), ino, "{slot}");
        }
    }

    #[test]
    fn small_numbers_of_the_first_255_slots_stay_small() {
        for slot in [0, 1, 255] {
            assert!(shown_ino(slot, 1) < 1 << 31 && shown_ino(slot, (1 << 23) - 1) < 1 << 31);
        }
        assert_eq!(shown_ino(0, u64::MAX), u64::MAX, "the only volume of a mount");
    }
}
