//! The helper process to abort the FUSE connection of a killed daemon.
//!
//! The kernel ends a FUSE mount when the last thread of its daemon is gone. But a thread in an
//! invalidation of pages or names waits, unkillably, for requests in progress. Once the daemon is
//! killed, no thread answers those requests. The thread would wait for the requests, the mount for
//! the thread, and every program using the mount with them, for ever. So a daemon starts a helper,
//! a program of the caller's choice that calls [`run`]. It waits until the daemon's main thread has
//! ended, even if other threads remain, and then ends the mount.
//!
//! The kernel reuses the number of a connection, perhaps before the helper runs. So the daemon
//! opens the connection's abort file itself, while it serves the mount, and hands it to the helper.
//!
//! The helper may be killed together with the daemon. Then a later process can do its work, with
//! [`is_ending`] and [`open_abort`].

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::classify::proc_files::read_status;
use crate::mount::{Mounted, Unmount, unmount};
use crate::mountinfo::mount_at;

pub use crate::classify::proc_files::is_ending;

/// How often to look whether the daemon's main thread has ended: its pidfd reports only the end of
/// all threads.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A program that runs the helper. It gets three arguments more: the mount point, the
/// `major:minor` of the mount, and the daemon's process id. Its standard input is the abort file of
/// the connection if that can be opened, else `/dev/null`. It is to call [`run`] with all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardProgram {
    /// Its name for itself, `argv[0]`.
    pub name: OsString,
    /// The program, such as `/proc/self/exe`: this one, even if its file has been replaced.
    pub path: PathBuf,
    /// The arguments before these.
    pub arguments: Vec<OsString>,
}

/// A running helper. Left alone it acts when this process's main thread ends.
#[derive(Debug)]
pub(crate) struct OrphanGuard(Child);

impl OrphanGuard {
    /// Starts the helper for a mount that this process serves.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start(program: &GuardProgram, mounted: &Mounted) -> io::Result<Self> {
        let mut command = Command::new(&program.path);
        command.arg0(&program.name).args(&program.arguments);
        command.arg(mounted.point()).arg(mounted.device_number()).arg(std::process::id().to_string());
        // In its own process group, so that a Ctrl-C for the daemon does not end the helper first.
        command.current_dir("/").process_group(0);
        let abort = open_abort(mounted.device_number());
        command.stdin(abort.map_or_else(Stdio::null, Stdio::from));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Ends the helper of a mount that no thread waits for any more.
    pub(crate) fn dismiss(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the main thread of a daemon has ended, then aborts the connection of its mount by
/// writing to `abort`, or unmounts it if that fails. Does not unmount if the whole daemon has
/// ended: the kernel has ended its mount, and a later one may have the place and the number by now.
///
/// # Errors
/// When the daemon's end cannot be watched, or the mount remains.
pub fn run(mut abort: impl Write, point: &Path, device: &str, daemon: u32) -> io::Result<()> {
    let process = i32::try_from(daemon).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH);
    let pidfd = match process.and_then(|process| pidfd_open(process, PidfdFlags::empty())) {
        Ok(pidfd) => pidfd,
        // Its connection went with it.
        Err(Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    // A status that cannot be read says nothing.
    let is_zombie = || read_status(daemon).is_some_and(|status| status.is_zombie);
    let has_ended = loop {
        if ends_within(&pidfd, &LOOK_INTERVAL)? {
            break true;
        }
        if is_zombie() {
            // Of a process that has ended as a whole, too, until it is waited for.
            break ends_within(&pidfd, &Timespec::default())?;
        }
    };
    let is_aborted = abort.write_all(b"1").is_ok();
    let is_there = || mount_at(point).is_ok_and(|at| at.is_some_and(|mount| mount.device == device));
    if has_ended || is_aborted || !is_there() { Ok(()) } else { unmount(point, Unmount::ByForce) }
}

/// Returns whether all threads of a process end within a time.
fn ends_within(pidfd: &OwnedFd, time: &Timespec) -> io::Result<bool> {
    match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(time)) {
        Ok(nr) => Ok(nr > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens the abort file of the connection of a mount, which must be served. The open file refers to
/// this connection for ever; the number may be reused by another one.
pub fn open_abort(device: &str) -> Option<File> {
    let (_, minor) = device.split_once(':')?;
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
