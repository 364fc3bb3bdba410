//! The layouts of answers and notifications.

#![allow(missing_debug_implementations, reason = "the derives make helper types of their own")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire_out {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type),* }
    )*};
}

wire_out! {
    /// A node's attributes.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// Answer to LOOKUP, MKDIR, MKNOD, SYMLINK, LINK. `nodeid` 0: there is no such name, for as
    /// long as it is valid.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    /// Answer to GETATTR and SETATTR.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    /// A time in an answer to STATX.
    StatxTime { seconds: i64, nanoseconds: u32, reserved: u32 }
    /// A node's attributes in an answer to STATX.
    StatxAttr {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime, ctime: StatxTime,
        mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// Answer to STATX.
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxAttr }
    /// Answer to OPEN and OPENDIR; [`open_reply`](super::open_reply) has the flags.
    OpenOut { fh: u64, open_flags: u32, padding: u32 }
    /// Answer to CREATE and TMPFILE.
    CreateOut { entry: EntryOut, open: OpenOut }
    /// Answer to WRITE.
    WriteOut { size: u32, padding: u32 }
    /// Answer to STATFS.
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    /// Answer to GETXATTR and LISTXATTR for the length.
    GetxattrOut { size: u32, padding: u32 }
    /// Answer to LSEEK.
    LseekOut { offset: u64 }
    /// Answer to POLL.
    PollOut { revents: u32, padding: u32 }
    /// Answer to INIT.
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// Notification: cached pages and attributes of a node are stale. `off` < 0: attributes only.
    InvalInodeOut { ino: u64, off: i64, len: i64 }
    /// Notification: a name is stale. The name follows, with its terminating zero.
    InvalEntryOut { parent: u64, namelen: u32, flags: u32 }
    /// Notification: the kernel should drop unused names and inodes. This many node ids follow.
    PruneOut { count: u32, padding: u32, spare: u64 }
    /// Notification: the kernel sends its cached pages of this range, as a NOTIFY_REPLY.
    RetrieveOut { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// Notification: pollers of this handle should look again.
    PollWakeupOut { kh: u64 }
}

const _: () = assert!(size_of::<Attr>() == 88);
const _: () = assert!(size_of::<EntryOut>() == 128);
const _: () = assert!(size_of::<CreateOut>() == 144);
const _: () = assert!(size_of::<AttrOut>() == 104);
const _: () = assert!(size_of::<StatfsOut>() == 80);
const _: () = assert!(size_of::<StatxAttr>() == 256 && size_of::<StatxOut>() == 288);
const _: () = assert!(size_of::<InitOut>() == 64);
const _: () = assert!(size_of::<PruneOut>() == 16);
