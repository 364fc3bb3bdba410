//! System calls on descriptors of the host, in the form used by the rest of the crate.
//!
//! Most inodes are held by descriptors without I/O (`O_PATH`). The kernel accepts them in few
//! calls. The other calls take the path `/proc/self/fd/N`, which names exactly the inode held by
//! the descriptor. A symbolic link held in this way is never followed. Nothing here resolves a path
//! of more than one component.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Statx, StatxAttributes, StatxFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use crate::attr::SetTime;
use crate::attr::{Attr, FileKind, Timestamp};

/// The host's attributes of an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostStat {
    pub(crate) attr: Attr,
    pub(crate) kind: FileKind,
    pub(crate) dev: (u32, u32),
    /// Birth time in nanoseconds, 0 where the file system does not record it. Distinguishes an
    /// inode from a later one with the same number.
    pub(crate) birth: u64,
    /// Whether it is a mount point.
    pub(crate) is_mount: bool,
}

impl HostStat {
    /// Returns the identity of the inode within its file system.
    pub(crate) fn key(&self) -> InodeKey {
        InodeKey { ino: self.attr.ino, birth: self.birth }
    }

    fn from_statx(stat: &Statx) -> Result<Self, Errno> {
        let time = |t: rustix::fs::StatxTimestamp| Timestamp { seconds: t.tv_sec, nanoseconds: t.tv_nsec };
        let mode = u32::from(stat.stx_mode);
        let btime = (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time(stat.stx_btime));
        let nanoseconds = |t: Timestamp| {
            (t.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(t.nanoseconds))
        };
        Ok(Self {
            attr: Attr {
                ino: stat.stx_ino,
                size: stat.stx_size,
                blocks: stat.stx_blocks,
                mode,
                nlink: stat.stx_nlink,
                uid: stat.stx_uid,
                gid: stat.stx_gid,
                rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
                atime: time(stat.stx_atime),
                mtime: time(stat.stx_mtime),
                ctime: time(stat.stx_ctime),
                btime,
                blksize: stat.stx_blksize,
            },
            kind: FileKind::from_mode(mode).ok_or(Errno::IO)?,
            dev: (stat.stx_dev_major, stat.stx_dev_minor),
            birth: btime.map_or(0, nanoseconds),
            is_mount: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        })
    }
}

/// Identity of an inode within one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct InodeKey {
    pub(crate) ino: u64,
    pub(crate) birth: u64,
}

/// A path to the object held by a descriptor. Valid while the descriptor is open: afterwards the
/// path may lead to an object opened by another request.
pub(crate) struct DescriptorPath<'fd>(String, PhantomData<BorrowedFd<'fd>>);

impl std::ops::Deref for DescriptorPath<'_> {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

/// Returns a path to the object held by a descriptor.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> DescriptorPath<'_> {
    DescriptorPath(format!("/proc/self/fd/{}", fd.as_raw_fd()), PhantomData)
}

fn wanted() -> StatxFlags {
    StatxFlags::BASIC_STATS | StatxFlags::BTIME
}

/// Returns the attributes of the object held by a descriptor.
pub(crate) fn stat_fd(fd: impl AsFd) -> Result<HostStat, Errno> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, wanted())?;
    HostStat::from_statx(&stat)
}

/// Returns the attributes of one name in a directory; a symbolic link is not followed.
pub(crate) fn stat_name(dir: impl AsFd, name: &CStr) -> Result<HostStat, Errno> {
    let stat = rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, wanted())?;
    HostStat::from_statx(&stat)
}

/// Returns a descriptor without I/O of one name in a directory; a symbolic link is not followed.
pub(crate) fn hold_name(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the object held by a descriptor for I/O.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(&*path_of(fd), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

/// Sets the permission bits of the object held by a descriptor.
pub(crate) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(&*path_of(fd), Mode::from_raw_mode(mode & 0o7777))
}

/// Sets owner and group; `None` leaves a value unchanged.
pub(crate) fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    // To the host, an id of all ones would mean "unchanged".
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
}

/// Sets times; `None` leaves a value unchanged.
pub(crate) fn set_times(
    fd: BorrowedFd<'_>,
    atime: Option<SetTime>,
    mtime: Option<SetTime>,
) -> Result<(), Errno> {
    let time = |t: Option<SetTime>| match t {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(t)) => Timespec { tv_sec: t.seconds, tv_nsec: i64::from(t.nanoseconds) as _ },
    };
    if let (Some(SetTime::At(t)), _) | (_, Some(SetTime::At(t))) = (atime, mtime)
        && t.nanoseconds >= 1_000_000_000
    {
        return Err(Errno::INVAL);
    }
    let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
    match rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH) {
        // Kernels before 5.8 do not take an empty path here.
        Err(Errno::INVAL | Errno::NOENT) => {
            rustix::fs::utimensat(CWD, &*path_of(fd), &times, AtFlags::empty())
        }
        result => result,
    }
}

/// Gives the object held by a descriptor another name.
pub(crate) fn link(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    rustix::fs::linkat(CWD, &*path_of(fd), dir, name, AtFlags::SYMLINK_FOLLOW)
}

/// Returns whether new objects in a directory take their permissions from an access list of its
/// own.
pub(crate) fn has_default_acl(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    const NAME: &CStr = c"system.posix_acl_default";
    let len = match rustix::fs::fgetxattr_query(dir, NAME) {
        // Held without I/O rights.
        Err(Errno::BADF) => rustix::fs::getxattr_query(&*path_of(dir), NAME),
        len => len,
    };
    match len {
        Ok(len) => Ok(len > 0),
        Err(Errno::NODATA) => Ok(false),
        Err(errno) => Err(errno),
    }
}
