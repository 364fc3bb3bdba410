//! Numbers that threads have pending: adding to them, telling them, looking at them. See
//! [`crate::pending`].

use super::Ledger;
use crate::pending::{NR_PENDING, NR_PENDING_ITEMS, PENDING_BYTES_MAX, Pending, Tell};
use crate::stock::{Keeper, StockSet};

impl Ledger {
    /// Adds to what the thread has pending for a node. False when it must be told: see
    /// [`tell_change`](Self::tell_change).
    #[inline]
    pub fn add_pending(&self, keeper: &Keeper<'_>, index: u32, item: usize, delta: i64) -> bool {
        self.add_pending_with::<true>(keeper, index, item, delta)
    }

    /// [`add_pending`](Self::add_pending); see
    /// [`BiasedLock::enter`](crate::biased_lock::BiasedLock::enter) for `FENCED`.
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

    /// Tells a change that did not fit in what is pending, with what is; from then on the node has
    /// a slot. The caller keeps the node.
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

    /// Returns what seems to be pending for a node and all below it.
    pub fn glimpse_pending(&self, top: u32) -> [i64; NR_PENDING_ITEMS] {
        let mut sums = [0; NR_PENDING_ITEMS];
        for pending in self.sets().flat_map(|set| set.pending().glimpse()) {
            if self.is_below(pending.node, top) {
                sums.iter_mut().zip(pending.deltas).for_each(|(sum, delta)| *sum += delta);
            }
        }
        sums
    }

    /// Returns the most that may be pending in any number, all threads together, in bytes.
    pub fn pending_bytes_max(&self) -> u64 {
        self.sets().count() as u64 * NR_PENDING as u64 * PENDING_BYTES_MAX
    }
}
