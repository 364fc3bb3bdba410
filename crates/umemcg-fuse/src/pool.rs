//! Who runs what may sleep.
//!
//! The threads of a session are alike. A *reader* waits for the kernel's requests and answers at once what needs no
//! sleep. When a request may sleep, the thread that read it stops being a reader and runs it on the spot, after it has made
//! sure that enough readers remain: a *spare* thread is woken, or a new one started. So nobody waits for a hand-over, and
//! there is always somebody at the device ("a device reader never sleeps", said the other way round).
//!
//! Every such request has two keys: the group that pays and the store (volume) that may hang. A key may start one
//! more request only while fewer of its requests run than there are places free: one key gets at most half
//! of the places, a second greedy one at most half of the rest, and so on, so that a newcomer always finds a place. What
//! may not start waits in the queue beside this file.
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
use crate::queue::Queue;
pub(crate) use crate::queue::Waiting;

/// How many threads do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// Fewer readers than this and another thread becomes one.
    pub readers_min: usize,
    /// With this many readers a thread that has become free rests instead.
    pub readers_max: usize,
    /// Requests that may sleep at the same time.
    pub running_max: usize,
    /// A spare thread that was not needed for this long ends.
    pub spare_life: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let readers_max = processors.clamp(2, 4);
        Self { readers_min: 1, readers_max, running_max: 32, spare_life: Duration::from_secs(10) }
    }
}

/// What a reader does with a request that may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Run it, then call [`Pool::finish`].
    Run,
    /// It waits for its turn; read on.
    Queued,
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
            limits.readers_min >= 1 && limits.readers_max >= limits.readers_min && limits.running_max >= 2
        );
        let state = State {
            nr_threads: 0,
            nr_readers: 0,
            nr_spare: 0,
            nr_called: 0,
            queue: Queue::new(limits.running_max),
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

    /// A reader has a request that may sleep. With [`Start::Run`] it is a reader no more; else `detach` has taken the
    /// request out of the reader's hands. `spawn` starts one thread, which begins as a reader.
    pub fn start(
        &self,
        keys: Keys,
        spawn: impl FnOnce() -> std::io::Result<()>,
        detach: impl FnOnce() -> J,
    ) -> Start {
        let mut state = self.state.lock();
        if !state.queue.may_start(keys) || !self.leave_device(&mut state, spawn) {
            state.queue.push(keys, detach());
            return Start::Queued;
        }
        state.queue.started(keys);
        Start::Run
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

    /// A request has been run. Says what is next; rests as a spare thread when there is nothing.
    pub fn finish(&self, keys: Keys) -> Next<J> {
        let mut state = self.state.lock();
        state.queue.finished(keys);
        self.next(&mut state)
    }

    fn next(&self, state: &mut MutexGuard<'_, State<J>>) -> Next<J> {
        loop {
            if state.ended {
                return self.exit(state);
            }
            if let Some((keys, job)) = state.queue.pick() {
                if state.queue.may_pick() && state.nr_spare > state.nr_called {
                    self.spare.notify_one();
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
        let limits = PoolLimits { readers_min: 1, readers_max: 2, running_max, spare_life: Duration::ZERO };
        let pool = Pool::new(limits);
        pool.open(|| Ok(())).unwrap();
        pool
    }

    fn start(pool: &Pool<Job>, group: u64, store: u64, job: u32) -> Start {
        pool.start(Keys { group, store }, || Ok(()), || Job(job))
    }

    #[test]
    fn a_reader_always_remains() {
        let pool = pool(16);
        for n in 0..8 {
            assert_eq!(start(&pool, n, n, 0), Start::Run);
            assert!(pool.census().nr_readers >= 1);
        }
        assert_eq!(pool.census().nr_threads, 9);
    }

    #[test]
    fn without_further_threads_the_last_reader_stays_while_somebody_else_runs() {
        let pool = pool(16);
        let refuse = || Err(std::io::ErrorKind::WouldBlock.into());
        let keys = |n| Keys { group: n, store: n };
        assert_eq!(pool.start(keys(1), refuse, || Job(1)), Start::Run);
        assert_eq!(pool.start(keys(2), refuse, || Job(2)), Start::Queued);
        assert_eq!(pool.finish(keys(1)), Next::Run(keys(2), Job(2)));
    }

    #[test]
    fn the_end_releases_everybody() {
        let pool = pool(4);
        start(&pool, 1, 1, 0);
        start(&pool, 1, 1, 1);
        start(&pool, 1, 1, 2);
        let waiting = pool.end();
        assert!(!waiting.is_empty());
        assert_eq!(pool.finish(Keys { group: 1, store: 1 }), Next::Exit);
    }
}
