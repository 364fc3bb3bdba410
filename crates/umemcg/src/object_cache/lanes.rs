//! Counting hits without a shared line: every thread has a number, and counts in a lane of its own.
//!
//! The thread that has a number is the only one to write its lanes, so counting needs no locked instruction. A number passes to
//! another thread through a lock, which hands over what was counted. Threads beyond the lanes share one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;

use parking_lot::Mutex;

/// Numbers of living threads.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: Vec::new(), high: 0 });

struct Numbers {
    free: Vec<usize>,
    high: usize,
}

/// The number of this thread, as long as it lives.
struct Number(usize);

impl Number {
    fn take() -> Self {
        let mut numbers = NUMBERS.lock();
        // Low numbers first: they have lanes.
        let least = (0..numbers.free.len()).min_by_key(|&at| numbers.free[at]);
        Self(match least {
            Some(at) => numbers.free.swap_remove(at),
            None => {
                numbers.high += 1;
                numbers.high - 1
            }
        })
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS.lock().free.push(self.0);
    }
}

thread_local! {
    static NUMBER: Number = Number::take();
}

/// Bytes of a lane: a cache line.
const LANE_BYTES: usize = 64;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Lane(AtomicU64);

/// A count that many threads add to and few read.
#[derive(Debug)]
pub(super) struct LaneCount {
    lanes: Box<[Lane]>,
    shared: AtomicU64,
}

impl LaneCount {
    pub(super) fn new() -> Self {
        Self { lanes: (0..Self::nr_lanes()).map(|_| Lane::default()).collect(), shared: AtomicU64::new(0) }
    }

    fn nr_lanes() -> usize {
        available_parallelism().map_or(4, |nr| (nr.get() * 2).clamp(4, 64))
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes() -> u64 {
        (Self::nr_lanes() * LANE_BYTES) as u64
    }

    #[inline]
    pub(super) fn add_one(&self) {
        // A thread that is ending has given its number back.
        match NUMBER.try_with(|number| number.0).ok().and_then(|number| self.lanes.get(number)) {
            Some(lane) => lane.0.store(lane.0.load(Relaxed) + 1, Relaxed),
            None => _ = self.shared.fetch_add(1, Relaxed),
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.0.load(Relaxed)).sum::<u64>() + self.shared.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_among_more_threads_than_lanes() {
        let count = LaneCount::new();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..LaneCount::nr_lanes() * 2 {
                    scope.spawn(|| (0..1000).for_each(|_| count.add_one()));
                }
            });
        }
        assert_eq!(count.sum(), 3 * 2 * 1000 * LaneCount::nr_lanes() as u64);
    }
}
