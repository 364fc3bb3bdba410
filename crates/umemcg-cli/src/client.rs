//! `umemcg sync` and `umemcg umount`: send a request to the daemon of a mount and wait for its last
//! reply.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use umemcg_fuse::Unmount;
use umemcg_fuse::mount::{is_dead, unmount};
use umemcg_fuse::mountinfo::Mount;

use crate::args::{SyncArguments, UmountArguments};
use crate::ask::{AskError, ask, ask_to_end};
use crate::endpoint::{Reply, Request};
use crate::exit::{Failure, LostFile};
use crate::mounts::{control_mounts_of, find_mount, is_umemcg};
use crate::table::human_bytes;

/// Runs `umemcg sync MNT`.
///
/// # Errors
/// [`Failure`].
pub fn sync(arguments: &SyncArguments) -> Result<(), Failure> {
    let mount = our_mount(&arguments.mountpoint)?;
    let request = Request::Sync { flush_timeout_ms: arguments.flush_timeout.map(milliseconds) };
    let result = last_reply(&mount, |progress| ask(&mount, &request, None, progress));
    print_json(arguments.json, result)
}

/// Runs `umemcg umount MNT`.
///
/// # Errors
/// [`Failure`].
pub fn umount(arguments: &UmountArguments) -> Result<(), Failure> {
    let mount = our_mount(&arguments.mountpoint)?;
    let request = Request::Umount { flush_timeout_ms: arguments.flush_timeout.map(milliseconds) };
    let mut result = last_reply(&mount, |progress| ask_to_end(&mount, &request, progress));
    if let Err(Failure::NotServed(_)) = result
        && is_dead(&mount.point)
    {
        result = Err(remove_dead(&mount));
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

/// Returns the last reply to a request without progress reports.
pub(crate) fn reply_to(mount: &Mount, request: &Request) -> Result<Reply, Failure> {
    match ask(mount, request, None, &mut |_| {}) {
        Ok(Reply::Failed { message }) => Err(Failure::Failed(message)),
        Ok(reply) => Ok(reply),
        Err(error) => Err(not_answered(mount, &error)),
    }
}

/// The message about a daemon with too many requests in progress, without its subject.
pub(crate) const TOO_MANY: &str = "serves too many requests at the same time; try again";

/// Returns the failure for a request without a last reply.
fn not_answered(mount: &Mount, error: &AskError) -> Failure {
    let path = mount.point.display();
    match error {
        AskError::HungUp => Failure::NotServed(format!("the daemon behind {path} ended before it answered")),
        AskError::NoDaemon => Failure::NotServed(format!("no daemon answers behind {path}")),
        AskError::TooMany => Failure::Failed(format!("the daemon behind {path} {TOO_MANY}")),
        AskError::Io(error) => Failure::Failed(format!("cannot talk to the daemon behind {path}: {error}")),
    }
}

/// Sends a request with `ask`, shows its progress on a terminal, and returns its result.
fn last_reply(
    mount: &Mount,
    ask: impl FnOnce(&mut dyn FnMut(u64)) -> Result<Reply, AskError>,
) -> Result<(), Failure> {
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
    let path = mount.point.display();
    match reply {
        Ok(Reply::Done) => Ok(()),
        Ok(Reply::Lost { files }) => Err(Failure::Lost(files)),
        Ok(Reply::Busy { users }) if users.is_empty() => Err(Failure::Busy(format!("{path} is in use"))),
        Ok(Reply::Busy { users }) => Err(Failure::Busy(format!("{path} is in use by {}", users.join(", ")))),
        Ok(Reply::Failed { message }) => Err(Failure::Failed(message)),
        Ok(
            Reply::Progress { .. }
            | Reply::Volumes { .. }
            | Reply::Metrics { .. }
            | Reply::Reloaded(_)
            | Reply::TooMany
            | Reply::Removed { .. },
        ) => Err(not_answered(mount, &AskError::HungUp)),
        Err(error) => Err(not_answered(mount, &error)),
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
