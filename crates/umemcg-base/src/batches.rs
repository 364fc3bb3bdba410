//! Free items in small batches, so that threads taking and giving a few at a time contend for no
//! common lock.
//!
//! There is a fixed number of batches; threads are assigned to them in turn. The items outside
//! batches have an owner, the *stock*, with a lock of its own, ranked after the batches. Items move
//! between a batch and the stock only while the batch is locked, and a batch holds a bounded number
//! of them. So a thread with all batches and the stock locked sees every free item, and no item is
//! out of reach when the stock is empty.

use std::cell::Cell;

use crate::locks::{RankedMutex, RankedMutexGuard};
use crate::rank::Rank;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Most batches, however many processors there are.
const NR_BATCHES_MAX: usize = 64;

/// Extra items moved from the stock to a batch beyond the wanted ones.
pub const REFILL_LEN: usize = 16;
/// Most items in a batch.
pub const BATCH_LEN_MAX: usize = 32;

/// Batches of free items.
#[derive(Debug)]
pub struct Batches<T> {
    batches: Box<[Batch<T>]>,
}

/// A batch on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Batch<T> {
    items: RankedMutex<Vec<T>>,
    /// (A) A copy of the length, stored under the lock, so that statistics take none.
    len: AtomicUsize,
}

impl<T> Batches<T> {
    /// Creates empty batches: two for each processor, rounded up to a power of two. Models and
    /// replays have one: there the threads of a test must not depend on other threads.
    pub fn new() -> Self {
        let nr_processors = std::thread::available_parallelism().map_or(1, usize::from);
        let nr = if cfg!(any(loom, miri, schedule)) { 1 } else { nr_processors.next_power_of_two() * 2 };
        let batch =
            |_| Batch { items: RankedMutex::new(Rank::FreeBatches, Vec::new()), len: AtomicUsize::new(0) };
        Self { batches: (0..nr.min(NR_BATCHES_MAX)).map(batch).collect() }
    }

    /// Returns the most items in all batches together.
    pub fn capacity(&self) -> usize {
        self.batches.len() * BATCH_LEN_MAX
    }

    /// Returns the number of items in all batches. Exact when nothing changes.
    pub fn len(&self) -> usize {
        self.batches.iter().map(|batch| batch.len.load(Ordering::Relaxed)).sum()
    }

    /// Returns whether the batches are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks the calling thread's batch. Items beyond [`BATCH_LEN_MAX`] must be taken out again
    /// before the guard is dropped.
    #[inline]
    pub fn lock_own(&self) -> LockedBatch<'_, T> {
        self.batches[place_of_thread() % self.batches.len()].lock()
    }

    /// Locks all batches, in their order.
    pub fn lock_all(&self) -> Vec<LockedBatch<'_, T>> {
        self.batches.iter().map(Batch::lock).collect()
    }
}

impl<T> Default for Batches<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Batch<T> {
    #[inline]
    fn lock(&self) -> LockedBatch<'_, T> {
        LockedBatch { len: &self.len, items: self.items.lock_second() }
    }
}

/// A locked batch.
#[derive(Debug)]
#[must_use]
pub struct LockedBatch<'a, T> {
    len: &'a AtomicUsize,
    /// Its items; the most recent one is last.
    pub items: RankedMutexGuard<'a, Vec<T>>,
}

impl<T> Drop for LockedBatch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.items.len() <= BATCH_LEN_MAX, "a batch is bounded");
        self.len.store(self.items.len(), Ordering::Relaxed);
    }
}

/// Returns the number of the calling thread, assigned on its first call.
#[inline]
fn place_of_thread() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1);
    thread_local! { static PLACE: Cell<usize> = const { Cell::new(0) }; }
    PLACE.with(|place| {
        if place.get() == 0 {
            place.set(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        }
        place.get()
    })
}

#[cfg(all(test, not(any(loom, schedule))))]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_put_in_another_finds_among_all() {
        let batches = Batches::new();
        batches.lock_own().items.extend([1, 2]);
        std::thread::scope(|scope| {
            scope.spawn(|| batches.lock_own().items.push(3));
        });
        assert_eq!(batches.len(), 3);
        let mut found: Vec<i32> =
            batches.lock_all().iter_mut().flat_map(|batch| std::mem::take(&mut *batch.items)).collect();
        found.sort_unstable();
        assert_eq!((found, batches.len()), (vec![1, 2, 3], 0));
    }
}
