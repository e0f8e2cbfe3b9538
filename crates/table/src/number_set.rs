//! A set of small numbers with fast access to the least one: free ports, for instance.
//!
//! Three levels of words: a bit at the lowest level represents a number, and a bit at a higher level a word
//! below it that is not empty. Inserting, removing and finding the least number therefore look at three
//! words, whatever the set holds.
//!
//! Costs: a bit for each number below the bound, plus one sixty-third.

/// The numbers of a set are below this: three levels of 64 bits.
pub const NUMBERS_MAX: u32 = 64 * 64 * 64;

/// A set of numbers below a bound, see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberSet {
    /// The levels, from the numbers up to the single word at the top.
    levels: [Vec<u64>; 3],
    len: u32,
}

impl NumberSet {
    /// Creates an empty set for numbers below `bound`, which is [`NUMBERS_MAX`] at most.
    #[must_use]
    pub fn below(bound: u32) -> NumberSet {
        assert!(bound <= NUMBERS_MAX, "{bound} numbers are too many");
        let words = |bits: usize| vec![0; bits.div_ceil(64)];
        let lowest: Vec<u64> = words(bound as usize);
        let middle: Vec<u64> = words(lowest.len());
        let top = words(middle.len());
        NumberSet { levels: [lowest, middle, top], len: 0 }
    }

    /// Returns how many numbers the set has.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the set has this number.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.levels[0].get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Inserts a number. Returns false if the set already has the number, or if it is not below the bound.
    pub fn insert(&mut self, number: u32) -> bool {
        if self.contains(number) || self.levels[0].len() <= number as usize / 64 {
            return false;
        }
        let mut at = number as usize;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
        self.len += 1;
        true
    }

    /// Removes a number. Returns false if the set does not have it.
    pub fn remove(&mut self, number: u32) -> bool {
        if !self.contains(number) {
            return false;
        }
        let mut at = number as usize;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
        self.len -= 1;
        true
    }

    /// Returns the least number.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = *level.get(at).filter(|word| **word != 0)?;
            at = at * 64 + word.trailing_zeros() as usize;
        }
        Some(at as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_least_number_is_found_in_three_words_however_large_the_set_is() {
        let mut set = NumberSet::below(NUMBERS_MAX);
        assert_eq!(set.levels.each_ref().map(Vec::len), [64 * 64, 64, 1]);
        assert_eq!(set.first(), None);
        for number in [NUMBERS_MAX - 1, 4096, 4095, 64, 63, 0] {
            assert!(set.insert(number) && !set.insert(number));
            assert_eq!(set.first(), Some(number));
        }
        assert!(!set.insert(NUMBERS_MAX));
        assert_eq!(set.len(), 6);
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            bound in 1_u32..9000,
            steps in prop::collection::vec((any::<bool>(), any::<u32>()), 1..400),
        ) {
            let (mut set, mut twin) = (NumberSet::below(bound), BTreeSet::new());
            for (inserts, number) in steps {
                let number = number % bound;
                if inserts {
                    prop_assert_eq!(set.insert(number), twin.insert(number));
                } else {
                    prop_assert_eq!(set.remove(number), twin.remove(&number));
                }
                prop_assert_eq!(set.first(), twin.first().copied());
                prop_assert_eq!(set.len() as usize, twin.len());
                prop_assert_eq!(set.contains(number), twin.contains(&number));
            }
        }
    }
}
