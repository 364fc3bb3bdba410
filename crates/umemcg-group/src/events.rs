//! Events of a group and its descendants: counts, and a wake signal for threads waiting for a
//! change.
//!
//! An event without a waiter costs one count, one fence and one load. A waiter attaches a wake
//! signal, takes it, and then reads the counts. An event is counted first and raises the signal
//! afterwards. So either the reader sees the count, or the event finds the signal.
//!
//! ```text
//!   event                    first poll
//!   count += 1               attach the wake signal
//!   ── fence ──              ── fence ──
//!   signal there? raise it   count changed?
//! ```

use std::sync::{Arc, OnceLock};

use umemcg_base::WakeSignal;
use umemcg_base::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::stats::{EventKind, NR_EVENT_KINDS};

/// See the module.
#[derive(Debug)]
pub struct Events {
    /// (A)
    counts: [AtomicU64; NR_EVENT_KINDS],
    /// (A) Set after `wake_signal`; the signal may then be raised.
    is_attached: AtomicBool,
    /// (C) once attached.
    wake_signal: OnceLock<Arc<WakeSignal>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            is_attached: AtomicBool::new(false),
            wake_signal: OnceLock::new(),
        }
    }
}

impl Events {
    /// Counts an event, and raises the wake signal if there is one. `FENCE` is false only in the
    /// model showing why it is needed.
    pub fn count<const FENCE: bool>(&self, kind: EventKind) {
        self.counts[kind.index()].fetch_add(1, Ordering::Relaxed);
        if FENCE {
            // SeqCst: pairs with `attach`. Either a thread attaching a signal and then reading sees
            // the count, or its signal is seen here.
            fence(Ordering::SeqCst);
        }
        self.raise();
    }

    /// Raises the wake signal if there is one.
    pub fn raise(&self) {
        // Acquire: pairs with `attach`.
        if self.is_attached.load(Ordering::Acquire)
            && let Some(wake_signal) = self.wake_signal.get()
        {
            wake_signal.raise();
        }
    }

    /// Attaches a wake signal to be raised by events, unless there is one already. A thread reading
    /// the counts afterward misses no event. `FENCE` as in [`count`](Self::count).
    pub fn attach<const FENCE: bool>(&self, wake_signal: Arc<WakeSignal>) {
        let _ = self.wake_signal.set(wake_signal);
        // Release: pairs with `raise`.
        self.is_attached.store(true, Ordering::Release);
        if FENCE {
            // SeqCst: pairs with `count`.
            fence(Ordering::SeqCst);
        }
    }

    /// Returns the number of events of this kind.
    pub fn nr(&self, kind: EventKind) -> u64 {
        self.counts[kind.index()].load(Ordering::Relaxed)
    }
}
