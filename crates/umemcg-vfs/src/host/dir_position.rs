//! Positions in a host directory as shown to programs: below 2^31 while possible, because 32-bit
//! programs without large-file support cannot take larger ones.
//!
//! ext4 lists a directory in the order of its names' hashes. A position there is the hash of the
//! next name: 31 bits, and below them a minor hash of 32 bits. Its upper 30 bits alone lead to the
//! same name unless the name before it has them, too. Such a position is shown as it is, as are
//! byte offsets in a directory without an index. Nothing is kept: a shown position means the same
//! through any handle, and after any time.
//!
//! The first name of a read may lie behind the position where the read begins, and its exact place
//! is unknown. If the read ends after this name, and the next has the same upper bits, the name may
//! be listed twice. No name is left out for it.

/// Positions from here up to [`SMALL_END`] are shortened hashes.
const HASHES: u64 = 1 << 30;
/// The first position too large for a 32-bit program.
const SMALL_END: u64 = 1 << 31;
/// The dropped bits of a hash.
const DROPPED_BITS: u32 = 33;
/// The hash of `..`, which has the same upper bits as that of `.`.
const PARENT: u64 = 1 << 32;
/// The shown position of `..`; a byte offset is a multiple of four.
const SHOWN_PARENT: u64 = 1;
/// The end of a directory.
const END: u64 = i64::MAX as u64;
/// From here up to [`END`] there is no hash. Positions below [`PARENT`] that would be taken for
/// others are shown here: byte offsets, and hashes whose upper 31 bits are zero.
const UNUSED: u64 = 0x7fff_ffff << 32;

/// Returns the position shown for the host's position `next`, behind the name found at `own` or
/// later.
pub(super) fn shown(own: u64, next: u64) -> u64 {
    match next {
        PARENT => SHOWN_PARENT,
        SHOWN_PARENT | HASHES..PARENT => UNUSED + next - 1,
        _ if own >> DROPPED_BITS < next >> DROPPED_BITS => HASHES | next >> DROPPED_BITS,
        _ => next,
    }
}

/// Returns the host's position of a shown one. No name lies between it and the position shown.
pub(super) fn hosts(shown: u64) -> u64 {
    match shown {
        SHOWN_PARENT => PARENT,
        HASHES..SMALL_END => (shown - HASHES) << DROPPED_BITS,
        UNUSED..END => shown - UNUSED + 1,
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(major: u64, minor: u64) -> u64 {
        major << 32 | minor
    }

    #[test]
    fn positions_of_a_listing_are_small_and_lead_to_the_next_name() {
        let names = [0, PARENT, hash(7, 5), hash(8, 1), hash(1 << 30, 3), hash(0x7fff_fff0, 0), END];
        for pair in names.windows(2) {
            let small = shown(pair[0], pair[1]);
            assert!(small < SMALL_END, "{pair:?}");
            assert!(pair[0] < hosts(small) && hosts(small) <= pair[1], "{pair:?}");
        }
    }

    #[test]
    fn a_position_between_equal_upper_bits_is_exact() {
        let (first, second) = (hash(8, 1), hash(9, 4));
        for (own, next) in [(first, second), (second, second), (hash(0x7fff_fffe, 2), END)] {
            assert_eq!((shown(own, next), hosts(next)), (next, next));
        }
    }

    #[test]
    fn byte_offsets_stay_themselves() {
        for offset in [0, 12, 24, 4096, HASHES - 4, HASHES, SMALL_END - 4] {
            assert_eq!(hosts(shown(0, offset)), offset);
        }
        assert_eq!(shown(0, 4096), 4096);
    }

    #[test]
    fn a_hash_like_a_shown_position_is_not_taken_for_it() {
        for next in [1, HASHES + 1, SMALL_END + 5, PARENT - 1] {
            assert_eq!(hosts(shown(0, next)), next);
        }
    }

    #[test]
    fn a_position_never_shown_stays_wrong() {
        assert_eq!(hosts(u64::MAX), u64::MAX);
    }
}
