//! A striped counter: events of every object, counted without a shared cache line. Each thread has
//! a number and counts in a stripe of its own.
//!
//! Only the thread with a number writes its stripes, so counting needs no locked instruction. A
//! number passes to another thread through a lock, which also hands over the counts. Threads beyond
//! the stripes share one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;

use umemcg_base::LeafMutex;

/// Numbers of living threads.
static NUMBERS: LeafMutex<Numbers> = LeafMutex::new(Numbers { free: Vec::new(), high: 0 });

struct Numbers {
    free: Vec<u32>,
    high: u32,
}

/// This thread has not requested a number yet.
const NOT_ASKED: u32 = u32::MAX;
/// This thread is ending and has given its number back.
const GIVEN_BACK: u32 = u32::MAX - 1;

thread_local! {
    /// The number of this thread. It has no destructor, so counting need not check its state.
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
    // Low numbers first: they have stripes.
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

/// The counts of one thread, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Stripe {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) inserted: AtomicU64,
    pub(super) evicted: AtomicU64,
    /// Inserted minus removed bytes. Another stripe may have counted the insert of a removed
    /// object: only the wrapping sum of all stripes is meaningful.
    pub(super) bytes: AtomicU64,
}

/// The number of stripes inside the counter itself; finding them costs nothing.
const NR_NEAR: usize = 4;
const NR_MAX: usize = 64;

/// Counts with many writing threads and few readers.
#[derive(Debug)]
pub(super) struct StripedCounter {
    near: [Stripe; NR_NEAR],
    /// On machines with more processors.
    far: Box<[Stripe]>,
    /// The stripe of all threads without their own. (A)
    shared: Stripe,
}

impl StripedCounter {
    pub(super) fn new() -> Self {
        Self {
            near: Default::default(),
            far: (NR_NEAR..Self::nr()).map(|_| Stripe::default()).collect(),
            shared: Stripe::default(),
        }
    }

    fn nr() -> usize {
        available_parallelism().map_or(NR_NEAR, |nr| (nr.get() * 2).clamp(NR_NEAR, NR_MAX))
    }

    /// Returns the bytes on the heap.
    pub(super) fn heap_bytes() -> u64 {
        ((Self::nr() - NR_NEAR) * size_of::<Stripe>()) as u64
    }

    /// Adds to one of the counts; returns its previous value in this thread's stripe.
    #[inline]
    pub(super) fn add(&self, which: impl Fn(&Stripe) -> &AtomicU64, nr: u64) -> u64 {
        // Numbers not yet requested, or given back, are not near.
        match self.near.get(NUMBER.get() as usize) {
            Some(stripe) => add_alone(which(stripe), nr),
            None => self.add_far(which, nr),
        }
    }

    #[cold]
    fn add_far(&self, which: impl Fn(&Stripe) -> &AtomicU64, nr: u64) -> u64 {
        let number = number() as usize;
        let far = || self.far.get(number.wrapping_sub(NR_NEAR));
        match self.near.get(number).or_else(far) {
            Some(stripe) => add_alone(which(stripe), nr),
            None => which(&self.shared).fetch_add(nr, Relaxed),
        }
    }

    pub(super) fn sum(&self, which: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        let stripes = self.near.iter().chain(&self.far).chain([&self.shared]);
        stripes.fold(0, |sum, stripe| sum.wrapping_add(which(stripe).load(Relaxed)))
    }
}

/// Adds to a count written by no other thread.
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
        let stripes = StripedCounter::new();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..StripedCounter::nr() * 2 {
                    scope.spawn(|| {
                        for _ in 0..1000 {
                            stripes.add(|stripe| &stripe.hits, 1);
                            stripes.add(|stripe| &stripe.bytes, 7_u64.wrapping_neg());
                        }
                    });
                }
            });
        }
        let nr = 3 * 2 * 1000 * StripedCounter::nr() as u64;
        assert_eq!(stripes.sum(|stripe| &stripe.hits), nr);
        assert_eq!(stripes.sum(|stripe| &stripe.bytes), (7 * nr).wrapping_neg());
    }
}
