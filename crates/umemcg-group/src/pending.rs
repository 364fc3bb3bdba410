//! Changes of numbers that a thread has made and not yet told the groups.
//!
//! The states of dirty data change with every page that is written, and each change is told to the group and to every group
//! above it: lines that all writers share. So a thread adds up what it changes, for a few owners at a time, in slots that
//! stand in its stock set, behind the lock that is its own ([`BiasedLock`](crate::biased_lock::BiasedLock)): an addition
//! is a comparison and a plain store. What reaches [`PENDING_BYTES_MAX`] is told at once, and so is what another owner
//! takes the slot from.
//!
//! So a number is behind by less than [`PENDING_BYTES_MAX`] for each thread and owner, and that of a group with many below it
//! by less than [`NR_PENDING`] times as much for each thread. Who reads it exactly has everything told first, which costs nothing
//! when nothing is pending; who decides by it near a threshold adds what a glimpse shows.
//!
//! A removed group must not be left pending, as it must not be left in stock: the remover marks the node dead, then intrudes,
//! and the thread that claims a slot looks for the mark when it is inside.

use umemcg_base::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::counter::NO_NODE;
use crate::ledger::Ledger;
use crate::stock::{Keeper, StockSet};

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
    /// Whether there is nothing to tell.
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
    fn add(&self, node: u32, item: usize, delta: i64) -> bool {
        let slot = self.slot(node);
        let sum = i64::from(slot.deltas[item].load(Ordering::Relaxed)) + delta;
        let fits = slot.node.load(Ordering::Relaxed) == node && sum.unsigned_abs() < PENDING_BYTES_MAX;
        if fits {
            slot.deltas[item].store(sum as i32, Ordering::Relaxed);
        }
        fits
    }

    /// Makes a slot the node's, unless that is dead. Returns what was pending there.
    fn claim(&self, node: u32, is_dead: impl FnOnce() -> bool) -> Pending {
        let slot = self.slot(node);
        let before = slot.take();
        if before.node != node {
            slot.node.store(node, Ordering::Relaxed);
            // A remover who came before us has left its mark; one who comes later finds the slot.
            if is_dead() {
                slot.node.store(NO_NODE, Ordering::Relaxed);
            }
        }
        before
    }

    /// What the slots seemed to hold a moment ago.
    fn glimpse(&self) -> impl Iterator<Item = Pending> {
        self.0.iter().map(Slot::peek).filter(|pending| !pending.is_nothing())
    }

    /// Takes everything; the slots stay their nodes'.
    fn take_all(&self, tell: Tell<'_>) {
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

impl Ledger {
    /// Adds to what the thread has pending for a node. False when it must be told: see [`tell_change`](Self::tell_change).
    #[inline]
    pub fn add_pending(&self, keeper: &Keeper<'_>, index: u32, item: usize, delta: i64) -> bool {
        self.add_pending_with::<true>(keeper, index, item, delta)
    }

    /// [`add_pending`](Self::add_pending); see [`BiasedLock::enter`](crate::biased_lock::BiasedLock::enter) for `FENCED`.
    #[inline]
    pub fn add_pending_with<const FENCED: bool>(
        &self,
        keeper: &Keeper<'_>,
        index: u32,
        item: usize,
        delta: i64,
    ) -> bool {
        keeper.enter_with::<FENCED>().is_some_and(|own| own.set().pending().add(index, item, delta))
    }

    /// Tells a change that did not fit in what is pending, with what is; from then on the node has a slot. The caller keeps the node.
    pub fn tell_change(&self, keeper: &Keeper<'_>, index: u32, item: usize, delta: i64, tell: Tell<'_>) {
        let mut change = Pending { node: index, deltas: [0; NR_PENDING_ITEMS] };
        change.deltas[item] = delta;
        if let Some(own) = keeper.enter() {
            let before = own.set().pending().claim(index, || self.node(index).is_dead());
            if before.node == index {
                change.deltas.iter_mut().zip(before.deltas).for_each(|(delta, before)| *delta += before);
            } else if !before.is_nothing() {
                // Inside: its remover waits until we are out, so the node is what it was.
                tell(before);
            }
        }
        tell(change);
    }

    /// Has everything told that any thread has pending. Dear when other threads have something.
    pub fn tell_pending(&self, keeper: &Keeper<'_>, tell: Tell<'_>) {
        if let Some(own) = keeper.enter() {
            own.set().pending().take_all(tell);
        }
        let has_any = |set: &StockSet| set.pending().glimpse().next().is_some();
        self.intrude(has_any, |set| set.pending().take_all(tell));
    }

    /// What seems to be pending for a node and all below it.
    pub fn glimpse_pending(&self, top: u32) -> [i64; NR_PENDING_ITEMS] {
        let mut sums = [0; NR_PENDING_ITEMS];
        for pending in self.sets().flat_map(|set| set.pending().glimpse()) {
            if self.is_below(pending.node, top) {
                sums.iter_mut().zip(pending.deltas).for_each(|(sum, delta)| *sum += delta);
            }
        }
        sums
    }

    /// Most that may be pending in any number, all threads together, in bytes.
    pub fn pending_bytes_max(&self) -> u64 {
        self.sets().count() as u64 * NR_PENDING as u64 * PENDING_BYTES_MAX
    }
}
