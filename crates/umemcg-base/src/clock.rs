//! Time and threads for the layers below the engine, so that a test can control both.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::held::assert_may_wait;
use crate::rank::Rank;
use crate::sync::Instant;

/// Monotonic time since an arbitrary origin.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the time since the clock's origin.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// Creates a clock that starts now.
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// A clock that moves only on request.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanoseconds: AtomicU64,
}

impl ManualClock {
    /// Creates a clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves time forward.
    pub fn advance(&self, by: Duration) {
        self.nanoseconds.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}

/// A named thread, joined when the value is dropped. The body must end soon after it is signaled to
/// stop.
#[derive(Debug)]
pub struct Worker {
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread; `name` is at most 15 bytes, so that the operating system shows it whole.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        debug_assert!(name.len() <= 15, "thread name {name} is cut by the operating system");
        let handle = start(name, body)?;
        Ok(Self { handle: Some(handle) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take()
            && !is_current(&handle)
        {
            assert_may_wait(Rank::Peer, "a wait for the end of a thread");
            let _ = handle.join();
        }
    }
}

/// Starts a detached thread. `name` is at most 15 bytes.
///
/// # Errors
/// When the operating system refuses a thread.
pub fn spawn_detached(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    debug_assert!(name.len() <= 15, "thread name {name} is cut by the operating system");
    let nr_refused = NR_REFUSED.get();
    if nr_refused > 0 {
        NR_REFUSED.set(nr_refused - 1);
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
    start(name, body).map(drop)
}

thread_local! {
    /// Detached threads still to be refused to this thread.
    static NR_REFUSED: Cell<u32> = const { Cell::new(0) };
}

/// Makes the next `nr` starts of detached threads by the calling thread fail. Returns the number of
/// refusals that were left. For tests of a shortage of threads.
#[doc(hidden)]
pub fn refuse_threads(nr: u32) -> u32 {
    NR_REFUSED.replace(nr)
}

#[cfg(not(schedule))]
use std::thread::JoinHandle;

#[cfg(not(schedule))]
fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(body)
}

#[cfg(not(schedule))]
fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == std::thread::current().id()
}

#[cfg(schedule)]
use crate::schedule::{JoinHandle, spawn as start};

#[cfg(schedule)]
fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.is_current()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_millis(5));
        assert_eq!(clock.now(), Duration::from_millis(5));
    }
}
