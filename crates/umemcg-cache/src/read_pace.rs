//! How fast a source answers the reads begun: the time to the first byte, and the rate of the bytes
//! behind it. Both are smoothed, and hints: of two samples at the same time one may be lost.
//!
//! A request is worth its round trip when it brings more than the source could deliver meanwhile.
//! So a window of read-ahead is twice the latency times the rate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use umemcg_base::PAGE_SIZE_U64;

/// A sample weighs one part in so many.
const WEIGHT: u64 = 8;
/// Fewer bytes say nothing about the rate: they may come in one piece.
const SAMPLE_BYTES_LEAST: u64 = 256 << 10;
/// A window is this many times the bytes delivered in the time of the latency.
const LATENCIES: u64 = 2;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct ReadPace {
    /// To the first byte, in nanoseconds; 0 while unknown.
    latency_ns: AtomicU64,
    /// Bytes a millisecond; 0 while unknown.
    bytes_per_ms: AtomicU64,
}

fn smooth(value: &AtomicU64, sample: u64) {
    let before = value.load(Ordering::Relaxed);
    let after = if before == 0 { sample } else { before - before / WEIGHT + sample / WEIGHT };
    value.store(after.max(1), Ordering::Relaxed);
}

impl ReadPace {
    /// Notes a read whose first byte came after `latency`, and whose `bytes` all came within `rest`
    /// from then on.
    pub(crate) fn note(&self, latency: Duration, rest: Duration, bytes: u64) {
        smooth(&self.latency_ns, u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX / 2));
        if bytes >= SAMPLE_BYTES_LEAST {
            let rest_us = u64::try_from(rest.as_micros()).unwrap_or(u64::MAX).max(1);
            smooth(&self.bytes_per_ms, bytes.saturating_mul(1000) / rest_us);
        }
    }

    /// Returns the best size of a window, in pages; `None` before anything is known.
    pub(crate) fn window_pages(&self) -> Option<u64> {
        let rate = self.bytes_per_ms.load(Ordering::Relaxed);
        let latency_us = self.latency_ns.load(Ordering::Relaxed) / 1000;
        let bytes = latency_us.saturating_mul(rate).saturating_mul(LATENCIES) / 1000;
        (rate > 0).then_some(bytes / PAGE_SIZE_U64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const MIB: u64 = 1 << 20;

    #[test]
    fn a_window_is_what_comes_in_twice_the_latency() {
        let pace = ReadPace::default();
        assert_eq!(pace.window_pages(), None);
        pace.note(MS(20), MS(20), 2 * MIB);
        assert!(pace.window_pages().unwrap().abs_diff(2 * 2 * MIB / 4096) <= 1, "{:?}", pace.window_pages());
        for _ in 0..100 {
            pace.note(MS(1), MS(20), 2 * MIB);
        }
        assert!(pace.window_pages().unwrap() < 256 * 1024 / 4096, "{:?}", pace.window_pages());
    }

    #[test]
    fn small_reads_say_nothing_about_the_rate() {
        let pace = ReadPace::default();
        pace.note(MS(50), Duration::ZERO, 4096);
        assert_eq!(pace.window_pages(), None);
        pace.note(MS(50), MS(100), MIB);
        let known = pace.window_pages();
        pace.note(MS(50), Duration::ZERO, 4096);
        assert_eq!(pace.window_pages(), known);
    }

    #[test]
    fn extremes_neither_overflow_nor_divide_by_zero() {
        let pace = ReadPace::default();
        pace.note(Duration::MAX, Duration::ZERO, u64::MAX);
        assert!(pace.window_pages().unwrap() > 1 << 20);
        pace.note(Duration::ZERO, Duration::MAX, u64::MAX);
        assert!(pace.window_pages().is_some());
    }
}
