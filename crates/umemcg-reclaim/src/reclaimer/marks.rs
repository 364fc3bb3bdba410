//! Reading and changing the marks of a group; [`crate::watermark`] explains them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use umemcg_group::{Group, UNLIMITED};

use super::Reclaimer;
use crate::group_reclaim::GroupReclaim;
use crate::kswapd::listen_for_pressure;
use crate::watermark::{InvalidMarks, Marks, Rule, SCALE_FACTOR_MAX, Watermarks, apply};

impl Reclaimer {
    fn marks_of<'a>(&self, group: &'a Arc<Group>) -> &'a Watermarks {
        &GroupReclaim::of(group).background().marks
    }

    /// Changes a group's rule; `change` gets the old rule, the scale factor and the limit.
    fn change_marks(
        &self,
        group: &Arc<Group>,
        change: impl FnOnce((Rule, u32), u64) -> Result<(Rule, u32), InvalidMarks>,
    ) -> Result<(), InvalidMarks> {
        let marks = self.marks_of(group);
        let mut rule = marks.rule.lock();
        *rule = change(*rule, group.max_bytes())?;
        self.put_marks(group, marks, *rule);
        Ok(())
    }

    fn put_marks(&self, group: &Arc<Group>, marks: &Watermarks, rule: (Rule, u32)) {
        let applied = apply(rule, group.max_bytes()).unwrap_or(Marks { low: UNLIMITED, high: UNLIMITED });
        marks.start.store(applied.low, Relaxed);
        marks.stop.store(applied.high, Relaxed);
        if applied.low != UNLIMITED {
            listen_for_pressure(self.kswapd_queue(), group);
        }
        // Checks the present usage, after the marks are set.
        group.set_pressure_mark(applied.low.min(GroupReclaim::of(group).background().high_limit()));
    }

    /// Returns whether background reclaim is on for a group.
    pub(crate) fn has_marks(&self, group: &Arc<Group>) -> bool {
        GroupReclaim::if_present(group).is_some_and(|part| part.background().marks.start() != UNLIMITED)
    }

    /// Returns the usage at which background reclaim starts; [`UNLIMITED`] while it is off.
    pub(crate) fn low_mark(&self, group: &Group) -> u64 {
        GroupReclaim::if_present(group).map_or(UNLIMITED, |part| part.background().marks.start())
    }

    /// Computes a group's marks again. Must be called after every change of its limit.
    #[doc(alias = "setup_per_memcg_wmarks")]
    pub fn limit_changed(&self, group: &Arc<Group>) {
        let Some(part) = GroupReclaim::if_present(group) else { return };
        let marks = &part.background().marks;
        let rule = marks.rule.lock();
        self.put_marks(group, marks, *rule);
    }

    /// Returns the marks of a group: its limit less the distances, whether or not background
    /// reclaim is on.
    pub fn marks(&self, group: &Arc<Group>) -> Marks {
        let limit = group.max_bytes();
        let below =
            |distance: u64| if limit == UNLIMITED || distance >= limit { limit } else { limit - distance };
        let rule = *self.marks_of(group).rule.lock();
        match rule.0 {
            Rule::Distances { low, high } => Marks { low: below(low), high: below(high) },
            Rule::Ratio(_) => apply(rule, limit).unwrap_or(Marks { low: limit, high: limit }),
        }
    }

    /// Returns the usage at which background reclaim stops; [`UNLIMITED`] for a group without it.
    pub fn high_mark(&self, group: &Arc<Group>) -> u64 {
        let is_on =
            GroupReclaim::if_present(group).is_some_and(|part| part.background().marks.start() != UNLIMITED);
        if is_on { self.marks(group).high } else { UNLIMITED }
    }

    /// Returns `low_wmark_distance` in bytes: of the mark at which background reclaim starts.
    pub fn low_wmark_distance(&self, group: &Arc<Group>) -> u64 {
        match self.marks_of(group).rule.lock().0 {
            Rule::Distances { low, .. } => low,
            Rule::Ratio(_) => group.max_bytes() - self.marks_of(group).start().min(group.max_bytes()),
        }
    }

    /// Returns `high_wmark_distance` in bytes: of the mark below which background reclaim stops.
    pub fn high_wmark_distance(&self, group: &Arc<Group>) -> u64 {
        match self.marks_of(group).rule.lock().0 {
            Rule::Distances { high, .. } => high,
            Rule::Ratio(_) => group.max_bytes() - self.marks_of(group).stop().min(group.max_bytes()),
        }
    }

    /// Sets `high_wmark_distance`; replaces a ratio.
    ///
    /// # Errors
    /// [`InvalidMarks`] when it is the limit or more, or not above a low distance.
    pub fn set_high_wmark_distance(&self, group: &Arc<Group>, bytes: u64) -> Result<(), InvalidMarks> {
        self.change_marks(group, |(rule, scale_factor), limit| {
            let low = match rule {
                Rule::Distances { low, .. } => low,
                Rule::Ratio(_) => 0,
            };
            let fits = bytes < limit && bytes >= low && (low == 0 || bytes != low);
            fits.then_some((Rule::Distances { low, high: bytes }, scale_factor)).ok_or(InvalidMarks)
        })
    }

    /// Sets `low_wmark_distance`; 0 turns background reclaim off. Replaces a ratio.
    ///
    /// # Errors
    /// [`InvalidMarks`] when it is the limit or more, or not below the high distance.
    pub fn set_low_wmark_distance(&self, group: &Arc<Group>, bytes: u64) -> Result<(), InvalidMarks> {
        self.change_marks(group, |(rule, scale_factor), limit| {
            let high = match rule {
                Rule::Distances { high, .. } => high,
                Rule::Ratio(_) => 0,
            };
            let fits = bytes < limit && bytes <= high && (high == 0 || bytes != high);
            fits.then_some((Rule::Distances { low: bytes, high }, scale_factor)).ok_or(InvalidMarks)
        })
    }

    /// Returns `wmark_ratio` in percent; 0 when background reclaim is off or given by distances.
    pub fn wmark_ratio(&self, group: &Arc<Group>) -> u32 {
        match self.marks_of(group).rule.lock().0 {
            Rule::Ratio(percent) => percent,
            Rule::Distances { .. } => 0,
        }
    }

    /// Sets `wmark_ratio`: background reclaim starts above this share of the limit. 0 turns it off.
    /// Replaces distances.
    ///
    /// # Errors
    /// [`InvalidMarks`] above 100.
    pub fn set_wmark_ratio(&self, group: &Arc<Group>, percent: u32) -> Result<(), InvalidMarks> {
        self.change_marks(group, |(_, scale_factor), _| match percent {
            0 => Ok((Rule::Distances { low: 0, high: 0 }, scale_factor)),
            1..=100 => Ok((Rule::Ratio(percent), scale_factor)),
            _ => Err(InvalidMarks),
        })
    }

    /// Returns `wmark_scale_factor` in ten-thousandths of the limit.
    pub fn wmark_scale_factor(&self, group: &Arc<Group>) -> u32 {
        self.marks_of(group).rule.lock().1
    }

    /// Sets `wmark_scale_factor`: how far below its start background reclaim stops, when a ratio is
    /// set.
    ///
    /// # Errors
    /// [`InvalidMarks`] when it is 0 or above [`SCALE_FACTOR_MAX`].
    pub fn set_wmark_scale_factor(
        &self,
        group: &Arc<Group>,
        ten_thousandths: u32,
    ) -> Result<(), InvalidMarks> {
        self.change_marks(group, |(rule, _), _| {
            let fits = (1..=SCALE_FACTOR_MAX).contains(&ten_thousandths);
            fits.then_some((rule, ten_thousandths)).ok_or(InvalidMarks)
        })
    }
}
