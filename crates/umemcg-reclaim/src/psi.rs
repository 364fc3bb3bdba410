//! Time lost for lack of memory, as one group sees it: the arithmetic, without clock and threads
//! (`kernel-semantics` §7.4).
//!
//! *Some* is the time with at least one request stalled; *full* is the part of it with no other
//! request being worked on. Averages are taken over periods of two seconds. They are updated when a
//! count changes and when they are read, so the counts are constant between two updates, and the
//! lost time is spread over the periods evenly.

use std::time::Duration;

/// Length of a period.
pub const PERIOD: Duration = Duration::from_secs(2);
/// The decay of the averages over 10, 60 and 300 seconds in one period.
const KEPT: [f64; 3] = [1677.0 / 2048.0, 1981.0 / 2048.0, 2034.0 / 2048.0];

/// One line of `memory.pressure`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PressureLine {
    /// Percent of the time lost, over about 10, 60 and 300 seconds.
    pub averages: [f64; 3],
    /// Time lost, ever.
    pub total: Duration,
}

/// The figures of `memory.pressure`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[doc(alias = "psi")]
pub struct Pressure {
    /// At least one request was stalled.
    pub some: PressureLine,
    /// At least one request was stalled, and none was worked on.
    pub full: PressureLine,
}

#[derive(Debug, Default)]
struct Line {
    shown: PressureLine,
    /// The part of the total already in the averages.
    averaged: Duration,
}

impl Line {
    /// Ends this many whole periods.
    fn average(&mut self, periods: u32) {
        let lost = self.shown.total - self.averaged;
        self.averaged = self.shown.total;
        // The time may have been lost over slightly more than these periods.
        let share = (lost.as_secs_f64() / (PERIOD.as_secs_f64() * f64::from(periods))).min(1.0);
        for (average, kept) in self.shown.averages.iter_mut().zip(KEPT) {
            let kept = kept.powi(periods.min(1 << 20) as i32);
            *average = *average * kept + 100.0 * share * (1.0 - kept);
        }
    }
}

/// A group's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Stalled.
    pub stalled: u32,
    /// Worked on.
    pub working: u32,
}

impl RequestCounts {
    /// Returns the counts with `stalled` more (or fewer) stalled requests, and `working` more (or
    /// fewer) in progress.
    ///
    /// # Panics
    /// When more stalls or requests end than have begun.
    pub fn changed(self, stalled: i32, working: i32) -> Self {
        Self {
            stalled: self.stalled.checked_add_signed(stalled).expect("a stall that ends has begun"),
            working: self.working.checked_add_signed(working).expect("work that ends has begun"),
        }
    }
}

/// The time lost by a group's requests.
#[derive(Debug, Default)]
#[doc(alias = "psi_group")]
pub struct StallMeter {
    /// Everything before is counted.
    counted_to: Duration,
    /// Every period ended before is averaged.
    averaged_to: Duration,
    some: Line,
    full: Line,
}

impl StallMeter {
    /// Returns the time lost until `now`, measured from any fixed origin, with `counts` since the
    /// last call.
    pub fn read(&mut self, now: Duration, counts: RequestCounts) -> Pressure {
        self.count_to(now, counts);
        Pressure { some: self.some.shown, full: self.full.shown }
    }

    /// Counts the time until `now`, with `counts` since the last call.
    pub fn count_to(&mut self, now: Duration, counts: RequestCounts) {
        let now = now.max(self.counted_to);
        let passed = now - self.counted_to;
        self.counted_to = now;
        if counts.stalled > 0 {
            self.some.shown.total += passed;
            if counts.working == 0 {
                self.full.shown.total += passed;
            }
        }
        let periods = (now - self.averaged_to).as_millis() / PERIOD.as_millis();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        if periods > 0 {
            self.some.average(periods);
            self.full.average(periods);
            self.averaged_to += PERIOD * periods;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A meter with its counts.
    #[derive(Default)]
    struct Metered(StallMeter, RequestCounts);

    impl Metered {
        fn change(&mut self, now: Duration, stalled: i32, working: i32) {
            self.0.count_to(now, self.1);
            self.1 = self.1.changed(stalled, working);
        }

        fn read(&mut self, now: Duration) -> Pressure {
            self.0.read(now, self.1)
        }
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_stall_is_full_until_a_worker_works() {
        let mut meter = Metered::default();
        meter.change(s(10), 1, 0);
        meter.change(s(11), 1, 0);
        meter.change(s(13), 0, 1);
        meter.change(s(16), -2, 0);
        meter.change(s(20), 0, -1);
        let pressure = meter.read(s(30));
        assert_eq!((pressure.some.total, pressure.full.total), (s(6), s(3)));
    }

    #[test]
    fn averages_come_to_what_is_lost_and_go_to_nothing() {
        let mut meter = Metered::default();
        meter.change(s(100), 1, 0);
        let after_a_period = meter.read(s(102)).some.averages;
        let expected = KEPT.map(|kept| 100.0 * (1.0 - kept));
        assert!(after_a_period.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.01), "{after_a_period:?}");
        assert!(meter.read(s(3000)).some.averages.iter().all(|&average| average > 99.0));
        meter.change(s(3000), -1, 0);
        let [ten, _, long] = meter.read(s(3060)).some.averages;
        assert!(ten < 1.0 && long > 70.0, "{ten} {long}");
        assert!(meter.read(s(9000)).some.averages.iter().all(|&average| average < 0.01));
        assert_eq!(meter.read(s(9000)).some.total, s(2900));
    }

    #[test]
    fn half_of_the_time_is_fifty_percent() {
        let mut meter = Metered::default();
        for second in 0..600 {
            meter.change(s(second), if second % 2 == 0 { 1 } else { -1 }, 0);
        }
        let averages = meter.read(s(600)).some.averages;
        assert!((averages[0] - 50.0).abs() < 1.0 && (averages[1] - 50.0).abs() < 1.0, "{averages:?}");
    }

    proptest! {
        /// Compares with a model checking every millisecond.
        #[test]
        fn totals_are_those_of_a_model_that_counts_every_millisecond(
            steps in proptest::collection::vec((0u64..5000, 0usize..6, any::<bool>()), 1..60),
        ) {
            let (mut meter, mut now) = (Metered::default(), 0);
            let (mut stalled, mut working, mut some, mut full) = (0i32, 0i32, 0u64, 0u64);
            for (gap, what, read) in steps {
                for _ in 0..gap {
                    now += 1;
                    some += u64::from(stalled > 0);
                    full += u64::from(stalled > 0 && working == 0);
                }
                let (more_stalled, more_working) = match what {
                    0 => (1, 0),
                    1 if stalled > 0 => (-1, 0),
                    2 => (0, 1),
                    3 if working > 0 => (0, -1),
                    4 if working > 0 => (1, -1),
                    5 if stalled > 0 => (-1, 1),
                    _ => (0, 0),
                };
                stalled += more_stalled;
                working += more_working;
                meter.change(Duration::from_millis(now), more_stalled, more_working);
                if read {
                    let pressure = meter.read(Duration::from_millis(now));
                    prop_assert_eq!(pressure.some.total, Duration::from_millis(some));
                    prop_assert_eq!(pressure.full.total, Duration::from_millis(full));
                    for line in [pressure.some, pressure.full] {
                        prop_assert!(line.averages.iter().all(|average| (0.0..=100.0).contains(average)));
                    }
                }
            }
        }
    }
}
