//! Counts of reclaim's work at each priority, of all threads together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::scan_control::{DEF_PRIORITY, Progress};

const NR_PRIORITIES: usize = DEF_PRIORITY as usize + 1;

static VISITS: [[AtomicU64; 4]; NR_PRIORITIES] = [const { [const { AtomicU64::new(0) }; 4] }; NR_PRIORITIES];

/// The visits at one priority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VisitCounts {
    /// Groups visited.
    pub visits: u64,
    /// Pages scanned there.
    pub scanned: u64,
    /// Scanned pages that were dirty or not yet durable.
    pub dirty: u64,
    /// Scanned pages that were freed.
    pub reclaimed: u64,
}

pub(crate) fn note_visit(priority: u32, progress: &Progress) {
    let counts = [1, progress.scanned, progress.dirty, progress.reclaimed];
    for (cell, count) in VISITS[priority as usize].iter().zip(counts) {
        cell.fetch_add(count, Relaxed);
    }
}

/// Returns the counts since the last call, by priority.
pub fn take_visit_counts() -> [VisitCounts; NR_PRIORITIES] {
    std::array::from_fn(|priority| {
        let [visits, scanned, dirty, reclaimed] =
            VISITS[priority].each_ref().map(|cell| cell.swap(0, Relaxed));
        VisitCounts { visits, scanned, dirty, reclaimed }
    })
}
