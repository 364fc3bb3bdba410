//! The kernel's FUSE messages: their layout, their numbers, and a decoder that trusts no byte of
//! them.
//!
//! The structures are the kernel's own (`include/uapi/linux/fuse.h`, protocol 7.31 to 7.45), in
//! host byte order. Requests are decoded by value, so that no buffer needs an alignment; names and
//! payloads are borrowed.

#![allow(missing_debug_implementations, reason = "the derives make helper types of their own")]

mod dialect;
pub mod dirent;
pub mod init;
pub mod reply;
pub mod request;

pub use dialect::Dialect;
pub use dirent::DirBuffer;
pub use init::{InitFlags, Negotiated};
pub use request::{Malformed, Op};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's major number. It has not changed since 2005.
pub const MAJOR: u32 = 7;
/// The newest supported minor number.
pub const MINOR_MAX: u32 = 45;
/// The oldest supported minor number (Linux 5.4): the shorter messages of earlier versions are not
/// decoded.
pub const MINOR_MIN: u32 = 31;
/// The first minor number with the notification to forget nodes (Linux 6.18).
pub const MINOR_PRUNE: u32 = 45;
/// The first minor number with the notification to expire all names (Linux 6.16).
pub const MINOR_INC_EPOCH: u32 = 44;
/// The largest payload of a read or a write.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The size of a buffer: the largest payload, and a page for the headers, so that the payload
/// arrives whole.
pub const BUFFER_BYTES: usize = MAX_PAYLOAD_BYTES + 4096;
/// Bytes of [`InHeader`].
pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
/// Bytes of [`OutHeader`].
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// The bit set in an interrupt's own `unique`; the rest of it names the request to be interrupted.
pub const INTERRUPT_BIT: u64 = 1;

const _: () = assert!(IN_HEADER_BYTES == 40 && OUT_HEADER_BYTES == 16);

/// The start of every request.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the whole request.
    pub len: u32,
    /// The operation; see [`opcode`].
    pub opcode: u32,
    /// The request's number, repeated in its answer.
    pub unique: u64,
    /// The node of the request.
    pub nodeid: u64,
    /// File-system user id of the requesting process.
    pub uid: u32,
    /// File-system group id of the requesting process.
    pub gid: u32,
    /// Id of the requesting thread, in the pid namespace of the mounter; 0 if there is none.
    pub pid: u32,
    /// Extensions at the end of the request, in units of 8 bytes.
    pub total_extlen: u16,
    /// Unused.
    pub padding: u16,
}

/// The start of every answer.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OutHeader {
    /// Bytes of the whole answer.
    pub len: u32,
    /// 0, or a negated errno; in a notification, its code.
    pub error: i32,
    /// The answered request; 0 in a notification.
    pub unique: u64,
}

/// The kernel's numbers of the requests.
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of an answered open.
#[allow(missing_docs)]
pub mod open_reply {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// The bits for the valid fields of a SETATTR.
#[allow(missing_docs)]
pub mod setattr_valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of a READ.
pub mod read_flag {
    /// A process reads, and its lock owner is given; not set when the kernel fills its page cache.
    pub const LOCKOWNER: u32 = 1 << 1;
}

/// Flags of a WRITE.
#[allow(missing_docs)]
pub mod write_flag {
    /// Late write-back of a mapped page, without a requesting process. The kernel picks one of the
    /// open handles.
    pub const CACHE: u32 = 1 << 0;
    pub const LOCKOWNER: u32 = 1 << 1;
    /// The write clears the set-id bits when it is accepted.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// The user and the group in requests that make no inode, with
/// [`ALLOW_IDMAP`](InitFlags::ALLOW_IDMAP).
pub const UNKNOWN_ID: u32 = u32::MAX;
/// The flag of an OPEN with `O_TRUNC` that clears the set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// The flag of a GETATTR with a file handle.
pub const GETATTR_FH: u32 = 1 << 0;
/// The flag of an fsync without metadata.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// The flag of a SETXATTR to remove the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// The flag of a POLL to request a later notification.
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
/// The flag of an entry invalidation to end only the entry's lifetime.
pub const EXPIRE_ONLY: u32 = 1 << 0;

/// Codes of notifications.
#[allow(missing_docs)]
pub mod notify {
    pub const POLL: i32 = 1;
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const RETRIEVE: i32 = 5;
    pub const INC_EPOCH: i32 = 8;
    pub const PRUNE: i32 = 9;
}
