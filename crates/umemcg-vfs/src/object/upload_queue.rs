//! The upload queue of one volume: which file is next, and when a failed one is tried again.
//!
//! Of the tenants entitled to another upload, the one with the fewest under way has the next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Bounds the uploads of one volume at a time; see [`has_share`].
const NR_OF_VOLUME_MAX: usize = 8;
/// Longest pause before an upload is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Most delays of an upload because its file is being written.
const NR_DELAYS_MAX: u32 = 30;

/// The outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Stored,
    /// There is nothing to store any more.
    Gone,
    /// It is being written.
    Busy,
    /// The writer's group has no room for it.
    NoRoom,
    /// The store has failed.
    Failed,
}

/// Returns whether a member with `nr` of the `nr_all` uploads under way may begin another of
/// `nr_max`: it must have fewer than are free. So a member alone takes half of the places, and
/// stuck members leave some to each later one.
pub(super) fn has_share(nr: usize, nr_all: usize, nr_max: usize) -> bool {
    nr < nr_max.saturating_sub(nr_all)
}

/// See the module text.
#[derive(Debug)]
pub(super) struct UploadQueue {
    /// The first pause.
    pause: Duration,
    jobs: HashMap<u64, Job>,
    /// Waiting files, by tenant and time.
    due: BTreeMap<usize, BTreeSet<(Instant, u64)>>,
    /// Uploads under way, by tenant.
    running: HashMap<usize, usize>,
    /// The last upload has succeeded.
    is_proven: bool,
}

#[derive(Debug)]
struct Job {
    tenant: usize,
    pause: Duration,
    nr_delays: u32,
    is_running: bool,
    /// When it is due, while it waits.
    due: Option<Instant>,
    /// It was put off because the file is being written.
    is_delayed: bool,
    /// The file was added again while its upload runs.
    is_again: bool,
}

impl UploadQueue {
    /// Creates a queue with this first pause after a failed upload.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, jobs: HashMap::new(), due: BTreeMap::new(), running: HashMap::new(), is_proven: false }
    }

    /// Adds a file of a tenant, under a number: for now, or if it `has_failed`, after a pause.
    pub(super) fn add(&mut self, serial: u64, tenant: usize, has_failed: bool) {
        let job = self.jobs.entry(serial).or_insert_with(|| Job {
            tenant,
            pause: self.pause,
            nr_delays: 0,
            is_running: false,
            due: None,
            is_delayed: false,
            is_again: false,
        });
        job.is_again |= job.is_running;
        let is_new = !job.is_running && job.due.is_none();
        // Written and closed again: it need not wait any more. A failed upload keeps its pause.
        let is_ready = job.is_delayed && !has_failed && job.due.is_some();
        if is_new || is_ready {
            let pause = if has_failed { job.pause } else { Duration::ZERO };
            let (tenant, at) = (job.tenant, Instant::now() + pause);
            let before = job.due.replace(at);
            let of_tenant = self.due.entry(tenant).or_default();
            if let Some(before) = before {
                of_tenant.remove(&(before, serial));
            }
            of_tenant.insert((at, serial));
        }
    }

    /// Returns how many uploads are under way.
    pub(super) fn nr_running(&self) -> usize {
        self.running.values().sum()
    }

    /// Returns the number of files waiting for an upload, retries included.
    pub(super) fn nr_waiting(&self) -> usize {
        self.due.values().map(BTreeSet::len).sum()
    }

    /// Returns when the next upload may begin; `None` while it must wait for the end of another. A
    /// volume has one at a time until one has succeeded, and after a failed one.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.firsts().map(|(_, at, ..)| at).min()
    }

    /// Takes the next upload; `true` if it must not be put off any more.
    pub(super) fn take(&mut self, now: Instant) -> Option<(u64, bool)> {
        let (_, at, serial, tenant) = self.firsts().filter(|(_, at, ..)| *at <= now).min()?;
        if let Some(of_tenant) = self.due.get_mut(&tenant) {
            of_tenant.remove(&(at, serial));
            if of_tenant.is_empty() {
                self.due.remove(&tenant);
            }
        }
        let job = self.jobs.get_mut(&serial)?;
        (job.due, job.is_running, job.is_delayed) = (None, true, false);
        *self.running.entry(tenant).or_default() += 1;
        Some((serial, job.nr_delays >= NR_DELAYS_MAX))
    }

    /// Returns the first file of each tenant entitled to another upload: the tenant's uploads under
    /// way, the due time, the number of the file, and the tenant.
    fn firsts(&self) -> impl Iterator<Item = (usize, Instant, u64, usize)> {
        let nr_all = self.nr_running();
        let is_closed = !self.is_proven && nr_all > 0;
        let due = self.due.iter().filter(move |_| !is_closed);
        due.filter_map(move |(tenant, due)| {
            let (at, serial) = *due.first()?;
            let nr = self.running.get(tenant).copied().unwrap_or(0);
            has_share(nr, nr_all, NR_OF_VOLUME_MAX).then_some((nr, at, serial, *tenant))
        })
    }

    /// Notes the outcome of an upload.
    pub(super) fn end(&mut self, serial: u64, outcome: Outcome) {
        let Some(job) = self.jobs.get_mut(&serial) else { return };
        let (now, tenant) = (Instant::now(), job.tenant);
        let is_again = std::mem::take(&mut job.is_again);
        job.is_running = false;
        match self.running.get_mut(&tenant) {
            Some(nr) if *nr > 1 => *nr -= 1,
            _ => drop(self.running.remove(&tenant)),
        }
        let until = match outcome {
            Outcome::Stored | Outcome::Gone => {
                self.is_proven |= outcome == Outcome::Stored;
                (job.pause, job.nr_delays) = (self.pause, 0);
                if !is_again {
                    self.jobs.remove(&serial);
                    return;
                }
                now
            }
            Outcome::Busy => {
                (job.nr_delays, job.is_delayed) = (job.nr_delays + 1, true);
                // It may have been closed since this attempt began.
                if is_again { now } else { now + self.pause }
            }
            Outcome::NoRoom | Outcome::Failed => {
                self.is_proven &= outcome != Outcome::Failed;
                let pause = job.pause;
                job.pause = (2 * pause).min(PAUSE_MAX.max(self.pause));
                now + pause
            }
        };
        job.due = Some(until);
        self.due.entry(tenant).or_default().insert((until, serial));
    }

    /// Removes all waiting files.
    pub(super) fn clear(&mut self) {
        self.due.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> UploadQueue {
        UploadQueue::new(Duration::from_secs(1))
    }

    fn proven() -> UploadQueue {
        UploadQueue { is_proven: true, ..queue() }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(1 << 20)
    }

    #[test]
    fn pauses_grow_to_a_minute_and_end_with_a_success() {
        let mut queue = queue();
        queue.add(7, 1, false);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pauses.push(queue.jobs[&7].pause.as_secs());
            assert_eq!(queue.take(later()), Some((7, false)));
            queue.end(7, Outcome::Failed);
            let due = queue.next_due().unwrap();
            assert_eq!(queue.take(due - Duration::from_nanos(1)), None, "it is not due");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        queue.take(later()).unwrap();
        queue.end(7, Outcome::Stored);
        assert!(queue.jobs.is_empty() && queue.due.is_empty() && queue.nr_running() == 0);
    }

    #[test]
    fn a_store_that_fails_has_one_upload_at_a_time() {
        let mut queue = queue();
        (0..9).for_each(|serial| queue.add(serial, 1, false));
        queue.take(later()).unwrap();
        assert_eq!(queue.take(later()), None, "nothing is known of it");
        queue.end(0, Outcome::Stored);
        let taken: Vec<u64> = (0..4).map(|_| queue.take(later()).unwrap().0).collect();
        assert_eq!(taken, [1, 2, 3, 4]);
        queue.end(1, Outcome::Failed);
        assert_eq!((queue.take(later()), queue.next_due()), (None, None));
        (2..=4).for_each(|serial| queue.end(serial, Outcome::Failed));
        queue.take(later()).unwrap();
        assert_eq!(queue.take(later()), None);
    }

    #[test]
    fn the_tenant_with_the_fewest_uploads_is_next() {
        let mut queue = proven();
        (0..5).for_each(|serial| queue.add(serial, 1, false));
        (10..12).for_each(|serial| queue.add(serial, 2, false));
        let order: Vec<u64> = (0..5).map(|_| queue.take(later()).unwrap().0).collect();
        assert_eq!(order, [0, 10, 1, 11, 2]);
    }

    #[test]
    fn a_tenant_whose_uploads_take_long_leaves_some_to_others() {
        let mut queue = proven();
        for tenant in 0..4 {
            (0..9).for_each(|nr| queue.add(10 * tenant + nr, tenant as usize, false));
            while queue.take(later()).is_some() {}
            assert!(queue.running.contains_key(&(tenant as usize)), "{:?}", queue.running);
        }
        assert_eq!(queue.running[&0], NR_OF_VOLUME_MAX / 2);
    }

    #[test]
    fn a_file_that_is_closed_again_waits_no_longer() {
        let mut queue = queue();
        queue.add(7, 1, false);
        queue.take(later()).unwrap();
        queue.end(7, Outcome::Busy);
        let due = queue.next_due().unwrap();
        assert_eq!(queue.take(due - Duration::from_nanos(1)), None);
        queue.add(7, 1, false);
        assert_eq!(queue.take(later()), Some((7, false)));
        for _ in 1..NR_DELAYS_MAX {
            queue.end(7, Outcome::Busy);
            queue.take(later()).unwrap();
        }
        queue.end(7, Outcome::Busy);
        assert_eq!(queue.take(later()), Some((7, true)), "put off no more");
        queue.add(7, 1, false);
        queue.end(7, Outcome::Stored);
        assert_eq!(queue.take(later()), Some((7, false)), "there is more since");
    }
}
