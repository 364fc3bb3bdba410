//! The figures of one group between two samples, for every form of `umemcg top`.

use std::time::Duration;

use serde::Serialize;

use crate::args::TopSort;
use crate::group_sample::GroupSample;
use crate::table::human_bytes;

/// The shortest interval between two samples.
pub const INTERVAL_MIN: Duration = Duration::from_millis(50);

/// One group between two samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The path, from the root.
    pub group: String,
    /// Bytes charged, including the groups below.
    pub usage_bytes: u64,
    /// The hard limit, if there is one.
    pub limit_bytes: Option<u64>,
    /// `memory.high`, if it is set.
    pub high_bytes: Option<u64>,
    /// The usage at which background reclaim starts; `None` while it is off.
    pub low_wmark_bytes: Option<u64>,
    /// The part of the usage protected from reclaim of the pool.
    pub min_bytes: u64,
    /// The part reclaimed last.
    pub low_bytes: u64,
    /// Bytes above the soft limit; reclaimed first.
    pub excess_bytes: u64,
    /// Bytes not written back yet.
    pub dirty_bytes: u64,
    /// The share of cached pages among the pages asked of the daemon; `None` if none were asked, or
    /// if the kernel keeps pages of the group: the reads that it serves are not seen.
    pub hit_percent: Option<f64>,
    /// Pages read and not cached.
    pub misses_per_second: f64,
    /// Pages brought into the cache.
    pub pages_in_per_second: f64,
    /// Pages fetched again after they were evicted.
    pub refaults_per_second: f64,
    /// The share of stall time of requests for lack of memory.
    pub stalled_percent: f64,
    /// Pages reclaimed in the background.
    pub background_reclaim_per_second: f64,
    /// Pages reclaimed by requests in need of memory.
    pub direct_reclaim_per_second: f64,
}

impl Row {
    /// Returns the row between two samples, without the group's path.
    pub fn between(before: &GroupSample, now: &GroupSample, passed: Duration) -> Self {
        let seconds = passed.as_secs_f64().max(1e-6);
        // A re-created group counts from zero again.
        let rate = |name: &str| now.stat(name).saturating_sub(before.stat(name)) as f64 / seconds;
        let (hits, misses) = (rate("total_cache_hit"), rate("total_cache_miss"));
        let is_counted = [before, now].iter().all(|sample| sample.stat("file_kernel") == 0);
        let stalled = now.stalled_us.saturating_sub(before.stalled_us) as f64 / 1e6;
        Self {
            group: String::new(),
            usage_bytes: now.usage_bytes,
            limit_bytes: now.limit_bytes,
            high_bytes: now.high_bytes,
            low_wmark_bytes: now.low_wmark_bytes,
            min_bytes: now.stat("min_effective").min(now.usage_bytes),
            low_bytes: now.stat("low_effective").min(now.usage_bytes),
            excess_bytes: now.stat("soft_limit_excess"),
            dirty_bytes: now.stat("total_dirty"),
            hit_percent: (is_counted && hits + misses > 0.0).then(|| 100.0 * hits / (hits + misses)),
            misses_per_second: misses,
            pages_in_per_second: rate("total_pgpgin"),
            refaults_per_second: rate("total_workingset_refault_file"),
            stalled_percent: (100.0 * stalled / seconds).min(100.0),
            background_reclaim_per_second: rate("pgsteal_kswapd"),
            direct_reclaim_per_second: rate("pgsteal_direct"),
        }
    }

    /// Returns the cells of a line of the plain table.
    pub fn cells(&self) -> Vec<String> {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), human_bytes);
        let some = |some: u64| bytes((some > 0).then_some(some));
        let rate = |rate: f64| format!("{rate:.0}");
        vec![
            self.group.clone(),
            human_bytes(self.usage_bytes),
            bytes(self.limit_bytes),
            bytes(self.high_bytes),
            bytes(self.low_wmark_bytes),
            some(self.min_bytes),
            some(self.low_bytes),
            some(self.excess_bytes),
            human_bytes(self.dirty_bytes),
            self.hit_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}%")),
            rate(self.pages_in_per_second),
            rate(self.refaults_per_second),
            format!("{:.1}%", self.stalled_percent),
            rate(self.background_reclaim_per_second),
            rate(self.direct_reclaim_per_second),
        ]
    }

    /// Returns the sort key; the greatest comes first.
    pub fn weight(&self, sort: TopSort) -> f64 {
        match sort {
            TopSort::Usage => self.usage_bytes as f64,
            TopSort::Limit => self.limit_bytes.map_or(f64::MAX, |bytes| bytes as f64),
            TopSort::Dirty => self.dirty_bytes as f64,
            TopSort::Misses => self.misses_per_second,
            TopSort::Refaults => self.refaults_per_second,
            TopSort::Stalls => self.stalled_percent,
            TopSort::Reclaim => self.background_reclaim_per_second + self.direct_reclaim_per_second,
            TopSort::Excess => self.excess_bytes as f64,
            TopSort::Name => 0.0,
        }
    }
}

/// The lines of `umemcg.stat` used for a row.
pub const ROW_STATS: [&str; 11] = [
    "total_cache_hit",
    "total_cache_miss",
    "file_kernel",
    "min_effective",
    "low_effective",
    "soft_limit_excess",
    "total_dirty",
    "total_pgpgin",
    "total_workingset_refault_file",
    "pgsteal_kswapd",
    "pgsteal_direct",
];

/// The headings of the plain table.
pub const HEADINGS: [&str; 15] = [
    "group",
    "usage",
    "limit",
    "high",
    "low mark",
    "min",
    "low",
    "excess",
    "dirty",
    "hits",
    "in/s",
    "refault/s",
    "stalled",
    "kswapd/s",
    "direct/s",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_share_of_hits_is_shown_where_all_reads_are_seen() {
        let sample = |misses: u64, kernel: u64| {
            let stat =
                [("total_cache_miss", misses), ("total_cache_hit", 3 * misses), ("file_kernel", kernel)];
            let stat: BTreeMap<_, _> = stat.map(|(name, value)| (name.to_owned(), value)).into();
            GroupSample { stat, ..GroupSample::default() }
        };
        let between = |kernel| Row::between(&sample(0, kernel), &sample(1, kernel), Duration::from_secs(1));
        assert_eq!(between(0).hit_percent, Some(75.0));
        assert_eq!(between(4096).hit_percent, None);
    }
}
