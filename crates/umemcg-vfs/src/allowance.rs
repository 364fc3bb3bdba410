//! The objects that groups may have beyond their limits.
//!
//! A group at its limit with nothing to give still gets a few objects, at the cost of the group
//! above it, so that programs at their limit go on. Each level that has no room counts them; after
//! a number of them it refuses.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;
use umemcg::Group;
use umemcg_base::LeafMutex;

/// A bound on the objects of one sort that each group may have beyond its limit, and their counts.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// (C)
    nr_max: usize,
    /// By the address of a group, which each of its objects keeps. A leaf lock.
    nr_of: LeafMutex<HashMap<usize, usize>>,
}

impl Allowance {
    pub(crate) fn new(nr_max: usize) -> Self {
        Self { nr_max, nr_of: LeafMutex::default() }
    }

    /// Counts one more for a group that has no room for it.
    ///
    /// # Errors
    /// `ENOMEM` when the group has as many as it may.
    pub(crate) fn take(&'static self, group: Arc<Group>) -> Result<AllowanceClaim, Errno> {
        let mut nr_of = self.nr_of.lock();
        let nr = nr_of.entry(address(&group)).or_default();
        if *nr >= self.nr_max {
            return Err(Errno::NOMEM);
        }
        *nr += 1;
        drop(nr_of);
        Ok(AllowanceClaim { allowance: self, group })
    }

    /// Returns how many a group has.
    pub(crate) fn nr_of(&self, group: &Arc<Group>) -> usize {
        self.nr_of.lock().get(&address(group)).copied().unwrap_or(0)
    }

    /// Returns whether no group has any.
    #[cfg(test)]
    pub(crate) fn is_untouched(&self) -> bool {
        self.nr_of.lock().is_empty()
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
        let mut nr_of = self.allowance.nr_of.lock();
        if let Some(nr) = nr_of.get_mut(&address(&self.group)) {
            *nr -= 1;
            if *nr == 0 {
                nr_of.remove(&address(&self.group));
            }
        }
    }
}
