//! Bounds the number of requests computing at the same time by the number of processors. A request
//! waiting for a store does not count.
//!
//! Without this bound, a tenant with hundreds of large requests would keep a thread of the daemon
//! runnable for each of its running requests. A neighbour's small request would wait for a
//! processor behind all of them, several milliseconds each time a thread is woken for it.
//!
//! A request counts as computing from its start. It does not count while it waits
//! ([`Idle`](umemcg_base::Idle)), and counts again afterwards without waiting for room, so that no
//! thread waits here with locks held. So the bound may be exceeded for a moment, and then no
//! request starts. A call of a store longer than [`STORE_LEASE`] is assumed to wait for a device; a
//! shorter one counts as computing, because it copies from memory. A request computing for longer
//! than [`LEASE`] is assumed to wait for something unannounced, such as a hanging system call.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use umemcg_base::Wait;

/// The time allowed for computing: many times the time needed for a mebibyte.
const LEASE: Duration = Duration::from_millis(20);
/// The longest call of a store that counts as computing: several times the time needed to copy a
/// mebibyte on a busy processor. With 2 ms, a neighbour's p99 was twice its p99 with 10 ms.
const STORE_LEASE: Duration = Duration::from_millis(5);

/// A computing request, and the time until which it counts as computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    until: Instant,
    nr: u64,
    is_asleep: bool,
}

impl Run {
    /// Returns whether the request has reported a wait.
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

    /// Returns the number of requests that may still start.
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

    /// Notes the end of a request.
    pub fn end(&mut self, run: Run) {
        self.runs.remove(&run);
    }

    /// Drops requests with an expired lease. Returns the time until the next call.
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
        // It continues without a free processor, so more than the bound compute for a moment.
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
