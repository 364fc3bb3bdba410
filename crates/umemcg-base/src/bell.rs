//! A coalescing wake signal: a low layer rings, a worker of a layer above wakes, and neither knows
//! the other.
//!
//! Ringing a bell that has already been rung costs one read-modify-write. A worker that takes the
//! ring sees everything that was written before the ring it took, so "ring after the change, look
//! after the take" loses no wake-up.

use std::fmt;
use std::time::Duration;

use crate::locks::{Condvar, LeafMutex};
use crate::rank::Rank;
use crate::sync::Instant;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A coalescing wake signal.
pub struct Bell {
    rung: AtomicBool,
    lock: LeafMutex<()>,
    wake: Condvar,
    /// Called by the first thread that rings after a take.
    hook: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("rung", &self.rung).finish_non_exhaustive()
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// Creates a silent bell.
    pub fn new() -> Self {
        let (rung, lock) = (AtomicBool::new(false), LeafMutex::new(()));
        Self { rung, lock, wake: Condvar::new(Rank::Peer), hook: None }
    }

    /// Creates a bell that also calls `hook`, in the thread that rings, at the first ring after
    /// each take. For workers that serve many bells: the hook tells them which. It must be brief
    /// and must not ring this bell.
    pub fn with_hook(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self { hook: Some(Box::new(hook)), ..Self::new() }
    }

    /// Wakes a waiter, now or when it comes. Never blocks for longer than a waiter needs to fall
    /// asleep.
    pub fn ring(&self) {
        // AcqRel: pairs with the swap in `take`.
        if self.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        // Passing through the lock means that a waiter either has not checked yet, or sleeps
        // already.
        drop(self.lock.lock());
        self.wake.notify_all();
        if let Some(hook) = &self.hook {
            hook();
        }
    }

    /// Returns whether the bell was rung since the last take; takes the ring.
    pub fn take(&self) -> bool {
        // AcqRel: pairs with the swap in `ring`.
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Sleeps until rung or until the timeout, then takes the ring. True when it was rung.
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut guard = self.lock.lock();
        loop {
            if self.take() {
                return true;
            }
            if self.wake.wait_until(&mut guard, deadline).timed_out() {
                return self.take();
            }
        }
    }
}

#[cfg(all(test, not(any(loom, schedule))))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let bell = Bell::new();
        bell.ring();
        bell.ring();
        assert!(bell.wait(Duration::from_secs(5)));
        assert!(!bell.take());
    }

    #[test]
    fn a_ring_wakes_a_sleeper() {
        let bell = Arc::new(Bell::new());
        let other = Arc::clone(&bell);
        let sleeper = std::thread::spawn(move || other.wait(Duration::from_secs(30)));
        bell.ring();
        assert!(sleeper.join().unwrap());
    }

    #[test]
    fn the_hook_is_called_once_for_each_take() {
        let nr_calls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&nr_calls);
        let bell = Bell::with_hook(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        bell.ring();
        bell.ring();
        assert_eq!(nr_calls.load(Ordering::Relaxed), 1);
        assert!(bell.take());
        bell.ring();
        assert_eq!(nr_calls.load(Ordering::Relaxed), 2);
    }
}
