//! The client of a daemon: its address, and the failures of requests. Also `umemcg sync` and
//! `umemcg umount`.

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use umemcg_fuse::Unmount;
use umemcg_fuse::mount::{is_dead, unmount};
use umemcg_fuse::mountinfo::{self, Mount};

use crate::args::{SyncArguments, UmountArguments};
use crate::ask::{AskError, ask, ask_at, ask_to_end};
use crate::endpoint::{Reply, Request};
use crate::exit::{Failure, LostFile};
use crate::mounts::{control_mounts_of, find_mount, is_umemcg};
use crate::stuck_daemon::end_if_stuck;
use crate::table::human_bytes;

/// Runs `umemcg sync MNT`.
///
/// # Errors
/// [`Failure`].
pub fn sync(arguments: &SyncArguments) -> Result<(), Failure> {
    let daemon = DaemonAddress::of(None, Some(&arguments.mountpoint))?;
    let request = Request::Sync { flush_timeout_ms: arguments.flush_timeout.map(milliseconds) };
    print_json(arguments.json, durable(&daemon, daemon.last_reply(&request)))
}

/// Runs `umemcg umount MNT`.
///
/// # Errors
/// [`Failure`].
pub fn umount(arguments: &UmountArguments) -> Result<(), Failure> {
    let mount = our_mount(&arguments.mountpoint)?;
    let request = Request::Umount { flush_timeout_ms: arguments.flush_timeout.map(milliseconds) };
    let daemon = DaemonAddress::Mount(mount.clone());
    let reply = last_reply(&daemon, |progress| ask_to_end(&mount, &request, progress));
    let mut result = durable(&daemon, reply);
    if let Err(Failure::NotServed(_)) = result {
        end_if_stuck(&mount);
        if is_dead(&mount.point) {
            result = Err(remove_dead(&mount));
        }
    }
    print_json(arguments.json, result)
}

/// Returns the umemcg mount at `path`.
///
/// # Errors
/// [`Failure::NotServed`] if it is not one.
pub(crate) fn our_mount(path: &Path) -> Result<Mount, Failure> {
    let (resolved, entry) = find_mount(path).map_err(|error| Failure::at("cannot find", path, &error))?;
    match entry {
        Some(entry) if is_umemcg(&entry) => Ok(entry),
        Some(entry) => Err(Failure::NotServed(format!(
            "{} is a mount of type {}, not a umemcg mount",
            path.display(),
            entry.kind
        ))),
        None => Err(Failure::NotServed(format!("{} is not a mount point", resolved.display()))),
    }
}

/// The address of a daemon.
#[derive(Debug)]
pub(crate) enum DaemonAddress {
    /// A mount that it serves.
    Mount(Mount),
    /// A socket of the daemon (`umemcg mount --socket`).
    Socket(PathBuf),
}

impl DaemonAddress {
    /// Returns the address by a socket, else by a mount, else by the only mount.
    ///
    /// # Errors
    /// [`Failure`] if there is no such mount.
    pub(crate) fn of(socket: Option<&Path>, mount: Option<&Path>) -> Result<Self, Failure> {
        match (socket, mount) {
            (Some(path), _) => Ok(Self::Socket(path.to_owned())),
            (None, Some(path)) => our_mount(path).map(Self::Mount),
            (None, None) => the_only_mount().map(Self::Mount),
        }
    }

    /// Sends a request, and waits for its last reply.
    ///
    /// # Errors
    /// [`AskError`].
    pub(crate) fn ask(
        &self,
        request: &Request,
        until: Option<Instant>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Reply, AskError> {
        match self {
            Self::Mount(mount) => ask(mount, request, until, progress),
            Self::Socket(path) => ask_at(path, request, until, progress),
        }
    }

    /// Sends a request, shows its progress on a terminal, and returns its last reply.
    ///
    /// # Errors
    /// [`Failure`] if the daemon does not answer, refuses, or reports lost data.
    pub(crate) fn last_reply(&self, request: &Request) -> Result<Reply, Failure> {
        last_reply(self, |progress| self.ask(request, None, progress))
    }
}

impl fmt::Display for DaemonAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Mount(Mount { point: path, .. }) | Self::Socket(path)) = self;
        write!(formatter, "{}", path.display())
    }
}

/// Returns the data mount, if there is exactly one.
fn the_only_mount() -> Result<Mount, Failure> {
    let table = std::fs::read("/proc/self/mountinfo")
        .map_err(|error| Failure::Failed(format!("cannot read the mount table: {error}")))?;
    let mut found: Vec<Mount> =
        mountinfo::parse(&table).filter(|m| is_umemcg(m) && m.kind == "fuse.umemcg").collect();
    let points: Vec<String> = found.iter().map(|mount| mount.point.display().to_string()).collect();
    match (found.pop(), points.len()) {
        (Some(mount), 1) => Ok(mount),
        (None, _) => Err(Failure::NotServed("nothing is mounted by umemcg".into())),
        _ => Err(Failure::Usage(format!(
            "several mounts are served; choose one of: --mount {}",
            points.join(", --mount ")
        ))),
    }
}

/// Sends a request with `ask`, shows its progress on a terminal, and returns its last reply.
fn last_reply(
    daemon: &DaemonAddress,
    ask: impl FnOnce(&mut dyn FnMut(u64)) -> Result<Reply, AskError>,
) -> Result<Reply, Failure> {
    let terminal = std::io::stderr().is_terminal();
    let mut shown = false;
    let reply = ask(&mut |dirty_bytes| {
        if terminal {
            shown = true;
            crate::output::show(&format!("\r\x1b[Kwriting back: {} left", human_bytes(dirty_bytes)));
        }
    });
    if shown {
        crate::output::show("\r\x1b[K");
    }
    match reply {
        Ok(Reply::Failed { message }) => Err(Failure::Failed(message)),
        Ok(Reply::Lost { files }) => Err(Failure::Lost(files)),
        Ok(reply) => Ok(reply),
        Err(AskError::NoDaemon) => Err(Failure::NotServed(format!("no daemon answers behind {daemon}"))),
        Err(AskError::HungUp) => {
            Err(Failure::NotServed(format!("the daemon behind {daemon} ended before it answered")))
        }
        Err(AskError::TooMany) => Err(Failure::Failed(format!(
            "the daemon behind {daemon} serves too many requests at the same time; try again"
        ))),
        Err(AskError::Io(error)) => {
            Err(Failure::Failed(format!("cannot talk to the daemon behind {daemon}: {error}")))
        }
    }
}

/// Returns the failure for a reply that does not belong to its request.
pub(crate) fn unexpected(reply: &Reply) -> Failure {
    Failure::Failed(format!("unexpected reply of the daemon: {reply:?}; is it of another version?"))
}

/// Returns the result of a request that flushes the daemon's data.
fn durable(daemon: &DaemonAddress, reply: Result<Reply, Failure>) -> Result<(), Failure> {
    match reply? {
        Reply::Done => Ok(()),
        Reply::Busy { users } if users.is_empty() => Err(Failure::Busy(format!("{daemon} is in use"))),
        Reply::Busy { users } => Err(Failure::Busy(format!("{daemon} is in use by {}", users.join(", ")))),
        other => Err(unexpected(&other)),
    }
}

/// Removes the mount of a dead daemon with its control mount, and returns the failure with a
/// message about it.
fn remove_dead(mount: &Mount) -> Failure {
    let path = &mount.point;
    let removed = unmount(path, Unmount::Lazily).is_ok();
    // All daemons with a configuration have the same source, and the mount of another one, dead or
    // not, has to stay: limits would be written to files below it.
    if let [control] = &control_mounts_of(&mount.source)[..]
        && is_dead(&control.point)
    {
        let _ = unmount(&control.point, Unmount::Lazily);
    }
    let path = path.display();
    Failure::NotServed(match removed {
        true => {
            format!("the daemon of {path} had died; the mount is removed, and data not written back is lost")
        }
        false => {
            format!("the daemon of {path} has died, and the mount cannot be removed; try: umount -l {path}")
        }
    })
}

pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Serialize)]
struct Outcome<'a> {
    durable: bool,
    lost: &'a [LostFile],
    error: Option<String>,
}

/// Prints the result of a request if `wanted`, and returns it, or the failure to print.
fn print_json(wanted: bool, result: Result<(), Failure>) -> Result<(), Failure> {
    if !wanted {
        return result;
    }
    let lost = if let Err(Failure::Lost(files)) = &result { files.as_slice() } else { &[] };
    let error = result.as_ref().err().map(ToString::to_string);
    let outcome = Outcome { durable: result.is_ok(), lost, error };
    let text = serde_json::to_string(&outcome).map_err(|error| Failure::Failed(error.to_string()))?;
    result.and(crate::output::print(&(text + "\n")))
}
