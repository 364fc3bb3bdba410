//! The number of nodes missing from an index for pages about to be inserted.

use std::sync::atomic::Ordering;

use super::{HEIGHT_MAX, HEIGHT_SHIFT, Index, node_of, slot_of};
use crate::index_node::{FANOUT_SHIFT, NODE_WORDS};

impl Index {
    /// Returns the number of new nodes needed to insert the pages `first..end`, at least one page.
    /// Takes no lock, so others may add some of these nodes before the insertion, or remove an
    /// existing one.
    pub fn nr_missing_nodes(&self, first: u64, end: u64) -> usize {
        let last = end - 1;
        // Acquire: pairs with the Release stores in `LockedIndex::store`.
        let root = self.root.load(Ordering::Acquire);
        let height = (root >> HEIGHT_SHIFT) as u32;
        let needed =
            (1..HEIGHT_MAX).find(|&height| last >> (FANOUT_SHIFT * height) == 0).unwrap_or(HEIGHT_MAX);
        if height == 0 {
            return nodes_of(first, last, needed);
        }
        if height < needed {
            // It grows first, by a node at each level above the present root.
            return nodes_of(first, last, needed) + (needed - height) as usize;
        }
        let first_word = root & ((1 << HEIGHT_SHIFT) - 1);
        self.nr_missing_below((first_word / NODE_WORDS) as u32, height - 1, first, last)
    }

    /// Returns the number of nodes missing below `node` for the pages `first..=last`, all of them
    /// below it. `node` is `level` levels above the leaves.
    fn nr_missing_below(&self, node: u32, level: u32, first: u64, last: u64) -> usize {
        if level == 0 {
            return 0;
        }
        let span_shift = FANOUT_SHIFT * level;
        let below = |nr: u64| {
            let start = nr << span_shift;
            (first.max(start), last.min(start + ((1 << span_shift) - 1)))
        };
        let nr_missing = |nr: u64| {
            let (first, last) = below(nr);
            match node_of(self.pool.word(node, slot_of(first, level)).load(Ordering::Acquire)) {
                Some(child) => self.nr_missing_below(child, level - 1, first, last),
                None => nodes_of(first, last, level),
            }
        };
        (first >> span_shift..=last >> span_shift).map(nr_missing).sum()
    }
}

/// Returns the number of nodes for the pages `first..=last` at the lowest `nr_levels` levels.
fn nodes_of(first: u64, last: u64, nr_levels: u32) -> usize {
    let at_level = |level: u32| {
        let shift = FANOUT_SHIFT * (level + 1);
        ((last >> shift) - (first >> shift) + 1) as usize
    };
    (0..nr_levels).map(at_level).sum()
}
