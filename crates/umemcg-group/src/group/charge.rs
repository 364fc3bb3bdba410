//! A charge: bytes counted to a group and all groups above it, as a value that releases itself.

use std::mem;
use std::sync::Arc;

use super::{GROUPS, Group, LEDGER, OwnerId, update_excess, update_stale_excess};
use crate::counter::{CounterNode, NO_NODE};
use crate::mark_check;
use crate::thread_stock::{THREAD_STOCK, with_stock};

/// A charge did not fit.
#[derive(Debug, Clone, thiserror::Error)]
#[error("a charge of {wanted_bytes} bytes does not fit under the limit of {}", group.path().display())]
pub struct Refused {
    /// The lowest group whose limit the charge would exceed. Reclaim must start there.
    pub group: Arc<Group>,
    /// The requested bytes.
    pub wanted_bytes: u64,
}

/// Bytes counted to an owner and all groups above it. Uncharged when dropped.
#[must_use = "a dropped charge is given back immediately"]
#[derive(Debug)]
pub struct Charge {
    owner: OwnerId,
    bytes: u64,
}

impl Charge {
    /// Returns the charged owner.
    ///
    /// A charge of 0 bytes keeps no owner: once the group is gone, its number may be another
    /// group's.
    #[inline]
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits `bytes` off into a charge of their own.
    ///
    /// # Panics
    /// When it holds less.
    #[inline]
    pub fn split(&mut self, bytes: u64) -> Charge {
        assert!(bytes <= self.bytes, "split of {bytes} bytes from a charge of {}", self.bytes);
        self.bytes -= bytes;
        Charge { owner: self.owner, bytes }
    }

    /// Adds another charge of the same owner to this one.
    ///
    /// # Panics
    /// When it is another owner's.
    #[inline]
    pub fn merge(&mut self, other: Charge) {
        assert_eq!(self.owner, other.owner, "charges of two owners cannot become one");
        let (_, bytes) = other.into_raw();
        self.bytes += bytes;
    }

    /// Returns the parts, for a caller storing many charges in a form of its own. [`uncharge_raw`]
    /// releases them.
    #[inline]
    #[doc(hidden)]
    pub fn into_raw(self) -> (OwnerId, u64) {
        let parts = (self.owner, self.bytes);
        mem::forget(self);
        parts
    }

    /// Makes a charge of parts from [`into_raw`](Self::into_raw). The bytes of one `into_raw` may
    /// be used once, whole or in pieces.
    #[inline]
    #[doc(hidden)]
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

/// Uncharges bytes taken out of charges with [`Charge::into_raw`].
///
/// # Panics
/// When less than `bytes` is charged: immediately, or when the thread's stock is drained.
#[doc(alias = "mem_cgroup_uncharge")]
#[inline]
pub fn uncharge_raw(owner: OwnerId, bytes: u64) {
    THREAD_STOCK.with(|thread_stock| {
        if bytes != 0 && !LEDGER.put_stock(thread_stock, owner.into_raw(), bytes) {
            uncharge_without_stock(owner, bytes);
        }
    });
}

#[cold]
#[inline(never)]
fn uncharge_without_stock(owner: OwnerId, bytes: u64) {
    THREAD_STOCK.with(|thread_stock| LEDGER.uncharge(thread_stock, owner.into_raw(), bytes));
    update_stale_excess();
}

#[inline]
fn try_charge(owner: OwnerId, node: &CounterNode, bytes: u64) -> Result<Charge, Refused> {
    if THREAD_STOCK.with(|thread_stock| LEDGER.take_stock(thread_stock, owner.into_raw(), bytes)) {
        return Ok(Charge { owner, bytes });
    }
    try_charge_past_stock(owner, node, bytes)
}

#[cold]
#[inline(never)]
fn try_charge_past_stock(owner: OwnerId, node: &CounterNode, bytes: u64) -> Result<Charge, Refused> {
    let granted =
        with_stock(|thread_stock| LEDGER.try_charge_past_stock(thread_stock, owner.into_raw(), node, bytes));
    // This comes before the numbers become values with destructors; the compiler would keep such
    // values alive across it.
    if mark_check::take_reached_mark() {
        act_on_usage(owner);
    }
    update_stale_excess();
    match granted {
        Ok(owner) => Ok(Charge { owner: OwnerId::new(owner), bytes }),
        Err(refusing) => Err(Refused { group: OwnerId::new(refusing).resolve(), wanted_bytes: bytes }),
    }
}

/// Raises the pressure signal of every level whose usage is at its mark, and corrects the excess
/// flag of levels where it is stale.
#[cold]
#[inline(never)]
pub(super) fn act_on_usage(owner: OwnerId) {
    let mut at = LEDGER.living(owner.into_raw());
    while at != NO_NODE {
        let node = LEDGER.node(at);
        if node.is_over_mark()
            && let Some(group) = GROUPS.get(at).and_then(|slot| slot.load_full())
        {
            group.wake_signals().pressure.raise();
        }
        if node.is_excess_stale() {
            update_excess(at);
        }
        at = node.parent();
    }
}

fn charge_forced(owner: OwnerId, bytes: u64) -> Charge {
    let owner = with_stock(|thread_stock| LEDGER.charge_forced(thread_stock, owner.into_raw(), bytes));
    let charge = Charge { owner: OwnerId::new(owner), bytes };
    if mark_check::take_reached_mark() {
        act_on_usage(charge.owner);
    }
    update_stale_excess();
    charge
}

impl Group {
    /// Charges `bytes` here and at every level above, from this thread's stock if it has enough.
    /// Never reclaims and never sleeps; before it refuses, it drains stocks of other threads (some
    /// microseconds) if this makes room, so a refusal means the bytes are really held.
    ///
    /// # Errors
    /// [`Refused`] names the lowest group whose limit the charge would exceed.
    #[doc(alias = "mem_cgroup_try_charge")]
    #[doc(alias = "try_charge_memcg")]
    #[inline]
    #[doc(hidden)]
    pub fn try_charge(&self, bytes: u64) -> Result<Charge, Refused> {
        try_charge(self.owner(), self.node, bytes)
    }

    /// Charges `bytes` whatever the limits are, for operations that must not fail. Never blocks.
    #[doc(hidden)]
    pub fn charge_forced(&self, bytes: u64) -> Charge {
        charge_forced(self.owner(), bytes)
    }
}
