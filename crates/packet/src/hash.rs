//! The two hashes, made of additions, rotations, exclusive ors and 64-bit multiplications alone, so that eBPF C
//! computes the same.
//!
//! `select` is specified: equal over a fleet for equal seeds, it picks buckets. `table` is secret per process and
//! places entries, so that nobody can aim traffic at one bucket of a table.

/// Odd constants: the golden ratio and two of its relatives (from the fractional parts of square roots of primes), so
/// that nothing is up a sleeve.
const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xbb67_ae85_84ca_a73b;
const K2: u64 = 0x3c6e_f372_fe94_f82b;

/// One round: absorb a word. The multiplication carries low bits upwards, the rotation brings high bits down.
#[inline(always)]
const fn absorb(state: u64, word: u64) -> u64 {
    ((state ^ word).wrapping_mul(K0)).rotate_left(29).wrapping_add(word)
}

/// Spreads every bit over all: `x ^ x<<<a ^ x<<<b` is a bijection, and so is an odd multiplication.
#[inline(always)]
const fn finish(state: u64) -> u64 {
    let state = (state ^ state.rotate_left(25) ^ state.rotate_left(47)).wrapping_mul(K1);
    let state = (state ^ state.rotate_left(23) ^ state.rotate_left(51)).wrapping_mul(K2);
    state ^ state.rotate_left(27) ^ state.rotate_left(49)
}

/// The select hash of `words`, in their order, under the configured `seed`.
#[inline(always)]
#[must_use]
pub fn select_hash(seed: u64, words: &[u64]) -> u64 {
    let mut state = seed ^ K1;
    for &word in words {
        state = absorb(state, word);
    }
    finish(state)
}

/// The secret of the table hash.
#[derive(Clone, Copy, Debug)]
pub struct TableHash {
    start: u64,
    multiplier: u64,
    last: u64,
}

impl TableHash {
    /// A hash under two secret words; equal secrets give equal hashes (replay, tests).
    #[must_use]
    pub const fn new(secret: [u64; 2]) -> TableHash {
        let start = finish(secret[0] ^ K0);
        let last = finish(secret[1] ^ K2);
        TableHash { start, multiplier: finish(start ^ secret[1]) | 1, last }
    }

    /// A hash under a secret nobody knows: from the standard library's randomly keyed hasher.
    #[must_use]
    pub fn random() -> TableHash {
        use std::hash::{BuildHasher, RandomState};
        let word = || RandomState::new().hash_one(0u64);
        TableHash::new([word(), word()])
    }

    /// The hash of a key. Every word is keyed before and after the multiplication: additions of the secret between
    /// the exclusive ors keep the map from being linear in either sense.
    #[inline(always)]
    #[must_use]
    pub fn hash<const W: usize>(&self, key: &[u64; W]) -> u64 {
        let mut state = self.start;
        for &word in key {
            state = ((state ^ word).wrapping_mul(self.multiplier)).rotate_left(31).wrapping_add(self.last ^ word);
        }
        finish(state)
    }
}
