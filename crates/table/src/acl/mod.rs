//! Rules with masks, ranges and priorities: which one wins.
//!
//! Tuple space search (Srinivasan, SIGCOMM'99; the classifier of Open vSwitch): rules with the same mask form
//! a tuple, and within a tuple a masked key is found by its hash. Tuples are visited in the order of their
//! best rules, and a packet is done as soon as no later tuple can improve on what it has found. A batch is
//! looked up tuple by tuple, so a mask is loaded once for 64 packets.
//!
//! The rule with the lowest priority number wins; among equal priorities, the one with the lower id. Port
//! ranges are cut into prefixes (`1024..=65535` is six of them), each an entry in a tuple of its own.
//!
//! Promises: a refused insertion changes nothing. The entries of all tuples are in one index with a secret
//! seed, sized once.
//!
//! Costs: a few nanoseconds per packet and tuple. A range costs up to 30 entries and 16 tuples. Memory: about
//! 60 + 8 W bytes per entry, [`ENTRIES_PER_RULE`] entries per rule, resident as used.

mod filter;
mod links;
mod rule;
#[cfg(test)]
mod tests;

use crate::mix::{hash_masked, mix};
use crate::store::{Record, Store};
use crate::{Exact, Full, InsertError};
use filter::Filter;
use links::{NO_LINK, RankLists};
pub use rule::{AclError, PIECES_MAX, PortRange, RANGES_MAX, Rule};
use rule::{Piece, pieces};
use weir_packet::Bits;

/// The largest number of tuples. The look-up of a packet may have to visit all of them, at a few nanoseconds
/// each.
pub const TUPLES_MAX: usize = 256;

/// Entries planned per rule: most rules have no range, and the common ranges are cut into two to six
/// prefixes.
pub const ENTRIES_PER_RULE: usize = 8;

/// The smallest number of removals after which the table is tidied, see [`Acl::tidy`].
const UNTIDY_MIN: usize = 16;

/// The rules with one mask.
#[derive(Clone, Copy, Debug)]
struct Tuple<const W: usize> {
    mask: [u64; W],
    secret: [u64; W],
    /// Rank of the tuple's best rule.
    best: u64,
    /// Number of entries; a tuple with 0 is free.
    entries: u32,
}

impl<const W: usize> Tuple<W> {
    #[inline(always)]
    fn hash(&self, key: &[u64; W]) -> u64 {
        hash_masked(key, &self.mask, &self.secret)
    }
}

/// Key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntryKey<const W: usize> {
    words: [u64; W],
    tuple: u32,
}

/// The rules with one mask and one masked key.
#[derive(Clone, Copy, Debug)]
struct MaskedRules<const W: usize> {
    key: EntryKey<W>,
    /// First of the links; the first link's rank is `best`.
    first: u32,
    best: u64,
}

impl<const W: usize> Record for MaskedRules<W> {
    type Key = EntryKey<W>;

    #[inline(always)]
    fn key(&self) -> &EntryKey<W> {
        &self.key
    }

    #[inline(always)]
    fn has(&self, key: &EntryKey<W>) -> bool {
        self.key == *key
    }

    fn vacant(next: u32) -> MaskedRules<W> {
        MaskedRules { key: EntryKey { words: [0; W], tuple: u32::MAX }, first: next, best: 0 }
    }

    fn next_vacant(&self) -> u32 {
        self.first
    }
}

/// A table of rules over keys of `W` words.
#[derive(Debug)]
pub struct Acl<const W: usize> {
    seed: u64,
    rules: Exact<1, Rule<W>>,
    tuples: Vec<Tuple<W>>,
    /// Tuples in use, ordered by their best rules.
    visits: Vec<u32>,
    entries: Store<MaskedRules<W>>,
    filter: Filter,
    links: RankLists,
    /// Removals since the last [`Acl::tidy`].
    untidy: usize,
    held: ReservedRoom<W>,
}

/// Room reserved for rules that will be inserted later.
#[derive(Debug)]
struct ReservedRoom<const W: usize> {
    rules: usize,
    pieces: usize,
    /// Masks that no tuple has yet.
    masks: Vec<[u64; W]>,
}

impl<const W: usize> Acl<W> {
    /// Creates an empty table for `rules` rules, [`ENTRIES_PER_RULE`] times as many entries, and the entries
    /// of one more rule that is cut into [`PIECES_MAX`]. `seed` is a secret of the process.
    #[must_use]
    pub fn with_capacity(rules: usize, seed: u64) -> Acl<W> {
        let entries = Store::with_capacity(rules.saturating_mul(ENTRIES_PER_RULE).saturating_add(PIECES_MAX));
        Acl {
            seed,
            rules: Exact::with_capacity(rules),
            tuples: Vec::with_capacity(TUPLES_MAX),
            visits: Vec::with_capacity(TUPLES_MAX),
            filter: Filter::with_entries(entries.capacity()),
            links: RankLists::with_capacity(entries.capacity()),
            entries,
            untidy: 0,
            held: ReservedRoom { rules: 0, pieces: 0, masks: Vec::new() },
        }
    }

    /// Reserves room for a rule that will be inserted later, in addition to the present rules and earlier
    /// reservations. Until [`Acl::let_go`], only rules with a reservation may be inserted.
    ///
    /// # Errors
    /// The insertion would fail, or might fail.
    pub fn hold(&mut self, rule: &Rule<W>) -> Result<(), AclError> {
        let pieces = pieces(rule)?;
        if self.rules.len() + self.held.rules >= self.rules.capacity()
            || self.held.pieces + pieces.len() > self.links.free()
        {
            return Err(AclError::Full);
        }
        let known = self.held.masks.len();
        for piece in &pieces {
            if self.tuple(&piece.mask).is_none() && !self.held.masks.contains(&piece.mask) {
                self.held.masks.push(piece.mask);
            }
        }
        let live = self.tuples.iter().filter(|tuple| tuple.entries > 0).count();
        if live + self.held.masks.len() > TUPLES_MAX {
            self.held.masks.truncate(known);
            return Err(AclError::TooManyTuples);
        }
        self.held.rules += 1;
        self.held.pieces += pieces.len();
        Ok(())
    }

    /// Releases all reserved room.
    pub fn let_go(&mut self) {
        self.held = ReservedRoom { rules: 0, pieces: 0, masks: Vec::new() };
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the number of different masks, which determines the cost of a look-up.
    #[must_use]
    pub fn tuples(&self) -> usize {
        self.visits.len()
    }

    /// Inserts a rule.
    ///
    /// # Errors
    /// See [`AclError`]. An error changes nothing.
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

    /// Removes a rule and returns it.
    pub fn remove(&mut self, id: u32) -> Option<Rule<W>> {
        let key = [u64::from(id)];
        let (_, rule) = self.rules.remove(mix(self.seed, key[0]), &key)?;
        let pieces = pieces(&rule).unwrap_or_default();
        self.remove_pieces(&pieces, rule.rank());
        Some(rule)
    }

    /// Looks up the packets of `mask`. Returns the mask of hits; `ids` holds the ids of the winning rules,
    /// its other elements are unspecified.
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

    /// Looks up a batch in one tuple and lowers `best` wherever a better rank is found. Returns the packets
    /// that have an entry.
    #[inline(always)]
    fn visit(
        &self,
        number: u32,
        tuple: &Tuple<W>,
        keys: &[[u64; W]; 64],
        mask: u64,
        best: &mut [u64; 64],
    ) -> u64 {
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
        let is_it = |i: usize, entry: &MaskedRules<W>| {
            let words = (0..W).fold(0, |differs, word| {
                differs | ((keys[i][word] & tuple.mask[word]) ^ entry.key.words[word])
            });
            words == 0 && entry.key.tuple == number
        };
        let found = self.entries.find_batch(&hashes, maybe, &mut rows, is_it);
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
        let entry = MaskedRules { key, first, best: self.links.rank(first).unwrap_or(rank) };
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
        match self.links.rank(entry.first) {
            Some(best) => entry.best = best,
            None => {
                self.entries.remove(hash, row);
                self.tuples[number as usize].entries -= 1;
            }
        }
    }

    /// Returns the number of the tuple with this mask.
    fn tuple(&self, mask: &[u64; W]) -> Option<u32> {
        let found = self.tuples.iter().position(|tuple| tuple.entries > 0 && tuple.mask == *mask)?;
        Some(found as u32)
    }

    fn add_tuple(&mut self, mask: &[u64; W]) -> Result<u32, AclError> {
        let number = self.tuples.iter().position(|tuple| tuple.entries == 0).unwrap_or(self.tuples.len());
        let secret =
            std::array::from_fn(|word| mix(self.seed, (number as u64) << 32 | 1 << 16 | word as u64));
        let tuple = Tuple { mask: *mask, secret, best: u64::MAX, entries: 0 };
        match self.tuples.get_mut(number) {
            Some(place) => *place = tuple,
            None if number == TUPLES_MAX => return Err(AclError::TooManyTuples),
            None => self.tuples.push(tuple),
        }
        Ok(number as u32)
    }

    /// Recomputes the filter and the best ranks. Before that they may be too optimistic, which causes
    /// needless visits but no wrong results. The table is tidied only after as many removals as there are
    /// entries left, so the cost per removal is constant.
    fn tidy(&mut self) {
        self.untidy = 0;
        self.filter.clear();
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
        self.visits
            .extend((0..self.tuples.len() as u32).filter(|&number| self.tuples[number as usize].entries > 0));
        self.visits.sort_unstable_by_key(|&number| self.tuples[number as usize].best);
    }
}
