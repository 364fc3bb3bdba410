//! Prefetches of cache lines.
//!
//! A prefetch is a hint: it has no visible effect and never faults, whatever the address. So
//! addresses may be guesses, and out of date.

/// Prefetches the cache line at an address, which may be any number.
#[inline(always)]
pub fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: [8] A prefetch has no effect that a program can see, whatever the address.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: [8] As above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(miri)]
    let _ = address;
}

/// Prefetches the first cache line of a value, for writing: the line is fetched in exclusive state,
/// even if another processor wrote it last.
#[inline(always)]
pub fn prefetch_for_write<T>(value: &T) {
    let address = std::ptr::from_ref(value);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: [8] As above. Every x86-64 processor has the instruction, or takes it for none.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: [8] As above.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(miri)]
    let _ = address;
}

/// Uses the first word of a value as an address and prefetches the line there; for an `Arc` or a
/// `Box` this word is its pointer. Does nothing for values smaller than a word or not aligned like
/// one.
#[inline(always)]
pub fn prefetch_what_it_leads_to<T>(value: &T) {
    if size_of::<T>() < size_of::<usize>() || align_of::<T>() < align_of::<usize>() {
        return;
    }
    let at = std::ptr::from_ref(value);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: [8] The word lies within the value, which is borrowed, and leaves the block as
    // nothing but the address of a prefetch.
    unsafe {
        core::arch::asm!("mov {word}, [{at}]", "prefetcht0 [{word}]", at = in(reg) at, word = out(reg) _,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: [8] As above.
    unsafe {
        core::arch::asm!("ldr {word}, [{at}]", "prfm pldl1keep, [{word}]", at = in(reg) at, word = out(reg) _,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(miri)]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_will_do() {
        for address in [0, 1, 4096, usize::MAX, 1 << 63, 0xDEAD_BEEF] {
            prefetch(address);
            prefetch_what_it_leads_to(&address);
            prefetch_for_write(&address);
        }
        prefetch_what_it_leads_to(&7_u8);
        prefetch_what_it_leads_to(&[3_u8; 64]);
        prefetch_what_it_leads_to(&Box::new(5_u64));
        prefetch_what_it_leads_to(&std::mem::MaybeUninit::<u64>::uninit());
    }
}
