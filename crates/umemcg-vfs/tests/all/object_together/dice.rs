//! Numbers that look random, the same for a seed.

/// See the module text.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Seeds side by side give numbers that have nothing in common.
    pub fn of(seed: u64) -> Self {
        let mixed = seed.wrapping_add(1).wrapping_mul(0xff51_afd7_ed55_8ccd);
        Self((mixed ^ (mixed >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53))
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub fn one_in(&mut self, nr: u64) -> bool {
        self.below(nr) == 0
    }

    pub fn of_these<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len() as u64) as usize]
    }

    pub fn split(&mut self) -> Self {
        Self::of(self.below(u64::from(u32::MAX)))
    }
}
