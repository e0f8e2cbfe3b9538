//! The values that one field of a packet may have: some bits are fixed, and the number lies in a range.

/// A set of numbers: those from `first` to `last` that have the bits of `value` under `mask`. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain {
    bits: u8,
    value: u128,
    mask: u128,
    first: u128,
    last: u128,
}

/// A condition on one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// `field & mask == value`.
    Bits {
        /// The value, within the mask.
        value: u128,
        /// The bits compared.
        mask: u128,
    },
    /// `first <= field <= last`.
    Range {
        /// The lowest value.
        first: u128,
        /// The highest value.
        last: u128,
    },
}

impl Condition {
    /// Returns the condition that a field has exactly this value.
    #[must_use]
    pub fn equal(value: u128) -> Condition {
        Condition::Range { first: value, last: value }
    }

    /// Whether a value meets the condition.
    #[must_use]
    pub fn holds(self, number: u128) -> bool {
        match self {
            Condition::Bits { value, mask } => number & mask == value,
            Condition::Range { first, last } => first <= number && number <= last,
        }
    }
}

/// Returns the largest number that has `bits` bits.
#[must_use]
pub fn ones(bits: u8) -> u128 {
    if bits >= 128 { u128::MAX } else { (1 << bits) - 1 }
}

impl Domain {
    /// Returns all numbers of `bits` bits.
    #[must_use]
    pub fn all(bits: u8) -> Domain {
        Domain { bits, value: 0, mask: 0, first: 0, last: ones(bits) }
    }

    /// Returns the numbers of the domain that also meet a condition; `None` if there are none.
    #[must_use]
    pub fn with(self, condition: Condition) -> Option<Domain> {
        let narrowed = match condition {
            Condition::Bits { value, mask } => {
                if (self.value ^ value) & self.mask & mask != 0 {
                    return None;
                }
                Domain { value: self.value | value, mask: self.mask | mask, ..self }
            }
            Condition::Range { first, last } => {
                Domain { first: self.first.max(first), last: self.last.min(last), ..self }
            }
        };
        let (first, last) = (narrowed.least_from(narrowed.first)?, narrowed.greatest_to(narrowed.last)?);
        Some(Domain { first, last, ..narrowed })
    }

    /// Whether the domain has a number.
    #[must_use]
    pub fn has(self, number: u128) -> bool {
        number & self.mask == self.value && self.first <= number && number <= self.last
    }

    /// Whether all numbers of the domain meet a condition.
    #[must_use]
    pub fn implies(self, condition: Condition) -> bool {
        match condition {
            Condition::Bits { value, mask } => {
                let fixed = self.mask | self.common();
                mask & !fixed == 0 && self.first & mask == value
            }
            Condition::Range { first, last } => first <= self.first && self.last <= last,
        }
    }

    /// Whether some numbers of the domain meet a condition.
    #[must_use]
    pub fn allows(self, condition: Condition) -> bool {
        self.with(condition).is_some()
    }

    /// Returns the domain's least number.
    #[must_use]
    pub fn least(self) -> u128 {
        self.first
    }

    /// Returns the domain's greatest number.
    #[must_use]
    pub fn greatest(self) -> u128 {
        self.last
    }

    /// Returns the number of the domain to use for `wanted`: `wanted` itself, if possible, or a number that
    /// is equal in all bits that are not fixed, or the least number.
    #[must_use]
    pub fn near(self, wanted: u128) -> u128 {
        let wanted = wanted & ones(self.bits);
        let fitted = wanted & !self.mask | self.value;
        if self.has(fitted) { fitted } else { self.first }
    }

    /// Returns the least number that is not below `start`.
    #[must_use]
    pub fn least_from(self, start: u128) -> Option<u128> {
        let start = start.max(self.first);
        let wrong = (start ^ self.value) & self.mask;
        if wrong == 0 {
            return (start <= self.last).then_some(start);
        }
        let highest = 127 - wrong.leading_zeros();
        let below = ones(highest as u8 + 1);
        let base = if self.value >> highest & 1 == 1 {
            start & !below
        } else {
            // The next number above `start` that differs in a free bit above the wrong one.
            let free = !start & !self.mask & !below & ones(self.bits);
            if free == 0 {
                return None;
            }
            let carry = free & free.wrapping_neg();
            start & !(carry - 1) | carry
        };
        let found = base & !self.mask | self.value;
        (found <= self.last).then_some(found)
    }

    /// Returns the greatest number that is not above `end`.
    fn greatest_to(self, end: u128) -> Option<u128> {
        // With all bits inverted, it is the least one.
        let inverted = |number: u128| !number & ones(self.bits);
        let mirrored = Domain {
            value: inverted(self.value) & self.mask,
            first: inverted(self.last),
            last: inverted(self.first),
            ..self
        };
        mirrored.least_from(inverted(end)).map(inverted)
    }

    /// Returns the bits that all numbers of the range share.
    fn common(self) -> u128 {
        let differs = self.first ^ self.last;
        let bits = 128 - differs.leading_zeros();
        !ones(bits as u8)
    }

    /// Splits off the numbers that do not meet a condition, as domains that have no number in common. Domains
    /// that differ in a higher bit come first.
    #[must_use]
    pub fn without(self, condition: Condition) -> Vec<Domain> {
        match condition {
            Condition::Bits { value, mask } => {
                let mut parts = Vec::new();
                let mut agreed = self;
                for bit in (0..u32::from(self.bits)).rev().map(|at| 1u128 << at) {
                    if mask & bit == 0 {
                        continue;
                    }
                    parts.extend(agreed.with(Condition::Bits { value: !value & bit, mask: bit }));
                    match agreed.with(Condition::Bits { value: value & bit, mask: bit }) {
                        Some(rest) => agreed = rest,
                        None => break,
                    }
                }
                parts
            }
            Condition::Range { first, last } => {
                let above = last
                    .checked_add(1)
                    .and_then(|from| self.with(Condition::Range { first: from, last: u128::MAX }));
                let below =
                    first.checked_sub(1).and_then(|to| self.with(Condition::Range { first: 0, last: to }));
                below.into_iter().chain(above).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn condition() -> impl Strategy<Value = Condition> {
        prop_oneof![
            (0..64u128, 0..64u128).prop_map(|(value, mask)| Condition::Bits { value: value & mask, mask }),
            (0..64u128, 0..64u128).prop_map(|(a, b)| Condition::Range { first: a.min(b), last: a.max(b) }),
        ]
    }

    fn numbers(domain: Domain) -> Vec<u128> {
        (0..64).filter(|number| domain.has(*number)).collect()
    }

    proptest! {
        /// Every answer about a domain of six bits is that of a list of its numbers.
        #[test]
        fn a_domain_is_the_list_of_its_numbers(conditions in prop::collection::vec(condition(), 0..4),
                                               next in condition(), start in 0..64u128) {
            let mut list: Vec<u128> = (0..64).collect();
            let mut domain = Some(Domain::all(6));
            for one in conditions {
                list.retain(|number| one.holds(*number));
                domain = domain.and_then(|domain| domain.with(one));
            }
            prop_assert_eq!(domain.is_some(), !list.is_empty());
            let Some(domain) = domain else { return Ok(()) };
            prop_assert_eq!(numbers(domain), list.clone());
            prop_assert_eq!(domain.least_from(start), list.iter().copied().find(|number| *number >= start));
            prop_assert_eq!([domain.least(), domain.greatest()], [list[0], list[list.len() - 1]]);
            prop_assert!(list.contains(&domain.near(start)));
            prop_assert_eq!(domain.allows(next), list.iter().any(|number| next.holds(*number)));
            if domain.implies(next) {
                prop_assert!(list.iter().all(|number| next.holds(*number)));
            }
            let mut outside: Vec<u128> = domain.without(next).into_iter().flat_map(numbers).collect();
            outside.sort_unstable();
            list.retain(|number| !next.holds(*number));
            prop_assert_eq!(outside, list);
        }
    }
}
