//! An allowance of objects for groups beyond their limits.
//!
//! A group at its limit with nothing to reclaim still gets a few objects, charged to the group
//! above it, so that its programs go on. Each level without room counts them, and refuses more than
//! a fixed number.
//!
//! If reclaim from a group has just failed, it will fail a moment later too, and each attempt waits
//! for the kernel. So while the group has objects beyond its limit, reclaim is tried for one charge
//! in [`NR_PER_RECLAIM`], and for every charge again once an attempt frees something.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg::internal::Reason;
use umemcg::{Charge, ChargeEffort, ChargeError, Engine, Group};
use umemcg_base::LeafMutex;

/// Reclaim is tried for one in this many charges of a group with objects beyond its limit.
const NR_PER_RECLAIM: usize = 32;

/// The objects of a group beyond its limit.
#[derive(Debug, Default)]
struct Beyond {
    nr: usize,
    /// Charges still to be made without reclaim, because the last reclaim failed.
    nr_at_once: usize,
}

/// A bound on each group's objects of one sort beyond its limit, and their counts.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// (C)
    nr_max: usize,
    /// By the address of a group; each of its objects keeps the group alive. A leaf lock.
    beyond: LeafMutex<HashMap<usize, Beyond>>,
}

impl Allowance {
    pub(crate) fn new(nr_max: usize) -> Self {
        Self { nr_max, beyond: LeafMutex::default() }
    }

    /// Charges the lowest level with room among a group and its ancestors. Claims one object for
    /// each level below, lowest first. An [`Immediate`](ChargeEffort::Immediate) charge goes to no
    /// ancestor: it fails if the group has no room. Others may sleep for reclaim; no lock may be
    /// held.
    ///
    /// # Errors
    /// `ENOMEM` if a level without room has used up its allowance, or the root has no room.
    pub(crate) fn charge(
        &'static self,
        effort: ChargeEffort,
        engine: &Engine,
        group: &Arc<Group>,
        bytes: u64,
    ) -> Result<(Charge, Vec<AllowanceClaim>), Errno> {
        let (mut at, mut claims) = (Arc::clone(group), Vec::new());
        // Bounded by the depth of the tree: each round goes up at least one level.
        loop {
            let full = match engine.charge_with(&at, bytes, ChargeEffort::Immediate) {
                Ok(charge) => return Ok((charge, claims)),
                Err(ChargeError::Limit(refused)) if effort != ChargeEffort::Immediate => refused.group,
                Err(_) => return Err(Errno::NOMEM),
            };
            let has_reclaimed = self.wants_reclaim(&full);
            let full = match has_reclaimed.then(|| charge_with_reclaim(effort, engine, &at, bytes)) {
                None => full,
                Some(Ok(charge)) => return Ok((charge, claims)),
                Some(Err(ChargeError::Limit(refused))) => refused.group,
                Some(Err(_)) => return Err(Errno::NOMEM),
            };
            at = Arc::clone(full.parent().ok_or(Errno::NOMEM)?);
            claims.push(self.take(full, has_reclaimed)?);
        }
    }

    /// Returns whether to reclaim for a charge to a group without room.
    fn wants_reclaim(&self, group: &Arc<Group>) -> bool {
        let mut beyond = self.beyond.lock();
        let Some(of_group) = beyond.get_mut(&address(group)) else { return true };
        if of_group.nr_at_once == 0 || of_group.nr >= self.nr_max {
            return true;
        }
        of_group.nr_at_once -= 1;
        false
    }

    /// Counts one more object for a group without room, after a failed reclaim or without one.
    ///
    /// # Errors
    /// `ENOMEM` if the group has used up its allowance.
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

    /// Returns whether no group has objects beyond its limit.
    #[cfg(test)]
    pub(crate) fn is_untouched(&self) -> bool {
        self.beyond.lock().is_empty()
    }
}

/// Charges after reclaim. A group with a limit below `bytes` is reclaimed from all the same: its
/// idle names are its objects beyond the limit.
fn charge_with_reclaim(
    effort: ChargeEffort,
    engine: &Engine,
    group: &Arc<Group>,
    bytes: u64,
) -> Result<Charge, ChargeError> {
    let charged = engine.charge_with(group, bytes, effort);
    if let Err(ChargeError::Limit(refused)) = &charged
        && refused.group.max_bytes() < bytes
    {
        engine.reclaimer().reclaim(&refused.group, 1, Reason::Direct);
    }
    charged
}

fn address(group: &Arc<Group>) -> usize {
    Arc::as_ptr(group).addr()
}

/// One object of a group beyond its limit; given back when dropped.
#[derive(Debug)]
pub(crate) struct AllowanceClaim {
    allowance: &'static Allowance,
    group: Arc<Group>,
}

impl AllowanceClaim {
    /// Returns the group without room.
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
