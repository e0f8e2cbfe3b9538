//! Counters: their width is a trade-off between memory and range.

/// A counter of a linear sketch. Adding is commutative and associative, so the result does not depend on the
/// order of packets, or on how they were aggregated before.
pub trait Counter: Copy + Default + PartialEq + std::fmt::Debug {
    /// Adds a count, which may be negative for signed counters; unsigned ones never receive a negative one.
    fn add(&mut self, count: i64);

    /// Adds the count of another counter.
    fn merge(&mut self, other: Self);

    /// Its count.
    fn get(self) -> i64;
}

/// Thirty-two bits, for packets. It saturates.
impl Counter for u32 {
    #[inline(always)]
    fn add(&mut self, count: i64) {
        *self = self.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    #[inline(always)]
    fn merge(&mut self, other: u32) {
        *self = self.saturating_add(other);
    }

    #[inline(always)]
    fn get(self) -> i64 {
        i64::from(self)
    }
}

/// Sixty-four bits: bytes. 2^63 bytes take 23 years at 100 Gb/s.
impl Counter for u64 {
    #[inline(always)]
    fn add(&mut self, count: i64) {
        *self = self.saturating_add(count.cast_unsigned());
    }

    #[inline(always)]
    fn merge(&mut self, other: u64) {
        *self = self.saturating_add(other);
    }

    #[inline(always)]
    fn get(self) -> i64 {
        i64::try_from(self).unwrap_or(i64::MAX)
    }
}

/// Thirty-two bits with a sign: packets. It wraps around once packets of one sign outnumber those of the
/// other by 2^31.
impl Counter for i32 {
    #[inline(always)]
    fn add(&mut self, count: i64) {
        *self = self.wrapping_add(count as i32);
    }

    #[inline(always)]
    fn merge(&mut self, other: i32) {
        *self = self.wrapping_add(other);
    }

    #[inline(always)]
    fn get(self) -> i64 {
        i64::from(self)
    }
}

/// Sixty-four bits with a sign: bytes.
impl Counter for i64 {
    #[inline(always)]
    fn add(&mut self, count: i64) {
        *self = self.wrapping_add(count);
    }

    #[inline(always)]
    fn merge(&mut self, other: i64) {
        *self = self.wrapping_add(other);
    }

    #[inline(always)]
    fn get(self) -> i64 {
        self
    }
}

/// Returns a count as a signed number; larger ones do not occur.
#[inline(always)]
pub fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Adds the counters of another sketch of the same size.
pub fn merge<C: Counter>(counters: &mut [C], others: &[C]) {
    for (counter, other) in counters.iter_mut().zip(others) {
        counter.merge(*other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_counters_stay_at_their_largest_value() {
        let mut counter = u32::MAX - 1;
        counter.add(5);
        assert_eq!(counter.get(), i64::from(u32::MAX));
        counter.merge(7);
        assert_eq!(counter, u32::MAX);
    }
}
