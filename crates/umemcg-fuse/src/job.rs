//! The items waiting for a worker of a session.

use crate::parking::ParkedRequest;
use crate::request::RequestSlot;
use crate::thread_pool::Waiting;

/// A request waiting for a worker.
#[expect(clippy::large_enum_variant, reason = "nearly all are new")]
pub(crate) enum Job {
    New(RequestSlot),
    /// A resumed request, after a wait for its store.
    Parked(ParkedRequest),
}

impl Waiting for Job {
    fn is_finished(&self) -> bool {
        match self {
            Self::New(request) => request.reply.is_cancelled(),
            // It may hold the last reference to an open file: a worker drops it.
            Self::Parked(_) => false,
        }
    }
}
