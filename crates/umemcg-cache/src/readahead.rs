//! Read-ahead: how much to read when a page is missing. One state per open file.
//!
//! A read that starts where the last one ended is sequential; its window doubles from 128 KiB to 1
//! MiB, or where a request costs a round trip, from 1 to 8 MiB. Anything else reads just what was
//! asked for. The state is a hint kept in relaxed atomics:
//! racing readers of one open file may spoil a window, never data.

use std::sync::atomic::{AtomicU64, Ordering};

/// Largest window, in pages (1 MiB).
pub const WINDOW_MAX_PAGES: u64 = 256;
/// First window of a sequential read, in pages (128 KiB).
pub const WINDOW_FIRST_PAGES: u64 = 32;
/// Largest window where a request costs a round trip, in pages (8 MiB).
pub const REMOTE_WINDOW_MAX_PAGES: u64 = 2048;
/// First window of a sequential read there, in pages (1 MiB).
pub const REMOTE_WINDOW_FIRST_PAGES: u64 = 256;

/// Read-ahead state of one open file. Aligned so that two open files share no cache line.
#[doc(alias = "file_ra_state")]
#[derive(Debug)]
#[repr(align(64))]
pub struct Readahead {
    /// Page after the last one that was read; `u64::MAX` before the first read.
    next_page: AtomicU64,
    /// Pages of the last window; 0 when the last access was random.
    window: AtomicU64,
    /// (C) The first window of a sequential read and the largest, in pages.
    bounds: (u64, u64),
}

impl Default for Readahead {
    fn default() -> Self {
        Self::bounded(WINDOW_FIRST_PAGES, WINDOW_MAX_PAGES)
    }
}

impl Readahead {
    /// Returns the state of a file just opened.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the state of a file just opened whose store is a round trip away.
    pub fn of_remote() -> Self {
        Self::bounded(REMOTE_WINDOW_FIRST_PAGES, REMOTE_WINDOW_MAX_PAGES)
    }

    fn bounded(first: u64, max: u64) -> Self {
        Self { next_page: AtomicU64::new(u64::MAX), window: AtomicU64::new(0), bounds: (first, max) }
    }

    /// Notes a read of pages `first..end`. Returns whether `first` is the page the last read ended
    /// in, so that small sequential reads count as one use of the page.
    #[inline]
    pub fn note(&self, first: u64, end: u64) -> bool {
        let before = self.next_page.load(Ordering::Relaxed);
        if before != end {
            self.next_page.store(end, Ordering::Relaxed);
        }
        before == first + 1
    }

    /// Returns how many pages to read from `first` on, when `needed` are asked for and page `first`
    /// is missing. `asked_first` is the page where the whole request starts. Called before
    /// [`note`](Self::note).
    pub fn plan(&self, asked_first: u64, needed: u64) -> u64 {
        let before = self.next_page.load(Ordering::Relaxed);
        let sequential =
            before == asked_first || before == asked_first + 1 || (before == u64::MAX && asked_first == 0);
        let (first, max) = self.bounds;
        let window = if sequential {
            let last = self.window.load(Ordering::Relaxed);
            (last * 2).clamp(first, max)
        } else {
            0
        };
        self.window.store(window, Ordering::Relaxed);
        needed.max(window).min(max.max(needed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_windows_double_up_to_a_mebibyte() {
        let state = Readahead::new();
        let mut at = 0;
        let mut windows = Vec::new();
        for _ in 0..5 {
            let window = state.plan(at, 1);
            windows.push(window);
            at += window;
            state.note(at - 1, at);
        }
        assert_eq!(windows, [32, 64, 128, 256, 256]);
    }

    #[test]
    fn random_reads_get_what_they_ask_for() {
        let state = Readahead::new();
        assert_eq!(state.plan(1000, 1), 1);
        state.note(1000, 1001);
        assert_eq!(state.plan(77, 3), 3);
    }

    #[test]
    fn small_reads_of_one_page_are_one_use() {
        let state = Readahead::new();
        assert!(!state.note(5, 6));
        assert!(state.note(5, 6));
        assert!(!state.note(6, 7));
    }
}
