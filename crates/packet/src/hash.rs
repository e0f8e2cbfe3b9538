//! The two hashes. They consist only of additions, rotations, exclusive ors and 64-bit multiplications (also
//! of 32-bit halves), so that eBPF C can compute the same.
//!
//! `select` picks buckets; it is specified, and the same on all nodes of a fleet that have the same seed.
//! `table` places entries; it has a secret per process, so that an attacker cannot aim traffic at one bucket
//! of a table.
//!
//! Both are NH (RFC 4418 §5.2.2) followed by a finalizer. NH sums, over all words, the product of a word's
//! two halves, each half with a key added. Two different keys that were chosen without knowing the secret
//! have equal sums for only one in 2^32 secrets. The products of different words are independent of each
//! other, so a processor can compute them in parallel.

use crate::IPV4_MARK;

/// Odd constants: the golden ratio and two similar ones (fractional parts of square roots of primes), to show
/// that they were not chosen for a hidden purpose.
const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xbb67_ae85_84ca_a73b;
const K2: u64 = 0x3c6e_f372_fe94_f82b;

/// One word of NH: adds a key to each half modulo 2^32 and multiplies the halves; the product fits into 64
/// bits.
#[inline(always)]
const fn product(word: u64, key: u64) -> u64 {
    let low = (word as u32).wrapping_add(key as u32);
    let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
    low as u64 * high as u64
}

/// Spreads every bit over all bits: `x ^ x<<<a ^ x<<<b` is a bijection, and so is multiplication by an odd
/// number.
#[inline(always)]
const fn finish(state: u64) -> u64 {
    let state = (state ^ state.rotate_left(25) ^ state.rotate_left(47)).wrapping_mul(K1);
    let state = (state ^ state.rotate_left(23) ^ state.rotate_left(51)).wrapping_mul(K2);
    state ^ state.rotate_left(27) ^ state.rotate_left(49)
}

/// Returns the select hash of `words`, in their order, with the configured `seed`. The first word's key is
/// derived from the seed; the key of every further word is larger by the golden ratio.
#[inline(always)]
#[must_use]
pub fn select_hash(seed: u64, words: &[u64]) -> u64 {
    let mut key = (seed ^ K1).wrapping_mul(K0).rotate_left(32);
    let mut sum = key;
    for &word in words {
        sum = sum.wrapping_add(product(word, key));
        key = key.wrapping_add(K0);
    }
    finish(sum)
}

/// [`select_hash`] for the keys of IPv4 flows outside tunnels, 64 at a time. Two of their five words are
/// always the same; the others are hashed side by side in the processor's widest registers.
#[derive(Clone, Copy, Debug)]
pub struct SelectIpv4 {
    /// The partial sum of the seed and the constant words.
    same: u64,
    /// The keys for the words of source, destination and ports.
    keys: [u64; 3],
}

impl SelectIpv4 {
    /// Creates the hash with a seed.
    #[must_use]
    pub const fn new(seed: u64) -> SelectIpv4 {
        let first = (seed ^ K1).wrapping_mul(K0).rotate_left(32);
        let (second, third) = (first.wrapping_add(K0), first.wrapping_add(K0.wrapping_mul(2)));
        let (fourth, fifth) = (third.wrapping_add(K0), third.wrapping_add(K0.wrapping_mul(2)));
        let same = first.wrapping_add(product(IPV4_MARK, first)).wrapping_add(product(0, third));
        SelectIpv4 { same, keys: [second, fourth, fifth] }
    }

    /// Returns the hash of one flow: source address (upper half) and destination address, and the last word
    /// of its [`crate::FlowKey`].
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, addresses: u64, last: u64) -> u64 {
        let [source, destination, rest] = self.keys;
        let sum = self.same.wrapping_add(product(addresses >> 32, source));
        let sum = sum.wrapping_add(product(addresses & 0xffff_ffff, destination));
        finish(sum.wrapping_add(product(last, rest)))
    }

    /// Computes the hashes of 64 flows.
    #[inline]
    pub fn hash_all(&self, addresses: &[u64; 64], last: &[u64; 64], hashes: &mut [u64; 64]) {
        crate::widest(|| {
            for lane in 0..64 {
                hashes[lane] = self.hash(addresses[lane], last[lane]);
            }
        });
    }
}

/// The largest number of words in a table key, each with a word of the secret: 128 bytes, more than any pipe
/// matches exactly.
const KEY_WORDS_MAX: usize = 16;

/// The secret of the table hash.
#[derive(Clone, Copy)]
pub struct TableHash {
    start: u64,
    keys: [u64; KEY_WORDS_MAX],
}

impl std::fmt::Debug for TableHash {
    /// Does not print the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TableHash")
    }
}

impl TableHash {
    /// Creates a hash with a two-word secret; equal secrets give equal hashes (replay, tests).
    #[must_use]
    pub const fn new(secret: [u64; 2]) -> TableHash {
        let start = finish(secret[0] ^ K0);
        let last = finish(secret[1] ^ K2);
        let mut keys = [0; KEY_WORDS_MAX];
        let mut word = 0;
        while word < KEY_WORDS_MAX {
            keys[word] = finish(finish(start.wrapping_add(K0.wrapping_mul(word as u64 + 1))) ^ last);
            word += 1;
        }
        TableHash { start: start ^ last.rotate_left(32), keys }
    }

    /// Creates a hash with a random secret, taken from the standard library's randomly keyed hasher.
    #[must_use]
    pub fn random() -> TableHash {
        use std::hash::{BuildHasher, RandomState};
        let word = || RandomState::new().hash_one(0u64);
        TableHash::new([word(), word()])
    }

    /// Returns the hash of a key.
    #[inline(always)]
    #[must_use]
    pub fn hash<const W: usize>(&self, key: &[u64; W]) -> u64 {
        const { assert!(W <= KEY_WORDS_MAX, "a table key has more words than the secret") };
        let mut sum = self.start;
        for (&word, &secret) in key.iter().zip(&self.keys) {
            sum = sum.wrapping_add(product(word, secret));
        }
        finish(sum)
    }
}
