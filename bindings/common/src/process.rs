//! Detects a fork of a process that used the library.
//!
//! A forked child has the memory of its parent and one of its threads. The workers of an engine do
//! not exist there, and a lock held by another thread stays held forever. So in a child every call
//! fails with [`Code::Forked`], and values dropped by the child are leaked ([`leaked`]). A child of
//! a process that has not used the library yet may use it, and so may every program started with
//! `exec`.

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::failure::{Code, Failure};

/// Set in a child by the handler. Relaxed: the child has one thread then.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_fork() {
    IS_FORKED.store(true, Relaxed);
}

/// Marks later children of this process as forked. Called before the first engine is created.
///
/// # Errors
/// [`Code::System`] when there is no memory for the handler.
pub fn watch_forks() -> Result<(), Failure> {
    static WATCH: Once = Once::new();
    static FAILED: AtomicBool = AtomicBool::new(false);
    WATCH.call_once(|| {
        // SAFETY: [9] The handler stores one atomic, which any code may do in a forked child. It
        // lives as long as the library, and the C library forgets it when the library is unloaded.
        let status = unsafe { libc::pthread_atfork(None, None, Some(note_fork)) };
        FAILED.store(status != 0, Relaxed);
    });
    if FAILED.load(Relaxed) {
        return Err(Failure::new(Code::System, "no memory for a fork handler"));
    }
    Ok(())
}

/// Returns whether this is a forked child. One load.
#[inline]
pub fn is_forked() -> bool {
    IS_FORKED.load(Relaxed)
}

/// Fails in a forked child. One load.
///
/// # Errors
/// [`Code::Forked`].
#[inline]
pub fn check() -> Result<(), Failure> {
    if is_forked() { Err(forked()) } else { Ok(()) }
}

#[cold]
fn forked() -> Failure {
    Failure::new(Code::Forked, "this process is a fork of one that used the library; use it after exec")
}

/// A value dropped only in the process that created it, and leaked in a forked child: the threads
/// its drop would wait for do not exist there.
#[derive(Debug)]
pub struct OfThisProcess<T>(ManuallyDrop<T>);

impl<T> OfThisProcess<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T> std::ops::Deref for OfThisProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for OfThisProcess<T> {
    fn drop(&mut self) {
        if !is_forked() {
            // SAFETY: [9] The value is dropped here and nowhere else, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}
