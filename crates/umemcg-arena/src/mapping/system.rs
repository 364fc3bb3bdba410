//! Mappings on Linux.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::hint::Hint;
use crate::blocks::BLOCK_BYTES;

/// Returns the size of the system's pages in bytes.
#[cfg(not(loom))]
pub(super) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Reserves `len` bytes, a multiple of the block, at an address that is a multiple of the block.
pub(super) fn reserve(len: usize) -> io::Result<NonNull<u8>> {
    let reserved = len.checked_add(BLOCK_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: [1] A new mapping at an address that the kernel chooses touches nothing that exists.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), reserved, access, kind) }?.cast::<u8>();
    let head = start.addr().next_multiple_of(BLOCK_BYTES) - start.addr();
    let tail = reserved - head - len;
    // SAFETY: [1] `head < BLOCK_BYTES`, so `head + len` is inside. The ends that alignment leaves
    // over are whole pages of the mapping just made, and no other code knows of them. A kernel that
    // keeps them only wastes addresses.
    unsafe {
        let base = start.add(head);
        if head > 0 {
            let _ = munmap(start.cast(), head);
        }
        if tail > 0 {
            let _ = munmap(base.add(len).cast(), tail);
        }
        Ok(NonNull::new_unchecked(base))
    }
}

/// # Safety
/// The range came from [`reserve`] and is no longer in use.
pub(super) unsafe fn unreserve(base: NonNull<u8>, len: usize) {
    // SAFETY: [1] The caller's.
    let unmapped = unsafe { munmap(base.as_ptr().cast(), len) };
    debug_assert!(unmapped.is_ok());
}

/// # Safety
/// The range is inside one that came from [`reserve`].
pub(super) unsafe fn hint(base: NonNull<u8>, len: usize, hint: Hint) {
    let advice = match hint {
        Hint::HugePages => Advice::LinuxHugepage,
        Hint::SmallPages => Advice::LinuxNoHugepage,
        Hint::NotInCoreFiles => Advice::LinuxDontDump,
    };
    // SAFETY: [2] These advices change how the kernel backs or dumps a range, never what it holds.
    let _ = unsafe { madvise(base.as_ptr().cast(), len, advice) };
}

/// # Safety
/// The range is whole pages inside one that came from [`reserve`], and zero is valid for whatever
/// it holds.
pub(super) unsafe fn discard(base: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: [2] The range stays mapped; the caller answers for the zeroes.
    unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontNeed) }?;
    Ok(())
}

/// # Safety
/// The range is whole pages inside one that came from [`reserve`].
pub(super) unsafe fn populate(base: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: [2] The kernel touches the pages as a write of what they hold would.
    unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxPopulateWrite) }?;
    Ok(())
}
