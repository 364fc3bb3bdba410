//! The requested keys: the same for every cache.

/// xorshift64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// `len` keys below `nr`, all alike.
pub fn uniform(nr: usize, len: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| ((random.next() >> 32) * nr as u64 >> 32) as u32).collect()
}

/// Zipf's distribution over `nr` keys, whose ranks are shuffled.
pub struct Zipf {
    cumulated: Vec<f64>,
    key_of_rank: Vec<u32>,
}

impl Zipf {
    pub fn new(nr: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let ranks = (1..=nr).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        let cumulated = ranks.collect();
        let mut key_of_rank: Vec<u32> = (0..nr as u32).collect();
        let mut random = Random::new(77);
        for at in (1..nr).rev() {
            key_of_rank.swap(at, (random.next() % (at as u64 + 1)) as usize);
        }
        Self { cumulated, key_of_rank }
    }

    pub fn keys(&self, len: usize, seed: u64) -> Vec<u32> {
        let mut random = Random::new(seed);
        let sum = self.cumulated[self.cumulated.len() - 1];
        let key = |_| {
            let at = random.unit() * sum;
            let rank = self.cumulated.partition_point(|&there| there < at);
            self.key_of_rank[rank.min(self.key_of_rank.len() - 1)]
        };
        (0..len).map(key).collect()
    }
}
