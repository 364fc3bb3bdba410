//! The process of a daemon, found through a connection to its admin socket.
//!
//! The socket is open until the last thread of the daemon has ended. A killed daemon may keep a
//! thread that waits in the kernel, so a connection to it neither gets a reply nor is closed.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use umemcg_fuse::orphan_guard::is_ending;

/// The process listening at the other end of a connection.
#[derive(Debug)]
pub struct DaemonProcess {
    pub pid: u32,
    pidfd: OwnedFd,
}

impl DaemonProcess {
    /// Returns the process; `None` if our pid namespace does not contain it.
    pub fn of(connection: &UnixStream) -> Option<Self> {
        let pid = socket_peercred(connection).ok()?.pid;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { pid: pid.as_raw_nonzero().get().cast_unsigned(), pidfd })
    }

    /// Returns whether its main thread has ended, or is about to: then it begins no more replies.
    /// `false` if unknown.
    pub fn is_ending(&self) -> bool {
        is_ending(self.pid)
    }

    /// Returns whether a thread of it is left after a time; `false` if unknown. Blocks.
    pub fn stays_for(&self, time: &Timespec) -> bool {
        is_quiet(&self.pidfd, time)
    }
}

/// Returns whether a descriptor has neither data nor an end for a time; `false` if unknown.
pub fn is_quiet(descriptor: &impl AsFd, time: &Timespec) -> bool {
    matches!(poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(time)), Ok(0))
}
