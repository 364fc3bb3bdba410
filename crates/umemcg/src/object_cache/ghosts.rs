//! Ghosts: fingerprints of objects evicted before they were used. An object inserted again while
//! its ghost exists goes to the main queue immediately.
//!
//! A table of buckets of [`BUCKET`] fingerprints. In a full bucket the oldest gives way. There is
//! room for about half as many ghosts as the group has objects, at four bytes each, charged to the
//! group.

/// Fingerprints of a bucket: a cache line.
const BUCKET: usize = 16;
/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: u64 = (BUCKET * size_of::<u32>()) as u64;
/// Stands for no ghost.
const NOBODY: u32 = 0;
/// Most buckets: a gibibyte of them.
const BUCKETS_MAX: usize = 1 << 24;

/// The ghosts of one group in one cache.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    buckets: Vec<[u32; BUCKET]>,
    nr: u64,
}

impl Ghosts {
    /// Buckets for half as many ghosts as there are objects. With more, objects returning too
    /// rarely would enter the main queue.
    pub(super) fn buckets_for(nr_objects: u64) -> usize {
        usize::try_from(nr_objects.div_ceil(2 * BUCKET as u64)).unwrap_or(BUCKETS_MAX).min(BUCKETS_MAX)
    }

    pub(super) fn nr_buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The number of ghosts.
    pub(super) fn nr(&self) -> u64 {
        self.nr
    }

    /// Returns the fingerprint of a hash. The bucket is chosen by the same bits, so that ghosts can
    /// be moved when the table grows.
    fn fingerprint(hash: u64) -> u32 {
        ((hash >> 16) as u32).max(1)
    }

    fn bucket_of(fingerprint: u32, nr_buckets: usize) -> usize {
        ((u64::from(fingerprint) * nr_buckets as u64) >> 32) as usize
    }

    /// Remembers an evicted object.
    pub(super) fn add(&mut self, hash: u64) {
        self.add_fingerprint(Self::fingerprint(hash));
    }

    fn add_fingerprint(&mut self, fingerprint: u32) {
        if self.buckets.is_empty() {
            return;
        }
        let at = Self::bucket_of(fingerprint, self.buckets.len());
        let bucket = &mut self.buckets[at];
        // Youngest first; it takes the nearest free place, else the place of the oldest.
        let end = bucket.iter().position(|&there| there == NOBODY).unwrap_or_else(|| {
            self.nr -= 1;
            BUCKET - 1
        });
        bucket.copy_within(0..end, 1);
        bucket[0] = fingerprint;
        self.nr += 1;
    }

    /// Returns whether an inserted object has a ghost, and removes the ghost.
    pub(super) fn take(&mut self, hash: u64) -> bool {
        if self.nr == 0 {
            return false;
        }
        let fingerprint = Self::fingerprint(hash);
        let at = Self::bucket_of(fingerprint, self.buckets.len());
        let bucket = &mut self.buckets[at];
        let Some(place) = bucket.iter().position(|&there| there == fingerprint) else { return false };
        bucket.copy_within(place + 1.., place);
        bucket[BUCKET - 1] = NOBODY;
        self.nr -= 1;
        true
    }

    /// Changes the number of buckets. The ghosts stay as far as there is room.
    pub(super) fn resize(&mut self, nr_buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![[NOBODY; BUCKET]; nr_buckets]);
        self.nr = 0;
        for bucket in old {
            for fingerprint in bucket.into_iter().rev().filter(|&there| there != NOBODY) {
                self.add_fingerprint(fingerprint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(nr: u64) -> impl DoubleEndedIterator<Item = u64> {
        (1..=nr).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    #[test]
    fn a_ghost_is_found_once() {
        let mut ghosts = Ghosts::default();
        ghosts.resize(4);
        ghosts.add(77 << 20);
        assert!(!ghosts.take(78 << 20));
        assert!(ghosts.take(77 << 20));
        assert!(!ghosts.take(77 << 20));
        assert_eq!(ghosts.nr(), 0);
    }

    #[test]
    fn the_oldest_give_way_and_the_number_stays_bounded() {
        let mut ghosts = Ghosts::default();
        ghosts.resize(Ghosts::buckets_for(1000));
        hashes(10_000).for_each(|hash| ghosts.add(hash));
        assert!(ghosts.nr() <= ghosts.nr_buckets() as u64 * BUCKET as u64);
        let young = hashes(10_000).rev().take(200).filter(|&hash| ghosts.take(hash)).count();
        let old = hashes(5000).filter(|&hash| ghosts.take(hash)).count();
        assert!(young > 190, "{young} of the 200 youngest are there");
        assert!(old < 10, "{old} of the oldest half are there");
    }

    #[test]
    fn growth_and_shrinking_keep_what_has_room() {
        let mut ghosts = Ghosts::default();
        ghosts.resize(8);
        hashes(32).for_each(|hash| ghosts.add(hash));
        let nr = ghosts.nr();
        ghosts.resize(16);
        assert_eq!(ghosts.nr(), nr);
        ghosts.resize(1);
        assert_eq!(ghosts.nr(), BUCKET as u64);
        ghosts.resize(0);
        assert_eq!(ghosts.nr(), 0);
        ghosts.add(5 << 20);
        assert!(!ghosts.take(5 << 20));
    }
}
