//! Mappings from the allocator: for Miri, and for systems other than Linux, where an engine has no
//! pages and its tables are small.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use umemcg_base::PAGE_SIZE;

use super::hint::Hint;
use crate::blocks::BLOCK_BYTES;

/// Memory of the allocator has no pages; words go back to zero in any range.
#[cfg(not(loom))]
pub(super) fn page_bytes() -> usize {
    PAGE_SIZE
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BLOCK_BYTES).unwrap()
}

pub(super) fn reserve(len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: [1] Not empty.
    NonNull::new(unsafe { alloc_zeroed(layout(len)) }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// # Safety
/// The range came from [`reserve`] and is no longer in use.
pub(super) unsafe fn unreserve(base: NonNull<u8>, len: usize) {
    // SAFETY: [1] The caller's.
    unsafe { dealloc(base.as_ptr(), layout(len)) }
}

/// # Safety
/// None.
pub(super) unsafe fn hint(_base: NonNull<u8>, _len: usize, _hint: Hint) {}

/// # Safety
/// The range is whole pages inside one that came from [`reserve`], and zero is valid for whatever
/// it holds.
pub(super) unsafe fn discard(base: NonNull<u8>, len: usize) -> io::Result<()> {
    for at in (0..len).step_by(8) {
        // SAFETY: [2] Whole pages, so whole words. The kernel puts a page of zeroes in place: no
        // word is seen in part.
        unsafe { AtomicU64::from_ptr(base.as_ptr().add(at).cast()) }.store(0, Ordering::Relaxed);
    }
    Ok(())
}

/// # Safety
/// None.
pub(super) unsafe fn populate(_base: NonNull<u8>, _len: usize) -> io::Result<()> {
    Ok(())
}
