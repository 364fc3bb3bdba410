//! Threads of a schedule.

use std::cell::Cell;
use std::io;
use std::panic::Location;
use std::sync::Arc;

use super::{On, hand_over, state, wait};

const OUTSIDE: usize = usize::MAX;

/// A thread's number in the schedule. Its value in a thread of the schedule ends that thread's part
/// when it is dropped: the first thread-local that the thread uses, and therefore the last to go.
#[derive(Debug)]
pub struct Me(Cell<usize>);

thread_local! {
    static ME: Me = const { Me(Cell::new(OUTSIDE)) };
}

/// This thread's number, if it belongs to the schedule.
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

/// A thread that was started in the schedule.
#[derive(Debug)]
pub struct JoinHandle<T> {
    handle: std::thread::JoinHandle<T>,
    number: Option<usize>,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end.
    ///
    /// # Errors
    /// When it panicked.
    pub fn join(self) -> std::thread::Result<T> {
        if let Some(number) = self.number {
            join(number);
        }
        self.handle.join()
    }

    /// Whether this is the thread that asks.
    pub fn is_current(&self) -> bool {
        self.handle.thread().id() == std::thread::current().id()
    }
}

#[track_caller]
pub(super) fn join(number: usize) {
    let at = Location::caller();
    while super::me().is_some() && !state().threads[number].is_finished {
        wait(On::End(number), "the end of a thread", at, None);
    }
}

/// Starts a thread; it belongs to the schedule if the caller does.
///
/// # Errors
/// When the operating system refuses a thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let builder = std::thread::Builder::new().name(name.into());
    if me().is_none() {
        return Ok(JoinHandle { handle: builder.spawn(body)?, number: None });
    }
    let (number, turn) = state().start(name);
    let handle = builder.spawn(move || {
        // Not taken out again here: the thread's other locals go first.
        std::mem::forget(Me::enter(number));
        turn.take();
        body()
    })?;
    Ok(JoinHandle { handle, number: Some(number) })
}

/// Lets another thread go on.
pub fn yield_now() {
    match me() {
        Some(me) => {
            let mut state = state();
            state.step();
            hand_over(me, state, Some(me));
        }
        None => std::thread::yield_now(),
    }
}
