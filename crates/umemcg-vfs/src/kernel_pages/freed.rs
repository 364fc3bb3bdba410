//! Freed pages with charges still to give back.

use umemcg::OwnerId;
use umemcg::internal::Reason;
use umemcg::{Charge, StatItem};
use umemcg_base::PAGE_SIZE_U64;

use crate::kernel_page_lists::SHARE_BYTES;

/// Charges to give back when dropped, with no lock held: declared before the lock's guard.
#[derive(Debug, Default)]
pub(super) struct Freed(Vec<(OwnerId, u64, u64)>);

impl Freed {
    /// Adds freed pages of an owner, and freed shares or ghosts.
    pub(super) fn add(&mut self, owner: OwnerId, nr_pages: u64, nr_shares: u64) {
        match self.0.last_mut().filter(|last| last.0 == owner) {
            Some(last) => (last.1, last.2) = (last.1 + nr_pages, last.2 + nr_shares),
            None => self.0.push((owner, nr_pages, nr_shares)),
        }
    }

    /// Returns the owners of the charges.
    pub(super) fn owners(&self) -> Vec<OwnerId> {
        self.0.iter().map(|part| part.0).collect()
    }

    /// Counts the pages as reclaimed from their owners.
    pub(super) fn count_as_reclaimed(&self, reason: Reason) {
        for &(owner, nr_pages, _) in &self.0 {
            if let Some(group) = owner.try_resolve() {
                group.stat_add(reason.steal_item(), nr_pages as i64);
            }
        }
    }

    /// Gives back all charges. Returns their bytes.
    pub(super) fn settle(&mut self) -> u64 {
        let mut bytes = 0;
        for (owner, nr_pages, nr_shares) in self.0.drain(..) {
            count(owner, -(nr_pages as i64), -(nr_shares as i64));
            let of_owner = nr_pages * PAGE_SIZE_U64 + nr_shares * SHARE_BYTES;
            drop(Charge::from_raw(owner, of_owner));
            bytes += of_owner;
        }
        bytes
    }
}

impl Drop for Freed {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Adds pages and shares to an owner's statistics, or subtracts them if negative.
pub(super) fn count(owner: OwnerId, nr_pages: i64, nr_shares: i64) {
    // The statistics of a dropped tree have no reader.
    let Some(group) = owner.try_resolve() else { return };
    if nr_pages != 0 {
        group.stat_add(StatItem::FileKernel, nr_pages * PAGE_SIZE_U64 as i64);
    }
    if nr_shares != 0 {
        group.stat_add(StatItem::SlabReclaimable, nr_shares * SHARE_BYTES as i64);
    }
}
