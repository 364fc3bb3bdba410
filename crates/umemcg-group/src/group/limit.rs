//! Setting a group's limit, and draining the stocks below it.

use super::{Group, LEDGER, OwnerId, update_stale_excess};
use crate::counter::OverUsage;
use crate::stock::Drain;
use crate::thread_stock::THREAD_STOCK;

/// The limit cannot be set: usage is above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{usage_bytes} bytes are in use, more than the new limit")]
pub struct Busy {
    /// Usage in bytes at the time of the attempt.
    pub usage_bytes: u64,
}

impl Group {
    /// Sets the limit unless usage is above it (the v1 rule).
    ///
    /// # Errors
    /// [`Busy`] when usage is above it; the old limit stays.
    #[doc(alias = "mem_cgroup_resize_max")]
    #[doc(hidden)]
    pub fn try_set_max(&self, max_bytes: u64) -> Result<(), Busy> {
        let _changing = self.limit_lock.lock();
        let busy = |_| Busy { usage_bytes: self.node.usage() };
        if self.is_dead() {
            return Ok(());
        }
        match self.node.try_set_max(max_bytes) {
            Err(OverUsage) if drain_down_to(self.owner(), max_bytes) => {
                self.node.try_set_max(max_bytes).map_err(busy)
            }
            result => result.map_err(busy),
        }
    }

    /// Stores the limit, and nothing else: usage may stay above it, since nothing is reclaimed. If
    /// usage is above, stocks are drained, so charges are refused from then on. The engine's
    /// `set_max` reclaims, too.
    #[doc(hidden)]
    pub fn store_max(&self, max_bytes: u64) {
        let _changing = self.limit_lock.lock();
        if !self.is_dead() {
            self.node.set_max(max_bytes);
            if self.node.usage() > max_bytes {
                drain_stocks(self.owner(), Drain::Slots);
            }
        }
    }

    /// Uncharges the stocks of all threads for this group and its descendants. Takes some
    /// microseconds when other threads hold any.
    #[doc(alias = "drain_all_stock")]
    #[doc(hidden)]
    pub fn drain_stocks(&self) {
        drain_stocks(self.owner(), Drain::Bytes);
    }

    /// Uncharges the calling thread's stocks for this group and the groups above. Called after
    /// bytes beyond a limit were released: left in stock, they would let later charges exceed the
    /// limit for good.
    #[doc(hidden)]
    pub fn drain_own_stock(&self) {
        drain_own_stock(self.owner());
    }
}

fn drain_stocks(top: OwnerId, what: Drain) {
    THREAD_STOCK.with(|thread_stock| LEDGER.drain_subtree(thread_stock, top.into_raw(), what));
    update_stale_excess();
}

fn drain_own_stock(owner: OwnerId) {
    THREAD_STOCK.with(|thread_stock| LEDGER.drain_own(thread_stock, owner.into_raw()));
    update_stale_excess();
}

fn drain_down_to(top: OwnerId, goal: u64) -> bool {
    let is_down = THREAD_STOCK.with(|thread_stock| LEDGER.drain_down_to(thread_stock, top.into_raw(), goal));
    update_stale_excess();
    is_down
}
