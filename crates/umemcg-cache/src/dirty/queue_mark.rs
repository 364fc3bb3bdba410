//! The mark of a dirty file in its store's queue, and the time at which it became dirty.
//!
//! Writers and the flusher change both without a lock. A writer makes a page dirty, then *stamps*
//! the file and *enters* it. The flusher takes the stamp for a turn and puts it back if something
//! is left; when it finds the file clean, the file *leaves* the queue: the flusher clears the stamp
//! and the mark, then checks again whether the file is clean. Whichever of the two comes later sees
//! the other's change, so a dirty file is always in the queue and always has a stamp.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A stamp so old that the file is due, regardless of its age.
const DUE_NOW: u64 = 1;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct QueueMark {
    /// True while the file is in its store's queue. (A; the thread that makes it true pushes)
    is_queued: AtomicBool,
    /// The time at which the oldest dirty page became dirty, in milliseconds of the cache's clock;
    /// 0 while clean, or in its turn. (A)
    since_ms: AtomicU64,
}

/// The time at which a file became dirty, kept during its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirtySince(u64);

impl QueueMark {
    /// Marks the file dirty from now on, if it was not before.
    #[inline]
    pub(crate) fn stamp(&self, now_ms: impl FnOnce() -> u64) {
        if self.since_ms.load(Ordering::Relaxed) == 0 {
            let now_ms = now_ms().max(DUE_NOW + 1);
            // Relaxed: the stamp orders nothing; `leave` looks again after the exchange of
            // `is_queued`.
            let _ = self.since_ms.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Makes the file due, regardless of its age.
    pub(crate) fn make_due(&self) {
        self.put_back(DirtySince(DUE_NOW));
    }

    /// Returns whether the stamp was set by [`make_due`](Self::make_due).
    pub(crate) fn is_due(&self) -> bool {
        self.since_ms.load(Ordering::Relaxed) == DUE_NOW
    }

    /// Returns whether the file has been dirty for `age`.
    pub(crate) fn is_older_than(&self, expire_ms: u64, now_ms: u64) -> bool {
        match self.since_ms.load(Ordering::Relaxed) {
            0 => false,
            DUE_NOW => true,
            since => now_ms.saturating_sub(since) >= expire_ms,
        }
    }

    /// Takes the stamp for the file's turn: pages dirtied from now on are younger.
    pub(crate) fn begin_turn(&self) -> DirtySince {
        DirtySince(self.since_ms.swap(0, Ordering::Relaxed))
    }

    /// Makes the file as old as it was before its turn. Of two stamps the older one counts.
    pub(crate) fn put_back(&self, DirtySince(since): DirtySince) {
        let older = |now: u64| (since != 0 && (now == 0 || since < now)).then_some(since);
        let _ = self.since_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, older);
    }

    /// Enters the file. Returns whether it was not in the queue, so that the caller pushes it.
    pub(crate) fn enter(&self) -> bool {
        // AcqRel: pairs with the swap in `leave`.
        !self.is_queued.swap(true, Ordering::AcqRel)
    }

    /// Marks a clean file, which the caller has removed from the queue, as not queued. Returns
    /// whether it is still clean; otherwise it has a stamp, and the caller enters it again.
    pub(crate) fn leave(&self, now_ms: impl FnOnce() -> u64, is_clean: impl FnOnce() -> bool) -> bool {
        let since = self.begin_turn();
        // AcqRel: pairs with the swap in `enter`. A page dirtied before an earlier swap there is
        // seen by the check below; a later swap there finds false, and its thread pushes.
        self.is_queued.swap(false, Ordering::AcqRel);
        let is_clean = is_clean();
        if !is_clean && since.0 == DUE_NOW {
            self.make_due();
        } else if !is_clean {
            // The writer may have seen the stamp before it was cleared.
            self.stamp(now_ms);
        }
        is_clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_comes_while_a_file_leaves_loses_no_stamp() {
        let mark = QueueMark::default();
        mark.stamp(|| 5);
        assert!(mark.enter());
        let is_clean = mark.leave(
            || 40,
            || {
                // Its page is dirty, it saw the earlier stamp, and it finds the file in the queue
                // or not.
                false
            },
        );
        assert!(!is_clean && mark.enter());
        assert!(mark.is_older_than(30, 70) && !mark.is_older_than(30, 60));
        // The same when the writer stamps between the flusher's look and the end.
        let mark = QueueMark::default();
        assert!(mark.enter());
        let is_clean = mark.leave(
            || 40,
            || {
                mark.stamp(|| 20);
                true
            },
        );
        assert!(is_clean && mark.is_older_than(30, 50), "the stamp stays");
    }

    #[test]
    fn what_is_made_due_while_a_file_leaves_stays_due() {
        let mark = QueueMark::default();
        assert!(mark.enter());
        mark.make_due();
        assert!(!mark.leave(|| 40, || false) && mark.is_due());
    }

    #[test]
    fn what_is_made_due_during_a_turn_stays_due() {
        let mark = QueueMark::default();
        mark.stamp(|| 500);
        let since = mark.begin_turn();
        mark.make_due();
        mark.put_back(since);
        assert!(mark.is_due() && mark.is_older_than(1000, 0));
    }

    #[test]
    fn a_turn_keeps_the_older_stamp() {
        let mark = QueueMark::default();
        mark.stamp(|| 500);
        let since = mark.begin_turn();
        mark.stamp(|| 700);
        mark.put_back(since);
        assert!(mark.is_older_than(100, 600));
    }
}
