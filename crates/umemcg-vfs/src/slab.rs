//! Memory not freed by any shrinker: names and inodes of tmpfs volumes, and open handles.

use std::sync::Arc;

use rustix::io::Errno;
use umemcg::OwnerId;
use umemcg::{Charge, Engine, Group, StatItem};

/// Bytes charged to a group; uncharged when dropped. Must be dropped with no lock held.
#[derive(Debug)]
pub(crate) struct Slab {
    owner: OwnerId,
    bytes: u64,
}

impl Slab {
    /// Charges `bytes`. May sleep for reclaim; no lock may be held.
    ///
    /// # Errors
    /// `ENOSPC` if the group has no room.
    pub(crate) fn take(engine: &Engine, group: &Arc<Group>, bytes: u64) -> Result<Self, Errno> {
        Ok(Self::of(engine.charge(group, bytes).map_err(|_| Errno::NOSPC)?))
    }

    /// Counts charged bytes as slab.
    pub(crate) fn of(charge: Charge) -> Self {
        let (owner, bytes) = charge.into_raw();
        owner.with_group(|group| group.stat_add(StatItem::SlabUnreclaimable, bytes as i64));
        Self { owner, bytes }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // The statistics of a dropped tree have no reader.
        if let Some(group) = self.owner.try_resolve() {
            group.stat_add(StatItem::SlabUnreclaimable, -(self.bytes as i64));
        }
        drop(Charge::from_raw(self.owner, self.bytes));
    }
}
