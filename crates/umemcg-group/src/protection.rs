//! A group's protection: what it was promised, what it claims of that, and what its parent is told.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::counter::UNLIMITED;
use crate::group::Group;
use crate::promises::{Promises, Protection};

impl Group {
    /// Returns what the group was promised: `memory.min` or, if that is more, what has been
    /// guaranteed; and `memory.low`. Nothing once it is removed.
    pub fn protection(&self) -> Protection {
        match self.promises.get() {
            Some(promises) if !self.is_dead() => promises.settings(),
            _ => Protection::NONE,
        }
    }

    /// Returns `memory.min` as it was set, in bytes.
    pub fn min_bytes(&self) -> u64 {
        self.promises.get().map_or(0, |promises| promises.min.load(Relaxed))
    }

    /// Returns `memory.low` as it was set, in bytes.
    pub fn low_bytes(&self) -> u64 {
        self.promises.get().map_or(0, |promises| promises.low.load(Relaxed))
    }

    /// Bytes that are guaranteed to the group or those below it.
    pub fn guaranteed_bytes(&self) -> u64 {
        self.promises.get().map_or(0, |promises| promises.guaranteed.load(Relaxed))
    }

    /// Sets `memory.min` in bytes; [`UNLIMITED`] for all the group has. Reclaims nothing. Does
    /// nothing on a removed group.
    pub fn set_min(&self, bytes: u64) {
        self.change_promises(|promises| promises.min.store(bytes, Relaxed));
    }

    /// Sets `memory.low`, as [`set_min`](Self::set_min).
    pub fn set_low(&self, bytes: u64) {
        self.change_promises(|promises| promises.low.store(bytes, Relaxed));
    }

    /// Sets the least that `memory.min` counts as.
    pub fn set_guaranteed(&self, bytes: u64) {
        assert!(bytes != UNLIMITED, "a guarantee has a size");
        self.change_promises(|promises| promises.guaranteed.store(bytes, Relaxed));
    }

    /// Returns what the group claims of what it was promised: no more than it uses.
    pub fn claimed_bytes(&self) -> Protection {
        let (usage, settings) = (self.usage_bytes(), self.protection());
        Protection { min: usage.min(settings.min), low: usage.min(settings.low) }
    }

    /// Returns what the groups directly below claim, together.
    #[doc(alias = "children_min_usage")]
    #[doc(alias = "children_low_usage")]
    pub fn claimed_below_bytes(&self) -> Protection {
        self.promises.get().map_or(Protection::NONE, |promises| promises.claimed_below())
    }

    /// Returns whether any group directly below was promised anything. If none was, nothing below
    /// is protected from reclaim of this group.
    pub(crate) fn has_claimants(&self) -> bool {
        self.promises.get().is_some_and(|promises| !promises.claimants.lock().by_id.is_empty())
    }

    fn promises(&self) -> &Arc<Promises> {
        self.promises.get_or_init(|| Arc::new(Promises::new(self.node)))
    }

    fn change_promises(&self, change: impl FnOnce(&Promises)) {
        let _changing = self.limit_lock.lock();
        if self.is_dead() {
            return;
        }
        change(self.promises());
        self.tell_parent();
    }

    /// Counts the group, or no longer, among the parent's claimants: its living children that were
    /// promised anything. Under the `limit_lock`.
    pub(crate) fn tell_parent(&self) {
        let (Some(promises), Some(parent)) = (self.promises.get(), &self.parent) else { return };
        let mut claimants = parent.promises().claimants.lock();
        if self.protection().is_none() {
            claimants.by_id.remove(&self.id());
        } else {
            claimants.by_id.insert(self.id(), Arc::clone(promises));
        }
        claimants.nr_uses_left = 0;
    }
}
