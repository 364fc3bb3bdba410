//! The columns of the page of groups, and the choice of columns by the width of the terminal.

use crate::args::TopSort;

use super::row::Row;
use super::text::{percent, short_bytes, short_count};

/// Least width of the name of a group; less on a narrow terminal.
const NAME_MIN: usize = 24;
const NAME_MIN_NARROW: usize = 12;
/// A terminal of fewer columns is narrow.
const NARROW: usize = 64;

/// The content of a column for a group.
#[derive(Debug, Clone, Copy)]
pub enum Content {
    /// A figure.
    Figure(fn(&Row) -> String),
    /// A sparkline of its usage.
    History,
}

/// A column.
#[derive(Debug)]
pub struct Column {
    /// Its heading.
    pub heading: &'static str,
    /// Its width with the space before it.
    pub width: usize,
    /// Columns of a higher rank are left out first.
    rank: u8,
    /// The sort order by this column, if there is one.
    pub sort: Option<TopSort>,
    /// Its content.
    pub content: Content,
}

const fn figure(
    heading: &'static str,
    width: usize,
    rank: u8,
    sort: Option<TopSort>,
    cell: fn(&Row) -> String,
) -> Column {
    Column { heading, width, rank, sort, content: Content::Figure(cell) }
}

/// All columns but the name, from the left to the right.
pub static COLUMNS: [Column; 16] = [
    figure("usage", 7, 0, Some(TopSort::Usage), |row| short_bytes(row.usage_bytes)),
    figure("limit", 7, 1, Some(TopSort::Limit), |row| optional(row.limit_bytes)),
    Column { heading: "history", width: 13, rank: 4, sort: None, content: Content::History },
    figure("hits", 6, 2, None, |row| row.hit_percent.map_or_else(|| "-".into(), percent)),
    figure("miss/s", 8, 9, Some(TopSort::Misses), |row| short_count(row.misses_per_second)),
    figure("in/s", 7, 6, None, |row| short_count(row.pages_in_per_second)),
    figure("refault/s", 11, 7, Some(TopSort::Refaults), |row| short_count(row.refaults_per_second)),
    figure("stalled", 9, 3, Some(TopSort::Stalls), |row| percent(row.stalled_percent)),
    figure("dirty", 7, 5, Some(TopSort::Dirty), |row| short_bytes(row.dirty_bytes)),
    figure("kswapd/s", 10, 8, Some(TopSort::Reclaim), |row| short_count(row.background_reclaim_per_second)),
    figure("direct/s", 9, 8, None, |row| short_count(row.direct_reclaim_per_second)),
    figure("excess", 8, 10, Some(TopSort::Excess), |row| some(row.excess_bytes)),
    figure("high", 7, 11, None, |row| optional(row.high_bytes)),
    figure("low mark", 9, 12, None, |row| optional(row.low_wmark_bytes)),
    figure("min", 7, 13, None, |row| some(row.min_bytes)),
    figure("low", 7, 14, None, |row| some(row.low_bytes)),
];

/// Formats a number of bytes that may be absent.
pub fn optional(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".into(), short_bytes)
}

/// Formats a number of bytes; 0 means none.
pub fn some(bytes: u64) -> String {
    optional((bytes > 0).then_some(bytes))
}

/// Returns the fitting columns, and the width of the names.
pub fn that_fit(width: usize, sort: TopSort) -> (Vec<&'static Column>, usize) {
    let name_min = if width < NARROW { NAME_MIN_NARROW } else { NAME_MIN };
    let mut by_rank: Vec<&Column> = COLUMNS.iter().collect();
    // Keep the sort column visible: the order makes no sense without it.
    by_rank.sort_by_key(|column| (column.sort != Some(sort), column.rank));
    let mut left = width.saturating_sub(name_min);
    let mut fitting = Vec::new();
    for column in by_rank {
        let Some(rest) = left.checked_sub(column.width) else { break };
        left = rest;
        fitting.push(column.heading);
    }
    let shown: Vec<&Column> = COLUMNS.iter().filter(|column| fitting.contains(&column.heading)).collect();
    let used: usize = shown.iter().map(|column| column.width).sum();
    (shown, width.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn headings(width: usize, sort: TopSort) -> Vec<&'static str> {
        that_fit(width, sort).0.iter().map(|column| column.heading).collect()
    }

    #[test]
    fn a_narrow_terminal_has_the_columns_that_matter_most() {
        assert_eq!(headings(20, TopSort::Usage), ["usage"]);
        assert_eq!(headings(20, TopSort::Dirty), ["dirty"]);
        assert_eq!(headings(10, TopSort::Dirty), [""; 0]);
        assert_eq!(
            headings(80, TopSort::Usage),
            ["usage", "limit", "history", "hits", "in/s", "stalled", "dirty"]
        );
        assert_eq!(headings(200, TopSort::Usage).len(), COLUMNS.len());
    }

    #[test]
    fn columns_and_names_fill_the_terminal() {
        for width in 0..250 {
            for &sort in TopSort::value_variants() {
                let (shown, name) = that_fit(width, sort);
                let used: usize = shown.iter().map(|column| column.width).sum();
                assert_eq!(used + name, width);
                assert!(width < NAME_MIN_NARROW || name >= NAME_MIN_NARROW, "{width}");
            }
        }
        for column in &COLUMNS {
            assert!(column.sort.is_none() || column.heading.len() + 2 <= column.width, "{}", column.heading);
        }
    }
}
