//! Callbacks into the program: the nesting depth of each thread, and the check of calls not allowed
//! inside.
//!
//! A callback may run on a reclaiming thread. A call that may reclaim or wait could recurse without
//! end, or wait for its own callback. So inside a callback such calls fail.

use std::cell::Cell;

use crate::failure::{Code, Failure};

thread_local! {
    /// Number of callbacks active on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Marks the thread as inside a callback until dropped.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}

/// Runs a callback into the program.
pub fn inside<R>(call: impl FnOnce() -> R) -> R {
    let _inside = DEPTH.try_with(|depth| depth.set(depth.get() + 1)).ok().map(|()| Inside);
    call()
}

/// Fails inside a callback.
///
/// # Errors
/// [`Code::InCallback`].
pub fn check_outside() -> Result<(), Failure> {
    if DEPTH.try_with(Cell::get).unwrap_or(0) > 0 {
        return Err(Failure::new(
            Code::InCallback,
            "this may wait or reclaim, so not from inside a callback",
        ));
    }
    Ok(())
}
