//! The gate between the interpreter and the engine: releases the interpreter's lock around what may
//! wait, takes it for callbacks, and closes when the interpreter ends.
//!
//! An interpreter that is ending lets no other thread take its lock any more: such a thread is
//! stopped for ever, or torn out of its stack. So no thread of ours may be on its way to the lock
//! by then.
//!
//! ```text
//!   a thread that crosses            atexit
//!   crossings += 1                   is_closed = true
//!   is_closed? crossings -= 1, fail  wait until crossings == 0, with the lock released
//!   cross, take the lock again       the interpreter ends
//!   crossings -= 1
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use pyo3::prelude::*;
use umemcg_bindings::{Code, Failure, callbacks, process};

use crate::errors::to_python;

/// Threads that have released the interpreter's lock and will take it again, or are taking it.
static CROSSINGS: AtomicU64 = AtomicU64::new(0);
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The longest that the end of the interpreter waits for threads that still cross, in steps of
/// [`LOOK_AGAIN`].
const NR_LOOKS_MAX: u32 = 10_000;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

struct Crossing;

impl Crossing {
    fn begin() -> Result<Self, Failure> {
        // SeqCst: pairs with `close`. Either this sees that the gate is closed, or `close` sees the
        // crossing.
        CROSSINGS.fetch_add(1, SeqCst);
        let crossing = Self;
        // SeqCst: as above.
        if IS_CLOSED.load(SeqCst) {
            return Err(Failure::new(Code::Ending, "the interpreter is ending"));
        }
        Ok(crossing)
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        // SeqCst: pairs with `close`, which goes on when there is none.
        CROSSINGS.fetch_sub(1, SeqCst);
    }
}

/// Runs what may wait or reclaim, with the interpreter's lock released. Not inside a callback.
pub(crate) fn detached<R: Send>(
    py: Python<'_>,
    body: impl FnOnce() -> Result<R, Failure> + Send,
) -> PyResult<R> {
    let run = || {
        process::check()?;
        callbacks::check_outside()?;
        let _crossing = Crossing::begin()?;
        py.detach(body)
    };
    run().map_err(|failure| to_python(py, &failure))
}

/// Drops what may wait for threads or callbacks, with the interpreter's lock released if that can
/// be taken again.
pub(crate) fn drop_detached<T: Send>(value: T) {
    let mut value = Some(value);
    if let Ok(_crossing) = Crossing::begin() {
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
    // No callback runs any more, so nothing waits for the lock.
    drop(value);
}

/// Runs a callback on a thread that may not have the interpreter's lock. `None` when the
/// interpreter is ending.
pub(crate) fn attached<R>(call: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    callbacks::inside(|| {
        let _crossing = Crossing::begin().ok()?;
        Python::try_attach(call)
    })
}

/// Closes the gate. The package calls it when the interpreter is about to end.
#[pyfunction(name = "_close")]
pub(crate) fn close(py: Python<'_>) {
    // SeqCst: pairs with `Crossing::begin`.
    IS_CLOSED.store(true, SeqCst);
    if process::is_forked() {
        return;
    }
    py.detach(|| {
        for _ in 0..NR_LOOKS_MAX {
            // SeqCst: pairs with the drop of a crossing.
            if CROSSINGS.load(SeqCst) == 0 {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    });
}
