//! A turn: the right to do, alone, something for which a lock cannot be held, such as a request to
//! a store.

use umemcg_base::{Condvar, LeafMutex, assert_no_locks_held};

/// A right that one thread has at a time. A thread that has it may take any lock, charge, and ask
/// a store; it has no other turn of the same kind.
#[derive(Debug, Default)]
pub(super) struct Turn {
    is_taken: LeafMutex<bool>,
    given: Condvar,
}

/// Has a [`Turn`]; gives it back when dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct TurnGuard<'t>(&'t Turn);

impl Turn {
    /// Waits for the turn, for as long as another thread has it. No lock may be held.
    pub(super) fn take(&self) -> TurnGuard<'_> {
        assert_no_locks_held("a wait for a turn");
        let mut is_taken = self.is_taken.lock();
        while *is_taken {
            self.given.wait(&mut is_taken);
        }
        *is_taken = true;
        TurnGuard(self)
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        *self.0.is_taken.lock() = false;
        self.0.given.notify_one();
    }
}
