//! [`CheckedAccount`]: an account whose wrong uses are failures, not panics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umemcg::{Account, Engine, Group};

use crate::failure::{Code, Failure};

/// The most that an account may hold, far beyond any memory.
const HELD_BYTES_MAX: u64 = 1 << 55;
/// The most that it may grow by at a time, which is the largest pool.
const GROWTH_BYTES_MAX: u64 = 1 << 48;

/// Memory that is charged to a group, for a program that may get its own numbers wrong.
#[derive(Debug)]
pub struct CheckedAccount {
    account: Account,
    /// Held while the account gets smaller, so that what was checked stays so. It may grow
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

    /// Grows by `bytes`, reclaiming what is missing from caches of the group that is full.
    ///
    /// # Errors
    /// [`Code::Never`], [`Code::Refused`], [`Code::Overcommitted`]; [`Code::InvalidArgument`] for
    /// numbers that no object can have. Nothing is changed then.
    pub fn try_grow(&self, bytes: u64) -> Result<(), Failure> {
        if bytes > i64::MAX as u64 {
            return Err(negative(bytes));
        }
        self.account.try_grow(bytes).map_err(|refusal| Failure::from(&refusal))
    }

    /// Grows by `bytes` whatever the limits are, for memory that is in use already. Never blocks.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for more than any memory has.
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
