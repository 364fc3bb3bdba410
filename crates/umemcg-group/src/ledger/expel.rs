//! The end of a removed group in the threads: nothing of it stays in stock or pending.

use super::Ledger;
use crate::pending::Tell;
use crate::stock::{Drain, StockSet};
use crate::stock_table::Stocked;

impl Ledger {
    /// Leaves no stock of a node that has been marked dead, and nothing pending, and lets nothing
    /// new arise. `HANDSHAKE` is false only in the model that shows why the stocks must be intruded
    /// upon.
    pub fn expel<const HANDSHAKE: bool>(&self, index: u32, tell: Tell<'_>) {
        let expel = |set: &StockSet| set.expel(index, &|out| self.give_back_stocked(out), tell);
        if HANDSHAKE {
            self.intrude(|_| true, expel);
        } else {
            self.sets().for_each(expel);
        }
    }

    /// Calls [`expel`](Self::expel) for a node and all below it, all marked dead.
    pub fn expel_subtree(&self, top: u32) {
        let is_meant = |slot: Stocked| self.is_below(slot.node, top);
        self.intrude(
            |_| true,
            |set| {
                set.drain(Drain::Slots, is_meant, &|out| self.give_back_stocked(out));
                set.pending().expel(|node| self.is_below(node, top), &|_| ());
            },
        );
    }
}
