//! The retries of one volume: the files whose upload failed, and when each is tried again.
//!
//! Each tenant has one retry at a time, and tenants take turns. The pauses between the retries of a
//! file grow.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// The longest pause before a retry.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// See the module text.
#[derive(Debug)]
pub(super) struct RetryQueue {
    /// The first pause.
    pause: Duration,
    /// Waiting files by tenant, each with its due time, its number, and the pause before that.
    due: BTreeMap<usize, BTreeSet<(Instant, u64, Duration)>>,
    /// The numbers of the waiting files.
    waiting: HashSet<u64>,
    /// The tenant of the last retry.
    last_tenant: usize,
    /// The tenants with a retry under way.
    running: HashSet<usize>,
}

/// The retry of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    /// The number of the file.
    pub(super) serial: u64,
    tenant: usize,
    /// The pause before it.
    pause: Duration,
}

impl RetryQueue {
    /// Creates a queue with this first pause after a failed upload.
    pub(super) fn new(pause: Duration) -> Self {
        let (due, waiting, running) = (BTreeMap::new(), HashSet::new(), HashSet::new());
        Self { pause, due, waiting, last_tenant: 0, running }
    }

    /// Adds a file of a tenant, under a number, after a pause. A waiting file keeps its pause.
    pub(super) fn add(&mut self, serial: u64, tenant: usize) {
        self.put(Retry { serial, tenant, pause: self.pause });
    }

    fn put(&mut self, Retry { serial, tenant, pause }: Retry) {
        if self.waiting.insert(serial) {
            self.due.entry(tenant).or_default().insert((Instant::now() + pause, serial, pause));
        }
    }

    /// Returns the number of retries under way.
    pub(super) fn nr_running(&self) -> usize {
        self.running.len()
    }

    /// Returns the number of waiting files.
    pub(super) fn nr_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns when the next retry may begin; `None` if only tenants with one under way have more.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let idle = self.due.iter().filter(|(tenant, _)| !self.running.contains(tenant));
        idle.filter_map(|(_, files)| files.first()).map(|(due, ..)| *due).min()
    }

    /// Takes the next retry: of the first tenant after that of the last one with a due file.
    pub(super) fn take(&mut self, now: Instant) -> Option<Retry> {
        let after = self.due.range((Bound::Excluded(self.last_tenant), Bound::Unbounded));
        let mut tenants = after.chain(self.due.range(..=self.last_tenant));
        let tenant = tenants.find_map(|(tenant, files)| {
            let is_due = files.first()?.0 <= now && !self.running.contains(tenant);
            is_due.then_some(*tenant)
        })?;
        let files = self.due.get_mut(&tenant)?;
        let (_, serial, pause) = files.pop_first()?;
        if files.is_empty() {
            self.due.remove(&tenant);
        }
        self.waiting.remove(&serial);
        self.last_tenant = tenant;
        self.running.insert(tenant);
        Some(Retry { serial, tenant, pause })
    }

    /// Ends a retry. A file that still needs one waits again, for twice as long.
    pub(super) fn end(&mut self, retry: Retry, is_over: bool) {
        self.running.remove(&retry.tenant);
        if !is_over {
            self.put(Retry { pause: (2 * retry.pause).min(PAUSE_MAX.max(self.pause)), ..retry });
        }
    }

    /// Removes all waiting files.
    pub(super) fn clear(&mut self) {
        self.due.clear();
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> RetryQueue {
        RetryQueue::new(Duration::from_secs(1))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(1 << 20)
    }

    #[test]
    fn pauses_grow_to_a_minute_and_end_with_a_success() {
        let mut queue = queue();
        queue.add(7, 1);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let due = queue.next_due().unwrap();
            assert_eq!(queue.take(due - Duration::from_nanos(1)), None, "it is not due");
            let retry = queue.take(due).unwrap();
            pauses.push(retry.pause.as_secs());
            queue.end(retry, false);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        let retry = queue.take(later()).unwrap();
        queue.end(retry, true);
        assert_eq!((queue.nr_waiting(), queue.next_due()), (0, None));
        queue.add(7, 1);
        assert_eq!(queue.take(later()).unwrap().pause, Duration::from_secs(1));
    }

    #[test]
    fn tenants_take_turns() {
        let mut queue = queue();
        (0..5).for_each(|serial| queue.add(serial, 1));
        (10..12).for_each(|serial| queue.add(serial, 2));
        let order: Vec<u64> = (0..7)
            .map(|_| {
                let retry = queue.take(later()).unwrap();
                queue.end(retry, true);
                retry.serial
            })
            .collect();
        assert_eq!(order, [0, 10, 1, 11, 2, 3, 4]);
    }

    #[test]
    fn a_long_retry_delays_no_other_tenant() {
        let mut queue = queue();
        [0, 1].into_iter().for_each(|serial| queue.add(serial, 1));
        queue.add(10, 2);
        let long = queue.take(later()).unwrap();
        let other = queue.take(later()).unwrap();
        assert_eq!((long.serial, other.serial, queue.nr_running()), (0, 10, 2));
        assert_eq!((queue.take(later()), queue.next_due()), (None, None), "a tenant has one at a time");
        queue.end(long, true);
        assert_eq!(queue.take(later()).unwrap().serial, 1);
    }

    #[test]
    fn a_file_waits_once() {
        let mut queue = queue();
        (0..3).for_each(|_| queue.add(7, 1));
        let retry = queue.take(later()).unwrap();
        // It was changed, and failed again, while the retry ran.
        queue.add(7, 1);
        queue.end(retry, false);
        assert_eq!(queue.nr_waiting(), 1);
        let again = queue.take(later()).unwrap();
        queue.end(again, true);
        assert_eq!(queue.nr_waiting(), 0);
    }
}
