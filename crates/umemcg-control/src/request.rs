//! A request to an open control file.

use std::fmt;

use crate::descriptors::Descriptors;

/// A read or a write, and whether it is still wanted.
pub struct Request<'a> {
    /// The thread that reads or writes; 0 when it is not in our pid namespace.
    pub tid: u32,
    /// What that thread's descriptors stand for.
    pub descriptors: &'a dyn Descriptors,
    /// The open file does not want to wait.
    pub nonblocking: bool,
    /// Asked now and then while waiting: true once the result is no longer wanted.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Told when a write has taken effect although work for it goes on: from here on an interrupt
    /// is no failure.
    pub accepted: &'a dyn Fn(),
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("tid", &self.tid).field("nonblocking", &self.nonblocking).finish()
    }
}

/// What an open file is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}
