//! The marks of a group between which background reclaim keeps its usage.
//!
//! Reclaim starts when usage reaches the *low* mark and stops when it is below the *high* mark. The names are those of the
//! zones, which count free memory: `low_wmark = limit − low_wmark_distance`, `high_wmark = limit − high_wmark_distance`, so
//! the low mark is the higher usage (mail per-memcg-background-reclaim). A distance of 0 puts the mark at the limit: off.
//!
//! The same in another spelling: `wmark_ratio` in percent and `wmark_scale_factor` in ten-thousandths of the limit, with
//! names that count used memory: usage above `wmark_high` starts, below `wmark_low` stops (`kernel-semantics` §5.5).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::sync::Mutex;
use umemcg_group::{Group, UNLIMITED};

use crate::lruvec::ReclaimPart;
use crate::reclaim::Reclaimer;

/// `wmark_scale_factor` of a new group: 0.5 % of the limit.
pub const SCALE_FACTOR_DEFAULT: u32 = 50;
/// Greatest `wmark_scale_factor`.
pub const SCALE_FACTOR_MAX: u32 = 1000;

/// How the marks are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Bytes below the limit. Both 0: off.
    Distances { low: u64, high: u64 },
    /// Percent of the limit, never 0.
    Ratio(u32),
}

/// The marks do not fit the limit or each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the marks do not fit the limit or each other; set the high distance first, and zero the low one first"
)]
pub struct InvalidMarks;

/// The marks of a group, as usages in bytes; both at the limit when background reclaim is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Usage at which background reclaim starts.
    pub low: u64,
    /// Usage below which it stops.
    pub high: u64,
}

/// A group's rule for its marks, and what comes of it.
#[derive(Debug)]
pub(crate) struct Watermarks {
    rule: Mutex<(Rule, u32)>,
    /// [`UNLIMITED`] while off. (A)
    start: AtomicU64,
    stop: AtomicU64,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self {
            rule: Mutex::new((Rule::Distances { low: 0, high: 0 }, SCALE_FACTOR_DEFAULT)),
            start: AtomicU64::new(UNLIMITED),
            stop: AtomicU64::new(UNLIMITED),
        }
    }
}

/// The usages at which a rule starts and stops below a limit; none when it is off, or when the limit has no room for it.
fn apply((rule, scale_factor): (Rule, u32), limit: u64) -> Option<Marks> {
    match rule {
        Rule::Distances { low: 0, .. } => None,
        Rule::Distances { low, high } => {
            let room = limit != UNLIMITED && high < limit;
            room.then(|| Marks { low: limit - low, high: limit - high })
        }
        Rule::Ratio(_) if limit == UNLIMITED => None,
        Rule::Ratio(percent) => {
            let part = |of: u64, by: u64| (u128::from(limit) * u128::from(of) / u128::from(by)) as u64;
            let start = part(u64::from(percent), 100);
            Some(Marks { low: start, high: start.saturating_sub(part(u64::from(scale_factor), 10_000)) })
        }
    }
}

impl Watermarks {
    /// Usage at which background reclaim starts; [`UNLIMITED`] while it is off.
    pub(crate) fn start(&self) -> u64 {
        self.start.load(Relaxed)
    }

    /// Usage below which background reclaim stops.
    pub(crate) fn stop(&self) -> u64 {
        self.stop.load(Relaxed)
    }
}

impl Reclaimer {
    fn marks_of<'a>(&self, group: &'a Arc<Group>) -> &'a Watermarks {
        &ReclaimPart::of(group, self.nr_nodes()).background().marks
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
            self.listen_for_pressure(group);
        }
        // Looks at the usage of now, after the marks stand.
        group.set_pressure_mark(
            applied.low.min(ReclaimPart::of(group, self.nr_nodes()).background().high_limit()),
        );
    }

    /// Whether background reclaim is on for a group.
    pub(crate) fn has_marks(&self, group: &Arc<Group>) -> bool {
        ReclaimPart::if_present(group).is_some_and(|part| part.background().marks.start() != UNLIMITED)
    }

    /// Usage at which background reclaim starts; [`UNLIMITED`] while it is off.
    pub(crate) fn low_mark(&self, group: &Group) -> u64 {
        ReclaimPart::if_present(group).map_or(UNLIMITED, |part| part.background().marks.start())
    }

    /// Computes a group's marks again. To be called after every change of its limit.
    #[doc(alias = "setup_per_memcg_wmarks")]
    pub fn limit_changed(&self, group: &Arc<Group>) {
        let Some(part) = ReclaimPart::if_present(group) else { return };
        let marks = &part.background().marks;
        let rule = marks.rule.lock();
        self.put_marks(group, marks, *rule);
    }

    /// The marks of a group: its limit less the distances, whether or not that is enough to turn background reclaim on.
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

    /// The usage at which background reclaim stops; [`UNLIMITED`] for a group without it.
    pub fn high_mark(&self, group: &Arc<Group>) -> u64 {
        let is_on =
            ReclaimPart::if_present(group).is_some_and(|part| part.background().marks.start() != UNLIMITED);
        if is_on { self.marks(group).high } else { UNLIMITED }
    }

    /// `low_wmark_distance` in bytes: of the mark at which background reclaim starts.
    pub fn low_wmark_distance(&self, group: &Arc<Group>) -> u64 {
        match self.marks_of(group).rule.lock().0 {
            Rule::Distances { low, .. } => low,
            Rule::Ratio(_) => group.max_bytes() - self.marks_of(group).start().min(group.max_bytes()),
        }
    }

    /// `high_wmark_distance` in bytes: of the mark below which background reclaim stops.
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

    /// `wmark_ratio` in percent; 0 when background reclaim is off or given by distances.
    pub fn wmark_ratio(&self, group: &Arc<Group>) -> u32 {
        match self.marks_of(group).rule.lock().0 {
            Rule::Ratio(percent) => percent,
            Rule::Distances { .. } => 0,
        }
    }

    /// Sets `wmark_ratio`: background reclaim starts above that share of the limit. 0 turns it off. Replaces distances.
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

    /// `wmark_scale_factor` in ten-thousandths of the limit.
    pub fn wmark_scale_factor(&self, group: &Arc<Group>) -> u32 {
        self.marks_of(group).rule.lock().1
    }

    /// Sets `wmark_scale_factor`: how far below its start background reclaim stops, when a ratio is set.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_mails_numbers() {
        let marks = apply((Rule::Distances { low: 40 * MIB, high: 50 * MIB }, 50), 500 * MIB).unwrap();
        assert_eq!((marks.low, marks.high), (482_344_960, 471_859_200));
    }

    #[test]
    fn the_vendors_numbers() {
        let limit = 10 << 30;
        let marks = apply((Rule::Ratio(95), 20), limit).unwrap();
        assert_eq!(marks.low, limit * 95 / 100);
        assert_eq!(marks.low - marks.high, limit * 20 / 10_000);
    }

    #[test]
    fn a_limit_without_room_for_the_distances_or_without_end_turns_them_off() {
        let rule = (Rule::Distances { low: 4 * MIB, high: 5 * MIB }, 50);
        assert_eq!(apply(rule, 5 * MIB), None);
        assert_eq!(apply(rule, UNLIMITED), None);
        assert!(apply(rule, 5 * MIB + 1).is_some());
    }
}
