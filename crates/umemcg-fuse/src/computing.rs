//! Bounds the number of running requests that compute instead of waiting for a store, by the number
//! of processors.
//!
//! Without this bound, a tenant with hundreds of large requests would keep as many threads of the
//! daemon runnable as it may have requests running. A neighbour's small request would wait for a
//! processor behind all of them, several milliseconds each time a thread is woken for it.
//!
//! A request counts as computing from its start. It does not count while it waits
//! ([`Idle`](umemcg_base::Idle)), and counts again afterwards without waiting for room, so that no
//! thread that holds locks waits here. So the bound may be exceeded for a moment, and then no
//! request starts. A call of a store that takes longer than [`STORE_LEASE`] is assumed to wait for
//! a device; a shorter one counts as computing, because it copies from memory. A request that
//! computes for longer than [`LEASE`] is assumed to wait for something unannounced, such as a
//! system call that hangs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use umemcg_base::Wait;

/// The time for which a request may compute: many times as long as a mebibyte takes.
const LEASE: Duration = Duration::from_millis(20);
/// The time for which a call of a store counts as computing: several times as long as copying a
/// mebibyte takes on a busy processor. With 2 ms a neighbour's p99 was twice that with 10 ms.
const STORE_LEASE: Duration = Duration::from_millis(5);

/// A computing request, and the time until which it counts as computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    until: Instant,
    nr: u64,
    is_asleep: bool,
}

impl Run {
    /// Returns whether the request has said that it waits.
    pub fn is_asleep(self) -> bool {
        self.is_asleep
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Computing {
    max: usize,
    /// Ordered by the end of the lease.
    runs: BTreeSet<Run>,
    next: u64,
}

impl Computing {
    pub fn new(max: usize) -> Self {
        Self { max, runs: BTreeSet::new(), next: 0 }
    }

    /// Returns how many more may start.
    pub fn room(&self) -> usize {
        self.max.saturating_sub(self.runs.len())
    }

    fn insert(&mut self, lease: Duration, is_asleep: bool) -> Run {
        let run = Run { until: Instant::now() + lease, nr: self.next, is_asleep };
        self.next += 1;
        self.runs.insert(run);
        run
    }

    /// Notes that a request begins to compute.
    pub fn begin(&mut self) -> Run {
        self.insert(LEASE, false)
    }

    /// Notes that a request waits.
    pub fn waits(&mut self, run: Run, how: Wait) -> Run {
        self.runs.remove(&run);
        if how == Wait::Sure { Run { is_asleep: true, ..run } } else { self.insert(STORE_LEASE, true) }
    }

    /// Notes that a request continues.
    pub fn goes_on(&mut self, run: Run) -> Run {
        self.runs.remove(&run);
        self.insert(LEASE, false)
    }

    /// Notes that it has ended.
    pub fn end(&mut self, run: Run) {
        self.runs.remove(&run);
    }

    /// Drops requests whose lease has ended. Returns the time after which to call this again.
    pub fn expire(&mut self) -> Duration {
        let now = Instant::now();
        while let Some(&first) = self.runs.first() {
            if first.until > now {
                return (first.until - now).min(STORE_LEASE);
            }
            self.runs.remove(&first);
        }
        STORE_LEASE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_leaves_its_processor() {
        let mut computing = Computing::new(2);
        let (a, b) = (computing.begin(), computing.begin());
        assert_eq!(computing.room(), 0);
        let a = computing.waits(a, Wait::Sure);
        assert_eq!(computing.room(), 1);
        let third = computing.begin();
        // It continues without a free processor, so that more may compute for a moment.
        let a = computing.goes_on(a);
        assert_eq!((computing.room(), computing.runs.len()), (0, 3));
        for run in [a, b, third] {
            computing.end(run);
        }
        assert_eq!(computing.room(), 2);
    }

    #[test]
    fn a_store_that_takes_long_is_waited_for() {
        let mut computing = Computing::new(1);
        let run = computing.begin();
        let run = computing.waits(run, Wait::Perhaps);
        assert_eq!(computing.room(), 0, "it may copy from memory");
        while computing.room() == 0 {
            std::thread::park_timeout(computing.expire());
        }
        assert!(run.until <= Instant::now());
        let run = computing.goes_on(run);
        assert_eq!(computing.room(), 0);
        computing.end(run);
        assert_eq!(computing.room(), 1);
    }

    #[test]
    fn a_request_that_never_reports_waiting_is_believed_for_a_time() {
        let mut computing = Computing::new(1);
        let run = computing.begin();
        while computing.room() == 0 {
            std::thread::park_timeout(computing.expire());
        }
        computing.end(run);
        assert_eq!(computing.room(), 1);
    }
}
