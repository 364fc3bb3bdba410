//! A group's protection settings, its claims, and its entry among its parent's claimants.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Group;
use crate::claims::{Protection, ProtectionSettings};
use crate::counter::UNLIMITED;

impl Group {
    /// Returns the protection settings in bytes: the greater of `memory.min` and the guarantees,
    /// and `memory.low`. Both are zero once the group is removed.
    pub fn protection(&self) -> Protection {
        match self.protection_settings.get() {
            Some(settings) if !self.is_dead() => settings.settings(),
            _ => Protection::NONE,
        }
    }

    /// Returns `memory.min` as it was set, in bytes.
    pub fn min_bytes(&self) -> u64 {
        self.protection_settings.get().map_or(0, |settings| settings.min.load(Relaxed))
    }

    /// Returns `memory.low` as it was set, in bytes.
    pub fn low_bytes(&self) -> u64 {
        self.protection_settings.get().map_or(0, |settings| settings.low.load(Relaxed))
    }

    /// Returns the bytes guaranteed to the group or its descendants.
    pub fn guaranteed_bytes(&self) -> u64 {
        self.protection_settings.get().map_or(0, |settings| settings.guaranteed.load(Relaxed))
    }

    /// Sets `memory.min` in bytes; [`UNLIMITED`] protects all of the group. Reclaims nothing. Does
    /// nothing on a removed group.
    #[doc(hidden)]
    pub fn set_min(&self, bytes: u64) {
        self.change_protection(|settings| settings.min.store(bytes, Relaxed));
    }

    /// Sets `memory.low`, as [`set_min`](Self::set_min).
    #[doc(hidden)]
    pub fn set_low(&self, bytes: u64) {
        self.change_protection(|settings| settings.low.store(bytes, Relaxed));
    }

    /// Sets a floor under `memory.min`, in bytes.
    ///
    /// # Panics
    /// When `bytes` is [`UNLIMITED`].
    #[doc(hidden)]
    pub fn set_guaranteed(&self, bytes: u64) {
        assert!(bytes != UNLIMITED, "a guarantee has a size");
        self.change_protection(|settings| settings.guaranteed.store(bytes, Relaxed));
    }

    /// Returns the group's claims in bytes: the smaller of each setting and the usage.
    pub fn claimed_bytes(&self) -> Protection {
        let (usage, settings) = (self.usage_bytes(), self.protection());
        Protection { min: usage.min(settings.min), low: usage.min(settings.low) }
    }

    /// Returns the sum of the claims of the groups directly below, in bytes.
    #[doc(alias = "children_min_usage")]
    #[doc(alias = "children_low_usage")]
    pub fn claimed_below_bytes(&self) -> Protection {
        self.protection_settings.get().map_or(Protection::NONE, |settings| settings.claimed_below())
    }

    /// Returns whether any group directly below has protection set. If none has, nothing below is
    /// protected from reclaim of this group.
    pub(crate) fn has_claimants(&self) -> bool {
        self.protection_settings.get().is_some_and(|settings| !settings.claimants.lock().by_id.is_empty())
    }

    fn protection_settings(&self) -> &Arc<ProtectionSettings> {
        self.protection_settings.get_or_init(|| Arc::new(ProtectionSettings::new(self.node)))
    }

    fn change_protection(&self, change: impl FnOnce(&ProtectionSettings)) {
        let _changing = self.limit_lock.lock();
        if self.is_dead() {
            return;
        }
        change(self.protection_settings());
        self.update_claimants();
    }

    /// Adds the group to the parent's claimants or removes it: a claimant is a living child with
    /// protection. The caller holds the `limit_lock`.
    pub(crate) fn update_claimants(&self) {
        let (Some(settings), Some(parent)) = (self.protection_settings.get(), &self.parent) else { return };
        let mut claimants = parent.protection_settings().claimants.lock();
        if self.protection().is_none() {
            claimants.by_id.remove(&self.id());
        } else {
            claimants.by_id.insert(self.id(), Arc::clone(settings));
        }
        claimants.nr_uses_left = 0;
    }
}
