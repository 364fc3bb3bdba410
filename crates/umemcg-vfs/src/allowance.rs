//! The objects that groups may have beyond their limits.
//!
//! A group at its limit with nothing to give still gets a few objects, at the cost of the group
//! above it, so that programs at their limit go on. Each level that has no room counts them; after
//! a number of them it refuses.
//!
//! A group that has just been reclaimed from in vain has nothing to give a moment later either, and
//! each attempt waits for the kernel. So while it has objects beyond its limit, reclaim is tried
//! for one charge in [`NR_PER_RECLAIM`], and for each again as soon as it frees something.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg::internal::Reason;
use umemcg::{Charge, ChargeError, Engine, Group};
use umemcg_base::LeafMutex;

/// Of this many charges of a group that has objects beyond its limit, reclaim is tried for one.
const NR_PER_RECLAIM: usize = 32;

/// The reclaim that a charge may wait for, as the kernel's allocation flags state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReclaimEffort {
    /// None; the charge is not made at an ancestor's cost, either.
    #[doc(alias = "GFP_NOWAIT")]
    None,
    /// One round of reclaim for each group: a caller that must not wait for what others free.
    #[doc(alias = "__GFP_NORETRY")]
    OneRound,
    /// Until reclaim gives up.
    #[doc(alias = "GFP_KERNEL")]
    Full,
}

/// The objects that a group has beyond its limit.
#[derive(Debug, Default)]
struct Beyond {
    nr: usize,
    /// Charges that are still made without reclaim, because the last one was in vain.
    nr_at_once: usize,
}

/// A bound on the objects of one sort that each group may have beyond its limit, and their counts.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// (C)
    nr_max: usize,
    /// By the address of a group, which each of its objects keeps. A leaf lock.
    beyond: LeafMutex<HashMap<usize, Beyond>>,
}

impl Allowance {
    pub(crate) fn new(nr_max: usize) -> Self {
        Self { nr_max, beyond: LeafMutex::default() }
    }

    /// Charges the nearest of a group and its ancestors that has room; claims one object for each
    /// level below, lowest first. May sleep for reclaim; no lock may be held.
    ///
    /// # Errors
    /// `ENOMEM` when a level without room has as many as it may, or the root has no room.
    pub(crate) fn charge(
        &'static self,
        effort: ReclaimEffort,
        engine: &Engine,
        group: &Arc<Group>,
        bytes: u64,
    ) -> Result<(Charge, Vec<AllowanceClaim>), Errno> {
        let (mut at, mut claims) = (Arc::clone(group), Vec::new());
        // Bounded by the depth of the tree: each round goes up at least one level.
        loop {
            let full = match engine.reclaimer().charge_at_once(&at, bytes) {
                Ok(charge) => return Ok((charge, claims)),
                Err(_) if effort == ReclaimEffort::None => return Err(Errno::NOMEM),
                Err(refused) => refused.group,
            };
            let has_reclaimed = self.wants_reclaim(&full);
            let full = match has_reclaimed.then(|| effort.charge(engine, &at, bytes)) {
                None => full,
                Some(Ok(charge)) => return Ok((charge, claims)),
                Some(Err(ChargeError::Limit(refused))) => refused.group,
                Some(Err(_)) => return Err(Errno::NOMEM),
            };
            at = Arc::clone(full.parent().ok_or(Errno::NOMEM)?);
            claims.push(self.take(full, has_reclaimed)?);
        }
    }

    /// Returns whether to reclaim for a charge of a group that has no room for it.
    fn wants_reclaim(&self, group: &Arc<Group>) -> bool {
        let mut beyond = self.beyond.lock();
        let Some(of_group) = beyond.get_mut(&address(group)) else { return true };
        if of_group.nr_at_once == 0 || of_group.nr >= self.nr_max {
            return true;
        }
        of_group.nr_at_once -= 1;
        false
    }

    /// Counts one more for a group that has no room for it, even after reclaim or so far.
    ///
    /// # Errors
    /// `ENOMEM` when the group has as many as it may.
    fn take(&'static self, group: Arc<Group>, has_reclaimed: bool) -> Result<AllowanceClaim, Errno> {
        let mut beyond = self.beyond.lock();
        let of_group = beyond.entry(address(&group)).or_default();
        if of_group.nr >= self.nr_max {
            return Err(Errno::NOMEM);
        }
        of_group.nr += 1;
        if has_reclaimed {
            of_group.nr_at_once = NR_PER_RECLAIM - 1;
        }
        drop(beyond);
        Ok(AllowanceClaim { allowance: self, group })
    }

    /// Returns whether no group has any.
    #[cfg(test)]
    pub(crate) fn is_untouched(&self) -> bool {
        self.beyond.lock().is_empty()
    }
}

impl ReclaimEffort {
    /// Charges after reclaim. A group whose limit is less than that has its idle names asked for
    /// all the same, since they are what it has beyond the limit.
    fn charge(self, engine: &Engine, group: &Arc<Group>, bytes: u64) -> Result<Charge, ChargeError> {
        let reclaimer = engine.reclaimer();
        let charged = match self {
            Self::Full => engine.charge(group, bytes),
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

fn address(group: &Arc<Group>) -> usize {
    Arc::as_ptr(group).addr()
}

/// One object that a group has beyond its limit; given back when dropped.
#[derive(Debug)]
pub(crate) struct AllowanceClaim {
    allowance: &'static Allowance,
    group: Arc<Group>,
}

impl AllowanceClaim {
    /// Returns the group that has no room.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for AllowanceClaim {
    fn drop(&mut self) {
        let mut beyond = self.allowance.beyond.lock();
        if let Some(of_group) = beyond.get_mut(&address(&self.group)) {
            of_group.nr -= 1;
            if of_group.nr == 0 {
                beyond.remove(&address(&self.group));
            }
        }
    }
}
