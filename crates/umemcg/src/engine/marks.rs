//! Watermarks: the usage levels where background reclaim of a group starts and stops.

use std::sync::Arc;

use umemcg_group::Group;
use umemcg_reclaim::{InvalidMarks, Marks};

use super::Engine;

impl Engine {
    /// Returns the marks of a group in bytes of usage. The low mark is the *higher* usage: room
    /// gets low there.
    pub fn marks(&self, group: &Arc<Group>) -> Marks {
        self.reclaimer().marks(group)
    }

    /// Returns `memory.high` in bytes.
    pub fn high_bytes(&self, group: &Arc<Group>) -> u64 {
        self.reclaimer().high(group)
    }

    /// Returns how many bytes below the limit background reclaim starts; 0 if it is off.
    pub fn low_wmark_distance(&self, group: &Arc<Group>) -> u64 {
        self.reclaimer().low_wmark_distance(group)
    }

    /// Returns how many bytes below the limit background reclaim stops.
    pub fn high_wmark_distance(&self, group: &Arc<Group>) -> u64 {
        self.reclaimer().high_wmark_distance(group)
    }

    /// Sets how many bytes below the limit background reclaim stops. Set it before the low
    /// distance, which must be smaller. Replaces a ratio. Does not block.
    ///
    /// # Errors
    /// [`InvalidMarks`] when it is the limit or more, or not above a low distance.
    pub fn set_high_wmark_distance(&self, group: &Arc<Group>, bytes: u64) -> Result<(), InvalidMarks> {
        self.reclaimer().set_high_wmark_distance(group, bytes)
    }

    /// Sets how many bytes below the limit background reclaim starts; 0 turns it off. Replaces a
    /// ratio. Does not block.
    ///
    /// # Errors
    /// [`InvalidMarks`] when it is the limit or more, or not below the high distance.
    pub fn set_low_wmark_distance(&self, group: &Arc<Group>, bytes: u64) -> Result<(), InvalidMarks> {
        self.reclaimer().set_low_wmark_distance(group, bytes)
    }

    /// Sets the share of the limit, in percent, above which background reclaim starts; 0 turns it
    /// off. Replaces distances. Does not block.
    ///
    /// # Errors
    /// [`InvalidMarks`] above 100.
    pub fn set_wmark_ratio(&self, group: &Arc<Group>, percent: u32) -> Result<(), InvalidMarks> {
        self.reclaimer().set_wmark_ratio(group, percent)
    }

    /// Sets how far below its start background reclaim stops, in ten-thousandths of the limit, when
    /// a ratio is set. Does not block.
    ///
    /// # Errors
    /// [`InvalidMarks`] when it is 0 or above 1,000.
    pub fn set_wmark_scale_factor(
        &self,
        group: &Arc<Group>,
        ten_thousandths: u32,
    ) -> Result<(), InvalidMarks> {
        self.reclaimer().set_wmark_scale_factor(group, ten_thousandths)
    }
}
