//! Values that never move, in memory from the operating system; all-zero bytes are valid for them.
//!
//! They outlive every reference from the table, so the layers above read them through plain
//! references.

use std::fmt;
use std::io;
use std::marker::PhantomData;

use umemcg_base::sync::atomic::AtomicU64;

#[cfg(not(loom))]
use crate::blocks::BLOCK_BYTES;
use crate::frame::FrameRecord;
#[cfg(not(loom))]
use crate::mapping::Mapping;

/// Types for memory filled with zeroes by the operating system, at first and after each discard.
///
/// # Safety
/// All-zero bytes are a valid value; every byte is an atomic's or reserved, so that the kernel may
/// zero them while other threads read; nothing needs dropping.
pub(crate) unsafe trait ZeroIsValid: Default + Send + Sync {}

// SAFETY: [3] Atomics and padding only.
unsafe impl ZeroIsValid for FrameRecord {}
// SAFETY: [3] An atomic.
unsafe impl ZeroIsValid for AtomicU64 {}

/// A fixed number of values, in memory allocated on first touch.
pub(crate) struct StableTable<T> {
    #[cfg(not(loom))]
    map: Mapping,
    #[cfg(not(loom))]
    len: usize,
    /// The models' atomics are no plain memory, so they are created one by one.
    #[cfg(loom)]
    values: Box<[T]>,
    values_are: PhantomData<T>,
}

#[cfg(not(loom))]
impl<T: ZeroIsValid> StableTable<T> {
    /// Creates a table of `len` values of zero bytes.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= BLOCK_BYTES && !std::mem::needs_drop::<T>()) };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { map: Mapping::new(bytes)?, len, values_are: PhantomData })
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns all values.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: [3] In the mapping and aligned (the base is aligned to a block, a type's size is
        // a multiple of its alignment); zero or whatever `T`'s own methods made of it, both valid;
        // mapped while `self` is borrowed, and never borrowed otherwise than shared.
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

/// Panics. Out of line and by value, so that the check before every lookup costs only a comparison.
#[cfg(not(loom))]
#[cold]
#[inline(never)]
fn no_entry(at: usize, len: usize) -> ! {
    panic!("no entry {at} among {len}");
}
