//! The requests of a group, counted by the threads working on them, and the time lost to stalls.
//!
//! Requests begin and end all the time; stalls are rare. Time is lost only while something is
//! stalled, so only then does a change have to be ordered with a look at the clock:
//!
//! 1. A thread beginning or ending work adds to a word with both counts by compare-and-swap,
//!    provided that the word shows no stall.
//! 2. Every other change is made under the lock: the time since the last change is counted with the
//!    current counts, then the word changes.
//!
//! While something is stalled, no thread does step 1, because the stalls are in the word to be
//! swapped. So the counts change under the lock alone, and each stretch of time is counted with its
//! own counts.

use std::sync::LazyLock;

use umemcg_base::LeafMutex;
use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::sync::atomic::{AtomicU64, Ordering};

use crate::psi::{Pressure, RequestCounts, StallMeter};

pub(crate) static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);

/// The counts of a group, and its meter.
#[derive(Debug, Default)]
pub struct StallCounts {
    /// Stalled requests in the upper 32 bits, requests in progress in the lower. No other data is
    /// read based on this word, so relaxed is enough. (A)
    counts: AtomicU64,
    meter: LeafMutex<StallMeter>,
}

impl StallCounts {
    /// Counts `stalled` more (or fewer) stalled requests, and `working` more (or fewer) requests in
    /// progress.
    ///
    /// # Panics
    /// When more stalls or requests end than have begun.
    #[inline]
    pub fn change(&self, stalled: i32, working: i32) {
        self.change_with::<true>(stalled, working);
    }

    /// Does the work of [`change`](Self::change). `SWAPS` is false only in the model showing why
    /// the counts are swapped and not added to.
    #[inline]
    pub fn change_with<const SWAPS: bool>(&self, stalled: i32, working: i32) {
        let mut before = self.counts.load(Ordering::Relaxed);
        while stalled == 0 && unpack(before).stalled == 0 {
            let after = pack(unpack(before).changed(0, working));
            if !SWAPS {
                let was = self.counts.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
                assert_eq!(unpack(was).stalled, 0, "work changed beside a stall");
                return;
            }
            match self.counts.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
        self.change_counting(stalled, working);
    }

    #[cold]
    fn change_counting(&self, stalled: i32, working: i32) {
        let mut meter = self.meter.lock();
        // Under the lock, so that it never goes back.
        meter.count_to(CLOCK.now(), unpack(self.counts.load(Ordering::Relaxed)));
        // Other threads may still add work, as long as nothing is stalled.
        let change = |counts| Some(pack(unpack(counts).changed(stalled, working)));
        let _ = self.counts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Returns the time lost until now.
    pub fn read(&self) -> Pressure {
        let mut meter = self.meter.lock();
        let now = CLOCK.now();
        meter.read(now, unpack(self.counts.load(Ordering::Relaxed)))
    }
}

fn pack(counts: RequestCounts) -> u64 {
    u64::from(counts.stalled) << 32 | u64::from(counts.working)
}

fn unpack(word: u64) -> RequestCounts {
    RequestCounts { stalled: (word >> 32) as u32, working: word as u32 }
}
