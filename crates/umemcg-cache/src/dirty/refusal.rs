//! Informs writers of a store's refusals: a full store, for example, fails each write-back with
//! `ENOSPC`.
//!
//! Refused data stays dirty and is tried again, so its group may stay at its dirty limit for as
//! long as the store refuses. A writer must not wait for that. It continues, and its next write to
//! the store fails with the store's error, until there is room below the limit again or the store
//! accepts data. So the amount of waiting data stays bounded.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// This many refusals of a store, with no data accepted in between, speak for all of its files.
const NR_REFUSALS: u32 = 2;
/// Bits of an errno; the refusals are counted above.
const ERRNO_BITS: u32 = 12;
const ERRNO_MASK: u32 = (1 << ERRNO_BITS) - 1;
/// Largest count; further refusals leave it there.
const COUNT_MAX: u32 = u32::MAX >> ERRNO_BITS;

/// Refusals since data was last accepted. A word on its own, so relaxed.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    word: AtomicU32,
}

impl Refusals {
    /// Notes a refusal of data.
    pub(crate) fn refused(&self, errno: i32) {
        let next = |old: u32| {
            let count = ((old >> ERRNO_BITS) + 1).min(COUNT_MAX);
            Some(count << ERRNO_BITS | errno as u32 & ERRNO_MASK)
        };
        let _ = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Notes that data was accepted. Writes only if the last data was refused.
    pub(crate) fn taken(&self) {
        if self.word.load(Ordering::Relaxed) != 0 {
            self.word.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the errno of the last refusal, if there were at least `count`.
    fn after(&self, count: u32) -> Option<i32> {
        let word = self.word.load(Ordering::Relaxed);
        (word >> ERRNO_BITS >= count).then_some((word & ERRNO_MASK) as i32)
    }

    /// Returns the errno of a file's last flush, if it was refused.
    pub(crate) fn of_file(&self) -> Option<i32> {
        self.after(1)
    }

    /// Returns the errno of a store that refuses all data.
    pub(crate) fn of_store(&self) -> Option<i32> {
        self.after(NR_REFUSALS)
    }
}

/// Returns the errno of a store's error.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    const EIO: i32 = 5;
    error.raw_os_error().unwrap_or(EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_refusal_speaks_for_the_file_and_two_for_the_store() {
        let refusals = Refusals::default();
        assert_eq!((refusals.of_file(), refusals.of_store()), (None, None));
        refusals.refused(28);
        assert_eq!((refusals.of_file(), refusals.of_store()), (Some(28), None));
        refusals.refused(122);
        assert_eq!((refusals.of_file(), refusals.of_store()), (Some(122), Some(122)));
        refusals.taken();
        assert_eq!((refusals.of_file(), refusals.of_store()), (None, None));
    }

    #[test]
    fn the_count_does_not_run_over() {
        let refusals = Refusals { word: AtomicU32::new(COUNT_MAX << ERRNO_BITS | 28) };
        refusals.refused(5);
        assert_eq!(refusals.of_store(), Some(5));
    }
}
