//! The client end of the daemon's socket: sends one request, and waits for the last reply until the
//! caller's deadline. A stopped or hung daemon does not reply. Once the backlog of its socket is
//! full, even `connect` blocks. A killed daemon that cannot end has hung up, although the kernel
//! keeps its socket open.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use umemcg_fuse::mountinfo::Mount;

use crate::daemon_process::DaemonProcess;
use crate::endpoint::{Reply, Request, sockets_of};

/// The longest wait for a daemon to exit after its last reply.
const END_WAIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// The interval between checks whether a silent daemon is ending.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why a request got no reply.
#[derive(Debug)]
pub enum AskError {
    /// No daemon listens for this mount.
    NoDaemon,
    /// The daemon closed the connection before it replied, or is ending.
    HungUp,
    /// The daemon serves too many requests at the same time, and has not begun this one.
    TooMany,
    /// A system call failed, for example for lack of permission. `TimedOut`: the daemon did not
    /// reply in time.
    Io(io::Error),
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::NoDaemon,
            // The error of a socket timeout.
            io::ErrorKind::WouldBlock => Self::Io(io::ErrorKind::TimedOut.into()),
            _ => Self::Io(error),
        }
    }
}

/// Sends a request to the daemon of `mount`, and waits for its last reply.
///
/// # Errors
/// [`AskError`].
pub fn ask(
    mount: &Mount,
    request: &Request,
    until: Option<Instant>,
    progress: &mut dyn FnMut(u64),
) -> Result<Reply, AskError> {
    ask_on(connect(mount, until)?, request, until, progress)
}

/// As [`ask`], for a request that ends the daemon: also waits until the process is gone, with its
/// lock on the served directory.
///
/// # Errors
/// [`AskError`].
pub fn ask_to_end(
    mount: &Mount,
    request: &Request,
    progress: &mut dyn FnMut(u64),
) -> Result<Reply, AskError> {
    let stream = connect(mount, None)?;
    let daemon = DaemonProcess::of(&stream);
    let reply = ask_on(stream, request, None, progress)?;
    if let (Reply::Done | Reply::Lost { .. }, Some(daemon)) = (&reply, daemon) {
        daemon.stays_for(&END_WAIT);
    }
    Ok(reply)
}

/// Sends a request to the daemon listening at a path, and waits for its last reply.
///
/// # Errors
/// As [`ask`].
pub fn ask_at(
    path: &Path,
    request: &Request,
    until: Option<Instant>,
    progress: &mut dyn FnMut(u64),
) -> Result<Reply, AskError> {
    ask_on(connect_to(path, until)?, request, until, progress)
}

fn ask_on(
    stream: UnixStream,
    request: &Request,
    until: Option<Instant>,
    progress: &mut dyn FnMut(u64),
) -> Result<Reply, AskError> {
    let mut line = serde_json::to_vec(request).map_err(io::Error::from)?;
    line.push(b'\n');
    stream.set_write_timeout(left(until)?)?;
    match (&stream).write_all(&line) {
        // The daemon has already refused the request and closed the connection.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    let daemon = DaemonProcess::of(&stream);
    for line in BufReader::new(Timed { stream, until, daemon }).lines() {
        match serde_json::from_str(&line?).map_err(io::Error::from)? {
            Reply::Progress { dirty_bytes } => progress(dirty_bytes),
            Reply::TooMany => return Err(AskError::TooMany),
            last => return Ok(last),
        }
    }
    Err(AskError::HungUp)
}

/// A connection with a deadline for reads. It ends when its daemon is ending.
struct Timed {
    stream: UnixStream,
    until: Option<Instant>,
    daemon: Option<DaemonProcess>,
}

impl Read for Timed {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let mut is_ending = false;
        loop {
            let time = left(self.until)?.map_or(LOOK_INTERVAL, |left| left.min(LOOK_INTERVAL));
            self.stream.set_read_timeout(Some(time))?;
            match self.stream.read(piece) {
                // The last reply may have been sent between the two looks: read once more.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_ending => {
                    is_ending = self.daemon.as_ref().is_some_and(DaemonProcess::is_ending);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                read => return read,
            }
        }
    }
}

/// Returns the time left until the deadline.
fn left(until: Option<Instant>) -> io::Result<Option<Duration>> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    match left {
        Some(Duration::ZERO) => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Connects to the daemon of a mount.
///
/// # Errors
/// [`AskError`].
pub fn connect(mount: &Mount, until: Option<Instant>) -> Result<UnixStream, AskError> {
    for socket in sockets_of(mount) {
        match connect_to(&socket, until).map_err(AskError::from) {
            Ok(stream) => {
                // Any user can create the fallback directory, so the peer itself is checked.
                let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(io::Error::from)?;
                if peer.uid.is_root() || Some(peer.uid.as_raw()) == mount.fuse_owner() {
                    return Ok(stream);
                }
            }
            Err(AskError::NoDaemon) => {}
            Err(error) => return Err(error),
        }
    }
    Err(AskError::NoDaemon)
}

fn connect_to(path: &Path, until: Option<Instant>) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // This also bounds the wait of `connect` for a full backlog.
    set_socket_timeout(&socket, Timeout::Send, left(until)?)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_late(asked: Result<Reply, AskError>) {
        match asked {
            Err(AskError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::TimedOut),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_left_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 2).unwrap();
        // The first clients wait for a reply, the later ones for a place in the backlog.
        for _ in 0..6 {
            let until = Some(Instant::now() + Duration::from_millis(50));
            assert_late(ask_at(&path, &Request::VolumeList, until, &mut |_| {}));
        }
        // The deadline also holds for a daemon sending progress.
        drop(listener);
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut progress = serde_json::to_vec(&Reply::Progress { dirty_bytes: 1 }).unwrap();
        progress.push(b'\n');
        let talking = std::thread::spawn(move || while far.write_all(&progress).is_ok() {});
        let until = Some(Instant::now() + Duration::from_millis(50));
        assert_late(ask_on(near, &Request::VolumeList, until, &mut |_| {}));
        talking.join().unwrap();
        assert!(matches!(ask_at(&path, &Request::VolumeList, None, &mut |_| {}), Err(AskError::NoDaemon)));
    }
}
