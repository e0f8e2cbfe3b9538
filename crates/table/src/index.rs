//! hash -> row number: the cuckoo index below [`crate::exact`], [`crate::flow`] and [`crate::acl`].
//!
//! A bucket is one cache line: 8 tags of 32 bits, then 8 row numbers. A key may be in either of two buckets,
//! so a look-up reads one or two lines and then the row. Tags have 32 bits rather than 16 because the line
//! has room for them: a look-up reads the row of another key only once in 2^28 times, the second bucket can
//! be computed from the first and the tag, and an entry can be moved without its key.
//!
//! The bucket is computed from the low half of the hash and the tag from the high half, by range reduction,
//! so the number of buckets need not be a power of two. `other = (spread(tag) - bucket) mod buckets` is its
//! own inverse.
//!
//! Promises: the row number of an entry never changes; an insertion that would have to search more than
//! [`SEARCH_MAX`] buckets, or move more than five entries, is refused. The 17th key with the same hash is
//! refused; the search does not loop.
//!
//! Costs 64 / [`ROWS_PER_BUCKET`] = 9.1 bytes per row. The operating system supplies the memory zeroed; the
//! memory of a large index is resident from the start, because hashes soon touch all of it.

use crate::Full;
use weir_packet::{Bits, prefetch};

/// Slots in a bucket: 8 tags and 8 row numbers fill a cache line.
const SLOTS: usize = 8;

/// 32-bit words in a bucket.
const WORDS: usize = 2 * SLOTS;

/// Bytes in a cache line.
const LINE: usize = 64;

/// Rows planned per bucket: a load of 87.5 %. Two choices of eight slots can carry 98 %; the difference keeps
/// searches rare and short, and absorbs unlucky hashes.
const ROWS_PER_BUCKET: usize = 7;

/// Buckets added to every index that has more than one: an uneven spread of hashes weighs more in small
/// tables.
const BUCKETS_EXTRA: usize = 2;

/// The largest number of rows: 2^30 leaves room for two flag bits beside a row number.
pub(crate) const ROWS_MAX: usize = 1 << 30;

/// Buckets searched for a free slot before an insertion is refused: three generations of eight.
const SEARCH_MAX: usize = 200;

/// The largest number of entries that one insertion moves: the generations in [`SEARCH_MAX`] buckets, and two
/// to spare.
#[cfg(test)]
const PATH_MAX: usize = 5;

/// Tag of a free slot.
const FREE: u32 = 0;

/// Buckets of tags and row numbers.
#[derive(Debug)]
pub(crate) struct Index {
    words: Vec<u32>,
    first: usize,
    buckets: u32,
}

/// One step of the search for a free slot: the entry in `slot` of step `parent`'s bucket could move to
/// `bucket`.
#[derive(Clone, Copy, Default)]
struct SlotProbe {
    bucket: u32,
    parent: u16,
    slot: u16,
}

impl Index {
    /// Creates an index with room for `rows` rows, provided that their hashes are well mixed.
    pub(crate) fn with_rows(rows: usize) -> Index {
        let buckets = buckets_for(rows.min(ROWS_MAX));
        // vec![0; n] maps untouched zero pages; a Vec of aligned buckets would write to all of them.
        let words = vec![0_u32; buckets * WORDS + LINE / size_of::<u32>()];
        weir_packet::advise_huge(&words);
        weir_packet::populate(&words);
        let first = words.as_ptr().align_offset(LINE).min(LINE / size_of::<u32>());
        Index { words, first, buckets: buckets as u32 }
    }

    /// Bytes of memory allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * size_of::<u32>()
    }

    /// Prefetches the first bucket of a hash, where most entries are.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.bucket(self.home(hash)));
    }

    /// Returns the row with this hash for which `is_it` is true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let home = self.home(hash);
        self.find_in(home, tag_of(hash), &mut is_it)
            .or_else(|| self.find_in(self.other(home, tag_of(hash)), tag_of(hash), &mut is_it))
    }

    /// Returns the likely row of a hash if its first bucket has one; the caller compares the key. If there is
    /// none, prefetches the second bucket.
    #[inline(always)]
    pub(crate) fn guess_home(&self, hash: u64) -> Option<u32> {
        let (home, tag) = (self.home(hash), tag_of(hash));
        let row = guess(self.bucket(home), tag);
        if row.is_none() {
            prefetch(self.bucket(self.other(home, tag)));
        }
        row
    }

    /// Like [`Index::guess_home`], for the second bucket. `None` is a definite miss.
    #[inline(always)]
    pub(crate) fn guess_other(&self, hash: u64) -> Option<u32> {
        let tag = tag_of(hash);
        guess(self.bucket(self.other(self.home(hash), tag)), tag)
    }

    /// Inserts a row, moving others if both its buckets are full.
    pub(crate) fn insert(&mut self, hash: u64, row: u32) -> Result<(), Full> {
        let tag = tag_of(hash);
        let home = self.home(hash);
        let other = self.other(home, tag);
        for at in [home, other] {
            if let Some(slot) = free_slot(self.bucket(at)) {
                self.set(at, slot, tag, row);
                return Ok(());
            }
        }
        let (at, slot) = self.make_room(home, other).ok_or(Full)?;
        self.set(at, slot, tag, row);
        Ok(())
    }

    /// Removes a row. Returns false if this hash does not lead to it.
    pub(crate) fn remove(&mut self, hash: u64, row: u32) -> bool {
        let tag = tag_of(hash);
        let home = self.home(hash);
        for at in [home, self.other(home, tag)] {
            let bucket = self.bucket(at);
            if let Some(slot) = (0..SLOTS).find(|&slot| bucket[slot] == tag && bucket[SLOTS + slot] == row) {
                self.set(at, slot, FREE, 0);
                return true;
            }
        }
        false
    }

    /// Frees a slot in one of two full buckets. The search is breadth first, so that as few entries as
    /// possible move.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, home: u32, other: u32) -> Option<(u32, usize)> {
        let mut steps = [SlotProbe::default(); SEARCH_MAX];
        steps[0].bucket = home;
        steps[1].bucket = other;
        let mut end = 2;
        for at in 0..SEARCH_MAX {
            if at == end {
                return None;
            }
            for slot in 0..SLOTS {
                let bucket = self.bucket(steps[at].bucket);
                let next = SlotProbe {
                    bucket: self.other(steps[at].bucket, bucket[slot]),
                    parent: at as u16,
                    slot: slot as u16,
                };
                if let Some(free) = free_slot(self.bucket(next.bucket)) {
                    return Some(self.shift(&steps, next, free));
                }
                if end < SEARCH_MAX {
                    steps[end] = next;
                    end += 1;
                }
            }
        }
        None
    }

    /// Moves each entry on the path to the free slot one step along; returns the slot this frees at the start
    /// of the path.
    fn shift(&mut self, steps: &[SlotProbe; SEARCH_MAX], last: SlotProbe, free: usize) -> (u32, usize) {
        let (mut step, mut free) = (last, free);
        loop {
            let parent = steps[usize::from(step.parent)];
            let slot = usize::from(step.slot);
            let from = self.bucket(parent.bucket);
            let (tag, row) = (from[slot], from[SLOTS + slot]);
            self.set(step.bucket, free, tag, row);
            self.set(parent.bucket, slot, FREE, 0);
            if step.parent < 2 {
                return (parent.bucket, slot);
            }
            (step, free) = (parent, slot);
        }
    }

    #[inline(always)]
    fn find_in(&self, at: u32, tag: u32, is_it: &mut impl FnMut(u32) -> bool) -> Option<u32> {
        let bucket = self.bucket(at);
        Bits(matching(bucket, tag)).map(|bit| bucket[SLOTS + bit / SLOTS]).find(|&row| is_it(row))
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> u32 {
        reduce(hash as u32, self.buckets)
    }

    #[inline(always)]
    fn other(&self, bucket: u32, tag: u32) -> u32 {
        let spread = reduce(tag.wrapping_mul(0x9E37_79B1), self.buckets);
        if spread >= bucket { spread - bucket } else { spread + (self.buckets - bucket) }
    }

    #[inline(always)]
    fn bucket(&self, at: u32) -> &[u32; WORDS] {
        &self.words[self.first..].as_chunks().0[at as usize]
    }

    #[inline(always)]
    fn set(&mut self, at: u32, slot: usize, tag: u32, row: u32) {
        let bucket: &mut [u32; WORDS] = &mut self.words[self.first..].as_chunks_mut().0[at as usize];
        bucket[slot] = tag;
        bucket[SLOTS + slot] = row;
    }
}

/// Number of buckets for `rows` rows. Up to eight rows share one bucket, which always holds them.
fn buckets_for(rows: usize) -> usize {
    if rows <= SLOTS { 1 } else { rows.div_ceil(ROWS_PER_BUCKET) + BUCKETS_EXTRA }
}

/// Maps 32 bits evenly onto `0..range` (Lemire's multiply and shift).
#[inline(always)]
fn reduce(bits: u32, range: u32) -> u32 {
    ((u64::from(bits) * u64::from(range)) >> 32) as u32
}

#[inline(always)]
fn tag_of(hash: u64) -> u32 {
    let tag = (hash >> 32) as u32;
    if tag == FREE { 1 } else { tag }
}

/// Finds the slots that hold a tag: the byte of each such slot is 1. Bytes rather than bits, because the
/// compiler turns this into two vector compares and two packs.
#[inline(always)]
fn matching(bucket: &[u32; WORDS], tag: u32) -> u64 {
    let tags: [u8; SLOTS] = std::array::from_fn(|slot| u8::from(bucket[slot] == tag));
    u64::from_le_bytes(tags)
}

/// The first slot in the result of [`matching`].
#[inline(always)]
fn first(slots: u64) -> Option<usize> {
    (slots != 0).then(|| slots.trailing_zeros() as usize / SLOTS)
}

#[inline(always)]
fn free_slot(bucket: &[u32; WORDS]) -> Option<usize> {
    first(matching(bucket, FREE))
}

/// The row in the first slot that holds a tag.
#[inline(always)]
fn guess(bucket: &[u32; WORDS], tag: u32) -> Option<u32> {
    first(matching(bucket, tag)).map(|slot| bucket[SLOTS + slot])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;
    use proptest::prelude::*;

    #[test]
    fn every_capacity_holds_its_rows() {
        for rows in 1..600 {
            for seed in 0..20 {
                let mut index = Index::with_rows(rows);
                for row in 0..rows {
                    assert_eq!(
                        index.insert(mix(seed, row as u64), row as u32),
                        Ok(()),
                        "row {row} of {rows}, seed {seed}"
                    );
                }
            }
        }
    }

    /// Enters keys by their hashes. Returns how many did not fit, and the number of buckets and rows
    /// inspected to find all others again.
    fn costs(hashes: &[u64]) -> (usize, usize) {
        let mut index = Index::with_rows(hashes.len());
        let rows = 0..hashes.len() as u32;
        let entered: Vec<bool> =
            rows.clone().zip(hashes).map(|(row, hash)| index.insert(*hash, row).is_ok()).collect();
        let mut looked_at = 0;
        for (row, hash) in rows.zip(hashes).filter(|(row, _)| entered[*row as usize]) {
            let mut is_it = |found: u32| {
                looked_at += 1;
                found == row
            };
            let (home, tag) = (index.home(*hash), tag_of(*hash));
            let buckets = match index.find_in(home, tag, &mut is_it) {
                Some(_) => 1,
                None => 2,
            };
            assert_eq!(index.find(*hash, &mut is_it), Some(row));
            looked_at += buckets;
        }
        (entered.iter().filter(|entered| !**entered).count(), looked_at)
    }

    /// A million flow keys are chosen so that, with a known secret, they fall into one bucket in sixteen. A
    /// table with that secret has no room for one key in thirteen; in a table with another secret, they cost
    /// the same as other keys.
    #[test]
    fn a_million_chosen_keys_cost_no_more_than_others() {
        const KEYS: usize = 1_000_000;
        let (known, secret) = (weir_packet::TableHash::new([1, 2]), weir_packet::TableHash::new([3, 4]));
        let key = |n: u64| [weir_packet::IPV4_MARK, n, 0, 0xc000_0201, 7 << 48 | 53 << 32 | 17 << 24];
        let chosen: Vec<u64> =
            (0..).filter(|n| (known.hash(&key(*n)) as u32) < u32::MAX / 16).take(KEYS).collect();
        let hashes = |hash: weir_packet::TableHash, numbers: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
            numbers.map(|n| hash.hash(&key(n))).collect()
        };
        let (none, others) = costs(&hashes(secret, &mut (0..KEYS as u64)));
        let (refused, cost) = costs(&hashes(secret, &mut chosen.iter().copied()));
        assert_eq!((none, refused), (0, 0));
        assert!(cost < others * 21 / 20, "{cost}, and {others} for keys that were not chosen");
        let (refused, _) = costs(&hashes(known, &mut chosen.iter().copied()));
        assert!(refused > KEYS / 20, "{refused}: chosen keys do no harm even to the secret they target");
    }

    #[test]
    fn one_hash_for_all_is_refused_after_two_buckets() {
        let mut index = Index::with_rows(1000);
        let taken = (0..1000).filter(|&row| index.insert(0x1234_5678_9ABC_DEF0, row).is_ok()).count();
        assert!(taken == 2 * SLOTS || taken == SLOTS, "{taken}");
    }

    #[test]
    fn the_other_bucket_of_the_other_is_home() {
        for buckets in [1, 2, 3, 7, 1000, 1 << 27] {
            let index = Index { words: Vec::new(), first: 0, buckets };
            for seed in 0..1000 {
                let hash = mix(seed, u64::from(buckets));
                let (home, tag) = (index.home(hash), tag_of(hash));
                let other = index.other(home, tag);
                assert!(home < buckets && other < buckets);
                assert_eq!(index.other(other, tag), home);
            }
        }
    }

    #[test]
    fn a_search_is_never_deeper_than_it_says() {
        // Two roots, then eight children each: count the generations that fit into SEARCH_MAX steps, then the
        // children of the last.
        let (mut generation, mut steps, mut depth) = (2, 2, 1);
        while steps < SEARCH_MAX {
            generation *= SLOTS;
            steps += generation;
            depth += 1;
        }
        assert!(depth <= PATH_MAX);
    }

    #[test]
    fn buckets_lie_on_cache_lines() {
        for rows in [1, 100, 100_000] {
            let index = Index::with_rows(rows);
            assert_eq!(std::ptr::from_ref(index.bucket(0)).addr() % LINE, 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Draws hashes from a few values only, so that buckets overflow. Every accepted entry is found until
        /// it is removed.
        #[test]
        fn what_is_entered_is_found(rows in 1_usize..100, steps in prop::collection::vec((any::<bool>(),
            0_u64..40), 1..400)) {
            let mut index = Index::with_rows(rows);
            let mut twin: Vec<(u64, u32)> = Vec::new();
            for (row, (add, hash)) in steps.into_iter().enumerate() {
                let hash = hash << 32 | hash << 28;
                if add {
                    if index.insert(hash, row as u32).is_ok() {
                        twin.push((hash, row as u32));
                    }
                } else if let Some(at) = twin.iter().position(|entry| entry.0 == hash) {
                    prop_assert!(index.remove(hash, twin[at].1));
                    prop_assert!(!index.remove(hash, twin[at].1));
                    twin.swap_remove(at);
                }
                for &(hash, row) in &twin {
                    prop_assert_eq!(index.find(hash, |found| found == row), Some(row));
                }
            }
        }
    }
}
