//! How long requests are on their way from charging pages to having frames for them, on one thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::processor_time;

/// One way. Who is sent off the processor in favour of somebody else sees it in the first only.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// By the clock on the wall.
    pub real: Duration,
    /// Of the thread's processor time; what looking at that clock costs is part of it.
    pub cpu: Duration,
}

thread_local! {
    static WAYS: Cell<Option<Vec<Way>>> = const { Cell::new(None) };
}

/// Begins to take note of this thread's ways; returns those since it did so last.
pub fn take_ways() -> Vec<Way> {
    WAYS.replace(Some(Vec::new())).unwrap_or_default()
}

/// What `act` does is a way from a charge to frames.
pub fn charge_to_frame<R>(act: impl FnOnce() -> R) -> R {
    let Some(mut ways) = WAYS.take() else { return act() };
    let cpu = processor_time();
    let start = Instant::now();
    let result = act();
    let real = start.elapsed();
    ways.push(Way { real, cpu: processor_time() - cpu });
    WAYS.set(Some(ways));
    result
}
