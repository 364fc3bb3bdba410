//! Memory for names and inodes, charged to the group whose request made the daemon remember them.
//!
//! The daemon alone cannot free an inode referenced by the kernel, and a program at its limit
//! should still find files. Reclaim first asks the kernel to forget the group's idle names. If the
//! group still has no room for a name, the next ancestor with room pays. A group may have
//! [`NR_NAMES_BEYOND_MAX`] such names; after that a lookup fails (`ENOMEM`).
//!
//! A name beyond the limit is on the list of the group without room, not of the payer: the reclaim
//! of that group asks for it. When the group has room again, or a group between it and the payer,
//! the lower group pays: each charge with room takes back further charges while they fit.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
use umemcg::OwnerId;
pub(crate) use umemcg::internal::{CONTENT_BYTES, NAME_BYTES};
use umemcg::{Charge, ChargeEffort, Engine, Group, StatItem};
use umemcg_base::LeafMutex;

use crate::allowance::{Allowance, AllowanceClaim};

/// The most names, long or further names, and contents of files, together, that a group without
/// room may have charged to its ancestors.
pub const NR_NAMES_BEYOND_MAX: usize = 2048;

/// The objects beyond limits, of all groups.
static BEYOND: LazyLock<Allowance> = LazyLock::new(|| Allowance::new(NR_NAMES_BEYOND_MAX));
static OVER_LIMIT: LazyLock<LeafMutex<OverLimitCharges>> = LazyLock::new(LeafMutex::default);
/// (A) The number of charges beyond a limit. While it is 0, no lock is taken. Relaxed: a charge
/// added just now is found by a later recharge.
static NR_OVER_LIMIT: AtomicUsize = AtomicUsize::new(0);

/// A charge without room at some levels.
#[derive(Debug)]
struct OverLimitCharge {
    payer: OwnerId,
    bytes: u64,
    /// The levels without room, all below the payer, lowest first. None once the lowest group pays.
    levels: Vec<AllowanceClaim>,
}

/// The charges beyond a limit. There are few of them. They are apart from [`MetadataCharge`] to
/// keep it small. A leaf lock.
#[derive(Debug, Default)]
struct OverLimitCharges {
    by_id: HashMap<NonZeroU32, Box<OverLimitCharge>>,
    /// The ids of the charges beyond a group's limit, by owner id of the group.
    by_level: HashMap<OwnerId, HashSet<NonZeroU32>>,
    last: u32,
}

impl OverLimitCharges {
    fn put(&mut self, charge: OverLimitCharge) -> NonZeroU32 {
        // Bounded: some id is always free.
        loop {
            self.last = self.last.wrapping_add(1);
            if let Some(id) = NonZeroU32::new(self.last).filter(|n| !self.by_id.contains_key(n)) {
                for level in &charge.levels {
                    self.by_level.entry(level.group().owner()).or_default().insert(id);
                }
                self.by_id.insert(id, Box::new(charge));
                NR_OVER_LIMIT.fetch_add(1, Ordering::Relaxed);
                return id;
            }
        }
    }

    /// Returns the paying group.
    fn payer(&self, id: NonZeroU32) -> Option<OwnerId> {
        Some(self.by_id.get(&id)?.payer)
    }

    /// Returns one of the charges beyond a group's limit, with its size in bytes.
    fn any_of(&self, group: &Group) -> Option<(NonZeroU32, u64)> {
        let id = *self.by_level.get(&group.owner())?.iter().next()?;
        Some((id, self.by_id.get(&id)?.bytes))
    }

    /// Moves a charge beyond a group's limit to the group. Returns the previous payer, and the
    /// claims to drop without the lock; `None` if the charge is gone, or within the limit already.
    fn recharge(&mut self, id: NonZeroU32, to: &Group) -> Option<(OwnerId, Vec<AllowanceClaim>)> {
        let charge = self.by_id.get_mut(&id)?;
        let level = charge.levels.iter().position(|level| std::ptr::eq(&**level.group(), to))?;
        let within = charge.levels.split_off(level);
        let paid = std::mem::replace(&mut charge.payer, to.owner());
        let is_back = charge.levels.is_empty();
        self.unlist(id, &within, is_back);
        Some((paid, within))
    }

    /// Removes a charge, to be dropped without the lock.
    fn remove(&mut self, id: NonZeroU32) -> Option<Box<OverLimitCharge>> {
        let charge = self.by_id.remove(&id)?;
        self.unlist(id, &charge.levels, !charge.levels.is_empty());
        Some(charge)
    }

    fn unlist(&mut self, id: NonZeroU32, levels: &[AllowanceClaim], was_last: bool) {
        for level in levels {
            let owner = level.group().owner();
            if let Some(ids) = self.by_level.get_mut(&owner)
                && ids.remove(&id)
                && ids.is_empty()
            {
                self.by_level.remove(&owner);
            }
        }
        if was_last {
            NR_OVER_LIMIT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A charge of `BYTES` of metadata; given back when dropped. Kept to eight bytes, because each
/// inode has one.
#[derive(Debug)]
pub(crate) struct MetadataCharge<const BYTES: u64> {
    /// The [`OwnerId`] of the paying group; beyond a limit, of the lowest group without room.
    owner: NonZeroU32,
    /// Its id in [`OverLimitCharges`], if there was no room at some level.
    over_limit_id: Option<NonZeroU32>,
}

const _: () = assert!(size_of::<Option<MetadataCharge<NAME_BYTES>>>() == 8);

impl<const BYTES: u64> MetadataCharge<BYTES> {
    /// Charges the lowest level with room among a group and its ancestors. May sleep for reclaim;
    /// no lock may be held.
    ///
    /// # Errors
    /// `ENOMEM`, see the module text.
    pub(crate) fn take(effort: ChargeEffort, engine: &Engine, group: &Arc<Group>) -> Result<Self, Errno> {
        let (charge, beyond) = BEYOND.charge(effort, engine, group, BYTES)?;
        let has_room = beyond.is_empty();
        let taken = Self::of(charge, beyond);
        if has_room {
            recharge_over_limit(engine, group);
        }
        Ok(taken)
    }

    fn of(charge: Charge, levels: Vec<AllowanceClaim>) -> Self {
        let (payer, bytes) = charge.into_raw();
        payer.with_group(|group| count(group, bytes, bytes as i64));
        let (list_owner, over_limit_id) = match levels.first() {
            None => (payer, None),
            Some(lowest) => {
                let list_owner = lowest.group().owner();
                (list_owner, Some(OVER_LIMIT.lock().put(OverLimitCharge { payer, bytes, levels })))
            }
        };
        Self { owner: NonZeroU32::new(list_owner.into_raw()).expect("no owner is 0"), over_limit_id }
    }

    /// Returns the paying group.
    pub(crate) fn owner(&self) -> OwnerId {
        let payer = self.over_limit_id.and_then(|id| OVER_LIMIT.lock().payer(id));
        payer.unwrap_or_else(|| self.list_owner())
    }

    /// Returns the group with the object on its list, and so in its reclaim: the payer, or the
    /// lowest group without room. Valid as long as the charge.
    pub(crate) fn list_owner(&self) -> OwnerId {
        OwnerId::from_raw(self.owner.get()).expect("no owner is 0")
    }
}

/// Moves charges beyond the limits of a group and its ancestors to the lowest of them with room by
/// now.
fn recharge_over_limit(engine: &Engine, group: &Arc<Group>) {
    if NR_OVER_LIMIT.load(Ordering::Relaxed) == 0 {
        return;
    }
    for level in std::iter::successors(Some(group), |at| at.parent()) {
        for _ in 0..NR_NAMES_BEYOND_MAX {
            let any = OVER_LIMIT.lock().any_of(level);
            let Some((id, bytes)) = any else { break };
            let Ok(charge) = engine.charge_with(level, bytes, ChargeEffort::Immediate) else { break };
            // Otherwise the level was removed meanwhile, and only its own id is known to stay
            // valid.
            if charge.owner() != level.owner() {
                break;
            }
            let recharged = OVER_LIMIT.lock().recharge(id, level);
            // Otherwise the charge has gone meanwhile.
            if let Some((paid, _within)) = recharged {
                charge.into_raw();
                count(level, bytes, bytes as i64);
                give_back(paid, bytes);
            }
        }
    }
}

/// Counts bytes in the statistics of the paying group. Names and contents also have a statistic of
/// their own.
fn count(group: &Group, size: u64, change: i64) {
    group.stat_add(StatItem::SlabReclaimable, change);
    match size {
        NAME_BYTES => group.stat_add(StatItem::SlabNames, change),
        CONTENT_BYTES => group.stat_add(StatItem::SlabContents, change),
        _ => {}
    }
}

/// Uncharges the payer, in its statistics too.
fn give_back(payer: OwnerId, bytes: u64) {
    // The statistics of a dropped tree have no reader.
    if let Some(group) = payer.try_resolve() {
        count(&group, bytes, -(bytes as i64));
    }
    drop(Charge::from_raw(payer, bytes));
}

impl<const BYTES: u64> Drop for MetadataCharge<BYTES> {
    fn drop(&mut self) {
        let charge = self.over_limit_id.and_then(|id| OVER_LIMIT.lock().remove(id));
        give_back(charge.as_ref().map_or(self.list_owner(), |charge| charge.payer), BYTES);
    }
}
