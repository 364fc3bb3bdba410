//! Requests that wait for their store without a thread.
//!
//! A worker whose request waits for what its store has begun takes a [`ParkedPlace`], and goes on
//! with other requests. When the store has ended it, the request is queued again, under keys of its
//! own: it holds pages and claims that other requests may be waiting for, so it does not stand
//! behind those. A worker then takes it up. The thread of the store only queues it.
//!
//! A parked request counts as one that waits: of a group, only so many may. At the end of a session
//! the kernel has failed it, and its reply is dropped when the store ends it.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::reply::Reply;
use crate::thread_pool::Keys;

type Work = Box<dyn FnOnce(&mut Reply) + Send>;

/// A request that goes on. What it holds is dropped before its reply.
pub(crate) struct ParkedRequest {
    work: Option<Work>,
    pub(crate) reply: Reply,
}

impl ParkedRequest {
    /// Goes on with it on this thread, or gives it up if the requester has been killed.
    pub(crate) fn go_on(&mut self) {
        let work = self.work.take();
        if let Some(work) = work.filter(|_| !self.reply.is_cancelled()) {
            work(&mut self.reply);
        }
    }
}

impl fmt::Debug for ParkedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedRequest").field("reply", &self.reply).finish_non_exhaustive()
    }
}

/// A session, as parked requests need it.
pub(crate) trait Lot: Send + Sync {
    /// Takes a place. Returns `false` if too many of the group wait.
    fn park(&self, keys: Keys) -> bool;
    /// Gives the place of a request back that is given up.
    fn unpark(&self, keys: Keys);
    /// Gives the place back and has a worker go on with the request.
    fn resume(self: Arc<Self>, keys: Keys, request: ParkedRequest);
}

/// Parks requests of a session.
#[derive(Clone)]
pub struct Parking(Weak<dyn Lot>);

impl Parking {
    pub(crate) fn new(lot: Weak<dyn Lot>) -> Self {
        Self(lot)
    }

    /// Takes a place for a request with these keys. `None` when too many of its group wait already,
    /// or when the session is over: it has to wait with its thread.
    pub fn park(&self, keys: Keys) -> Option<ParkedPlace> {
        let lot = self.0.upgrade()?;
        lot.park(keys).then(|| ParkedPlace { lot: Some(Weak::clone(&self.0)), keys })
    }
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parking")
    }
}

/// The place of a parked request; given back when dropped.
pub struct ParkedPlace {
    /// `None` once it has been given back.
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

impl fmt::Debug for ParkedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedPlace").field("keys", &self.keys).finish_non_exhaustive()
    }
}
