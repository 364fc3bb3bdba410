//! The helper process to abort the FUSE connection of a killed daemon.
//!
//! The kernel ends a FUSE mount when the last thread of its daemon is gone. But a thread in an
//! invalidation of pages or names waits, unkillably, for requests in progress. Once the daemon is
//! killed, no thread answers those requests. The thread would wait for the requests, the mount for
//! the thread, and every program using the mount with them, for ever. So the daemon starts this
//! program a second time, as a helper. The helper gets a signal when the daemon's main thread ends,
//! even if other threads remain, and aborts the connection. It does nothing else.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use umemcg_fuse::mount::unmount;
use umemcg_fuse::mountinfo::mount_at;
use umemcg_fuse::{Mounted, Unmount};

use crate::args::OrphanGuardArguments;
use crate::exit::Failure;

/// The running program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Starts the helper for the daemon's mount. Must be called by the main thread. The helper acts
/// even if the daemon ends normally, because a thread may still be waiting then.
///
/// # Errors
/// When the process cannot be started.
pub fn start(mounted: &Mounted) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg0("umemcg").arg("__orphan-guard").arg(mounted.point()).arg(mounted.device_number());
    command.arg(std::process::id().to_string());
    // In its own process group, so that a Ctrl-C for the daemon does not end the helper first.
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Never reaped: the helper ends after this process.
    command.spawn().map(drop)
}

/// Runs the helper: waits until the daemon has ended, then aborts the connection.
///
/// # Errors
/// When the daemon's end cannot be watched, or the mount remains.
pub fn run(arguments: &OrphanGuardArguments) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("cannot watch the daemon: {error}"));
    let mut signals = Signals::new([SIGUSR1]).map_err(failed)?;
    set_parent_process_death_signal(Some(Signal::USR1)).map_err(|errno| failed(errno.into()))?;
    let minor = arguments.device.split_once(':').map_or("", |(_, minor)| minor);
    let mut abort = open_abort(minor);
    // The daemon may have ended before the signal was requested.
    if getppid().map(Pid::as_raw_pid) == Some(arguments.daemon) {
        signals.forever().next();
    }
    let is_aborted = abort.as_mut().is_some_and(|abort| abort.write_all(b"1").is_ok());
    let is_there =
        || mount_at(&arguments.point).is_ok_and(|at| at.is_some_and(|m| m.device == arguments.device));
    if !is_aborted && is_there() {
        let unmounted = unmount(&arguments.point, Unmount::ByForce);
        unmounted.map_err(|error| Failure::at("cannot unmount", &arguments.point, &error))?;
    }
    Ok(())
}

/// Opens the abort file of a connection. The open file refers to this connection even after the
/// mount is detached; its number may be reused by another connection.
fn open_abort(minor: &str) -> Option<File> {
    let path = format!("/sys/fs/fuse/connections/{minor}/abort");
    File::options().write(true).open(path).ok().or_else(|| {
        // The control file system may not be mounted; it can be used without a mount point.
        let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_create(control.as_fd()).ok()?;
        let files = fsmount(control.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()?;
        let how = OFlags::WRONLY | OFlags::CLOEXEC;
        Some(rustix::fs::openat(&files, format!("{minor}/abort"), how, Mode::empty()).ok()?.into())
    })
}
