//! The one place that says which atomics and locks we are compiled with: the standard ones, or loom's when
//! the crate is built with `--cfg loom`. Code with a protocol between threads imports from here only.

#[cfg(not(loom))]
pub use std::sync::{Arc, atomic};

#[cfg(loom)]
pub use loom::sync::{Arc, atomic};

#[cfg(not(loom))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Threads as the models see them.
#[cfg(loom)]
pub use loom::thread;
#[cfg(not(loom))]
pub use std::thread;

#[cfg(loom)]
pub use modelled::{Condvar, Mutex, MutexGuard};

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
