//! The write-back state shared by all stores of a pool: thresholds, the clock, the threads, and the
//! count of finished write-backs.

use std::sync::Arc;
use std::time::Duration;

use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::sync::Instant;
use umemcg_base::{Condvar, Idle, LeafMutex, Rank, Wait, assert_may_wait};
use umemcg_reclaim::Reclaimer;

use crate::dirty::DirtyLimits;
use crate::flushers::Flushers;

/// See the module text.
#[derive(Debug)]
pub(crate) struct PoolWriteback {
    limits: DirtyLimits,
    clock: SystemClock,
    flushers: Arc<Flushers>,
    progress: (LeafMutex<u64>, Condvar),
}

impl PoolWriteback {
    pub(crate) fn new(reclaimer: &Arc<Reclaimer>) -> Self {
        Self {
            limits: DirtyLimits::new(Arc::clone(reclaimer)),
            clock: SystemClock::new(),
            flushers: Arc::default(),
            progress: (LeafMutex::new(0), Condvar::new(Rank::Writeback)),
        }
    }

    /// Returns the dirty thresholds and counts of the pool.
    pub(crate) fn dirty_limits(&self) -> &DirtyLimits {
        &self.limits
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }

    pub(crate) fn flushers(&self) -> &Arc<Flushers> {
        &self.flushers
    }

    /// Notes that some write-back has finished.
    pub(crate) fn note_progress(&self) {
        *self.progress.0.lock() += 1;
        self.progress.1.notify_all();
    }

    /// Returns the number of finished write-backs.
    pub(crate) fn nr_progress(&self) -> u64 {
        *self.progress.0.lock()
    }

    /// Waits until some write-back has finished; returns whether one has.
    pub(crate) fn wait_for_progress(&self, timeout: Duration) -> bool {
        assert_may_wait(Rank::Writeback, "a wait for write-back");
        let _idle = Idle::begin(Wait::Sure);
        let mut count = self.progress.0.lock();
        let before = *count;
        let deadline = Instant::now() + timeout;
        while *count == before {
            if self.progress.1.wait_until(&mut count, deadline).timed_out() {
                return *count != before;
            }
        }
        true
    }
}
