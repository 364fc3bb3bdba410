//! The time from charging pages to getting frames for them, for requests of one thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::processor_time;

/// One such time. Preemption counts in `real` only.
#[derive(Debug, Clone, Copy)]
pub struct ChargeLatency {
    /// Wall-clock time.
    pub real: Duration,
    /// Processor time of the thread, including the cost of reading the clock.
    pub cpu: Duration,
}

thread_local! {
    static LATENCIES: Cell<Option<Vec<ChargeLatency>>> = const { Cell::new(None) };
}

/// Starts recording this thread's times; returns the times recorded since the last call.
pub fn take_charge_latencies() -> Vec<ChargeLatency> {
    LATENCIES.replace(Some(Vec::new())).unwrap_or_default()
}

/// Records the duration of `act`; `act` charges pages and gets frames for them.
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
