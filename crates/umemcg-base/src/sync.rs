//! The one place that says which atomics, locks and clock we are compiled with: the standard ones, loom's
//! with `--cfg loom`, or those of the [scheduler](crate::schedule) that owns time and threads with
//! `--cfg schedule`. Below the names and inodes, locks and the time come from here only, atomics where
//! they carry a protocol between threads.

#[cfg(not(any(loom, schedule)))]
pub use std::sync::{Arc, atomic};

#[cfg(loom)]
pub use loom::sync::{Arc, atomic};

#[cfg(schedule)]
pub use crate::schedule::atomic;
#[cfg(schedule)]
pub use std::sync::Arc;

#[cfg(not(any(loom, schedule)))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(schedule)]
pub use crate::schedule::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A point in time, the scheduler's where there is one.
#[cfg(schedule)]
pub use crate::schedule::Instant;
#[cfg(not(schedule))]
pub use std::time::Instant;

#[cfg(schedule)]
pub use crate::schedule as thread;
/// Threads as the models see them.
#[cfg(loom)]
pub use loom::thread;
#[cfg(not(any(loom, schedule)))]
pub use std::thread;

#[cfg(loom)]
pub use modelled::{Condvar, Mutex, MutexGuard};

/// What the [ranked locks](crate::rank) are made of.
#[cfg(schedule)]
pub(crate) mod ranked {
    pub(crate) use crate::schedule::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
}

/// What the [ranked locks](crate::rank) are made of: the standard library's mutex, without its poison, because
/// what panics under a lock ends the process or is a test; and `parking_lot`'s reader-writer lock.
#[cfg(not(schedule))]
pub(crate) mod ranked {
    use std::sync::{PoisonError, TryLockError};

    pub(crate) use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
    pub(crate) use std::sync::MutexGuard;

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        #[inline]
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// Loom's locks with the calls of those that we use otherwise.
#[cfg(loom)]
mod modelled {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    const GO_ON: &str = "a model does not go on after a panic";

    /// See the module.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// An unlocked mutex.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect(GO_ON)))
        }
    }

    /// Holds the lock; empty only while a condition variable has it.
    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect(GO_ON)
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect(GO_ON)
        }
    }

    /// See the module. Time does not pass in a model: no wait ends by itself.
    #[derive(Debug, Default)]
    pub struct Condvar(loom::sync::Condvar);

    /// How a wait ended.
    #[derive(Debug)]
    pub struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        /// Never.
        pub fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        /// A new condition variable.
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        /// Waits for a notification.
        pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> WaitTimeoutResult {
            guard.0 = guard.0.take().map(|inner| self.0.wait(inner).expect(GO_ON));
            WaitTimeoutResult
        }

        /// Wakes all that wait.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
