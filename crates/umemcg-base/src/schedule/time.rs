//! The schedule's time.

use std::ops::{Add, Sub};
use std::panic::Location;
use std::time::Duration;

use super::scheduler::{On, state, wait};

/// A point in the schedule's time, with the calls of the standard one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub(super) Duration);

impl Instant {
    /// Returns the present time.
    #[must_use]
    pub fn now() -> Self {
        Self(state().now)
    }

    /// Returns the time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// Returns the time from `earlier` to this, zero if it is later.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time from `earlier` to this, zero if it is later.
    #[must_use]
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Returns the time `by` later.
    #[must_use]
    pub fn checked_add(&self, by: Duration) -> Option<Self> {
        self.0.checked_add(by).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Sleeps for a duration of the schedule's time.
#[track_caller]
pub fn sleep(how_long: Duration) {
    let until = state().now + how_long;
    wait(On::Time, "time", Location::caller(), Some(until));
}
