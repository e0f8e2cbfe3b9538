//! The keyed mixing used where a table must hash by itself: once per tuple in [`crate::acl`], and on the control path.
//!
//! Not a message authentication code: with a secret seed it keeps apart keys that were not chosen by watching its output.
//! One multiplication a word, folded high onto low, so that every input bit reaches every output bit.

/// An odd constant with no pattern (the golden ratio), as in splitmix64.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes a word into a state.
#[inline(always)]
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word ^ SPREAD) * u128::from(SPREAD ^ state.rotate_left(32));
    (product as u64) ^ ((product >> 64) as u64)
}
