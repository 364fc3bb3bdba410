//! Where in a shard the entry of a key is: numbers of places by hash, in buckets of one cache line, so that a look-up waits for one
//! line before it reads the entry.
//!
//! What finds its bucket full goes to the next one that has room, and every bucket that it passed counts it; a look-up goes on as
//! long as the count says that something passed. So nothing has to be left behind where something was taken out.

/// Numbers of a bucket. The eighth tag counts what passed.
const WIDTH: usize = 7;
const PASSED: usize = WIDTH;
/// Stands for no number.
const NOBODY: u32 = u32::MAX;
/// Of `FULL.1` numbers that there is room for, at most `FULL.0` are used.
const FULL: (usize, usize) = (5, 6);

/// One cache line.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u32; WIDTH + 1],
    places: [u32; WIDTH + 1],
}

impl Bucket {
    const EMPTY: Self = Self { tags: [0; WIDTH + 1], places: [NOBODY; WIDTH + 1] };

    /// A bit for each number whose tag is `tag`; some of them may be nobody's.
    #[inline]
    fn matches(&self, tag: u32) -> u32 {
        let bits = (0..WIDTH).map(|at| u32::from(self.tags[at] == tag) << at);
        bits.fold(0, |all, bit| all | bit)
    }
}

/// Numbers by hash. Which hash a number has is not asked: growth goes by the tags.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// A power of two of them, or none.
    buckets: Vec<Bucket>,
    len: usize,
}

#[inline]
fn tag_of(hash: u64) -> u32 {
    hash as u32
}

impl Index {
    /// With room for so many numbers.
    pub(super) fn with_capacity(nr: usize) -> Self {
        let mut index = Self::default();
        if nr > 0 {
            index.resize(nr);
        }
        index
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn mask(&self) -> usize {
        self.buckets.len().wrapping_sub(1)
    }

    /// The number of that hash that is meant.
    #[inline]
    pub(super) fn find(&self, hash: u64, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let (bucket, at) = self.position(hash, is_meant)?;
        Some(self.buckets[bucket].places[at])
    }

    #[inline]
    fn position(&self, hash: u64, is_meant: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let tag = tag_of(hash);
        let mut at = tag as usize & self.mask();
        // Bounded: somewhere is a bucket that nothing passed.
        loop {
            let bucket = self.buckets.get(at)?;
            let mut matches = bucket.matches(tag);
            while matches != 0 {
                let place = matches.trailing_zeros() as usize;
                matches &= matches - 1;
                if bucket.places[place] != NOBODY && is_meant(bucket.places[place]) {
                    return Some((at, place));
                }
            }
            if bucket.tags[PASSED] == 0 {
                return None;
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Adds a number that is not there.
    pub(super) fn insert(&mut self, hash: u64, number: u32) {
        if (self.len + 1) * FULL.1 > self.buckets.len() * WIDTH * FULL.0 {
            self.resize(self.len * 2 + 1);
        }
        self.add(tag_of(hash), number);
        self.len += 1;
    }

    fn add(&mut self, tag: u32, number: u32) {
        let mask = self.mask();
        let mut at = tag as usize & mask;
        // Bounded: not all of them are full.
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(place) = bucket.places[..WIDTH].iter().position(|&there| there == NOBODY) {
                (bucket.tags[place], bucket.places[place]) = (tag, number);
                return;
            }
            bucket.tags[PASSED] += 1;
            at = (at + 1) & mask;
        }
    }

    /// Takes a number out that was added with that hash. False when it is not there.
    pub(super) fn remove(&mut self, hash: u64, number: u32) -> bool {
        let Some((found, place)) = self.position(hash, |there| there == number) else { return false };
        self.buckets[found].places[place] = NOBODY;
        let mut at = tag_of(hash) as usize & self.mask();
        while at != found {
            self.buckets[at].tags[PASSED] -= 1;
            at = (at + 1) & self.mask();
        }
        self.len -= 1;
        true
    }

    /// Makes room for `nr` numbers, and for not many more.
    fn resize(&mut self, nr: usize) {
        let nr_buckets = (nr * FULL.1).div_ceil(WIDTH * FULL.0).next_power_of_two();
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; nr_buckets]);
        for bucket in old {
            for at in (0..WIDTH).filter(|&at| bucket.places[at] != NOBODY) {
                self.add(bucket.tags[at], bucket.places[at]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few enough different ones that many share a bucket, and some a tag.
    fn hash(number: u32) -> u64 {
        u64::from(number % 1000).wrapping_mul(0x9E37_79B9_7F4A_7C15) & !0x3
    }

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
    }

    #[test]
    fn what_is_added_is_found_until_it_is_removed() {
        let mut index = Index::default();
        assert_eq!(index.find(hash(1), |_| true), None);
        let mut there = std::collections::BTreeSet::new();
        let mut random = 1_u64;
        for _ in 0..50_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 33) as u32 % 3000;
            if there.insert(number) {
                index.insert(hash(number), number);
            } else {
                assert!(index.remove(hash(number), number));
                assert!(!index.remove(hash(number), number));
                there.remove(&number);
            }
            let other = (random >> 40) as u32 % 3000;
            let found = index.find(hash(other), |there| there == other);
            assert_eq!(found, there.contains(&other).then_some(other));
            assert_eq!(index.len(), there.len());
        }
        for number in there {
            assert!(index.remove(hash(number), number));
        }
        // Nothing is left behind, so that look-ups of what is not there end at once.
        assert!(index.buckets.iter().all(|bucket| bucket.tags[PASSED] == 0));
    }
}
