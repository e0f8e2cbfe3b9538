//! FM: the number of distinct keys, from the lengths of runs of zeros.
//!
//! Flajolet and Martin: Probabilistic counting algorithms for data base applications, J. Computer and System
//! Sciences 31(2), 1985, with stochastic averaging (PCSA). A key picks one of m bitmaps and sets bit r with
//! probability 2^-(r+1). R is the number of ones before the first zero; there were m·2^(mean R)/0.77351 keys,
//! with a relative standard error of 0.78/sqrt(m). For few keys, the bias is removed as proposed by
//! Scheuermann and Mauve (NOSSDAV 2007); if there are empty bitmaps, these are counted instead.

use weir_sketch::estimate::{Estimate, MergeError, Sigmas, SizeError};
use weir_sketch::hash::{Lanes, Purpose, Seed, below};
use weir_sketch::mrac::{linear_count, linear_error};

/// The constant of the paper: 2^R is φ times the number of keys, on average.
const PHI: f64 = 0.773_51;

/// The constant of the correction for few keys.
const KAPPA: f64 = 1.75;

/// Bitmaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlajoletMartin {
    bitmaps: Vec<u64>,
    lanes: Lanes,
}

impl FlajoletMartin {
    /// Creates empty bitmaps in at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than that of 16 bitmaps of 8 bytes, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let bitmaps = SizeError::check(bytes, 16 * size_of::<u64>())? / size_of::<u64>();
        Ok(FlajoletMartin { bitmaps: vec![0; bitmaps], lanes: Lanes::new(seed, Purpose::FlajoletMartin, 0) })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bitmaps.len() * size_of::<u64>()
    }

    /// Records a key.
    #[inline(always)]
    pub fn update(&mut self, hash: u64) {
        let bitmap = below((self.lanes.bits(hash, 0) >> 32) as u32, self.bitmaps.len());
        let run = self.lanes.bits(hash, 1).trailing_zeros().min(u64::BITS - 1);
        self.bitmaps[bitmap] |= 1 << run;
    }

    /// Number of distinct keys.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let count = self.bitmaps.len() as f64;
        let empty = self.bitmaps.iter().filter(|bitmap| **bitmap == 0).count() as f64;
        if empty > count / 8.0 {
            let value = linear_count(count, empty);
            return Estimate::normal(value, linear_error(count, value), Sigmas::Three);
        }
        let runs: u64 = self.bitmaps.iter().map(|bitmap| u64::from(bitmap.trailing_ones())).sum();
        let mean = runs as f64 / count;
        let value = count / PHI * (mean.exp2() - (-KAPPA * mean).exp2());
        Estimate::normal(value, 0.78 / count.sqrt(), Sigmas::Three)
    }

    /// Adds what other bitmaps have recorded.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.bitmaps.len() == other.bitmaps.len() && self.lanes == other.lanes)?;
        for (bitmap, other) in self.bitmaps.iter_mut().zip(&other.bitmaps) {
            *bitmap |= other;
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bitmaps.fill(0);
    }
}
