//! The only copy routine for contents of frames: a relaxed copy, byte by byte, that may race with
//! other accesses.
//!
//! Two threads may copy into and out of one page at the same time, and the kernel may be reading or
//! filling it. A racing `copy_nonoverlapping` would be undefined behaviour and a loop of relaxed
//! loads costs a third more. So each processor has a few instructions of assembly, equivalent to
//! exactly that loop: every byte is loaded and stored by relaxed atomic accesses, in no stated
//! order, once or more than once. (The last piece of a copy overlaps the previous one, to avoid a
//! loop over the odd bytes.) A racing reader sees some old and some new bytes, as readers of a
//! file's page always could.
//!
//! Under Miri the loop is written out in Rust, so that Miri checks the equivalent of the assembly.

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[path = "aarch64.rs"]
mod machine;
#[cfg(miri)]
#[path = "model.rs"]
mod machine;
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[path = "x86_64.rs"]
mod machine;

/// Bytes in a turn of the machine's loop, and its shortest copy.
const BLOCK: usize = 128;

/// Copies `len` bytes as relaxed atomic loads and stores of single bytes.
///
/// # Safety
/// 1. Both ranges are valid for the time of the call and do not overlap.
/// 2. Meanwhile other threads touch the source's bytes only by relaxed copies or system calls, or
///    by reads.
/// 3. Meanwhile other threads touch the destination's bytes only by relaxed copies or system calls.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: [4] Each arm moves pieces that start at 0 or end at `len`, and together cover the
    // whole; the caller vouches for the ranges.
    unsafe {
        match len {
            BLOCK.. => machine::copy_blocks(dst, src, len),
            65.. => {
                let end = len - 64;
                for at in [0, 16, 32, 48] {
                    machine::move_16(dst.add(at), src.add(at));
                    machine::move_16(dst.add(end + at), src.add(end + at));
                }
            }
            33.. => {
                let end = len - 32;
                for at in [0, 16] {
                    machine::move_16(dst.add(at), src.add(at));
                    machine::move_16(dst.add(end + at), src.add(end + at));
                }
            }
            17.. => {
                machine::move_16(dst, src);
                machine::move_16(dst.add(len - 16), src.add(len - 16));
            }
            9.. => {
                machine::move_8(dst, src);
                machine::move_8(dst.add(len - 8), src.add(len - 8));
            }
            5.. => {
                machine::move_4(dst, src);
                machine::move_4(dst.add(len - 4), src.add(len - 4));
            }
            _ => {
                for at in 0..len {
                    machine::move_1(dst.add(at), src.add(at));
                }
            }
        }
    }
}

/// Like [`copy`], for a destination probably not in any cache: a page of a file being written, or
/// moved.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn copy_to_cold(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: [4] The caller's.
    unsafe { if len >= machine::COLD_MIN { machine::copy_cold(dst, src, len) } else { copy(dst, src, len) } }
}

/// Writes `len` zero bytes as relaxed atomic stores of single bytes.
///
/// # Safety
/// As for the destination of [`copy`].
#[inline]
pub(crate) unsafe fn zero(dst: *mut u8, len: usize) {
    // SAFETY: [4] The caller vouches for the range.
    unsafe { machine::zero(dst, len) }
}

/// Loads eight bytes as relaxed atomic loads of single bytes.
///
/// # Safety
/// As for the source of [`copy`].
#[inline]
pub(crate) unsafe fn load_u64(src: *const u8) -> u64 {
    // SAFETY: [4] The caller vouches for the address.
    unsafe { machine::load_u64(src) }
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "cost.rs"]
mod cost;
