//! Exact match with a handful of keys.
//!
//! Up to [`KEYS_MAX`] keys are compared one after the other: no hash, no second cache line, a few
//! nanoseconds. Pipes with one or two entries (a tenant, a tunnel, a default) are as common as large ones.

use crate::InsertError;
use weir_packet::Bits;

/// The largest number of keys. With more keys, comparing costs more than a hash and two cache lines.
pub const KEYS_MAX: usize = 8;

/// Up to eight keys. A key's row number is its position, which does not change until the key is removed.
#[derive(Clone, Debug)]
pub struct Small<const W: usize> {
    keys: [[u64; W]; KEYS_MAX],
    live: u8,
}

impl<const W: usize> Default for Small<W> {
    fn default() -> Small<W> {
        Small::new()
    }
}

impl<const W: usize> Small<W> {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Small<W> {
        Small { keys: [[0; W]; KEYS_MAX], live: 0 }
    }

    /// Inserts a key and returns its row.
    ///
    /// # Errors
    /// The key exists already, or there are eight keys.
    pub fn insert(&mut self, key: [u64; W]) -> Result<u32, InsertError> {
        if let Some(row) = self.get(&key) {
            return Err(InsertError::Exists(row));
        }
        let row = self.live.trailing_ones();
        let place = self.keys.get_mut(row as usize).ok_or(InsertError::Full)?;
        *place = key;
        self.live |= 1 << row;
        Ok(row)
    }

    /// Returns the row of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u64; W]) -> Option<u32> {
        self.rows().find(|&row| self.keys[row] == *key).map(|row| row as u32)
    }

    /// Returns, for each row, the packets of `mask` whose key equals the row's; none for an empty row.
    /// Compares every packet with every row without branches, because a processor cannot predict which key a
    /// packet has.
    #[inline]
    #[must_use]
    pub fn lookup_batch(&self, keys: &[[u64; W]; 64], mask: u64) -> [u64; KEYS_MAX] {
        let mut hits = [0; KEYS_MAX];
        match 8 - self.live.leading_zeros() {
            0 => {}
            1 => self.compare::<1>(keys, mask, &mut hits),
            2 => self.compare::<2>(keys, mask, &mut hits),
            3 | 4 => self.compare::<4>(keys, mask, &mut hits),
            _ => self.compare::<KEYS_MAX>(keys, mask, &mut hits),
        }
        hits
    }

    /// Compares with the first `N` rows, each held in a register.
    #[inline(always)]
    fn compare<const N: usize>(&self, keys: &[[u64; W]; 64], mask: u64, hits: &mut [u64; KEYS_MAX]) {
        let mut found = [0_u64; N];
        for i in Bits(mask) {
            for (found, key) in found.iter_mut().zip(&self.keys) {
                let differs = keys[i].iter().zip(key).fold(0, |bits, (one, other)| bits | one ^ other);
                *found |= u64::from(differs == 0) << i;
            }
        }
        for (row, found) in found.into_iter().enumerate() {
            hits[row] = if self.live >> row & 1 == 1 { found } else { 0 };
        }
    }

    fn rows(&self) -> Bits {
        Bits(u64::from(self.live))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl<const W: usize> Small<W> {
        fn len(&self) -> usize {
            self.live.count_ones() as usize
        }

        /// Removes a key and returns the row it had.
        fn remove(&mut self, key: &[u64; W]) -> Option<u32> {
            let row = self.get(key)?;
            self.live &= !(1 << row);
            Some(row)
        }
    }

    #[test]
    fn the_ninth_key_is_refused() {
        let mut table = Small::new();
        for n in 0..8 {
            assert_eq!(table.insert([n]), Ok(n as u32));
        }
        assert_eq!(table.insert([8]), Err(InsertError::Full));
        assert_eq!(table.insert([3]), Err(InsertError::Exists(3)));
        assert_eq!(table.remove(&[3]), Some(3));
        assert_eq!(table.insert([8]), Ok(3));
        assert_eq!(table.len(), 8);
    }

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((any::<bool>(), 0_u64..12), 0..60), mask: u64) {
            let mut table = Small::new();
            let mut twin: Vec<(u64, u32)> = Vec::new();
            for (add, key) in steps {
                let at = twin.iter().position(|entry| entry.0 == key);
                match (add, at) {
                    (true, Some(at)) => prop_assert_eq!(table.insert([key, 5]),
                        Err(InsertError::Exists(twin[at].1))),
                    (true, None) if twin.len() == KEYS_MAX => prop_assert_eq!(table.insert([key, 5]),
                        Err(InsertError::Full)),
                    (true, None) => twin.push((key, table.insert([key, 5]).unwrap())),
                    (false, at) => prop_assert_eq!(table.remove(&[key, 5]), at.map(|at|
                        twin.swap_remove(at).1)),
                }
            }
            let keys = std::array::from_fn(|i| [i as u64, 5]);
            let hits = table.lookup_batch(&keys, mask);
            for (row, hits) in hits.into_iter().enumerate() {
                let entry = twin.iter().find(|entry| entry.1 as usize == row);
                prop_assert_eq!(hits, entry.map_or(0, |entry| mask & 1 << entry.0));
            }
        }
    }
}
