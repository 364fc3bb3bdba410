//! The helper process that ends a mount whose daemon was killed, and the daemon's end of it.
//!
//! The kernel ends a FUSE mount when the last thread of its daemon is gone. But a thread that has
//! the kernel drop pages waits, unkillably, for requests under way, which no thread answers any
//! more when the daemon is killed: each would wait for the other for ever, and with them all
//! programs that use the mount. So the daemon starts this program again where the kernel keeps
//! pages. It gets a signal when the daemon's main thread ends, which does not wait for the other
//! threads, and aborts the connection. It does nothing else.

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

/// This very program, also when its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Starts the helper for the daemon's mount. It outlives the main thread by a moment, also when the
/// daemon ends in order: a thread may be waiting even then. Must be called by the main thread.
///
/// # Errors
/// When no process can be started.
pub fn start(mounted: &Mounted) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg0("umemcg").arg("__orphan-guard").arg(mounted.point()).arg(mounted.device_number());
    command.arg(std::process::id().to_string());
    // In a process group of its own a Ctrl-C that ends the daemon does not end it first.
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Never waited for: it ends after this process.
    command.spawn().map(drop)
}

/// Runs the helper until the daemon has ended.
///
/// # Errors
/// When the signal cannot be had.
pub fn run(arguments: &OrphanGuardArguments) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("cannot watch the daemon: {error}"));
    let mut signals = Signals::new([SIGUSR1]).map_err(failed)?;
    set_parent_process_death_signal(Some(Signal::USR1)).map_err(|errno| failed(errno.into()))?;
    let minor = arguments.device.split_once(':').map_or("", |(_, minor)| minor);
    let mut abort = open_abort(minor);
    // The daemon may have ended before the signal was asked for.
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

/// Opens the file that aborts a connection. Held open, it is this connection's for good, also when
/// the mount is out of sight; its number may be another's later.
fn open_abort(minor: &str) -> Option<File> {
    let path = format!("/sys/fs/fuse/connections/{minor}/abort");
    File::options().write(true).open(path).ok().or_else(|| {
        // The control file system is not mounted everywhere: it is had without a place, too.
        let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_create(control.as_fd()).ok()?;
        let files = fsmount(control.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()?;
        let how = OFlags::WRONLY | OFlags::CLOEXEC;
        Some(rustix::fs::openat(&files, format!("{minor}/abort"), how, Mode::empty()).ok()?.into())
    })
}
