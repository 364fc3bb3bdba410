//! Descriptors of a process writing to `cgroup.event_control`. The process layer resolves their
//! numbers and delivers events.

use std::fmt::Debug;

use rustix::io::Errno;
use thiserror::Error;

use crate::node::NodeId;

/// The reason why a descriptor's number cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DescriptorError {
    /// The process has no such descriptor open.
    #[error("no such descriptor")]
    NotOpen,
    /// The descriptor is of another kind.
    #[error("not the kind of file that is needed")]
    WrongKind,
    /// The system refused.
    #[error("{0}")]
    System(Errno),
}

/// The target of a listener's events: an eventfd of a process. It is neither called nor dropped
/// while a contended lock is held.
pub trait EventSink: Debug + Send + Sync {
    /// Adds events to the count of the eventfd. Does not wait for the process.
    fn signal(&self, nr_events: u64);
    /// Returns whether the process still has the eventfd open. May read much of `/proc`.
    fn is_open(&self) -> bool;
}

/// The descriptors of processes. Thread ids are those of the daemon's own pid namespace.
pub trait Descriptors: Debug + Send + Sync {
    /// Returns a copy of a thread's eventfd. No other descriptor is ever copied: closing a copy of
    /// a file on the daemon's own mounts would send a request to the daemon itself.
    ///
    /// # Errors
    /// [`DescriptorError`].
    fn eventfd(&self, tid: u32, fd: u32) -> Result<Box<dyn EventSink>, DescriptorError>;

    /// Returns the control file open in a thread under this number. Reads `/proc` and touches no
    /// other file system.
    ///
    /// # Errors
    /// [`DescriptorError`].
    fn control_file(&self, tid: u32, fd: u32) -> Result<NodeId, DescriptorError>;
}

/// For writers other than processes: no descriptor is open.
#[derive(Debug, Clone, Copy)]
pub struct NoDescriptors;

impl Descriptors for NoDescriptors {
    fn eventfd(&self, _tid: u32, _fd: u32) -> Result<Box<dyn EventSink>, DescriptorError> {
        Err(DescriptorError::NotOpen)
    }
    fn control_file(&self, _tid: u32, _fd: u32) -> Result<NodeId, DescriptorError> {
        Err(DescriptorError::NotOpen)
    }
}
