//! How many pages of a file were fetched again.
//!
//! Of a page that reclaim has taken, a shadow entry tells when it comes back; but only as many are
//! kept as the memory is large. When a file much larger than its group is read again and again,
//! none is left of a page until it comes back. Then the number of fetches tells: of a file with *n*
//! pages, those that are fetched beyond the *n*-th were fetched before.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one file. Relaxed: they are for statistics.
#[derive(Debug, Default)]
pub(super) struct FetchCounts {
    nr_fetched: AtomicU64,
    /// Of those, the ones that were counted as refaults.
    nr_refaults: AtomicU64,
}

impl FetchCounts {
    /// Notes that shadow entries have told of pages, which are counted.
    pub(super) fn note_refaults(&self, nr: u64) {
        self.nr_refaults.fetch_add(nr, Ordering::Relaxed);
    }

    /// Notes that pages were fetched of a file of `nr_of_file`; returns how many fetches beyond
    /// those that were counted were of pages that had been there before, at least.
    pub(super) fn note_fetched(&self, nr: u64, nr_of_file: u64) -> u64 {
        let nr_fetched = self.nr_fetched.fetch_add(nr, Ordering::Relaxed) + nr;
        let least = nr_fetched.saturating_sub(nr_of_file);
        least.saturating_sub(self.nr_refaults.fetch_max(least, Ordering::Relaxed))
    }

    /// Begins anew, since pages have gone in another way than by reclaim: that they are fetched
    /// again tells nothing of the memory.
    pub(super) fn begin_anew(&self) {
        self.nr_fetched.store(0, Ordering::Relaxed);
        self.nr_refaults.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fetched_beyond_a_files_pages_was_there_before() {
        let counts = FetchCounts::default();
        assert_eq!((counts.note_fetched(60, 100), counts.note_fetched(40, 100)), (0, 0));
        assert_eq!((counts.note_fetched(8, 100), counts.note_fetched(2, 100)), (8, 2));
        // What a shadow entry tells is counted there, and not again here.
        counts.note_refaults(1);
        assert_eq!((counts.note_fetched(1, 100), counts.note_fetched(1, 100)), (0, 1));
        counts.begin_anew();
        assert_eq!((counts.note_fetched(100, 100), counts.note_fetched(1, 100)), (0, 1));
    }
}
