//! The end of a mount whose killed daemon cannot end.
//!
//! A thread of a killed daemon may wait, in the kernel, for a request that no thread answers any
//! more. The daemon's helper ([`umemcg_fuse::orphan_guard`]) then aborts the connection of the
//! mount. The helper may be killed together with the daemon. Then `umemcg umount`, and `umemcg
//! mount` at the same place, abort the connection here.
//!
//! An abort cannot be undone, so it needs proof:
//!
//! 1. The socket of the mount's device number is open, and is the mounting user's. It may be of an
//!    earlier mount with that number until the mount's own daemon removes it.
//! 2. Its process has lost its main thread, and keeps another one for longer than the helper waits.
//! 3. The mount does not answer.
//! 4. With the connection's abort file open, the mount is still there, and its socket still leads
//!    to that process. The kernel reuses numbers, but an open abort file stays with its connection.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use tracing::Level;
use umemcg_fuse::mount::{Pulse, pulse};
use umemcg_fuse::mountinfo::{Mount, mount_at};
use umemcg_fuse::orphan_guard::open_abort;

use crate::ask::connect;
use crate::daemon_process::DaemonProcess;
use crate::log::tell;
use crate::mounts::{find_mount, is_umemcg};

/// The timeout of a connection; the backlog of the socket may be full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for a daemon to end by itself, or by its helper, which looks every second.
const ALONE: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };
/// The time for a daemon to end after the abort.
const AFTER_ABORT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Connects to the socket of a mount. Returns its process if it is the mounting user's.
fn daemon_of(mount: &Mount) -> Option<DaemonProcess> {
    let connection = connect(mount, Some(Instant::now() + CONNECT_TIMEOUT)).ok()?;
    DaemonProcess::of(&connection).filter(|daemon| Some(daemon.user) == mount.fuse_owner())
}

/// Aborts the connection of a mount whose killed daemon cannot end, and waits for the end of the
/// daemon. Blocks for up to 20 seconds; if the daemon is alive or gone, only to ask for that.
pub fn end_if_stuck(mount: &Mount) {
    let Some(daemon) = daemon_of(mount) else { return };
    if !daemon.is_ending() || !daemon.stays_for(&ALONE) || pulse(&mount.point) != Pulse::Silent {
        return;
    }
    let abort = open_abort(&mount.device);
    // Connects again: another daemon may have the device number, and so the socket, by now.
    let is_same = daemon_of(mount).is_some_and(|now| now.pid == daemon.pid && now.is_ending());
    // While a thread of it is left, no other process has its pid.
    let is_left = daemon.stays_for(&Timespec::default());
    let is_there = mount_at(&mount.point).is_ok_and(|now| now.as_ref() == Some(mount));
    if !(is_same && is_left && is_there) {
        return;
    }
    let (pid, point) = (daemon.pid, mount.point.display());
    let is_aborted = abort.is_some_and(|mut abort| abort.write_all(b"1").is_ok());
    let result = if is_aborted { "the mount is aborted" } else { "`umount -f` by root aborts the mount" };
    let message = format!("the daemon of {point} (process {pid}) was killed and cannot end; {result}");
    tell(Level::WARN, message);
    if is_aborted && daemon.stays_for(&AFTER_ABORT) {
        tell(Level::WARN, format_args!("process {pid} still waits in the kernel, and keeps its locks"));
    }
}

/// As [`end_if_stuck`], for the umemcg mount at a path, if there is one.
pub fn end_if_stuck_at(point: &Path) {
    if let Ok((_, Some(mount))) = find_mount(point)
        && is_umemcg(&mount)
    {
        end_if_stuck(&mount);
    }
}
