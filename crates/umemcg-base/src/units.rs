//! Sizes for all layers. A page is 4,096 bytes here, whatever the processor's own page size.

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page and in a frame.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// [`PAGE_SIZE`] for arithmetic on offsets.
pub const PAGE_SIZE_U64: u64 = PAGE_SIZE as u64;

/// Returns the number of pages touched by the half-open byte range `offset..offset + len`.
#[inline]
pub fn pages_for(offset: u64, len: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    ((offset + len - 1) >> PAGE_SHIFT) - (offset >> PAGE_SHIFT) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_every_page_it_overlaps() {
        assert_eq!(pages_for(0, 0), 0);
        assert_eq!(pages_for(4095, 1), 1);
        assert_eq!(pages_for(4095, 2), 2);
        assert_eq!(pages_for(0, 8192), 2);
    }
}
