//! Memory for names and inodes, charged to the group that made us remember them.
//!
//! The daemon alone cannot give back an inode that the kernel refers to, and a program at its limit
//! should still find files. So a name for which a group has no room, after reclaim has asked the
//! kernel for the group's idle names, is charged to the next ancestor that has. A group may have
//! [`NR_NAMES_BEYOND_MAX`] such names; after that a lookup fails (`ENOMEM`).
//!
//! A name beyond the limit stands on the list of the group that had no room, not of the one that
//! pays, so that the reclaim of that group asks for it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use rustix::io::Errno;
pub(crate) use umemcg::{CONTENT_BYTES, NAME_BYTES};
use umemcg::{Charge, ChargeError, Engine, Group, OwnerId, Reason, StatItem};
use umemcg_base::LeafMutex;

use crate::beyond::{Allowance, Beyond};

/// Most names, long or further names, and contents of files, together, that a group without room
/// may have charged above it.
pub const NR_NAMES_BEYOND_MAX: usize = 2048;
/// A group that has names beyond its limit is reclaimed from once for this many further ones: its
/// reclaim had nothing to give a moment ago, and each attempt waits for the kernel.
const NR_PER_RECLAIM: usize = 32;

/// Of all groups.
static BEYOND: LazyLock<Allowance> = LazyLock::new(|| Allowance::new(NR_NAMES_BEYOND_MAX));
static TICKETS: LazyLock<LeafMutex<Tickets>> = LazyLock::new(LeafMutex::default);

/// The levels that had no room for a charge, lowest first, for each charge that has any: kept here
/// because there are few, and a charge is small. A leaf lock.
#[derive(Debug, Default)]
struct Tickets {
    levels: HashMap<NonZeroU32, Vec<Beyond>>,
    last: u32,
}

impl Tickets {
    fn put(&mut self, levels: Vec<Beyond>) -> NonZeroU32 {
        // Bounded: fewer are taken than there are numbers.
        loop {
            self.last = self.last.wrapping_add(1);
            if let Some(number) = NonZeroU32::new(self.last).filter(|n| !self.levels.contains_key(n)) {
                self.levels.insert(number, levels);
                return number;
            }
        }
    }
}

/// The time that a caller waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all, and not at an ancestor's cost.
    None,
    /// One round of reclaim for each group: a caller that must not wait for what others free.
    OneRound,
    /// Until reclaim gives up.
    Waits,
}

/// `BYTES` of metadata; given back when dropped. Kept to eight bytes, because there is one for each
/// inode.
#[derive(Debug)]
pub(crate) struct MetadataCharge<const BYTES: u64> {
    /// An [`OwnerId`].
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
    pub(crate) fn take(engine: &Engine, group: &Arc<Group>) -> Result<Self, Errno> {
        Self::take_by(Patience::Waits, engine, group)
    }

    /// Like `take`, with as much patience as the caller has.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(crate) fn take_by(patience: Patience, engine: &Engine, group: &Arc<Group>) -> Result<Self, Errno> {
        let (mut at, mut beyond) = (Arc::clone(group), Vec::new());
        // Bounded by the depth of the tree: each round goes up at least one level.
        loop {
            let full = match engine.reclaimer().charge_at_once(&at, BYTES) {
                Ok(charge) => return Ok(Self::of(charge, beyond)),
                Err(_) if patience == Patience::None => return Err(Errno::NOMEM),
                Err(refused) => refused.group,
            };
            let nr_beyond = BEYOND.nr_of(&full);
            let full = if nr_beyond.is_multiple_of(NR_PER_RECLAIM) || nr_beyond >= NR_NAMES_BEYOND_MAX {
                match patience.charge(engine, &at, BYTES) {
                    Ok(charge) => return Ok(Self::of(charge, beyond)),
                    Err(ChargeError::Limit(refused)) => refused.group,
                    Err(_) => return Err(Errno::NOMEM),
                }
            } else {
                full
            };
            at = Arc::clone(full.parent().ok_or(Errno::NOMEM)?);
            beyond.push(BEYOND.take(full)?);
        }
    }

    fn of(charge: Charge, beyond: Vec<Beyond>) -> Self {
        let (owner, _) = charge.into_raw();
        owner.with_group(|group| Self::count(group, BYTES as i64));
        let ticket = (!beyond.is_empty()).then(|| TICKETS.lock().put(beyond));
        Self { owner: NonZeroU32::new(owner.into_raw()).expect("no owner is 0"), ticket }
    }

    /// Counts bytes in the figures of the group that pays; those of other objects than inodes also
    /// in one of their own.
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
        OwnerId::from_raw(self.owner.get()).expect("no owner is 0")
    }

    /// Returns the group that is to give it back: the one that pays, or the first that had no room.
    /// Valid as long as the charge.
    pub(crate) fn lister(&self) -> OwnerId {
        let Some(ticket) = self.ticket else { return self.owner() };
        let tickets = TICKETS.lock();
        let lowest = tickets.levels.get(&ticket).and_then(|levels| levels.first());
        lowest.map_or_else(|| self.owner(), |beyond| beyond.group().owner())
    }
}

impl Patience {
    /// Charges after reclaim. A group whose limit is less than that has its idle names asked for
    /// all the same, since they are what it has beyond the limit.
    fn charge(self, engine: &Engine, group: &Arc<Group>, bytes: u64) -> Result<Charge, ChargeError> {
        let reclaimer = engine.reclaimer();
        let charged = match self {
            Self::Waits => engine.charge(group, bytes),
            _ => reclaimer.charge_opportunistic(group, bytes, &|| false),
        };
        if let Err(ChargeError::Limit(refused)) = &charged
            && refused.group.max_bytes() < bytes
        {
            reclaimer.reclaim(&refused.group, 1, Reason::Direct, &|| false);
        }
        charged
    }
}

impl<const BYTES: u64> Drop for MetadataCharge<BYTES> {
    fn drop(&mut self) {
        let owner = self.owner();
        // No reader is left for the figures of a tree that is gone.
        if let Some(group) = owner.try_resolve() {
            Self::count(&group, -(BYTES as i64));
        }
        drop(Charge::from_raw(owner, BYTES));
        if let Some(ticket) = self.ticket {
            let levels = TICKETS.lock().levels.remove(&ticket);
            drop(levels);
        }
    }
}
