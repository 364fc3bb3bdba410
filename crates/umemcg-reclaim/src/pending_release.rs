//! Pending releases: bytes another party was asked to free by a shrinker, and the wait until they
//! are free. The kernel drops names a moment after the request.

use std::time::Duration;

use umemcg_base::sync::Instant;
use umemcg_base::sync::atomic::{AtomicU64, Ordering};
use umemcg_base::{Condvar, LeafMutex, Rank, assert_may_wait};

/// Longest single wait inside a reclaim for requested releases.
const RELEASE_WAIT: Duration = Duration::from_millis(20);

/// Counts the bytes freed after a request, and wakes their waiters. Both counts are of ever, and
/// rise before `waiting` is taken.
#[derive(Debug)]
pub(crate) struct PendingReleases {
    /// Every reclaim reads it. (A)
    released_bytes: AtomicU64,
    /// Reports of ended releases, with or without freed bytes. (A)
    nr_reports: AtomicU64,
    waiting: LeafMutex<()>,
    released: Condvar,
}

impl Default for PendingReleases {
    fn default() -> Self {
        Self {
            released_bytes: AtomicU64::new(0),
            nr_reports: AtomicU64::new(0),
            waiting: LeafMutex::new(()),
            released: Condvar::new(Rank::KernelRelease),
        }
    }
}

impl PendingReleases {
    /// Reports the end of a release, with the bytes freed, and wakes the waiters.
    pub(crate) fn note(&self, freed_bytes: u64) {
        self.released_bytes.fetch_add(freed_bytes, Ordering::Relaxed);
        // Release: pairs with the Acquire in `nr_reports`.
        self.nr_reports.fetch_add(1, Ordering::Release);
        // A thread that read the old number under the lock sleeps by now.
        drop(self.waiting.lock());
        self.released.notify_all();
    }

    /// Returns all bytes freed after a request so far.
    pub(crate) fn released_bytes(&self) -> u64 {
        self.released_bytes.load(Ordering::Relaxed)
    }

    /// Waits, at most [`RELEASE_WAIT`], until `wanted` bytes or half of the `requested` bytes have
    /// been freed since `before` was read; returns the bytes freed, at most `requested`. It waits
    /// only for half because some of the memory may be in use.
    pub(crate) fn wait(&self, before: u64, requested: u64, wanted: u64) -> u64 {
        let released = || self.released_bytes() - before;
        self.wait_while(|| released() < requested.div_ceil(2).min(wanted));
        released().min(requested)
    }

    /// Waits for reports, at most [`RELEASE_WAIT`], as long as `is_awaited` returns `true`.
    pub(crate) fn wait_while(&self, is_awaited: impl Fn() -> bool) {
        assert_may_wait(Rank::KernelRelease, "a wait for what was requested");
        let deadline = Instant::now() + RELEASE_WAIT;
        loop {
            let before = self.nr_reports();
            if !is_awaited() {
                return;
            }
            let mut waiting = self.waiting.lock();
            while self.nr_reports() == before {
                if self.released.wait_until(&mut waiting, deadline).timed_out() {
                    return;
                }
            }
        }
    }

    fn nr_reports(&self) -> u64 {
        // Acquire: pairs with the Release in `note`. With a report, the counts are seen, too.
        self.nr_reports.load(Ordering::Acquire)
    }
}
