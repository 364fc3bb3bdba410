//! What waits for a worker of a session.

use crate::parking::ParkedRequest;
use crate::request::RequestSlot;
use crate::thread_pool::Waiting;

/// A request that waits for a worker.
#[derive(Debug)]
pub(crate) enum Job {
    New(RequestSlot),
    /// It goes on after a wait for its store.
    Parked(ParkedRequest),
}

impl Waiting for Job {
    fn is_finished(&self) -> bool {
        match self {
            Self::New(request) => request.reply.is_cancelled(),
            // What it holds may be the last of an open file: a worker drops it.
            Self::Parked(_) => false,
        }
    }
}
