//! Seeded random numbers, so that runs are reproducible: splitmix64. Tests, benches and the simulator use it
//! as well.

/// The increment of splitmix64 (Steele, Lea, Flood: OOPSLA 2014).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A random number generator. Not cryptographically secure.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Equal seeds yield equal sequences.
    #[must_use]
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// The next number below `end`; 0 if `end` is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// The next 32 bits, with which flows are placed, in the kernel's programs as well.
    #[inline]
    pub fn word(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// The next number below `end`, derived from 32 bits; 0 if `end` is 0.
    #[inline]
    pub fn drawn(&mut self, end: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(end)) >> 32) as u32
    }

    /// The next number from 0 (included) to 1 (excluded).
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A random time within a quarter of `time` in either direction, so that two hosts that started together
    /// drift apart.
    #[inline]
    pub fn jittered(&mut self, time: u64) -> u64 {
        let width = u128::from(time / 2 + 1);
        time - time / 4 + ((u128::from(self.word()) * width) >> 32) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // From the reference implementation with seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.bits(), random.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(1);
        assert_eq!(random.below(0), 0);
        for _ in 0..1000 {
            assert!(random.below(3) < 3);
            assert!((75..=125).contains(&random.jittered(100)));
            assert!((0.0..1.0).contains(&random.uniform()));
        }
    }
}
