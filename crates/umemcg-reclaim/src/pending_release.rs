//! Bytes that a shrinker has asked another party to free, and the wait until they are free: the
//! kernel lets go of names a moment after it is asked to.

use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::{Condvar, LeafMutex, Rank, assert_may_wait};

/// Longest single wait inside a reclaim for memory that another party promised to let go of.
const RELEASE_WAIT: Duration = Duration::from_millis(20);

/// Counts the bytes that were freed after they had been promised, and wakes the threads that wait
/// for them.
#[derive(Debug)]
pub(crate) struct PendingReleases {
    /// Ever.
    released_bytes: LeafMutex<u64>,
    released: Condvar,
}

impl Default for PendingReleases {
    fn default() -> Self {
        Self { released_bytes: LeafMutex::new(0), released: Condvar::new(Rank::KernelRelease) }
    }
}

impl PendingReleases {
    /// Bytes that had been promised are free now: threads that wait for them look again.
    pub(crate) fn note(&self, bytes: u64) {
        *self.released_bytes.lock() += bytes;
        self.released.notify_all();
    }

    /// Returns the bytes that have been freed after a promise, ever.
    pub(crate) fn released_bytes(&self) -> u64 {
        *self.released_bytes.lock()
    }

    /// Waits, at most [`RELEASE_WAIT`], until half of `promised` bytes have been freed since
    /// `before` was read; returns how many of them have. Not all, because some of what is asked for
    /// may be in use.
    pub(crate) fn wait(&self, before: u64, promised: u64) -> u64 {
        assert_may_wait(Rank::KernelRelease, "a wait for what was promised");
        let deadline = Instant::now() + RELEASE_WAIT;
        let mut bytes = self.released_bytes.lock();
        while *bytes - before < promised.div_ceil(2)
            && !self.released.wait_until(&mut bytes, deadline).timed_out()
        {}
        (*bytes - before).min(promised)
    }
}
