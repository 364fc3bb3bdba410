//! [`Held`]: a Python object's reference to a part of the engine, until it is closed or collected.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use umemcg_bindings::process::OfThisProcess;
use umemcg_bindings::{Code, Failure, process};

use crate::errors::to_python;
use crate::gate::drop_detached;

/// A reference to a part of the engine, in use by a call. The last reference drops the part, with
/// the interpreter's lock released.
#[derive(Debug)]
pub(crate) struct InUse<T: Send + Sync>(Option<Arc<OfThisProcess<T>>>);

impl<T: Send + Sync> Deref for InUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("there until dropped")
    }
}

impl<T: Send + Sync> Drop for InUse<T> {
    fn drop(&mut self) {
        let part = self.0.take();
        // In a forked child this only counts down, or leaks; no lock is touched.
        match part.map(Arc::into_inner) {
            Some(Some(last)) if !process::is_forked() => drop_detached(last),
            _ => {}
        }
    }
}

/// See the module. The lock is held for an instant, and never while waiting for the interpreter's
/// lock.
#[derive(Debug)]
pub(crate) struct Held<T: Send + Sync>(Mutex<Option<Arc<OfThisProcess<T>>>>);

impl<T: Send + Sync> Held<T> {
    pub(crate) fn new(part: T) -> Self {
        Self(Mutex::new(Some(Arc::new(OfThisProcess::new(part)))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OfThisProcess<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the part for a call.
    pub(crate) fn part(&self, py: Python<'_>) -> PyResult<InUse<T>> {
        self.find().map_err(|failure| to_python(py, &failure))
    }

    fn find(&self) -> Result<InUse<T>, Failure> {
        process::check()?;
        let part = self.lock().clone();
        part.map(|part| InUse(Some(part))).ok_or_else(|| Failure::new(Code::BadHandle, "it has been closed"))
    }

    /// Takes the part out; it is dropped when no call uses it any more. Does nothing if already
    /// closed, or in a forked child.
    pub(crate) fn close(&self) {
        if !process::is_forked() {
            let part = self.lock().take();
            drop(InUse(part));
        }
    }
}

impl<T: Send + Sync> Drop for Held<T> {
    fn drop(&mut self) {
        let part = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        drop(InUse(part));
    }
}
