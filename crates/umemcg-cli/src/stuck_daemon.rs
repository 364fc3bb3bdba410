//! The end of a mount whose killed daemon cannot end.
//!
//! A thread of a killed daemon may wait, in the kernel, for a request that no thread answers any
//! more. The daemon's helper ([`umemcg_fuse::orphan_guard`]) then aborts the connection of the
//! mount. The helper may be killed together with the daemon. Then `umemcg umount`, and `umemcg
//! mount` at the same place, abort the connection here.
//!
//! An abort cannot be undone, so it needs proof:
//!
//! 1. The socket of the mount's device number is open, and is root's or the mounting user's.
//! 2. Its process has lost its main thread, and keeps another one for longer than the helper waits.
//! 3. The mount does not answer.
//! 4. With the connection's abort file open, the mount is still there, and so is the process. The
//!    kernel reuses numbers, but an open abort file stays with its connection.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use tracing::Level;
use umemcg_fuse::mount::{Pulse, pulse};
use umemcg_fuse::mountinfo::{Mount, mount_at};
use umemcg_fuse::orphan_guard::open_abort;

use crate::ask::connect;
use crate::daemon_process::{DaemonProcess, is_quiet};
use crate::log::tell;
use crate::mounts::{find_mount, is_umemcg};

/// The timeout of a connection; the backlog of the socket may be full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The time for a daemon to end by itself, or by its helper, which looks every second.
const ALONE: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };
/// The time for a daemon to end after the abort.
const AFTER_ABORT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Aborts the connection of a mount whose killed daemon cannot end, and waits for the end of the
/// daemon. Blocks for up to 20 seconds; if the daemon is alive or gone, only to ask for that.
pub fn end_if_stuck(mount: &Mount) {
    let Ok(connection) = connect(mount, Some(Instant::now() + CONNECT_TIMEOUT)) else { return };
    let Some(daemon) = DaemonProcess::of(&connection) else { return };
    if !daemon.is_ending() || !daemon.stays_for(&ALONE) || pulse(&mount.point) != Pulse::Silent {
        return;
    }
    let abort = open_abort(&mount.device);
    // While the socket is open, its process has its pid. No request was sent, so no reply comes.
    let is_still_open = is_quiet(&connection, &Timespec::default());
    if !is_still_open || !mount_at(&mount.point).is_ok_and(|now| now.as_ref() == Some(mount)) {
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
