//! Sixteen tags, compared at once: a cache line, which also holds sixteen marks for the replacement policy.
//! The keys and their counts are stored after it.
//!
//! The comparison takes four instructions of SSE2, which every x86-64 has. On other processors, as the oracle
//! in tests, and for comparison in benches, tags are compared one by one; the compiler turns that into thirty
//! instructions.

use weir_packet::Bits;

/// Keys in a row.
pub const SLOTS: usize = 16;

/// The tag of a free slot; no key has it.
const FREE: u16 = 0;

/// How sixteen numbers are compared with one.
pub trait Compare {
    /// Returns the numbers in `numbers` that equal `number`, as bits.
    fn equal(numbers: &[u16; SLOTS], number: u16) -> u32;
}

/// With vector instructions, if the target has them.
#[derive(Clone, Copy, Debug)]
pub struct Vectors;

/// One number after the other.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

impl Compare for Vectors {
    #[inline(always)]
    fn equal(numbers: &[u16; SLOTS], number: u16) -> u32 {
        equal(numbers, number)
    }
}

impl Compare for Scalar {
    #[inline(always)]
    fn equal(numbers: &[u16; SLOTS], number: u16) -> u32 {
        equal_scalar(numbers, number)
    }
}

/// The tags of a row's keys and the marks of the replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Line {
    tags: [u16; SLOTS],
    /// See [`super::policy::Replacement`].
    pub(super) marks: [u16; SLOTS],
}

/// The tag in the low bits of a key's hash; never that of a free slot.
#[inline(always)]
pub(super) fn tag_of(bits: u64) -> u16 {
    bits as u16 | 1 << 15
}

impl Line {
    pub(super) const EMPTY: Line = Line { tags: [FREE; SLOTS], marks: [0; SLOTS] };

    /// The slots with a tag, as bits.
    #[inline(always)]
    pub(super) fn with<M: Compare>(&self, tag: u16) -> u32 {
        M::equal(&self.tags, tag)
    }

    /// Returns a slot without a key.
    #[inline(always)]
    pub(super) fn free<M: Compare>(&self) -> Option<u32> {
        let slots = self.with::<M>(FREE);
        (slots != 0).then(|| slots.trailing_zeros())
    }

    /// Iterates over the slots with keys.
    pub(super) fn taken(&self) -> Bits {
        Bits(u64::from(!equal(&self.tags, FREE) & 0xffff))
    }

    /// Writes the tag of a slot.
    #[inline(always)]
    pub(super) fn set(&mut self, slot: u32, tag: u16) {
        self.tags[slot as usize] = tag;
    }

    /// The slots, as bits, whose mark is `mark`.
    #[inline(always)]
    pub(super) fn marked<M: Compare>(&self, mark: u16) -> u32 {
        M::equal(&self.marks, mark)
    }
}

/// Returns the numbers in `numbers` that equal `number`, as bits.
#[inline(always)]
fn equal(numbers: &[u16; SLOTS], number: u16) -> u32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    {
        // SAFETY: this is compiled only if every processor of the target has SSE2.
        unsafe { equal_sse2(numbers, number) }
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    {
        equal_scalar(numbers, number)
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[target_feature(enable = "sse2")]
#[inline]
fn equal_sse2(numbers: &[u16; SLOTS], number: u16) -> u32 {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
    };
    let start: *const __m128i = numbers.as_ptr().cast();
    // SAFETY: the sixteen numbers are two vectors of 16 bytes, and the load requires no alignment.
    let (low, high) = unsafe { (_mm_loadu_si128(start), _mm_loadu_si128(start.add(1))) };
    let number = _mm_set1_epi16(number.cast_signed());
    let both = _mm_packs_epi16(_mm_cmpeq_epi16(low, number), _mm_cmpeq_epi16(high, number));
    _mm_movemask_epi8(both) as u32
}

/// The twin: one number after the other.
#[inline(always)]
fn equal_scalar(numbers: &[u16; SLOTS], number: u16) -> u32 {
    let mut bits = 0;
    for (slot, other) in numbers.iter().enumerate() {
        if *other == number {
            bits |= 1 << slot;
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tags_are_a_cache_line() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
    }

    proptest! {
        #[test]
        fn vectors_compare_as_the_twin_does(numbers: [u16; SLOTS], number: u16, narrow: bool) {
            // Few distinct numbers, so that equal ones occur at all places; otherwise all bit patterns.
            let numbers = if narrow { numbers.map(|n| n % 4 * 0x5555) } else { numbers };
            for number in [number, numbers[5], 0, 0x5555, 0xffff, 0x8000, 0x7fff] {
                prop_assert_eq!(equal(&numbers, number), equal_scalar(&numbers, number));
            }
        }
    }
}
