//! Bounds how long reclaim of one group waits for write-back without progress.
//!
//! Reclaim that finds only dirty pages in a group waits for the flusher, a little at a time.
//! Waiting is right for a slow store, but not for a hanging or failing one: without a bound over
//! all charges, each page of a large write would wait for seconds. So after
//! [`WAIT_WITHOUT_PROGRESS_MAX`] without progress a group does not wait again: its I/O exceeds the
//! limit immediately, and is not kept. This ends when reclaim frees something, or after
//! [`RECOVERY`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Longest time a group waits without progress.
pub const WAIT_WITHOUT_PROGRESS_MAX: Duration = Duration::from_secs(2);
/// Time after the first fruitless wait until the group waits again.
pub const RECOVERY: Duration = Duration::from_secs(10);

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct WritebackBackoff {
    /// Start of the first wait in vain, in milliseconds of the clock passed to
    /// [`may_wait`](Self::may_wait), plus one; 0 for none. (A) Relaxed: a hint; racing threads wait
    /// a little longer or less.
    since_ms: AtomicU64,
}

impl WritebackBackoff {
    /// Returns whether a reclaim finding only dirty pages should wait once more.
    pub(crate) fn may_wait(&self, now: Duration) -> bool {
        let now_ms = now.as_millis() as u64 + 1;
        let since_ms = self.since_ms.load(Relaxed);
        let in_vain = Duration::from_millis(now_ms.saturating_sub(since_ms));
        if since_ms == 0 || in_vain >= RECOVERY {
            self.since_ms.store(now_ms, Relaxed);
            return true;
        }
        in_vain < WAIT_WITHOUT_PROGRESS_MAX
    }

    /// Notes that something was freed.
    pub(crate) fn note_freed_some(&self) {
        if self.since_ms.load(Relaxed) != 0 {
            self.since_ms.store(0, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_and_resumes_after_progress_or_time() {
        let backoff = WritebackBackoff::default();
        let at = |ms| backoff.may_wait(Duration::from_millis(ms));
        assert!(at(0) && at(1000) && at(1999));
        assert!(!at(2000) && !at(9999));
        assert!(at(10_000) && at(11_000), "a new chance");
        assert!(!at(12_500));
        backoff.note_freed_some();
        assert!(at(12_600));
    }
}
