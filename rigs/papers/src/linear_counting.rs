//! Linear counting: the number of distinct keys.
//!
//! Whang, Vander-Zanden and Taylor: A linear-time probabilistic counting algorithm for database applications,
//! ACM TODS 15(2), 1990. A key sets one of m bits; with a share V of them still 0, there were -m·ln V keys,
//! with a standard error of sqrt(m·(e^t - t - 1)) at t keys per bit. When few bits are 0, the estimate is
//! useless.

use weir_sketch::aggregator::Evicted;
use weir_sketch::estimate::{Estimate, MergeError, Sigmas, SizeError};
use weir_sketch::hash::{Lanes, Purpose, Seed, below};
use weir_sketch::memory::{in_chunks, table};
use weir_sketch::mrac::{linear_count, linear_error};

/// A bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearCounting {
    words: Vec<u64>,
    lanes: Lanes,
}

impl LinearCounting {
    /// Creates an empty bitmap of at most `bytes` bytes, and at most 2^32 bits.
    ///
    /// # Errors
    /// The memory is less than 8 bytes, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let words = SizeError::check(bytes, size_of::<u64>())? / size_of::<u64>();
        let words = words.min(1 << 26);
        Ok(LinearCounting { words: table(0, words), lanes: Lanes::new(seed, Purpose::LinearCounting, 0) })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }

    #[inline(always)]
    fn place(&self, hash: u64) -> (usize, u32) {
        let bits = self.lanes.bits(hash, 0);
        (below((bits >> 32) as u32, self.words.len()), bits as u32 % u64::BITS)
    }

    /// Records a key.
    #[inline(always)]
    pub fn update(&mut self, hash: u64) {
        let (word, bit) = self.place(hash);
        self.words[word] |= 1 << bit;
    }

    /// Records many keys.
    #[inline]
    pub fn add<const W: usize>(&mut self, updates: &[Evicted<W>]) {
        let find = |sketch: &Self, one: &Evicted<W>| {
            let (word, bit) = sketch.place(one.item.hash);
            weir_packet::prefetch(&sketch.words[word]);
            (word as u32, bit)
        };
        in_chunks(self, updates, find, |sketch, _, (word, bit)| sketch.words[word as usize] |= 1 << bit);
    }

    /// Number of distinct keys. With all bits set, it is a lower bound without an upper one.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let bits = self.words.len() as f64 * 64.0;
        let zeros: u64 = self.words.iter().map(|word| u64::from(word.count_zeros())).sum();
        if zeros == 0 {
            let value = bits * bits.ln();
            return Estimate { value, low: value * 0.7, high: f64::INFINITY, confidence: 0.95 };
        }
        let value = linear_count(bits, zeros as f64);
        Estimate::normal(value, linear_error(bits, value), Sigmas::Three)
    }

    /// Adds what another bitmap has recorded.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.words.len() == other.words.len() && self.lanes == other.lanes)?;
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }
}
