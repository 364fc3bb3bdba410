//! The gate between the interpreter and the engine: releases the interpreter's lock around calls
//! that may wait, takes it for callbacks, and closes when the interpreter ends.
//!
//! An ending interpreter lets no other thread take its lock: such a thread is stopped forever, or
//! its stack is unwound by force. So no thread of ours may be waiting for the lock by then.
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

/// Threads that released the interpreter's lock and will take it again, or are taking it.
static CROSSINGS: AtomicU64 = AtomicU64::new(0);
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Longest wait of the interpreter's end for crossing threads, in steps of [`LOOK_AGAIN`].
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
        // SeqCst: pairs with `close`, which continues when there is no crossing.
        CROSSINGS.fetch_sub(1, SeqCst);
    }
}

/// Runs a body that may wait or reclaim, with the interpreter's lock released. Fails inside a
/// callback.
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

/// Drops a value whose drop may wait for threads or callbacks, with the interpreter's lock released
/// if it can be taken again.
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
