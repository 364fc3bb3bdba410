//! Changes of numbers that a thread has made and not yet told the groups.
//!
//! The states of dirty data change with every page that is written, and each change is told to the
//! group and to every group above it: lines that all writers share. So a thread adds up what it
//! changes, for a few owners at a time, in slots that stand in its stock set, behind the lock that
//! is its own ([`BiasedLock`](crate::biased_lock::BiasedLock)): an addition is a comparison and a
//! plain store. What reaches [`PENDING_BYTES_MAX`] is told at once, and so is what another owner
//! takes the slot from.
//!
//! So a number is behind by less than [`PENDING_BYTES_MAX`] for each thread and owner, and that of
//! a group with many below it by less than [`NR_PENDING`] times as much for each thread. An exact
//! read has everything told first, which costs nothing when nothing is pending; a decision near a
//! threshold adds what a look from outside shows.
//!
//! A removed group must not be left pending, as it must not be left in stock: the remover marks the
//! node dead, then intrudes, and the thread that claims a slot looks for the mark when it is
//! inside.

use umemcg_base::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::counter::NO_NODE;

/// Numbers of an owner that may be pending.
pub const NR_PENDING_ITEMS: usize = 3;

/// Owners for which a thread adds up at a time.
pub const NR_PENDING: usize = if cfg!(loom) { 1 } else { 8 };

/// A change of so many bytes is told at once, up or down.
pub const PENDING_BYTES_MAX: u64 = 128 << 10;

/// What is to be told of one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Its node.
    pub node: u32,
    /// Changes in bytes.
    pub deltas: [i64; NR_PENDING_ITEMS],
}

impl Pending {
    /// Returns whether there is nothing to tell.
    pub fn is_nothing(&self) -> bool {
        self.deltas.iter().all(|&delta| delta == 0)
    }
}

/// Tells a group, or the nearest above that is not removed. Waits for nothing.
pub type Tell<'f> = &'f dyn Fn(Pending);

/// What is pending for one owner. The biased lock orders all of this; relaxed is enough.
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

/// What a thread has pending.
#[derive(Debug, Default)]
pub(crate) struct PendingSlots([Slot; NR_PENDING]);

impl PendingSlots {
    fn slot(&self, node: u32) -> &Slot {
        &self.0[node as usize % NR_PENDING]
    }

    /// Adds to what is pending for a node that has its slot, if that stays small.
    #[inline]
    pub(crate) fn add(&self, node: u32, item: usize, delta: i64) -> bool {
        let slot = self.slot(node);
        let sum = i64::from(slot.deltas[item].load(Ordering::Relaxed)) + delta;
        let fits = slot.node.load(Ordering::Relaxed) == node && sum.unsigned_abs() < PENDING_BYTES_MAX;
        if fits {
            slot.deltas[item].store(sum as i32, Ordering::Relaxed);
        }
        fits
    }

    /// Makes a slot the node's, unless that is dead. Returns what was pending there.
    pub(crate) fn claim(&self, node: u32, is_dead: impl FnOnce() -> bool) -> Pending {
        let slot = self.slot(node);
        let before = slot.take();
        if before.node != node {
            slot.node.store(node, Ordering::Relaxed);
            // A remover that came before us has left its mark; one that comes later finds the slot.
            if is_dead() {
                slot.node.store(NO_NODE, Ordering::Relaxed);
            }
        }
        before
    }

    /// Returns what the slots seemed to hold a moment ago.
    pub(crate) fn glimpse(&self) -> impl Iterator<Item = Pending> {
        self.0.iter().map(Slot::peek).filter(|pending| !pending.is_nothing())
    }

    /// Takes everything; the slots stay their nodes'.
    pub(crate) fn take_all(&self, tell: Tell<'_>) {
        self.0.iter().map(Slot::take).filter(|pending| !pending.is_nothing()).for_each(tell);
    }

    /// Takes what there is for the nodes meant, and their slots.
    pub(crate) fn expel(&self, is_meant: impl Fn(u32) -> bool, tell: Tell<'_>) {
        for slot in self.0.iter().filter(|slot| is_meant(slot.node.load(Ordering::Relaxed))) {
            let pending = slot.take();
            slot.node.store(NO_NODE, Ordering::Relaxed);
            tell(pending);
        }
    }
}
