//! Published hash functions, for tables and flows that must agree bit for bit with other systems.
//!
//! None of these functions is used where weir is free to choose a hash. Only the parts that are needed are
//! implemented: Katran's ring and flow hash ([`crate::katran`]) are made of FNV-1, SpookyHash V2, MurmurHash3
//! and Jenkins's lookup3, and the GLB director's ([`crate::glb`]) of SipHash.

/// 32-bit FNV-1 (draft-eastlake-fnv), but over signed bytes, as in folly: a byte above 127 flips the upper 24
/// bits as well.
#[must_use]
pub fn fnv32_signed(bytes: &[u8]) -> u32 {
    let step = |hash: u32, &byte: &u8| hash.wrapping_mul(0x0100_0193) ^ i32::from(byte as i8) as u32;
    bytes.iter().fold(0x811C_9DC5, step)
}

/// SpookyHash V2 (Jenkins 2012), 128 bits with both seeds 0, of exactly 16 bytes.
#[must_use]
pub fn spooky_of_16(bytes: [u8; 16]) -> [u64; 2] {
    const MARK: u64 = 0xDEAD_BEEF_DEAD_BEEF;
    const MIX: [u32; 12] = [50, 52, 30, 41, 54, 48, 38, 37, 62, 34, 5, 36];
    const END: [u32; 11] = [15, 52, 26, 51, 28, 9, 47, 54, 32, 25, 63];
    let both = u128::from_le_bytes(bytes);
    let mut state = [0, 0, MARK.wrapping_add(both as u64), MARK.wrapping_add((both >> 64) as u64)];
    for (step, rotation) in MIX.into_iter().enumerate() {
        let (this, next, far) = ((step + 2) % 4, (step + 3) % 4, step % 4);
        state[this] = state[this].rotate_left(rotation).wrapping_add(state[next]);
        state[far] ^= state[this];
    }
    state[2] = state[2].wrapping_add(MARK);
    state[3] = state[3].wrapping_add(MARK).wrapping_add(16 << 56);
    for (step, rotation) in END.into_iter().enumerate() {
        let (this, last) = ((step + 3) % 4, (step + 2) % 4);
        state[this] ^= state[last];
        state[last] = state[last].rotate_left(rotation);
        state[this] = state[this].wrapping_add(state[last]);
    }
    [state[0], state[1]]
}

/// CityHash's Hash128to64, as in folly.
#[must_use]
pub fn combine(upper: u64, lower: u64) -> u64 {
    const FACTOR: u64 = 0x9DDF_EA08_EB38_2D69;
    let fold = |word: u64| word ^ word >> 47;
    let first = fold((lower ^ upper).wrapping_mul(FACTOR));
    fold((upper ^ first).wrapping_mul(FACTOR)).wrapping_mul(FACTOR)
}

/// The first half of MurmurHash3_x64_128 (Appleby) of two words, 16 bytes in little-endian order.
#[must_use]
pub fn murmur3_of_2(first: u64, second: u64, seed: u32) -> u64 {
    const C1: u64 = 0x87C3_7B91_1142_53D5;
    const C2: u64 = 0x4CF5_AD43_2745_937F;
    let k1 = first.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let k2 = second.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let seed = u64::from(seed);
    let h1 = (seed ^ k1).rotate_left(27).wrapping_add(seed);
    let h1 = h1.wrapping_mul(5).wrapping_add(0x52DC_E729);
    let h2 = (seed ^ k2).rotate_left(31).wrapping_add(h1);
    let h2 = h2.wrapping_mul(5).wrapping_add(0x3849_5AB5);
    let (h1, h2) = (h1 ^ 16, h2 ^ 16);
    let h1 = h1.wrapping_add(h2);
    let h2 = h2.wrapping_add(h1);
    murmur3_finish(h1).wrapping_add(murmur3_finish(h2))
}

fn murmur3_finish(word: u64) -> u64 {
    let word = (word ^ word >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let word = (word ^ word >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    word ^ word >> 33
}

/// The initial value of lookup3 (Jenkins 2006), and therefore of the kernel's jhash.
const JHASH_BEGIN: u32 = 0xDEAD_BEEF;

/// The kernel's `jhash_2words`.
#[inline]
#[must_use]
pub fn jhash_of_2(first: u32, second: u32, seed: u32) -> u32 {
    let begin = seed.wrapping_add(JHASH_BEGIN).wrapping_add(2 << 2);
    jhash_finish([first.wrapping_add(begin), second.wrapping_add(begin), begin])
}

/// The kernel's `jhash` of 16 bytes, given as four words in little-endian order.
#[inline]
#[must_use]
pub fn jhash_of_16(words: [u32; 4], seed: u32) -> u32 {
    let begin = seed.wrapping_add(JHASH_BEGIN).wrapping_add(16);
    let [mut a, mut b, mut c] = [0, 1, 2].map(|at: usize| begin.wrapping_add(words[at]));
    a = a.wrapping_sub(c) ^ c.rotate_left(4);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(6);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(8);
    b = b.wrapping_add(a);
    a = a.wrapping_sub(c) ^ c.rotate_left(16);
    c = c.wrapping_add(b);
    b = b.wrapping_sub(a) ^ a.rotate_left(19);
    a = a.wrapping_add(c);
    c = c.wrapping_sub(b) ^ b.rotate_left(4);
    b = b.wrapping_add(a);
    jhash_finish([a.wrapping_add(words[3]), b, c])
}

#[inline]
fn jhash_finish([mut a, mut b, mut c]: [u32; 3]) -> u32 {
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// SipHash-2-4 (Aumasson, Bernstein 2012) with a key of 16 bytes.
#[must_use]
pub fn siphash24(key: [u8; 16], message: &[u8]) -> u64 {
    let key = u128::from_le_bytes(key);
    let (k0, k1) = (key as u64, (key >> 64) as u64);
    let mut state = [
        k0 ^ 0x736F_6D65_7073_6575,
        k1 ^ 0x646F_7261_6E64_6F6D,
        k0 ^ 0x6C79_6765_6E65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64| {
        state[3] ^= word;
        sip_rounds(&mut state, 2);
        state[0] ^= word;
    };
    let words = message.chunks_exact(8);
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    last[7] = message.len() as u8;
    for word in words {
        absorb(u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    absorb(u64::from_le_bytes(last));
    state[2] ^= 0xFF;
    sip_rounds(&mut state, 4);
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

#[inline]
fn sip_rounds([v0, v1, v2, v3]: &mut [u64; 4], rounds: usize) {
    for _ in 0..rounds {
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32).wrapping_add(*v3);
        *v2 = v2.wrapping_add(*v1);
        *v3 = v3.rotate_left(21) ^ *v0;
        *v1 = v1.rotate_left(17) ^ *v2;
        *v2 = v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the paper, appendix A, and the first of the vectors that its authors publish.
    #[test]
    fn siphash_gives_the_papers_results() {
        let key: [u8; 16] = std::array::from_fn(|at| at as u8);
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash24(key, &message), 0xA129_CA61_49BE_45E5);
        assert_eq!(siphash24(key, &[]), 0x726F_DB47_DD0E_0E31);
        assert_eq!(siphash24(key, &message[..8]), 0x93F5_F579_9A93_2462);
    }

    /// From Jenkins's own test: byte i is i + 128; his list, entry 16, holds the lower 32 bits.
    #[test]
    fn spooky_gives_its_authors_result() {
        let [low, _] = spooky_of_16(std::array::from_fn(|at| at as u8 + 128));
        assert_eq!(low as u32, 0xF274_736C);
    }

    /// The standard library's SipHasher is SipHash-2-4, too.
    #[test]
    #[expect(deprecated, reason = "deprecated as a `HashMap` hasher, still a good oracle")]
    fn siphash_is_that_of_the_standard_library() {
        use std::hash::{Hasher, SipHasher};
        let message: Vec<u8> = (0..60_u8).map(|byte| byte.wrapping_mul(37) ^ 0x5A).collect();
        for length in 0..60 {
            let mut hasher = SipHasher::new_with_keys(0x0706_0504_0302_0100, 0x0F0E_0D0C_0B0A_0908);
            hasher.write(&message[..length]);
            let key = std::array::from_fn(|at| at as u8);
            assert_eq!(siphash24(key, &message[..length]), hasher.finish(), "{length} bytes");
        }
    }

    #[test]
    fn fnv_takes_bytes_as_signed() {
        // Below 128 it is FNV-1: "a" gives 0x050c5d7e in the table of Noll's reference implementation.
        assert_eq!(fnv32_signed(b"a"), 0x050C_5D7E);
        assert_eq!(fnv32_signed(&[0x80]), 0x811C_9DC5_u32.wrapping_mul(0x0100_0193) ^ 0xFFFF_FF80);
    }
}
