//! The hash of a key, computed once and shared by everything that counts the key.
//!
//! A key is hashed to 64 bits under a secret. Every sketch derives its rows from these bits by
//! multiplications under its own secrets ([`Lanes`]), so that nine sketches cost one hash of the key. Two
//! keys with equal hashes are one key to all sketches: among a million keys, there is an equal pair with
//! probability 3e-8.
//!
//! The hash multiplies 64 bits by 64 and folds the product, so it is not linear: keys that collide under one
//! secret do not collide under another. Sketches merge only if their seeds are equal, so a seed is stored
//! with the sketch that it produced, and is as secret as that sketch.

/// The largest number of words in a key: those of a [`weir_packet::FlowKey`].
pub const KEY_WORDS_MAX: usize = 5;

/// An odd constant without a pattern (the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The largest number of rows that a sketch derives from one hash.
pub const LANES_MAX: usize = 8;

/// Multiplies and folds: every bit of the result depends on every bit of both factors.
#[inline(always)]
pub const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// Scales 32 uniform bits to a number below `size`.
#[inline(always)]
pub const fn below(lane: u32, size: usize) -> usize {
    ((lane as u64 * size as u64) >> 32) as usize
}

/// The seed shared by everything that should be merged or compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u64; 2]);

impl std::fmt::Debug for Seed {
    /// Does not print the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed")
    }
}

impl Seed {
    /// A known seed: replay, tests, and nodes whose sketches will be merged.
    #[must_use]
    pub const fn new(words: [u64; 2]) -> Seed {
        Seed(words)
    }

    /// A secret seed, taken from the standard library's randomly keyed hasher.
    #[must_use]
    pub fn random() -> Seed {
        use std::hash::{BuildHasher, RandomState};
        let word = || RandomState::new().hash_one(0_u64);
        Seed([word(), word()])
    }

    /// The seed's two words, for a file that will be merged with others.
    #[must_use]
    pub const fn words(&self) -> [u64; 2] {
        self.0
    }

    /// Word `number` of the endless sequence that follows from the seed and the purpose.
    #[must_use]
    pub const fn word(&self, purpose: Purpose, number: u64) -> u64 {
        let place = (purpose as u64) << 32 | number;
        let first = finish(self.0[0] ^ place.wrapping_mul(SPREAD));
        finish(first.wrapping_add(self.0[1]).wrapping_add(place))
    }
}

/// The finalizer of splitmix64 (Steele, Lea and Flood, 2014): a bijection without patterns.
const fn finish(word: u64) -> u64 {
    let word = word.wrapping_add(SPREAD);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The purposes for which secrets are derived, so that no two sketches share their rows. Their numbers are in
/// files; some are those of sketches in `rigs/papers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The hash of keys.
    Key,
    /// `CountMin`.
    CountMin = 2,
    /// `CountSketch`.
    CountSketch,
    /// `FlowRadar`: cells, then filter.
    FlowRadar,
    /// `FlajoletMartin`.
    FlajoletMartin,
    /// `LinearCounting`.
    LinearCounting,
    /// [`crate::Mrac`].
    Mrac,
    /// `Modular`: the hash of `Reversible`.
    Modular,
    /// `TwoLevel`.
    TwoLevel,
    /// `UnivMon`: sampling.
    UnivMon,
    /// `Coco`.
    Coco,
    /// `Elastic`.
    Elastic,
    /// [`crate::SpreadSketch`].
    Spread = 14,
}

/// A key of `W` 64-bit words with its hash, which is computed once for all sketches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<const W: usize> {
    /// The key: `W` words of 64 bits.
    pub key: [u64; W],
    /// The key's hash under the shared [`KeyHash`].
    pub hash: u64,
}

impl<const W: usize> Default for Item<W> {
    fn default() -> Item<W> {
        Item { key: [0; W], hash: 0 }
    }
}

/// The counts to add to a key: one packet, or the packets that an aggregator or a flow table has added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<const W: usize, N = ()> {
    /// The key to which the counts belong: `W` words of 64 bits.
    pub key: [u64; W],
    /// The number of packets to add to the key.
    pub packets: u64,
    /// The number of bytes to add to the key.
    pub bytes: u64,
    /// Further information about these packets.
    pub note: N,
}

impl<const W: usize> Update<W> {
    /// Returns the update for one packet of this many bytes.
    #[inline(always)]
    #[must_use]
    pub const fn packet(key: [u64; W], bytes: u64) -> Update<W> {
        Update { key, packets: 1, bytes, note: () }
    }
}

/// Information that is kept with a key besides its counts.
pub trait Note: Copy + Default {
    /// Adds the information about later packets.
    fn join(&mut self, later: &Self);
}

impl Note for () {
    fn join(&mut self, (): &()) {}
}

impl Note for weir_packet::Observed {
    #[inline(always)]
    fn join(&mut self, later: &weir_packet::Observed) {
        weir_packet::Observed::join(self, later);
    }
}

/// The keyed hash of keys of up to [`KEY_WORDS_MAX`] words.
#[derive(Clone, Copy)]
pub struct KeyHash {
    /// A secret for each word; the words are taken in pairs.
    words: [u64; KEY_WORDS_MAX + 1],
    last: [u64; 2],
}

impl std::fmt::Debug for KeyHash {
    /// Does not print the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHash")
    }
}

impl KeyHash {
    /// The hash that follows from a seed.
    #[must_use]
    pub fn new(seed: &Seed) -> KeyHash {
        let secret = |number: usize| seed.word(Purpose::Key, number as u64);
        KeyHash { words: std::array::from_fn(secret), last: [secret(100), secret(101) | 1] }
    }

    /// Returns the hash of a key. The products of pairs of words are independent of each other.
    #[inline(always)]
    #[must_use]
    pub fn hash<const W: usize>(&self, key: &[u64; W]) -> u64 {
        const { assert!(W > 0 && W <= KEY_WORDS_MAX, "a key has one to five words") };
        let mut sum = self.last[0];
        let mut word = 0;
        while word < W {
            let second = if word + 1 < W { key[word + 1] } else { 0 };
            sum = sum.wrapping_add(fold(key[word] ^ self.words[word], second ^ self.words[word + 1]));
            word += 2;
        }
        fold(sum, self.last[1])
    }

    /// Returns a key with its hash.
    #[inline(always)]
    #[must_use]
    pub fn item<const W: usize>(&self, key: [u64; W]) -> Item<W> {
        Item { key, hash: self.hash(&key) }
    }
}

/// The secrets with which one sketch derives its rows from a key's hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Lanes([[u64; 2]; LANES_MAX / 2]);

impl std::fmt::Debug for Lanes {
    /// Does not print the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lanes")
    }
}

impl Lanes {
    /// The secrets of the sketch with this purpose; `part` distinguishes the parts of one sketch.
    pub fn new(seed: &Seed, purpose: Purpose, part: u64) -> Lanes {
        Lanes(std::array::from_fn(|pair| {
            let number = part << 8 | (pair as u64) << 1;
            [seed.word(purpose, number), seed.word(purpose, number + 1) | 1]
        }))
    }

    /// Sixty-four bits for a hash; `pair` is below [`LANES_MAX`] / 2.
    #[inline(always)]
    pub fn bits(&self, hash: u64, pair: usize) -> u64 {
        let [add, multiply] = self.0[pair];
        fold(hash ^ add, multiply)
    }

    /// Thirty-two bits for each of `D` rows.
    #[inline(always)]
    pub fn rows<const D: usize>(&self, hash: u64) -> [u32; D] {
        const { assert!(D <= LANES_MAX, "a sketch has more rows than there are lanes") };
        let mut rows = [0; D];
        let mut row = 0;
        while row < D {
            let bits = self.bits(hash, row / 2);
            rows[row] = (bits >> 32) as u32;
            if row + 1 < D {
                rows[row + 1] = bits as u32;
            }
            row += 2;
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_key_changes_half_of_the_hash() {
        let hash = KeyHash::new(&Seed::new([1, 2]));
        for word in 0..5 {
            for bit in 0..64 {
                let changed: u32 = (0..200_u64)
                    .map(|n| {
                        let key: [u64; 5] = std::array::from_fn(|i| finish(n * 5 + i as u64));
                        let mut other = key;
                        other[word] ^= 1 << bit;
                        (hash.hash(&key) ^ hash.hash(&other)).count_ones()
                    })
                    .sum();
                assert!((5900..6900).contains(&changed), "word {word}, bit {bit}: {changed} of 12800");
            }
        }
    }

    #[test]
    fn the_lanes_of_consecutive_keys_are_uniform_and_independent() {
        let seed = Seed::new([7, 8]);
        let (hash, lanes) = (KeyHash::new(&seed), Lanes::new(&seed, Purpose::CountMin, 0));
        let mut counts = vec![[0_u32; 256]; 8];
        let mut pairs = vec![[0_u32; 256]; 7];
        const KEYS: u64 = 256 * 400;
        for key in 0..KEYS {
            let rows = lanes.rows::<8>(hash.hash(&[key]));
            for (row, lane) in rows.iter().enumerate() {
                counts[row][below(*lane, 256)] += 1;
            }
            for row in 0..7 {
                pairs[row][below(rows[row], 16) * 16 + below(rows[row + 1], 16)] += 1;
            }
        }
        for counts in counts.iter().chain(&pairs) {
            let chi: f64 = counts.iter().map(|&n| (f64::from(n) - 400.0).powi(2) / 400.0).sum();
            // 255 degrees of freedom: mean 255, standard deviation 22.6.
            assert!((130.0..400.0).contains(&chi), "{chi}");
        }
    }

    #[test]
    fn another_seed_is_another_hash() {
        let [one, other] = [Seed::new([1, 2]), Seed::new([1, 3])].map(|seed| KeyHash::new(&seed));
        assert!((0..1000).all(|key| one.hash(&[key]) != other.hash(&[key])));
    }
}
