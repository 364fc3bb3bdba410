//! Purging a removed group from all threads: nothing of it stays in stock or pending.

use super::Ledger;
use crate::pending::Apply;
use crate::stock::{Drain, StockSet};
use crate::stock_table::Stocked;

impl Ledger {
    /// Removes all stock and all pending changes of a node marked dead, so no new ones can appear.
    /// `HANDSHAKE` is false only in the model showing why their threads must be kept out meanwhile.
    pub fn purge<const HANDSHAKE: bool>(&self, index: u32, apply: Apply<'_>) {
        let purge = |set: &StockSet| set.purge(index, &|out| self.give_back_stocked(out), apply);
        if HANDSHAKE {
            self.for_each_set(|_| true, purge);
        } else {
            self.sets().for_each(purge);
        }
    }

    /// Calls [`purge`](Self::purge) for a node and its descendants, all marked dead.
    pub fn purge_subtree(&self, top: u32) {
        let is_meant = |slot: Stocked| self.is_below(slot.node, top);
        self.for_each_set(
            |_| true,
            |set| {
                set.drain(Drain::Slots, is_meant, &|out| self.give_back_stocked(out));
                set.pending().purge(|node| self.is_below(node, top), &|_| ());
            },
        );
    }
}
