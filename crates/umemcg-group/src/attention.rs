//! Attention: a flag read after each of many changes, at the price of a load. The few threads to be
//! notified of changes raise it, and pay for both sides.
//!
//! ```text
//! a change                      a thread that wants to know
//! change the number             raise the flag
//! light fence                   heavy fence
//! raised?  -> tell it           read the number
//! ```
//!
//! Each side stores and then loads, so there is a full fence in between, or each could miss the
//! other. As in [`biased_lock`](crate::biased_lock), the frequent side's binds only the compiler.

use umemcg_base::sync::atomic::{AtomicU32, Ordering};

use crate::biased_lock::{heavy_fence, light_fence};

/// See the module.
#[derive(Debug, Default)]
pub struct Attention {
    /// The number of threads to be notified. (A)
    nr_raised: AtomicU32,
}

impl Attention {
    /// Returns whether a thread must be notified of the change just made by the caller.
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.is_raised_with::<true>()
    }

    /// Does the work of [`is_raised`](Self::is_raised). `FENCED` is false only in the model showing
    /// why the fence is needed.
    #[inline]
    pub fn is_raised_with<const FENCED: bool>(&self) -> bool {
        if FENCED {
            light_fence(); // Pairs with the heavy fence in `raise`.
        }
        self.nr_raised.load(Ordering::Relaxed) != 0
    }

    /// Raises the flag. Later reads of the caller include every change by a thread that did not see
    /// the flag. Costs some microseconds.
    pub fn raise(&self) {
        self.nr_raised.fetch_add(1, Ordering::Relaxed);
        heavy_fence(); // Pairs with the light fence in `is_raised`.
    }

    /// Takes back one [`raise`](Self::raise).
    pub fn lower(&self) {
        let before = self.nr_raised.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "lowered more often than raised");
    }
}
