//! The number of pages of a file fetched again.
//!
//! A shadow entry shows that an evicted page comes back, but the number of entries is bounded. When
//! a file much larger than its group is read again and again, the entry of a page is gone before
//! the page comes back. Then the number of fetches shows it: of a file with *n* pages, every fetch
//! after the *n*-th is of a page fetched before.

use umemcg_base::LeafMutex;

#[derive(Debug, Default)]
struct Counts {
    nr_fetched: u64,
    /// The fetches counted as refaults.
    nr_refaults: u64,
}

/// The counts of one file.
#[derive(Debug, Default)]
pub(super) struct FetchCounts(LeafMutex<Counts>);

impl FetchCounts {
    /// Notes refaults shown by shadow entries and counted already.
    pub(super) fn note_refaults(&self, nr: u64) {
        if nr > 0 {
            self.0.lock().nr_refaults += nr;
        }
    }

    /// Notes `nr` fetched pages of a file with `nr_of_file` pages. Returns the refaults not counted
    /// yet: a lower bound.
    pub(super) fn note_fetched(&self, nr: u64, nr_of_file: u64) -> u64 {
        let mut counts = self.0.lock();
        counts.nr_fetched += nr;
        let new = counts.nr_fetched.saturating_sub(nr_of_file).saturating_sub(counts.nr_refaults);
        counts.nr_refaults += new;
        new
    }

    /// Begins anew when pages were truncated or invalidated: fetching them again is no refault.
    pub(super) fn begin_anew(&self) {
        *self.0.lock() = Counts::default();
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
        // A refault shown by a shadow entry is not counted again.
        counts.note_refaults(1);
        assert_eq!((counts.note_fetched(1, 100), counts.note_fetched(1, 100)), (0, 1));
        counts.begin_anew();
        assert_eq!((counts.note_fetched(100, 100), counts.note_fetched(1, 100)), (0, 1));
    }
}
