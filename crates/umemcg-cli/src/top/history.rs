//! The last figures of the visible groups, for sparklines.
//!
//! Memory is bounded: a history has at most [`NR_POINTS`] points, and there are at most
//! [`NR_HISTORIES`]; the history with the oldest last point makes room.

use std::collections::{HashMap, VecDeque};

use super::row::Row;

/// The most points of a history, one for each interval.
pub const NR_POINTS: usize = 120;
/// The most groups with a history.
const NR_HISTORIES: usize = 1024;

/// The figures of one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    tick: u64,
    /// Bytes charged.
    pub usage_bytes: f32,
    /// Pages brought into the cache, each second.
    pub pages_in: f32,
    /// Pages fetched again after they were evicted, each second.
    pub refaults: f32,
    /// Stall time of requests for lack of memory, in percent.
    pub stalled: f32,
    /// Pages reclaimed, each second.
    pub reclaimed: f32,
}

/// The histories of groups by their inode.
#[derive(Debug, Default)]
pub struct Histories(HashMap<u64, VecDeque<Point>>);

impl Histories {
    /// Adds the figures of a group at the interval with this number.
    pub fn add(&mut self, group: u64, tick: u64, row: &Row) {
        if !self.0.contains_key(&group) && self.0.len() >= NR_HISTORIES {
            let oldest = self.0.iter().min_by_key(|(_, points)| points.back().map(|point| point.tick));
            if let Some(&oldest) = oldest.map(|(group, _)| group) {
                self.0.remove(&oldest);
            }
        }
        let points = self.0.entry(group).or_default();
        if points.back().is_some_and(|last| last.tick >= tick) {
            points.pop_back();
        }
        if points.len() >= NR_POINTS {
            points.pop_front();
        }
        points.push_back(Point {
            tick,
            usage_bytes: row.usage_bytes as f32,
            pages_in: row.pages_in_per_second as f32,
            refaults: row.refaults_per_second as f32,
            stalled: row.stalled_percent as f32,
            reclaimed: (row.background_reclaim_per_second + row.direct_reclaim_per_second) as f32,
        });
    }

    /// Forgets a group.
    pub fn remove(&mut self, group: u64) {
        self.0.remove(&group);
    }

    /// Returns a figure of the last `nr` intervals up to `tick`, the oldest first; `None` for an
    /// interval without a sample of the group.
    pub fn last(&self, group: u64, tick: u64, nr: usize, figure: fn(&Point) -> f32) -> Vec<Option<f64>> {
        let mut values = vec![None; nr];
        for point in self.0.get(&group).into_iter().flatten() {
            let age = usize::try_from(tick.saturating_sub(point.tick)).unwrap_or(usize::MAX);
            if let Some(place) = nr.checked_sub(age.saturating_add(1)) {
                values[place] = Some(f64::from(figure(point)));
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_sample::GroupSample;
    use std::time::Duration;

    fn row(usage_bytes: u64) -> Row {
        let sample = GroupSample { usage_bytes, ..GroupSample::default() };
        Row::between(&sample, &sample, Duration::from_secs(1))
    }

    #[test]
    fn intervals_without_a_sample_are_gaps() {
        let mut histories = Histories::default();
        for (tick, usage) in [(1, 10), (2, 20), (5, 50), (5, 51)] {
            histories.add(7, tick, &row(usage));
        }
        let last = |tick, nr| histories.last(7, tick, nr, |point| point.usage_bytes);
        assert_eq!(last(6, 6), [Some(10.0), Some(20.0), None, None, Some(51.0), None]);
        assert_eq!(last(6, 2), [Some(51.0), None]);
        assert_eq!(last(500, 3), [None; 3]);
        assert_eq!(histories.last(8, 6, 1, |point| point.stalled), [None]);
    }

    #[test]
    fn histories_are_bounded_in_number_and_length() {
        let mut histories = Histories::default();
        for tick in 1..=3 * NR_POINTS as u64 {
            histories.add(1, tick, &row(tick));
        }
        assert_eq!(histories.0[&1].len(), NR_POINTS);
        for group in 2..2 + NR_HISTORIES as u64 {
            histories.add(group, 1000, &row(1));
        }
        assert_eq!(histories.0.len(), NR_HISTORIES);
        assert!(!histories.0.contains_key(&1), "the oldest made room");
    }
}
