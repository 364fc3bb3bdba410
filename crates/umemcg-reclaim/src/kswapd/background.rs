//! The state of background reclaim at a group: its marks, `memory.high`, and its job once it has
//! one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use umemcg_group::UNLIMITED;

use super::queue::Job;
use crate::watermark::Watermarks;

/// The state of background reclaim at a group.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) marks: Watermarks,
    /// `memory.high` in bytes. (A)
    high: AtomicU64,
    /// Made when the group first gets a mark.
    pub(super) job: OnceLock<Arc<Job>>,
}

impl Default for Background {
    fn default() -> Self {
        Self { marks: Watermarks::default(), high: AtomicU64::new(UNLIMITED), job: OnceLock::new() }
    }
}

impl Background {
    /// Returns `memory.high` in bytes; [`UNLIMITED`] for none.
    pub(crate) fn high_limit(&self) -> u64 {
        self.high.load(Relaxed)
    }

    pub(crate) fn set_high_limit(&self, bytes: u64) {
        self.high.store(bytes, Relaxed);
    }

    pub(crate) fn job(&self) -> Option<&Arc<Job>> {
        self.job.get()
    }

    /// Returns the usage at which a worker starts to reclaim.
    pub(crate) fn start(&self) -> u64 {
        self.marks.start().min(self.high_limit())
    }

    /// Returns the usage below which the worker stops.
    pub(crate) fn stop(&self) -> u64 {
        self.marks.stop().min(self.high_limit())
    }
}
