//! A coalescing wakeup signal: a lower layer raises it, a worker of a higher layer wakes up, and
//! neither depends on the other.
//!
//! Raising an already raised signal costs one read-modify-write. A worker taking the signal sees
//! all writes before the raise, so "raise after the change, look after the take" loses no wakeup.

use std::fmt;
use std::time::Duration;

use crate::locks::{Condvar, LeafMutex};
use crate::rank::Rank;
use crate::sync::Instant;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A coalescing wakeup signal.
pub struct WakeSignal {
    raised: AtomicBool,
    lock: LeafMutex<()>,
    wake: Condvar,
    /// Called by the first thread that raises the signal after a take.
    hook: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for WakeSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeSignal").field("raised", &self.raised).finish_non_exhaustive()
    }
}

impl Default for WakeSignal {
    fn default() -> Self {
        Self::new()
    }
}

impl WakeSignal {
    /// Creates a signal that is not raised.
    pub fn new() -> Self {
        let (raised, lock) = (AtomicBool::new(false), LeafMutex::new(()));
        Self { raised, lock, wake: Condvar::new(Rank::Peer), hook: None }
    }

    /// Creates a signal that also calls `hook`, on the raising thread, at the first raise after
    /// each take. This is for workers with many signals: the hook identifies the raised one. It
    /// must be brief and must not raise the same signal.
    pub fn with_hook(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self { hook: Some(Box::new(hook)), ..Self::new() }
    }

    /// Wakes a waiter, or the next thread to wait. Never blocks for longer than a waiter needs to
    /// fall asleep.
    pub fn raise(&self) {
        // AcqRel: pairs with the swap in `take`.
        if self.raised.swap(true, Ordering::AcqRel) {
            return;
        }
        // After passing through the lock, a waiter either has not checked yet, or already sleeps.
        drop(self.lock.lock());
        self.wake.notify_all();
        if let Some(hook) = &self.hook {
            hook();
        }
    }

    /// Returns whether the signal was raised since the last take, and clears it.
    pub fn take(&self) -> bool {
        // AcqRel: pairs with the swap in `raise`.
        self.raised.swap(false, Ordering::AcqRel)
    }

    /// Sleeps until the signal is raised or the timeout is over, then takes it. Returns `true` if
    /// it was raised.
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
        let wake_signal = WakeSignal::new();
        wake_signal.raise();
        wake_signal.raise();
        assert!(wake_signal.wait(Duration::from_secs(5)));
        assert!(!wake_signal.take());
    }

    #[test]
    fn a_ring_wakes_a_sleeper() {
        let wake_signal = Arc::new(WakeSignal::new());
        let other = Arc::clone(&wake_signal);
        let sleeper = std::thread::spawn(move || other.wait(Duration::from_secs(60)));
        wake_signal.raise();
        assert!(sleeper.join().unwrap());
    }

    #[test]
    fn the_hook_is_called_once_for_each_take() {
        let nr_calls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&nr_calls);
        let wake_signal = WakeSignal::with_hook(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        wake_signal.raise();
        wake_signal.raise();
        assert_eq!(nr_calls.load(Ordering::Relaxed), 1);
        assert!(wake_signal.take());
        wake_signal.raise();
        assert_eq!(nr_calls.load(Ordering::Relaxed), 2);
    }
}
