//! Starts threads of a schedule, and waits for their end.

use std::io;

use super::scheduler::{Me, hand_over, join, me, state};

/// A thread started in the schedule.
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

    /// Returns whether this is the calling thread.
    pub fn is_current(&self) -> bool {
        self.handle.thread().id() == std::thread::current().id()
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
        // The thread leaves the schedule later: its other thread-locals are dropped first.
        std::mem::forget(Me::enter(number));
        turn.take();
        body()
    })?;
    Ok(JoinHandle { handle, number: Some(number) })
}

/// Lets another thread run.
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
