//! Write-back errors, reported once to each open file (`kernel-semantics` §6.4).
//!
//! A file carries one word: the errno of its latest write-back error, a "seen" mark, and a counter.
//! Every open file remembers its last read word. A new error is reported once to each open file,
//! even if many threads use it. An error not yet seen by any open file is also reported to the next
//! one.

use crate::sync::atomic::{AtomicU32, Ordering};

const ERRNO_MASK: u32 = 0xfff;
const SEEN: u32 = 0x1000;
const COUNT: u32 = 0x2000;

/// A file's write-back errors.
#[doc(alias = "errseq_t")]
#[derive(Debug, Default)]
pub struct ErrorSequence {
    word: AtomicU32,
}

/// The position of one open file in the sequence of errors.
#[derive(Debug, Default)]
pub struct ErrorCursor {
    word: AtomicU32,
}

impl ErrorSequence {
    /// Creates a word without errors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records an error. `errno` is positive and below 4096.
    pub fn record(&self, errno: i32) {
        let errno = errno as u32 & ERRNO_MASK;
        // Relaxed: the word stands alone; the file's locks order the data.
        let _ = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            let next = if old & SEEN != 0 {
                (old & !(ERRNO_MASK | SEEN)).wrapping_add(COUNT)
            } else {
                old & !ERRNO_MASK
            };
            Some(next | errno)
        });
    }

    /// Returns whether there was never an error.
    pub fn is_clear(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
    }

    /// Returns the cursor of a newly opened file: errors already seen by another open file count as
    /// seen.
    pub fn sample(&self) -> ErrorCursor {
        let word = self.word.load(Ordering::Relaxed);
        let word = if word & SEEN == 0 { 0 } else { word };
        ErrorCursor { word: AtomicU32::new(word) }
    }

    /// Reports an error not yet seen by this open file, and marks it as seen: of several threads
    /// checking through one open file, one gets the error.
    ///
    /// # Errors
    /// The errno of the latest error.
    pub fn check_and_advance(&self, cursor: &ErrorCursor) -> Result<(), i32> {
        // As often as another thread advances the same cursor; each has seen a newer word.
        loop {
            // The cursor first: its value was in the word before, so the word read next is no
            // older. Acquire: pairs with the Release below.
            let told = cursor.word.load(Ordering::Acquire);
            if self.word.load(Ordering::Relaxed) == told {
                return Ok(());
            }
            let seen = self.word.fetch_or(SEEN, Ordering::Relaxed) | SEEN;
            // Release: pairs with the Acquire above.
            if cursor.word.compare_exchange(told, seen, Ordering::Release, Ordering::Relaxed).is_ok() {
                let errno = (seen & ERRNO_MASK) as i32;
                return if errno == 0 { Ok(()) } else { Err(errno) };
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_open_file_hears_of_an_error_once() {
        let errors = ErrorSequence::new();
        let (a, b) = (errors.sample(), errors.sample());
        assert_eq!(errors.check_and_advance(&a), Ok(()));
        errors.record(5);
        assert_eq!(errors.check_and_advance(&a), Err(5));
        assert_eq!(errors.check_and_advance(&a), Ok(()));
        assert_eq!(errors.check_and_advance(&b), Err(5));
        assert_eq!(errors.check_and_advance(&b), Ok(()));
    }

    #[test]
    fn the_next_open_gets_an_unseen_error_and_no_seen_one() {
        let errors = ErrorSequence::new();
        errors.record(28);
        let first = errors.sample();
        assert_eq!(errors.check_and_advance(&first), Err(28));
        let second = errors.sample();
        assert_eq!(errors.check_and_advance(&second), Ok(()));
    }

    #[test]
    fn the_same_errno_again_is_a_new_error_once_the_first_was_seen() {
        let errors = ErrorSequence::new();
        let a = errors.sample();
        errors.record(5);
        errors.record(5);
        assert_eq!(errors.check_and_advance(&a), Err(5));
        errors.record(5);
        assert_eq!(errors.check_and_advance(&a), Err(5));
        assert_eq!(errors.check_and_advance(&a), Ok(()));
    }
}
