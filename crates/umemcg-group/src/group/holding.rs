//! A holding: the bytes of one holder in a group, as a value to be grown and shrunk by any number
//! of threads.
//!
//! A [`Charge`](super::Charge) belongs to one thread at a time, and its owner is the living group
//! at the time of the charge. A holding keeps its group, and with it the group's counter node. All
//! its bytes are charged to this node, also after the group has been removed, so they have one
//! owner and one count. They are counted as [`Reserved`](crate::StatItem::Reserved).
//!
//! Growing and shrinking use the stock of the calling thread, so they take no lock, and two threads
//! changing different holdings of a group write no common cache line.

use std::fmt;
use std::sync::Arc;

use super::charge::{Refused, act_on_usage};
use super::{Group, LEDGER, OwnerId, update_stale_excess};
use crate::held_bytes::HeldBytes;
use crate::mark_check;
use crate::stats::StatItem;
use crate::thread_stock::{THREAD_STOCK, with_stock};

/// Bytes charged to a group for one holder. Released when dropped.
#[must_use = "a dropped holding is given back immediately"]
pub struct Holding {
    /// (C) Keeps the charged counter node alive.
    group: Arc<Group>,
    held: HeldBytes,
}

impl Holding {
    /// Creates an empty holding.
    pub fn new(group: Arc<Group>) -> Self {
        Self { group, held: HeldBytes::default() }
    }

    /// Returns the group it was created for; the group may have been removed.
    #[inline]
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns the bytes held now.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.held.get()
    }

    /// Returns the most bytes held at any time.
    pub fn peak_bytes(&self) -> u64 {
        self.held.peak()
    }

    /// Charges `bytes` more, from this thread's stock if it has enough. Never reclaims and never
    /// sleeps.
    ///
    /// # Errors
    /// [`Refused`] names the lowest group whose limit would be exceeded; nothing is changed then.
    #[inline]
    pub fn try_grow(&self, bytes: u64) -> Result<(), Refused> {
        self.charge(bytes)?;
        self.held.add(bytes);
        Ok(())
    }

    /// Like [`try_grow`](Self::try_grow), if `is_allowed` returns `true` when the bytes are charged
    /// and counted. Returns whether it did; if not, nothing is changed.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn try_grow_if(&self, bytes: u64, is_allowed: impl FnOnce() -> bool) -> Result<bool, Refused> {
        self.charge(bytes)?;
        if !is_allowed() {
            self.uncharge(bytes);
            return Ok(false);
        }
        self.held.add(bytes);
        Ok(true)
    }

    #[inline]
    fn charge(&self, bytes: u64) -> Result<(), Refused> {
        let owner = self.group.owner();
        match THREAD_STOCK.with(|stock| LEDGER.take_counted(stock, owner.into_raw(), bytes)) {
            Some(true) => Ok(()),
            Some(false) => {
                count(owner, bytes as i64);
                Ok(())
            }
            None => self.charge_past_stock(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn charge_past_stock(&self, bytes: u64) -> Result<(), Refused> {
        let owner = self.group.owner();
        let granted =
            with_stock(|stock| LEDGER.try_charge_here(stock, owner.into_raw(), self.group.node, bytes));
        self.after_charge();
        match granted {
            Ok(()) => {
                count(owner, bytes as i64);
                Ok(())
            }
            Err(refusing) => Err(Refused { group: OwnerId::new(refusing).resolve(), wanted_bytes: bytes }),
        }
    }

    /// Charges `bytes` more whatever the limits are. Never blocks.
    ///
    /// # Panics
    /// When `bytes` is more than any machine has (2^56).
    pub fn grow_forced(&self, bytes: u64) {
        let owner = self.group.owner();
        match THREAD_STOCK.with(|stock| LEDGER.take_counted(stock, owner.into_raw(), bytes)) {
            Some(true) => {}
            Some(false) => count(owner, bytes as i64),
            None => {
                LEDGER.charge_here_forced(owner.into_raw(), bytes);
                self.after_charge();
                count(owner, bytes as i64);
            }
        }
        self.held.add(bytes);
    }

    #[inline]
    fn after_charge(&self) {
        if mark_check::take_reached_mark() {
            act_on_usage(self.group.owner());
        }
        update_stale_excess();
    }

    /// Releases `bytes`. Never blocks.
    ///
    /// # Panics
    /// When it holds less; nothing is changed then.
    #[inline]
    pub fn shrink(&self, bytes: u64) {
        assert!(self.held.try_sub(bytes), "a holding of {} bytes gives back {bytes}", self.held.get());
        self.uncharge(bytes);
    }

    /// Releases everything; returns the number of bytes released. Never blocks.
    pub fn clear(&self) -> u64 {
        let bytes = self.held.take_all();
        self.uncharge(bytes);
        bytes
    }

    #[inline]
    fn uncharge(&self, bytes: u64) {
        let owner = self.group.owner();
        match THREAD_STOCK.with(|stock| LEDGER.put_counted(stock, owner.into_raw(), bytes)) {
            Some(true) => {}
            Some(false) => count(owner, -(bytes as i64)),
            None => uncharge_past_stock(owner, bytes),
        }
    }

    /// Takes over the bytes of another holding of the same group.
    ///
    /// # Panics
    /// When it is another group's.
    pub fn absorb(&self, other: &Holding) {
        assert!(Arc::ptr_eq(&self.group, &other.group), "holdings of two groups cannot become one");
        self.held.add(other.held.take_all());
    }

    /// Moves `bytes` to a holding of their own, in the same group. Charges nothing and never
    /// blocks.
    ///
    /// # Panics
    /// When it holds less; nothing is changed then.
    pub fn split(&self, bytes: u64) -> Holding {
        assert!(self.held.try_sub(bytes), "a holding of {} bytes is split at {bytes}", self.held.get());
        Holding { group: Arc::clone(&self.group), held: HeldBytes::new(bytes) }
    }
}

fn count(owner: OwnerId, delta: i64) {
    owner.count(StatItem::Reserved, delta);
}

#[cold]
#[inline(never)]
fn uncharge_past_stock(owner: OwnerId, bytes: u64) {
    if bytes != 0 {
        count(owner, -(bytes as i64));
        THREAD_STOCK.with(|stock| LEDGER.uncharge(stock, owner.into_raw(), bytes));
        update_stale_excess();
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding")
            .field("group", &self.group.path())
            .field("bytes", &self.bytes())
            .field("peak_bytes", &self.peak_bytes())
            .finish()
    }
}
