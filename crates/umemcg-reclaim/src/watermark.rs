//! The marks of a group between which background reclaim keeps its usage.
//!
//! Reclaim starts when usage reaches the *low* mark and stops when it is below the *high* mark. The
//! names are those of the zones, which count free memory: `low_wmark = limit − low_wmark_distance`,
//! `high_wmark = limit − high_wmark_distance`, so the low mark is the higher usage (mail
//! per-memcg-background-reclaim). A distance of 0 puts the mark at the limit: off.
//!
//! The same in another spelling: `wmark_ratio` in percent and `wmark_scale_factor` in
//! ten-thousandths of the limit, with names that count used memory: usage above `wmark_high`
//! starts, below `wmark_low` stops (`kernel-semantics` §5.5).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use umemcg_base::{Rank, RankedMutex};
use umemcg_group::UNLIMITED;

/// `wmark_scale_factor` of a new group: 0.5 % of the limit.
pub const SCALE_FACTOR_DEFAULT: u32 = 50;
/// Greatest `wmark_scale_factor`.
pub const SCALE_FACTOR_MAX: u32 = 1000;

/// The setting from which the marks are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
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

/// A group's rule for its marks, and the resulting usages.
#[derive(Debug)]
pub(crate) struct Watermarks {
    pub(crate) rule: RankedMutex<(Rule, u32)>,
    /// [`UNLIMITED`] while off. (A)
    pub(crate) start: AtomicU64,
    pub(crate) stop: AtomicU64,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self {
            rule: RankedMutex::new(Rank::Marks, (Rule::Distances { low: 0, high: 0 }, SCALE_FACTOR_DEFAULT)),
            start: AtomicU64::new(UNLIMITED),
            stop: AtomicU64::new(UNLIMITED),
        }
    }
}

/// Returns the usages at which a rule starts and stops below a limit; none when it is off, or when
/// the limit has no room for it.
pub(crate) fn apply((rule, scale_factor): (Rule, u32), limit: u64) -> Option<Marks> {
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
    /// Returns the usage at which background reclaim starts; [`UNLIMITED`] while it is off.
    pub(crate) fn start(&self) -> u64 {
        self.start.load(Relaxed)
    }

    /// Returns the usage below which background reclaim stops.
    pub(crate) fn stop(&self) -> u64 {
        self.stop.load(Relaxed)
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
    fn a_limit_too_small_or_unlimited_turns_distances_off() {
        let rule = (Rule::Distances { low: 4 * MIB, high: 5 * MIB }, 50);
        assert_eq!(apply(rule, 5 * MIB), None);
        assert_eq!(apply(rule, UNLIMITED), None);
        assert!(apply(rule, 5 * MIB + 1).is_some());
    }
}
