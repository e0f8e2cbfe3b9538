//! Rules with masks, ranges and priorities: which one wins.
//!
//! Tuple space search (Srinivasan, SIGCOMM'99; the classifier of Open vSwitch): rules with the same mask form a tuple, and
//! within a tuple a masked key is found by hash. Tuples are visited in order of their best rule, and a packet is done as
//! soon as no later tuple can better what it has. A batch goes through tuple by tuple, so a mask is loaded once for 64
//! packets.
//!
//! The rule of the lowest priority number wins, of equal numbers the one of the lower id. Port ranges are cut into prefixes
//! (`1024..=65535` is six), each an entry of its own tuple.
//!
//! Promises: a refused insertion changes nothing. The entries of all tuples live in one index with a secret seed, sized
//! once.
//!
//! Costs: a few nanoseconds a packet and tuple. A range costs up to 30 entries and 16 tuples. Memory: about 60 + 8 W bytes
//! an entry, [`ENTRIES_PER_RULE`] entries a rule, resident as used.

use crate::mix::{hash_masked, mix};
use crate::store::{Record, Store};
use crate::{Exact, Full, InsertError};
use packet::Bits;

/// Ranges of a rule at most: a source and a destination port.
pub const RANGES_MAX: usize = 2;

/// Tuples at most: every packet may have to visit each, at a few nanoseconds.
pub const TUPLES_MAX: usize = 256;

/// Entries that one rule may be cut into at most.
pub const PIECES_MAX: usize = 256;

/// Entries planned for each rule: most have no range, and the common ranges are cut into two to six.
pub const ENTRIES_PER_RULE: usize = 8;

/// Size of the filter. Few tables use the entries planned for them, so four bits lead astray one visit in forty.
const FILTER_BITS_PER_ENTRY: usize = 4;

/// Removals that are put off at least before everything is looked at: see [`Acl::tidy`].
const UNTIDY_MIN: usize = 16;

/// Bits of a port.
const PORT_BITS: u32 = 16;

/// A range of a 16-bit field of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// Word of the key.
    pub word: usize,
    /// Lowest bit of the field in that word.
    pub shift: u32,
    /// Lowest value that matches.
    pub low: u16,
    /// Highest value that matches.
    pub high: u16,
}

/// A rule: matches keys that equal `key` where `mask` has ones, and lie in all ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<const W: usize> {
    /// Its name, unique in the table; what a look-up answers.
    pub id: u32,
    /// The lower wins.
    pub priority: u32,
    /// What is matched; bits outside the mask are ignored.
    pub key: [u64; W],
    /// Which bits are matched. The bits of a range's field are left to the range.
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
    /// Where it stands among the others: the lowest wins.
    fn rank(&self) -> u64 {
        u64::from(self.priority) << 32 | u64::from(self.id)
    }
}

/// Why a rule was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclError {
    /// No room for the rule or its entries.
    Full,
    /// There are [`TUPLES_MAX`] masks already.
    TooManyTuples,
    /// Its ranges cut it into more than [`PIECES_MAX`] entries.
    TooManyPieces,
    /// A range is empty, overlaps the other, or lies outside the key.
    BadRange,
    /// There is a rule with this id.
    Exists(u32),
}

impl std::fmt::Display for AclError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AclError::Full => Full.fmt(formatter),
            AclError::TooManyTuples => write!(formatter, "more than {TUPLES_MAX} different masks"),
            AclError::TooManyPieces => write!(formatter, "the ranges of the rule make more than {PIECES_MAX} entries"),
            AclError::BadRange => formatter.write_str("a range is empty, overlaps the other or lies outside the key"),
            AclError::Exists(id) => write!(formatter, "there is a rule {id} already"),
        }
    }
}

impl std::error::Error for AclError {}

/// A part of a rule without ranges.
#[derive(Clone, Copy, Debug)]
struct Piece<const W: usize> {
    key: [u64; W],
    mask: [u64; W],
}

/// The rules with one mask.
#[derive(Clone, Copy, Debug)]
struct Tuple<const W: usize> {
    mask: [u64; W],
    secret: [u64; W],
    /// Rank of its best rule.
    best: u64,
    /// Entries; none: the tuple is free.
    entries: u32,
}

impl<const W: usize> Tuple<W> {
    #[inline(always)]
    fn hash(&self, key: &[u64; W]) -> u64 {
        hash_masked(key, &self.mask, &self.secret)
    }
}

/// What an entry is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryKey<const W: usize> {
    words: [u64; W],
    tuple: u32,
}

/// The rules with one mask and one masked key.
#[derive(Clone, Copy, Debug)]
struct Entry<const W: usize> {
    key: EntryKey<W>,
    /// First of the links; its rank is `best`.
    first: u32,
    best: u64,
}

impl<const W: usize> Record for Entry<W> {
    type Key = EntryKey<W>;

    #[inline(always)]
    fn key(&self) -> &EntryKey<W> {
        &self.key
    }

    #[inline(always)]
    fn has(&self, key: &EntryKey<W>) -> bool {
        self.key == *key
    }

    fn vacant(next: u32) -> Entry<W> {
        Entry { key: EntryKey { words: [0; W], tuple: u32::MAX }, first: next, best: 0 }
    }

    fn next_vacant(&self) -> u32 {
        self.first
    }
}

/// Ends a list of links.
const NO_LINK: u32 = u32::MAX;

/// The ranks of an entry's rules, ascending lists in one slab.
#[derive(Debug)]
struct Links {
    links: Vec<(u64, u32)>,
    vacant: u32,
    free: usize,
}

impl Links {
    fn with_capacity(links: usize) -> Links {
        Links { links: Vec::with_capacity(links), vacant: NO_LINK, free: links }
    }

    /// Adds a rank to a list; returns its new first link.
    fn insert(&mut self, first: u32, rank: u64) -> Result<u32, Full> {
        if self.free == 0 {
            return Err(Full);
        }
        self.free -= 1;
        let (before, after) = self.around(first, rank);
        let new = self.add((rank, after));
        if before == NO_LINK {
            return Ok(new);
        }
        self.links[before as usize].1 = new;
        Ok(first)
    }

    /// Takes a rank out of a list; returns its new first link.
    fn remove(&mut self, first: u32, rank: u64) -> u32 {
        let (before, at) = self.around(first, rank);
        let Some(&(found, after)) = self.links.get(at as usize) else { return first };
        if found != rank {
            return first;
        }
        self.links[at as usize].1 = std::mem::replace(&mut self.vacant, at);
        self.free += 1;
        if before == NO_LINK {
            return after;
        }
        self.links[before as usize].1 = after;
        first
    }

    /// The last link below a rank and the one that follows it.
    fn around(&self, first: u32, rank: u64) -> (u32, u32) {
        let (mut before, mut at) = (NO_LINK, first);
        while let Some(&(found, next)) = self.links.get(at as usize).filter(|link| link.0 < rank) {
            debug_assert!(found < rank);
            (before, at) = (at, next);
        }
        (before, at)
    }

    fn add(&mut self, link: (u64, u32)) -> u32 {
        if self.vacant == NO_LINK {
            self.links.push(link);
            return self.links.len() as u32 - 1;
        }
        let at = self.vacant;
        self.vacant = std::mem::replace(&mut self.links[at as usize], link).1;
        at
    }
}

/// Which hashes have no entry: one bit for each value of their upper bits. Most visits to a tuple find nothing, and this
/// says so for a tenth of the price of two buckets. Bits of removed entries stay until [`Acl::tidy`].
#[derive(Debug)]
struct Filter {
    bits: Vec<u64>,
    shift: u32,
}

impl Filter {
    fn with_entries(entries: usize) -> Filter {
        let bits = entries.max(64).saturating_mul(FILTER_BITS_PER_ENTRY).next_power_of_two();
        Filter { bits: vec![0; bits / 64], shift: 64 - bits.ilog2() }
    }

    /// 1 if there may be an entry.
    #[inline(always)]
    fn may_have(&self, hash: u64) -> u64 {
        let bit = hash >> self.shift;
        self.bits[bit as usize / 64] >> (bit % 64) & 1
    }

    fn add(&mut self, hash: u64) {
        let bit = hash >> self.shift;
        self.bits[bit as usize / 64] |= 1 << (bit % 64);
    }
}

/// A table of rules over keys of `W` words.
#[derive(Debug)]
pub struct Acl<const W: usize> {
    seed: u64,
    rules: Exact<1, Rule<W>>,
    tuples: Vec<Tuple<W>>,
    /// Tuples in use, the one with the best rule first.
    visits: Vec<u32>,
    entries: Store<Entry<W>>,
    filter: Filter,
    links: Links,
    /// Removals since the last [`Acl::tidy`].
    untidy: usize,
}

impl<const W: usize> Acl<W> {
    /// An empty table for so many rules, [`ENTRIES_PER_RULE`] times as many entries, and those of one more rule that is cut
    /// into [`PIECES_MAX`]. `seed` is a secret of the process.
    #[must_use]
    pub fn with_capacity(rules: usize, seed: u64) -> Acl<W> {
        let entries = Store::with_capacity(rules.saturating_mul(ENTRIES_PER_RULE).saturating_add(PIECES_MAX));
        Acl {
            seed,
            rules: Exact::with_capacity(rules),
            tuples: Vec::with_capacity(TUPLES_MAX),
            visits: Vec::with_capacity(TUPLES_MAX),
            filter: Filter::with_entries(entries.capacity()),
            links: Links::with_capacity(entries.capacity()),
            entries,
            untidy: 0,
        }
    }

    /// Rules that fit, if their ranges are cut into [`ENTRIES_PER_RULE`] entries on average.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.rules.capacity()
    }

    /// Rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Different masks there are: what a look-up costs.
    #[must_use]
    pub fn tuples(&self) -> usize {
        self.visits.len()
    }

    /// A rule by its id.
    #[must_use]
    pub fn rule(&self, id: u32) -> Option<&Rule<W>> {
        let key = [u64::from(id)];
        self.rules.get(mix(self.seed, key[0]), &key).map(|row| self.rules.data(row))
    }

    /// All rules, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Rule<W>> {
        self.rules.iter().map(|(_, _, rule)| rule)
    }

    /// Enters a rule.
    ///
    /// # Errors
    /// See [`AclError`]; nothing is changed then.
    pub fn insert(&mut self, rule: Rule<W>) -> Result<(), AclError> {
        let pieces = pieces(&rule)?;
        let id = u64::from(rule.id);
        self.rules.insert(mix(self.seed, id), [id], rule).map_err(|error| match error {
            InsertError::Full => AclError::Full,
            InsertError::Exists(_) => AclError::Exists(rule.id),
        })?;
        for (done, piece) in pieces.iter().enumerate() {
            if let Err(error) = self.insert_piece(piece, rule.rank()) {
                self.remove_pieces(&pieces[..done], rule.rank());
                self.rules.remove(mix(self.seed, id), &[id]);
                return Err(error);
            }
        }
        self.sort();
        Ok(())
    }

    /// Removes a rule.
    pub fn remove(&mut self, id: u32) -> Option<Rule<W>> {
        let key = [u64::from(id)];
        let (_, rule) = self.rules.remove(mix(self.seed, key[0]), &key)?;
        let pieces = pieces(&rule).unwrap_or_default();
        self.remove_pieces(&pieces, rule.rank());
        Some(rule)
    }

    /// The id of the rule that wins for a key.
    #[must_use]
    pub fn lookup(&self, key: &[u64; W]) -> Option<u32> {
        let mut best = None;
        for &number in &self.visits {
            let tuple = &self.tuples[number as usize];
            if best.is_some_and(|best| best < tuple.best) {
                break;
            }
            let hash = tuple.hash(key);
            if self.filter.may_have(hash) == 1 {
                let words = std::array::from_fn(|word| key[word] & tuple.mask[word]);
                let row = self.entries.get(hash, &EntryKey { words, tuple: number });
                let found = row.and_then(|row| self.entries.row(row)).map(|entry| entry.best);
                best = best.into_iter().chain(found).min();
            }
        }
        best.map(|rank| rank as u32)
    }

    /// Looks up the packets of `mask`. Where the bit of the answer is set, `ids` has the id of the rule that wins; other
    /// words of `ids` are unspecified.
    #[must_use]
    pub fn lookup_batch(&self, keys: &[[u64; W]; 64], mask: u64, ids: &mut [u32; 64]) -> u64 {
        let mut best = [u64::MAX; 64];
        let (mut hits, mut open) = (0, mask);
        for &number in &self.visits {
            let tuple = &self.tuples[number as usize];
            for i in Bits(open & hits) {
                open ^= u64::from(best[i] < tuple.best) << i;
            }
            if open == 0 {
                break;
            }
            hits |= self.visit(number, tuple, keys, open, &mut best);
        }
        for i in Bits(hits) {
            ids[i] = best[i] as u32;
        }
        hits
    }

    /// Looks up a batch in one tuple, lowers `best` where a better rank is found, and answers which packets have an entry.
    #[inline(always)]
    fn visit(&self, number: u32, tuple: &Tuple<W>, keys: &[[u64; W]; 64], mask: u64, best: &mut [u64; 64]) -> u64 {
        let (mut hashes, mut rows, mut maybe) = ([0; 64], [0; 64], 0);
        for i in Bits(mask) {
            hashes[i] = tuple.hash(&keys[i]);
            maybe |= self.filter.may_have(hashes[i]) << i;
        }
        if maybe == 0 {
            return 0;
        }
        for i in Bits(maybe) {
            self.entries.prefetch(hashes[i]);
        }
        let found = self.entries.find_batch(&hashes, maybe, &mut rows, |i, entry| {
            let words =
                (0..W).fold(0, |differs, word| differs | ((keys[i][word] & tuple.mask[word]) ^ entry.key.words[word]));
            words == 0 && entry.key.tuple == number
        });
        for i in Bits(found) {
            if let Some(entry) = self.entries.row(rows[i]) {
                best[i] = best[i].min(entry.best);
            }
        }
        found
    }

    fn insert_piece(&mut self, piece: &Piece<W>, rank: u64) -> Result<(), AclError> {
        let number = self.tuple(&piece.mask).map_or_else(|| self.add_tuple(&piece.mask), Ok)?;
        let tuple = &self.tuples[number as usize];
        let (hash, key) = (tuple.hash(&piece.key), EntryKey { words: piece.key, tuple: number });
        let found = self.entries.get(hash, &key);
        let first = found.and_then(|row| self.entries.row(row)).map_or(NO_LINK, |entry| entry.first);
        let first = self.links.insert(first, rank).map_err(|Full| AclError::Full)?;
        let entry = Entry { key, first, best: self.links.links[first as usize].0 };
        if let Some(place) = found.and_then(|row| self.entries.row_mut(row)) {
            *place = entry;
            self.tuples[number as usize].best = self.tuples[number as usize].best.min(rank);
            return Ok(());
        }
        if self.entries.insert_new(hash, entry).is_err() {
            self.links.remove(first, rank);
            return Err(AclError::Full);
        }
        self.filter.add(hash);
        let tuple = &mut self.tuples[number as usize];
        tuple.entries += 1;
        tuple.best = tuple.best.min(rank);
        Ok(())
    }

    fn remove_pieces(&mut self, pieces: &[Piece<W>], rank: u64) {
        for piece in pieces {
            self.remove_piece(piece, rank);
        }
        self.untidy += pieces.len();
        if self.untidy > self.entries.len() + UNTIDY_MIN {
            self.tidy();
        }
        self.sort();
    }

    fn remove_piece(&mut self, piece: &Piece<W>, rank: u64) {
        let Some(number) = self.tuple(&piece.mask) else { return };
        let hash = self.tuples[number as usize].hash(&piece.key);
        let Some(row) = self.entries.get(hash, &EntryKey { words: piece.key, tuple: number }) else { return };
        let Some(entry) = self.entries.row_mut(row) else { return };
        entry.first = self.links.remove(entry.first, rank);
        match self.links.links.get(entry.first as usize) {
            Some(&(best, _)) => entry.best = best,
            None => {
                self.entries.remove(hash, row);
                self.tuples[number as usize].entries -= 1;
            }
        }
    }

    /// The tuple of a mask.
    fn tuple(&self, mask: &[u64; W]) -> Option<u32> {
        let found = self.tuples.iter().position(|tuple| tuple.entries > 0 && tuple.mask == *mask)?;
        Some(found as u32)
    }

    fn add_tuple(&mut self, mask: &[u64; W]) -> Result<u32, AclError> {
        let number = self.tuples.iter().position(|tuple| tuple.entries == 0).unwrap_or(self.tuples.len());
        let secret = std::array::from_fn(|word| mix(self.seed, (number as u64) << 32 | 1 << 16 | word as u64));
        let tuple = Tuple { mask: *mask, secret, best: u64::MAX, entries: 0 };
        match self.tuples.get_mut(number) {
            Some(place) => *place = tuple,
            None if number == TUPLES_MAX => return Err(AclError::TooManyTuples),
            None => self.tuples.push(tuple),
        }
        Ok(number as u32)
    }

    /// Makes the filter and the best ranks exact again. Until then they promise too much, which costs visits but is never
    /// wrong; put off until as many entries went as are left, this costs a removal a constant.
    fn tidy(&mut self) {
        self.untidy = 0;
        self.filter.bits.fill(0);
        for tuple in &mut self.tuples {
            tuple.best = u64::MAX;
        }
        for (_, entry) in self.entries.iter() {
            let tuple = &mut self.tuples[entry.key.tuple as usize];
            tuple.best = tuple.best.min(entry.best);
            self.filter.add(tuple.hash(&entry.key.words));
        }
    }

    fn sort(&mut self) {
        self.visits.clear();
        self.visits.extend((0..self.tuples.len() as u32).filter(|&number| self.tuples[number as usize].entries > 0));
        self.visits.sort_unstable_by_key(|&number| self.tuples[number as usize].best);
    }
}

/// A rule without ranges, as often as it takes.
fn pieces<const W: usize>(rule: &Rule<W>) -> Result<Vec<Piece<W>>, AclError> {
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
        let cut = |piece: &Piece<W>| parts.iter().map(|&part| with_field(*piece, range, part)).collect::<Vec<_>>();
        pieces = pieces.iter().flat_map(cut).collect();
    }
    for piece in &mut pieces {
        for word in 0..W {
            piece.key[word] &= piece.mask[word];
        }
    }
    Ok(pieces)
}

/// The bits of a range's field; `None` if they leave the word or the range is empty.
fn field_of(range: &PortRange) -> Option<u64> {
    (range.shift <= u64::BITS - PORT_BITS && range.low <= range.high).then(|| u64::from(u16::MAX) << range.shift)
}

/// A piece with a field set to a value and mask.
fn with_field<const W: usize>(mut piece: Piece<W>, range: &PortRange, (value, mask): (u16, u16)) -> Piece<W> {
    let field = u64::from(u16::MAX) << range.shift;
    piece.mask[range.word] = piece.mask[range.word] & !field | u64::from(mask) << range.shift;
    piece.key[range.word] = piece.key[range.word] & !field | u64::from(value) << range.shift;
    piece
}

/// The fewest (value, mask) pairs that cover a range: from the low end, always the largest aligned block that fits.
fn prefixes(low: u16, high: u16) -> Vec<(u16, u16)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(id: u32, priority: u32, key: u64, mask: u64) -> Rule<1> {
        Rule { id, priority, key: [key], mask: [mask], ranges: [None; 2] }
    }

    fn range(shift: u32, low: u16, high: u16) -> Option<PortRange> {
        Some(PortRange { word: 0, shift, low, high })
    }

    #[test]
    fn ranges_are_cut_into_the_fewest_prefixes() {
        assert_eq!(prefixes(0, u16::MAX), [(0, 0)]);
        assert_eq!(prefixes(80, 80), [(80, u16::MAX)]);
        assert_eq!(prefixes(1024, u16::MAX).len(), 6);
        assert_eq!(prefixes(1, u16::MAX - 1).len(), 30);
    }

    #[test]
    fn equal_priorities_are_ranked_by_id() {
        let mut acl = Acl::with_capacity(4, 1);
        for id in [2, 1, 3] {
            assert_eq!(acl.insert(rule(id, 7, 5, 0xFF)), Ok(()));
        }
        assert_eq!(acl.insert(rule(2, 0, 0, 0)), Err(AclError::Exists(2)));
        assert_eq!(acl.lookup(&[0x105]), Some(1));
        assert!(acl.remove(1).is_some());
        assert_eq!(acl.lookup(&[0x105]), Some(2));
        assert_eq!(acl.insert(rule(9, 6, 0, 0)), Ok(()), "matches all");
        assert_eq!(acl.lookup(&[0x105]), Some(9));
        assert_eq!(acl.tuples(), 2);
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let mut acl = Acl::with_capacity(2, 1);
        let ranged = |ranges| Rule { ranges, ..rule(1, 0, 0, 0) };
        assert_eq!(acl.insert(ranged([range(0, 5, 4), None])), Err(AclError::BadRange));
        assert_eq!(acl.insert(ranged([range(49, 4, 5), None])), Err(AclError::BadRange));
        assert_eq!(acl.insert(ranged([range(0, 4, 5), range(15, 4, 5)])), Err(AclError::BadRange));
        assert_eq!(
            acl.insert(ranged([Some(PortRange { word: 1, shift: 0, low: 0, high: 0 }), None])),
            Err(AclError::BadRange)
        );
        assert_eq!(acl.insert(ranged([range(0, 1, 65534), range(16, 1, 65534)])), Err(AclError::TooManyPieces));
        assert_eq!((acl.len(), acl.tuples()), (0, 0));
        assert_eq!(acl.insert(ranged([range(0, 1, 65534), range(16, 80, 80)])), Ok(()));
        assert_eq!(acl.insert(rule(2, 0, 0, 0)), Ok(()));
        assert_eq!(acl.insert(rule(3, 0, 0, 0)), Err(AclError::Full));
        assert_eq!(acl.len(), 2);
    }

    #[test]
    fn masks_are_limited() {
        let mut acl = Acl::with_capacity(1000, 1);
        for id in 0..TUPLES_MAX as u32 {
            assert_eq!(acl.insert(rule(id, 0, 0, u64::from(id))), Ok(()));
        }
        assert_eq!(acl.insert(rule(1000, 0, 0, 1000)), Err(AclError::TooManyTuples));
        let two = [range(0, 0, 1), None];
        assert_eq!(acl.insert(Rule { ranges: two, ..rule(1001, 0, 0, 0) }), Err(AclError::TooManyTuples));
        assert!(acl.remove(255).is_some());
        assert_eq!(acl.insert(rule(1000, 0, 0, 1000)), Ok(()));
    }

    #[test]
    fn entries_run_out_and_come_back() {
        let mut acl = Acl::with_capacity(100, 1);
        let wide = |id: u32| Rule { ranges: [range(0, 1, 65534), None], ..rule(id, id, u64::from(id) << 32, !0 << 32) };
        let fitted = (0..100).take_while(|&id| acl.insert(wide(id)).is_ok()).count() as u32;
        assert!((26..100).contains(&fitted), "{fitted}");
        assert_eq!(acl.insert(wide(fitted)), Err(AclError::Full));
        assert_eq!(acl.lookup(&[u64::from(fitted) << 32 | 5]), None, "rolled back");
        for _ in 0..10 {
            assert!(acl.remove(0).is_some());
            assert_eq!(acl.insert(wide(0)), Ok(()));
        }
        for id in 0..fitted {
            assert!(acl.remove(id).is_some());
        }
        assert_eq!((acl.tuples(), acl.entries.len(), acl.links.free), (0, 0, acl.entries.capacity()));
    }

    /// Every rule, one after the other.
    fn scan(rules: &[Rule<2>], key: &[u64; 2]) -> Option<u32> {
        let in_range =
            |range: &PortRange| (range.low..=range.high).contains(&((key[range.word] >> range.shift) as u16));
        let matches = |rule: &&Rule<2>| {
            let fields = rule.ranges.iter().flatten().fold([0, 0], |mut fields, range| {
                fields[range.word] |= 0xFFFF << range.shift;
                fields
            });
            let equal = (0..2).all(|word| (key[word] ^ rule.key[word]) & rule.mask[word] & !fields[word] == 0);
            equal && rule.ranges.iter().flatten().all(in_range)
        };
        rules.iter().filter(matches).min_by_key(|rule| (rule.priority, rule.id)).map(|rule| rule.id)
    }

    fn any_rule() -> impl Strategy<Value = Rule<2>> {
        let mask = prop_oneof![Just(0_u64), Just(0x3), Just(0x7_0003), Just(u64::MAX)];
        let port = |word| {
            let bounds = (0_u16..9, prop_oneof![0_u16..9, Just(u16::MAX)]);
            prop::option::weighted(0.4, bounds.prop_map(move |(low, high)| PortRange { word, shift: 16, low, high }))
        };
        let parts = (0_u32..40, 0_u32..6, [0_u64..4, 0_u64..4], [mask.clone(), mask], (port(0), port(1)));
        parts.prop_map(|(id, priority, key, mask, ranges)| Rule {
            id,
            priority,
            key,
            mask,
            ranges: [ranges.0, ranges.1],
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(150))]
        #[test]
        fn it_finds_what_a_scan_finds(
            steps in prop::collection::vec((any_rule(), 0_u8..4), 1..80),
            probes in prop::collection::vec([0_u64..4, 0_u64..12], 64),
            mask: u64,
            capacity in 1_usize..50,
            seed: u64,
        ) {
            let (mut acl, mut twin) = (Acl::with_capacity(capacity, seed), Vec::<Rule<2>>::new());
            for (rule, operation) in steps {
                let at = twin.iter().position(|other| other.id == rule.id);
                if operation == 0 {
                    prop_assert_eq!(acl.remove(rule.id), at.map(|at| twin.swap_remove(at)));
                } else if acl.insert(rule).is_ok() {
                    prop_assert_eq!(at, None);
                    twin.push(rule);
                }
                prop_assert_eq!(acl.len(), twin.len());
            }
            // Ports in both words, so that ranges bite.
            let keys = std::array::from_fn(|i| [probes[i][0] | probes[i][1] << 16, probes[i][0] | probes[63 - i][1] << 16]);
            let mut ids = [0; 64];
            let hits = acl.lookup_batch(&keys, mask, &mut ids);
            for i in 0..64 {
                let expected = scan(&twin, &keys[i]);
                prop_assert_eq!(acl.lookup(&keys[i]), expected);
                prop_assert_eq!((hits >> i & 1 == 1).then_some(ids[i]), expected.filter(|_| mask >> i & 1 == 1));
            }
        }
    }
}
