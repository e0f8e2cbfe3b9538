//! A filter in front of the entries, because most visits to a tuple find nothing.

/// The size of the filter. Few tables use all the entries planned for them, so with four bits per entry, one
/// visit in forty is wasted.
const FILTER_BITS_PER_ENTRY: usize = 4;

/// Shows with certainty that a hash has no entry, using one bit for each value of the hash's upper bits. Most
/// visits to a tuple find nothing, and the filter costs a tenth of looking into two buckets. Bits of removed
/// entries stay set until [`Acl::tidy`].
#[derive(Debug)]
pub(super) struct Filter {
    bits: Vec<u64>,
    shift: u32,
}

impl Filter {
    pub(super) fn with_entries(entries: usize) -> Filter {
        let bits = entries.max(64).saturating_mul(FILTER_BITS_PER_ENTRY).next_power_of_two();
        Filter { bits: vec![0; bits / 64], shift: 64 - bits.ilog2() }
    }

    /// Returns 1 if there may be an entry.
    #[inline(always)]
    pub(super) fn may_have(&self, hash: u64) -> u64 {
        let bit = hash >> self.shift;
        self.bits[bit as usize / 64] >> (bit % 64) & 1
    }

    pub(super) fn clear(&mut self) {
        self.bits.fill(0);
    }

    pub(super) fn add(&mut self, hash: u64) {
        let bit = hash >> self.shift;
        self.bits[bit as usize / 64] |= 1 << (bit % 64);
    }
}
