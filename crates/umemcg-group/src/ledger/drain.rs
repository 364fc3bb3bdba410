//! Draining the stocks of threads, and finding out whether that would help.
//!
//! A refused charge adds up the stock of all threads below the refusing node, so it visits every
//! listed set (see [`crate::set_list`]). At a limit, refusals are the normal state, and most sets
//! hold stock of other groups. So unchanging sets are emptied: now and then a scan *sweeps*: it
//! clears all slots of the sets unchanged since the last sweep, and takes these sets off the list.
//! A sweep disturbs threads and costs a fence in all of them; it happens when the visits since the
//! last one have cost about as much. If an active thread loses its slots, it claims them again with
//! its next charges.

use std::ptr;
use std::sync::OnceLock;

use umemcg_base::sync::atomic::Ordering::AcqRel;

use super::Ledger;
use crate::biased_lock::heavy_fence;
use crate::counter::CounterNode;
use crate::set_list::SetList;
use crate::stock::{Drain, OwnStock, StockSet, ThreadStock};
use crate::stock_table::Stocked;

impl Ledger {
    /// Uncharges everything in stock for the subtree of `top`. With `Drain::Slots` the slots are
    /// freed as well, so nothing is put in before the next granted charge. Expensive if other
    /// threads hold any.
    #[doc(alias = "drain_all_stock")]
    pub fn drain_subtree(&self, thread: &ThreadStock<'_>, top: u32, what: Drain) {
        let is_meant = |slot: Stocked| what.applies_to(slot) && self.is_below(slot.node, top);
        let drain = |set: &StockSet| set.drain(what, is_meant, &|out| self.give_back_stocked(out));
        if let Some(own) = thread.enter() {
            drain(own.set());
        }
        let _alone = self.intruder.lock();
        self.enter_each(
            &self.listed_sets().filter(|set| set.peek().any(is_meant)).collect::<Vec<_>>(),
            drain,
        );
    }

    /// Uncharges the calling thread's stock for `index` and the levels above. Disturbs no other
    /// thread.
    pub fn drain_own(&self, thread: &ThreadStock<'_>, index: u32) {
        let is_meant = |slot: Stocked| Drain::Slots.applies_to(slot) && self.is_below(index, slot.node);
        if let Some(own) = thread.enter() {
            own.set().drain(Drain::Slots, is_meant, &|out| self.give_back_stocked(out));
        }
    }

    /// Drains the subtree of `top` if this brings its usage down to `goal`. Returns whether usage
    /// is at or below `goal` now.
    pub fn drain_down_to(&self, thread: &ThreadStock<'_>, top: u32, goal: u64) -> bool {
        let would_help = {
            // Wait for a drain in progress: its bytes are neither in stock nor uncharged yet.
            let mut visits = self.intruder.lock();
            let (mut nr_visited, mut stocked) = (0, 0);
            for set in self.listed_sets() {
                nr_visited += 1;
                let below = set.peek().filter(|slot| self.is_below(slot.node, top));
                stocked += below.map(|slot| slot.bytes).sum::<u64>();
            }
            let would_help = self.node(top).usage() <= goal.saturating_add(stocked);
            if !would_help && visits.note(nr_visited) {
                self.sweep_alone::<true>(thread);
            }
            would_help
        };
        if would_help {
            self.drain_subtree(thread, top, Drain::Bytes);
        }
        would_help
    }

    /// Calls `see` with the content of every stock slot: the bytes of a slot are counted at its
    /// node and all above it. Disturbs no thread; exact when nothing changes.
    pub fn for_each_stocked(&self, mut see: impl FnMut(Stocked)) {
        // Waits for a drain in progress: its bytes are neither in stock nor uncharged yet.
        let _alone = self.intruder.lock();
        self.listed_sets().flat_map(StockSet::peek).filter(|slot| slot.bytes != 0).for_each(&mut see);
    }

    /// Calls `act` for every chosen stock set, while its thread is kept out.
    pub(crate) fn for_each_set(&self, choose: impl Fn(&StockSet) -> bool, act: impl Fn(&StockSet)) {
        let _alone = self.intruder.lock();
        self.enter_each(&self.sets().filter(|set| choose(set)).collect::<Vec<_>>(), act);
    }

    /// Calls `act` for each of the sets, while its thread is kept out. The caller holds `intruder`.
    pub(super) fn enter_each(&self, chosen: &[&StockSet], act: impl Fn(&StockSet)) {
        if chosen.is_empty() {
            return;
        }
        chosen.iter().for_each(|set| set.lock().close());
        heavy_fence(); // One for all of them. Pairs with the light fence in `BiasedLock::enter`.
        for set in chosen.iter().copied() {
            set.lock().wait_until_left();
            act(set);
            set.lock().open();
        }
    }

    /// Returns every stock set ever in use. A thread registering later sees all earlier writes of
    /// the caller.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &StockSet> {
        // A read-modify-write, AcqRel: pairs with `register_thread`.
        let nr_sets = self.nr_sets.fetch_add(0, AcqRel);
        (1..=nr_sets).filter_map(|index| self.set(index))
    }

    /// Returns every stock set with possible stock, except for bytes just about to be put in by
    /// other threads.
    fn listed_sets(&self) -> impl Iterator<Item = &StockSet> {
        self.sets_of(&self.stocked)
    }

    /// Returns the sets on a list.
    pub(super) fn sets_of<'l>(&'l self, list: &'l SetList) -> impl Iterator<Item = &'l StockSet> {
        let nr_sets = self.nr_sets.fetch_add(0, AcqRel); // As above.
        list.listed(nr_sets).filter_map(|index| self.set(index))
    }

    fn set(&self, index: u32) -> Option<&StockSet> {
        self.sets.get(index).and_then(OnceLock::get).map(|set| &**set)
    }

    /// Lists the set of a thread after it claimed a slot for a node. Returns whether the node is
    /// dead. Called for claims alone: a charge without a claim must not pay for it.
    pub(super) fn list_and_check(&self, own: &OwnStock<'_>, node: &CounterNode) -> bool {
        let set = own.set();
        if !set.is_listed() {
            set.set_listed(true);
            self.stocked.insert(set.index());
        }
        node.is_dead()
    }

    /// Takes a set with cleared slots off the list. For a thread inside.
    pub(super) fn unlist(&self, set: &StockSet) {
        set.set_listed(false);
        self.stocked.remove(set.index());
    }

    /// Sweeps; see the module. `INSIDE` is false only in the model showing why a set leaves the
    /// list while its thread is kept out.
    #[cfg(loom)]
    pub fn sweep<const INSIDE: bool>(&self, thread: &ThreadStock<'_>) {
        let _alone = self.intruder.lock();
        self.sweep_alone::<INSIDE>(thread);
    }

    /// Clears the slots of all sets unchanged since the last sweep, except for the calling thread's
    /// set. The caller holds `intruder`.
    fn sweep_alone<const INSIDE: bool>(&self, thread: &ThreadStock<'_>) {
        let is_own = |set: &StockSet| thread.set().is_some_and(|own| ptr::eq(own, set));
        let unchanged = self.listed_sets().filter(|set| !is_own(set) && set.is_unchanged());
        let unchanged: Vec<&StockSet> = unchanged.collect();
        self.enter_each(&unchanged, |set| {
            set.drain(Drain::Slots, |_| true, &|out| self.give_back_stocked(out));
            if INSIDE {
                self.unlist(set);
            }
        });
        if !INSIDE {
            unchanged.into_iter().for_each(|set| self.unlist(set));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::counter::{NO_NODE, UNLIMITED};
    use crate::set_list::VISITS_PER_SWEEP;

    #[test]
    fn refusals_empty_the_sets_of_idle_threads_alone() {
        let ledger = Ledger::with_hook(|_| {});
        let (full, other) = (ledger.open(NO_NODE, 10), ledger.open(NO_NODE, UNLIMITED));
        let (refused, idle, busy) = (ThreadStock::new(), ThreadStock::new(), ThreadStock::new());
        for thread in [&refused, &idle, &busy] {
            ledger.register_thread(thread);
            for _ in 0..2 {
                assert_eq!(ledger.try_charge(thread, other, 100), Ok(other));
            }
        }
        assert_eq!(ledger.listed_sets().count(), 3);
        assert_eq!(ledger.try_charge(&refused, full, 1), Ok(full));
        for _ in 0..VISITS_PER_SWEEP {
            assert_eq!(ledger.try_charge(&refused, full, 10), Err(full));
            assert_eq!(ledger.try_charge(&busy, other, 1), Ok(other));
        }
        let occupied =
            |thread: &ThreadStock<'_>| thread.set().unwrap().peek().any(|slot| Drain::Slots.applies_to(slot));
        assert!(occupied(&refused) && occupied(&busy) && !occupied(&idle));
        assert_eq!(ledger.listed_sets().count(), 2);
        ledger.uncharge(&refused, full, 1);
        // Its next charges give it stock again, and no refusal overlooks this stock.
        for _ in 0..2 {
            assert_eq!(ledger.try_charge(&idle, full, 5), Ok(full));
            ledger.uncharge(&idle, full, 5);
        }
        assert!(ledger.node(full).usage() > 0);
        assert_eq!(ledger.try_charge(&refused, full, 10), Ok(full));
    }
}
