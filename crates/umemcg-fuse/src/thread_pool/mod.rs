//! The threads that run requests that may sleep.
//!
//! The threads of a session are alike. A *reader* waits for the kernel's requests and answers
//! immediately what needs no sleep. When a request may sleep, the thread that read it stops being a
//! reader and runs it on the spot, after it has made sure that enough readers remain: a *spare*
//! thread is woken, or a new one started. So no request waits for a hand-over, and there is always
//! a reader at the device.
//!
//! Every such request has two keys: the group that pays and the store (volume) that may hang. The
//! queue beside this file says which may start; the others wait there. A request that has to wait
//! is copied out of the reader's buffer, or takes a full buffer along, with no lock held.
//!
//! A thread that has run a request first *receives* what is *ready* before it runs one that waits:
//! it takes the requests that are there, up to a bound. All tenants' requests stand in one line
//! there, and the readers alone fall behind when they share the processors with what runs
//! (`umemcg-bench storm`).
//!
//! The number of requests that compute at the same time is bounded by the number of processors
//! (`computing.rs`): a thread tells the pool when its request waits (`Pool::waits`), and another
//! may start. While something waits for nothing but a processor, one spare thread *ticks*: it
//! checks periodically for requests whose lease has ended.
//!
//! Readers sleep in the device's `read`, one for each processor. What a small request costs is the
//! waking of the reader and of the requester: with one requester, on two processors of a virtual
//! machine, 18 k reads of 4 KiB a second when they are bound to different processors, 120 k on the
//! same one, about 50 k where the scheduler puts them, whatever is served. Two readers take turns,
//! so one of them last ran where the requester runs; one alone is woken across (26 k), and a third
//! wins nothing with one requester (59 k against 53 k) and loses half with two (108 k against 212
//! k).

use std::fmt;
use std::time::{Duration, Instant};

use umemcg_base::{Condvar, LeafMutex, LeafMutexGuard, Wait};

use crate::computing::Run;
pub use crate::pool_limits::PoolLimits;
pub use crate::queue::Keys;
use crate::queue::{ConcurrencyLimits, Queue};
pub(crate) use crate::queue::{Started, Waiting};

/// A reader's way to start a request that may sleep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Run it, then call [`Pool::finish`].
    Run(Started),
    /// It has to wait for its turn: [`Pool::enqueue`] it.
    Wait,
    /// Too many of its group wait already.
    Refuse,
}

/// The next task of a thread that has run a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<J> {
    /// Read requests.
    Read,
    /// Take the requests that are at the device without waiting for more, then call
    /// [`Pool::received_ready`].
    ReceiveReady,
    /// Run this one.
    Run(Started, J),
    /// End.
    Exit,
}

/// The threads of a session by what they do, and what waits for them.
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
    /// Threads at the device, and spare ones that have been told to go there.
    nr_readers: usize,
    nr_spare: usize,
    /// Spare threads that have been told to become readers and have not woken yet.
    nr_called: usize,
    /// A spare thread looks again after a lease.
    is_ticking: bool,
    queue: Queue<J>,
    ended: bool,
}

impl<J: Waiting> Pool<J> {
    /// Creates a pool without threads.
    pub fn new(limits: PoolLimits, may_receive_ready: bool) -> Self {
        assert!(
            limits.readers_min >= 1 && limits.readers_max >= limits.readers_min && limits.running_max >= 4
        );
        let PoolLimits { running_max, all_max, computing_max, .. } = limits;
        let state = PoolState {
            nr_threads: 0,
            nr_readers: 0,
            nr_spare: 0,
            nr_called: 0,
            is_ticking: false,
            queue: Queue::new(ConcurrencyLimits { running_max, all_max, computing_max }),
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

    /// Starts a request that may sleep, which a reader has. With [`Start::Run`] it is a reader no
    /// more. `spawn` starts one thread, which begins as a reader.
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

    /// Notes that it goes on.
    pub fn goes_on(&self, run: Run) -> Run {
        self.state.lock().queue.goes_on(run)
    }

    /// Sees to it that a thread comes for what may run, and that one looks again at what a
    /// processor is wanted for.
    fn attend(&self, state: &mut PoolState<J>, spawn: impl Fn() -> std::io::Result<()>) {
        if state.queue.may_pick() || (!state.is_ticking && state.queue.wants_processor().is_some()) {
            if state.nr_spare > state.nr_called {
                self.spare.notify_one();
            } else if spawn().is_ok() {
                state.nr_threads += 1;
            }
        }
    }

    /// Lets a reader's request wait. If there is something for it to run, since places have become
    /// free in between, it is a reader no more.
    pub fn enqueue(
        &self,
        keys: Keys,
        job: J,
        spawn: impl FnOnce() -> std::io::Result<()>,
        spawn_runner: impl Fn() -> std::io::Result<()>,
    ) -> Option<(Started, J)> {
        // Dropped when the lock is not held any more: requests give back memory.
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
    /// stay, because no other thread can be had.
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
                tracing::error!(%error, "no further thread is to be had; requests wait for those that there are");
                state.nr_threads -= 1;
                if state.nr_readers > 1 {
                    state.nr_readers -= 1;
                    return true;
                }
                // The last reader may leave when no other thread could run what waits: late is
                // better than never.
                if state.queue.nr_running() == 0 {
                    state.nr_readers -= 1;
                    return true;
                }
                false
            }
        }
    }

    /// Notes that a request has been run. Returns what is next; rests as a spare thread when there
    /// is nothing. `spawn` starts one thread, which begins with [`join`](Self::join).
    pub fn finish(&self, started: &Started, spawn: impl Fn() -> std::io::Result<()>) -> Next<J> {
        let mut state = self.state.lock();
        state.queue.finished(started);
        if self.may_receive_ready && !state.ended && state.queue.may_pick() {
            state.nr_readers += 1;
            return Next::ReceiveReady;
        }
        self.next(&mut state, spawn)
    }

    /// Notes that a thread has taken the requests that were there. `spawn` starts one thread, which
    /// begins as a reader, `spawn_runner` one that begins with [`join`](Self::join).
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

    /// Sees to it that another thread runs what waits, since this one has something else to run.
    pub fn hand_over(&self, spawn_runner: impl Fn() -> std::io::Result<()>) {
        self.attend(&mut self.state.lock(), spawn_runner);
    }

    /// Begins a thread that was started because something waits that may run.
    pub fn join(&self, spawn: impl Fn() -> std::io::Result<()>) -> Next<J> {
        self.next(&mut self.state.lock(), spawn)
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
                // This one may hang: what else may run does not wait for it.
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
                // Another takes over the ticking.
                self.attend(state, spawn);
                return Next::Read;
            }
            if timed_out && !ticks && !state.ended {
                return self.exit(state);
            }
        }
    }

    fn exit(&self, state: &mut LeafMutexGuard<'_, PoolState<J>>) -> Next<J> {
        state.nr_threads -= 1;
        self.ended.notify_all();
        Next::Exit
    }

    /// Ends the pool: a reader has learnt that there will be no more requests. Returns what was
    /// waiting, to be dropped.
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

    /// Returns how many threads do what, for messages and tests.
    pub fn pool_counts(&self) -> PoolCounts {
        let state = self.state.lock();
        PoolCounts {
            nr_threads: state.nr_threads,
            nr_readers: state.nr_readers,
            nr_running: state.queue.nr_running(),
            nr_waiting: state.queue.len(),
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
    /// Running what may sleep.
    pub nr_running: usize,
    /// Requests that wait for their turn.
    pub nr_waiting: usize,
}

impl<J: Waiting> fmt::Debug for Pool<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool_counts().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Job(u32);

    impl Waiting for Job {
        fn is_finished(&self) -> bool {
            false
        }
    }

    /// One that is no longer wanted, and that gives something back under a lock.
    struct Killed(Arc<LeafMutex<usize>>);

    impl Waiting for Killed {
        fn is_finished(&self) -> bool {
            true
        }
    }

    impl Drop for Killed {
        fn drop(&mut self) {
            *self.0.lock() += 1;
        }
    }

    fn pool<J: Waiting>(running_max: usize) -> Pool<J> {
        let limits = PoolLimits {
            readers_min: 1,
            readers_max: 2,
            running_max,
            all_max: 2 * running_max,
            computing_max: 100,
            spare_life: Duration::ZERO,
        };
        let pool = Pool::new(limits, false);
        pool.open(|| Ok(())).unwrap();
        pool
    }

    /// Starts a request or lets it wait.
    fn ask(pool: &Pool<Job>, group: u64, store: u64, job: u32) -> Start {
        let keys = Keys { group, store };
        let start = pool.start(keys, || Ok(()));
        if start == Start::Wait {
            assert!(pool.enqueue(keys, Job(job), || Ok(()), || Ok(())).is_none());
        }
        start
    }

    fn started(start: Start) -> Option<Started> {
        if let Start::Run(started) = start { Some(started) } else { None }
    }

    fn picked(next: Next<Job>) -> Option<(Keys, Job)> {
        if let Next::Run(started, job) = next { Some((started.keys, job)) } else { None }
    }

    #[test]
    fn what_was_killed_while_it_waited_goes_with_no_lock_held() {
        let (pool, nr_gone) = (pool::<Killed>(4), Arc::<LeafMutex<usize>>::default());
        let keys = Keys { group: 1, store: 1 };
        while started(pool.start(keys, || Ok(()))).is_some() {}
        while *nr_gone.lock() == 0 {
            assert!(pool.enqueue(keys, Killed(Arc::clone(&nr_gone)), || Ok(()), || Ok(())).is_none());
        }
        assert_eq!(*nr_gone.lock(), 64);
        assert_eq!(pool.pool_counts().nr_waiting, 1);
    }

    #[test]
    fn a_reader_always_remains() {
        let pool = pool(16);
        for n in 0..8 {
            assert!(matches!(ask(&pool, n, n, 0), Start::Run(_)));
            assert!(pool.pool_counts().nr_readers >= 1);
        }
        assert_eq!(pool.pool_counts().nr_threads, 9);
    }

    #[test]
    fn without_more_threads_the_last_reader_stays_at_the_device() {
        let pool = pool(16);
        let refuse = || Err(std::io::ErrorKind::WouldBlock.into());
        let keys = |n| Keys { group: n, store: n };
        let Start::Run(first) = pool.start(keys(1), refuse) else { panic!("it may start") };
        assert_eq!(pool.start(keys(2), refuse), Start::Wait);
        assert_eq!(pool.enqueue(keys(2), Job(2), refuse, refuse), None);
        assert_eq!(picked(pool.finish(&first, refuse)), Some((keys(2), Job(2))));
    }

    #[test]
    fn what_may_run_since_it_was_told_to_wait_is_run() {
        let pool = pool(4);
        let keys = Keys { group: 1, store: 1 };
        let mut running = Vec::new();
        while let Start::Run(started) = pool.start(keys, || Ok(())) {
            running.push(started);
        }
        let nr_running = pool.pool_counts().nr_running;
        for _ in 0..nr_running {
            assert_eq!(pool.finish(&running.pop().unwrap(), || Ok(())), Next::Read);
        }
        let next = pool.enqueue(keys, Job(1), || Ok(()), || Ok(()));
        assert_eq!(next.map(|(started, job)| (started.keys, job)), Some((keys, Job(1))));
    }

    #[test]
    fn what_else_may_run_does_not_wait_for_what_was_picked() {
        let pool = pool(4);
        let keys = |n| Keys { group: n, store: n };
        // Too many first ones run, so that further ones wait.
        let running: Vec<Started> = (0..8).filter_map(|n| started(ask(&pool, n, n, 0))).collect();
        assert_eq!(running.len(), 8);
        (8..10).for_each(|n| assert_eq!(ask(&pool, n, n, n as u32), Start::Wait));
        let started = std::cell::Cell::new(0);
        let spawn = || {
            started.set(started.get() + 1);
            Ok(())
        };
        assert_eq!(picked(pool.finish(&running[0], spawn)), Some((keys(8), Job(8))));
        assert_eq!(started.get(), 0, "nothing else may run");
        {
            let mut state = pool.state.lock();
            state.queue.finished(&running[1]);
            state.queue.finished(&running[2]);
            state.queue.push(keys(11), Job(11));
        }
        assert_eq!(picked(pool.finish(&running[3], spawn)), Some((keys(11), Job(11))));
        assert_eq!(started.get(), 1);
        assert_eq!(picked(pool.join(spawn)), Some((keys(9), Job(9))));
    }

    #[test]
    fn ready_requests_are_received_before_queued_ones_run() {
        let pool = Pool { may_receive_ready: true, ..pool(4) };
        let alone = started(ask(&pool, 2, 2, 0)).unwrap();
        assert_eq!(pool.finish(&alone, || Ok(())), Next::Read, "nothing waits");
        let first = started(ask(&pool, 1, 1, 1)).unwrap();
        assert_eq!(ask(&pool, 1, 1, 2), Start::Wait);
        let nr_readers = pool.pool_counts().nr_readers;
        assert_eq!(pool.finish(&first, || Ok(())), Next::ReceiveReady);
        assert_eq!(pool.pool_counts().nr_readers, nr_readers + 1);
        // A request from the device that may hang: what waits is for another thread.
        let nr_threads = pool.pool_counts().nr_threads;
        pool.hand_over(|| Ok(()));
        assert_eq!(pool.pool_counts().nr_threads, nr_threads + 1);
        let next = pool.received_ready(|| Ok(()), || Ok(()));
        assert_eq!(picked(next), Some((Keys { group: 1, store: 1 }, Job(2))));
        assert_eq!(pool.pool_counts().nr_readers, nr_readers);
    }

    #[test]
    fn the_end_releases_all_threads() {
        let pool = pool(4);
        let first = started(ask(&pool, 1, 1, 0));
        for job in 1..4 {
            ask(&pool, 1, 1, job);
        }
        let waiting = pool.end();
        assert!(!waiting.is_empty());
        assert_eq!(pool.finish(&first.unwrap(), || Ok(())), Next::Exit);
    }

    #[test]
    fn what_hangs_without_saying_so_gives_its_processor_up() {
        let pool = Pool::new(PoolLimits { computing_max: 1, ..pool::<Job>(64).limits }, false);
        pool.open(|| Ok(())).unwrap();
        let keys = Keys { group: 1, store: 1 };
        let wide = Keys { group: 2, store: 2 };
        let _hanging = started(pool.start(wide, || Ok(()))).unwrap();
        let running = started(pool.start(keys, || Ok(()))).unwrap();
        let _waiting = pool.waits(running.run, Wait::Sure, || Ok(()));
        let called = std::cell::Cell::new(0);
        let spawn = || {
            called.set(called.get() + 1);
            Ok(())
        };
        assert_eq!(pool.start(wide, || Ok(())), Start::Wait);
        assert!(pool.enqueue(wide, Job(7), || Ok(()), spawn).is_none());
        assert_eq!(called.get(), 1, "a thread that looks again");
        // That thread: nothing else happens any more.
        assert_eq!(picked(pool.join(|| Ok(()))), Some((wide, Job(7))));
    }
}
