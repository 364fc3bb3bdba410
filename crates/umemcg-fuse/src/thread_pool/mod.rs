//! The threads of a session, and the requests waiting for one of them.
//!
//! All threads of a session are equal. A *reader* waits for the kernel's requests, and answers a
//! request immediately if it needs no sleep. Before a reader runs a request that may sleep, it
//! makes sure that enough readers remain: it wakes a *spare* thread or starts a new one. Then it is
//! a reader no longer, and runs the request itself. So no request waits for a hand-over, and there
//! is always a reader at the device.
//!
//! Every such request has two keys: the paying group, and the store (volume), which may hang. The
//! queue (`queue/mod.rs`) decides which requests may start, and holds the others. A waiting request
//! is copied out of the reader's buffer, or takes a full buffer along, with no lock held.
//!
//! After a request, a thread first *receives* the *ready* requests from the device, up to a bound,
//! and only then runs a waiting one. The device's queue holds the requests of all tenants in one
//! line, and the readers alone fall behind while they share the processors with running requests
//! (`umemcg-bench tenants`).
//!
//! The number of requests computing at the same time is bounded by the number of processors
//! (`computing.rs`). A thread notifies the pool when its request waits (`Pool::waits`), and another
//! may start. While a request waits for nothing but a processor, one spare thread *ticks*: it
//! checks periodically for requests with an expired lease.
//!
//! Readers sleep in the device's `read`, one for each processor. The cost of a small request is the
//! wake-up of the reader and of the requester. With one requester, on two processors of a virtual
//! machine, reads of 4 KiB reach 18 k a second when both are bound to different processors, 120 k
//! on the same one, and about 50 k where the scheduler puts them. Two readers take turns, so one of
//! them last ran on the requester's processor. A single reader is woken across processors (26 k). A
//! third reader wins nothing with one requester (59 k against 53 k) and loses half with two (108 k
//! against 212 k).

use std::time::{Duration, Instant};

use umemcg_base::{Condvar, LeafMutex, LeafMutexGuard, Wait};

use crate::computing::Run;
pub use crate::pool_limits::PoolLimits;
pub use crate::queue::Keys;
use crate::queue::Queue;
pub(crate) use crate::queue::{Started, Waiting};

/// The verdict on a request that may sleep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Run it, then call [`Pool::finish`].
    Run(Started),
    /// It must wait for its turn: [`Pool::enqueue`] it.
    Wait,
    /// Too many of its group wait already.
    Refuse,
}

/// The next task of a thread after a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<J> {
    /// Read requests.
    Read,
    /// Take the requests ready at the device without waiting for more, then call
    /// [`Pool::received_ready`].
    ReceiveReady,
    /// Run this one.
    Run(Started, J),
    /// End.
    Exit,
}

/// The threads of a session, counted by task, and the queue of waiting requests.
pub(crate) struct Pool<J> {
    limits: PoolLimits,
    /// The device can be asked for requests without waiting.
    may_receive_ready: bool,
    state: LeafMutex<PoolState<J>>,
    spare: Condvar,
    ended: Condvar,
}

struct PoolState<J> {
    nr_threads: usize,
    /// Threads at the device, and spare threads called to it.
    nr_readers: usize,
    nr_spare: usize,
    /// Spare threads called to the device and not awake yet.
    nr_called: usize,
    /// Threads started for waiting requests and not in [`Pool::join`] yet.
    nr_coming: usize,
    /// A spare thread ticks: it checks again after a lease.
    is_ticking: bool,
    queue: Queue<J>,
    ended: bool,
}

impl<J: Waiting> PoolState<J> {
    /// Returns whether the queue needs a thread, to run a request or to tick.
    fn wants_thread(&mut self) -> bool {
        self.queue.may_pick() || (!self.is_ticking && self.queue.wants_processor().is_some())
    }
}

impl<J: Waiting> Pool<J> {
    /// Creates a pool without threads.
    pub fn new(limits: PoolLimits, may_receive_ready: bool) -> Self {
        assert!(
            limits.readers_min >= 1 && limits.readers_max >= limits.readers_min && limits.running_max >= 4
        );
        let state = PoolState {
            nr_threads: 0,
            nr_readers: 0,
            nr_spare: 0,
            nr_called: 0,
            nr_coming: 0,
            is_ticking: false,
            queue: Queue::new(limits),
            ended: false,
        };
        Self {
            limits,
            may_receive_ready,
            state: LeafMutex::new(state),
            spare: Condvar::default(),
            ended: Condvar::default(),
        }
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

    /// Starts a reader's request that may sleep. With [`Start::Run`] the calling thread is a reader
    /// no longer. `spawn` starts one thread, which begins as a reader.
    pub fn start(&self, keys: Keys, spawn: impl FnOnce() -> std::io::Result<()>) -> Start {
        let mut state = self.state.lock();
        if !state.queue.may_start(keys) {
            return if state.queue.may_wait(keys) { Start::Wait } else { Start::Refuse };
        }
        if !self.leave_device(&mut state, spawn) {
            return Start::Wait;
        }
        Start::Run(state.queue.started(keys))
    }

    /// Notes that a running request waits. `spawn` starts one thread, which begins with
    /// [`join`](Self::join).
    pub fn waits(&self, run: Run, how: Wait, spawn: impl Fn() -> std::io::Result<()>) -> Run {
        let mut state = self.state.lock();
        let run = state.queue.waits(run, how);
        self.attend(&mut state, spawn);
        run
    }

    /// Notes that a waiting request continues.
    pub fn goes_on(&self, run: Run) -> Run {
        self.state.lock().queue.goes_on(run)
    }

    /// Wakes or starts a thread if a waiting request may run, or if one must tick.
    fn attend(&self, state: &mut PoolState<J>, spawn: impl Fn() -> std::io::Result<()>) {
        if state.wants_thread() {
            if state.nr_spare > state.nr_called {
                self.spare.notify_one();
            } else if state.nr_coming == 0 && spawn().is_ok() {
                // The new thread starts the next one if more are needed.
                state.nr_threads += 1;
                state.nr_coming += 1;
            }
        }
    }

    /// Queues a reader's request. If places have become free in between, returns a request to run,
    /// and the calling thread is a reader no longer.
    pub fn enqueue(
        &self,
        keys: Keys,
        job: J,
        spawn: impl FnOnce() -> std::io::Result<()>,
        spawn_runner: impl Fn() -> std::io::Result<()>,
    ) -> Option<(Started, J)> {
        // Dropped after the lock: requests release memory.
        let _settled;
        let mut state = self.state.lock();
        if state.ended {
            return None;
        }
        _settled = state.queue.push(keys, job);
        if state.queue.may_pick() && self.leave_device(&mut state, spawn) {
            return state.queue.pick();
        }
        self.attend(&mut state, spawn_runner);
        None
    }

    /// Takes a reader off the device, and makes sure that enough remain. Returns false if it must
    /// stay, because no further thread can be started.
    fn leave_device(&self, state: &mut PoolState<J>, spawn: impl FnOnce() -> std::io::Result<()>) -> bool {
        if state.nr_readers > self.limits.readers_min {
            state.nr_readers -= 1;
            return true;
        }
        if state.nr_spare > state.nr_called + usize::from(state.is_ticking) {
            state.nr_called += 1;
            self.spare.notify_one();
            return true;
        }
        state.nr_threads += 1;
        match spawn() {
            Ok(()) => true,
            Err(error) => {
                // Each request logs it: a warning, since the log limits their rate.
                tracing::warn!(%error, "no further thread is to be had; requests wait for those that there are");
                state.nr_threads -= 1;
                if state.nr_readers > 1 {
                    state.nr_readers -= 1;
                    return true;
                }
                // The last reader may leave when no other thread could run the waiting requests:
                // late is better than never.
                if state.queue.nr_running() == 0 {
                    state.nr_readers -= 1;
                    return true;
                }
                false
            }
        }
    }

    /// Notes the end of a request, and returns the thread's next task. Without one, waits as a
    /// spare thread. `spawn` starts one thread, which begins with [`join`](Self::join).
    pub fn finish(&self, started: &Started, spawn: impl Fn() -> std::io::Result<()>) -> Next<J> {
        let mut state = self.state.lock();
        state.queue.finished(started);
        if self.may_receive_ready && !state.ended && state.queue.may_pick() {
            state.nr_readers += 1;
            return Next::ReceiveReady;
        }
        self.next(&mut state, spawn)
    }

    /// Notes that a thread has taken the ready requests. `spawn` starts a thread as a reader.
    /// `spawn_runner` starts a thread whose first call is [`join`](Self::join).
    pub fn received_ready(
        &self,
        spawn: impl FnOnce() -> std::io::Result<()>,
        spawn_runner: impl Fn() -> std::io::Result<()>,
    ) -> Next<J> {
        let mut state = self.state.lock();
        if !state.ended && !self.leave_device(&mut state, spawn) {
            return Next::Read;
        }
        self.next(&mut state, spawn_runner)
    }

    /// Has another thread run the waiting requests, since this one has a request of its own.
    pub fn hand_over(&self, spawn_runner: impl Fn() -> std::io::Result<()>) {
        self.attend(&mut self.state.lock(), spawn_runner);
    }

    /// Begins a thread started for waiting requests, and returns its first task.
    pub fn join(&self, spawn: impl Fn() -> std::io::Result<()>) -> Next<J> {
        let mut state = self.state.lock();
        state.nr_coming = state.nr_coming.saturating_sub(1);
        self.next(&mut state, spawn)
    }

    /// Counts a request that waits for its store without a thread. Returns `false` if too many of
    /// its group wait already, unless it has been resumed and waits again.
    pub fn park(&self, keys: Keys, is_resumed: bool) -> bool {
        self.state.lock().queue.park(keys, is_resumed)
    }

    /// Notes that a parked request has been given up.
    pub fn unpark(&self, keys: Keys) {
        let mut state = self.state.lock();
        self.end_parking(&mut state, keys);
    }

    fn end_parking(&self, state: &mut PoolState<J>, keys: Keys) {
        state.queue.unpark(keys);
        if state.ended {
            self.ended.notify_all();
        }
    }

    /// Queues a parked request to continue. Returns requests to be dropped with no lock held.
    pub fn resume(&self, keys: Keys, job: J, spawn_runner: impl Fn() -> std::io::Result<()>) -> Vec<J> {
        let mut state = self.state.lock();
        self.end_parking(&mut state, keys);
        if state.ended {
            return vec![job];
        }
        let settled = state.queue.push(keys.to_go_on(), job);
        self.attend(&mut state, spawn_runner);
        settled
    }

    fn next(
        &self,
        state: &mut LeafMutexGuard<'_, PoolState<J>>,
        spawn: impl Fn() -> std::io::Result<()>,
    ) -> Next<J> {
        loop {
            if state.ended {
                return self.exit(state);
            }
            let wants_processor = state.queue.wants_processor();
            if let Some((started, job)) = state.queue.pick() {
                // This request may hang: other startable requests must not wait for it.
                self.attend(state, spawn);
                return Next::Run(started, job);
            }
            let look_again = wants_processor.filter(|_| !state.is_ticking);
            let ticks = look_again.is_some();
            let readers_max = if ticks { self.limits.readers_min } else { self.limits.readers_max };
            if state.nr_readers < readers_max {
                state.nr_readers += 1;
                return Next::Read;
            }
            state.is_ticking |= ticks;
            state.nr_spare += 1;
            let timeout = look_again.unwrap_or(self.limits.spare_life);
            let timed_out = self.spare.wait_for(state, timeout).timed_out();
            state.nr_spare -= 1;
            state.is_ticking &= !ticks;
            if state.nr_called > 0 {
                state.nr_called -= 1;
                // Another thread takes over the ticking.
                self.attend(state, spawn);
                return Next::Read;
            }
            // A request queued since the timeout has notified this thread, which no longer waited.
            if timed_out && !ticks && !state.wants_thread() {
                return self.exit(state);
            }
        }
    }

    fn exit(&self, state: &mut LeafMutexGuard<'_, PoolState<J>>) -> Next<J> {
        state.nr_threads -= 1;
        self.ended.notify_all();
        Next::Exit
    }

    /// Ends the pool, after a reader has found the connection ended. Returns the waiting requests,
    /// to be dropped.
    pub fn end(&self) -> Vec<J> {
        let mut state = self.state.lock();
        state.ended = true;
        state.nr_readers = state.nr_readers.saturating_sub(1);
        let _ = self.exit(&mut state);
        self.spare.notify_all();
        state.queue.clear()
    }

    /// Takes out waiting requests already answered or abandoned, to be dropped.
    pub fn sweep(&self) -> Vec<J> {
        self.state.lock().queue.sweep()
    }

    /// Waits until every thread has ended and no request is parked. Returns false after `timeout`.
    pub fn wait_ended(&self, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |state| state.nr_threads == 0 && state.queue.nr_parked() == 0)
    }

    /// Waits until a reader has ended the pool. Returns false after `timeout`.
    pub fn wait_gone(&self, timeout: Option<Duration>) -> bool {
        self.wait_until(timeout, |state| state.ended)
    }

    fn wait_until(&self, timeout: Option<Duration>, done: impl Fn(&PoolState<J>) -> bool) -> bool {
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

    /// Returns the numbers of threads and requests, for messages and tests.
    pub fn pool_counts(&self) -> PoolCounts {
        let state = self.state.lock();
        PoolCounts {
            nr_threads: state.nr_threads,
            nr_readers: state.nr_readers,
            nr_running: state.queue.nr_running(),
            nr_waiting: state.queue.len(),
            nr_parked: state.queue.nr_parked(),
        }
    }
}

/// The numbers of threads by task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolCounts {
    /// All.
    pub nr_threads: usize,
    /// At the device or on the way there.
    pub nr_readers: usize,
    /// Requests running that may sleep.
    pub nr_running: usize,
    /// Requests waiting for their turn.
    pub nr_waiting: usize,
    /// Requests that wait for their store without a thread.
    pub nr_parked: usize,
}

#[cfg(test)]
mod tests;
