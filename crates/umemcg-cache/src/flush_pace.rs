//! The piece sizes of write-back.

use umemcg_base::PAGE_SIZE_U64;

use crate::dirty::throttle::Thresholds;

/// Longest single write to the store, in pages (1 MiB).
pub const WRITEBACK_RUN_PAGES: usize = 256;
/// Shortest of the longest single writes, in pages.
const RUN_PAGES_MIN: u64 = 16;
/// Most pages of one file's turn.
const TURN_PAGES_MAX: u64 = 16 << 10;

/// The piece sizes for writing a file, in pages.
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
    /// The same, without confirmation by the store.
    pub(crate) const UNCONFIRMED: Self = Self { confirm: u64::MAX, ..Self::WHOLE };

    /// Returns piece sizes that keep a group's dirty data moving, for a store with `bandwidth`
    /// bytes a second. A single write is a twentieth of a second of bandwidth, a piece to be
    /// confirmed a tenth. Two pieces may be unconfirmed at a time, so each is at most a quarter of
    /// the range between the free run point and the limit, where the group's writers are paced.
    /// Larger pieces would stop and release the writers in turns.
    pub(crate) fn of_store(bandwidth: u64, thresholds: Thresholds) -> Self {
        let per_second = bandwidth / PAGE_SIZE_U64;
        let share = thresholds.foreground.saturating_sub(thresholds.free_run()) / 4 / PAGE_SIZE_U64;
        let most = WRITEBACK_RUN_PAGES as u64;
        let run = (per_second / 20).min(share).clamp(RUN_PAGES_MIN, most);
        let confirm = (per_second / 10).min(share).clamp(run, 4 * most);
        Self { run: run as usize, confirm, budget: (per_second / 4).clamp(4 * run, TURN_PAGES_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_unconfirmed_leaves_room_for_pacing() {
        for (background, foreground) in [(4, 8), (1, 8), (7, 8), (50, 100), (90, 100), (1000, 4000)] {
            let thresholds = Thresholds { background: background * MIB, foreground: foreground * MIB };
            let paced = (thresholds.foreground - thresholds.free_run()) / PAGE_SIZE_U64;
            for bandwidth in [MIB, 16 * MIB, 4096 * MIB] {
                let pace = FlushPace::of_store(bandwidth, thresholds);
                let why = format!("{thresholds:?}, {bandwidth}: {pace:?}");
                assert!(2 * pace.confirm <= (paced / 2).max(2 * RUN_PAGES_MIN), "{why}");
                assert!(RUN_PAGES_MIN <= pace.run as u64 && pace.run as u64 <= pace.confirm, "{why}");
                assert!(pace.confirm <= pace.budget, "{why}");
            }
        }
        let no_limit = Thresholds { background: u64::MAX / 2, foreground: u64::MAX };
        let fast = FlushPace::of_store(4096 * MIB, no_limit);
        assert_eq!((fast.run, fast.confirm), (WRITEBACK_RUN_PAGES, 4 * WRITEBACK_RUN_PAGES as u64));
    }
}
