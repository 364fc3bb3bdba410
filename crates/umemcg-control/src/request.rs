//! A request to an open control file.

use std::fmt;

/// A read or a write of an open control file.
pub struct Request<'a> {
    /// The reading or writing thread; 0 when it is not in our pid namespace.
    pub tid: u32,
    /// The file was opened with `O_NONBLOCK`.
    pub nonblocking: bool,
    /// Called now and then while waiting; returns `true` once the request is cancelled.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Called once a write has taken effect, even if its work continues: from then on an interrupt
    /// is not a failure.
    pub accepted: &'a dyn Fn(),
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("tid", &self.tid).field("nonblocking", &self.nonblocking).finish()
    }
}

/// The access mode of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}
