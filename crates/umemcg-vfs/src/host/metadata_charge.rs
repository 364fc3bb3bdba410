//! Memory for names and inodes, charged to the group that made us remember them.
//!
//! The daemon alone cannot give back an inode that the kernel refers to, and a program at its limit
//! should still find files. So a name for which a group has no room, after reclaim has asked the
//! kernel for the group's idle names, is charged to the next ancestor that has. A group may have
//! [`NR_NAMES_BEYOND_MAX`] such names; after that a lookup fails (`ENOMEM`).
//!
//! A name beyond the limit stands on the list of the group that had no room, not of the one that
//! pays, so that the reclaim of that group asks for it. When the group has room again, or one
//! between it and the payer has, that one pays: each charge that finds room takes back what else
//! fits.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
pub(crate) use umemcg::{CONTENT_BYTES, NAME_BYTES};
use umemcg::{Charge, Engine, Group, OwnerId, StatItem};
use umemcg_base::LeafMutex;

use crate::allowance::{Allowance, AllowanceClaim, ReclaimEffort};

/// Most names, long or further names, and contents of files, together, that a group without room
/// may have charged above it.
pub const NR_NAMES_BEYOND_MAX: usize = 2048;

/// Of all groups.
static BEYOND: LazyLock<Allowance> = LazyLock::new(|| Allowance::new(NR_NAMES_BEYOND_MAX));
static TICKETS: LazyLock<LeafMutex<Tickets>> = LazyLock::new(LeafMutex::default);
/// (A) Charges of all groups that are beyond a limit, so that the others need no lock. Relaxed: a
/// charge that has just become one comes back with a later charge.
static NR_ABOVE: AtomicUsize = AtomicUsize::new(0);

/// A charge for which there was no room at some levels.
#[derive(Debug)]
struct Above {
    payer: OwnerId,
    bytes: u64,
    /// Those below the payer, lowest first. None: it came back within the lowest group's limit.
    levels: Vec<AllowanceClaim>,
}

/// The charges that were beyond a limit, kept here because there are few, and a charge is small. A
/// leaf lock.
#[derive(Debug, Default)]
struct Tickets {
    by_number: HashMap<NonZeroU32, Box<Above>>,
    /// The numbers of those that are beyond the limit of a group, by its owner id.
    by_level: HashMap<OwnerId, HashSet<NonZeroU32>>,
    last: u32,
}

impl Tickets {
    fn put(&mut self, above: Above) -> NonZeroU32 {
        // Bounded: fewer are taken than there are numbers.
        loop {
            self.last = self.last.wrapping_add(1);
            if let Some(number) = NonZeroU32::new(self.last).filter(|n| !self.by_number.contains_key(n)) {
                for level in &above.levels {
                    self.by_level.entry(level.group().owner()).or_default().insert(number);
                }
                self.by_number.insert(number, Box::new(above));
                NR_ABOVE.fetch_add(1, Ordering::Relaxed);
                return number;
            }
        }
    }

    /// Returns the group that pays.
    fn payer(&self, number: NonZeroU32) -> Option<OwnerId> {
        Some(self.by_number.get(&number)?.payer)
    }

    /// Returns one of those that are beyond the limit of a group, with its size.
    fn any_of(&self, group: &Group) -> Option<(NonZeroU32, u64)> {
        let number = *self.by_level.get(&group.owner())?.iter().next()?;
        Some((number, self.by_number.get(&number)?.bytes))
    }

    /// Has a group pay for a charge that was beyond its limit. Returns the group that has paid so
    /// far, and what is to be dropped without the lock; `None` when the charge is gone, or within
    /// the limit already.
    fn come_back(&mut self, number: NonZeroU32, to: &Group) -> Option<(OwnerId, Vec<AllowanceClaim>)> {
        let above = self.by_number.get_mut(&number)?;
        let level = above.levels.iter().position(|level| std::ptr::eq(&**level.group(), to))?;
        let within = above.levels.split_off(level);
        let paid = std::mem::replace(&mut above.payer, to.owner());
        let is_back = above.levels.is_empty();
        self.unlist(number, &within, is_back);
        Some((paid, within))
    }

    /// Gives a number back, with what is to be dropped without the lock.
    fn remove(&mut self, number: NonZeroU32) -> Option<Box<Above>> {
        let above = self.by_number.remove(&number)?;
        self.unlist(number, &above.levels, !above.levels.is_empty());
        Some(above)
    }

    fn unlist(&mut self, number: NonZeroU32, levels: &[AllowanceClaim], was_last: bool) {
        for level in levels {
            let owner = level.group().owner();
            if let Some(numbers) = self.by_level.get_mut(&owner)
                && numbers.remove(&number)
                && numbers.is_empty()
            {
                self.by_level.remove(&owner);
            }
        }
        if was_last {
            NR_ABOVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// `BYTES` of metadata; given back when dropped. Kept to eight bytes, because there is one for each
/// inode.
#[derive(Debug)]
pub(crate) struct MetadataCharge<const BYTES: u64> {
    /// An [`OwnerId`], of the group that pays; beyond a limit, of the lowest without room.
    owner: NonZeroU32,
    /// In [`Tickets`], if there was no room at some level.
    ticket: Option<NonZeroU32>,
}

const _: () = assert!(size_of::<Option<MetadataCharge<NAME_BYTES>>>() == 8);

impl<const BYTES: u64> MetadataCharge<BYTES> {
    /// Charges the nearest of a group and its ancestors that has room. May sleep for reclaim; no
    /// lock may be held.
    ///
    /// # Errors
    /// `ENOMEM`, see the module text.
    pub(crate) fn take(effort: ReclaimEffort, engine: &Engine, group: &Arc<Group>) -> Result<Self, Errno> {
        let (charge, beyond) = BEYOND.charge(effort, engine, group, BYTES)?;
        let has_room = beyond.is_empty();
        let taken = Self::of(charge, beyond);
        if has_room {
            come_back(engine, group);
        }
        Ok(taken)
    }

    fn of(charge: Charge, levels: Vec<AllowanceClaim>) -> Self {
        let (payer, bytes) = charge.into_raw();
        payer.with_group(|group| count(group, bytes, bytes as i64));
        let (lister, ticket) = match levels.first() {
            None => (payer, None),
            Some(lowest) => {
                let lister = lowest.group().owner();
                (lister, Some(TICKETS.lock().put(Above { payer, bytes, levels })))
            }
        };
        Self { owner: NonZeroU32::new(lister.into_raw()).expect("no owner is 0"), ticket }
    }

    /// Returns the group that pays.
    pub(crate) fn owner(&self) -> OwnerId {
        let above = self.ticket.and_then(|ticket| TICKETS.lock().payer(ticket));
        above.unwrap_or_else(|| self.lister())
    }

    /// Returns the group that is to give it back: the one that pays, or the first that had no room.
    /// Valid as long as the charge.
    pub(crate) fn lister(&self) -> OwnerId {
        OwnerId::from_raw(self.owner.get()).expect("no owner is 0")
    }
}

/// Has a group that has room, and those above it, pay for what is beyond their limits: the lowest
/// that has room for it.
fn come_back(engine: &Engine, group: &Arc<Group>) {
    if NR_ABOVE.load(Ordering::Relaxed) == 0 {
        return;
    }
    for level in std::iter::successors(Some(group), |at| at.parent()) {
        for _ in 0..NR_NAMES_BEYOND_MAX {
            let any = TICKETS.lock().any_of(level);
            let Some((ticket, bytes)) = any else { break };
            let Ok(charge) = engine.reclaimer().charge_at_once(level, bytes) else { break };
            // Otherwise it was removed meanwhile; only it is known to stay valid.
            if charge.owner() != level.owner() {
                break;
            }
            let came_back = TICKETS.lock().come_back(ticket, level);
            // Otherwise the charge has gone meanwhile.
            if let Some((paid, _within)) = came_back {
                charge.into_raw();
                count(level, bytes, bytes as i64);
                give_back(paid, bytes);
            }
        }
    }
}

/// Counts bytes in the figures of the group that pays; those of other objects than inodes also in
/// one of their own.
fn count(group: &Group, size: u64, change: i64) {
    group.stat_add(StatItem::SlabReclaimable, change);
    match size {
        NAME_BYTES => group.stat_add(StatItem::SlabNames, change),
        CONTENT_BYTES => group.stat_add(StatItem::SlabContents, change),
        _ => {}
    }
}

/// Uncharges the payer, in its figures too.
fn give_back(payer: OwnerId, bytes: u64) {
    // No reader is left for the figures of a tree that is gone.
    if let Some(group) = payer.try_resolve() {
        count(&group, bytes, -(bytes as i64));
    }
    drop(Charge::from_raw(payer, bytes));
}

impl<const BYTES: u64> Drop for MetadataCharge<BYTES> {
    fn drop(&mut self) {
        let above = self.ticket.and_then(|ticket| TICKETS.lock().remove(ticket));
        give_back(above.as_ref().map_or(self.lister(), |above| above.payer), BYTES);
    }
}
