//! The time that requests of one thread take from charging pages to getting frames for them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::processor_time;

/// One such time. A thread that is preempted sees it in the first only.
#[derive(Debug, Clone, Copy)]
pub struct ChargeLatency {
    /// By the clock on the wall.
    pub real: Duration,
    /// Of the thread's processor time; what looking at that clock costs is part of it.
    pub cpu: Duration,
}

thread_local! {
    static LATENCIES: Cell<Option<Vec<ChargeLatency>>> = const { Cell::new(None) };
}

/// Starts recording this thread's times; returns those recorded since the last call.
pub fn take_charge_latencies() -> Vec<ChargeLatency> {
    LATENCIES.replace(Some(Vec::new())).unwrap_or_default()
}

/// Records how long `act`, which charges pages and gets frames for them, takes.
pub fn charge_to_frame<R>(act: impl FnOnce() -> R) -> R {
    let Some(mut latencies) = LATENCIES.take() else { return act() };
    let cpu = processor_time();
    let start = Instant::now();
    let result = act();
    let real = start.elapsed();
    latencies.push(ChargeLatency { real, cpu: processor_time() - cpu });
    LATENCIES.set(Some(latencies));
    result
}
