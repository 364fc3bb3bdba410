//! A charge with a statistic of its group, such as the bytes of objects.

use umemcg_group::{Charge, Group, OwnerId, StatItem};

/// Bytes charged and counted under a statistic; both are released when dropped.
#[derive(Debug)]
pub struct AccountedCharge {
    /// `None` only while being dropped.
    charge: Option<Charge>,
    item: StatItem,
}

impl AccountedCharge {
    /// Counts a charge.
    pub fn new(charge: Charge, item: StatItem) -> Self {
        charge.owner().with_group(|group| group.stat_add(item, charge.bytes() as i64));
        Self { charge: Some(charge), item }
    }

    /// Charges and counts, whatever the limits are: for bookkeeping that must not fail.
    pub fn forced(group: &Group, bytes: u64, item: StatItem) -> Self {
        Self::new(group.charge_forced(bytes), item)
    }

    /// Adds another charge of the same owner and statistic to this one.
    ///
    /// # Errors
    /// Returns `other` if its owner or statistic differs.
    pub fn absorb(&mut self, mut other: Self) -> Result<(), Self> {
        if other.owner() != self.owner() || other.item != self.item {
            return Err(other);
        }
        // Counted already, both of them.
        if let (Some(charge), Some(more)) = (&mut self.charge, other.charge.take()) {
            charge.merge(more);
        }
        Ok(())
    }

    /// Splits `bytes` off; they are released when the result is dropped.
    ///
    /// # Panics
    /// When it holds less.
    #[must_use = "a dropped charge is released"]
    pub fn split(&mut self, bytes: u64) -> Self {
        let charge = self.charge.as_mut().expect("there until dropped");
        Self { charge: Some(charge.split(bytes)), item: self.item }
    }

    /// Stops counting, and returns the charge.
    pub fn into_charge(mut self) -> Charge {
        let Some(charge) = self.charge.take() else { unreachable!("only `drop` takes the charge") };
        if let Some(group) = charge.owner().try_resolve() {
            group.stat_add(self.item, -(charge.bytes() as i64));
        }
        charge
    }

    /// Returns the charged owner.
    pub fn owner(&self) -> OwnerId {
        let Some(charge) = &self.charge else { unreachable!("only `drop` takes the charge") };
        charge.owner()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }
}

impl Drop for AccountedCharge {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take() else { return };
        // The tree is gone: nothing reads its numbers.
        let Some(group) = charge.owner().try_resolve() else { return };
        group.stat_add(self.item, -(charge.bytes() as i64));
        let was_beyond = !group.is_within_limits();
        drop(charge);
        if was_beyond {
            group.drain_own_stock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umemcg_group::GroupTree;

    #[test]
    fn bytes_beyond_a_limit_make_no_room_when_released() {
        let tree = GroupTree::new(1 << 20);
        let group = tree.create(tree.root(), "group".as_ref()).unwrap();
        group.store_max(4096);
        let full = group.try_charge(4096).unwrap();
        drop(AccountedCharge::forced(&group, 512, StatItem::SlabUnreclaimable));
        assert!(group.try_charge(344).is_err());
        assert_eq!(group.usage_bytes(), 4096);
        drop(full);
        assert!(group.try_charge(344).is_ok());
    }
}
