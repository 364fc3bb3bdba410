//! The list of the stock sets with possible stock: a bit for each set ever in use.
//!
//! A scan for stock visits listed sets alone, so a thread without stock costs it nothing. The bit
//! of a set changes inside the set's biased lock only:
//!
//! 1. The owner lists its set when it claims a slot, before it puts anything in.
//! 2. The owner fills and empties claimed slots without a look at the list.
//! 3. An intruder takes a set off the list after clearing all its slots. No bytes come in before
//!    the next claim, and so before the next step 1.
//!
//! So a set with a claimed slot is always listed. Nothing here orders memory: a scan with a need to
//! see the stock of another thread has synchronised with that thread, and finds the bit at least as
//! new as the slots.

use std::array;

use umemcg_base::sync::atomic::{AtomicU64, Ordering};
use umemcg_base::{Table, const_fn};

/// Words of a line. A thousand sets are two or three lines, so scanning a nearly empty list stays
/// cheap with many sets.
const LINE_WORDS: usize = if cfg!(loom) { 1 } else { 8 };
/// Sets of a line.
const LINE_SETS: u32 = 64 * LINE_WORDS as u32;

/// Bits of this many sets, on a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU64; LINE_WORDS]);

/// Numbers of stock sets.
#[derive(Debug)]
pub(crate) struct SetList {
    lines: Table<Line>,
}

impl SetList {
    const_fn! {
        pub(crate) const fn new() -> Self {
            Self { lines: Table::new() }
        }
    }

    /// Makes room for a set. Called before other threads can find the set.
    pub(crate) fn prepare(&self, set: u32) {
        self.lines.get_or_grow(set / LINE_SETS, || Line(array::from_fn(|_| AtomicU64::new(0))));
    }

    /// Adds a prepared set. For a thread inside it.
    pub(crate) fn insert(&self, set: u32) {
        self.word(set).fetch_or(1 << (set % 64), Ordering::Relaxed);
    }

    /// Removes a set. For a thread inside it, after clearing its slots.
    pub(crate) fn remove(&self, set: u32) {
        self.word(set).fetch_and(!(1 << (set % 64)), Ordering::Relaxed);
    }

    fn word(&self, set: u32) -> &AtomicU64 {
        let line = self.lines.get(set / LINE_SETS).expect("room was made for the set");
        &line.0[(set % LINE_SETS / 64) as usize]
    }

    /// Returns the listed sets from 1 to `nr_sets`, all of them prepared, and perhaps some above.
    pub(crate) fn listed(&self, nr_sets: u32) -> impl Iterator<Item = u32> {
        // No line without a set: the first set is 1.
        let nr_lines = if nr_sets == 0 { 0 } else { nr_sets / LINE_SETS + 1 };
        let lines = (0..nr_lines).filter_map(|at| Some((at, self.lines.get(at)?)));
        let words = lines.flat_map(|(at, line)| (at * LINE_WORDS as u32..).zip(&line.0));
        let filled =
            words.map(|(at, word)| (at, word.load(Ordering::Relaxed))).filter(|&(_, bits)| bits != 0);
        filled.flat_map(|(at, bits)| {
            let mut bits = bits;
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.checked_sub(1)?;
                Some(at * 64 + bit)
            })
        })
    }
}

/// Set visits by scans before one scan sweeps.
pub(crate) const VISITS_PER_SWEEP: usize = 256;

/// Visits of scans to stock sets since the last sweep.
#[derive(Debug)]
pub(crate) struct Visits(usize);

impl Visits {
    pub(crate) const NONE: Visits = Visits(0);

    /// Counts visits. Returns whether a sweep is due, which starts the count again.
    pub(crate) fn note(&mut self, nr: usize) -> bool {
        self.0 += nr;
        let is_due = self.0 >= VISITS_PER_SWEEP;
        if is_due {
            self.0 = 0;
        }
        is_due
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_and_not_removed_is_listed() {
        let list = SetList::new();
        assert_eq!(list.listed(0).count(), 0);
        (1..=200).for_each(|set| list.prepare(set));
        [1, 63, 64, 200].iter().for_each(|&set| list.insert(set));
        list.remove(63);
        assert_eq!(list.listed(200).collect::<Vec<_>>(), [1, 64, 200]);
        assert_eq!(list.listed(64).filter(|&set| set <= 64).collect::<Vec<_>>(), [1, 64]);
    }
}
