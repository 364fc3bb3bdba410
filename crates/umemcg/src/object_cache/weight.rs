//! The bytes of an object: its allocations as rounded by the allocator, its share of the tables,
//! its slot in the lists.

use umemcg_reclaim::LIST_SLOT_BYTES;

use super::entry::{BYTES_UNIT, Entry};
use super::expiry::Age;

/// Bytes of the index for an entry: a number and a control byte, in a table at least 7/16 full.
const INDEX_BYTES: u64 = (4 + 1) * 16 / 7 + 1;
/// Allocations from here on are rounded to pages.
const LARGE: u64 = 128 << 10;

/// Returns the bytes taken by an allocation of `bytes`: the allocator keeps a word with each and
/// rounds up to 16.
pub fn allocated_bytes(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        1..LARGE => (bytes + 8).next_multiple_of(16).max(32),
        _ => bytes.saturating_add(16).checked_next_multiple_of(4096).unwrap_or(u64::MAX),
    }
}

/// Returns the bytes of an entry, without the heap memory of its key and value. `ages` says whether
/// its age is kept.
pub(super) const fn entry_bytes<K, V>(ages: bool) -> u64 {
    let place = size_of::<Option<Entry<K, V>>>() + if ages { size_of::<Age>() } else { 0 };
    // Places double when they are all taken.
    (place as u64 * 2 + INDEX_BYTES + LIST_SLOT_BYTES).next_multiple_of(BYTES_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_rounded_as_the_allocator_does() {
        for (asked, taken) in
            [(0, 0), (1, 32), (24, 32), (25, 48), (4096, 4112), (4112, 4128), (1 << 20, 0x101000)]
        {
            assert_eq!(allocated_bytes(asked), taken, "{asked}");
        }
        assert_eq!(allocated_bytes(u64::MAX), u64::MAX);
    }
}
