//! Pending changes: changes of statistics by a thread, not yet applied to the groups.
//!
//! Some statistics change with every page read, written or evicted, and each change has to be added
//! to the group and to every group above it, on cache lines shared by all threads. So a thread adds
//! up its changes, for a few owners at a time, in slots inside its stock set, behind its biased
//! lock ([`BiasedLock`](crate::biased_lock::BiasedLock)): an addition is a comparison and a plain
//! store. A slot reaching [`PENDING_BYTES_MAX`], or as many pages, is applied immediately, and so
//! is a slot claimed by another owner.
//!
//! So a statistic lags by less than [`PENDING_BYTES_MAX`] for each thread and owner. For a group
//! with many groups below it, the lag is less than [`NR_PENDING`] times as much for each thread. An
//! exact read applies everything first; this costs nothing when nothing is pending. A decision near
//! a threshold adds the amounts read in the slots.
//!
//! Readers visit the sets on a list alone (see [`crate::set_list`]): a set is listed when a slot is
//! claimed. Now and then a reader *sweeps*: it empties the slots of sets unchanged since the last
//! sweep, and takes these sets off the list, so idle threads cost readers nothing.
//!
//! No pending change of a removed group may remain, just as no stock may. The removing thread marks
//! the node dead, then enters every thread's slots; a thread claiming a slot checks the mark when
//! it is inside.

use umemcg_base::PAGE_SIZE_U64;
use umemcg_base::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::counter::NO_NODE;

/// Number of statistics of an owner with pending changes.
pub const NR_PENDING_ITEMS: usize = 9;

/// The first of them are in bytes, the others count pages.
const NR_BYTE_ITEMS: usize = 6;

/// Owners with slots in one thread.
pub const NR_PENDING: usize = if cfg!(loom) { 1 } else { 8 };

/// A change of this many bytes, up or down, is applied immediately.
pub const PENDING_BYTES_MAX: u64 = 128 << 10;

/// Returns the smallest change of an item to be applied immediately.
const fn pending_max(item: usize) -> u64 {
    if item < NR_BYTE_ITEMS { PENDING_BYTES_MAX } else { PENDING_BYTES_MAX / PAGE_SIZE_U64 }
}

/// The pending changes of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Its node.
    pub node: u32,
    /// Changes, in bytes or in pages.
    pub deltas: [i64; NR_PENDING_ITEMS],
}

impl Pending {
    /// Returns whether all changes are zero.
    pub fn is_nothing(&self) -> bool {
        self.deltas.iter().all(|&delta| delta == 0)
    }
}

/// Applies changes to a group, or to the nearest living one above. Must not block.
pub type Apply<'f> = &'f dyn Fn(Pending);

/// The changes of one owner. The biased lock orders all accesses; relaxed is enough.
#[derive(Debug, Default)]
struct Slot {
    /// [`NO_NODE`] for none.
    node: AtomicU32,
    deltas: [AtomicI32; NR_PENDING_ITEMS],
}

impl Slot {
    fn peek(&self) -> Pending {
        Pending {
            node: self.node.load(Ordering::Relaxed),
            deltas: std::array::from_fn(|item| self.deltas[item].load(Ordering::Relaxed).into()),
        }
    }

    fn take(&self) -> Pending {
        let pending = self.peek();
        self.deltas.iter().for_each(|delta| delta.store(0, Ordering::Relaxed));
        pending
    }
}

/// The pending changes of one thread.
#[derive(Debug, Default)]
pub(crate) struct PendingSlots {
    slots: [Slot; NR_PENDING],
    /// The set is in the ledger's list of sets with possible pending changes: true when a slot is
    /// claimed. Changed together with the list, inside the biased lock.
    is_listed: AtomicBool,
    /// Something was added since the last sweep. If a sweep clears it just afterward, the thread
    /// loses only its slots.
    is_recent: AtomicBool,
}

impl PendingSlots {
    fn slot(&self, node: u32) -> &Slot {
        &self.slots[node as usize % NR_PENDING]
    }

    /// Adds to the pending changes of a node, if the node has a slot and the sum stays small.
    #[inline]
    pub(crate) fn add(&self, node: u32, item: usize, delta: i64) -> bool {
        let slot = self.slot(node);
        let sum = i64::from(slot.deltas[item].load(Ordering::Relaxed)) + delta;
        let fits = slot.node.load(Ordering::Relaxed) == node && sum.unsigned_abs() < pending_max(item);
        if fits {
            slot.deltas[item].store(sum as i32, Ordering::Relaxed);
            // A load is cheaper than a store of the same value.
            if !self.is_recent.load(Ordering::Relaxed) {
                self.is_recent.store(true, Ordering::Relaxed);
            }
        }
        fits
    }

    /// Returns whether the set is listed. For a thread inside.
    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Relaxed)
    }

    /// Notes whether the set is listed. For a thread inside.
    pub(crate) fn set_listed(&self, is_listed: bool) {
        self.is_listed.store(is_listed, Ordering::Relaxed);
    }

    /// Returns whether anything was added since this was last called. For a sweep.
    pub(crate) fn take_recent(&self) -> bool {
        let is_recent = self.is_recent.load(Ordering::Relaxed);
        if is_recent {
            self.is_recent.store(false, Ordering::Relaxed);
        }
        is_recent
    }

    /// Gives a slot to the node, unless the node is dead. Returns the slot's former pending
    /// changes. The set must be listed.
    pub(crate) fn claim(&self, node: u32, is_dead: impl FnOnce() -> bool) -> Pending {
        let slot = self.slot(node);
        let before = slot.take();
        self.is_recent.store(true, Ordering::Relaxed);
        if before.node != node {
            slot.node.store(node, Ordering::Relaxed);
            // An earlier remover has set the mark; a later one finds the slot.
            if is_dead() {
                slot.node.store(NO_NODE, Ordering::Relaxed);
            }
        }
        before
    }

    /// Returns the recent content of the slots.
    pub(crate) fn peek(&self) -> impl Iterator<Item = Pending> {
        self.slots.iter().map(Slot::peek).filter(|pending| !pending.is_nothing())
    }

    /// Takes all pending changes; the slots stay claimed.
    pub(crate) fn take_all(&self, apply: Apply<'_>) {
        self.slots.iter().map(Slot::take).filter(|pending| !pending.is_nothing()).for_each(apply);
    }

    /// Takes the pending changes and the slots of the nodes for which `is_meant` returns `true`.
    pub(crate) fn purge(&self, is_meant: impl Fn(u32) -> bool, apply: Apply<'_>) {
        for slot in self.slots.iter().filter(|slot| is_meant(slot.node.load(Ordering::Relaxed))) {
            let pending = slot.take();
            slot.node.store(NO_NODE, Ordering::Relaxed);
            apply(pending);
        }
    }
}
