//! Rules and their port ranges. A range is cut into prefixes, so that only keys and masks are stored.

use super::TUPLES_MAX;
use crate::Full;
use thiserror::Error;

/// The largest number of ranges in a rule: a source and a destination port.
pub const RANGES_MAX: usize = 2;

/// The largest number of entries that one rule may be cut into.
pub const PIECES_MAX: usize = 256;

/// Bits in a port number.
const PORT_BITS: u32 = 16;

/// A range of values of a 16-bit field of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// Index of the key word.
    pub word: usize,
    /// Position of the field's lowest bit in that word.
    pub shift: u32,
    /// Lowest value that matches.
    pub low: u16,
    /// Highest value that matches.
    pub high: u16,
}

/// A rule: matches keys that equal `key` wherever `mask` has ones, and that lie in all ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<const W: usize> {
    /// Unique in the table; the result of a look-up.
    pub id: u32,
    /// The lowest number wins.
    pub priority: u32,
    /// The value to match; bits outside the mask are ignored.
    pub key: [u64; W],
    /// The bits to match. In the field of a range, the range overrides these bits.
    pub mask: [u64; W],
    /// Ranges of fields that do not overlap.
    pub ranges: [Option<PortRange>; RANGES_MAX],
}

impl<const W: usize> Default for Rule<W> {
    fn default() -> Rule<W> {
        Rule { id: 0, priority: 0, key: [0; W], mask: [0; W], ranges: [None; RANGES_MAX] }
    }
}

impl<const W: usize> Rule<W> {
    /// The rule's position in the order of rules: the lowest wins.
    pub(super) fn rank(&self) -> u64 {
        u64::from(self.priority) << 32 | u64::from(self.id)
    }
}

/// Why a rule was not inserted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AclError {
    /// There is no room for the rule or its entries.
    #[error("{Full}")]
    Full,
    /// There are already [`TUPLES_MAX`] masks.
    #[error("more than {TUPLES_MAX} different masks")]
    TooManyTuples,
    /// The ranges cut the rule into more than [`PIECES_MAX`] entries.
    #[error("the ranges of the rule make more than {PIECES_MAX} entries")]
    TooManyPieces,
    /// A range is empty, overlaps the other, or lies outside the key.
    #[error("a range is empty, overlaps the other or lies outside the key")]
    BadRange,
    /// A rule with this id exists.
    #[error("rule {0} already exists")]
    Exists(u32),
}

/// A part of a rule, without ranges.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<const W: usize> {
    pub key: [u64; W],
    pub mask: [u64; W],
}

/// Cuts a rule into parts without ranges.
pub(super) fn pieces<const W: usize>(rule: &Rule<W>) -> Result<Vec<Piece<W>>, AclError> {
    let mut pieces = vec![Piece { key: rule.key, mask: rule.mask }];
    let mut fields = [0; W];
    for range in rule.ranges.iter().flatten() {
        let field = field_of(range).filter(|_| range.word < W).ok_or(AclError::BadRange)?;
        if fields[range.word] & field != 0 {
            return Err(AclError::BadRange);
        }
        fields[range.word] |= field;
        let parts = prefixes(range.low, range.high);
        if parts.len() * pieces.len() > PIECES_MAX {
            return Err(AclError::TooManyPieces);
        }
        let cut =
            |piece: &Piece<W>| parts.iter().map(|&part| with_field(*piece, range, part)).collect::<Vec<_>>();
        pieces = pieces.iter().flat_map(cut).collect();
    }
    for piece in &mut pieces {
        for word in 0..W {
            piece.key[word] &= piece.mask[word];
        }
    }
    Ok(pieces)
}

/// Returns the bits of a range's field; `None` if they do not fit the word or the range is empty.
fn field_of(range: &PortRange) -> Option<u64> {
    (range.shift <= u64::BITS - PORT_BITS && range.low <= range.high)
        .then(|| u64::from(u16::MAX) << range.shift)
}

/// Sets a field of a piece to a value and mask.
fn with_field<const W: usize>(mut piece: Piece<W>, range: &PortRange, (value, mask): (u16, u16)) -> Piece<W> {
    let field = u64::from(u16::MAX) << range.shift;
    piece.mask[range.word] = piece.mask[range.word] & !field | u64::from(mask) << range.shift;
    piece.key[range.word] = piece.key[range.word] & !field | u64::from(value) << range.shift;
    piece
}

/// Returns the fewest (value, mask) pairs that cover a range: from the low end, always the largest aligned
/// block that fits.
pub(super) fn prefixes(low: u16, high: u16) -> Vec<(u16, u16)> {
    let (mut low, high) = (u32::from(low), u32::from(high));
    let mut parts = Vec::new();
    while low <= high {
        let aligned = low.trailing_zeros().min(PORT_BITS);
        let size = 1 << aligned.min((high - low + 1).ilog2());
        parts.push((low as u16, !(size - 1) as u16));
        low += size;
    }
    parts
}
