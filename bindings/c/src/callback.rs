//! Callbacks into C, and their user data.
//!
//! A callback runs without locks of the library, on the thread in need of memory or on a worker. It
//! may call every function that neither waits nor reclaims; the others fail with
//! `UMEMCG_IN_CALLBACK`. It must return: leaving it by an exception or `longjmp` is undefined.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use umemcg_bindings::callbacks::inside;

/// A destructor of user data.
pub type umemcg_free_fn = Option<extern "C" fn(user: *mut c_void)>;

/// The user pointer of callbacks, and its destructor, called when no callback can run any more.
#[derive(Debug)]
pub(crate) struct UserData {
    pointer: *mut c_void,
    free: umemcg_free_fn,
    /// Set when the library owns the pointer; until then the caller does.
    is_ours: AtomicBool,
}

// SAFETY: [11] The library never dereferences the pointer. The header says that callbacks run on
// many threads, so the caller's data must allow it.
unsafe impl Send for UserData {}
// SAFETY: [11] As above.
unsafe impl Sync for UserData {}

impl UserData {
    pub(crate) fn new(pointer: *mut c_void, free: umemcg_free_fn) -> Arc<Self> {
        Arc::new(Self { pointer, free, is_ours: AtomicBool::new(false) })
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.pointer
    }

    /// Takes ownership: the drop frees the pointer.
    pub(crate) fn take_over(&self) {
        self.is_ours.store(true, Relaxed);
    }
}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(free) = self.free
            && *self.is_ours.get_mut()
        {
            inside(|| free(self.pointer));
        }
    }
}
