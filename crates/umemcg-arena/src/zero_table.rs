//! A sparse table of atomic words. A word reads as zero until written, and again after a discard.
//!
//! Memory is allocated page by page as words are written, and goes back page by page. The words
//! never move, so they are read through plain references, without locks or epochs.

use std::io;
use std::ops::Range;

use umemcg_base::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(loom))]
use crate::mapping::{Hint, page_bytes};
use crate::stable_table::StableTable;

/// A fixed number of atomic words, in memory allocated on first touch.
#[derive(Debug)]
pub struct ZeroTable {
    words: StableTable<AtomicU64>,
}

impl ZeroTable {
    /// Reserves address space for `nr_words` words of zero.
    ///
    /// # Errors
    /// The operating system's error for the reservation.
    pub fn new(nr_words: usize) -> io::Result<Self> {
        let words = StableTable::<AtomicU64>::new(nr_words)?;
        #[cfg(not(loom))]
        words.mapping().hint(Hint::SmallPages);
        Ok(Self { words })
    }

    /// Creates a table of densely used words, from the first on. Requests huge pages: they save
    /// scattered lookups most of the address translation.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn new_dense(nr_words: usize) -> io::Result<Self> {
        let words = StableTable::<AtomicU64>::new(nr_words)?;
        #[cfg(not(loom))]
        words.mapping().hint(Hint::HugePages);
        Ok(Self { words })
    }

    /// Returns all words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        self.words.as_slice()
    }

    /// Words in the table.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns whether the table has no words.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a word.
    ///
    /// # Panics
    /// When there is no such word.
    #[inline]
    pub fn get(&self, at: usize) -> &AtomicU64 {
        self.words.get(at)
    }

    /// Makes the words of a range zero and gives the whole pages among them back to the operating
    /// system. To other threads this is a relaxed store of zero to each word, in no stated order:
    /// their concurrent writes may be lost.
    ///
    /// # Panics
    /// When the range leaves the table.
    pub fn discard(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len());
        let whole = self.discard_whole_pages(&range);
        for at in (range.start..whole.start).chain(whole.end..range.end) {
            // A store would allocate the page.
            if self.get(at).load(Ordering::Relaxed) != 0 {
                self.get(at).store(0, Ordering::Relaxed);
            }
        }
    }

    /// Discards the whole pages in the range and returns the words in them.
    #[cfg(not(loom))]
    fn discard_whole_pages(&self, range: &Range<usize>) -> Range<usize> {
        let words_per_page = page_bytes() / size_of::<AtomicU64>();
        let start = range.start.next_multiple_of(words_per_page);
        let end = range.end / words_per_page * words_per_page;
        let nothing = range.start..range.start;
        if start >= end {
            return nothing;
        }
        let bytes = start * size_of::<AtomicU64>()..end * size_of::<AtomicU64>();
        // SAFETY: [3] Zero is valid for an atomic word at any time.
        match unsafe { self.words.mapping().discard(bytes) } {
            Ok(()) => start..end,
            Err(_) => nothing, // Locked memory, say: the words are zeroed one by one.
        }
    }

    #[cfg(loom)]
    fn discard_whole_pages(&self, range: &Range<usize>) -> Range<usize> {
        range.start..range.start
    }
}
