//! The connection to the kernel: requests arrive whole, and answers are sent whole. The session
//! knows only [`Transport`]. [`Device`] is `/dev/fuse`; other implementations (rings, a recorded
//! conversation) are possible.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use umemcg_arena::{Arena, Segment};

/// The bytes after an answer's header.
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    /// Nothing.
    None,
    /// These bytes.
    Bytes(&'a [u8]),
    /// The contents of frames, read in place by the kernel.
    Frames(&'a Arena, &'a [Segment]),
}

impl Payload<'_> {
    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Frames(_, segments) => umemcg_arena::total_len(segments),
        }
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload of {} bytes", self.len())
    }
}

/// The reason why no request came.
#[derive(Debug)]
pub enum ReceiveError {
    /// Ask again: a signal came, or a request was withdrawn before its delivery.
    Again,
    /// There will be no more: unmounted, or the connection was aborted.
    Ended,
    /// The transport broke.
    Failed(io::Error),
}

/// The reason why the kernel did not take an answer.
#[derive(Debug)]
pub enum SendError {
    /// No caller waits for it any more: the request was aborted, or answered before, or the mount
    /// is gone.
    Gone,
    /// The transport broke, or the answer is malformed.
    Failed(io::Error),
}

/// Receives requests and sends answers. Any thread may use it. A request must be answered through
/// the transport where it was received.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Waits for a request and puts it at the start of `buffer`, of
    /// [`wire::BUFFER_BYTES`](crate::wire::BUFFER_BYTES). Returns its length in bytes.
    ///
    /// # Errors
    /// [`ReceiveError`].
    fn receive(&self, buffer: &mut [u8]) -> Result<usize, ReceiveError>;

    /// Returns whether no request waits to be received, on any queue of the connection; `false` if
    /// unknown.
    fn is_queue_empty(&self) -> bool {
        false
    }

    /// Sends one answer or notification. `header` has the length of both parts. Does not wait,
    /// except in an invalidation, which waits for the kernel's locks on the inode.
    ///
    /// # Errors
    /// [`SendError`].
    fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), SendError>;
}

/// An open `/dev/fuse`, serving a mount.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Serves through a descriptor already connected to a mount.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Returns another queue for the same mount, so that two readers do not share a lock of the
    /// kernel; if the kernel refuses, the same queue.
    ///
    /// # Errors
    /// When no descriptor is available.
    pub fn another(&self) -> io::Result<Self> {
        let fresh = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        if let Ok(fresh) = fresh
            && umemcg_arena::sys::clone_fuse_fd(fresh.as_fd(), self.fd.as_fd()).is_ok()
        {
            return Ok(Self { fd: fresh });
        }
        Ok(Self { fd: self.fd.try_clone()? })
    }

    /// Returns a further queue for the same mount, where [`receive`](Transport::receive) returns
    /// [`ReceiveError::Again`] instead of waiting; none if the kernel refuses.
    pub fn without_waiting(&self) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fresh = rustix::fs::open("/dev/fuse", flags, Mode::empty()).ok()?;
        umemcg_arena::sys::clone_fuse_fd(fresh.as_fd(), self.fd.as_fd()).ok()?;
        Some(Self { fd: fresh })
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Transport for Device {
    fn receive(&self, buffer: &mut [u8]) -> Result<usize, ReceiveError> {
        match rustix::io::read(&self.fd, buffer) {
            // Only a test's substitute for the device ends like a pipe.
            Ok(0) => Err(ReceiveError::Ended),
            Ok(len) => Ok(len),
            // NOENT: the request was withdrawn while it was being handed out.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => Err(ReceiveError::Again),
            Err(Errno::NODEV | Errno::CONNABORTED) => Err(ReceiveError::Ended),
            Err(errno) => Err(ReceiveError::Failed(errno.into())),
        }
    }

    fn is_queue_empty(&self) -> bool {
        // The queues of a connection share the list of waiting requests; each has its own list of
        // received ones.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&now)).is_ok_and(|nr_ready| nr_ready == 0)
    }

    fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), SendError> {
        let sent = match payload {
            Payload::None => rustix::io::write(&self.fd, header).map_err(io::Error::from),
            Payload::Bytes(bytes) => {
                rustix::io::writev(&self.fd, &[IoSlice::new(header), IoSlice::new(bytes)])
                    .map_err(io::Error::from)
            }
            Payload::Frames(arena, segments) => {
                umemcg_arena::io::send(arena, self.fd.as_fd(), header, segments)
            }
        };
        match sent {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Err(SendError::Gone),
                _ => Err(SendError::Failed(error)),
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use zerocopy::FromBytes;

    use super::*;
    use crate::reply::Reply;
    use crate::wire::{InHeader, OutHeader, opcode};

    /// The header of an answer, and the bytes after it.
    pub(crate) type Sent = (OutHeader, Vec<u8>);

    #[derive(Debug)]
    struct Recorder(Sender<Sent>);

    /// Returns a transport without requests, and the answers sent through it, in order.
    pub(crate) fn recorder() -> (Arc<dyn Transport>, Receiver<Sent>) {
        let (sender, sent) = channel();
        (Arc::new(Recorder(sender)), sent)
    }

    impl Transport for Recorder {
        fn receive(&self, _buffer: &mut [u8]) -> Result<usize, ReceiveError> {
            Err(ReceiveError::Ended)
        }
        fn send(&self, header: &[u8], payload: Payload<'_>) -> Result<(), SendError> {
            let header = OutHeader::read_from_bytes(header).unwrap();
            let body = if let Payload::Bytes(bytes) = payload { bytes.to_vec() } else { Vec::new() };
            assert_eq!(header.len as usize, size_of::<OutHeader>() + body.len());
            self.0.send((header, body)).map_err(|_| SendError::Gone)
        }
    }

    /// Returns the duty to answer a write.
    pub(crate) fn due(transport: &Arc<dyn Transport>, unique: u64) -> Reply {
        let mut reply = Reply::idle(Arc::clone(transport), None);
        reply.arm(&InHeader { unique, opcode: opcode::WRITE, ..Default::default() });
        reply
    }
}
