//! Uploads in the background: of what was accepted, and of what a close could not store.
//!
//! All volumes share the threads of one pool, which come when there is something to do and go
//! when there is not. An upload that fails is tried again after a pause, which grows. A thread
//! stays with a store for as long as a request takes, which is a minute at worst; so that a store
//! that is down holds up no other volume,
//! - a volume has one upload at a time until one has succeeded, and after one that has failed;
//! - all such volumes together have half of the threads;
//! - while half of the threads have something to do, no volume begins a second upload.
//!
//! Of a volume's tenants, the one with the fewest uploads under way has the next.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Weak};
use std::time::{Duration, Instant};

use umemcg_base::{Condvar, LeafMutex, clock, contained};

/// Most threads of the process.
const NR_THREADS_MAX: usize = 64;
/// Most of them for volumes whose last upload did not succeed.
const NR_UNPROVEN_MAX: usize = NR_THREADS_MAX / 2;
/// So many uploads under way leave every volume one at a time.
const NR_SHARED_MAX: usize = NR_THREADS_MAX / 2;
/// Most uploads of one volume at a time.
const NR_OF_VOLUME_MAX: usize = 4;
/// Longest pause before an upload is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How often an upload is put off because the file is being written.
const NR_DELAYS_MAX: u32 = 30;
/// The longest sleep of a thread that waits for something to be due.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// What has something to store: a volume.
pub(super) trait Uploads: Send + Sync + fmt::Debug {
    /// Tries to store a file once, under a number; also one that is being written, if it `must` not
    /// be put off any more.
    fn upload(&self, serial: u64, must: bool) -> Outcome;
}

/// What came of an attempt.
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

static POOL: LazyLock<Pool> = LazyLock::new(Pool::default);
/// (A) The number of the next volume. Relaxed: only uniqueness matters.
static NEXT_VOLUME: AtomicU64 = AtomicU64::new(1);

#[derive(Debug, Default)]
struct Pool {
    state: LeafMutex<State>,
    /// Something is due, or has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<u64, Queue>,
    /// The volume that had the last upload.
    hand: u64,
    nr_threads: usize,
    /// One of them waits for something to be due.
    has_waiter: bool,
    nr_unproven: usize,
    /// Uploads under way.
    nr_running: usize,
}

/// What a volume has to store.
#[derive(Debug)]
struct Queue {
    uploads: Weak<dyn Uploads>,
    /// The first pause.
    pause: Duration,
    jobs: HashMap<u64, Job>,
    /// Those that wait, by tenant and time.
    due: BTreeMap<usize, BTreeSet<(Instant, u64)>>,
    /// Uploads under way, by tenant.
    running: HashMap<usize, usize>,
    /// The last upload has succeeded.
    is_proven: bool,
    is_stopped: bool,
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
    /// There is more to store since it runs.
    is_again: bool,
}

/// An upload that is to run.
struct Next {
    volume: u64,
    serial: u64,
    uploads: Weak<dyn Uploads>,
    must: bool,
    is_unproven: bool,
}

/// The uploads of one volume; no more of them begin when it is dropped.
#[derive(Debug)]
pub(super) struct Uploader {
    volume: u64,
    /// (C)
    pause: Duration,
}

impl Uploader {
    /// Creates one whose first pause, after an upload that has failed, is this long.
    pub(super) fn new(pause: Duration) -> Self {
        // Relaxed: only uniqueness matters.
        Self { volume: NEXT_VOLUME.fetch_add(1, Ordering::Relaxed), pause }
    }

    /// Sets what has something to store, once, before anything is [added](Self::add).
    pub(super) fn serve(&self, uploads: Weak<dyn Uploads>) {
        let queue = Queue {
            uploads,
            pause: self.pause,
            jobs: HashMap::new(),
            due: BTreeMap::new(),
            running: HashMap::new(),
            is_proven: false,
            is_stopped: false,
        };
        POOL.state.lock().volumes.insert(self.volume, queue);
    }

    /// Has a file of a tenant stored: soon, or if it `has_failed`, after a pause. Never waits.
    pub(super) fn add(&self, serial: u64, tenant: usize, has_failed: bool) {
        let must_start = {
            let mut state = POOL.state.lock();
            let Some(queue) = state.volumes.get_mut(&self.volume).filter(|queue| !queue.is_stopped) else {
                return;
            };
            queue.add(serial, tenant, has_failed);
            POOL.changed.notify_all();
            state.wants_thread()
        };
        if must_start {
            POOL.start();
        }
    }

    /// Begins no more uploads, and waits for those under way. No lock may be held.
    pub(super) fn stop(&self) {
        let mut state = POOL.state.lock();
        state.stop(self.volume);
        while state.volumes.contains_key(&self.volume) {
            POOL.changed.wait(&mut state);
        }
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        POOL.state.lock().stop(self.volume);
        // There may be nothing to wait for any more.
        POOL.changed.notify_all();
    }
}

impl Queue {
    fn nr_running(&self) -> usize {
        self.running.values().sum()
    }

    fn add(&mut self, serial: u64, tenant: usize, has_failed: bool) {
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
        // Written and closed again: it need not wait any more. A store that failed has its pause.
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

    /// Returns whether one more upload may run.
    fn has_room(&self, nr_unproven: usize, nr_of_all: usize) -> bool {
        if self.is_stopped {
            return false;
        }
        match (self.is_proven, self.nr_running()) {
            (true, 0) => true,
            (true, nr) => nr < NR_OF_VOLUME_MAX && nr_of_all < NR_SHARED_MAX,
            (false, nr) => nr == 0 && nr_unproven < NR_UNPROVEN_MAX,
        }
    }

    /// Takes what is due of the tenant with the fewest uploads under way.
    fn take(&mut self, now: Instant) -> Option<(u64, bool)> {
        let first = |(tenant, due): (&usize, &BTreeSet<(Instant, u64)>)| {
            let (at, serial) = *due.first()?;
            let nr_running = self.running.get(tenant).copied().unwrap_or(0);
            (at <= now).then_some((nr_running, at, serial, *tenant))
        };
        let (_, at, serial, tenant) = self.due.iter().filter_map(first).min()?;
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

    /// Notes what came of an upload.
    fn end(&mut self, serial: u64, outcome: Outcome) {
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
                // Since it was looked at it may have been closed.
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
}

impl State {
    /// Takes the next upload; `Err` with when there may be one.
    fn take(&mut self, now: Instant) -> Result<Next, Option<Instant>> {
        let after = self.volumes.range((Bound::Excluded(self.hand), Bound::Unbounded));
        let order: Vec<u64> = after
            .chain(self.volumes.range(..=self.hand))
            .filter(|(_, queue)| !queue.due.is_empty())
            .map(|(id, _)| *id)
            .collect();
        let mut soonest: Option<Instant> = None;
        for volume in order {
            let (nr_unproven, nr_of_all) = (self.nr_unproven, self.nr_running);
            let queue = self.volumes.get_mut(&volume);
            let Some(queue) = queue.filter(|queue| queue.has_room(nr_unproven, nr_of_all)) else { continue };
            if let Some((serial, must)) = queue.take(now) {
                let is_unproven = !queue.is_proven;
                let uploads = Weak::clone(&queue.uploads);
                self.nr_unproven += usize::from(is_unproven);
                self.nr_running += 1;
                self.hand = volume;
                return Ok(Next { volume, serial, uploads, must, is_unproven });
            }
            let firsts = queue.due.values().filter_map(BTreeSet::first);
            soonest = firsts.map(|(at, _)| *at).chain(soonest).min();
        }
        Err(soonest)
    }

    /// Returns whether there is something to wait for.
    fn has_more(&self) -> bool {
        let has_room = |queue: &Queue| queue.has_room(self.nr_unproven, self.nr_running);
        self.volumes.values().any(|queue| !queue.due.is_empty() && has_room(queue))
    }

    /// Counts one more thread, if one is needed and allowed.
    fn wants_thread(&mut self) -> bool {
        let wants = !self.has_waiter && self.nr_threads < NR_THREADS_MAX;
        self.nr_threads += usize::from(wants);
        wants
    }

    fn stop(&mut self, volume: u64) {
        let Some(queue) = self.volumes.get_mut(&volume) else { return };
        queue.is_stopped = true;
        queue.due.clear();
        self.remove_if_over(volume);
    }

    fn remove_if_over(&mut self, volume: u64) {
        if self.volumes.get(&volume).is_some_and(|queue| queue.is_stopped && queue.nr_running() == 0) {
            self.volumes.remove(&volume);
        }
    }
}

impl Pool {
    /// Starts a thread, which is counted already.
    fn start(&'static self) {
        if let Err(error) = clock::spawn_detached("umemcg-upload", move || self.serve()) {
            self.state.lock().nr_threads -= 1;
            tracing::error!(%error, "no thread for uploads in the background; the next one tries again");
        }
    }

    /// Runs uploads until there are none, or another thread waits for the next.
    fn serve(&'static self) {
        while let Some((next, must_start)) = self.wait() {
            if must_start {
                self.start();
            }
            let attempt = || next.uploads.upgrade().map(|uploads| uploads.upload(next.serial, next.must));
            let outcome = contained(attempt).unwrap_or(Some(Outcome::Failed)).unwrap_or(Outcome::Gone);
            let mut state = self.state.lock();
            state.nr_unproven -= usize::from(next.is_unproven);
            state.nr_running -= 1;
            if let Some(queue) = state.volumes.get_mut(&next.volume) {
                queue.end(next.serial, outcome);
                if queue.is_stopped {
                    queue.due.clear();
                }
            }
            state.remove_if_over(next.volume);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the next upload, with whether another thread is to wait for the one after it;
    /// `None` when the thread is not needed.
    fn wait(&self) -> Option<(Next, bool)> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            match state.take(now) {
                Ok(next) => {
                    let must_start = state.has_more() && state.wants_thread();
                    return Some((next, must_start));
                }
                // Those that run may have more to do when they end: they look themselves.
                Err(None) => {
                    state.nr_threads -= 1;
                    return None;
                }
                Err(Some(_)) if state.has_waiter => {
                    state.nr_threads -= 1;
                    return None;
                }
                Err(Some(at)) => {
                    state.has_waiter = true;
                    self.changed.wait_until(&mut state, at.min(now + SLEEP_MAX));
                    state.has_waiter = false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl Uploads for Nothing {
        fn upload(&self, _: u64, _: bool) -> Outcome {
            Outcome::Gone
        }
    }

    fn queue() -> Queue {
        Queue {
            uploads: Weak::<Nothing>::new(),
            pause: Duration::from_secs(1),
            jobs: HashMap::new(),
            due: BTreeMap::new(),
            running: HashMap::new(),
            is_proven: false,
            is_stopped: false,
        }
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
            assert_eq!(queue.take(Instant::now()), None, "it is not due");
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
        assert!(!queue.has_room(0, 0), "nothing is known of it");
        queue.end(0, Outcome::Stored);
        for _ in 0..NR_OF_VOLUME_MAX {
            assert!(queue.has_room(NR_UNPROVEN_MAX, NR_SHARED_MAX - 1));
            queue.take(later()).unwrap();
        }
        assert!(!queue.has_room(0, 0));
        (1..=4).for_each(|serial| queue.end(serial, Outcome::Failed));
        assert!(queue.has_room(0, 0) && !queue.has_room(NR_UNPROVEN_MAX, 0));
    }

    #[test]
    fn volumes_that_hang_leave_threads_to_others() {
        let (mut state, mut nr_taken) = (State::default(), 0);
        for volume in 0..NR_THREADS_MAX as u64 / 2 {
            let mut queue = Queue { is_proven: true, ..queue() };
            (0..9).for_each(|serial| queue.add(serial, 1, false));
            state.volumes.insert(volume, queue);
        }
        while state.take(later()).is_ok() {
            nr_taken += 1;
        }
        assert!((NR_SHARED_MAX..NR_THREADS_MAX).contains(&nr_taken), "{nr_taken}");
        assert!(state.volumes.values().all(|queue| queue.nr_running() > 0), "each has one");
    }

    #[test]
    fn the_tenant_with_the_fewest_uploads_is_next() {
        let mut queue = queue();
        (0..5).for_each(|serial| queue.add(serial, 1, false));
        (10..12).for_each(|serial| queue.add(serial, 2, false));
        let order: Vec<u64> = (0..5).map(|_| queue.take(later()).unwrap().0).collect();
        assert_eq!(order, [0, 10, 1, 11, 2]);
    }

    #[test]
    fn a_file_that_is_closed_again_waits_no_longer() {
        let mut queue = queue();
        queue.add(7, 1, false);
        queue.take(later()).unwrap();
        queue.end(7, Outcome::Busy);
        assert_eq!(queue.take(Instant::now()), None);
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
