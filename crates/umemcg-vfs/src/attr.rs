//! The attributes of an inode, as returned by `stat`.

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// The id of an inode, as known to the kernel. Never reused while a volume lives; the root is
/// [`NodeId::ROOT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory of the volume.
    pub const ROOT: Self = Self(1);
}

/// A point in time as a file system stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Returns the present time.
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Realtime);
        Self { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 }
    }

    /// Returns the nanoseconds since 1970, or the nearest number that fits.
    pub(crate) fn as_nanoseconds(self) -> i64 {
        self.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(self.nanoseconds))
    }

    /// Returns the time `nanoseconds` after 1970.
    pub(crate) fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self {
            seconds: nanoseconds.div_euclid(1_000_000_000),
            nanoseconds: nanoseconds.rem_euclid(1_000_000_000) as u32,
        }
    }
}

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file, the only kind with cached content.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link; never followed here.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// Returns the kind encoded in the type bits of a mode; `None` if they are unknown.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::of(FileType::from_raw_mode(mode))
    }

    /// Returns the kind of a type of the host; `None` for an unknown one.
    pub(crate) fn of(file_type: FileType) -> Option<Self> {
        Some(match file_type {
            FileType::RegularFile => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Unknown => return None,
        })
    }

    /// Returns the type of the host.
    pub(crate) fn file_type(self) -> FileType {
        match self {
            Self::Regular => FileType::RegularFile,
            Self::Directory => FileType::Directory,
            Self::Symlink => FileType::Symlink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::CharDevice => FileType::CharacterDevice,
            Self::BlockDevice => FileType::BlockDevice,
        }
    }

    /// Returns the kind of node made by mknod(2) for a mode: a regular file if it has no type.
    ///
    /// # Errors
    /// `EINVAL` for a directory, a symbolic link, or an unknown type.
    pub(crate) fn of_new_node(mode: u32) -> Result<Self, Errno> {
        match Self::from_mode(mode) {
            Some(Self::Directory | Self::Symlink) => Err(Errno::INVAL),
            Some(kind) => Ok(kind),
            None if mode & 0o170_000 == 0 => Ok(Self::Regular),
            None => Err(Errno::INVAL),
        }
    }
}

/// The attributes of an inode. Sizes are bytes, `blocks` are units of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The inode number on the host.
    pub ino: u64,
    /// Length in bytes. For a file with cached content, the length in the cache.
    pub size: u64,
    /// Allocated 512-byte units on the host.
    pub blocks: u64,
    /// Type and permission bits (`S_IFMT | 07777`).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, in the encoding of `makedev`.
    pub rdev: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content, as accepted (not as written back).
    pub mtime: Timestamp,
    /// Last change of the inode, as accepted.
    pub ctime: Timestamp,
    /// Creation time, if the file system records one.
    pub btime: Option<Timestamp>,
    /// Preferred size of an I/O request, in bytes.
    pub blksize: u32,
}

/// The answer to a lookup. It counts one reference, released by a later `forget`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub node: NodeId,
    /// Always 0: node ids are not reused.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
}

impl Entry {
    /// Returns whether the entry is a directory's.
    pub(crate) fn is_directory(&self) -> bool {
        FileKind::from_mode(self.attr.mode) == Some(FileKind::Directory)
    }
}

/// Statistics of the file system below a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Fundamental block size in bytes.
    pub frsize: u64,
    /// Preferred block size in bytes.
    pub bsize: u64,
    /// Size in units of `frsize`.
    pub blocks: u64,
    /// Free units.
    pub bfree: u64,
    /// Free units for unprivileged users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namemax: u64,
}

/// A new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which the change is made (`UTIME_NOW`).
    Now,
    /// This time.
    At(Timestamp),
}

/// A change of attributes, applied in the order size, owner, mode, times; `None` leaves a value
/// unchanged. If a step fails, earlier steps keep their effect, as with the corresponding system
/// calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// New length in bytes.
    pub size: Option<u64>,
    /// New permission bits (`07777`); type bits are ignored.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// Clear set-id bits and file capabilities (FUSE: `FATTR_KILL_SUIDGID`).
    pub kill_set_id: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_the_conversion() {
        let time = Timestamp { seconds: -2, nanoseconds: 999_999_999 };
        assert_eq!(Timestamp::from_nanoseconds(time.as_nanoseconds()), time);
    }
}
