//! The turns of threads: the running thread, the waits of the others, and the movement of time.

use std::cell::Cell;
use std::fmt::Write as _;
use std::panic::Location;
use std::sync::{Arc, Condvar as OsCondvar, Mutex as OsMutex, MutexGuard as OsGuard, PoisonError};
use std::time::Duration;

/// An operation not ended after this many steps of all threads counts as an endless loop.
const STEPS_MAX: u64 = 30_000_000;
/// Steps between two checks for such loops.
const LOOK_STEPS: u64 = 1 << 20;
/// The time that passes at each switch point.
const TICK: Duration = Duration::from_nanos(200);
/// An operation not ended after this much of the schedule's time counts as hanging.
pub const OPERATION_MAX: Duration = Duration::from_secs(900);

/// The frequency of switches: a switch point switches once in this many.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Before a lock is taken.
    pub lock: u32,
    /// Before an atomic operation.
    pub atomic: u32,
    /// A switch holds the thread once in this many.
    pub hold: u32,
    /// Most steps of holding a thread.
    pub hold_steps: u32,
}

/// The event awaited by a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    /// A lock or a condition variable, by address.
    Place(usize),
    /// The end of a thread.
    End(usize),
    /// Time alone.
    Time,
}

#[derive(Debug)]
struct Wait {
    on: On,
    what: &'static str,
    at: &'static Location<'static>,
    since: Duration,
    deadline: Option<Duration>,
}

/// A thread's permission to run.
#[derive(Debug, Default)]
pub(super) struct Turn {
    is_mine: OsMutex<bool>,
    given: OsCondvar,
}

impl Turn {
    pub(super) fn give(&self) {
        *unpoisoned(self.is_mine.lock()) = true;
        self.given.notify_one();
    }

    pub(super) fn take(&self) {
        let mut is_mine = unpoisoned(self.is_mine.lock());
        while !*is_mine {
            is_mine = unpoisoned(self.given.wait(is_mine));
        }
        *is_mine = false;
    }
}

fn unpoisoned<G>(result: Result<G, PoisonError<G>>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(super) struct Thread {
    name: String,
    turn: Arc<Turn>,
    wait: Option<Wait>,
    timed_out: bool,
    is_finished: bool,
    held_until_step: u64,
    /// Its locks, with the places where it took them.
    pub(super) locks: Vec<(usize, &'static Location<'static>)>,
    /// Its current operation, with the time and the step of its start.
    operation: Option<(String, Duration, u64)>,
}

impl Thread {
    fn deadline(&self) -> Option<Duration> {
        self.wait.as_ref().and_then(|wait| wait.deadline)
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) threads: Vec<Thread>,
    policy: Policy,
    random: u64,
    pub(super) now: Duration,
    /// A lower bound of the deadlines of waiting threads.
    first_deadline: Option<Duration>,
    nr_steps: u64,
    nr_switches: u64,
    /// A hash of every decision.
    trace: u64,
}

static STATE: OsMutex<State> = OsMutex::new(State {
    threads: Vec::new(),
    policy: Policy { lock: 1, atomic: 1, hold: 1, hold_steps: 1 },
    random: 0,
    now: Duration::ZERO,
    first_deadline: None,
    nr_steps: 0,
    nr_switches: 0,
    trace: 0xcbf2_9ce4_8422_2325,
});

pub(super) fn state() -> OsGuard<'static, State> {
    unpoisoned(STATE.lock())
}

impl State {
    fn below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed >> 32) * u64::from(bound)) >> 32) as u32
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub(super) fn start(&mut self, name: &str) -> (usize, Arc<Turn>) {
        let turn = Arc::<Turn>::default();
        self.threads.push(Thread {
            name: name.to_owned(),
            turn: Arc::clone(&turn),
            wait: None,
            timed_out: false,
            is_finished: false,
            held_until_step: 0,
            locks: Vec::new(),
            operation: None,
        });
        (self.threads.len() - 1, turn)
    }

    pub(super) fn wake(&mut self, on: On) {
        for thread in &mut self.threads {
            if thread.wait.as_ref().is_some_and(|wait| wait.on == on) {
                thread.wait = None;
            }
        }
    }

    pub(super) fn wake_one(&mut self, on: On) {
        let is_meant = |thread: &Thread| thread.wait.as_ref().is_some_and(|wait| wait.on == on);
        let nr = self.threads.iter().filter(|thread| is_meant(thread)).count();
        if nr > 0 {
            let chosen = self.below(nr as u32) as usize;
            if let Some(thread) = self.threads.iter_mut().filter(|thread| is_meant(thread)).nth(chosen) {
                thread.wait = None;
            }
        }
    }

    /// Returns a ready thread, not `unless` if there is another. Moves time when there is none.
    fn pick(&mut self, unless: Option<usize>) -> usize {
        loop {
            let steps = self.nr_steps;
            let is_ready = |thread: &Thread| !thread.is_finished && thread.wait.is_none();
            let choose = |state: &Self, also_held: bool, also_unless: bool| -> Vec<usize> {
                (0..state.threads.len())
                    .filter(|&at| is_ready(&state.threads[at]))
                    .filter(|&at| also_held || state.threads[at].held_until_step <= steps)
                    .filter(|&at| also_unless || Some(at) != unless)
                    .collect()
            };
            for (also_held, also_unless) in [(false, false), (true, false), (true, true)] {
                let ready = choose(self, also_held, also_unless);
                if !ready.is_empty() {
                    return ready[self.below(ready.len() as u32) as usize];
                }
            }
            self.pass_time();
        }
    }

    /// Advances to the first deadline, when every thread waits.
    fn pass_time(&mut self) {
        let Some(next) = self.threads.iter().filter_map(Thread::deadline).min() else {
            self.fail("every thread waits for another");
        };
        self.now = self.now.max(next);
        self.expire();
        let late = |thread: &&Thread| {
            thread.operation.as_ref().is_some_and(|(_, since, _)| self.now - *since > OPERATION_MAX)
        };
        if let Some(thread) = self.threads.iter().find(late) {
            let what = format!("{} does not end", thread.name);
            self.fail(&what);
        }
    }

    /// Ends the waits with a passed deadline.
    fn expire(&mut self) {
        for thread in &mut self.threads {
            if thread.deadline().is_some_and(|deadline| deadline <= self.now) {
                thread.wait = None;
                thread.timed_out = true;
            }
        }
        self.first_deadline = self.threads.iter().filter_map(Thread::deadline).min();
    }

    /// Counts one more step. Periodically checks for an operation in an endless loop.
    pub(super) fn step(&mut self) {
        self.nr_steps += 1;
        self.now += TICK;
        if self.first_deadline.is_some_and(|first| first <= self.now) {
            self.expire();
        }
        if self.nr_steps.is_multiple_of(LOOK_STEPS) {
            let steps = self.nr_steps;
            let is_late = |thread: &&Thread| {
                thread.operation.as_ref().is_some_and(|(_, _, since)| steps - since > STEPS_MAX)
            };
            if let Some(thread) = self.threads.iter().find(is_late) {
                let what = format!("{} goes in circles, or others around it", thread.name);
                self.fail(&what);
            }
        }
    }

    /// Describes the operation and the wait of each thread.
    fn describe(&self) -> String {
        let mut text = format!("step {}, {:.3} s:\n", self.nr_steps, self.now.as_secs_f64());
        for thread in self.threads.iter().filter(|thread| !thread.is_finished) {
            let _ = write!(text, "  {:<16}", thread.name);
            if let Some((what, since, _)) = &thread.operation {
                let _ = write!(text, "{what}, since {:.3} s; ", since.as_secs_f64());
            }
            match &thread.wait {
                None => text.push_str("ready"),
                Some(wait) => {
                    let limit = if wait.deadline.is_some() { " with a deadline" } else { "" };
                    let since = wait.since.as_secs_f64();
                    let _ = write!(text, "waits for {}{limit} at {}, since {since:.3} s", wait.what, wait.at);
                    let On::Place(place) = wait.on else {
                        text.push('\n');
                        continue;
                    };
                    for other in &self.threads {
                        for (_, at) in other.locks.iter().filter(|(lock, _)| *lock == place) {
                            let _ = write!(text, "; {} took it at {at}", other.name);
                        }
                    }
                }
            }
            text.push('\n');
        }
        text
    }

    fn fail(&self, what: &str) -> ! {
        eprintln!("HANG: {what}\n{}", self.describe());
        std::process::abort()
    }
}

/// Gives the turn to a ready thread, possibly this one.
pub(super) fn hand_over(me: usize, mut state: OsGuard<'static, State>, unless: Option<usize>) {
    let next = state.pick(unless);
    if next == me {
        return;
    }
    state.nr_switches += 1;
    let steps = state.nr_steps;
    state.note(steps << 8 | next as u64);
    let (theirs, mine) = (Arc::clone(&state.threads[next].turn), Arc::clone(&state.threads[me].turn));
    drop(state);
    theirs.give();
    mine.take();
}

/// Marks a switch point; it switches once in `rate` times.
pub(super) fn switch_point(rate: impl FnOnce(&Policy) -> u32) {
    let Some(me) = me() else { return };
    let mut state = state();
    state.step();
    let rate = rate(&state.policy);
    if state.below(rate) != 0 {
        return;
    }
    let Policy { hold, hold_steps, .. } = state.policy;
    if state.below(hold) == 0 {
        let steps = u64::from(state.below(hold_steps));
        state.threads[me].held_until_step = state.nr_steps + steps;
        return hand_over(me, state, Some(me));
    }
    hand_over(me, state, None);
}

/// Marks a switch point of a test, as likely as one before a lock.
pub fn pause() {
    switch_point(|policy| policy.lock);
}

/// Sleeps until woken or until the deadline. Returns `true` if it was woken.
pub(super) fn wait(
    on: On,
    what: &'static str,
    at: &'static Location<'static>,
    deadline: Option<Duration>,
) -> bool {
    let me = me().expect("a thread of the schedule waits");
    let mut state = state();
    state.step();
    let since = state.now;
    state.threads[me].timed_out = false;
    state.threads[me].wait = Some(Wait { on, what, at, since, deadline });
    state.first_deadline = state.first_deadline.into_iter().chain(deadline).min();
    hand_over(me, state, None);
    !std::mem::take(&mut self::state().threads[me].timed_out)
}

const OUTSIDE: usize = usize::MAX;

/// A thread's number in the schedule. Its drop ends the thread's part in the schedule: it is the
/// first thread-local used by the thread, and therefore the last one dropped.
#[derive(Debug)]
pub struct Me(Cell<usize>);

thread_local! {
    static ME: Me = const { Me(Cell::new(OUTSIDE)) };
}

/// Returns this thread's number, if it belongs to the schedule.
#[must_use]
pub fn me() -> Option<usize> {
    ME.try_with(|me| me.0.get()).ok().filter(|&me| me != OUTSIDE)
}

/// Takes the thread out of the schedule again.
#[derive(Debug)]
pub struct Entered;

impl Me {
    pub(super) fn enter(number: usize) -> Entered {
        ME.with(|me| me.0.set(number));
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        ME.with(|me| me.0.set(OUTSIDE));
    }
}

impl Drop for Me {
    fn drop(&mut self) {
        let me = self.0.replace(OUTSIDE);
        if me == OUTSIDE {
            return;
        }
        let mut state = state();
        state.threads[me].is_finished = true;
        state.wake(On::End(me));
        let next = state.pick(Some(me));
        let turn = Arc::clone(&state.threads[next].turn);
        drop(state);
        turn.give();
    }
}

#[track_caller]
pub(super) fn join(number: usize) {
    let at = Location::caller();
    while me().is_some() && !state().threads[number].is_finished {
        wait(On::End(number), "the end of a thread", at, None);
    }
}

/// Runs `body` in this thread with the turn, and then waits for the end of every thread started
/// meanwhile. One run in a process.
pub fn run<R>(seed: u64, policy: Policy, body: impl FnOnce() -> R) -> R {
    {
        let mut state = state();
        assert!(state.threads.is_empty(), "one run in a process");
        (state.random, state.policy) = (seed, policy);
        state.start("main");
    }
    let _me = Me::enter(0);
    let result = body();
    begin("the end of all threads");
    let mut at = 1;
    while at < state().threads.len() {
        join(at);
        at += 1;
    }
    end();
    result
}

/// Begins an operation of this thread; it must end within [`OPERATION_MAX`].
pub fn begin(what: impl Into<String>) {
    let Some(me) = me() else { return };
    let mut state = state();
    let (now, step) = (state.now, state.nr_steps);
    state.threads[me].operation = Some((what.into(), now, step));
}

/// Ends the operation of this thread.
pub fn end() {
    let Some(me) = me() else { return };
    state().threads[me].operation = None;
}

/// Folds a result into the trace.
pub fn note(what: u64) {
    state().note(what);
}

/// The progress of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Switch points passed.
    pub nr_steps: u64,
    /// Switch points with a switch.
    pub nr_switches: u64,
    /// The schedule's time.
    pub now: Duration,
    /// A hash of all decisions and noted results so far: equal runs have equal traces.
    pub trace: u64,
}

/// Returns the progress of the run.
pub fn progress() -> Progress {
    let state = state();
    Progress { nr_steps: state.nr_steps, nr_switches: state.nr_switches, now: state.now, trace: state.trace }
}

/// Describes the present state of each thread, for a failed test.
pub fn describe() -> String {
    STATE.try_lock().map_or_else(|_| "the scheduler is busy\n".to_owned(), |state| state.describe())
}

/// Starts an ordinary thread as a watchdog. It ends the process when no switch point has been
/// passed for `timeout` of the machine's time, because a thread sleeps or spins outside the facade.
/// It also ends the process when the run takes ten times as long, because threads make no progress.
pub fn watch(timeout: Duration) {
    std::thread::spawn(move || {
        let mut before = progress().nr_steps;
        for _ in 0..10 {
            std::thread::sleep(timeout);
            let now = progress().nr_steps;
            if now == before {
                state().fail("the thread that has the turn passes no switch point");
            }
            before = now;
        }
        state().fail("the run does not end");
    });
}
