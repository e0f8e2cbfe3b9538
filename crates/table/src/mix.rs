//! Keyed mixing for tables that compute hashes themselves: once per tuple in [`crate::acl`], and on the
//! control path.
//!
//! This is not a message authentication code. With a secret seed it spreads keys well, as long as an attacker
//! cannot choose keys by watching its output. Each word costs one multiplication, whose high half is folded
//! onto the low one so that every input bit reaches every output bit.

/// An odd constant without a pattern (the golden ratio), as in splitmix64.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes a word into a state.
#[inline(always)]
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    fold(state ^ word ^ SPREAD, SPREAD ^ state.rotate_left(32))
}

/// Multiplies and folds: every bit of the result depends on every bit of both factors, unless one of them is
/// 0.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hashes the masked bits of a key with one secret per word. Words are taken in pairs whose products are
/// independent, so that the hashes of a batch overlap. Without the secret, it is impossible to choose a key
/// that makes a factor 0.
#[inline(always)]
pub(crate) fn hash_masked<const W: usize>(key: &[u64; W], mask: &[u64; W], secret: &[u64; W]) -> u64 {
    let factor = |word: usize| (key[word] & mask[word]) ^ secret[word];
    let mut hash = 0;
    for word in (0..W).step_by(2) {
        hash ^= fold(factor(word), if word + 1 < W { factor(word + 1) } else { SPREAD });
    }
    hash
}
