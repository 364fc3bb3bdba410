//! System calls on the addresses of frames: reads and writes of a file's pages, and replies,
//! without an intermediate copy.
//!
//! The kernel reads and writes the frames by itself, as another thread with relaxed accesses would;
//! no reference to their contents exists on our side. Adjacent frames become one piece of the
//! vector.

use std::io;
use std::mem::MaybeUninit;
use std::ops::{BitOr, BitOrAssign};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::arena::Arena;
use crate::segment::{Segment, total_len};

/// Most pieces accepted by the kernel in one vector.
pub const IOV_MAX: usize = 1024;

/// The treatment of the kernel's own page cache by a read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoFlags(i32);

impl IoFlags {
    /// Plain.
    pub const NONE: Self = Self(0);
    /// Leave no copy in the kernel's page cache. `EOPNOTSUPP` without support in the kernel or the
    /// file system.
    #[doc(alias = "RWF_DONTCACHE")]
    pub const DONTCACHE: Self = Self(0x80);
    /// A write is durable when it returns, with the metadata needed to read it back.
    #[doc(alias = "RWF_DSYNC")]
    pub const DSYNC: Self = Self(libc::RWF_DSYNC);
}

impl BitOr for IoFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for IoFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// A vector for the kernel, on the stack.
struct Pieces {
    pieces: [MaybeUninit<libc::iovec>; IOV_MAX],
    len: usize,
}

impl Pieces {
    #[inline]
    fn new() -> Self {
        Self { pieces: [const { MaybeUninit::uninit() }; IOV_MAX], len: 0 }
    }

    /// Appends a piece unless the vector is full.
    #[inline]
    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        if self.len > 0 {
            // SAFETY: [6] The first `self.len` pieces are initialised.
            let last = unsafe { self.pieces[self.len - 1].assume_init_mut() };
            if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base {
                last.iov_len += len;
                return true;
            }
        }
        if self.len == IOV_MAX {
            return false;
        }
        self.pieces[self.len].write(libc::iovec { iov_base: base.cast(), iov_len: len });
        self.len += 1;
        true
    }

    /// Appends the segments, less their first `skip` bytes, as far as there is room; returns the
    /// appended bytes.
    fn fill(&mut self, arena: &Arena, segments: &[Segment], mut skip: usize) -> usize {
        let mut bytes = 0;
        for segment in segments {
            let len = usize::from(segment.len);
            if skip >= len {
                skip -= len;
                continue;
            }
            let base = arena.address(segment.frame, usize::from(segment.offset), len);
            if !self.push(base.as_ptr().wrapping_add(skip), len - skip) {
                break;
            }
            bytes += len - skip;
            skip = 0;
        }
        bytes
    }

    fn as_ptr(&self) -> *const libc::iovec {
        self.pieces.as_ptr().cast()
    }

    fn len(&self) -> libc::c_int {
        self.len as libc::c_int
    }
}

/// Repeats a call interrupted by a signal before it did anything.
fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn file_offset(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Reads a file from `offset` into the segments, in order. Returns the bytes read; fewer than the
/// segments hold means that the file ended there. Blocks on the store.
///
/// # Errors
/// The store's error, even if something was read before.
pub fn read_at(
    arena: &Arena,
    segments: &[Segment],
    fd: BorrowedFd<'_>,
    offset: u64,
    flags: IoFlags,
) -> io::Result<usize> {
    let total = total_len(segments);
    let mut done = 0;
    while done < total {
        let mut pieces = Pieces::new();
        pieces.fill(arena, segments, done);
        let at = file_offset(offset + done as u64)?;
        // SAFETY: [6] Every piece lies in frames, which stay mapped while `arena` is borrowed, and
        // the kernel's stores are to us relaxed stores of another thread.
        let result = uninterrupted(|| unsafe {
            libc::preadv2(fd.as_raw_fd(), pieces.as_ptr(), pieces.len(), at, flags.0)
        });
        match result {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            // Direct I/O: the file ends inside a sector, and a further read from there is refused.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && done % 512 != 0 && is_direct(fd) => {
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn is_direct(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT))
}

/// Writes the segments, in order, to a file from `offset` on. Returns the bytes written: fewer than
/// the segments hold when the store refuses the rest. Blocks on the store.
///
/// # Errors
/// The store's error when nothing was written; `WriteZero` when it accepts nothing and returns no
/// error.
pub fn write_at(
    arena: &Arena,
    segments: &[Segment],
    fd: BorrowedFd<'_>,
    offset: u64,
    flags: IoFlags,
) -> io::Result<usize> {
    let total = total_len(segments);
    let mut done = 0;
    while done < total {
        let mut pieces = Pieces::new();
        pieces.fill(arena, segments, done);
        let at = file_offset(offset + done as u64)?;
        // SAFETY: [6] As in `read_at`; the kernel only reads the frames.
        let result = uninterrupted(|| unsafe {
            libc::pwritev2(fd.as_raw_fd(), pieces.as_ptr(), pieces.len(), at, flags.0)
        });
        match result {
            Ok(bytes @ 1..) => done += bytes,
            // The store returns the reason when the rest is written again.
            Ok(0) | Err(_) if done > 0 => break,
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Sends a header and segments in one `writev`, as required for a FUSE reply; returns the result of
/// the call.
///
/// # Errors
/// `InvalidInput` when they do not fit in [`IOV_MAX`] pieces; else the error of the call.
pub fn send(arena: &Arena, fd: BorrowedFd<'_>, header: &[u8], segments: &[Segment]) -> io::Result<usize> {
    let mut pieces = Pieces::new();
    pieces.push(header.as_ptr().cast_mut(), header.len());
    if pieces.fill(arena, segments, 0) != total_len(segments) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: [6] As in `write_at`; the header is borrowed, and the kernel does not write to it.
    uninterrupted(|| unsafe { libc::writev(fd.as_raw_fd(), pieces.as_ptr(), pieces.len()) })
}

/// Starts the kernel's write-back of a range and waits for it, and for write-back already in
/// progress. `len` 0 means to the end. Reports write-back errors once per open file; makes neither
/// metadata nor the device's cache durable. Blocks on the store.
///
/// # Errors
/// Write-back errors, and `ESPIPE` for a descriptor that is no file.
pub fn sync_file_range_wait(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (offset, len) = (file_offset(offset)?, file_offset(len)?);
    // SAFETY: [7] No addresses.
    uninterrupted(|| unsafe {
        libc::syscall(libc::SYS_sync_file_range, fd.as_raw_fd(), offset, len, flags) as isize
    })?;
    Ok(())
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;
    use umemcg_base::PAGE_SIZE;

    #[test]
    fn a_call_that_a_signal_interrupted_is_repeated() {
        let fail = |errno| {
            // SAFETY: [7] The address of this thread's own error number.
            unsafe { *libc::__errno_location() = errno };
            -1
        };
        let mut nr_calls = 0;
        let result = uninterrupted(|| {
            nr_calls += 1;
            if nr_calls < 4 { fail(libc::EINTR) } else { 7 }
        });
        assert_eq!((result.unwrap(), nr_calls), (7, 4));
        let error = uninterrupted(|| fail(libc::EIO)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_transfer_goes_on_where_it_stopped() {
        let arena = Arena::new(64 * PAGE_SIZE as u64).unwrap();
        let mut frames = Vec::new();
        arena.alloc(&mut frames, 64);
        frames.sort_unstable();
        // Some touch, most do not, one is empty.
        let segments: Vec<Segment> =
            [(0, 0, 90), (0, 90, 10), (5, 7, 0), (5, 8, 100), (6, 0, 50), (3, 4000, 96), (4, 0, 4)]
                .map(|(frame, offset, len)| Segment { frame: frames[frame], offset, len })
                .to_vec();
        let address_of_each = |pieces: &Pieces| -> Vec<usize> {
            pieces.pieces[..pieces.len]
                .iter()
                .flat_map(|piece| {
                    // SAFETY: [6] The first `len` pieces are initialised.
                    let piece = unsafe { piece.assume_init_ref() };
                    let start = piece.iov_base.addr();
                    start..start + piece.iov_len
                })
                .collect()
        };
        let mut all = Pieces::new();
        assert_eq!(all.fill(&arena, &segments, 0), total_len(&segments));
        assert_eq!(all.len, 4, "what touches is one piece");
        let all = address_of_each(&all);
        assert_eq!(all.len(), total_len(&segments));
        for done in 0..=all.len() {
            let mut rest = Pieces::new();
            assert_eq!(rest.fill(&arena, &segments, done), all.len() - done);
            assert_eq!(address_of_each(&rest), all[done..], "after {done}");
        }
    }
}
