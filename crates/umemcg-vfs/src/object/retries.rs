//! Retries of uploads that failed, in the background.
//!
//! All volumes share the threads of one pool. One thread, the dispatcher, exists while there are
//! volumes to write to. It starts the others, which end when nothing is due. If the operating
//! system refuses it a thread, it tries again a moment later.
//!
//! A request ties a thread to a store, for minutes at worst, and longer for a large file. So that
//! one store or volume does not hold up the others,
//! - the first retry of a store (a bucket of a server) always begins;
//! - beyond that the process has places for the retries of its stores. A store begins a further
//!   retry only while it has fewer places than are free. So a single store takes half of the
//!   places, and leaves some to each later store;
//! - a tenant has one retry at a time in a volume ([`RetryQueue`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::{Condvar, LeafMutex, RateLimit, clock, contained};

use super::retry_queue::{Retry, RetryQueue};

/// Most retries of the process at a time, not counting the first of each store.
const NR_OF_PROCESS_MAX: usize = 64;
/// The longest sleep of the dispatcher.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// The interval between attempts to start a thread after a refusal.
const REFUSED_INTERVAL: Duration = Duration::from_millis(250);

/// A volume whose uploads may fail.
pub(super) trait RetryUpload: Send + Sync + fmt::Debug {
    /// Tries once more to store a file, given by its number. Returns whether that was the last
    /// retry.
    fn retry_upload(&self, serial: u64) -> bool;
}

static POOL: LazyLock<Pool> = LazyLock::new(Pool::default);
/// (A) The number of the next volume. Relaxed: only uniqueness matters.
static NEXT_VOLUME: AtomicU64 = AtomicU64::new(1);

#[derive(Debug, Default)]
struct Pool {
    state: LeafMutex<State>,
    /// Something is due, or has ended, or a thread has started.
    changed: Condvar,
    clock: SystemClock,
    /// Limits the warnings about refused threads.
    refusals: RateLimit,
}

#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<u64, Member>,
    /// The volume that had the last retry.
    hand: u64,
    has_dispatcher: bool,
    /// A thread is on its way to the next retry.
    is_starting: bool,
    /// Retries under way.
    nr_running: usize,
    /// Retries under way, by store.
    of_store: HashMap<Arc<str>, usize>,
}

/// A volume.
#[derive(Debug)]
struct Member {
    uploads: Weak<dyn RetryUpload>,
    store: Arc<str>,
    queue: RetryQueue,
    is_stopped: bool,
}

/// A retry to run.
struct Next {
    volume: u64,
    uploads: Weak<dyn RetryUpload>,
    retry: Retry,
}

/// The retries of one volume; no more of them begin when it is dropped.
#[derive(Debug)]
pub(super) struct Retries {
    volume: u64,
    /// (C)
    pause: Duration,
}

impl Retries {
    /// Creates the retries of a volume, with this first pause after a failed upload.
    pub(super) fn new(pause: Duration) -> Self {
        // Relaxed: only uniqueness matters.
        Self { volume: NEXT_VOLUME.fetch_add(1, Ordering::Relaxed), pause }
    }

    /// Sets the volume to serve, and its store, once, before anything is [added](Self::add).
    ///
    /// # Errors
    /// When the operating system refuses the first thread of all.
    pub(super) fn serve(&self, uploads: Weak<dyn RetryUpload>, store: Arc<str>) -> io::Result<()> {
        let queue = RetryQueue::new(self.pause);
        let member = Member { uploads, store, queue, is_stopped: false };
        POOL.state.lock().volumes.insert(self.volume, member);
        POOL.start_dispatcher()
    }

    /// Has the upload of a tenant's file retried after a pause. Never waits.
    pub(super) fn add(&self, serial: u64, tenant: usize) {
        {
            let mut state = POOL.state.lock();
            let member = state.volumes.get_mut(&self.volume).filter(|member| !member.is_stopped);
            let Some(member) = member else { return };
            member.queue.add(serial, tenant);
        }
        POOL.changed.notify_all();
        // Another volume may have been refused the thread.
        let _ = POOL.start_dispatcher();
    }

    /// Returns the number of retries under way, and of files waiting for one.
    pub(super) fn nr_running_and_waiting(&self) -> (usize, usize) {
        let state = POOL.state.lock();
        let queue = state.volumes.get(&self.volume).map(|member| &member.queue);
        queue.map_or((0, 0), |queue| (queue.nr_running(), queue.nr_waiting()))
    }

    /// Begins no more retries, and waits for those under way. No lock may be held.
    pub(super) fn stop(&self) {
        let mut state = POOL.state.lock();
        state.stop(self.volume);
        while state.volumes.contains_key(&self.volume) {
            POOL.changed.wait(&mut state);
        }
    }
}

impl Drop for Retries {
    fn drop(&mut self) {
        POOL.state.lock().stop(self.volume);
        // There may be nothing to wait for any more.
        POOL.changed.notify_all();
    }
}

impl State {
    /// Returns the volume with the next retry. `Err` has the time of the next one, unless it must
    /// wait for the end of another.
    fn next(&self, now: Instant) -> Result<u64, Option<Instant>> {
        let mut soonest: Option<Instant> = None;
        let after = self.volumes.range((Bound::Excluded(self.hand), Bound::Unbounded));
        for (&volume, member) in after.chain(self.volumes.range(..=self.hand)) {
            match member.queue.next_due().filter(|_| self.has_room(member)) {
                Some(at) if at <= now => return Ok(volume),
                at => soonest = at.into_iter().chain(soonest).min(),
            }
        }
        Err(soonest)
    }

    /// Returns whether one more retry of a volume may run.
    fn has_room(&self, member: &Member) -> bool {
        let nr_of_store = self.of_store.get(&member.store).copied().unwrap_or(0);
        let nr_free = NR_OF_PROCESS_MAX.saturating_sub(self.nr_running);
        !member.is_stopped && (nr_of_store == 0 || nr_of_store < nr_free)
    }

    /// Takes the next retry.
    fn take(&mut self, now: Instant) -> Option<Next> {
        let volume = self.next(now).ok()?;
        let member = self.volumes.get_mut(&volume)?;
        let retry = member.queue.take(now)?;
        *self.of_store.entry(Arc::clone(&member.store)).or_default() += 1;
        self.nr_running += 1;
        self.hand = volume;
        Some(Next { volume, uploads: Weak::clone(&member.uploads), retry })
    }

    /// Ends a retry.
    fn end(&mut self, next: &Next, is_over: bool) {
        self.nr_running -= 1;
        // It is there until its last retry has ended.
        let Some(member) = self.volumes.get_mut(&next.volume) else { return };
        match self.of_store.get_mut(&member.store) {
            Some(nr) if *nr > 1 => *nr -= 1,
            _ => drop(self.of_store.remove(&member.store)),
        }
        member.queue.end(next.retry, is_over);
        if member.is_stopped {
            self.stop(next.volume);
        }
    }

    fn stop(&mut self, volume: u64) {
        let Some(member) = self.volumes.get_mut(&volume) else { return };
        member.is_stopped = true;
        member.queue.clear();
        if member.queue.nr_running() == 0 {
            self.volumes.remove(&volume);
        }
    }
}

impl Pool {
    /// Starts the dispatcher, if there is none.
    fn start_dispatcher(&'static self) -> io::Result<()> {
        if std::mem::replace(&mut self.state.lock().has_dispatcher, true) {
            return Ok(());
        }
        clock::spawn_detached("umemcg-retries", move || self.dispatch())
            .inspect_err(|_| self.state.lock().has_dispatcher = false)
    }

    /// Starts threads for due retries, until there are no volumes.
    fn dispatch(&'static self) {
        let mut state = self.state.lock();
        while !state.volumes.is_empty() {
            let now = Instant::now();
            let until = match state.next(now) {
                Ok(_) if state.is_starting => None,
                Ok(_) => {
                    state.is_starting = true;
                    drop(state);
                    let is_refused = self.start().is_err();
                    state = self.state.lock();
                    if !is_refused {
                        continue;
                    }
                    state.is_starting = false;
                    Some(now + REFUSED_INTERVAL)
                }
                Err(at) => at,
            };
            // Whatever starts, ends or is added wakes it.
            self.changed.wait_until(&mut state, until.unwrap_or(now + SLEEP_MAX).min(now + SLEEP_MAX));
        }
        state.has_dispatcher = false;
    }

    fn start(&'static self) -> io::Result<()> {
        clock::spawn_detached("umemcg-retry", move || self.serve()).inspect_err(|error| {
            if let Some(nr_left_out) = self.refusals.ask(self.clock.now()) {
                let nr_running = self.state.lock().nr_running;
                tracing::warn!(%error, nr_running, nr_left_out, "no further thread to retry uploads; it is asked for again");
            }
        })
    }

    /// Runs retries until none is due.
    fn serve(&self) {
        self.state.lock().is_starting = false;
        loop {
            let next = self.state.lock().take(Instant::now());
            // Wakes the dispatcher for the next retry.
            self.changed.notify_all();
            let Some(next) = next else { return };
            let attempt = || next.uploads.upgrade().map(|uploads| uploads.retry_upload(next.retry.serial));
            // A removed volume needs no retry. A panicked upload needs another one.
            let is_over = contained(attempt).unwrap_or(Some(false)).unwrap_or(true);
            self.state.lock().end(&next, is_over);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    use umemcg_base::clock::refuse_threads;

    use super::*;

    #[derive(Debug)]
    struct Told(Sender<u64>);

    impl RetryUpload for Told {
        fn retry_upload(&self, serial: u64) -> bool {
            self.0.send(serial).unwrap();
            true
        }
    }

    /// A volume of a store, with files that are due.
    fn member(uploads: Weak<dyn RetryUpload>, store: &str, files: u64) -> Member {
        let mut queue = RetryQueue::new(Duration::ZERO);
        (0..files).for_each(|serial| queue.add(serial, 1));
        Member { uploads, store: store.into(), queue, is_stopped: false }
    }

    fn due(store: &str) -> Member {
        member(Weak::<Told>::new(), store, 9)
    }

    fn take_all(state: &mut State) -> Vec<Next> {
        std::iter::from_fn(|| state.take(Instant::now())).collect()
    }

    #[test]
    fn a_store_that_hangs_leaves_places_to_others() {
        let mut state = State::default();
        (0..100).for_each(|volume| drop(state.volumes.insert(volume, due("hanging"))));
        assert_eq!(take_all(&mut state).len(), NR_OF_PROCESS_MAX / 2);
        (100..110).for_each(|volume| drop(state.volumes.insert(volume, due("good"))));
        assert_eq!(take_all(&mut state).len(), 10, "{:?}", state.of_store);
    }

    #[test]
    fn the_first_retry_of_a_store_always_begins() {
        let (mut state, mut taken) = (State::default(), Vec::new());
        for volume in 0..3 * NR_OF_PROCESS_MAX as u64 {
            state.volumes.insert(volume, due(&volume.to_string()));
            taken.extend(take_all(&mut state));
            assert!(state.of_store.contains_key(&*volume.to_string()), "store {volume}");
        }
        let nr_running = state.nr_running;
        assert_eq!(nr_running, taken.len());
        state.end(&taken[0], true);
        assert!(state.nr_running == nr_running - 1 && !state.of_store.contains_key("0"));
    }

    #[test]
    fn a_thread_that_was_refused_is_asked_for_again() {
        let pool: &'static Pool = Box::leak(Box::default());
        let (told, uploads) = channel();
        let volume: Arc<dyn RetryUpload> = Arc::new(Told(told));
        pool.state.lock().volumes.insert(1, member(Arc::downgrade(&volume), "store", 3));
        pool.state.lock().has_dispatcher = true;
        let dispatcher = thread::spawn(move || {
            refuse_threads(3);
            pool.dispatch();
            refuse_threads(0)
        });
        let bound = Duration::from_secs(60);
        let mut stored: Vec<u64> = (0..3).map(|_| uploads.recv_timeout(bound).unwrap()).collect();
        stored.sort_unstable();
        assert_eq!(stored, [0, 1, 2]);
        pool.state.lock().stop(1);
        pool.changed.notify_all();
        assert_eq!(dispatcher.join().unwrap(), 0, "three were refused");
        assert!(!pool.state.lock().has_dispatcher);
    }
}
