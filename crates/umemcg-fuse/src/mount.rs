//! Mounting and unmounting: as root with `mount(2)`, as an ordinary user through `fusermount3`,
//! which hands the connected device over a socket.
//!
//! The mount table is read before the mount point is touched: an access to the path itself could
//! wait for a hanging daemon.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use thiserror::Error;
use umemcg_base::{Rank, assert_may_wait};

use crate::mount_flag::MountFlag;
use crate::mountinfo::{Mount, mount_at};
use crate::transport::Device;
use crate::wire::MAX_PAYLOAD_BYTES;

/// The time allowed for a mount to prove that it is alive.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);
/// The most dead mounts on top of each other that a new mount takes over.
const NR_STACKED_MAX: usize = 16;
/// The helper programs for ordinary users.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// The options of a mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The text behind `fuse.` in the mount table.
    pub subtype: String,
    /// The source shown in the mount table.
    pub source: OsString,
    /// Admits other users. The default is yes as root, else no.
    pub allow_other: Option<bool>,
    /// Flags in addition to `nosuid` and `nodev`, which every mount has.
    pub flags: Vec<MountFlag>,
    /// The directory that must neither contain the mount point nor lie under it.
    pub backing: Option<PathBuf>,
}

impl MountOptions {
    /// Creates options for a mount listed as `fuse.<subtype>` from `source`.
    pub fn new(subtype: impl Into<String>, source: impl Into<OsString>) -> Self {
        Self {
            subtype: subtype.into(),
            source: source.into(),
            allow_other: None,
            flags: Vec::new(),
            backing: None,
        }
    }
}

/// The reason for a failed mount. The text advises the user.
#[derive(Debug, Error)]
pub enum MountError {
    /// There is no such directory.
    #[error("the mount point {} does not exist; create the directory first", .0.display())]
    Missing(PathBuf),
    /// It is something else.
    #[error("the mount point {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// A living file system of this type is mounted there.
    #[error("the mount point {} is busy: a file system of type {kind} is mounted there; unmount it or choose another directory", point.display())]
    Busy {
        /// The mount point.
        point: PathBuf,
        /// The type of the mounted file system.
        kind: String,
    },
    /// A mount on the way there, or one of another type there, has lost its daemon.
    #[error("{} is a mount whose daemon has died; `umount` or `fusermount3 -u` removes it", .0.display())]
    Stale(PathBuf),
    /// One directory lies in the other.
    #[error("the mount point {} and the directory {} must not contain each other", point.display(), backing.display())]
    Nested {
        /// The mount point.
        point: PathBuf,
        /// The directory to mount.
        backing: PathBuf,
    },
    /// The kernel has no FUSE, or we may not use it.
    #[error("cannot open /dev/fuse: {0}; load the kernel's fuse module, or give this environment the device")]
    NoDevice(Errno),
    /// Mounting as an ordinary user needs a helper.
    #[error("mounting as an ordinary user needs fusermount3; install the package fuse3")]
    NoHelper,
    /// The helper refused.
    #[error("fusermount3 cannot mount at {}: {message}", point.display())]
    Helper {
        /// The mount point.
        point: PathBuf,
        /// Its message.
        message: String,
    },
    /// A system call failed.
    #[error("cannot {what} {}: {error}", path.display())]
    System {
        /// The failed operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// Its error.
        error: io::Error,
    },
}

/// Returns the conversion of a system's error into the error of an operation on a path.
fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MountError {
    let path = path.to_owned();
    move |error| MountError::System { what, path, error }
}

/// The way to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only if it is not in use.
    IfIdle,
    /// Hidden immediately; its users continue.
    Lazily,
    /// Hidden immediately; its users get errors, and their requests end.
    ByForce,
}

/// A mount of ours. Dropping it unmounts lazily, if it still is there.
#[derive(Debug)]
pub struct Mounted {
    point: PathBuf,
    /// Of the mounted file system. The kernel reuses it once our mount has gone.
    device_number: String,
    /// Distinguishes our mount from a later one at the same place; none before Linux 6.8.
    id: Option<u64>,
}

impl Mounted {
    /// Mounts at `point` and returns the device to serve.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn mount(point: &Path, options: &MountOptions) -> Result<(Self, Device), MountError> {
        let point = prepare(point, options)?;
        let root = rustix::process::geteuid().is_root();
        let fd = match if root { mount_as_root(&point, options) } else { Err(None) } {
            Ok(fd) => fd,
            Err(Some(error)) => return Err(error),
            // Root of a container may lack a right that the helper has.
            Err(None) => mount_with_helper(&point, options)?,
        };
        let found = identity(&point).inspect_err(|_| drop(unmount(&point, Unmount::Lazily)));
        let (device_number, id) = found.map_err(system("find the new mount at", &point))?;
        Ok((Self { point, device_number, id }, Device::new(fd)))
    }

    /// Returns the mount point, absolute and without symlinks.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Returns `major:minor` of the mounted file system, as in `/proc/self/mountinfo`.
    pub fn device_number(&self) -> &str {
        &self.device_number
    }

    /// Returns whether it is still mounted there.
    pub fn is_mounted(&self) -> bool {
        identity(&self.point)
            .is_ok_and(|(device_number, id)| device_number == self.device_number && id == self.id)
    }

    /// Unmounts. A mount that is gone already is no error.
    ///
    /// # Errors
    /// `EBUSY` with [`Unmount::IfIdle`] while the mount is in use, else the error of the system or
    /// the helper.
    pub fn unmount(&self, how: Unmount) -> io::Result<()> {
        if !self.is_mounted() {
            return Ok(());
        }
        if how == Unmount::ByForce {
            self.abort();
        }
        match unmount(&self.point, how) {
            // Another thread was faster.
            Err(_) if !self.is_mounted() => Ok(()),
            other => other,
        }
    }

    /// Ends the connection through the control file system, where there is one.
    fn abort(&self) {
        if let Some((_, minor)) = self.device_number.split_once(':') {
            // As root, the unmount itself aborts; this is for ordinary users.
            let _ = std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(Unmount::Lazily) {
            tracing::warn!(%error, point = %self.point.display(), "cannot unmount");
        }
    }
}

/// Returns the device number of the file system at `point`, and the number of its mount, which is
/// never reused for another mount. Asks only the kernel, not the daemon behind the mount, and needs
/// no descriptor: a daemon without any must find its mount to unmount it.
fn identity(point: &Path) -> io::Result<(String, Option<u64>)> {
    const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(rustix::fs::CWD, point, flags, MNT_ID_UNIQUE)?;
    let id = (stat.stx_mask & MNT_ID_UNIQUE.bits() != 0).then_some(stat.stx_mnt_id);
    Ok((format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor), id))
}

/// Unmounts the file system at `point`, an absolute path without symlinks.
///
/// # Errors
/// The error of the system or of the helper.
pub fn unmount(point: &Path, how: Unmount) -> io::Result<()> {
    let flags = match how {
        Unmount::IfIdle => UnmountFlags::NOFOLLOW,
        Unmount::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Unmount::ByForce => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(point, flags) {
        Err(Errno::PERM) => unmount_with_helper(point, how),
        other => Ok(other?),
    }
}

fn unmount_with_helper(point: &Path, how: Unmount) -> io::Result<()> {
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.arg("-u");
        if how != Unmount::IfIdle {
            command.arg("-z");
        }
        match command.arg("--").arg(point).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let busy = message.contains("busy");
                return Err(if busy { Errno::BUSY.into() } else { io::Error::other(message) });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::PERM.into())
}

/// Checks that a mount can be made at `point`, and returns the real path. Removes mounts of the
/// same type whose daemon has died.
fn prepare(point: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    let mut absolute = locate(point)?;
    for _ in 0..NR_STACKED_MAX {
        match fuse_at(&absolute)? {
            Some(mount) if is_dead(&absolute) => {
                if mount.kind.strip_prefix("fuse.") != Some(options.subtype.as_str()) {
                    return Err(MountError::Stale(absolute));
                }
                // Another daemon may have been faster.
                if fuse_at(&absolute)?.is_none_or(|now| now.device != mount.device) {
                    continue;
                }
                tracing::warn!(point = %absolute.display(), "taking over a mount that is no longer connected");
                let unmounted = unmount(&absolute, Unmount::Lazily);
                unmounted.map_err(system("unmount the dead mount at", &absolute))?;
            }
            Some(mount) => return Err(MountError::Busy { point: absolute, kind: mount.kind }),
            None => {
                // Only now may the path itself be accessed; it may still be a symlink to a mount.
                let real = canonical(&absolute)?;
                if real == absolute {
                    break;
                }
                absolute = real;
            }
        }
    }
    if !absolute.is_dir() {
        return Err(MountError::NotDirectory(absolute));
    }
    if let Some(backing) = &options.backing {
        let backing = canonical(backing)?;
        if absolute.starts_with(&backing) || backing.starts_with(&absolute) {
            return Err(MountError::Nested { point: absolute, backing });
        }
    }
    Ok(absolute)
}

/// Returns the absolute path, with symlinks resolved in all but the last component.
fn locate(point: &Path) -> Result<PathBuf, MountError> {
    let absolute = std::path::absolute(point).map_err(system("resolve", point))?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(canonical(parent)?.join(name)),
        _ => canonical(&absolute),
    }
}

fn canonical(path: &Path) -> Result<PathBuf, MountError> {
    path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::Missing(path.to_owned()),
        io::ErrorKind::NotADirectory => MountError::NotDirectory(path.to_owned()),
        io::ErrorKind::NotConnected => MountError::Stale(path.to_owned()),
        _ => system("resolve", path)(error),
    })
}

fn fuse_at(point: &Path) -> Result<Option<Mount>, MountError> {
    let found = mount_at(point).map_err(system("read the mount table for", point))?;
    Ok(found.filter(Mount::is_fuse))
}

/// The answer of a FUSE mount to a request that its daemon serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulse {
    /// It answers, or could not be asked.
    Alive,
    /// Its daemon has died. No daemon serves such a mount, so removing it loses nothing more.
    Dead,
    /// It does not answer in time: its daemon hangs, or cannot end.
    Silent,
}

/// Returns whether the daemon of the FUSE mount at `point` has died. A hanging daemon is alive; it
/// is waited for, for two seconds.
pub fn is_dead(point: &Path) -> bool {
    pulse(point) == Pulse::Dead
}

/// Asks the FUSE mount at `point`. Waits for two seconds at most.
pub fn pulse(point: &Path) -> Pulse {
    let (said, heard) = mpsc::channel();
    let path = point.to_owned();
    // On a separate thread, because the answer may never come. A refused thread drops `said`.
    let _ = std::thread::Builder::new().name("umemcg-alive".into()).spawn(move || {
        let _ = said.send(rustix::fs::statfs(&path).map(drop));
    });
    assert_may_wait(Rank::Peer, "a wait for another daemon");
    match heard.recv_timeout(ALIVE_WITHIN) {
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Pulse::Dead,
        Err(RecvTimeoutError::Timeout) => Pulse::Silent,
        _ => Pulse::Alive,
    }
}

fn allow_other(options: &MountOptions) -> bool {
    options.allow_other.unwrap_or_else(|| rustix::process::geteuid().is_root())
}

/// Mounts with our own rights. `Err(None)`: we lack them, the helper may have them.
fn mount_as_root(point: &Path, options: &MountOptions) -> Result<OwnedFd, Option<MountError>> {
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Some(MountError::NoDevice(errno)))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={MAX_PAYLOAD_BYTES}",
        fd.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if allow_other(options) {
        data.push_str(",allow_other");
    }
    let failed = |error| Some(system("mount at", point)(error));
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|error| failed(error.into()));
    let source = text(options.source.as_bytes().to_vec())?;
    let kind = text(format!("fuse.{}", options.subtype).into_bytes())?;
    let data = text(data.into_bytes())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let flags = options.flags.iter().fold(flags, |flags, flag| flags | flag.bits());
    match rustix::mount::mount(source.as_c_str(), point, kind.as_c_str(), flags, data.as_c_str()) {
        Ok(()) => Ok(fd),
        Err(Errno::PERM) => Err(None),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn mount_with_helper(point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let mut text = OsString::from(format!(
        "default_permissions,max_read={MAX_PAYLOAD_BYTES},subtype={},fsname=",
        options.subtype
    ));
    text.push(escape(&options.source));
    if allow_other(options) {
        text.push(",allow_other");
    }
    for flag in &options.flags {
        text.push(",");
        text.push(flag.name());
    }
    for helper in HELPERS {
        let (ours, theirs) = UnixStream::pair().map_err(system("make a socket to mount at", point))?;
        // The helper's end is its standard input: no other child can inherit it by accident.
        let child = Command::new(helper)
            .arg("-o")
            .arg(&text)
            .arg("--")
            .arg(point)
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(system("run fusermount3 for", point)(error)),
        };
        let received = receive_fd(&ours);
        let output = child.wait_with_output().map_err(system("wait for fusermount3 at", point))?;
        return match received {
            Ok(Some(fd)) if output.status.success() => Ok(fd),
            Err(error) => Err(system("receive the device for", point)(error)),
            _ => {
                let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(MountError::Helper { point: point.to_owned(), message })
            }
        };
    }
    Err(MountError::NoHelper)
}

/// Receives one descriptor from the other end; none when it closes first.
fn receive_fd(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(fds.flatten().next())
}

/// Escapes commas and backslashes: the helper separates options by commas.
fn escape(text: &OsStr) -> OsString {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    OsString::from_vec(out)
}
