//! Writing behind a long sequential write. A program that writes a long file and syncs it would
//! otherwise fill memory first and wait for the whole of it afterwards, and every page would need
//! memory never touched before. So the flusher begins whenever another [`STRIDE_BYTES`] have been
//! written in sequence: it copies to the store and waits for the device while the program produces
//! the rest, and pages given up once durable are soon used again.
//!
//! Files shorter than a stride, and writes at random, wait as before: they may be written again, or
//! removed, before their data is due.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes written in sequence after which the flusher begins: a few of its longest writes, and more
/// than most short-lived files have.
pub(super) const STRIDE_BYTES: u64 = 8 << 20;

/// How far a file is being written in sequence. A hint: writers at the same time may break it.
#[derive(Debug, Default)]
pub(super) struct WriteSequence {
    /// The offset at which it continues.
    next: AtomicU64,
    /// Its bytes not yet handed to the flusher.
    nr_behind: AtomicU64,
}

impl WriteSequence {
    /// Notes a write of `len` bytes at `offset`. Returns whether the flusher is to begin.
    #[inline]
    pub(super) fn note(&self, offset: u64, len: u64) -> bool {
        let continues = self.next.swap(offset + len, Ordering::Relaxed) == offset;
        let nr_behind = if continues { self.nr_behind.load(Ordering::Relaxed) } else { 0 } + len;
        let is_stride = nr_behind >= STRIDE_BYTES;
        self.nr_behind.store(if is_stride { 0 } else { nr_behind }, Ordering::Relaxed);
        is_stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_stride_is_bytes_in_sequence() {
        let sequence = WriteSequence::default();
        let strides: Vec<u64> = (0..20).filter(|&at| sequence.note(at * MIB, MIB)).collect();
        assert_eq!(strides, [7, 15]);
        // Elsewhere it begins again.
        assert!((0..7).all(|at| !sequence.note((100 + at) * MIB, MIB)));
        assert!(sequence.note(107 * MIB, MIB));
    }

    #[test]
    fn writes_at_random_are_no_stride() {
        let sequence = WriteSequence::default();
        assert!((0..100).all(|at| !sequence.note(at * 37 % 100 * MIB, MIB)));
    }
}
