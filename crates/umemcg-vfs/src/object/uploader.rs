//! Background uploads, of accepted drafts and of drafts that a close could not store.
//!
//! All volumes share the threads of one pool. One thread, the dispatcher, exists while there are
//! volumes to write to. It starts the others, which end when nothing is due. If the operating
//! system refuses it a thread, it tries again a moment later.
//!
//! A failed upload is tried again after a pause, which grows. A request ties a thread to a store,
//! for minutes at worst, and longer for a large file. So that one store, volume or tenant does not
//! hold up the others,
//! - the first upload of a store (a bucket of a server) always begins;
//! - beyond that there are places: of the process for its stores, of a store for its volumes, of a
//!   volume for its tenants. A member with as many as are free begins no further upload
//!   ([`has_share`]);
//! - a volume has one upload at a time until one has succeeded, and after a failed one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use umemcg_base::clock::{Clock, SystemClock};
use umemcg_base::{Condvar, LeafMutex, RateLimit, clock, contained};

use super::upload_queue::{Outcome, UploadQueue, has_share};

/// Most uploads of the process at a time, not counting the first of each store.
const NR_OF_PROCESS_MAX: usize = 64;
/// Most uploads of one store at a time.
const NR_OF_STORE_MAX: usize = 32;
/// The longest sleep of the dispatcher.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// The interval between attempts to start a thread after a refusal.
const REFUSED_INTERVAL: Duration = Duration::from_millis(250);

/// A volume with files to store.
pub(super) trait Uploads: Send + Sync + fmt::Debug {
    /// Tries once to store a file, given by its number. With `must` the upload is not put off, even
    /// if the file is being written.
    fn upload(&self, serial: u64, must: bool) -> Outcome;
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
    /// The volume that had the last upload.
    hand: u64,
    has_dispatcher: bool,
    /// A thread is on its way to the next upload.
    is_starting: bool,
    /// Uploads under way.
    nr_running: usize,
    /// Uploads under way, by store.
    of_store: HashMap<Arc<str>, usize>,
}

/// A volume.
#[derive(Debug)]
struct Member {
    uploads: Weak<dyn Uploads>,
    store: Arc<str>,
    queue: UploadQueue,
    is_stopped: bool,
}

/// An upload to run.
struct Next {
    volume: u64,
    serial: u64,
    uploads: Weak<dyn Uploads>,
    must: bool,
}

/// The uploads of one volume; no more of them begin when it is dropped.
#[derive(Debug)]
pub(super) struct Uploader {
    volume: u64,
    /// (C)
    pause: Duration,
}

impl Uploader {
    /// Creates an uploader with this first pause after a failed upload.
    pub(super) fn new(pause: Duration) -> Self {
        // Relaxed: only uniqueness matters.
        Self { volume: NEXT_VOLUME.fetch_add(1, Ordering::Relaxed), pause }
    }

    /// Sets the volume to serve, and its store, once, before anything is [added](Self::add).
    ///
    /// # Errors
    /// When the operating system refuses the first thread of all.
    pub(super) fn serve(&self, uploads: Weak<dyn Uploads>, store: Arc<str>) -> io::Result<()> {
        let queue = UploadQueue::new(self.pause);
        let member = Member { uploads, store, queue, is_stopped: false };
        POOL.state.lock().volumes.insert(self.volume, member);
        POOL.start_dispatcher()
    }

    /// Has a file of a tenant stored: soon, or if it `has_failed`, after a pause. Never waits.
    pub(super) fn add(&self, serial: u64, tenant: usize, has_failed: bool) {
        {
            let mut state = POOL.state.lock();
            let member = state.volumes.get_mut(&self.volume).filter(|member| !member.is_stopped);
            let Some(member) = member else { return };
            member.queue.add(serial, tenant, has_failed);
        }
        POOL.changed.notify_all();
        // Another volume may have been refused the thread.
        let _ = POOL.start_dispatcher();
    }

    /// Returns the number of uploads under way, and of files waiting for one.
    pub(super) fn nr_running_and_waiting(&self) -> (usize, usize) {
        let state = POOL.state.lock();
        let queue = state.volumes.get(&self.volume).map(|member| &member.queue);
        queue.map_or((0, 0), |queue| (queue.nr_running(), queue.nr_waiting()))
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

impl State {
    /// Returns the volume with the next upload. `Err` has the time of the next one, unless it must
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

    /// Returns whether one more upload of a volume may run.
    fn has_room(&self, member: &Member) -> bool {
        let of_store = self.of_store.get(&member.store).copied().unwrap_or(0);
        let is_first = of_store == 0;
        !member.is_stopped
            && (is_first || has_share(of_store, self.nr_running, NR_OF_PROCESS_MAX))
            && has_share(member.queue.nr_running(), of_store, NR_OF_STORE_MAX)
    }

    /// Takes the next upload.
    fn take(&mut self, now: Instant) -> Option<Next> {
        let volume = self.next(now).ok()?;
        let member = self.volumes.get_mut(&volume)?;
        let (serial, must) = member.queue.take(now)?;
        *self.of_store.entry(Arc::clone(&member.store)).or_default() += 1;
        self.nr_running += 1;
        self.hand = volume;
        Some(Next { volume, serial, uploads: Weak::clone(&member.uploads), must })
    }

    /// Notes the outcome of an upload.
    fn end(&mut self, next: &Next, outcome: Outcome) {
        self.nr_running -= 1;
        // It is there until its last upload has ended.
        let Some(member) = self.volumes.get_mut(&next.volume) else { return };
        match self.of_store.get_mut(&member.store) {
            Some(nr) if *nr > 1 => *nr -= 1,
            _ => drop(self.of_store.remove(&member.store)),
        }
        member.queue.end(next.serial, outcome);
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
        clock::spawn_detached("umemcg-uploads", move || self.dispatch())
            .inspect_err(|_| self.state.lock().has_dispatcher = false)
    }

    /// Starts threads for due uploads, until there are no volumes.
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
        clock::spawn_detached("umemcg-upload", move || self.serve()).inspect_err(|error| {
            if let Some(nr_left_out) = self.refusals.ask(self.clock.now()) {
                let nr_running = self.state.lock().nr_running;
                tracing::warn!(%error, nr_running, nr_left_out, "no further thread for uploads; it is asked for again");
            }
        })
    }

    /// Runs uploads until none is due.
    fn serve(&self) {
        self.state.lock().is_starting = false;
        loop {
            let next = self.state.lock().take(Instant::now());
            // Wakes the dispatcher, which sees to the next upload.
            self.changed.notify_all();
            let Some(next) = next else { return };
            let attempt = || next.uploads.upgrade().map(|uploads| uploads.upload(next.serial, next.must));
            let outcome = contained(attempt).unwrap_or(Some(Outcome::Failed)).unwrap_or(Outcome::Gone);
            self.state.lock().end(&next, outcome);
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

    impl Uploads for Told {
        fn upload(&self, serial: u64, _: bool) -> Outcome {
            self.0.send(serial).unwrap();
            Outcome::Stored
        }
    }

    fn member(uploads: Weak<dyn Uploads>, store: &str, files: u64) -> Member {
        let mut queue = UploadQueue::new(Duration::from_secs(1));
        (0..files).for_each(|serial| queue.add(serial, 1, false));
        Member { uploads, store: store.into(), queue, is_stopped: false }
    }

    /// A volume of a store, which has stored something.
    fn proven(store: &str) -> Member {
        let mut member = member(Weak::<Told>::new(), store, 1);
        member.queue.take(Instant::now()).unwrap();
        member.queue.end(0, Outcome::Stored);
        (0..9).for_each(|serial| member.queue.add(serial, 1, false));
        member
    }

    fn take_all(state: &mut State) {
        while state.take(Instant::now()).is_some() {}
    }

    #[test]
    fn a_store_that_hangs_leaves_places_to_others() {
        let mut state = State::default();
        for volume in 0..100 {
            state.volumes.insert(volume, proven("hanging"));
        }
        take_all(&mut state);
        assert_eq!(state.nr_running, NR_OF_STORE_MAX);
        state.volumes.insert(100, proven("good"));
        take_all(&mut state);
        assert!(state.of_store["good"] > 2, "{:?}", state.of_store);
    }

    #[test]
    fn the_first_upload_of_a_store_always_begins() {
        let mut state = State::default();
        for volume in 0..3 * NR_OF_PROCESS_MAX as u64 {
            state.volumes.insert(volume, proven(&volume.to_string()));
            take_all(&mut state);
            assert!(state.of_store.contains_key(&*volume.to_string()), "store {volume}");
        }
        let nr_first = state.of_store.len();
        assert!(state.nr_running <= NR_OF_PROCESS_MAX + nr_first, "{}", state.nr_running);
        // An ended upload counts no more.
        let next = Next { volume: 0, serial: 0, uploads: Weak::<Told>::new(), must: false };
        let before = state.of_store["0"];
        state.end(&next, Outcome::Stored);
        assert_eq!(state.of_store["0"], before - 1);
    }

    #[test]
    fn a_volume_of_a_slow_store_leaves_places_to_its_others() {
        let mut state = State::default();
        for volume in 0..8 {
            state.volumes.insert(volume, proven("slow"));
            take_all(&mut state);
            assert!(state.volumes[&volume].queue.nr_running() > 0, "volume {volume}");
        }
    }

    #[test]
    fn a_thread_that_was_refused_is_asked_for_again() {
        let pool: &'static Pool = Box::leak(Box::default());
        let (told, uploads) = channel();
        let volume: Arc<dyn Uploads> = Arc::new(Told(told));
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
