//! A mutex at the very end of the lock order, so that it needs no rank: who holds it takes no other.

#[cfg(loom)]
use loom::sync as lock;
#[cfg(not(loom))]
use umemcg_base::sync as lock;

/// See the module text. Standard or loom's, as we are compiled.
#[derive(Debug)]
pub(crate) struct LeafLock<T>(lock::Mutex<T>);

impl<T> LeafLock<T> {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: T) -> Self {
        Self(lock::Mutex::new(value))
    }

    #[cfg(loom)]
    pub(crate) fn new(value: T) -> Self {
        Self(lock::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> lock::MutexGuard<'_, T> {
        #[cfg(not(loom))]
        return self.0.lock();
        #[cfg(loom)]
        return self.0.lock().expect("no model panics under a lock and goes on");
    }
}
