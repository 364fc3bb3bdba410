//! Pending releases: bytes another party was asked to free by a shrinker, and the wait until they
//! are free. The kernel drops names a moment after the request.

use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::sync::atomic::{AtomicU64, Ordering};
use umemcg_base::{Condvar, LeafMutex, Rank, assert_may_wait};

/// Longest single wait inside a reclaim for requested releases.
const RELEASE_WAIT: Duration = Duration::from_millis(20);

/// Counts the bytes freed after a request, and wakes their waiters.
#[derive(Debug)]
pub(crate) struct PendingReleases {
    /// Ever. Every reclaim reads it; it rises before `waiting` is taken. (A)
    released_bytes: AtomicU64,
    waiting: LeafMutex<()>,
    released: Condvar,
}

impl Default for PendingReleases {
    fn default() -> Self {
        Self {
            released_bytes: AtomicU64::new(0),
            waiting: LeafMutex::new(()),
            released: Condvar::new(Rank::KernelRelease),
        }
    }
}

impl PendingReleases {
    /// Adds freed bytes, and wakes their waiters.
    pub(crate) fn note(&self, bytes: u64) {
        self.released_bytes.fetch_add(bytes, Ordering::Relaxed);
        // A thread that read the old count under the lock sleeps by now.
        drop(self.waiting.lock());
        self.released.notify_all();
    }

    /// Returns all bytes freed after a request so far.
    pub(crate) fn released_bytes(&self) -> u64 {
        self.released_bytes.load(Ordering::Relaxed)
    }

    /// Waits, at most [`RELEASE_WAIT`], until more has been freed than when `before` was read.
    pub(crate) fn wait_for_any(&self, before: u64) {
        self.wait(before, 1, 1);
    }

    /// Waits, at most [`RELEASE_WAIT`], until `wanted` bytes or half of the `requested` bytes have
    /// been freed since `before` was read; returns the bytes freed, at most `requested`. It waits
    /// only for half because some of the memory may be in use.
    pub(crate) fn wait(&self, before: u64, requested: u64, wanted: u64) -> u64 {
        assert_may_wait(Rank::KernelRelease, "a wait for what was requested");
        let deadline = Instant::now() + RELEASE_WAIT;
        let released = || self.released_bytes() - before;
        let mut waiting = self.waiting.lock();
        while released() < requested.div_ceil(2).min(wanted)
            && !self.released.wait_until(&mut waiting, deadline).timed_out()
        {}
        released().min(requested)
    }
}
