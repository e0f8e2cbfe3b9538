//! The keyed mixing used where a table must hash by itself: once per tuple in [`crate::acl`], and on the control path.
//!
//! Not a message authentication code: with a secret seed it keeps apart keys that were not chosen by watching its output.
//! One multiplication a word, folded high onto low, so that every input bit reaches every output bit.

/// An odd constant with no pattern (the golden ratio), as in splitmix64.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes a word into a state.
#[inline(always)]
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    fold(state ^ word ^ SPREAD, SPREAD ^ state.rotate_left(32))
}

/// Multiplies and folds: every bit of the answer depends on every bit of both factors, unless one of them is 0.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hashes the masked bits of a key under a secret a word. Words are taken in pairs whose products wait for nothing, so
/// that the hashes of a batch overlap. Nobody who does not know the secret can make a factor 0.
#[inline(always)]
pub(crate) fn hash_masked<const W: usize>(key: &[u64; W], mask: &[u64; W], secret: &[u64; W]) -> u64 {
    let factor = |word: usize| (key[word] & mask[word]) ^ secret[word];
    let mut hash = 0;
    for word in (0..W).step_by(2) {
        hash ^= fold(factor(word), if word + 1 < W { factor(word + 1) } else { SPREAD });
    }
    hash
}
