//! Incremental checksums equal those computed from scratch, and the two zeros of one's complement are
//! distinguished.

use proptest::prelude::*;
use weir_packet::{Sum, checksum, update, update_udp};

/// RFC 1071 §4.1, word by word with an end-around carry; shares no code with what it checks.
fn naive(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    !(sum as u16)
}

/// The words of a header that is not all zeros never sum to positive zero, so its checksum is never 0xffff.
fn canonical(checksum: u16) -> u16 {
    if checksum == 0xffff { 0 } else { checksum }
}

/// Bytes with many zeros and ones, where the two zeros of one's complement matter.
fn edgy(count: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0u8), Just(0xff), any::<u8>()];
    prop::collection::vec(byte, count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_whole_checksum_is_rfc_1071s(bytes in edgy(0..200)) {
        prop_assert_eq!(checksum(Sum::default().bytes(&bytes)), naive(&bytes));
    }

    #[test]
    fn an_update_equals_a_full_computation(bytes in edgy(2..120), at in any::<prop::sample::Index>(),
        new in edgy(1..40)) {
        let at = at.index(bytes.len()) & !1;
        let mut changed = bytes.clone();
        let count = new.len().min(bytes.len() - at);
        changed[at..at + count].copy_from_slice(&new[..count]);
        // A run of odd length may end in the middle of a word only at the end of the bytes.
        let end = if count % 2 == 1 && at + count < bytes.len() { at + count + 1 } else { at + count };
        let change = Sum::default().replace_bytes(&bytes[at..end], &changed[at..end]);
        let updated = update(naive(&bytes), change);
        prop_assert_eq!(updated, canonical(naive(&changed)));
        prop_assert_ne!(updated, 0xffff);
    }

    #[test]
    fn words_and_values_update_as_bytes_do(old in any::<u32>(), new in any::<u32>(), sum in any::<u16>()) {
        let bytes = Sum::default().replace_bytes(&old.to_be_bytes(), &new.to_be_bytes());
        let words = Sum::default().replace16((old >> 16) as u16, (new >> 16) as u16).replace16(old as u16,
            new as u16);
        let value = Sum::default().replace32(old, new);
        prop_assert_eq!(update(sum, bytes), update(sum, value));
        prop_assert_eq!(update(sum, words), update(sum, value));
        // Changed and changed back.
        let back = Sum::default().replace32(new, old);
        prop_assert_eq!(update(update(sum, value), back), canonical(sum));
    }

    #[test]
    fn changes_add_up(old in any::<[u16; 8]>(), new in any::<[u16; 8]>(), sum in any::<u16>()) {
        let one = |change: Sum, at: usize| change.replace16(old[at], new[at]);
        let together = update(sum, (0..8).fold(Sum::default(), one));
        let apart = (0..8).fold(sum, |sum, at| update(sum, one(Sum::default(), at)));
        prop_assert_eq!(together, apart);
    }

    #[test]
    fn udp_keeps_none_and_never_becomes_none(bytes in edgy(2..60), new in any::<u16>()) {
        let mut changed = bytes.clone();
        changed[..2].copy_from_slice(&new.to_be_bytes());
        let change = Sum::default().replace_bytes(&bytes[..2], &changed[..2]);
        prop_assert_eq!(update_udp(0, change), 0);
        let udp = |sum: u16| if sum == 0 { 0xffff } else { sum };
        prop_assert_eq!(update_udp(udp(naive(&bytes)), change), udp(canonical(naive(&changed))));
    }
}

#[test]
fn the_example_of_rfc_1624() {
    // §4: checksum 0xdd2f, 0x5555 becomes 0x3285; the corrected equation gives 0x0000 and not 0xffff.
    assert_eq!(update(0xdd2f, Sum::default().replace16(0x5555, 0x3285)), 0);
    assert_eq!(update_udp(0xdd2f, Sum::default().replace16(0x5555, 0x3285)), 0xffff);
}

#[test]
fn no_change_keeps_every_checksum_but_the_other_zero() {
    for sum in 0..=u16::MAX {
        for same in [0, 1, 0x8000, 0xffff] {
            let change = Sum::default().replace16(same, same);
            assert_eq!(update(sum, change), canonical(sum));
            assert_eq!(update_udp(sum, change), sum);
        }
        // 0 and 0xffff are the same number: replacing one by the other changes nothing.
        assert_eq!(update(sum, Sum::default().replace16(0, 0xffff)), canonical(sum));
        assert_eq!(update(sum, Sum::default().replace16(0xffff, 0)), canonical(sum));
    }
}

#[test]
fn large_sums_do_not_overflow() {
    let frame = vec![0xff; 65535];
    let sum = (0..1000).fold(Sum::default(), |sum, _| sum.bytes(&frame[..65534]));
    assert_eq!(sum.fold(), 0xffff);
    assert_eq!(Sum(u64::MAX).fold(), 0xffff);
}
