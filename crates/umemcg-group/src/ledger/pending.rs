//! Pending changes of statistics: adding to them, applying them, peeking at them. See
//! [`crate::pending`].

use super::Ledger;
use crate::pending::{Apply, NR_PENDING, NR_PENDING_ITEMS, PENDING_BYTES_MAX, Pending};
use crate::stock::{StockSet, ThreadStock};

impl Ledger {
    /// Adds to the thread's pending changes of a node. Returns `false` if the change must be
    /// applied with [`apply_with_pending`](Self::apply_with_pending).
    #[inline]
    pub fn add_pending(&self, thread: &ThreadStock<'_>, index: u32, item: usize, delta: i64) -> bool {
        self.add_pending_with::<true>(thread, index, item, delta)
    }

    /// Does the work of [`add_pending`](Self::add_pending); see
    /// [`BiasedLock::enter`](crate::biased_lock::BiasedLock::enter) for `FENCED`.
    #[inline]
    pub fn add_pending_with<const FENCED: bool>(
        &self,
        thread: &ThreadStock<'_>,
        index: u32,
        item: usize,
        delta: i64,
    ) -> bool {
        thread.enter_with::<FENCED>().is_some_and(|own| own.set().pending().add(index, item, delta))
    }

    /// Applies a change that did not fit in a slot, together with the pending ones; from then on
    /// the node has a slot. The caller keeps the node alive.
    pub fn apply_with_pending(
        &self,
        thread: &ThreadStock<'_>,
        index: u32,
        item: usize,
        delta: i64,
        apply: Apply<'_>,
    ) {
        let mut change = Pending { node: index, deltas: [0; NR_PENDING_ITEMS] };
        change.deltas[item] = delta;
        if let Some(own) = thread.enter() {
            let before = own.set().pending().claim(index, || self.node(index).is_dead());
            if before.node == index {
                change.deltas.iter_mut().zip(before.deltas).for_each(|(delta, before)| *delta += before);
            } else if !before.is_nothing() {
                // We are inside: a thread that removes the node waits until we are out, so the node
                // is still valid.
                apply(before);
            }
        }
        apply(change);
    }

    /// Applies the pending changes of all threads. Expensive when other threads have any.
    pub fn apply_pending(&self, thread: &ThreadStock<'_>, apply: Apply<'_>) {
        if let Some(own) = thread.enter() {
            own.set().pending().take_all(apply);
        }
        let has_any = |set: &StockSet| set.pending().peek().next().is_some();
        self.for_each_set(has_any, |set| set.pending().take_all(apply));
    }

    /// Returns what seems to be pending for a node and all below it, without stopping any thread.
    pub fn peek_pending(&self, top: u32) -> [i64; NR_PENDING_ITEMS] {
        let mut sums = [0; NR_PENDING_ITEMS];
        for pending in self.sets().flat_map(|set| set.pending().peek()) {
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
