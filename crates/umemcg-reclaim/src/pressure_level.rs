//! The difficulty of freeing memory, as a level: low, medium, critical (`kernel-semantics` §7.4).
//!
//! Scanned and freed pages are counted at the root of the reclaim, window by window; the share of
//! scanned pages not freed determines the level. A reclaim down to the last priorities is critical
//! whatever it freed. Only counted while there is a listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use umemcg_base::{Rank, RankedRwLock, contained};
use umemcg_group::Group;

/// Scanned pages in a window.
#[doc(alias = "vmpressure_win")]
const WINDOW_PAGES: u64 = 512;
/// From this percentage of scanned pages not freed, the level is medium.
#[doc(alias = "vmpressure_level_med")]
const MEDIUM_PERCENT: u64 = 60;
/// From this one it is critical.
#[doc(alias = "vmpressure_level_critical")]
const CRITICAL_PERCENT: u64 = 95;
/// At this priority and the ones below it reclaim is in trouble.
#[doc(alias = "vmpressure_level_critical_prio")]
const CRITICAL_PRIORITY: u32 = 3;

/// The difficulty of freeing memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "vmpressure_levels")]
pub enum PressureLevel {
    /// Memory is reclaimed easily.
    Low,
    /// Most scanned pages stay.
    Medium,
    /// Hardly anything can be freed.
    Critical,
}

/// Returns the level of a window with `reclaimed` of `scanned` pages freed.
#[doc(alias = "vmpressure_calc_level")]
fn level_of(scanned: u64, reclaimed: u64) -> PressureLevel {
    // Whole huge pages may be freed for one scanned page.
    if reclaimed >= scanned {
        return PressureLevel::Low;
    }
    let scale = scanned + reclaimed;
    let stayed = scale - reclaimed * scale / scanned;
    match stayed * 100 / scale {
        CRITICAL_PERCENT.. => PressureLevel::Critical,
        MEDIUM_PERCENT.. => PressureLevel::Medium,
        _ => PressureLevel::Low,
    }
}

/// The window of a group.
#[derive(Debug, Default)]
#[doc(alias = "vmpressure")]
pub(crate) struct Window {
    /// Pages scanned since it began. (A)
    scanned: AtomicU64,
    /// Scanned pages that were freed. (A)
    reclaimed: AtomicU64,
}

impl Window {
    /// Counts pages; returns the level if they end the window.
    fn note(&self, scanned: u64, reclaimed: u64) -> Option<PressureLevel> {
        self.reclaimed.fetch_add(reclaimed, Relaxed);
        if self.scanned.fetch_add(scanned, Relaxed) + scanned < WINDOW_PAGES {
            return None;
        }
        // If two threads end the window at the same time, one takes all counts, and the other finds
        // nothing. A page more or less does not matter.
        let (scanned, reclaimed) = (self.scanned.swap(0, Relaxed), self.reclaimed.swap(0, Relaxed));
        (scanned > 0).then(|| level_of(scanned, reclaimed))
    }
}

/// Receives the root of the reclaim and the level. Called by the reclaiming thread: must be brief
/// and must not sleep.
pub(crate) type Listener = Box<dyn Fn(&Arc<Group>, PressureLevel) + Send + Sync>;

/// The listener, if there is one.
pub(crate) struct LevelListener {
    is_there: AtomicBool,
    listener: RankedRwLock<Option<Listener>>,
}

impl Default for LevelListener {
    fn default() -> Self {
        Self { is_there: AtomicBool::new(false), listener: RankedRwLock::new(Rank::LevelListener, None) }
    }
}

impl std::fmt::Debug for LevelListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LevelListener").field("is_there", &self.is_there).finish_non_exhaustive()
    }
}

impl LevelListener {
    /// Sets the listener.
    pub(crate) fn set(&self, listener: Option<Listener>) {
        self.is_there.store(listener.is_some(), Relaxed);
        *self.listener.write() = listener;
    }

    /// Notes pages scanned and freed by a reclaim of `root` at this priority.
    #[doc(alias = "vmpressure")]
    #[doc(alias = "vmpressure_prio")]
    pub(crate) fn note<'a>(
        &self,
        root: &Arc<Group>,
        window: impl FnOnce() -> &'a Window,
        priority: u32,
        (scanned, reclaimed): (u64, u64),
    ) {
        if !self.is_there.load(Relaxed) {
            return;
        }
        let level = if priority <= CRITICAL_PRIORITY {
            Some(PressureLevel::Critical)
        } else if scanned > 0 {
            window().note(scanned, reclaimed)
        } else {
            None
        };
        if let Some(level) = level
            && let Some(listener) = &*self.listener.read()
            && let Err(panic) = contained(|| listener(root, level))
        {
            tracing::error!(%panic, group = root.id(), "a listener for levels of pressure panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_stays_says_the_level() {
        use PressureLevel::{Critical, Low, Medium};
        for (scanned, reclaimed, level) in [
            (512, 512, Low),
            (512, 600, Low),
            (512, 256, Low),
            (1000, 401, Low),
            (1000, 400, Medium),
            (1000, 51, Medium),
            (1000, 50, Critical),
            (512, 0, Critical),
        ] {
            assert_eq!(level_of(scanned, reclaimed), level, "{reclaimed} of {scanned}");
        }
    }

    #[test]
    fn a_window_ends_after_its_pages_and_the_next_starts_empty() {
        let window = Window::default();
        assert_eq!(window.note(511, 0), None);
        assert_eq!(window.note(1, 0), Some(PressureLevel::Critical));
        assert_eq!(window.note(511, 511), None);
        assert_eq!(window.note(32, 32), Some(PressureLevel::Low));
    }
}
