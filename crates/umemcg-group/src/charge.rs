//! A charge: bytes counted to a group and all groups above it, as a value that gives itself back.

use std::mem;
use std::sync::Arc;

use crate::counter::{CounterNode, NO_NODE};
use crate::group::{GROUPS, Group, LEDGER, OwnerId, settle, settle_unsettled};
use crate::mark_check;
use crate::thread_stock::{KEEPER, with_stock};

/// A charge did not fit.
#[derive(Debug, Clone, thiserror::Error)]
#[error("a charge of {wanted_bytes} bytes does not fit under the limit of {}", group.path().display())]
pub struct Refused {
    /// The lowest group whose limit is in the way; reclaim belongs there.
    pub group: Arc<Group>,
    /// What was asked for.
    pub wanted_bytes: u64,
}

/// Bytes counted to an owner and all above it, given back when dropped.
#[must_use = "a dropped charge is given back at once"]
#[derive(Debug)]
pub struct Charge {
    owner: OwnerId,
    bytes: u64,
}

impl Charge {
    /// Returns the owner that it is counted to.
    #[inline]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts `bytes` off into a charge of their own.
    ///
    /// # Panics
    /// When it holds less.
    #[inline]
    pub fn split(&mut self, bytes: u64) -> Charge {
        assert!(bytes <= self.bytes, "split of {bytes} bytes from a charge of {}", self.bytes);
        self.bytes -= bytes;
        Charge { owner: self.owner, bytes }
    }

    /// Takes in another charge.
    ///
    /// # Panics
    /// When it is another owner's.
    #[inline]
    pub fn merge(&mut self, other: Charge) {
        assert_eq!(self.owner, other.owner, "charges of two owners cannot become one");
        let (_, bytes) = other.into_raw();
        self.bytes += bytes;
    }

    /// Returns the parts, for a caller that keeps many charges in a form of its own;
    /// [`uncharge_raw`] gives them back.
    #[inline]
    pub fn into_raw(self) -> (OwnerId, u64) {
        let parts = (self.owner, self.bytes);
        mem::forget(self);
        parts
    }

    /// Returns the charge again. What was taken out with [`into_raw`](Self::into_raw) may go in
    /// once, whole or in parts.
    #[inline]
    pub fn from_raw(owner: OwnerId, bytes: u64) -> Charge {
        Charge { owner, bytes }
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        uncharge_raw(self.owner, self.bytes);
    }
}

/// Gives back bytes that were taken out of charges with [`Charge::into_raw`].
///
/// # Panics
/// When less than `bytes` is charged; at once, or when the thread's stock is drained.
#[doc(alias = "mem_cgroup_uncharge")]
#[inline]
pub fn uncharge_raw(owner: OwnerId, bytes: u64) {
    KEEPER.with(|keeper| {
        if bytes != 0 && !LEDGER.put_stock(keeper, owner.into_raw(), bytes) {
            uncharge_without_stock(owner, bytes);
        }
    });
}

#[cold]
#[inline(never)]
fn uncharge_without_stock(owner: OwnerId, bytes: u64) {
    KEEPER.with(|keeper| LEDGER.uncharge(keeper, owner.into_raw(), bytes));
    settle_unsettled();
}

#[inline]
fn try_charge(owner: OwnerId, node: &CounterNode, bytes: u64) -> Result<Charge, Refused> {
    if KEEPER.with(|keeper| LEDGER.take_stock(keeper, owner.into_raw(), bytes)) {
        return Ok(Charge { owner, bytes });
    }
    try_charge_past_stock(owner, node, bytes)
}

#[cold]
#[inline(never)]
fn try_charge_past_stock(owner: OwnerId, node: &CounterNode, bytes: u64) -> Result<Charge, Refused> {
    let granted = with_stock(|keeper| LEDGER.try_charge_past_stock(keeper, owner.into_raw(), node, bytes));
    // Before the numbers become values with destructors, which the compiler would carry across
    // this.
    if mark_check::take_reached_mark() {
        tell_of_usage(owner);
    }
    settle_unsettled();
    match granted {
        Ok(owner) => Ok(Charge { owner: OwnerId::new(owner), bytes }),
        Err(refusing) => Err(Refused { group: OwnerId::new(refusing).resolve(), wanted_bytes: bytes }),
    }
}

/// Rings the pressure bell of every level whose usage is at its mark, and settles the excess of
/// those that count wrongly.
#[cold]
#[inline(never)]
fn tell_of_usage(owner: OwnerId) {
    let mut at = LEDGER.living(owner.into_raw());
    while at != NO_NODE {
        let node = LEDGER.node(at);
        if node.is_over_mark()
            && let Some(group) = GROUPS.get(at).and_then(|slot| slot.load_full())
        {
            group.bells().pressure.ring();
        }
        if node.is_excess_stale() {
            settle(at);
        }
        at = node.parent();
    }
}

fn charge_forced(owner: OwnerId, bytes: u64) -> Charge {
    let owner = with_stock(|keeper| LEDGER.charge_forced(keeper, owner.into_raw(), bytes));
    let charge = Charge { owner: OwnerId::new(owner), bytes };
    if mark_check::take_reached_mark() {
        tell_of_usage(charge.owner);
    }
    settle_unsettled();
    charge
}

impl Group {
    /// Charges `bytes` here and at every level above, from this thread's stock if that has enough.
    /// Never reclaims and never sleeps; before it refuses, it drains stocks of other threads (some
    /// microseconds) if that makes room, so a refusal means that the bytes are really held.
    ///
    /// # Errors
    /// [`Refused`] names the lowest group whose limit is in the way.
    #[doc(alias = "mem_cgroup_try_charge")]
    #[doc(alias = "try_charge_memcg")]
    #[inline]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, Refused> {
        try_charge(self.owner(), self.counter(), bytes)
    }

    /// Charges `bytes` whatever the limits say, for what must not fail.
    pub fn charge_forced(&self, bytes: u64) -> Charge {
        charge_forced(self.owner(), bytes)
    }
}
