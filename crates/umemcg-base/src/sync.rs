//! The only place that chooses the atomics, locks and clock of a build: the standard ones, loom's
//! with `--cfg loom`, or those of the deterministic scheduler (`schedule`) with `--cfg schedule`.
//! Below the layer of names and inodes, time comes only from here, and so do atomics with a
//! protocol between threads. The locks have ranks, and come from [`locks`](crate::locks).

#[cfg(not(any(loom, schedule)))]
pub use std::sync::{Arc, atomic};

#[cfg(loom)]
pub use loom::sync::{Arc, atomic};

#[cfg(schedule)]
pub use crate::schedule::atomic;
#[cfg(schedule)]
pub use std::sync::Arc;

/// A point in time, the scheduler's where there is one.
#[cfg(schedule)]
pub use crate::schedule::Instant;
#[cfg(not(schedule))]
pub use std::time::Instant;

#[cfg(schedule)]
pub use crate::schedule as thread;
/// Threads of the models.
#[cfg(loom)]
pub use loom::thread;
#[cfg(not(any(loom, schedule)))]
pub use std::thread;

/// Declares `const` functions. In loom's models they are not `const`: loom's types are created at
/// run time.
#[macro_export]
macro_rules! const_fn {
    ($($(#[$meta:meta])* $visibility:vis const fn $name:ident($($arguments:tt)*) -> $type:ty $body:block)+) => {$(
        #[cfg(not(loom))]
        $(#[$meta])*
        $visibility const fn $name($($arguments)*) -> $type $body

        #[cfg(loom)]
        $(#[$meta])*
        $visibility fn $name($($arguments)*) -> $type $body
    )+};
}

/// Declares statics initialised by a [`const_fn`]. A build for loom's models initialises them on
/// first use; no model uses one.
#[macro_export]
macro_rules! const_static {
    ($($(#[$meta:meta])* $visibility:vis static $name:ident: $type:ty = $value:expr;)+) => {$(
        #[cfg(not(loom))]
        $(#[$meta])*
        $visibility static $name: $type = $value;

        #[cfg(loom)]
        $(#[$meta])*
        $visibility static $name: std::sync::LazyLock<$type> = std::sync::LazyLock::new(|| $value);
    )+};
}

/// The types underneath leaf locks and condition variables.
#[cfg(not(any(loom, schedule)))]
pub(crate) use parking_lot as leaf;

/// The types underneath leaf locks and condition variables.
#[cfg(schedule)]
pub(crate) use crate::schedule as leaf;

/// The types underneath the [ranked locks](crate::locks).
#[cfg(schedule)]
pub(crate) mod ranked {
    pub(crate) use crate::schedule::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
}

/// The types underneath the [ranked locks](crate::locks): the standard library's mutex, without
/// poison, because a panic under a lock ends the process or is part of a test; and `parking_lot`'s
/// reader-writer lock.
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

/// The types underneath leaf locks and condition variables: loom's, with the interface of
/// `parking_lot`.
#[cfg(loom)]
pub(crate) mod leaf {
    use std::ops::{Deref, DerefMut};
    use std::time::{Duration, Instant};

    const GO_ON: &str = "a model does not go on after a panic";

    /// See the module.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Creates an unlocked mutex.
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

    /// The outcome of a wait.
    #[derive(Debug)]
    pub struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        /// Returns false: there is no deadline here.
        pub fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        /// Creates a new condition variable.
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        /// Waits for a notification.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = guard.0.take().map(|inner| self.0.wait(inner).expect(GO_ON));
        }

        /// Waits for a notification.
        pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _deadline: Instant) -> WaitTimeoutResult {
            self.wait(guard);
            WaitTimeoutResult
        }

        /// Waits for a notification.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout: Duration) -> WaitTimeoutResult {
            self.wait(guard);
            WaitTimeoutResult
        }

        /// Wakes one waiting thread.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all waiting threads.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
