//! The bytes held by one holder in a group, and their peak: two words, changed by any number of
//! threads without a lock.
//!
//! The bytes are charged before they are added here, and subtracted here before they are uncharged.
//! So at any moment at least as much is charged as is held. A subtraction and its check are one
//! step: two threads giving back the same bytes cannot both succeed.

use umemcg_base::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one holder. Nothing here orders other memory.
#[derive(Debug, Default)]
pub struct HeldBytes {
    /// (A)
    now: AtomicU64,
    /// (A) Never below an earlier value of `now`, once the thread raising it is done.
    peak: AtomicU64,
}

impl HeldBytes {
    /// Creates a holder of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self { now: AtomicU64::new(bytes), peak: AtomicU64::new(bytes) }
    }

    /// Returns the bytes held now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Returns the most bytes held at any time.
    #[inline]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Adds bytes that have been charged.
    #[inline]
    pub fn add(&self, bytes: u64) {
        self.add_with::<true>(bytes);
    }

    /// Does the work of [`add`](Self::add). `MAX` is false only in the model showing why the peak
    /// is raised by one step.
    #[inline]
    pub fn add_with<const MAX: bool>(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A new peak is rare, and a load is cheaper than a store of the same value.
        if now > self.peak.load(Ordering::Relaxed) {
            if MAX {
                self.peak.fetch_max(now, Ordering::Relaxed);
            } else {
                self.peak.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Subtracts `bytes`; the caller must then uncharge them. Returns `false` if less is held;
    /// nothing is changed then.
    #[inline]
    #[must_use]
    pub fn try_sub(&self, bytes: u64) -> bool {
        self.try_sub_with::<true>(bytes)
    }

    /// Does the work of [`try_sub`](Self::try_sub). `ONE_STEP` is false only in the model showing
    /// why the check and the subtraction are one step.
    #[inline]
    #[must_use]
    pub fn try_sub_with<const ONE_STEP: bool>(&self, bytes: u64) -> bool {
        if ONE_STEP {
            let subtracted = |now: u64| now.checked_sub(bytes);
            return self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtracted).is_ok();
        }
        let is_enough = self.get() >= bytes;
        if is_enough {
            self.now.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_enough
    }

    /// Takes all bytes; the caller must then uncharge them.
    pub fn take_all(&self) -> u64 {
        self.now.swap(0, Ordering::Relaxed)
    }
}
