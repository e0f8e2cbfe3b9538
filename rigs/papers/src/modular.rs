//! Modular hashing: a hash of numbers that can be inverted.
//!
//! Schweller, Gupta, Parsons and Chen: Reversible sketches for efficient and accurate change detection over
//! network data streams, IMC 2004, and Schweller et al., IEEE/ACM Transactions on Networking 15(5), 2007. A
//! number of `Q` bytes is mangled by a secret bijection, so that adjacent addresses do not look alike. Each
//! byte is then hashed separately to a few bits, with a random table, and the bits of all bytes together form
//! the column of a row. Given some columns of each row, the numbers that lead to them are found byte by byte,
//! pruning whatever a row does not allow.
//!
//! There are four rows for each of `L` words: a look-up of one byte returns its bits in four rows at once.

use weir_sketch::hash::{Purpose, Seed};

/// Rows for each word of a look-up, of 16 bits each.
pub const ROWS: usize = 4;

/// The maximum number of bits of a column.
pub const BITS_MAX: u32 = 16;

/// The maximum number of values of the bits that come from one byte: a quarter of a column's bits.
const BYTE_BITS_ALL: usize = 1 << (BITS_MAX / 4);

/// The maximum number of columns of a row that are inverted at a time; with more columns, every number
/// appears to match.
pub const COLUMNS_MAX: usize = 256;

/// Words of a set of columns.
const SET: usize = COLUMNS_MAX / 64;

/// The number of steps after which a search is abandoned: about a second.
const STEPS_MAX: u64 = 50_000_000;

/// The maximum number of numbers that are returned.
const NUMBERS_MAX: usize = 1 << 16;

/// Number of draws of a byte's table, of which the one whose values differ most is used. With 16 bits in all
/// rows, six in ten draws have no equal values.
const DRAWS: usize = 16;

/// A set of columns of one row, by their place in a list.
type Set = [u64; SET];

/// The columns of a number, see [`Modular::columns_of`].
#[derive(Clone, Copy)]
pub(crate) struct Columns<const L: usize>(pub(crate) [u64; L]);

impl<const L: usize> Default for Columns<L> {
    fn default() -> Columns<L> {
        Columns([0; L])
    }
}

/// Hashes of numbers of `Q` bytes (4 or 8) to the columns of `4 * L` rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modular<const Q: usize, const L: usize> {
    /// For each byte and each of its values, the bits in each row, where they belong in a column.
    bits: Vec<[u64; L]>,
    /// Bits of a column: the lowest from byte 0, then those from byte 1, and so on.
    column_bits: u32,
    add: u64,
    multiply: [u64; 2],
}

/// The numbers that lead to given columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reversed {
    /// The numbers, in unspecified order.
    pub numbers: Vec<u64>,
    /// All were found: there were not too many columns, and the search did not take too long.
    pub is_complete: bool,
}

impl<const Q: usize, const L: usize> Modular<Q, L> {
    /// Creates the hash to 2^`column_bits` columns, where `column_bits` is clamped to `Q` to 16. The lower
    /// bytes contribute one bit more than the others if `Q` does not divide it.
    #[must_use]
    pub fn new(column_bits: u32, seed: &Seed) -> Self {
        const { assert!(Q == 4 || Q == 8, "numbers have four or eight bytes") };
        let column_bits = column_bits.clamp(Q as u32, BITS_MAX);
        let secret = |number| seed.word(Purpose::Modular, number);
        let byte = |byte: usize| {
            let drawn = (0..DRAWS).map(|draw| Self::draw(byte, draw, column_bits, seed));
            drawn.min_by_key(|bits| alike(bits)).unwrap_or_default()
        };
        let bits = (0..Q).flat_map(byte).collect();
        Modular { bits, column_bits, add: secret(1 << 30), multiply: [2, 3].map(|n| secret(n << 30) | 1) }
    }

    /// Draws, for each value of a byte, its bits in each row.
    fn draw(byte: usize, draw: usize, column_bits: u32, seed: &Seed) -> Vec<[u64; L]> {
        let mut bits = vec![[0; L]; 256];
        let (start, bits_of_byte) = Self::part(byte, column_bits);
        for row in 0..ROWS * L {
            let values = balanced(bits_of_byte, seed, ((draw * Q + byte) * ROWS * L + row) as u64);
            let shift = 16 * (row % ROWS) as u32 + start;
            for (bits, bits_of) in bits.iter_mut().zip(values) {
                bits[row / ROWS] |= u64::from(bits_of) << shift;
            }
        }
        bits
    }

    /// Where a byte's bits begin in a column, and how many there are.
    const fn part(byte: usize, column_bits: u32) -> (u32, u32) {
        let (byte, all) = (byte as u32, Q as u32);
        let (each, more) = (column_bits / all, column_bits % all);
        if byte < more { (byte * (each + 1), each + 1) } else { (byte * each + more, each) }
    }

    /// The bits of a column that come from a byte, at most 16.
    fn bits_from(&self, byte: usize, column: usize) -> usize {
        let (start, bits) = Self::part(byte, self.column_bits);
        column >> start & ((1 << bits) - 1)
    }

    /// Number of columns of a row.
    #[must_use]
    pub fn columns(&self) -> usize {
        1 << self.column_bits
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<[u64; L]>() * self.bits.len()
    }

    /// Returns the columns of a number, four rows of 16 bits in each word.
    #[inline(always)]
    #[must_use]
    pub fn columns_of(&self, number: u64) -> [u64; L] {
        let mangled = self.mangle(number);
        let mut columns = [0; L];
        for byte in 0..Q {
            let bits = &self.bits[byte * 256 + (mangled >> (8 * byte) & 255) as usize];
            for (columns, bits) in columns.iter_mut().zip(bits) {
                *columns |= bits;
            }
        }
        columns
    }

    /// Returns the column of one row in [`Modular::columns_of`].
    #[inline(always)]
    #[must_use]
    pub fn column(columns: &[u64; L], row: usize) -> usize {
        (columns[row / ROWS] >> (16 * (row % ROWS)) & 0xffff) as usize
    }

    const MASK: u64 = if Q == 8 { u64::MAX } else { u32::MAX as u64 };
    const HALF: u32 = 4 * Q as u32;

    #[inline(always)]
    fn mangle(&self, number: u64) -> u64 {
        debug_assert!(number <= Self::MASK, "a number has more bytes than the hash was made for");
        let mut word = number.wrapping_add(self.add) & Self::MASK;
        for multiply in self.multiply {
            word = word.wrapping_mul(multiply) & Self::MASK;
            word ^= word >> Self::HALF;
        }
        word
    }

    fn restore(&self, mangled: u64) -> u64 {
        let mut word = mangled;
        for multiply in self.multiply.into_iter().rev() {
            word ^= word >> Self::HALF;
            word = word.wrapping_mul(inverse(multiply)) & Self::MASK;
        }
        word.wrapping_sub(self.add) & Self::MASK
    }

    /// Returns the numbers that lead to one of the given columns in every row.
    #[must_use]
    pub fn reverse(&self, columns: &[Vec<usize>]) -> Reversed {
        let is_complete = columns.iter().all(|columns| columns.len() <= COLUMNS_MAX);
        let mut search = Search::new(self, columns);
        let all = columns.iter().map(|columns| first(columns.len())).collect::<Vec<Set>>();
        search.byte(0, 0, &all);
        Reversed { numbers: search.numbers, is_complete: is_complete && search.steps < STEPS_MAX }
    }
}

/// A search for numbers, byte by byte.
struct Search<'a, const Q: usize, const L: usize> {
    modular: &'a Modular<Q, L>,
    /// For each row, byte, and bits of that byte: the columns that have those bits there.
    having: Vec<Set>,
    numbers: Vec<u64>,
    steps: u64,
}

impl<'a, const Q: usize, const L: usize> Search<'a, Q, L> {
    fn new(modular: &'a Modular<Q, L>, columns: &[Vec<usize>]) -> Self {
        let mut having = vec![[0; SET]; ROWS * L * Q * BYTE_BITS_ALL];
        for (row, columns) in columns.iter().enumerate() {
            for (place, column) in columns.iter().take(COLUMNS_MAX).enumerate() {
                for byte in 0..Q {
                    let bits = modular.bits_from(byte, *column);
                    having[(row * Q + byte) * BYTE_BITS_ALL + bits][place / 64] |= 1 << (place % 64);
                }
            }
        }
        Search { modular, having, numbers: Vec::new(), steps: 0 }
    }

    /// Tries all values of a byte, given the lower ones and the columns that these allow.
    fn byte(&mut self, byte: usize, lower: u64, allowed: &[Set]) {
        if byte == Q {
            self.numbers.push(self.modular.restore(lower));
            return;
        }
        for value in 0..256 {
            if self.numbers.len() >= NUMBERS_MAX || self.steps >= STEPS_MAX {
                self.steps = STEPS_MAX;
                return;
            }
            self.steps += 1;
            let mut narrowed = [[0; SET]; 8];
            if self.narrow(byte, value, allowed, &mut narrowed) {
                self.byte(byte + 1, lower | (value as u64) << (8 * byte), &narrowed[..allowed.len()]);
            }
        }
    }

    /// Keeps the columns that have a byte's bits; false if a row has none left.
    fn narrow(&self, byte: usize, value: usize, allowed: &[Set], narrowed: &mut [Set; 8]) -> bool {
        let columns = &self.modular.bits[byte * 256 + value];
        allowed.iter().enumerate().all(|(row, allowed)| {
            let bits = self.modular.bits_from(byte, Modular::<Q, L>::column(columns, row));
            let having = &self.having[(row * Q + byte) * BYTE_BITS_ALL + bits];
            let kept: Set = std::array::from_fn(|word| allowed[word] & having[word]);
            narrowed[row] = kept;
            kept.iter().any(|word| *word != 0)
        })
    }
}

/// How many values of a byte have the same bits as another value in all rows: numbers with such bytes cannot
/// be distinguished.
fn alike<const L: usize>(bits: &[[u64; L]]) -> usize {
    let mut sorted = bits.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).filter(|pair| pair[0] == pair[1]).count()
}

/// The set of the first `columns` columns.
fn first(columns: usize) -> Set {
    std::array::from_fn(|word| match columns.saturating_sub(64 * word) {
        0 => 0,
        more @ 1..64 => (1 << more) - 1,
        _ => u64::MAX,
    })
}

/// A table of 256 values of `bits` bits, each equally often, in a secret order (Fisher and Yates).
fn balanced(bits: u32, seed: &Seed, part: u64) -> [u16; 256] {
    let mut values: [u16; 256] = std::array::from_fn(|value| value as u16 & ((1 << bits) - 1));
    for end in (1..256).rev() {
        let drawn = seed.word(Purpose::Modular, part << 8 | end as u64);
        values.swap(end, ((u128::from(drawn) * (end as u128 + 1)) >> 64) as usize);
    }
    values
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn columns<const Q: usize, const L: usize>(hash: &Modular<Q, L>, numbers: &[u64]) -> Vec<Vec<usize>> {
        (0..ROWS * L)
            .map(|row| {
                let columns = numbers.iter().map(|number| hash.columns_of(*number));
                let mut columns: Vec<usize> = columns.map(|c| Modular::<Q, L>::column(&c, row)).collect();
                columns.sort_unstable();
                columns.dedup();
                columns
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn numbers_are_found_from_their_columns(
            numbers in prop::collection::vec(any::<u32>(), 0..40),
            wide in prop::collection::vec(any::<u64>(), 0..40),
        ) {
            let numbers: Vec<u64> = numbers.into_iter().map(u64::from).collect();
            for bits in 14..=BITS_MAX {
                let hash = Modular::<4, 1>::new(bits, &Seed::new([1, 2]));
                let found = hash.reverse(&columns(&hash, &numbers));
                prop_assert!(found.is_complete);
                prop_assert!(numbers.iter().all(|number| found.numbers.contains(number)));
                prop_assert!(bits < BITS_MAX || found.numbers.len() <= numbers.len() + 3);
            }
            let hash = Modular::<8, 2>::new(16, &Seed::new([1, 2]));
            let found = hash.reverse(&columns(&hash, &wide));
            prop_assert!(found.is_complete && wide.iter().all(|number| found.numbers.contains(number)));
            prop_assert!(found.numbers.len() <= wide.len() + 3);
        }

        #[test]
        fn mangling_can_be_undone(number: u64) {
            let narrow = Modular::<4, 1>::new(16, &Seed::new([1, 2]));
            let number_of_32 = number & 0xffff_ffff;
            prop_assert_eq!(narrow.restore(narrow.mangle(number_of_32)), number_of_32);
            let wide = Modular::<8, 2>::new(16, &Seed::new([1, 2]));
            prop_assert_eq!(wide.restore(wide.mangle(number)), number);
        }
    }

    #[test]
    fn columns_are_uniform_for_neighbouring_addresses() {
        let hash = Modular::<4, 1>::new(8, &Seed::new([3, 4]));
        assert_eq!(hash.columns(), 256);
        for row in 0..ROWS {
            let mut counts = [0_u32; 256];
            for number in 0..25_600_u64 {
                counts[Modular::<4, 1>::column(&hash.columns_of(0x0a00_0000 + number), row)] += 1;
            }
            assert!(counts.iter().all(|count| (30..220).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn too_many_columns_are_an_incomplete_answer() {
        let hash = Modular::<4, 1>::new(16, &Seed::new([1, 2]));
        let found = hash.reverse(&vec![(0..300).collect::<Vec<usize>>(); 4]);
        assert!(!found.is_complete);
    }
}
