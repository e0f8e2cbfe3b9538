//! Choices driven by a fuzzer's bytes, if any, and after that by a seed.

use weir_packet::random::Random;

/// A source of random choices.
#[derive(Clone, Debug)]
pub struct Choices {
    random: Random,
    bytes: Vec<u8>,
    used: usize,
}

impl Choices {
    /// Creates choices determined by a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Choices {
        Choices { random: Random::new(seed), bytes: Vec::new(), used: 0 }
    }

    /// Creates choices determined by bytes, two for each choice, and by their sum once they are used up. A
    /// fuzzer that changes a byte thus changes a choice.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Choices {
        let seed =
            bytes.iter().fold(0, |sum: u64, byte| sum.wrapping_mul(257).wrapping_add(u64::from(*byte)));
        Choices { random: Random::new(seed), bytes: bytes.to_vec(), used: 0 }
    }

    /// Returns true if some of the bytes are unused.
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        self.used < self.bytes.len()
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.random.bits()
    }

    /// Returns 128 random bits.
    pub fn wide(&mut self) -> u128 {
        u128::from(self.bits()) << 64 | u128::from(self.bits())
    }

    /// Returns a number below `limit`, which must be above 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if let Some(pair) = self.bytes.get(self.used..self.used + 2) {
            self.used += 2;
            return usize::from(u16::from_be_bytes([pair[0], pair[1]])) % limit;
        }
        self.used = self.bytes.len();
        (self.bits() >> 16) as usize % limit
    }

    /// Returns a number from `first` to `last`.
    pub fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// Returns true with this probability in percent.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns one of several values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns the index of one of several weights, chosen in proportion to the weights.
    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (at, weight) in weights.iter().enumerate() {
            if left < *weight {
                return at;
            }
            left -= weight;
        }
        0
    }
}
