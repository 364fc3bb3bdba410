//! Address space from the operating system: reserved once, zero until written, unmapped when
//! dropped.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use crate::blocks::BLOCK_BYTES;

mod hint;
#[cfg(any(miri, not(target_os = "linux")))]
#[path = "from_allocator.rs"]
mod os;
#[cfg(all(target_os = "linux", not(miri)))]
#[path = "system.rs"]
mod os;

pub(crate) use hint::Hint;

/// A private anonymous mapping, aligned to a block.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: [1] The mapping is plain memory that belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: [1] Shared, it offers an address and calls of the operating system, which are
// thread-safe.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes of zeroes, rounded up to a block. Takes no memory until touched.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).checked_next_multiple_of(BLOCK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base: os::reserve(len)?, len })
    }

    /// Returns the first byte; valid for reads and writes of the requested length while the mapping
    /// lives.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Gives a hint for all of it.
    pub(crate) fn hint(&self, hint: Hint) {
        // SAFETY: [2] The mapping's own range.
        unsafe { os::hint(self.base, self.len, hint) };
    }

    /// Gives the memory of a range back; it reads as zero from then on. The range is whole pages of
    /// the system.
    ///
    /// # Errors
    /// When the memory is locked; it then keeps its contents.
    ///
    /// # Safety
    /// Zero is valid, at any time, for whatever is kept in the range.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: [2] The range is inside the mapping, which stays mapped; the caller answers for
        // the zeroes.
        unsafe { os::discard(self.base.add(range.start), range.len()) }
    }

    /// Makes the operating system back a range with memory now; contents stay. The range is whole
    /// pages of the system.
    ///
    /// # Errors
    /// `InvalidInput` from kernels before 5.14; out of memory.
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: [2] The range is inside the mapping.
        unsafe { os::populate(self.base.add(range.start), range.len()) }
    }
}

/// Returns the size of the system's pages in bytes: the unit of [`Mapping::discard`].
#[cfg(not(loom))]
pub(crate) fn page_bytes() -> usize {
    os::page_bytes()
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: [1] Made by `new` with this length; code that has an address in it borrows from
        // the owner.
        unsafe { os::unreserve(self.base, self.len) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).finish_non_exhaustive()
    }
}
