//! The process of a daemon, found through a connection to its admin socket.
//!
//! The socket is open until the last thread of the daemon has ended. A killed daemon may keep a
//! thread that waits in the kernel, so a connection to it neither gets a reply nor is closed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};
use umemcg_fuse::orphan_guard::is_ending;

/// The process listening at the other end of a connection.
#[derive(Debug)]
pub struct DaemonProcess {
    /// Its number in `/proc`; 0 if unknown.
    pub pid: u32,
    /// The user that listens.
    pub user: u32,
    pidfd: OwnedFd,
}

impl DaemonProcess {
    /// Returns the process; `None` if our pid namespace does not contain it.
    pub fn of(connection: &UnixStream) -> Option<Self> {
        let peer = socket_peercred(connection).ok()?;
        let pidfd = pidfd_open(peer.pid, PidfdFlags::empty()).ok()?;
        Some(Self { pid: number_in_proc(&pidfd).unwrap_or(0), user: peer.uid.as_raw(), pidfd })
    }

    /// Returns whether its main thread has ended, or is about to: then it begins no more replies.
    /// `false` if unknown.
    pub fn is_ending(&self) -> bool {
        is_ending(self.pid)
    }

    /// Returns whether a thread of it is left after a time; `false` if unknown. Blocks.
    pub fn stays_for(&self, time: &Timespec) -> bool {
        matches!(poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(time)), Ok(0))
    }
}

/// Returns the number of a process in `/proc`, which may show another pid namespace than ours;
/// `None` if it does not show the process.
fn number_in_proc(pidfd: &OwnedFd) -> Option<u32> {
    let fields = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let number = fields.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // -1 after its end.
    number.trim().parse::<u32>().ok().filter(|&number| number != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_process_that_listens_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let daemon = DaemonProcess::of(&UnixStream::connect(&path).unwrap()).unwrap();
        assert_eq!((daemon.pid, daemon.user), (std::process::id(), rustix::process::geteuid().as_raw()));
        assert!(!daemon.is_ending() && daemon.stays_for(&Timespec::default()));
    }
}
