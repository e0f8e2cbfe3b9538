//! How the rules of an ACL pipe lie in a map: bit vectors (Lakshman and Stiliadis, SIGCOMM 1998) with a
//! summary in front (Baboescu and Varghese, SIGCOMM 2001).
//!
//! Rules are cut into *pieces* that compare each byte of the key on its own: a masked value is one piece, a
//! range of ports at most three. Pieces are numbered by precedence. For every byte of the key and each of its
//! 256 values there is a row with a bit for each piece that the value satisfies; the rows of a packet's bytes
//! are combined by AND, and the first bit left is the piece that wins. In front of a row, a summary has a bit
//! for each word of 64 pieces that is not 0, so that a look-up reads only words in which every byte has
//! candidates: the cost grows with the bytes of the key, but hardly with the number of rules.
//!
//! The compiled program depends only on [`AclShape`], so rules can change without compiling again as long as
//! they fit.

use crate::coverage::KEY_MAX;
use crate::layout::{record_bytes, value_bytes};
use weir_packet::Field;
use weir_program::{Entry, EntryMatch, Pipe};

/// The maximum size of a map's only value in bytes: the largest block that the kernel allocates.
pub const TABLE_MAX: usize = 1 << 22;

/// The maximum number of words in a row: the summary has a bit for each word.
const WORDS_MAX: usize = 64;

/// The maximum number of fields: the first byte of the key has a bit for each.
const FIELDS_MAX: usize = 8;

/// A de Bruijn sequence: multiplied by a power of two, it has a different number in its upper six bits for
/// each power.
pub const DE_BRUIJN: u64 = 0x03f7_9d71_b4cb_0a89;

/// Bytes of the table that these six bits index.
const POSITIONS: usize = 64;

/// The sizes of a pipe's table, and where its parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclShape {
    /// The fields, in the order of the entries' matches.
    pub fields: Vec<Field>,
    /// Words of 64 pieces in a row, a power of two.
    pub words: usize,
    /// Room for records, a power of two.
    pub records: usize,
    /// Bytes of a record.
    record: usize,
}

impl AclShape {
    /// Returns the shape for a pipe's rules, or `None` if they do not fit a table. If there is room, half as
    /// many rules can be added later.
    pub fn of(pipe: &Pipe) -> Option<AclShape> {
        let fields: Vec<Field> = pipe.varying().map(|one| one.field).collect();
        let pieces: usize = pipe.entries.iter().map(|entry| pieces(&fields, &entry).len()).sum();
        let rules = pipe.entries.len();
        let shape = |pieces: usize, rules: usize| {
            let words = pieces.div_ceil(64).max(1).next_power_of_two();
            let records = rules.max(1).next_power_of_two();
            let shape = AclShape { words, records, record: record_bytes(pipe), fields: fields.clone() };
            let fits = words <= WORDS_MAX
                && records <= usize::from(u16::MAX)
                && shape.fields.len() <= FIELDS_MAX
                && shape.key_bytes() <= 8 + KEY_MAX
                && shape.bytes() <= TABLE_MAX;
            fits.then_some(shape)
        };
        shape(pieces + pieces / 2, rules + rules / 2).or_else(|| shape(pieces, rules))
    }

    /// Whether a pipe's rules fit.
    pub fn has_room_for(&self, pipe: &Pipe) -> bool {
        let pieces: usize = pipe.entries.iter().map(|entry| pieces(&self.fields, &entry).len()).sum();
        pieces <= 64 * self.words && pipe.entries.len() <= self.records
    }

    /// Bytes of a row: the summary, unless there is only one word, and the words.
    pub fn row(&self) -> usize {
        8 * if self.words > 1 { 1 + self.words } else { 1 }
    }

    /// Where the rows of the first byte of the key are; those of the next bytes follow.
    pub fn rows(&self) -> usize {
        POSITIONS
    }

    /// Bytes from the rows of one byte of the key to those of the next.
    pub fn rows_of_a_byte(&self) -> usize {
        256 * self.row()
    }

    /// Where the number of each piece's record is, 16 bits each.
    pub fn owners(&self) -> usize {
        self.rows() + self.places().len() * self.rows_of_a_byte()
    }

    /// Where the records are, in the order of the pipe's entries.
    pub fn all_records(&self) -> usize {
        self.owners() + 2 * 64 * self.words
    }

    /// Bytes of the whole table.
    pub fn bytes(&self) -> usize {
        self.all_records() + self.records * self.record
    }

    /// Bytes of the key as it lies on the stack: a word for the fields that the packet has, and words for
    /// their values, in network order.
    pub fn key_bytes(&self) -> usize {
        8 + self.fields.iter().map(|field| value_bytes(*field)).sum::<usize>()
    }

    /// Where in the key the bytes are that have rows: the first one says which fields the packet has.
    pub fn places(&self) -> Vec<usize> {
        let mut places = vec![0];
        let mut at = 8;
        for field in &self.fields {
            places.extend(at..at + bytes_of(*field));
            at += value_bytes(*field);
        }
        places
    }
}

/// Bytes that a field's value takes.
pub fn bytes_of(field: Field) -> usize {
    usize::from(field.spec().bits).div_ceil(8)
}

/// The values of a byte that satisfy a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    Masked { value: u8, mask: u8 },
    Between(u8, u8),
}

impl Bytes {
    const ALL: Bytes = Bytes::Masked { value: 0, mask: 0 };

    fn has(self, byte: u8) -> bool {
        match self {
            Bytes::Masked { value, mask } => byte & mask == value,
            Bytes::Between(first, last) => first <= byte && byte <= last,
        }
    }
}

/// What a piece requires of each byte that has rows.
type Piece = Vec<Bytes>;

/// The table of a pipe, with the records of its entries.
pub fn table(shape: &AclShape, pipe: &Pipe, mut record: impl FnMut(usize, &Entry) -> Vec<u8>) -> Vec<u8> {
    let entries: Vec<Entry> = pipe.entries.iter().collect();
    let mut order: Vec<usize> = (0..entries.len()).collect();
    // A stable sort: of equal priorities, the first written wins.
    order.sort_by_key(|&at| entries[at].priority);
    let mut all: Vec<(usize, Piece)> = Vec::new();
    for at in order {
        all.extend(pieces(&shape.fields, &entries[at]).into_iter().map(|piece| (at, piece)));
    }
    let mut bytes = vec![0; shape.bytes()];
    bytes[..POSITIONS].copy_from_slice(&positions());
    for byte in 0..shape.places().len() {
        let at = shape.rows() + byte * shape.rows_of_a_byte();
        let wanted = all.iter().map(|(_, piece)| piece[byte]);
        write_rows(shape, wanted, &mut bytes[at..at + shape.rows_of_a_byte()]);
    }
    for (number, (owner, _)) in all.iter().enumerate() {
        let at = shape.owners() + 2 * number;
        bytes[at..at + 2].copy_from_slice(&(*owner as u16).to_ne_bytes());
    }
    for (at, entry) in entries.iter().enumerate() {
        let start = shape.all_records() + at * shape.record;
        bytes[start..start + shape.record].copy_from_slice(&record(at, entry));
    }
    bytes
}

/// The rows of one byte of the key.
fn write_rows(shape: &AclShape, wanted: impl Iterator<Item = Bytes>, bytes: &mut [u8]) {
    let mut rows = vec![0_u64; 256 * shape.words];
    let mut always = vec![0_u64; shape.words];
    for (piece, wanted) in wanted.enumerate() {
        let (word, bit) = (piece / 64, 1 << (piece % 64));
        if wanted == Bytes::ALL {
            always[word] |= bit;
            continue;
        }
        for value in (0..=255).filter(|value| wanted.has(*value)) {
            rows[usize::from(value) * shape.words + word] |= bit;
        }
    }
    for (row, bytes) in rows.chunks_mut(shape.words).zip(bytes.chunks_mut(shape.row())) {
        row.iter_mut().zip(&always).for_each(|(word, always)| *word |= always);
        let mut words = row.to_vec();
        if shape.words > 1 {
            let bit = |(at, word): (usize, &u64)| u64::from(*word != 0) << at;
            words.insert(0, row.iter().enumerate().map(bit).fold(0, |all, bit| all | bit));
        }
        for (word, bytes) in words.iter().zip(bytes.chunks_mut(8)) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
    }
}

/// Which bit a power of two is, by the upper six bits of its product with the de Bruijn sequence.
fn positions() -> [u8; POSITIONS] {
    let mut positions = [0; POSITIONS];
    for bit in 0..64_u8 {
        positions[(DE_BRUIJN.wrapping_shl(bit.into()) >> 58) as usize] = bit;
    }
    positions
}

/// The pieces of a rule.
fn pieces(fields: &[Field], entry: &Entry) -> Vec<Piece> {
    let wants = |matched: &EntryMatch| u8::from(*matched != EntryMatch::Any);
    let needed = entry.matches.iter().zip(0..8).fold(0, |all, (matched, at)| all | wants(matched) << at);
    let mut all = vec![vec![Bytes::Masked { value: needed, mask: needed }]];
    for (field, matched) in fields.iter().zip(&entry.matches) {
        let alternatives = alternatives(bytes_of(*field), *matched);
        let with = |piece: &Piece| {
            let piece = piece.clone();
            alternatives.iter().map(move |wanted| [piece.as_slice(), wanted].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// What a match requires of the bytes of a value; any of the alternatives satisfies it.
fn alternatives(count: usize, matched: EntryMatch) -> Vec<Piece> {
    let byte = |value: u128, at: usize| (value >> (8 * (count - 1 - at))) as u8;
    match matched {
        EntryMatch::Any => vec![vec![Bytes::ALL; count]],
        EntryMatch::Masked { value, mask } => {
            vec![
                (0..count).map(|at| Bytes::Masked { value: byte(value, at), mask: byte(mask, at) }).collect(),
            ]
        }
        EntryMatch::Range { first, last } => between(count, first, last),
        _ => unreachable!("an ACL's entries have masks and ranges"),
    }
}

/// The pieces of a range of one or two bytes: those with the first upper byte, those between, and those with
/// the last.
fn between(count: usize, first: u16, last: u16) -> Vec<Piece> {
    let ([upper, lower], [last_upper, last_lower]) = (first.to_be_bytes(), last.to_be_bytes());
    if count == 1 {
        return vec![vec![Bytes::Between(lower, last_lower)]];
    }
    if upper == last_upper {
        return vec![vec![Bytes::Between(upper, upper), Bytes::Between(lower, last_lower)]];
    }
    let mut all = Vec::new();
    let (mut from, mut to) = (u16::from(upper), u16::from(last_upper));
    if lower > 0 {
        all.push(vec![Bytes::Between(upper, upper), Bytes::Between(lower, 0xff)]);
        from += 1;
    }
    if last_lower < 0xff {
        all.push(vec![Bytes::Between(last_upper, last_upper), Bytes::Between(0, last_lower)]);
        to -= 1;
    }
    if from <= to {
        all.push(vec![Bytes::Between(from as u8, to as u8), Bytes::ALL]);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_at_most_three_pieces_and_nothing_else() {
        let ranges =
            [(0, 65535), (0, 1023), (1024, 65535), (53, 80), (80, 443), (80, 80), (255, 256), (1, 0xfffe)];
        for (first, last) in ranges {
            let pieces = between(2, first, last);
            assert!(pieces.len() <= 3);
            for value in 0..=u16::MAX {
                let [upper, lower] = value.to_be_bytes();
                let hit = pieces.iter().filter(|piece| piece[0].has(upper) && piece[1].has(lower)).count();
                assert_eq!(hit, usize::from(first <= value && value <= last), "{value} in {first} to {last}");
            }
        }
    }

    #[test]
    fn the_table_of_positions_finds_every_bit() {
        let positions = positions();
        for bit in 0..64 {
            assert_eq!(positions[((1_u64 << bit).wrapping_mul(DE_BRUIJN) >> 58) as usize], bit);
        }
    }
}
