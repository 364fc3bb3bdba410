//! Pending changes of statistics: adding to them, applying them, peeking at them. See
//! [`crate::pending`].

use std::ptr;

use umemcg_base::sync::atomic::Ordering::Relaxed;

use super::Ledger;
use crate::pending::{Apply, NR_PENDING, NR_PENDING_ITEMS, PENDING_BYTES_MAX, Pending};
use crate::set_list::VISITS_PER_SWEEP;
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

    /// Applies a change too large for a slot, together with the pending ones; from then on the node
    /// has a slot. The caller keeps the node alive.
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
            let slots = own.set().pending();
            if !slots.is_listed() {
                slots.set_listed(true);
                self.with_pending.insert(own.set().index());
            }
            let before = slots.claim(index, || self.node(index).is_dead());
            if before.node == index {
                change.deltas.iter_mut().zip(before.deltas).for_each(|(delta, before)| *delta += before);
            } else if !before.is_nothing() {
                // This thread is inside: a thread removing the node waits until it has left, so the
                // node is still valid.
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
        let _alone = self.intruder.lock();
        let mut nr_visited = 0;
        let has_any = |set: &&StockSet| {
            nr_visited += 1;
            set.pending().peek().next().is_some()
        };
        let chosen: Vec<&StockSet> = self.sets_with_pending().filter(has_any).collect();
        self.enter_each(&chosen, |set| set.pending().take_all(apply));
        if self.is_pending_sweep_due(nr_visited) {
            self.sweep_pending_alone::<true>(thread, apply);
        }
    }

    /// Returns an estimate of the pending changes for a node and its descendants, without stopping
    /// any thread; but now and then sweeps (see [`crate::pending`]).
    pub fn peek_pending(
        &self,
        thread: &ThreadStock<'_>,
        top: u32,
        apply: Apply<'_>,
    ) -> [i64; NR_PENDING_ITEMS] {
        let (mut sums, mut nr_visited) = ([0; NR_PENDING_ITEMS], 0);
        for set in self.sets_with_pending() {
            nr_visited += 1;
            for pending in set.pending().peek().filter(|pending| self.is_below(pending.node, top)) {
                sums.iter_mut().zip(pending.deltas).for_each(|(sum, delta)| *sum += delta);
            }
        }
        if self.is_pending_sweep_due(nr_visited) {
            let _alone = self.intruder.lock();
            self.sweep_pending_alone::<true>(thread, apply);
        }
        sums
    }

    /// Returns the largest possible pending change of any statistic, all threads together, in
    /// bytes.
    pub fn pending_bytes_max(&self) -> u64 {
        self.sets_with_pending().count() as u64 * NR_PENDING as u64 * PENDING_BYTES_MAX
    }

    /// Counts visits to sets. Returns whether a sweep is due.
    fn is_pending_sweep_due(&self, nr_visited: usize) -> bool {
        // Racing threads lose visits, and the next sweep comes a little later.
        let nr = self.nr_pending_visits.load(Relaxed) + nr_visited;
        let is_due = nr >= VISITS_PER_SWEEP;
        self.nr_pending_visits.store(if is_due { 0 } else { nr }, Relaxed);
        is_due
    }

    /// Sweeps; `INSIDE` is false only in the model showing why a set leaves the list while its
    /// thread is kept out.
    #[cfg(loom)]
    pub fn sweep_pending<const INSIDE: bool>(&self, thread: &ThreadStock<'_>, apply: Apply<'_>) {
        let _alone = self.intruder.lock();
        self.sweep_pending_alone::<INSIDE>(thread, apply);
    }

    /// Takes the changes and the slots of all sets unchanged since the last sweep, except for the
    /// calling thread's set. The caller holds `intruder`.
    fn sweep_pending_alone<const INSIDE: bool>(&self, thread: &ThreadStock<'_>, apply: Apply<'_>) {
        let is_own = |set: &StockSet| thread.set().is_some_and(|own| ptr::eq(own, set));
        let idle = self.sets_with_pending().filter(|set| !is_own(set) && !set.pending().take_recent());
        let idle: Vec<&StockSet> = idle.collect();
        self.enter_each(&idle, |set| {
            set.pending().purge(|_| true, apply);
            if INSIDE {
                self.unlist_pending(set);
            }
        });
        if !INSIDE {
            idle.into_iter().for_each(|set| self.unlist_pending(set));
        }
    }

    fn unlist_pending(&self, set: &StockSet) {
        set.pending().set_listed(false);
        self.with_pending.remove(set.index());
    }

    /// Returns every stock set with possible pending changes, except for changes just about to be
    /// added by other threads.
    fn sets_with_pending(&self) -> impl Iterator<Item = &StockSet> {
        self.sets_of(&self.with_pending)
    }
}
