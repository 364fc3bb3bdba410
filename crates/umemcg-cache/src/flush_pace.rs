//! The sizes of the pieces in which files are written back.

/// Longest single write to the store, in pages (1 MiB).
pub const WRITEBACK_RUN_PAGES: usize = 256;

/// The pieces in which a file is written, in pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushPace {
    /// Longest single write.
    pub(crate) run: usize,
    /// After this many pages the store is asked to confirm.
    pub(crate) confirm: u64,
    /// After this many pages it is another file's turn.
    pub(crate) budget: u64,
}

impl FlushPace {
    /// The whole file, without bounds.
    pub(crate) const WHOLE: Self =
        Self { run: WRITEBACK_RUN_PAGES, confirm: 4 * WRITEBACK_RUN_PAGES as u64, budget: u64::MAX };
    /// The same, and the store is not asked to confirm anything.
    pub(crate) const UNCONFIRMED: Self = Self { confirm: u64::MAX, ..Self::WHOLE };
}
