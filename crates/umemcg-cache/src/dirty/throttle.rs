//! The arithmetic of throttling, without clocks, locks and groups: bytes, bytes per second,
//! durations.
//!
//! Below the *free run* point, half-way between the two thresholds, no writer waits. From there to
//! the limit writers are paced: their rate is the store's, times a *position ratio* that is 2 at
//! the free run point, 1 at the setpoint half-way to the limit and 0 at the limit, and flat about
//! the setpoint, so that the amount of dirty data settles there and the rate at the store's
//! (`kernel-semantics` §6.3; mail per-cgroup-dirty-limits).
//!
//! Two things are simpler than in Linux, which paces single tasks. Here a group's writers to one
//! store share one virtual clock ([`PacingClock`]): each write reserves the time that the store
//! needs for it, so the group as a whole has the rate, however many writers it has, and no rate of
//! single tasks has to be estimated. And since write-back serves tenants with groups over their
//! threshold in turn, and these groups within a tenant, the store is divided in the same way. Other
//! tenants' writers to the group's pages never use that clock: each such tenant has another one
//! (see `dirty::paced_writers`).

use std::time::Duration;

/// Longest single wait of a writer before it checks again.
#[doc(alias = "MAX_PAUSE")]
pub const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Shorter waits are not worth a timer: they add up until they are.
pub const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Least share of its rate left to a paced writer; at the limit itself it is held.
pub const POSITION_RATIO_MIN: f64 = 1.0 / 32.0;
/// The factor on the store's rate at the point where pacing begins.
pub const POSITION_RATIO_MAX: f64 = 2.0;
/// The longest time that one write reserves: long enough, as a waiting thread checks again anyway.
const RESERVED_SECONDS_MAX: f64 = 3600.0;
/// The smoothed limit sinks by one part of this many of its distance in each [`LIMIT_INTERVAL`].
const LIMIT_SINKS_BY: u64 = 32;
/// The interval at which the smoothed limit sinks.
pub const LIMIT_INTERVAL: Duration = Duration::from_millis(200);

/// A pair of thresholds in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Above it write-back works on the group.
    pub background: u64,
    /// Above it no writer of the group dirties anything.
    pub foreground: u64,
}

impl Thresholds {
    /// Returns the point half-way between the two: below it no writer waits.
    #[doc(alias = "dirty_freerun_ceiling")]
    pub fn free_run(self) -> u64 {
        self.background / 2 + self.foreground / 2 + (self.background & self.foreground & 1)
    }
}

/// Returns the factor on the store's rate while `dirty` bytes lie between the free run point and
/// the limit: `1 + ((setpoint − dirty) / (limit − setpoint))³` in [0, 2], where the setpoint is
/// half-way between those two.
#[doc(alias = "pos_ratio_polynom")]
pub fn position_ratio(dirty: u64, free_run: u64, limit: u64) -> f64 {
    if dirty >= limit {
        return 0.0;
    }
    let (dirty, free_run, limit) = (dirty as f64, free_run as f64, limit as f64);
    let setpoint = f64::midpoint(free_run, limit);
    let x = (setpoint - dirty) / (limit - setpoint).max(1.0);
    (1.0 + x * x * x).clamp(0.0, POSITION_RATIO_MAX)
}

/// Returns the bytes a second for a group with one part of `nr_sharing` of a store that takes
/// `bandwidth`.
pub fn paced_rate(bandwidth: u64, position_ratio: f64, nr_sharing: u64) -> f64 {
    let rate = bandwidth as f64 * position_ratio.max(POSITION_RATIO_MIN) / nr_sharing.max(1) as f64;
    rate.max(1.0)
}

/// Returns the wait of a writer at the limit before it checks again: until the store has probably
/// brought the group down to `free_run`, at least [`PAUSE_MIN`] and at most [`PAUSE_MAX`].
pub fn hold(dirty: u64, free_run: u64, rate: u64) -> Duration {
    let excess = dirty.saturating_sub(free_run) as f64;
    let seconds = (excess / rate.max(1) as f64).min(PAUSE_MAX.as_secs_f64());
    Duration::from_secs_f64(seconds).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// A limit that follows its threshold up immediately and down slowly, so that the writers of a
/// group at its limit are not stopped when the threshold falls with the amount of free memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[doc(alias = "dirty_limit")]
pub struct SmoothedLimit {
    limit: u64,
    /// The time at which it last sank.
    at: Duration,
}

impl SmoothedLimit {
    /// Returns the limit now, for a threshold and the number of dirty bytes.
    #[doc(alias = "update_dirty_limit")]
    pub fn update(&mut self, now: Duration, foreground: u64, dirty: u64) -> u64 {
        if self.limit <= foreground {
            *self = Self { limit: foreground, at: now };
            return foreground;
        }
        let floor = foreground.max(dirty);
        let nr = now.saturating_sub(self.at).as_millis() / LIMIT_INTERVAL.as_millis();
        // Beyond this many steps nothing is left of any distance.
        for _ in 0..nr.min(2048) {
            self.limit -= self.limit.saturating_sub(floor).div_ceil(LIMIT_SINKS_BY);
        }
        self.at += LIMIT_INTERVAL * u32::try_from(nr).unwrap_or(u32::MAX);
        self.limit.max(foreground)
    }
}

/// The virtual clock of some writers to one store: the time at which their writes are over at their
/// rate.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PacingClock {
    until: Duration,
    /// The rate of the last [`pass`](Self::pass), in bytes a second.
    rate: f64,
}

impl PacingClock {
    /// Reserves the time for `bytes` at `rate` bytes a second. Returns the end of the reserved
    /// time. An end less than [`PAUSE_MIN`] away need not be waited for: the next write pays for
    /// it.
    pub fn reserve(&mut self, now: Duration, bytes: u64, rate: f64) -> Duration {
        let cost = Duration::from_secs_f64((bytes as f64 / rate).min(RESERVED_SECONDS_MAX));
        self.until = self.until.max(now) + cost;
        self.until
    }

    /// Lets a writer of `bytes` go on if less than [`PAUSE_MIN`] of the reserved time is left, and
    /// reserves the time for them. Otherwise returns the wait before the writer asks again. Waiting
    /// writers reserve nothing, so their number makes no difference. The time left follows the
    /// rate: it is the time that the bytes before the writer take from now on.
    pub fn pass(&mut self, now: Duration, bytes: u64, rate: f64) -> Option<Duration> {
        let left = self.until.saturating_sub(now).as_secs_f64() * self.rate / rate;
        let left = Duration::from_secs_f64(left.min(RESERVED_SECONDS_MAX));
        (self.until, self.rate) = (now + left, rate);
        if left >= PAUSE_MIN {
            return Some(left.min(PAUSE_MAX));
        }
        self.reserve(now, bytes, rate);
        None
    }

    /// Returns whether everything reserved is over.
    pub fn is_idle(self, now: Duration) -> bool {
        self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_free_run_ends_half_way_between_the_thresholds() {
        let at = |background, foreground| Thresholds { background, foreground }.free_run();
        assert_eq!((at(10, 20), at(0, 7), at(3, 5), at(u64::MAX, u64::MAX)), (15, 3, 4, u64::MAX));
    }

    #[test]
    fn the_position_ratio_at_points_worked_out_by_hand() {
        // Free run 60, limit 100: setpoint 80, so x = (80 − dirty) / 20.
        for (dirty, ratio) in [
            (0, 2.0),
            (60, 2.0),
            (65, 1.421_875),
            (70, 1.125),
            (75, 1.015_625),
            (80, 1.0),
            (85, 0.984_375),
            (90, 0.875),
            (95, 0.578_125),
            (99, 0.142_625),
            (100, 0.0),
            (500, 0.0),
        ] {
            let got = position_ratio(dirty * MIB, 60 * MIB, 100 * MIB);
            assert!((got - ratio).abs() < 1e-9, "{dirty}: {got} for {ratio}");
        }
        assert_eq!(position_ratio(7, 7, 7), 0.0, "no room between them");
    }

    #[test]
    fn a_rate_is_a_share_of_the_stores_and_never_nothing() {
        assert_eq!(paced_rate(8 << 20, 1.0, 1), (8 << 20) as f64);
        assert_eq!(paced_rate(8 << 20, 1.5, 3), (4 << 20) as f64);
        assert_eq!(paced_rate(32 << 20, 0.0, 1), (1 << 20) as f64);
        assert_eq!(paced_rate(0, 1.0, 0), 1.0);
    }

    #[test]
    fn a_hold_lasts_as_long_as_the_store_needs_within_bounds() {
        assert_eq!(hold(10 * MIB, 9 * MIB, 20 * MIB), MS(50));
        assert_eq!(hold(10 * MIB, 9 * MIB, MIB), PAUSE_MAX);
        assert_eq!(hold(10 * MIB, 9 * MIB, 1 << 40), PAUSE_MIN);
        assert_eq!(hold(9 * MIB, 10 * MIB, 0), PAUSE_MIN);
    }

    #[test]
    fn the_smoothed_limit_jumps_up_and_sinks_by_a_32nd_each_200_ms() {
        let mut limit = SmoothedLimit::default();
        assert_eq!(limit.update(MS(0), 3200, 0), 3200);
        assert_eq!(limit.update(MS(100), 6400, 0), 6400);
        assert_eq!(limit.update(MS(200), 3200, 0), 6400, "not yet");
        assert_eq!(limit.update(MS(300), 3200, 0), 6300);
        // 6300 − ⌈3100/32⌉ = 6203; 6203 − ⌈3003/32⌉ = 6109.
        assert_eq!(limit.update(MS(700), 3200, 0), 6109);
        assert_eq!(limit.update(MS(900), 3200, 6109), 6109, "not below what is dirty");
        assert_eq!(limit.update(MS(3_600_000), 3200, 0), 3200);
        assert_eq!(limit.update(MS(3_600_000), 9999, 0), 9999);
    }

    #[test]
    fn writes_of_all_threads_are_paid_for_one_after_the_other() {
        let mut clock = PacingClock::default();
        let rate = (4 * MIB) as f64;
        assert_eq!(clock.reserve(MS(1000), MIB, rate), MS(1250));
        assert_eq!(clock.reserve(MS(1000), MIB, rate), MS(1500));
        assert!(!clock.is_idle(MS(1499)) && clock.is_idle(MS(1500)));
        assert_eq!(clock.reserve(MS(9000), 4096, rate) - MS(9000), Duration::from_nanos(976_562));
    }

    #[test]
    fn writers_pass_one_by_one_however_many_wait() {
        let mut clock = PacingClock::default();
        let rate = (4 * MIB) as f64;
        assert_eq!(clock.pass(MS(1000), MIB, rate), None);
        for _ in 0..100 {
            assert_eq!(clock.pass(MS(1000), MIB, rate), Some(PAUSE_MAX));
        }
        assert_eq!(clock.pass(MS(1200), MIB, rate), Some(MS(50)), "a quarter of a second in all");
        assert_eq!(clock.pass(MS(1200), MIB, 2.0 * rate), Some(MS(25)), "the store is faster now");
        assert_eq!(clock.pass(MS(1225), MIB, rate), None);
        assert_eq!(clock.pass(MS(1225), MIB, rate), Some(PAUSE_MAX), "the next one waits again");
    }

    #[test]
    fn small_writes_pass_until_they_add_up() {
        let mut clock = PacingClock::default();
        // A millisecond each.
        let pass = |clock: &mut PacingClock| clock.pass(MS(5), 1000, 1e6);
        assert!((0..10).all(|_| pass(&mut clock).is_none()));
        assert!(pass(&mut clock).is_some());
    }

    #[test]
    fn a_writer_at_the_controllers_rate_settles_at_the_setpoint() {
        // A store of 10 MiB/s, a group of 8 MiB with a background of 4: free run 6, setpoint 7. In
        // steps of a millisecond.
        let thresholds = Thresholds { background: 4 * MIB, foreground: 8 * MIB };
        let (bandwidth, free_run) = (10 * MIB, thresholds.free_run());
        let (mut dirty, mut highest) = (0f64, 0f64);
        for step in 0..20_000 {
            let ratio = position_ratio(dirty as u64, free_run, thresholds.foreground);
            let rate = if dirty <= free_run as f64 { 1e9 } else { paced_rate(bandwidth, ratio, 1) };
            dirty += (rate - bandwidth as f64) / 1000.0;
            highest = highest.max(dirty);
            if step > 10_000 {
                assert!((dirty / MIB as f64 - 7.0).abs() < 0.3, "{dirty} at {step}");
            }
        }
        assert!(highest < thresholds.foreground as f64);
    }
}
