//! Samples of several sides, taken in turns, and their statistics.
//!
//! Sides are compared within a round, never across rounds: the ratio is the median of the rounds'
//! ratios, so that other load of the machine hits both sides of a pair. The order within a round
//! rotates, because the first side finds the processor's caches as the other left them.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::progress::Progress;

/// The confidence of a bound.
const CONFIDENCE: f64 = 0.95;

/// One side of a comparison: its name, and how to take one sample.
pub struct Side<'a> {
    /// Its name in the table.
    pub name: String,
    /// Takes one sample.
    pub sample: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Side<'a> {
    /// Creates a side with its name.
    pub fn new(name: impl Into<String>, sample: impl FnMut() -> f64 + 'a) -> Self {
        Self { name: name.into(), sample: Box::new(sample) }
    }
}

/// All samples of one side, in the order of the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Samples {
    /// The side's name.
    pub name: String,
    /// Median of the samples.
    pub median: f64,
    /// Least of them.
    pub min: f64,
    /// Greatest of them.
    pub max: f64,
    /// The samples.
    pub samples: Vec<f64>,
}

impl Samples {
    /// Samples of a side; there must be one at least.
    pub fn new(name: impl Into<String>, samples: Vec<f64>) -> Self {
        let sorted = sorted(&samples);
        Self {
            name: name.into(),
            median: median(&sorted),
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            samples,
        }
    }

    /// Returns the median of the rounds' ratios of this side to the other.
    pub fn ratio_to(&self, other: &Self) -> f64 {
        median(&sorted(&self.ratios_to(other)))
    }

    /// Returns the upper bound of the median of the ratios of all possible rounds, with 95 %
    /// confidence: the ratio of the least rank with a smaller chance of so many ratios below the
    /// median. No distribution is assumed. None for less than five rounds.
    #[cfg_attr(not(feature = "experiments"), allow(dead_code, reason = "only experiments ask for it"))]
    pub fn ratio_bound_above(&self, other: &Self) -> Option<f64> {
        let ratios = sorted(&self.ratios_to(other));
        // The chance that this many of `nr` ratios are below the median.
        let nr = ratios.len();
        let mut chance = 0.5_f64.powi(nr as i32);
        let mut at_most = 0.0;
        for (below, &ratio) in ratios.iter().enumerate() {
            at_most += chance;
            if at_most >= CONFIDENCE {
                return Some(ratio);
            }
            chance *= (nr - below) as f64 / (below + 1) as f64;
        }
        None
    }

    /// Returns the lower bound of that median, with the same confidence.
    #[cfg_attr(not(feature = "experiments"), allow(dead_code, reason = "only experiments ask for it"))]
    pub fn ratio_bound_below(&self, other: &Self) -> Option<f64> {
        // The ratios the other way round are the reciprocals, in the opposite order.
        other.ratio_bound_above(self).map(f64::recip)
    }

    /// Returns the mean and the standard deviation.
    #[cfg_attr(not(feature = "experiments"), allow(dead_code, reason = "only experiments ask for it"))]
    pub fn mean_and_deviation(&self) -> (f64, f64) {
        let nr = self.samples.len() as f64;
        let mean = self.samples.iter().sum::<f64>() / nr;
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        (mean, (squares / (nr - 1.0).max(1.0)).sqrt())
    }

    /// Returns each round's ratio of this side to the other.
    pub fn ratios_to(&self, other: &Self) -> Vec<f64> {
        self.samples.iter().zip(&other.samples).map(|(mine, theirs)| mine / theirs).collect()
    }
}

/// Takes `rounds` samples of each side in turns, after one uncounted sample of each.
pub fn alternate(rounds: usize, sides: Vec<Side<'_>>, progress: &Progress) -> Vec<Samples> {
    let mut sides = sides;
    let mut samples = vec![Vec::with_capacity(rounds); sides.len()];
    let nr_sides = sides.len();
    for round in 0..=rounds {
        for at in 0..nr_sides {
            let side = (round + at) % nr_sides;
            progress.show(&format!("round {round} of {rounds}: {}", sides[side].name));
            let sample = (sides[side].sample)();
            if round > 0 {
                samples[side].push(sample);
            }
        }
    }
    sides.into_iter().zip(samples).map(|(side, samples)| Samples::new(side.name, samples)).collect()
}

/// Returns the processor time of this thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the median of sorted values.
pub fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn sides_take_turns_and_the_first_round_does_not_count() {
        let order = RefCell::new(String::new());
        let side = |name: &'static str| {
            let order = &order;
            Side::new(name, move || {
                order.borrow_mut().push_str(name);
                order.borrow().len() as f64
            })
        };
        let samples = alternate(3, vec![side("a"), side("b")], &Progress::off());
        assert_eq!(*order.borrow(), "abbaabba");
        assert_eq!(samples[0].samples, [4.0, 5.0, 8.0]);
        assert_eq!(samples[1].samples, [3.0, 6.0, 7.0]);
    }

    #[test]
    fn the_bound_is_the_ratio_of_the_rank_that_chance_seldom_gets() {
        let with = |nr: usize| {
            let ours = Samples::new("ours", (1..=nr).map(|at| at as f64).collect());
            ours.ratio_bound_above(&Samples::new("theirs", vec![1.0; nr]))
        };
        // Ranks of the sign test, one-sided.
        assert_eq!([4, 5, 8, 15, 25].map(with), [None, Some(5.0), Some(7.0), Some(12.0), Some(18.0)]);
    }

    #[test]
    fn the_bounds_of_both_sides_lie_around_the_median() {
        let nr = 15;
        let ours = Samples::new("ours", (1..=nr).map(f64::from).collect());
        let one = Samples::new("theirs", vec![1.0; nr as usize]);
        let bounds = (ours.ratio_bound_below(&one), ours.ratio_to(&one), ours.ratio_bound_above(&one));
        assert_eq!(bounds, (Some(4.0), 8.0, Some(12.0)));
        let few = Samples::new("ours", vec![1.0; 4]);
        assert_eq!(few.ratio_bound_below(&one), None);
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        let (mean, deviation) =
            Samples::new("a", vec![2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).mean_and_deviation();
        assert_eq!(mean, 5.0);
        assert!((deviation - 2.138).abs() < 0.001, "{deviation}");
    }

    #[test]
    fn a_disturbed_round_does_not_move_the_ratio() {
        let a = Samples::new("a", vec![10.0, 10.0, 90.0, 10.0, 10.0]);
        let b = Samples::new("b", vec![20.0, 20.0, 180.0, 20.0, 20.0]);
        assert_eq!(a.ratio_to(&b), 0.5);
        assert_eq!((a.median, a.min, a.max), (10.0, 10.0, 90.0));
    }
}
