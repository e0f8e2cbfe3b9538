//! The select hash is a specification and frozen here. Both hashes are checked for the properties that tables
//! and buckets need. Everything is seeded, so a test that passes once always passes.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use weir_packet::{FlowKey, IPV4_MARK, PROTOCOL_TCP, SelectIpv4, TableHash, select_hash};

/// A function of five words, like both hashes of flow keys.
type Hash<'h> = &'h dyn Fn(&[u64; 5]) -> u64;

/// A way to pick one of a number of buckets by a hash: its name, the number, and the function.
type HashPick = (&'static str, usize, fn(u64) -> usize);

/// Runs a check for select hashes with several seeds and table hashes with several secrets.
fn for_each_hash(check: impl Fn(&str, Hash<'_>)) {
    for seed in [0, 1, 2, 0xdead_beef, u64::MAX] {
        check(&format!("select, seed {seed:#x}"), &|key| select_hash(seed, key));
    }
    for secret in 0..5 {
        let table = TableHash::new([secret, secret.wrapping_mul(0x1234_5678_9abc_def1)]);
        check(&format!("table, secret {secret}"), &|key| table.hash(key));
    }
}

/// A generator of test data (Steele, Lea, Flood 2014), independent of the code under test.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn key(&mut self) -> [u64; 5] {
        std::array::from_fn(|_| self.next())
    }
}

fn ipv4_key(src: u32, dst: u32, sport: u16, dport: u16) -> [u64; 5] {
    let ip = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
    FlowKey::new(ip(src), ip(dst), PROTOCOL_TCP, (sport, dport), None).0
}

/// Keys as they occur in networks: consecutive addresses, consecutive ports, both at strides, and IPv6 with
/// one varying part.
fn key_sets() -> Vec<(&'static str, Vec<[u64; 5]>)> {
    const COUNT: u32 = 1 << 16;
    let set = |key: &dyn Fn(u32) -> [u64; 5]| (0..COUNT).map(key).collect::<Vec<_>>();
    let v6 = |word: usize, shift: u32| {
        move |n: u32| {
            let mut key = [0xfd00 << 48, 1, 0xfd00 << 48, 2, 40000 << 48 | 443 << 32 | 6 << 24];
            key[word] ^= u64::from(n) << shift;
            key
        }
    };
    vec![
        ("sources in a row", set(&|n| ipv4_key(0x0a00_0000 + n, 0x0a01_0001, 40000, 80))),
        ("destinations in a row", set(&|n| ipv4_key(0x0a00_0001, 0xc0a8_0000 + n, 40000, 80))),
        ("sources at stride 256", set(&|n| ipv4_key(n << 8, 0x0a01_0001, 40000, 80))),
        ("source ports", set(&|n| ipv4_key(0x0a00_0001, 0x0a01_0001, n as u16, 80))),
        ("destination ports", set(&|n| ipv4_key(0x0a00_0001, 0x0a01_0001, 40000, n as u16))),
        ("both ports together", set(&|n| ipv4_key(0x0a00_0001, 0x0a01_0001, n as u16, n as u16))),
        ("sources by ports", set(&|n| ipv4_key(0x0a00_0000 + (n >> 8), 0x0a01_0001, (n & 255) as u16, 80))),
        ("pairs of addresses", set(&|n| ipv4_key(0x0a00_0000 + (n >> 8), 0x0a01_0000 + (n & 255), 5000, 80))),
        ("equal addresses", set(&|n| ipv4_key(0x0a00_0000 + n, 0x0a00_0000 + n, 40000, 80))),
        ("IPv6 low source", set(&v6(1, 0))),
        ("IPv6 high half of an interface", set(&v6(3, 40))),
        ("IPv6 subnets", set(&v6(0, 0))),
        ("IPv6 top bits", set(&v6(1, 48))),
    ]
}

/// Returns how far the sum of squared deviations of `counts` from their mean is from that of random counts,
/// in standard deviations.
fn sigmas(counts: &[u32], total: usize) -> f64 {
    let mean = total as f64 / counts.len() as f64;
    let chi: f64 = counts.iter().map(|&count| (f64::from(count) - mean).powi(2) / mean).sum();
    let freedom = counts.len() as f64 - 1.0;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

fn index(hash: u64, buckets: usize) -> usize {
    ((u128::from(hash) * buckets as u128) >> 64) as usize
}

#[test]
fn buckets_are_filled_evenly() {
    for_each_hash(|name, hash| {
        for (set, keys) in key_sets() {
            let hashes: Vec<u64> = keys.iter().map(hash).collect();
            // Low bits, high bits, a number of buckets that is not a power of two, and bits in the middle.
            let views: [HashPick; 4] = [
                ("low 10 bits", 1024, |hash| (hash & 1023) as usize),
                ("high 10 bits", 1024, |hash| (hash >> 54) as usize),
                ("of 251", 251, |hash| index(hash, 251)),
                ("middle 8 bits", 256, |hash| (hash >> 28 & 255) as usize),
            ];
            for (view, buckets, place) in views {
                let mut counts = vec![0; buckets];
                hashes.iter().for_each(|&hash| counts[place(hash)] += 1);
                let off = sigmas(&counts, keys.len());
                // 520 samples: 5.5 sigma are rare enough, and too even is as suspicious as too uneven.
                assert!(off.abs() < 5.5, "{name}: {set}, {view}: {off:.1} sigma");
            }
        }
    });
}

#[test]
fn every_input_bit_flips_every_output_bit_half_of_the_time() {
    const ROUNDS: u32 = 400;
    for_each_hash(|name, hash| {
        let mut random = SplitMix(7);
        let keys: Vec<([u64; 5], u64)> =
            (0..ROUNDS).map(|_| random.key()).map(|key| (key, hash(&key))).collect();
        for bit in 0..320 {
            let mut flips = [0u32; 64];
            for (key, before) in &keys {
                let mut changed = *key;
                changed[bit / 64] ^= 1 << (bit % 64);
                let difference = before ^ hash(&changed);
                (0..64).for_each(|out| flips[out] += (difference >> out & 1) as u32);
            }
            for (out, &count) in flips.iter().enumerate() {
                // Sigma is 10 of 400; 20480 samples.
                let off = (f64::from(count) - 200.0) / 10.0;
                assert!(off.abs() < 6.0, "{name}: bit {bit} to {out}: {count} of {ROUNDS}");
            }
        }
    });
}

/// If two flipped bits cancelled out, anyone who can choose two fields could construct colliding flows.
#[test]
fn no_two_flipped_bits_cancel_out() {
    for_each_hash(|name, hash| {
        for seed in 0..8 {
            let key = SplitMix(seed).key();
            let mut seen = HashSet::from([hash(&key)]);
            for first in 0..320 {
                for second in first..320 {
                    let mut changed = key;
                    changed[first / 64] ^= 1 << (first % 64);
                    changed[second / 64] ^= 1 << (second % 64);
                    if first != second {
                        assert!(seen.insert(hash(&changed)), "{name}: bits {first} and {second}");
                    }
                }
            }
        }
    });
}

#[test]
fn neither_hash_is_linear() {
    for_each_hash(|name, hash| {
        let mut random = SplitMix(11);
        let mut linear = (0, 0);
        for _ in 0..10_000 {
            let (a, b, c) = (random.key(), random.key(), random.key());
            let exclusive: [u64; 5] = std::array::from_fn(|n| a[n] ^ b[n] ^ c[n]);
            let sum: [u64; 5] = std::array::from_fn(|n| a[n].wrapping_add(b[n]).wrapping_sub(c[n]));
            linear.0 += u32::from(hash(&a) ^ hash(&b) ^ hash(&c) == hash(&exclusive));
            linear.1 += u32::from(hash(&a).wrapping_add(hash(&b)).wrapping_sub(hash(&c)) == hash(&sum));
        }
        assert_eq!(linear, (0, 0), "{name}");
    });
}

/// A fleet balances twice with two seeds (a bond behind lb): the second choice must not follow from the
/// first.
#[test]
fn seeds_and_secrets_choose_independently() {
    for (one, other) in [(0, 1), (1, 2), (7, 1 << 32 | 7), (3, u64::MAX)] {
        let table = (TableHash::new([one, 5]), TableHash::new([other, 5]));
        for (set, keys) in key_sets() {
            let mut counts = (vec![0; 256], vec![0; 256]);
            for key in &keys {
                let place = |first: u64, second: u64| index(first, 16) * 16 + index(second, 16);
                counts.0[place(select_hash(one, key), select_hash(other, key))] += 1;
                counts.1[place(table.0.hash(key), table.1.hash(key))] += 1;
            }
            for counts in [counts.0, counts.1] {
                let off = sigmas(&counts, keys.len());
                assert!(off.abs() < 5.5, "seeds {one} and {other}: {set}: {off:.1} sigma");
            }
        }
    }
}

/// The specification in numbers, on which a fleet of mixed versions and eBPF C must agree. They never change.
#[test]
fn the_select_hash_is_frozen() {
    let tcp = [0xff00_0000_0000_0004, 0x0a00_0001, 0, 0x0a00_0002, 0x9c40_0050_0600_0000];
    let udp6 = [0xfd00 << 48, 1, 0xfd00 << 48, 2, 0x04d2_12b5_1100_0005];
    assert_eq!(tcp, ipv4_key(0x0a00_0001, 0x0a00_0002, 40000, 80));
    let vectors: [(u64, &[u64], u64); 15] = [
        (0, &[], 0xc2f3_4a21_2b77_6c6c),
        (0, &[0], 0x8b7f_11c0_c119_c9f9),
        (0, &[1], 0xb224_c8c2_ff9f_5c58),
        (0, &[u64::MAX], 0xaa01_ef17_242c_3f35),
        (0, &[1, 2, 3], 0x62cf_3b36_93ed_1cd6),
        (0, &tcp, 0x1912_f94d_e459_b4ef),
        (0, &udp6, 0x5ecb_2400_32a8_e297),
        (1, &[0], 0x0563_7d10_173d_a586),
        (1, &[u64::MAX], 0x00c1_be77_5ea6_550b),
        (1, &tcp, 0x7a52_0352_b8bd_20f2),
        (1, &udp6, 0x190d_0c2b_0b30_214f),
        (0xdead_beef_0bad_cafe, &[], 0x9102_300f_0565_7335),
        (0xdead_beef_0bad_cafe, &[1, 2, 3], 0xbfdb_c351_86d0_bd80),
        (0xdead_beef_0bad_cafe, &tcp, 0x2b2f_45fa_e892_3007),
        (0xdead_beef_0bad_cafe, &udp6, 0x3b1c_678d_248a_4689),
    ];
    for (seed, words, hash) in vectors {
        assert_eq!(select_hash(seed, words), hash, "seed {seed:#x}, words {words:x?}");
    }
}

/// The table hash with known secrets. Replays and eBPF depend on it, so any change must be intended.
#[test]
fn the_table_hash_is_known_for_known_secrets() {
    let tcp = ipv4_key(0x0a00_0001, 0x0a00_0002, 40000, 80);
    assert_eq!(TableHash::new([0, 0]).hash(&tcp), 0xaa41_d9dc_a9be_3ebd);
    assert_eq!(TableHash::new([1, 2]).hash(&tcp), 0x40d2_779f_48b1_1c35);
    assert_eq!(TableHash::new([u64::MAX, 3]).hash(&[7; 8]), 0xfc1f_3625_d4d6_801e);
}

#[test]
fn words_count_by_place_and_number() {
    let hash = |words: &[u64]| select_hash(7, words);
    let hashes =
        [hash(&[]), hash(&[0]), hash(&[0, 0]), hash(&[1]), hash(&[1, 0]), hash(&[0, 1]), hash(&[1, 1])];
    assert_eq!(HashSet::from(hashes).len(), hashes.len());
}

#[test]
fn equal_secrets_give_equal_tables() {
    let key = SplitMix(1).key();
    assert_eq!(TableHash::new([1, 2]).hash(&key), TableHash::new([1, 2]).hash(&key));
    assert_ne!(TableHash::new([1, 2]).hash(&key), TableHash::new([2, 1]).hash(&key));
    assert_ne!(TableHash::random().hash(&key), TableHash::random().hash(&key));
}

#[test]
fn ipv4_keys_are_hashed_side_by_side_as_one_by_one() {
    let mut random = SplitMix(7);
    for seed in [0, 1, 0xdead_beef, u64::MAX] {
        let side_by_side = SelectIpv4::new(seed);
        for _ in 0..100 {
            let addresses: [u64; 64] = std::array::from_fn(|_| random.next());
            let last: [u64; 64] = std::array::from_fn(|_| random.next());
            let mut hashes = [0; 64];
            side_by_side.hash_all(&addresses, &last, &mut hashes);
            for lane in 0..64 {
                let (source, destination) = (addresses[lane] >> 32, addresses[lane] & 0xffff_ffff);
                let key = [IPV4_MARK, source, 0, destination, last[lane]];
                assert_eq!(hashes[lane], select_hash(seed, &key));
                assert_eq!(side_by_side.hash(addresses[lane], last[lane]), hashes[lane]);
            }
        }
    }
}
