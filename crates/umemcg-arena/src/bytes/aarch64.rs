//! The relaxed copy on aarch64. Ordinary loads and stores of any width never tear a byte; no more
//! is promised.

use std::arch::asm;

macro_rules! moves {
    ($($name:ident: $class:ident, $load:literal, $store:literal;)*) => {$(
        /// # Safety
        /// As for `bytes::copy` with the size in the name.
        #[inline(always)]
        pub(super) unsafe fn $name(dst: *mut u8, src: *const u8) {
            // SAFETY: [4] One load and one store of that size, flags and stack untouched.
            unsafe {
                asm!($load, $store, dst = in(reg) dst, src = in(reg) src, via = out($class) _,
                     options(nostack, preserves_flags));
            }
        }
    )*};
}

moves! {
    move_1: reg, "ldrb {via:w}, [{src}]", "strb {via:w}, [{dst}]";
    move_4: reg, "ldr {via:w}, [{src}]", "str {via:w}, [{dst}]";
    move_8: reg, "ldr {via:x}, [{src}]", "str {via:x}, [{dst}]";
    move_16: vreg, "ldr {via:q}, [{src}]", "str {via:q}, [{dst}]";
}

/// # Safety
/// As for `bytes::copy`; `len` is at least `BLOCK`.
#[inline]
pub(super) unsafe fn copy_blocks(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(len >= super::BLOCK);
    // SAFETY: [4] The loop moves blocks while a block starts before the last one, then the last
    // block: nothing outside the ranges.
    unsafe {
        asm!(
            "b 3f",
            "2:",
            "ldp {a:q}, {b:q}, [{src}]",
            "ldp {c:q}, {d:q}, [{src}, #32]",
            "ldp {e:q}, {f:q}, [{src}, #64]",
            "ldp {g:q}, {h:q}, [{src}, #96]",
            "add {src}, {src}, #128",
            "stp {a:q}, {b:q}, [{dst}]",
            "stp {c:q}, {d:q}, [{dst}, #32]",
            "stp {e:q}, {f:q}, [{dst}, #64]",
            "stp {g:q}, {h:q}, [{dst}, #96]",
            "add {dst}, {dst}, #128",
            "3:",
            "cmp {src}, {last_src}",
            "b.lo 2b",
            "ldp {a:q}, {b:q}, [{last_src}]",
            "ldp {c:q}, {d:q}, [{last_src}, #32]",
            "ldp {e:q}, {f:q}, [{last_src}, #64]",
            "ldp {g:q}, {h:q}, [{last_src}, #96]",
            "stp {a:q}, {b:q}, [{last_dst}]",
            "stp {c:q}, {d:q}, [{last_dst}, #32]",
            "stp {e:q}, {f:q}, [{last_dst}, #64]",
            "stp {g:q}, {h:q}, [{last_dst}, #96]",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            last_src = in(reg) src.add(len - super::BLOCK),
            last_dst = in(reg) dst.add(len - super::BLOCK),
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
            e = out(vreg) _, f = out(vreg) _, g = out(vreg) _, h = out(vreg) _,
            options(nostack),
        );
    }
}

/// Shortest copy for [`copy_cold`]; on this architecture it is the same as `copy_blocks`.
pub(super) const COLD_MIN: usize = super::BLOCK;
pub(super) use copy_blocks as copy_cold;

/// # Safety
/// As for `bytes::zero`.
#[inline]
pub(super) unsafe fn zero(dst: *mut u8, len: usize) {
    // SAFETY: [4] Sixteen bytes while that many are left, then single bytes: `len` in all.
    unsafe {
        asm!(
            "2:",
            "subs {len}, {len}, #16",
            "b.lo 3f",
            "stp xzr, xzr, [{dst}], #16",
            "b 2b",
            "3:",
            "adds {len}, {len}, #16",
            "b.eq 5f",
            "4:",
            "strb wzr, [{dst}], #1",
            "subs {len}, {len}, #1",
            "b.ne 4b",
            "5:",
            len = inout(reg) len => _,
            dst = inout(reg) dst => _,
            options(nostack),
        );
    }
}

/// # Safety
/// As for `bytes::load_u64`.
#[inline(always)]
pub(super) unsafe fn load_u64(src: *const u8) -> u64 {
    let word: u64;
    // SAFETY: [4] One load of eight bytes, flags and stack untouched.
    unsafe {
        asm!("ldr {word}, [{src}]", src = in(reg) src, word = out(reg) word,
             options(nostack, preserves_flags, readonly));
    }
    word
}
