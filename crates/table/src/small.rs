//! Exact match over a handful of keys.
//!
//! Up to [`KEYS_MAX`] keys are compared one after the other: no hash, no second cache line, a few nanoseconds. Pipes
//! with an entry or two (a tenant, a tunnel, a default) are as common as large ones.

use crate::InsertError;
use packet::Bits;

/// Keys at most: beyond, the compares cost more than a hash and two cache lines.
pub const KEYS_MAX: usize = 8;

/// Up to eight keys; a key's row number is its place and stays until it is removed.
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
    /// An empty table.
    #[must_use]
    pub fn new() -> Small<W> {
        Small { keys: [[0; W]; KEYS_MAX], live: 0 }
    }

    /// Keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.count_ones() as usize
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Enters a key and says in which row.
    ///
    /// # Errors
    /// The key is there already, or there are eight.
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

    /// The row of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, key: &[u64; W]) -> Option<u32> {
        self.rows().find(|&row| self.keys[row] == *key).map(|row| row as u32)
    }

    /// Removes a key and says which row it had.
    pub fn remove(&mut self, key: &[u64; W]) -> Option<u32> {
        let row = self.get(key)?;
        self.live &= !(1 << row);
        Some(row)
    }

    /// All keys with their rows.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u64; W])> {
        self.rows().map(|row| (row as u32, &self.keys[row]))
    }

    /// Looks up the packets of `mask`. Where the bit of the answer is set, `rows` has the row; other words of `rows` are
    /// unspecified.
    #[inline]
    #[must_use]
    pub fn lookup_batch(&self, keys: &[[u64; W]; 64], mask: u64, rows: &mut [u32; 64]) -> u64 {
        let mut hits = 0;
        for row in self.rows() {
            for i in Bits(mask & !hits) {
                if keys[i] == self.keys[row] {
                    rows[i] = row as u32;
                    hits |= 1 << i;
                }
            }
        }
        hits
    }

    fn rows(&self) -> Bits {
        Bits(u64::from(self.live))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
                    (true, Some(at)) => prop_assert_eq!(table.insert([key, 5]), Err(InsertError::Exists(twin[at].1))),
                    (true, None) if twin.len() == KEYS_MAX => prop_assert_eq!(table.insert([key, 5]), Err(InsertError::Full)),
                    (true, None) => twin.push((key, table.insert([key, 5]).unwrap())),
                    (false, at) => prop_assert_eq!(table.remove(&[key, 5]), at.map(|at| twin.swap_remove(at).1)),
                }
            }
            let (keys, mut rows) = (std::array::from_fn(|i| [i as u64, 5]), [0; 64]);
            let hits = table.lookup_batch(&keys, mask, &mut rows);
            for (i, row) in rows.into_iter().enumerate() {
                let expected = twin.iter().find(|entry| entry.0 == i as u64 && mask >> i & 1 == 1).map(|entry| entry.1);
                prop_assert_eq!((hits >> i & 1 == 1).then_some(row), expected);
            }
        }
    }
}
