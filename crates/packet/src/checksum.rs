//! The Internet checksum (RFC 1071), computed from scratch or updated incrementally (RFC 1624 eqn. 3).
//!
//! Results are canonical: one's complement has two zeros, and which one a checksum uses must not depend on
//! how it was computed. An updated checksum is never 0xffff; for UDP, where 0 means "none" (RFC 768), it is
//! never 0.

/// A sum in one's complement arithmetic, not yet folded to 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(pub u64);

impl Sum {
    /// Adds bytes as big-endian 16-bit words; an odd last byte is padded with zero.
    #[inline]
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Sum {
        let mut pairs = bytes.chunks_exact(2);
        for pair in &mut pairs {
            self.0 += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        if let [last] = pairs.remainder() {
            self.0 += u64::from(*last) << 8;
        }
        self
    }

    /// Adds a 16-bit word.
    #[inline(always)]
    #[must_use]
    pub fn word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word))
    }

    /// Adds a 32-bit value as two words.
    #[inline(always)]
    #[must_use]
    pub fn value32(self, value: u32) -> Sum {
        Sum(self.0 + u64::from(value >> 16) + u64::from(value & 0xffff))
    }

    /// Replaces `from` by `to`: adds `~from + to`.
    #[inline(always)]
    #[must_use]
    pub fn replace16(self, from: u16, to: u16) -> Sum {
        self.word(!from).word(to)
    }

    /// Like [`Sum::replace16`], for a 32-bit value at an even offset.
    #[inline(always)]
    #[must_use]
    pub fn replace32(self, from: u32, to: u32) -> Sum {
        self.value32(!from).value32(to)
    }

    /// Like [`Sum::replace16`], for equally long byte strings that start at an even offset.
    #[inline]
    #[must_use]
    pub fn replace_bytes(self, from: &[u8], to: &[u8]) -> Sum {
        debug_assert_eq!(from.len(), to.len());
        let words = from.len().div_ceil(2) as u64;
        let taken = Sum::default().bytes(from).0;
        // The complements of n words sum to n * 0xffff minus the sum of the words.
        Sum(self.0 + words * 0xffff - taken).bytes(to)
    }

    /// Folds the sum to 16 bits with end-around carry.
    #[inline(always)]
    #[must_use]
    pub fn fold(self) -> u16 {
        let sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }
}

/// Returns the checksum of bytes whose own checksum field is zero.
#[must_use]
pub fn checksum(sum: Sum) -> u16 {
    !sum.fold()
}

/// Updates a checksum with the changes collected in `change` (see the `replace` functions). The result is
/// never 0xffff.
#[inline(always)]
#[must_use]
pub fn update(checksum: u16, change: Sum) -> u16 {
    match !change.word(!checksum).fold() {
        0xffff => 0,
        updated => updated,
    }
}

/// Like [`update`], for UDP: 0 means "no checksum" and stays 0; a result of 0 becomes 0xffff.
#[inline(always)]
#[must_use]
pub fn update_udp(checksum: u16, change: Sum) -> u16 {
    if checksum == 0 {
        return 0;
    }
    match update(checksum, change) {
        0 => 0xffff,
        updated => updated,
    }
}
