//! The handshake: the kernel offers capabilities, and we take some of them.

use super::dialect::Dialect;
use super::reply::InitOut;
use super::request::Init;
use super::{MAJOR, MAX_PAYLOAD_BYTES, MINOR_MAX, MINOR_MIN};

/// Capabilities, both words together.
#[allow(missing_docs)]
#[derive(Debug)]
pub struct InitFlags;

#[allow(missing_docs)]
impl InitFlags {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const ALLOW_IDMAP: u64 = 1 << 40;

    /// The features requested by every mount of this daemon.
    pub const COMMON: u64 = Self::ASYNC_READ
        | Self::BIG_WRITES
        | Self::ASYNC_DIO
        | Self::PARALLEL_DIROPS
        | Self::ABORT_ERROR
        | Self::MAX_PAGES
        | Self::SETXATTR_EXT
        | Self::INIT_EXT;
}

/// The result of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// Protocol minor number in use.
    pub minor: u32,
    /// Capabilities in use.
    pub flags: u64,
    /// The layout of messages.
    pub dialect: Dialect,
    /// The answer to the kernel.
    pub answer: InitOut,
}

impl Negotiated {
    /// Returns whether all of these capabilities are in use.
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }
}

/// The number of background requests (asynchronous direct I/O, closing, write-back of mappings)
/// under way in the kernel at a time; others wait in the kernel, in order of arrival. All users of
/// the mount share it, so it is the largest possible: otherwise a user with a hanging store could
/// use it up. The queue of the session determines the share of each group.
pub const NR_BACKGROUND_MAX: u16 = u16::MAX;
/// The number of 4 KiB pages in the largest payload.
const NR_PAGES_MAX: u16 = (MAX_PAYLOAD_BYTES / 4096) as u16;

/// Chooses among the capabilities offered by the kernel. Returns `None` for an unsupported
/// protocol.
pub fn negotiate(init: &Init, wanted: u64) -> Option<Negotiated> {
    if init.major != MAJOR || init.minor < MINOR_MIN {
        return None;
    }
    let minor = init.minor.min(MINOR_MAX);
    let flags = init.flags & wanted;
    // Without the extended form the kernel ignores the second word.
    let flags = if flags & InitFlags::INIT_EXT != 0 { flags } else { flags & u64::from(u32::MAX) };
    let answer = InitOut {
        major: MAJOR,
        minor,
        max_readahead: init.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: NR_BACKGROUND_MAX,
        congestion_threshold: NR_BACKGROUND_MAX,
        max_write: MAX_PAYLOAD_BYTES as u32,
        max_pages: NR_PAGES_MAX,
        time_gran: 1,
        ..Default::default()
    };
    let dialect = Dialect { setxattr_ext: flags & InitFlags::SETXATTR_EXT != 0 };
    Some(Negotiated { minor, flags, dialect, answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: u64) -> Init {
        Init { major: 7, minor, max_readahead: 1 << 17, flags }
    }

    #[test]
    fn nothing_is_taken_that_was_not_offered() {
        let all =
            negotiate(&offer(45, u64::MAX), InitFlags::COMMON | InitFlags::DIRECT_IO_ALLOW_MMAP).unwrap();
        assert!(all.has(InitFlags::DIRECT_IO_ALLOW_MMAP) && all.dialect.setxattr_ext);
        assert_eq!(all.answer.flags2, 1 << 4);
        let few = negotiate(&offer(31, InitFlags::MAX_PAGES), InitFlags::COMMON).unwrap();
        assert_eq!((few.flags, few.minor, few.dialect.setxattr_ext), (InitFlags::MAX_PAGES, 31, false));
    }

    #[test]
    fn the_second_word_needs_the_extended_form() {
        let flags = InitFlags::DIRECT_IO_ALLOW_MMAP | InitFlags::MAX_PAGES;
        assert_eq!(negotiate(&offer(36, flags), u64::MAX).unwrap().answer.flags2, 0);
    }

    #[test]
    fn old_and_foreign_protocols_are_refused() {
        assert!(negotiate(&offer(30, u64::MAX), 0).is_none());
        assert!(negotiate(&Init { major: 8, ..offer(45, 0) }, 0).is_none());
    }
}
