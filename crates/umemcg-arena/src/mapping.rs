//! Address space from the operating system: reserved once, zero until written, unmapped when dropped.
//!
//! [`StableTable`] lays values over it for which all-zero bytes are valid. The values never move and outlive every
//! reference that the table hands out, so the layers above read them through plain references.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use umemcg_base::sync::atomic::AtomicU64;

use crate::blocks::BLOCK_BYTES;
use crate::frame::FrameRecord;

#[cfg(miri)]
#[path = "mapping/model.rs"]
mod os;
#[cfg(not(miri))]
#[path = "mapping/system.rs"]
mod os;

/// How the kernel should back or dump a mapping. It may refuse, and everything works without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// Huge pages: a block is in use as a whole.
    HugePages,
    /// Small pages: the table is sparse, and a huge page under one word would be waste.
    #[cfg_attr(loom, allow(dead_code))]
    SmallPages,
    /// No copy in core files: the contents are somebody's data.
    NotInCoreFiles,
}

/// A private anonymous mapping, aligned to a block.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: [1] The mapping is plain memory that belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: [1] Shared, it offers an address and calls of the operating system, which are thread-safe.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `len` bytes of zeroes, rounded up to a block. Takes no memory until touched.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).checked_next_multiple_of(BLOCK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base: os::reserve(len)?, len })
    }

    /// The first byte; valid for reads and writes of the length asked for while the mapping lives.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Gives a hint for all of it.
    pub(crate) fn hint(&self, hint: Hint) {
        // SAFETY: [2] The mapping's own range.
        unsafe { os::hint(self.base, self.len, hint) };
    }

    /// Gives the memory of a range back; it reads as zero from then on. The range is whole pages of the system.
    ///
    /// # Errors
    /// When the memory is locked; it keeps its contents then.
    ///
    /// # Safety
    /// Zero is valid, at any time, for whatever is kept in the range.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: [2] The range is inside the mapping, which stays mapped; the caller answers for the zeroes.
        unsafe { os::discard(self.base.add(range.start), range.len()) }
    }

    /// Has the operating system back a range with memory now; contents stay. The range is whole pages of the system.
    ///
    /// # Errors
    /// `InvalidInput` from kernels before 5.14; out of memory.
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: [2] The range is inside the mapping.
        unsafe { os::populate(self.base.add(range.start), range.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: [1] Made by `new` with this length; whoever has an address in it borrows from the owner.
        unsafe { os::unreserve(self.base, self.len) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Types that may lie in memory which the operating system fills with zeroes, at first and whenever it is discarded.
///
/// # Safety
/// All-zero bytes are a valid value; every byte is an atomic's or reserved, so that the kernel may zero them while
/// others look; nothing needs dropping.
pub(crate) unsafe trait ZeroIsValid: Default + Send + Sync {}

// SAFETY: [3] Atomics and padding only.
unsafe impl ZeroIsValid for FrameRecord {}
// SAFETY: [3] An atomic.
unsafe impl ZeroIsValid for AtomicU64 {}

/// A fixed number of values over memory that appears when it is touched.
pub(crate) struct StableTable<T> {
    #[cfg(not(loom))]
    map: Mapping,
    #[cfg(not(loom))]
    len: usize,
    /// The models' atomics are no plain memory, so they are made one by one.
    #[cfg(loom)]
    values: Box<[T]>,
    values_are: PhantomData<T>,
}

#[cfg(not(loom))]
impl<T: ZeroIsValid> StableTable<T> {
    /// `len` values of zero bytes.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= BLOCK_BYTES && !std::mem::needs_drop::<T>()) };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { map: Mapping::new(bytes)?, len, values_are: PhantomData })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All values.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: [3] In the mapping and aligned (the base is aligned to a block, a type's size is a multiple of its
        // alignment); zero or whatever `T`'s own methods made of it, both valid; mapped while `self` is borrowed, and
        // never borrowed otherwise than shared.
        unsafe { std::slice::from_raw_parts(self.map.base().cast::<T>().as_ptr(), self.len) }
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &T {
        self.as_slice().get(at).unwrap_or_else(|| no_entry(at, self.len))
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.map
    }
}

#[cfg(loom)]
impl<T: ZeroIsValid> StableTable<T> {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        Ok(Self { values: (0..len).map(|_| T::default()).collect(), values_are: PhantomData })
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        &self.values
    }

    pub(crate) fn get(&self, at: usize) -> &T {
        &self.values[at]
    }
}

impl<T> fmt::Debug for StableTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StableTable").finish_non_exhaustive()
    }
}

/// Out of line and by value, so that the check in front of every look-up costs a comparison only.
#[cfg(not(loom))]
#[cold]
#[inline(never)]
fn no_entry(at: usize, len: usize) -> ! {
    panic!("no entry {at} among {len}");
}
