//! Events of a group and all groups below: counts, and a bell for threads that wait for them to
//! change.
//!
//! An event for which no thread waits costs its count, a fence and a look. A thread that wants to
//! be woken hangs a bell, takes its ring, and looks at the counts afterwards; an event is counted
//! first and rings afterwards. So either the looker sees the count, or the event finds the bell.
//!
//! ```text
//!   event                    first poll
//!   count += 1               hang the bell
//!   ── fence ──              ── fence ──
//!   bell hung? ring          count changed?
//! ```

use std::sync::OnceLock;

use umemcg_base::Bell;
use umemcg_base::sync::Arc;
use umemcg_base::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crate::stats::{EventKind, NR_EVENT_KINDS};

/// See the module.
#[derive(Debug)]
pub struct Events {
    /// (A)
    counts: [AtomicU64; NR_EVENT_KINDS],
    /// (A) `bell` may be asked.
    is_hung: AtomicBool,
    /// (C) once hung.
    bell: OnceLock<Arc<Bell>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            is_hung: AtomicBool::new(false),
            bell: OnceLock::new(),
        }
    }
}

impl Events {
    /// Counts an event, and rings the bell if one hangs. `FENCE` is false only in the model that
    /// shows why it is there.
    pub fn count<const FENCE: bool>(&self, kind: EventKind) {
        self.counts[kind.index()].fetch_add(1, Ordering::Relaxed);
        if FENCE {
            // SeqCst: pairs with `hang`. A thread that hangs a bell and looks afterwards sees the
            // count, or the bell is seen.
            fence(Ordering::SeqCst);
        }
        self.ring();
    }

    /// Rings the bell if one hangs.
    pub fn ring(&self) {
        // Acquire: pairs with `hang`.
        if self.is_hung.load(Ordering::Acquire)
            && let Some(bell) = self.bell.get()
        {
            bell.ring();
        }
    }

    /// Hangs the bell that events ring; the first one stays. A thread that looks at the counts
    /// afterwards misses no event. `FENCE` as in [`count`](Self::count).
    pub fn hang<const FENCE: bool>(&self, bell: Arc<Bell>) {
        let _ = self.bell.set(bell);
        // Release: pairs with `ring`.
        self.is_hung.store(true, Ordering::Release);
        if FENCE {
            // SeqCst: pairs with `count`.
            fence(Ordering::SeqCst);
        }
    }

    /// Returns how many there were.
    pub fn nr(&self, kind: EventKind) -> u64 {
        self.counts[kind.index()].load(Ordering::Relaxed)
    }
}
