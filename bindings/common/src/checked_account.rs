//! [`CheckedAccount`]: an account that returns failures for misuse instead of panicking.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umemcg::{Account, Engine, Group};

use crate::failure::{Code, Failure};

/// Most bytes held by an account, far beyond any memory.
const HELD_BYTES_MAX: u64 = 1 << 55;
/// Largest growth at a time: the largest pool.
const GROWTH_BYTES_MAX: u64 = 1 << 48;

/// Memory charged to a group, for a program whose own numbers may be wrong.
#[derive(Debug)]
pub struct CheckedAccount {
    account: Account,
    /// Held while the account shrinks, so that the checked bytes stay available. It may grow
    /// meanwhile.
    shrinking: Mutex<()>,
}

impl CheckedAccount {
    /// Opens an account in a group, with nothing in it.
    pub fn new(engine: &Arc<Engine>, group: &Arc<Group>) -> Self {
        Self::of(engine.account(group))
    }

    fn of(account: Account) -> Self {
        Self { account, shrinking: Mutex::new(()) }
    }

    /// Returns the account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Grows by `bytes`. If a group is full, reclaims the missing bytes from its caches.
    ///
    /// # Errors
    /// [`Code::Never`], [`Code::Refused`], [`Code::Overcommitted`]; [`Code::InvalidArgument`] for
    /// impossible sizes. Nothing is changed then.
    pub fn try_grow(&self, bytes: u64) -> Result<(), Failure> {
        if bytes > i64::MAX as u64 {
            return Err(negative(bytes));
        }
        self.account.try_grow(bytes).map_err(|refusal| Failure::from(&refusal))
    }

    /// Grows by `bytes` whatever the limits, for memory already in use. Never blocks.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for more bytes than any memory has.
    pub fn grow(&self, bytes: u64) -> Result<(), Failure> {
        if bytes > GROWTH_BYTES_MAX || self.account.bytes() > HELD_BYTES_MAX {
            return Err(negative(bytes));
        }
        self.account.grow(bytes);
        Ok(())
    }

    /// Gives `bytes` back. Never blocks.
    ///
    /// # Errors
    /// [`Code::NotHeld`] when it holds less; nothing is changed then.
    pub fn shrink(&self, bytes: u64) -> Result<(), Failure> {
        let _shrinking = self.hold_at_least(bytes)?;
        self.account.shrink(bytes);
        Ok(())
    }

    /// Moves `bytes` to an account of their own in the same group.
    ///
    /// # Errors
    /// [`Code::NotHeld`] when it holds less; nothing is changed then.
    pub fn split(&self, bytes: u64) -> Result<Self, Failure> {
        let _shrinking = self.hold_at_least(bytes)?;
        Ok(Self::of(self.account.split(bytes)))
    }

    fn hold_at_least(&self, bytes: u64) -> Result<MutexGuard<'_, ()>, Failure> {
        let shrinking = self.shrinking.lock().unwrap_or_else(PoisonError::into_inner);
        let held_bytes = self.account.bytes();
        if bytes <= held_bytes {
            return Ok(shrinking);
        }
        let message = format!("{bytes} bytes to give back, of {held_bytes} that are held");
        Err(Failure::new(Code::NotHeld, message).of(self.account.group(), bytes, held_bytes))
    }
}

fn negative(bytes: u64) -> Failure {
    Failure { wanted_bytes: bytes, ..Failure::invalid("a size that is negative or too large") }
}
