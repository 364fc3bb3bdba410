//! The pool-wide dirty thresholds, and how long a writer waits when they are near
//! (`kernel-semantics` §6.3; per-group limits build on the same arithmetic).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;
use umemcg_group::{GroupTree, StatItem};

use crate::domain::Domain;

/// Share of dirtyable memory at which writers are held.
pub const DIRTY_RATIO_PERCENT: u64 = 20;
/// Share at which the flusher starts by itself.
pub const DIRTY_BACKGROUND_RATIO_PERCENT: u64 = 10;
/// Age at which a dirty page is written whatever the thresholds.
pub const DIRTY_EXPIRE: Duration = Duration::from_secs(30);
/// How often the flusher looks for old pages.
pub const WRITEBACK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest single wait of a writer.
pub const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Shorter waits are not worth a timer.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Counts of the whole pool, and the thresholds over them.
#[derive(Debug)]
pub struct DirtyLimits {
    tree: Arc<GroupTree>,
    /// Dirty, under write-back and unstable pages of the pool. (A)
    nr_unclean: AtomicU64,
}

impl DirtyLimits {
    pub(crate) fn new(tree: Arc<GroupTree>) -> Self {
        Self { tree, nr_unclean: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, pages: i64) {
        if pages >= 0 {
            self.nr_unclean.fetch_add(pages as u64, Ordering::Relaxed);
        } else {
            let before = self.nr_unclean.fetch_sub(pages.unsigned_abs(), Ordering::Relaxed);
            debug_assert!(before >= pages.unsigned_abs(), "more pages became clean than were dirty");
        }
    }

    /// Pages not yet durable.
    pub fn nr_unclean(&self) -> u64 {
        self.nr_unclean.load(Ordering::Relaxed)
    }

    /// Pages that could be dirty: what is free and what holds file data.
    fn dirtyable(&self) -> u64 {
        let root = self.tree.root();
        let free = self.tree.capacity_bytes().saturating_sub(root.usage_bytes());
        let file = root.stat_total(StatItem::InactiveFile) + root.stat_total(StatItem::ActiveFile);
        (free + file.max(0) as u64) / PAGE_SIZE_U64
    }

    /// (background, foreground) thresholds in pages.
    pub fn thresholds(&self) -> (u64, u64) {
        let dirtyable = self.dirtyable();
        let foreground = (dirtyable * DIRTY_RATIO_PERCENT / 100).max(64);
        let background = (dirtyable * DIRTY_BACKGROUND_RATIO_PERCENT / 100).max(32).min(foreground / 2);
        (background, foreground)
    }

    /// Whether the flusher should run now.
    pub fn over_background(&self) -> bool {
        self.nr_unclean() > self.thresholds().0
    }

    /// How long a writer to `domain` waits after `written` bytes; `None` to go on. Half-way between the thresholds nobody
    /// waits; from there to the upper one the rate sinks from twice what the store takes to nothing.
    #[doc(alias = "balance_dirty_pages")]
    pub(crate) fn pause(&self, domain: &Domain, written: usize) -> Option<Duration> {
        let nr = self.nr_unclean();
        // The thresholds cost a few loads; far below nobody computes them.
        if nr < 64 {
            return None;
        }
        let (background, foreground) = self.thresholds();
        let free_run = (background + foreground) / 2;
        if nr <= free_run || domain.nr_unclean() <= foreground / 8 {
            return None;
        }
        domain.ring();
        if nr >= foreground {
            return Some(PAUSE_MAX.min(Duration::from_millis(20)));
        }
        if written == 0 {
            return None;
        }
        // Position ratio: 2 at free_run, 1 at the setpoint, 0 at the limit, as a cube about the setpoint.
        let setpoint = (free_run + foreground) as f64 / 2.0;
        let x = (setpoint - nr as f64) / (foreground as f64 - setpoint).max(1.0);
        let ratio = (1.0 + x * x * x).clamp(0.02, 2.0);
        let rate = domain.write_bandwidth() as f64 * ratio;
        let pause = Duration::from_secs_f64((written as f64 / rate.max(1.0)).min(PAUSE_MAX.as_secs_f64()));
        (pause >= PAUSE_MIN).then_some(pause)
    }
}
