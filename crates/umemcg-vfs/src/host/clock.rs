//! The clock for the times of accepted writes.
//!
//! File systems stamp changes with a coarse clock, which advances every few milliseconds, and since
//! Linux 6.13 with a finer time if a process has read the time in between. The daemon's stamps must
//! be ordered with the host's, or `make` would see a target older than its source. So this is the
//! same coarse clock, but never earlier than an observed stamp of the host.

use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::attr::Timestamp;

/// Stamps for accepted writes.
#[derive(Debug, Default)]
pub(crate) struct VolumeClock {
    /// (A) The latest observed stamp of the host, in nanoseconds since 1970. Relaxed: it stands
    /// alone.
    latest: AtomicI64,
}

impl VolumeClock {
    /// Notes a status-change time set by the host. Writes the shared cache line only when time
    /// advanced.
    pub(crate) fn saw(&self, ctime: Timestamp) {
        let nanoseconds = ctime.as_nanoseconds();
        if nanoseconds > self.latest.load(Ordering::Relaxed) {
            self.latest.fetch_max(nanoseconds, Ordering::Relaxed);
        }
    }

    /// Returns the present time as a stamp of the host.
    pub(crate) fn now(&self) -> Timestamp {
        let coarse = read(ClockId::RealtimeCoarse);
        let latest = self.latest.load(Ordering::Relaxed);
        if latest <= coarse {
            return Timestamp::from_nanoseconds(coarse);
        }
        // A stamp from the future (the clock was set back) must not hold the clock there.
        Timestamp::from_nanoseconds(latest.min(read(ClockId::Realtime)).max(coarse))
    }
}

fn read(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_never_before_one_that_the_host_gave() {
        let clock = VolumeClock::default();
        let fine = Timestamp::from_nanoseconds(read(ClockId::Realtime));
        clock.saw(fine);
        assert!(clock.now() >= fine);
    }

    #[test]
    fn a_stamp_from_the_future_does_not_hold_the_clock() {
        let clock = VolumeClock::default();
        clock.saw(Timestamp { seconds: i64::MAX / 2_000_000_000, nanoseconds: 0 });
        assert!(clock.now() <= Timestamp::from_nanoseconds(read(ClockId::Realtime)));
    }
}
