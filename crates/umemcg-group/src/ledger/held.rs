//! Charges of a [holding](crate::group::Holding): counted at the holding's own node, removed or
//! not, and under the statistic of reserved bytes.

use super::Ledger;
use crate::counter::{CHARGE_BYTES_MAX, CounterNode};
use crate::stats::RESERVED_PLACE;
use crate::stock::ThreadStock;

impl Ledger {
    /// Charges from stock and counts the bytes as reserved, in one visit to the stock. `None` if
    /// there is not enough, or else whether the bytes were counted; if not, the caller has to.
    #[inline]
    pub fn take_counted(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) -> Option<bool> {
        let own = thread.enter()?;
        let is_taken = own.direct().take(index, bytes);
        is_taken.then(|| own.set().pending().add(index, RESERVED_PLACE, bytes as i64))
    }

    /// Uncharges into stock and counts the bytes as reserved no more; returns as
    /// [`take_counted`](Self::take_counted) does. `None` if there is no room.
    #[inline]
    pub fn put_counted(&self, thread: &ThreadStock<'_>, index: u32, bytes: u64) -> Option<bool> {
        let own = thread.enter()?;
        let is_put = own.direct().put(index, bytes);
        is_put.then(|| own.set().pending().add(index, RESERVED_PLACE, -(bytes as i64)))
    }

    /// Charges `bytes` to `index` itself and all above it, even if its group has been removed, so
    /// bytes charged in several steps have one owner. The caller keeps the node alive, and has
    /// missed the stock.
    ///
    /// # Errors
    /// The lowest node that refuses; nothing is charged then.
    pub fn try_charge_here(
        &self,
        thread: &ThreadStock<'_>,
        index: u32,
        node: &CounterNode,
        bytes: u64,
    ) -> Result<(), u32> {
        let is_plain = bytes.wrapping_sub(1) < CHARGE_BYTES_MAX && !node.is_dead();
        if is_plain && thread.enter().is_some_and(|own| self.charge_filling_stocks(&own, index, node, bytes))
        {
            return Ok(());
        }
        self.try_charge_exactly::<false>(thread, index, bytes).map(|_| ())
    }
}
