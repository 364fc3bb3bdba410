//! The bytes [leaving](crate::Leaving) a group and its descendants.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Counts of bytes. Each is a momentary estimate.
#[derive(Debug)]
pub(crate) struct LeavingBytes {
    /// (A) Leaving now.
    now: AtomicU64,
    /// (A) Freed, ever. It rises before `now` falls.
    freed: AtomicU64,
    /// (A) The value of `freed` when a reclaim last waited in vain.
    freed_when_hung: AtomicU64,
}

impl Default for LeavingBytes {
    fn default() -> Self {
        Self { now: 0.into(), freed: 0.into(), freed_when_hung: u64::MAX.into() }
    }
}

impl LeavingBytes {
    pub(crate) fn now(&self) -> u64 {
        // Acquire: pairs with the Release in `end`. A reclaim reading 0 here sees the freed bytes.
        self.now.load(Acquire)
    }

    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Relaxed)
    }

    pub(crate) fn begin(&self, bytes: u64) {
        self.now.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn note_freed(&self, bytes: u64) {
        self.freed.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn end(&self, bytes: u64) {
        // Release: pairs with the Acquire in `now`.
        self.now.fetch_sub(bytes, Release);
    }

    /// Returns whether nothing has been freed since a reclaim waited in vain.
    pub(crate) fn hangs(&self) -> bool {
        self.freed() == self.freed_when_hung.load(Relaxed)
    }

    pub(crate) fn note_hangs(&self) {
        self.freed_when_hung.store(self.freed(), Relaxed);
    }
}
