//! Requests waiting for their store without a thread.
//!
//! When a request waits for an operation of its store, its worker takes a place and continues with
//! other requests. At the end of the operation, the thread of the store only queues the request
//! again, and a worker resumes it. The request gets keys of its own: others may be waiting for its
//! pages and claims, so it must not queue behind them.
//!
//! A parked request counts as a waiting one, and a group has a bound on those. At the end of a
//! session the kernel has failed the request, and its reply is dropped at the end of the store's
//! operation.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::reply::Reply;
use crate::thread_pool::Keys;

type Work = Box<dyn FnOnce(&mut Reply) + Send>;

/// A parked request ready to continue. The values captured by its work are dropped before its
/// reply.
pub(crate) struct ParkedRequest {
    /// Resumes the request; `None` once begun.
    pub(crate) work: Option<Work>,
    pub(crate) reply: Reply,
}

/// The session, as seen by parked requests.
pub(crate) trait Lot: Send + Sync {
    /// Takes a place. Returns `false` if too many of the group wait; a resumed request gets one
    /// all the same.
    fn park(&self, keys: Keys, is_resumed: bool) -> bool;
    /// Releases the place of an abandoned request.
    fn unpark(&self, keys: Keys);
    /// Releases the place, and has a worker resume the request.
    fn resume(self: Arc<Self>, keys: Keys, request: ParkedRequest);
}

/// Parks requests of a session.
#[derive(Clone)]
pub struct Parking(Weak<dyn Lot>);

impl Parking {
    pub(crate) fn new(lot: Weak<dyn Lot>) -> Self {
        Self(lot)
    }

    /// Takes a place for a request with these keys. Returns `None` when too many of its group wait
    /// already, or when the session is over: the request must then wait on its thread. Other
    /// requests may wait for a resumed one, so it gets a place however many of its group wait.
    pub(crate) fn park(&self, keys: Keys, is_resumed: bool) -> Option<ParkedPlace> {
        let lot = self.0.upgrade()?;
        lot.park(keys, is_resumed).then(|| ParkedPlace { lot: Some(Weak::clone(&self.0)), keys })
    }
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parking")
    }
}

/// The place of a parked request; released when dropped.
pub(crate) struct ParkedPlace {
    /// `None` once released.
    lot: Option<Weak<dyn Lot>>,
    keys: Keys,
}

impl ParkedPlace {
    /// Has a worker of the session call `work`. Does not wait. When the session is over, or the
    /// requester has been killed, `work` is dropped instead, and then the reply.
    pub fn resume(mut self, reply: Reply, work: impl FnOnce(&mut Reply) + Send + 'static) {
        let request = ParkedRequest { work: Some(Box::new(work)), reply };
        if let Some(lot) = self.lot.take().and_then(|lot| lot.upgrade()) {
            lot.resume(self.keys, request);
        }
    }
}

impl Drop for ParkedPlace {
    fn drop(&mut self) {
        if let Some(lot) = self.lot.take().and_then(|lot| lot.upgrade()) {
            lot.unpark(self.keys);
        }
    }
}
