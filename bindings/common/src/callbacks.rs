//! Callbacks into the program: how deep a thread is in them, and what it may not do there.
//!
//! A callback may run on a thread that reclaims. A call that may reclaim or wait would recurse
//! without an end, or wait for the callback that it is called from. So inside a callback such calls
//! fail.

use std::cell::Cell;

use crate::failure::{Code, Failure};

thread_local! {
    /// Callbacks that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The thread is in a callback as long as this lives.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}

/// Runs what calls into the program.
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
