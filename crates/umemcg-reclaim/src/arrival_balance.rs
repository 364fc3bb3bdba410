//! The balance of a group's two lists of pages in the order of their arrival: see
//! [`arrival_order`](crate::arrival_order).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Pages by which probation grows for each of its nearly kept pages.
const GROWTH_PAGES: u64 = 4;
/// Pages by which it shrinks for each nearly kept protected page.
const SHRINKAGE_PAGES: u64 = 64;
/// The whole, for [`ArrivalBalance::probation`].
const WHOLE: u64 = u32::MAX as u64;
/// Probation's smallest fraction.
const PROBATION_MIN: u32 = (WHOLE / 100) as u32;

/// The lists of pages in the order of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalList {
    /// Pages read for the first time, or late.
    Probation,
    /// Pages that returned soon after being taken back.
    Protected,
}

/// A group's balance of the two lists.
#[derive(Debug)]
pub(crate) struct ArrivalBalance {
    /// (A) Probation's fraction of both lists. Relaxed: a lost step is one of many.
    probation: AtomicU32,
}

impl Default for ArrivalBalance {
    fn default() -> Self {
        Self { probation: AtomicU32::new(2 * PROBATION_MIN) }
    }
}

impl ArrivalBalance {
    /// Returns the list to take from, given the lengths of both.
    pub(crate) fn victim(&self, nr_probation: u64, nr_protected: u64) -> ArrivalList {
        let all = u128::from(nr_probation + nr_protected);
        let target = (all * u128::from(self.probation.load(Relaxed)) / u128::from(WHOLE)) as u64;
        if nr_protected == 0 || nr_probation > target {
            ArrivalList::Probation
        } else {
            ArrivalList::Protected
        }
    }

    /// Moves the balance for nearly kept pages, of `nr_all` pages.
    pub(crate) fn note_nearly_kept(&self, nr_probation: u64, nr_protected: u64, nr_all: u64) {
        let fraction = |nr_pages: u64| (nr_pages.saturating_mul(WHOLE / nr_all.max(1))).min(WHOLE) as u32;
        let growth = fraction(nr_probation * GROWTH_PAGES);
        let shrinkage = fraction(nr_protected * SHRINKAGE_PAGES);
        let now = self.probation.load(Relaxed).saturating_add(growth).saturating_sub(shrinkage);
        self.probation.store(now.max(PROBATION_MIN), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_takes_from_probation_beyond_its_fraction() {
        let balance = ArrivalBalance::default();
        assert_eq!(balance.victim(1, 0), ArrivalList::Probation);
        assert_eq!(balance.victim(3, 97), ArrivalList::Probation);
        assert_eq!(balance.victim(1, 99), ArrivalList::Protected);
        assert_eq!(balance.victim(0, 1), ArrivalList::Protected);
    }

    #[test]
    fn what_was_nearly_kept_moves_the_balance() {
        let balance = ArrivalBalance::default();
        balance.note_nearly_kept(100, 0, 1000);
        assert_eq!(balance.victim(40, 60), ArrivalList::Protected);
        balance.note_nearly_kept(u64::MAX / 8, 0, 1000);
        assert_eq!(balance.victim(99, 1), ArrivalList::Protected, "all of it may be on probation");
        balance.note_nearly_kept(0, 10, 1000);
        assert_eq!(balance.victim(40, 60), ArrivalList::Probation);
        balance.note_nearly_kept(0, 1000, 1000);
        assert_eq!(balance.victim(2, 98), ArrivalList::Probation);
        assert_eq!(balance.victim(0, 1), ArrivalList::Protected, "but never none");
    }
}
