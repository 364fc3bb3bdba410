//! The relaxed copy as defined by Rust, for Miri. The other modules of this directory are
//! equivalent to these loops.

use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! moves {
    ($($name:ident: $size:literal;)*) => {$(
        /// # Safety
        /// As for `bytes::copy` with the size in the name.
        pub(super) unsafe fn $name(dst: *mut u8, src: *const u8) {
            // SAFETY: [4] The caller's.
            unsafe { copy_blocks(dst, src, $size) }
        }
    )*};
}

moves! {
    move_1: 1;
    move_4: 4;
    move_8: 8;
    move_16: 16;
}

/// # Safety
/// As for `bytes::copy`.
pub(super) unsafe fn copy_blocks(dst: *mut u8, src: *const u8, len: usize) {
    for at in 0..len {
        // SAFETY: [4] Inside the caller's ranges.
        let (dst, src) =
            unsafe { (AtomicU8::from_ptr(dst.add(at)), AtomicU8::from_ptr(src.add(at).cast_mut())) };
        dst.store(src.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Shortest copy for [`copy_cold`]; here it is the same as `copy_blocks`.
pub(super) const COLD_MIN: usize = super::BLOCK;
pub(super) use copy_blocks as copy_cold;

/// # Safety
/// As for `bytes::zero`.
pub(super) unsafe fn zero(dst: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: [4] Inside the caller's range.
        unsafe { AtomicU8::from_ptr(dst.add(at)) }.store(0, Ordering::Relaxed);
    }
}

/// # Safety
/// As for `bytes::load_u64`.
pub(super) unsafe fn load_u64(src: *const u8) -> u64 {
    let mut word = [0; 8];
    // SAFETY: [4] The caller's; the array is ours.
    unsafe { copy_blocks(word.as_mut_ptr(), src, 8) };
    u64::from_ne_bytes(word)
}
