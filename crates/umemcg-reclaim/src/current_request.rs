//! The request served by a thread, if releases of memory may wait for its end.
//!
//! The kernel drops no page that a request has locked. A request waiting for that drop would wait
//! for its own end, so it goes on without the bytes. It takes no page protected by `low` instead of
//! them.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Weak;

thread_local! {
    static HERE: RefCell<Option<Weak<dyn HoldsUp>>> = const { RefCell::new(None) };
}

/// A request that may hold up the release of bytes.
pub trait HoldsUp {
    /// Returns whether a release under way waits for the end of this request, and the request can
    /// do without the bytes.
    fn holds_up_release(&self) -> bool;
}

/// While it lives, this thread serves a request, and does not wait for bytes held up by it.
#[must_use = "the request ends immediately"]
pub struct CurrentRequest {
    before: Option<Weak<dyn HoldsUp>>,
    _this_thread: PhantomData<*const ()>,
}

impl fmt::Debug for CurrentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentRequest").finish_non_exhaustive()
    }
}

impl CurrentRequest {
    /// Begins the work for a request on this thread.
    pub fn begin(request: Weak<dyn HoldsUp>) -> Self {
        Self { before: HERE.replace(Some(request)), _this_thread: PhantomData }
    }

    /// Returns whether a release under way waits for the end of this thread's request.
    pub fn holds_up_release() -> bool {
        let request = HERE.with_borrow(|here| here.as_ref().and_then(Weak::upgrade));
        request.is_some_and(|request| request.holds_up_release())
    }
}

impl Drop for CurrentRequest {
    fn drop(&mut self) {
        HERE.set(self.before.take());
    }
}
