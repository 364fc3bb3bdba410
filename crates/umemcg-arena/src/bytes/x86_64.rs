//! The relaxed copy on x86-64. Ordinary loads and stores of any width never tear a byte; no more is
//! promised.

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
    move_1: reg_byte, "mov {via}, [{src}]", "mov [{dst}], {via}";
    move_4: reg, "mov {via:e}, [{src}]", "mov [{dst}], {via:e}";
    move_8: reg, "mov {via:r}, [{src}]", "mov [{dst}], {via:r}";
    move_16: xmm_reg, "movups {via}, [{src}]", "movups [{dst}], {via}";
}

/// Four registers of `$bytes` bytes a turn. The loop moves blocks while a block starts before the
/// last one, then the last block: nothing outside the ranges. `vzeroupper` destroys the upper parts
/// of all vector registers, and `clobber_abi` says so.
macro_rules! copy_loop {
    ($dst:ident, $src:ident, $len:ident, $register:literal, $bytes:literal, $twice:literal, $thrice:literal, $block:literal) => {
        asm!(
            "jmp 3f",
            "2:",
            concat!("vmovups ", $register, "0, [rsi]"),
            concat!("vmovups ", $register, "1, [rsi + ", $bytes, "]"),
            concat!("vmovups ", $register, "2, [rsi + ", $twice, "]"),
            concat!("vmovups ", $register, "3, [rsi + ", $thrice, "]"),
            concat!("add rsi, ", $block),
            concat!("vmovups [rdi], ", $register, "0"),
            concat!("vmovups [rdi + ", $bytes, "], ", $register, "1"),
            concat!("vmovups [rdi + ", $twice, "], ", $register, "2"),
            concat!("vmovups [rdi + ", $thrice, "], ", $register, "3"),
            concat!("add rdi, ", $block),
            "3:",
            "cmp rsi, rcx",
            "jb 2b",
            concat!("vmovups ", $register, "0, [rcx]"),
            concat!("vmovups ", $register, "1, [rcx + ", $bytes, "]"),
            concat!("vmovups ", $register, "2, [rcx + ", $twice, "]"),
            concat!("vmovups ", $register, "3, [rcx + ", $thrice, "]"),
            concat!("vmovups [rdx], ", $register, "0"),
            concat!("vmovups [rdx + ", $bytes, "], ", $register, "1"),
            concat!("vmovups [rdx + ", $twice, "], ", $register, "2"),
            concat!("vmovups [rdx + ", $thrice, "], ", $register, "3"),
            "vzeroupper",
            inout("rsi") $src => _,
            inout("rdi") $dst => _,
            in("rcx") $src.add($len - $block),
            in("rdx") $dst.add($len - $block),
            clobber_abi("sysv64"),
            options(nostack),
        )
    };
}

/// # Safety
/// As for `bytes::copy`; `len` is at least `BLOCK`.
#[inline]
pub(super) unsafe fn copy_blocks(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(len >= super::BLOCK);
    if len >= 256 && std::arch::is_x86_feature_detected!("avx512f") {
        // Half the instructions: more of what comes after is under way before a page has arrived
        // from memory. SAFETY: [4] The processor has AVX-512, and the range has a block of 256
        // bytes.
        unsafe { copy_loop!(dst, src, len, "zmm", 64, 128, 192, 256) }
    } else if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: [4] The processor has AVX, and the range has a block of 128 bytes.
        unsafe { copy_loop!(dst, src, len, "ymm", 32, 64, 96, 128) }
    } else {
        // SAFETY: [4] The caller's.
        unsafe { copy_cold(dst, src, len) }
    }
}

/// Shortest copy worth [`copy_cold`], in bytes.
pub(super) const COLD_MIN: usize = 2048;

/// Copies with the processor's own string copy. It does not fetch the overwritten lines. So it is a
/// third faster than loads and stores when the destination is in no cache, and a third slower when
/// all is cached.
///
/// # Safety
/// As for `bytes::copy`.
#[inline(always)]
pub(super) unsafe fn copy_cold(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: [4] Upwards from both starts, `len` bytes: Rust guarantees that the direction flag is
    // clear.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As for `bytes::zero`.
#[inline]
pub(super) unsafe fn zero(dst: *mut u8, len: usize) {
    // SAFETY: [4] As for `rep movsb`.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            in("al") 0u8,
            options(nostack, preserves_flags),
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
        asm!("mov {word}, [{src}]", src = in(reg) src, word = out(reg) word,
             options(nostack, preserves_flags, readonly));
    }
    word
}
