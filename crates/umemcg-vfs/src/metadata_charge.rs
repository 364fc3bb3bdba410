//! Memory for names and inodes, charged to the group that made us remember them.
//!
//! What the kernel refers to cannot be given back by us alone, so a group could fill up with names
//! and then fail every lookup. Instead, a name for which a group has no room, after reclaim, is
//! charged to the next ancestor that has: limits hold everywhere, and a lookup fails (`ENOMEM`)
//! only when the whole pool is full of what cannot be reclaimed.

use std::sync::Arc;

use rustix::io::Errno;
pub(crate) use umemcg::{CONTENT_BYTES, NAME_BYTES};
use umemcg::{Charge, ChargeError, Engine, Group, OwnerId, StatItem};

/// How long a caller waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all, and not at an ancestor's cost.
    None,
    /// One round of reclaim for each group: a caller that must not wait for what others free.
    OneRound,
    /// Until reclaim gives up.
    Waits,
}

/// `BYTES` of metadata; given back when dropped. Kept to four bytes, because there is one for each
/// inode.
#[derive(Debug)]
pub(crate) struct MetadataCharge<const BYTES: u64>(OwnerId);

impl<const BYTES: u64> MetadataCharge<BYTES> {
    /// Charges the nearest of a group and its ancestors that has room. May sleep for reclaim; no
    /// lock may be held.
    ///
    /// # Errors
    /// `ENOMEM`, see the module text.
    pub(crate) fn take(engine: &Engine, group: &Arc<Group>) -> Result<Self, Errno> {
        Self::take_by(Patience::Waits, engine, group)
    }

    /// Like `take`, with as much patience as the caller has.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn take_by(patience: Patience, engine: &Engine, group: &Arc<Group>) -> Result<Self, Errno> {
        let mut group = Arc::clone(group);
        // Bounded by the depth of the tree: each round goes up at least one level.
        loop {
            let charged = match patience {
                Patience::None => return Ok(Self::of(group.try_charge(BYTES).map_err(|_| Errno::NOMEM)?)),
                Patience::OneRound => engine.reclaimer().charge_opportunistic(&group, BYTES, &|| false),
                Patience::Waits => engine.charge(&group, BYTES),
            };
            match charged {
                Ok(charge) => return Ok(Self::of(charge)),
                Err(ChargeError::Limit(refused)) => {
                    group = Arc::clone(refused.group.parent().ok_or(Errno::NOMEM)?);
                }
                Err(_) => return Err(Errno::NOMEM),
            }
        }
    }

    fn of(charge: Charge) -> Self {
        let (owner, _) = charge.into_raw();
        owner.with_group(|group| Self::count(group, BYTES as i64));
        Self(owner)
    }

    /// In the figures of the group that pays; what is no inode also in one of its own.
    fn count(group: &Group, bytes: i64) {
        group.stat_add(StatItem::SlabReclaimable, bytes);
        match BYTES {
            NAME_BYTES => group.stat_add(StatItem::SlabNames, bytes),
            CONTENT_BYTES => group.stat_add(StatItem::SlabContents, bytes),
            _ => {}
        }
    }

    /// Returns the group that pays.
    pub(crate) fn owner(&self) -> OwnerId {
        self.0
    }
}

impl<const BYTES: u64> Drop for MetadataCharge<BYTES> {
    fn drop(&mut self) {
        // No reader is left for the figures of a tree that is gone.
        if let Some(group) = self.0.try_resolve() {
            Self::count(&group, -(BYTES as i64));
        }
        drop(Charge::from_raw(self.0, BYTES));
    }
}
