//! The arithmetic of blocks: the blocks touched by a range, the runs of missing blocks fetched by
//! one request each, and the bytes of a range from its blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Most bytes of one request.
pub(super) const RUN_BYTES_MAX: u64 = 8 << 20;

/// The blocks of one object, each of `block_bytes`; the last one ends with the object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) block_bytes: u64,
    pub(super) object_bytes: u64,
}

impl Blocks {
    /// Returns the numbers of the blocks touched by a range.
    pub(super) fn touched(&self, range: &Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        range.start / self.block_bytes..range.end.div_ceil(self.block_bytes)
    }

    /// Returns the byte range of a run of blocks.
    pub(super) fn bytes_of(&self, run: &Range<u64>) -> Range<u64> {
        run.start * self.block_bytes..(run.end * self.block_bytes).min(self.object_bytes)
    }

    /// Returns the end of the part of `range` read in one step of a stream.
    pub(super) fn step_end(&self, range: &Range<u64>) -> u64 {
        let blocks_max = (RUN_BYTES_MAX / self.block_bytes).max(1);
        let end = (range.start / self.block_bytes + blocks_max) * self.block_bytes;
        end.min(range.end)
    }

    /// Groups missing blocks into runs, each for one request.
    pub(super) fn runs(&self, missing: &BTreeSet<u64>) -> Vec<Range<u64>> {
        let blocks_max = (RUN_BYTES_MAX / self.block_bytes).max(1);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for &index in missing {
            match runs.last_mut() {
                Some(run) if run.end == index && run.end - run.start < blocks_max => run.end += 1,
                _ => runs.push(index..index + 1),
            }
        }
        runs
    }

    /// Returns the bytes of `range`: a slice of its block, or a copy from several.
    ///
    /// # Panics
    /// When a block touched by the range is missing or too short.
    pub(super) fn assemble(&self, range: &Range<u64>, blocks: &BTreeMap<u64, Bytes>) -> Bytes {
        let touched = self.touched(range);
        let part = |index: u64| {
            let start = index * self.block_bytes;
            let from = range.start.max(start) - start;
            let to = range.end.min(start + self.block_bytes) - start;
            blocks[&index].slice(from as usize..to as usize)
        };
        if touched.end - touched.start == 1 {
            return part(touched.start);
        }
        let mut whole = BytesMut::with_capacity((range.end - range.start) as usize);
        touched.for_each(|index| whole.extend_from_slice(&part(index)));
        whole.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Blocks = Blocks { block_bytes: 10, object_bytes: 95 };

    #[test]
    fn a_range_touches_the_blocks_it_overlaps() {
        assert_eq!(TEN.touched(&(0..10)), 0..1);
        assert_eq!(TEN.touched(&(9..11)), 0..2);
        assert_eq!(TEN.touched(&(90..95)), 9..10);
        assert_eq!(TEN.touched(&(5..5)), 0..0);
        assert_eq!(TEN.bytes_of(&(8..10)), 80..95);
    }

    #[test]
    fn neighbours_are_fetched_together_up_to_a_bound() {
        assert_eq!(TEN.runs(&BTreeSet::from([1, 2, 3, 7, 9])), [1..4, 7..8, 9..10]);
        let mib = Blocks { block_bytes: 1 << 20, object_bytes: 1 << 30 };
        assert_eq!(mib.runs(&(0..20).collect()), [0..8, 8..16, 16..20]);
        let large = Blocks { block_bytes: RUN_BYTES_MAX * 2, object_bytes: 1 << 30 };
        assert_eq!(large.runs(&(0..2).collect()), [0..1, 1..2]);
        assert_eq!(large.step_end(&(5..1 << 30)), RUN_BYTES_MAX * 2);
    }

    #[test]
    fn every_range_of_an_object_is_assembled_as_it_is() {
        let object: Vec<u8> = (0..95).collect();
        let blocks: BTreeMap<u64, Bytes> =
            object.chunks(10).map(Bytes::copy_from_slice).enumerate().map(|(at, b)| (at as u64, b)).collect();
        for start in 0..95 {
            for end in start + 1..=95 {
                let range = start..end;
                let expected = &object[start as usize..end as usize];
                assert_eq!(TEN.assemble(&range, &blocks), expected, "{range:?}");
                assert!((start + 1..=end).contains(&TEN.step_end(&range)));
            }
        }
    }
}
