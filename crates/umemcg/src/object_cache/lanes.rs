//! What happens to every object, counted without a shared line: every thread has a number, and counts in a lane of its own.
//!
//! The thread that has a number is the only one to write its lanes, so counting needs no locked instruction. A number passes to
//! another thread through a lock, which hands over what was counted. Threads beyond the lanes share one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;

use umemcg_base::sync::Mutex;

/// Numbers of living threads.
static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: Vec::new(), high: 0 });

struct Numbers {
    free: Vec<u32>,
    high: u32,
}

/// This thread has not asked for a number yet.
const NOT_ASKED: u32 = u32::MAX;
/// This thread is ending and has given its number back.
const GIVEN_BACK: u32 = u32::MAX - 1;

thread_local! {
    /// The number of this thread. Has no destructor, so that counting need not ask whether it has run.
    static NUMBER: Cell<u32> = const { Cell::new(NOT_ASKED) };
    /// Gives the number back when the thread ends.
    static AT_EXIT: AtExit = const { AtExit };
}

struct AtExit;

impl Drop for AtExit {
    fn drop(&mut self) {
        let number = NUMBER.replace(GIVEN_BACK);
        if number < GIVEN_BACK {
            NUMBERS.lock().free.push(number);
        }
    }
}

#[inline]
fn number() -> u32 {
    match NUMBER.get() {
        NOT_ASKED => take_number(),
        number => number,
    }
}

#[cold]
fn take_number() -> u32 {
    if AT_EXIT.try_with(|_| ()).is_err() {
        return GIVEN_BACK;
    }
    let mut numbers = NUMBERS.lock();
    // Low numbers first: they have lanes.
    let least = (0..numbers.free.len()).min_by_key(|&at| numbers.free[at]);
    let number = match least {
        Some(at) => numbers.free.swap_remove(at),
        None => {
            numbers.high += 1;
            numbers.high - 1
        }
    };
    NUMBER.set(number);
    number
}

/// What one thread counted, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Lane {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) inserted: AtomicU64,
    pub(super) evicted: AtomicU64,
    /// Bytes of objects that came less those that went, which may have come in another lane: only the sum, with wrapping, means
    /// something.
    pub(super) bytes: AtomicU64,
}

/// Lanes that lie beside what they count for, so that finding them costs nothing.
const NR_NEAR: usize = 4;
const NR_MAX: usize = 64;

/// Counts that many threads add to and few read.
#[derive(Debug)]
pub(super) struct Lanes {
    near: [Lane; NR_NEAR],
    /// On machines with more processors.
    far: Box<[Lane]>,
    /// Of all threads that have none of their own. (A)
    shared: Lane,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            near: Default::default(),
            far: (NR_NEAR..Self::nr()).map(|_| Lane::default()).collect(),
            shared: Lane::default(),
        }
    }

    fn nr() -> usize {
        available_parallelism().map_or(NR_NEAR, |nr| (nr.get() * 2).clamp(NR_NEAR, NR_MAX))
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes() -> u64 {
        ((Self::nr() - NR_NEAR) * size_of::<Lane>()) as u64
    }

    /// Adds to one of the counts; returns what it was in this thread's lane.
    #[inline]
    pub(super) fn add(&self, which: impl Fn(&Lane) -> &AtomicU64, nr: u64) -> u64 {
        // Numbers that were not asked for, or were given back, are not near.
        match self.near.get(NUMBER.get() as usize) {
            Some(lane) => add_alone(which(lane), nr),
            None => self.add_far(which, nr),
        }
    }

    #[cold]
    fn add_far(&self, which: impl Fn(&Lane) -> &AtomicU64, nr: u64) -> u64 {
        let number = number() as usize;
        let far = || self.far.get(number.wrapping_sub(NR_NEAR));
        match self.near.get(number).or_else(far) {
            Some(lane) => add_alone(which(lane), nr),
            None => which(&self.shared).fetch_add(nr, Relaxed),
        }
    }

    pub(super) fn sum(&self, which: impl Fn(&Lane) -> &AtomicU64) -> u64 {
        let lanes = self.near.iter().chain(&self.far).chain([&self.shared]);
        lanes.fold(0, |sum, lane| sum.wrapping_add(which(lane).load(Relaxed)))
    }
}

/// Adds to what nobody else writes.
#[inline]
fn add_alone(count: &AtomicU64, nr: u64) -> u64 {
    let before = count.load(Relaxed);
    count.store(before.wrapping_add(nr), Relaxed);
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_among_more_threads_than_lanes() {
        let lanes = Lanes::new();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..Lanes::nr() * 2 {
                    scope.spawn(|| {
                        for _ in 0..1000 {
                            lanes.add(|lane| &lane.hits, 1);
                            lanes.add(|lane| &lane.bytes, 7_u64.wrapping_neg());
                        }
                    });
                }
            });
        }
        let nr = 3 * 2 * 1000 * Lanes::nr() as u64;
        assert_eq!(lanes.sum(|lane| &lane.hits), nr);
        assert_eq!(lanes.sum(|lane| &lane.bytes), (7 * nr).wrapping_neg());
    }
}
