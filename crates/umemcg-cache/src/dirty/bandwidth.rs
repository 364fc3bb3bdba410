//! The smoothed write bandwidth of a store: bytes written per busy time. A store is busy while a
//! thread writes to it or waits for its confirmation; idle time does not count.

use std::time::Duration;

/// The least busy time of a sample.
#[doc(alias = "BANDWIDTH_INTERVAL")]
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
/// A sample of this much busy time replaces the estimate; a shorter one is weighted by its length.
const MEMORY: Duration = Duration::from_secs(3);
/// The assumed bandwidth of a store before anything is known, in bytes a second.
#[doc(alias = "INIT_BW")]
pub const RATE_FIRST: u64 = 100 << 20;

/// See the module text. All times are of one clock.
#[derive(Debug)]
pub struct Bandwidth {
    /// Bytes a second.
    rate: f64,
    is_known: bool,
    /// Calls to the store not yet returned.
    nr_busy: u32,
    /// The start of the present busy period, or the time of the last sample in it.
    since: Duration,
    /// Of the sample to come.
    busy: Duration,
    bytes: u64,
}

impl Default for Bandwidth {
    fn default() -> Self {
        let (since, busy) = (Duration::ZERO, Duration::ZERO);
        Self { rate: RATE_FIRST as f64, is_known: false, nr_busy: 0, since, busy, bytes: 0 }
    }
}

impl Bandwidth {
    /// Begins a call to the store.
    pub fn begin(&mut self, now: Duration) {
        if self.nr_busy == 0 {
            self.since = now;
        }
        self.nr_busy += 1;
    }

    /// Ends a call that has written `bytes` to the store. Returns the rate, in bytes a second.
    #[doc(alias = "wb_update_write_bandwidth")]
    pub fn end(&mut self, now: Duration, bytes: u64) -> u64 {
        debug_assert!(self.nr_busy > 0, "more calls returned than began");
        self.busy += now.saturating_sub(self.since);
        self.since = now;
        self.nr_busy -= 1;
        self.bytes += bytes;
        if self.busy >= SAMPLE_INTERVAL && self.bytes > 0 {
            let sample = self.bytes as f64 / self.busy.as_secs_f64();
            let weight =
                if self.is_known { (self.busy.as_secs_f64() / MEMORY.as_secs_f64()).min(1.0) } else { 1.0 };
            self.rate += (sample - self.rate) * weight;
            (self.is_known, self.busy, self.bytes) = (true, Duration::ZERO, 0);
        }
        self.rate as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_first_sample_counts_and_later_ones_weigh_by_their_time() {
        let mut store = Bandwidth::default();
        store.begin(MS(0));
        assert_eq!(store.end(MS(100), 1_000_000), RATE_FIRST, "too short to say anything");
        store.begin(MS(5000));
        assert_eq!(store.end(MS(5100), 1_000_000), 10_000_000, "the pause between does not count");
        store.begin(MS(6000));
        // 300 ms at 20 MB/s: a tenth of the memory.
        assert_eq!(store.end(MS(6300), 6_000_000), 11_000_000);
        store.begin(MS(7000));
        assert_eq!(store.end(MS(10_000), 3_000_000), 1_000_000, "three seconds replace it");
    }

    #[test]
    fn calls_at_the_same_time_share_the_time() {
        let mut store = Bandwidth::default();
        store.begin(MS(0));
        store.begin(MS(100));
        store.end(MS(150), 1_000_000);
        assert_eq!(store.end(MS(200), 1_000_000), 10_000_000);
    }

    #[test]
    fn a_call_that_brings_nothing_adds_its_time_to_the_next() {
        let mut store = Bandwidth::default();
        store.begin(MS(0));
        assert_eq!(store.end(MS(900), 0), RATE_FIRST);
        store.begin(MS(1000));
        assert_eq!(store.end(MS(1100), 1_000_000), 1_000_000);
    }
}
