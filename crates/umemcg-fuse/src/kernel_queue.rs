//! The time at which the kernel's queue of requests was last seen empty. Every request received
//! afterwards was queued after that time, by a thread alive after it. This distinguishes the
//! requesting thread from an earlier one with the same id.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::classify::since_boot_ns;
use crate::inflight::Inflight;
use crate::transport::Transport;
use crate::wire::init::NR_BACKGROUND_MAX;

/// The interval at which the queue is checked while requests arrive.
const LOOK_INTERVAL_MS: u64 = 8;

/// See the module text.
#[derive(Debug)]
pub(crate) struct KernelQueue {
    /// Nanoseconds since boot.
    empty_at_ns: AtomicU64,
    looked_at_ms: AtomicU64,
}

impl KernelQueue {
    /// Creates the state for a new connection.
    pub fn new() -> Self {
        Self { empty_at_ns: since_boot_ns().into(), looked_at_ms: AtomicU64::new(0) }
    }

    /// Returns a time before which the next request cannot have been queued. Checks the queue from
    /// time to time.
    pub fn look(&self, transport: &dyn Transport, inflight: &Inflight) -> u64 {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let now_ms = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
        if now_ms.saturating_sub(self.looked_at_ms.load(Ordering::Relaxed)) >= LOOK_INTERVAL_MS {
            self.looked_at_ms.store(now_ms, Ordering::Relaxed);
            let now_ns = since_boot_ns();
            // With this many requests in flight, the kernel may hold back others out of sight.
            if transport.is_queue_empty() && inflight.len() < usize::from(NR_BACKGROUND_MAX) / 2 {
                self.empty_at_ns.fetch_max(now_ns, Ordering::Relaxed);
            }
        }
        self.empty_at_ns.load(Ordering::Relaxed)
    }
}
