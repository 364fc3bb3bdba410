//! An exclusive right to hold while waiting for the disk, when no lock may be held.

use umemcg_base::{Condvar, LeafMutex, assert_no_locks_held};

/// Gives the right to one thread at a time.
#[derive(Debug, Default)]
pub(super) struct Alone {
    is_taken: LeafMutex<bool>,
    given: Condvar,
}

/// Has the right; gives it back when dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct AloneGuard<'a>(&'a Alone);

impl Alone {
    /// Waits for the right. Its holder waits for nothing but a disk. No lock may be held.
    pub(super) fn take(&self) -> AloneGuard<'_> {
        assert_no_locks_held("a wait to be alone");
        let mut is_taken = self.is_taken.lock();
        while *is_taken {
            self.given.wait(&mut is_taken);
        }
        *is_taken = true;
        drop(is_taken);
        AloneGuard(self)
    }
}

impl Drop for AloneGuard<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock() = false;
        self.0.given.notify_one();
    }
}
