//! Who runs what may sleep.
//!
//! The threads of a session are alike. A *reader* waits for the kernel's requests and answers at once what needs no
//! sleep. When a request may sleep, the thread that read it stops being a reader and runs it on the spot, after it has made
//! sure that enough readers remain: a *spare* thread is woken, or a new one started. So nobody waits for a hand-over, and
//! there is always somebody at the device ("a device reader never sleeps", said the other way round).
//!
//! Every such request has two keys: the group that pays and the store (volume) that may hang. The queue beside this file says which may start;
//! the others wait there. A request that has to wait is moved out of the reader's buffer with no lock held: that may be a copy of a mebibyte.
//!
//! Readers sleep in the device's `read`, one for each processor. What a small request costs is the waking of the reader and
//! of the asker: with one asker, on two processors of a virtual machine, 18 k reads of 4 KiB a second when they are bound to
//! different processors, 120 k on the same one, about 50 k where the scheduler puts them, whatever is served. Two readers
//! take turns, so one of them last ran where the asker runs; one alone is woken across (26 k), and a third wins nothing
//! with one asker (59 k against 53 k) and loses half with two (108 k against 212 k).

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

pub use crate::queue::Keys;
pub(crate) use crate::queue::Waiting;
use crate::queue::{Places, Queue};

/// How many threads do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Fewer readers than this and another thread becomes one.
    pub readers_min: usize,
    /// With this many readers a thread that has become free rests instead.
    pub readers_max: usize,
    /// Requests that may sleep at the same time, whoever makes them.
    pub running_max: usize,
    /// Beyond that only the first of a group on a store, up to so many altogether.
    pub first_max: usize,
    /// A spare thread that was not needed for this long ends.
    pub spare_life: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let readers_max = processors.clamp(2, 4);
        Self {
            readers_min: 1,
            readers_max,
            running_max: 64,
            first_max: 128,
            spare_life: Duration::from_secs(10),
        }
    }
}

/// What a reader does with a request that may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Run it, then call [`Pool::finish`].
    Run,
    /// It has to wait for its turn: [`Pool::enqueue`] it.
    Wait,
    /// Too many of its group wait already.
    Refuse,
}

/// What a thread does that has run a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<J> {
    /// Read requests.
    Read,
    /// Run this one.
    Run(Keys, J),
    /// End.
    Exit,
}

/// The threads of a session by what they do, and what waits for them.
pub(crate) struct Pool<J> {
    limits: PoolLimits,
    state: Mutex<State<J>>,
    spare: Condvar,
    ended: Condvar,
}

struct State<J> {
    nr_threads: usize,
    /// Threads at the device, and spare ones that have been told to go there.
    nr_readers: usize,
    nr_spare: usize,
    /// Spare threads that have been told to become readers and have not woken yet.
    nr_called: usize,
    queue: Queue<J>,
    ended: bool,
}

impl<J: Waiting> Pool<J> {
    pub fn new(limits: PoolLimits) -> Self {
        assert!(
            limits.readers_min >= 1 && limits.readers_max >= limits.readers_min && limits.running_max >= 4
        );
        let state = State {
            nr_threads: 0,
            nr_readers: 0,
            nr_spare: 0,
            nr_called: 0,
            queue: Queue::new(Places { running_max: limits.running_max, first_max: limits.first_max }),
            ended: false,
        };
        Self { limits, state: Mutex::new(state), spare: Condvar::new(), ended: Condvar::new() }
    }

    /// Starts the first readers. `spawn` starts one thread.
    pub fn open(&self, spawn: impl Fn() -> std::io::Result<()>) -> std::io::Result<()> {
        for _ in 0..self.limits.readers_max {
            let mut state = self.state.lock();
            state.nr_threads += 1;
            state.nr_readers += 1;
            if let Err(error) = spawn() {
                state.nr_threads -= 1;
                state.nr_readers -= 1;
                return Err(error);
            }
        }
        Ok(())
    }

    /// A reader has a request that may sleep. With [`Start::Run`] it is a reader no more. `spawn` starts one thread, which
    /// begins as a reader.
    pub fn start(&self, keys: Keys, spawn: impl FnOnce() -> std::io::Result<()>) -> Start {
        let mut state = self.state.lock();
        if !state.queue.may_start(keys) {
            return if state.queue.may_wait(keys) { Start::Wait } else { Start::Refuse };
        }
        if !self.leave_device(&mut state, spawn) {
            return Start::Wait;
        }
        state.queue.started(keys);
        Start::Run
    }

    /// A reader lets a request wait. If there is something for it to run, since places have become free in between, it is a reader no
    /// more.
    pub fn enqueue(
        &self,
        keys: Keys,
        job: J,
        spawn: impl FnOnce() -> std::io::Result<()>,
    ) -> Option<(Keys, J)> {
        let mut state = self.state.lock();
        if state.ended {
            return None;
        }
        state.queue.push(keys, job);
        if state.queue.may_pick() && self.leave_device(&mut state, spawn) { state.queue.pick() } else { None }
    }

    /// One reader less; makes sure that enough remain. False: it must stay, nobody else is to be had.
    fn leave_device(&self, state: &mut State<J>, spawn: impl FnOnce() -> std::io::Result<()>) -> bool {
        if state.nr_readers > self.limits.readers_min {
            state.nr_readers -= 1;
            return true;
        }
        if state.nr_spare > state.nr_called {
            state.nr_called += 1;
            self.spare.notify_one();
            return true;
        }
        state.nr_threads += 1;
        match spawn() {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "no further thread is to be had; requests wait for those that there are");
                state.nr_threads -= 1;
                if state.nr_readers > 1 {
                    state.nr_readers -= 1;
                    return true;
                }
                // The last reader may leave when nobody else could run what waits: late is better than never.
                if state.queue.nr_running() == 0 {
                    state.nr_readers -= 1;
                    return true;
                }
                false
            }
        }
    }

    /// A request has been run. Says what is next; rests as a spare thread when there is nothing. `spawn` starts one thread, which begins
    /// with [`join`](Self::join).
    pub fn finish(&self, keys: Keys, spawn: impl Fn() -> std::io::Result<()>) -> Next<J> {
        let mut state = self.state.lock();
        state.queue.finished(keys);
        self.next(&mut state, spawn)
    }

    /// A thread begins that was started because something waits that may run.
    pub fn join(&self, spawn: impl Fn() -> std::io::Result<()>) -> Next<J> {
        self.next(&mut self.state.lock(), spawn)
    }

    fn next(&self, state: &mut MutexGuard<'_, State<J>>, spawn: impl Fn() -> std::io::Result<()>) -> Next<J> {
        loop {
            if state.ended {
                return self.exit(state);
            }
            if let Some((keys, job)) = state.queue.pick() {
                // This one may hang: what else may run does not wait for it.
                if state.queue.may_pick() {
                    if state.nr_spare > state.nr_called {
                        self.spare.notify_one();
                    } else if spawn().is_ok() {
                        state.nr_threads += 1;
                    }
                }
                return Next::Run(keys, job);
            }
            if state.nr_readers < self.limits.readers_max {
                state.nr_readers += 1;
                return Next::Read;
            }
            state.nr_spare += 1;
            let timed_out = self.spare.wait_for(state, self.limits.spare_life).timed_out();
            state.nr_spare -= 1;
            if state.nr_called > 0 {
                state.nr_called -= 1;
                return Next::Read;
            }
            if timed_out && !state.ended {
                return self.exit(state);
            }
        }
    }

    fn exit(&self, state: &mut MutexGuard<'_, State<J>>) -> Next<J> {
        state.nr_threads -= 1;
        self.ended.notify_all();
        Next::Exit
    }

    /// A reader has learnt that there will be no more requests. Returns what was waiting, to be dropped.
    pub fn end(&self) -> Vec<J> {
        let mut state = self.state.lock();
        state.ended = true;
        state.nr_readers = state.nr_readers.saturating_sub(1);
        let _ = self.exit(&mut state);
        self.spare.notify_all();
        state.queue.clear()
    }

    /// Takes out what waits and is wanted no more, to be dropped.
    pub fn sweep(&self) -> Vec<J> {
        self.state.lock().queue.sweep()
    }

    /// Waits until every thread has ended; false when some have not within `timeout`.
    pub fn wait_ended(&self, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |state| state.nr_threads == 0)
    }

    /// Waits until a reader has said that it is over; false when none has within `timeout`.
    pub fn wait_gone(&self, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |state| state.ended)
    }

    fn wait_until(&self, timeout: Option<Duration>, done: impl Fn(&State<J>) -> bool) -> bool {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.state.lock();
        while !done(&state) {
            match deadline {
                None => self.ended.wait(&mut state),
                Some(deadline) => {
                    if self.ended.wait_until(&mut state, deadline).timed_out() {
                        return done(&state);
                    }
                }
            }
        }
        true
    }

    /// How things stand, for messages and tests.
    pub fn census(&self) -> Census {
        let state = self.state.lock();
        Census {
            nr_threads: state.nr_threads,
            nr_readers: state.nr_readers,
            nr_running: state.queue.nr_running(),
            nr_waiting: state.queue.len(),
        }
    }
}

/// How many threads do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// All.
    pub nr_threads: usize,
    /// At the device or on the way there.
    pub nr_readers: usize,
    /// Running what may sleep.
    pub nr_running: usize,
    /// Requests that wait for their turn.
    pub nr_waiting: usize,
}

impl<J: Waiting> fmt::Debug for Pool<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.census().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Job(u32);

    impl Waiting for Job {
        fn is_settled(&self) -> bool {
            false
        }
    }

    fn pool(running_max: usize) -> Pool<Job> {
        let limits = PoolLimits {
            readers_min: 1,
            readers_max: 2,
            running_max,
            first_max: 2 * running_max,
            spare_life: Duration::ZERO,
        };
        let pool = Pool::new(limits);
        pool.open(|| Ok(())).unwrap();
        pool
    }

    /// Starts a request or lets it wait.
    fn ask(pool: &Pool<Job>, group: u64, store: u64, job: u32) -> Start {
        let keys = Keys { group, store };
        let start = pool.start(keys, || Ok(()));
        if start == Start::Wait {
            assert!(pool.enqueue(keys, Job(job), || Ok(())).is_none());
        }
        start
    }

    #[test]
    fn a_reader_always_remains() {
        let pool = pool(16);
        for n in 0..8 {
            assert_eq!(ask(&pool, n, n, 0), Start::Run);
            assert!(pool.census().nr_readers >= 1);
        }
        assert_eq!(pool.census().nr_threads, 9);
    }

    #[test]
    fn without_further_threads_the_last_reader_stays_while_another_runs() {
        let pool = pool(16);
        let refuse = || Err(std::io::ErrorKind::WouldBlock.into());
        let keys = |n| Keys { group: n, store: n };
        assert_eq!(pool.start(keys(1), refuse), Start::Run);
        assert_eq!(pool.start(keys(2), refuse), Start::Wait);
        assert_eq!(pool.enqueue(keys(2), Job(2), refuse), None);
        assert_eq!(pool.finish(keys(1), refuse), Next::Run(keys(2), Job(2)));
    }

    #[test]
    fn what_may_run_since_it_was_told_to_wait_is_run() {
        let pool = pool(4);
        let keys = Keys { group: 1, store: 1 };
        while pool.start(keys, || Ok(())) == Start::Run {}
        let nr_running = pool.census().nr_running;
        for _ in 0..nr_running {
            assert_eq!(pool.finish(keys, || Ok(())), Next::Read);
        }
        assert_eq!(pool.enqueue(keys, Job(1), || Ok(())), Some((keys, Job(1))));
    }

    #[test]
    fn what_else_may_run_does_not_wait_for_what_was_picked() {
        let pool = pool(4);
        let keys = |n| Keys { group: n, store: n };
        // Too many first ones run, so that further ones wait.
        (0..8).for_each(|n| assert_eq!(ask(&pool, n, n, 0), Start::Run));
        (8..10).for_each(|n| assert_eq!(ask(&pool, n, n, n as u32), Start::Wait));
        let started = std::cell::Cell::new(0);
        let spawn = || {
            started.set(started.get() + 1);
            Ok(())
        };
        assert_eq!(pool.finish(keys(0), spawn), Next::Run(keys(8), Job(8)));
        assert_eq!(started.get(), 0, "nothing else may run");
        {
            let mut state = pool.state.lock();
            state.queue.finished(keys(1));
            state.queue.finished(keys(2));
            state.queue.push(keys(11), Job(11));
        }
        assert_eq!(pool.finish(keys(3), spawn), Next::Run(keys(11), Job(11)));
        assert_eq!(started.get(), 1);
        assert_eq!(pool.join(spawn), Next::Run(keys(9), Job(9)));
    }

    #[test]
    fn the_end_releases_everybody() {
        let pool = pool(4);
        for job in 0..4 {
            ask(&pool, 1, 1, job);
        }
        let waiting = pool.end();
        assert!(!waiting.is_empty());
        assert_eq!(pool.finish(Keys { group: 1, store: 1 }, || Ok(())), Next::Exit);
    }
}
