//! Windows of a file's pages: one page for each bit of a word.

use std::ops::Range;

use umemcg_base::{PAGE_SHIFT, pages_for};

/// The number of pages of a window.
pub(crate) const WINDOW_PAGES: u64 = 64;
/// Beyond the last page of any file.
pub(crate) const PAGES_END: u64 = u64::MAX >> PAGE_SHIFT;

/// Returns the pages of a byte range.
pub(crate) fn page_range(offset: u64, len: u64) -> Range<u64> {
    let first = offset >> PAGE_SHIFT;
    first..first + if len == 0 { 0 } else { pages_for(offset, len) }
}

/// Returns the windows overlapping a range, each with the bits of the overlap.
pub(crate) fn windows_of(pages: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (first, end) = (pages.start, pages.end.max(pages.start));
    let windows = if first < end { first / WINDOW_PAGES..end.div_ceil(WINDOW_PAGES) } else { 0..0 };
    windows.map(move |window| (window, bits_of(window, &(first..end))))
}

/// Returns the bits of a range in one window.
pub(crate) fn bits_of(window: u64, pages: &Range<u64>) -> u64 {
    let start = window * WINDOW_PAGES;
    let from = pages.start.clamp(start, start + WINDOW_PAGES) - start;
    let to = pages.end.clamp(start, start + WINDOW_PAGES) - start;
    if from >= to { 0 } else { (u64::MAX >> (WINDOW_PAGES - (to - from))) << from }
}

/// Returns the runs of pages of these bits, in ascending order.
pub(crate) fn runs_of(window: u64, mut bits: u64) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    while bits != 0 {
        let from = u64::from(bits.trailing_zeros());
        let to = from + u64::from((bits >> from).trailing_ones());
        runs.push(window * WINDOW_PAGES + from..window * WINDOW_PAGES + to);
        bits &= u64::MAX.checked_shl(to as u32).unwrap_or(0);
    }
    runs
}

/// Returns the range from the first page to the last of these bits. At least one must be set.
pub(crate) fn span_of(window: u64, bits: u64) -> Range<u64> {
    let start = window * WINDOW_PAGES;
    start + u64::from(bits.trailing_zeros())..start + WINDOW_PAGES - u64::from(bits.leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_its_bits_in_each_window() {
        let parts = |pages: Range<u64>| windows_of(&pages).collect::<Vec<_>>();
        assert_eq!(parts(0..64), [(0, u64::MAX)]);
        assert_eq!(parts(63..65), [(0, 1 << 63), (1, 1)]);
        assert_eq!(parts(130..131), [(2, 1 << 2)]);
        assert_eq!(parts(5..5), []);
        assert_eq!(bits_of(1, &(0..200)), u64::MAX);
        assert_eq!(bits_of(3, &(0..192)), 0);
    }

    #[test]
    fn bits_are_runs_of_pages() {
        assert_eq!(runs_of(0, 0), []);
        assert_eq!(runs_of(1, 1 << 63 | 0b1101), [64..65, 66..68, 127..128]);
        let whole = runs_of(1, u64::MAX);
        assert_eq!((whole.len(), whole[0].clone()), (1, 64..128));
    }
}
