//! Read-ahead: how much to read when a page is missing, and when to begin the next window. One
//! state per open file.
//!
//! A read that starts where the last one ended is sequential; its window doubles from 128 KiB to 1
//! MiB, or where a request costs a round trip, from 1 to 8 MiB. Any other read gets just the
//! requested pages.
//!
//! Where the store begins reads, the next window is begun while the reader is still in the one
//! before:
//!
//! ```text
//!       reader                  mark                      asked_end
//!  --------|----------------------|---------------------------|
//!          what has been asked for, ahead of the reader       | next window
//! ```
//!
//! 1. A page is missing: a window is read, and the reader waits for its part of it (`plan`,
//!    `begin_window`).
//! 2. The reader reaches the mark. A hit declines there once (`is_due`), because it must not
//!    charge; the read in its place asks for the next window (`plan_ahead`).
//! 3. A reader that reaches the next window before the store has filled it is faster than one
//!    window at a time. From then on it gets one more window begun ahead, up to
//!    [`WINDOWS_AHEAD_MAX`].
//!
//! The state is a hint kept in relaxed atomics: racing readers of one open file may spoil a window,
//! never data.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest window, in pages (1 MiB).
pub const WINDOW_MAX_PAGES: u64 = 256;
/// First window of a sequential read, in pages (128 KiB).
pub const WINDOW_FIRST_PAGES: u64 = 32;
/// Largest window where a request costs a round trip, in pages (8 MiB).
pub const REMOTE_WINDOW_MAX_PAGES: u64 = 2048;
/// First window of a sequential read there, in pages (1 MiB).
pub const REMOTE_WINDOW_FIRST_PAGES: u64 = 256;
/// Most windows begun ahead of the window being read.
pub const WINDOWS_AHEAD_MAX: u64 = 4;

/// A window that could not be begun is tried again this many times within a first window of
/// reading.
const RETRIES: u64 = 4;

/// No page.
const NONE: u64 = u64::MAX;
/// In `nr_windows`: the reader has waited for a window since the last one was begun.
const HAS_WAITED: u64 = 1 << 32;

/// Read-ahead state of one open file. Aligned so that two open files share no cache line.
#[doc(alias = "file_ra_state")]
#[derive(Debug)]
#[repr(align(64))]
pub struct Readahead {
    /// Page after the last page read; [`NONE`] before the first read.
    next_page: AtomicU64,
    /// The page at which a hit declines; [`NONE`] while nothing is to be begun.
    #[doc(alias = "PG_readahead")]
    mark: AtomicU64,
    /// Pages of the last window; 0 when the last access was random.
    window: AtomicU64,
    /// Page after the last page requested.
    asked_end: AtomicU64,
    /// Windows to have begun ahead of the reader, and [`HAS_WAITED`].
    nr_windows: AtomicU64,
    /// (C) The first window of a sequential read and the largest, in pages.
    bounds: (u64, u64),
}

/// Bounds on read-ahead for a reader, in pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AheadBounds {
    /// The largest window that is worth its memory; see [`Readahead::window_max`].
    pub window_max: u64,
    /// Most pages ahead of the reader.
    pub ahead_max: u64,
    /// The page after the last one of the file.
    pub file_end: u64,
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
        let (next_page, mark) = (AtomicU64::new(NONE), AtomicU64::new(NONE));
        let (window, asked_end) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { next_page, mark, window, asked_end, nr_windows: AtomicU64::new(1), bounds: (first, max) }
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

    /// Returns whether a read up to `last` reaches the mark, once for each mark. The read must then
    /// have the next window begun; a hit must not do so.
    #[inline]
    pub(crate) fn is_due(&self, last: u64) -> bool {
        last >= self.mark.load(Ordering::Relaxed) && self.take_mark()
    }

    #[cold]
    fn take_mark(&self) -> bool {
        self.mark.swap(NONE, Ordering::Relaxed) != NONE
    }

    /// Returns the largest window in pages: `wanted` clamped to the bounds of this state, or their
    /// maximum.
    pub(crate) fn window_max(&self, wanted: Option<u64>) -> u64 {
        let (first, max) = self.bounds;
        wanted.map_or(max, |wanted| wanted.clamp(first, max))
    }

    /// Returns the number of pages to read from the missing `page` on, for a request of `needed`
    /// pages. `asked_first` is the page where the whole request starts, `window_max` the largest
    /// [window](Self::window_max). Called before [`note`](Self::note).
    pub(crate) fn plan(&self, asked_first: u64, (page, needed): (u64, u64), window_max: u64) -> u64 {
        let before = self.next_page.load(Ordering::Relaxed);
        let asked_end = self.asked_end.load(Ordering::Relaxed);
        let last = self.window.load(Ordering::Relaxed);
        // Parts of one long read may be under way beside each other.
        let follows = asked_end > 0 && asked_first == asked_end;
        let sequential = before == asked_first
            || before == asked_first + 1
            || (before == NONE && asked_first == 0)
            || follows;
        let window = if !sequential {
            0
        } else if page < asked_end {
            // It was read ahead and did not come, or did not stay.
            self.bounds.0
        } else {
            (last * 2).clamp(self.bounds.0, window_max)
        };
        self.nr_windows.store(1, Ordering::Relaxed);
        self.window.store(window, Ordering::Relaxed);
        self.asked_end.store(0, Ordering::Relaxed);
        self.mark.store(NONE, Ordering::Relaxed);
        needed.max(window).min(window_max.max(needed))
    }

    /// Notes that pages of a [plan](Self::plan) up to `end` are being read, for a read up to
    /// `last`. The next sequential read has more begun.
    pub(crate) fn begin_window(&self, last: u64, end: u64) {
        if self.window.load(Ordering::Relaxed) > 0 {
            self.asked_end.store(end, Ordering::Relaxed);
            self.mark.store(last + 1, Ordering::Relaxed);
        }
    }

    /// Notes that the reader waits for pages being read by the store.
    pub(crate) fn note_wait(&self) {
        if self.window.load(Ordering::Relaxed) > 0 {
            self.nr_windows.fetch_or(HAS_WAITED, Ordering::Relaxed);
        }
    }

    /// Returns the window to begin beside a read of `asked`, if one is due. Called before
    /// [`note`](Self::note). The caller begins it, or calls [`cut`](Self::cut).
    pub(crate) fn plan_ahead(&self, asked: &Range<u64>, bounds: AheadBounds) -> Option<Range<u64>> {
        let before = self.next_page.load(Ordering::Relaxed);
        let last = self.window.load(Ordering::Relaxed);
        let asked_end = self.asked_end.load(Ordering::Relaxed);
        let is_next = before != NONE && (before == asked.start || before == asked.start + 1);
        if bounds.ahead_max / 2 < self.bounds.0 {
            self.mark.store(NONE, Ordering::Relaxed);
            return None;
        }
        // The first read is not yet one of a sequence.
        if last == 0 || !is_next {
            return None;
        }
        let nr_windows = self.nr_windows.load(Ordering::Relaxed);
        let has_waited = nr_windows & HAS_WAITED != 0;
        let nr_windows = ((nr_windows & !HAS_WAITED) + u64::from(has_waited)).min(WINDOWS_AHEAD_MAX);
        // One window can be read while another is on its way.
        let fits = |window: u64| window.clamp(self.bounds.0, bounds.window_max).min(bounds.ahead_max / 2);
        let begin = asked_end.max(asked.end);
        let due = (fits(last) * nr_windows).min(bounds.ahead_max - fits(last * 2));
        if begin - asked.end > due {
            self.mark.store(begin - due, Ordering::Relaxed);
            return None;
        }
        let window = begin..bounds.file_end.min(begin + fits(last * 2));
        if window.is_empty() {
            self.mark.store(NONE, Ordering::Relaxed);
            return None;
        }
        // Only one of the readers of an open file begins it.
        let order = Ordering::Relaxed;
        self.asked_end.compare_exchange(asked_end, window.end, order, order).ok()?;
        self.nr_windows.store(nr_windows, Ordering::Relaxed);
        self.window.store(fits(last * 2), Ordering::Relaxed);
        let due = (fits(last * 2) * nr_windows).min(bounds.ahead_max - fits(last * 4));
        self.mark.store(asked.end.max(window.end.saturating_sub(due)), Ordering::Relaxed);
        Some(window)
    }

    /// Notes that only the pages up to `end` of a window [planned](Self::plan_ahead) were begun.
    /// The rest is tried again when the reader has advanced.
    pub(crate) fn cut(&self, asked: &Range<u64>, window: &Range<u64>, end: u64) {
        let order = Ordering::Relaxed;
        if self.asked_end.compare_exchange(window.end, end, order, order).is_ok() {
            self.mark.store(asked.end + self.bounds.0 / RETRIES, Ordering::Relaxed);
        }
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
            let window = state.plan(at, (at, 1), state.window_max(None));
            windows.push(window);
            at += window;
            state.note(at - 1, at);
        }
        assert_eq!(windows, [32, 64, 128, 256, 256]);
    }

    #[test]
    fn random_reads_get_what_they_ask_for() {
        let state = Readahead::new();
        assert_eq!(state.plan(1000, (1000, 1), WINDOW_MAX_PAGES), 1);
        state.note(1000, 1001);
        assert_eq!(state.plan(77, (77, 3), WINDOW_MAX_PAGES), 3);
    }

    const BOUNDS: AheadBounds = AheadBounds { window_max: 256, ahead_max: 1 << 20, file_end: 10_000 };

    /// Reads the pages before `end` one by one from where the last read ended. Returns the windows
    /// begun, each with the page read at that time.
    fn read_to(state: &Readahead, end: u64, bounds: AheadBounds) -> Vec<(u64, Range<u64>)> {
        let start = state.next_page.load(Ordering::Relaxed);
        let start = if start == NONE { 0 } else { start };
        let mut begun = Vec::new();
        for page in start..end {
            if page >= state.asked_end.load(Ordering::Relaxed) {
                let nr = state.plan(page, (page, 1), state.window_max(Some(bounds.window_max)));
                state.begin_window(page, page + nr);
            } else if state.is_due(page) {
                begun.extend(state.plan_ahead(&(page..page + 1), bounds).map(|window| (page, window)));
            }
            state.note(page, page + 1);
        }
        begun
    }

    #[test]
    fn a_window_is_begun_when_its_reader_comes_to_the_one_before() {
        let state = Readahead::new();
        let begun = read_to(&state, 480, BOUNDS);
        assert_eq!(begun, [(1, 32..96), (32, 96..224), (96, 224..480), (224, 480..736)]);
    }

    #[test]
    fn a_reader_that_has_waited_has_one_window_more() {
        let state = Readahead::new();
        read_to(&state, 500, BOUNDS);
        let mut most = Vec::new();
        for nr in 1..8 {
            state.note_wait();
            state.note_wait();
            let at = 500 + nr * 300;
            read_to(&state, at, BOUNDS);
            most.push((state.asked_end.load(Ordering::Relaxed) - at).div_ceil(256));
        }
        assert!(
            most.is_sorted() && most[6] >= WINDOWS_AHEAD_MAX && most[6] <= WINDOWS_AHEAD_MAX + 1,
            "{most:?}"
        );
    }

    #[test]
    fn what_is_ahead_stays_within_its_bound() {
        for ahead_max in [0, 63, 64, 100, 300, 511, 512, 2000] {
            let state = Readahead::new();
            let window_max = state.window_max(Some(ahead_max / 2));
            let bounds = AheadBounds { window_max, ahead_max, ..BOUNDS };
            for end in 1..3000 {
                state.note_wait();
                let begun = read_to(&state, end, bounds);
                let ahead = state.asked_end.load(Ordering::Relaxed) - end;
                assert!(begun.is_empty() || ahead <= ahead_max, "{ahead} of {ahead_max}");
                assert!(begun.is_empty() || ahead_max >= 64);
            }
        }
    }

    #[test]
    fn nothing_is_begun_behind_the_end_or_for_a_random_read() {
        let state = Readahead::new();
        let bounds = AheadBounds { file_end: 100, ..BOUNDS };
        assert_eq!(read_to(&state, 100, bounds), [(1, 32..96), (32, 96..100)]);
        let state = Readahead::new();
        read_to(&state, 20, BOUNDS);
        state.note(7, 8);
        assert!(state.is_due(1 << 40) && state.plan_ahead(&(1 << 40..(1 << 40) + 1), BOUNDS).is_none());
        assert!(!state.is_due(1 << 40), "it declines once");
    }

    #[test]
    fn a_window_that_was_cut_is_tried_again_later() {
        let state = Readahead::new();
        read_to(&state, 1, BOUNDS);
        assert!(state.is_due(1) && !state.is_due(1));
        let window = state.plan_ahead(&(1..2), BOUNDS).unwrap();
        state.cut(&(1..2), &window, 40);
        state.note(1, 2);
        assert_eq!(read_to(&state, 40, BOUNDS)[0], (10, 40..168));
    }

    #[test]
    fn a_page_that_is_missing_again_makes_windows_small() {
        let state = Readahead::new();
        read_to(&state, 480, BOUNDS);
        assert_eq!(state.plan(480, (480, 1), WINDOW_MAX_PAGES), WINDOW_FIRST_PAGES);
    }

    #[test]
    fn parts_of_a_long_read_beside_each_other_are_sequential() {
        let state = Readahead::of_remote();
        let max = state.window_max(None);
        let first = state.plan(0, (0, 256), max);
        state.begin_window(255, first);
        let second = state.plan(first, (first, 256), max);
        assert_eq!((first, second), (REMOTE_WINDOW_FIRST_PAGES, 2 * REMOTE_WINDOW_FIRST_PAGES));
    }

    #[test]
    fn small_reads_of_one_page_are_one_use() {
        let state = Readahead::new();
        assert!(!state.note(5, 6));
        assert!(state.note(5, 6));
        assert!(!state.note(6, 7));
    }
}
