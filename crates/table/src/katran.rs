//! Katran's ring, and the hash with which a flow finds its slot, both compatible bit for bit: a node of weir
//! sends each flow where a node of Katran with the same back ends and weights does.
//!
//! The ring has [`RING`] slots. A back end is known by its address, whose hash is that of folly's
//! `IPAddress`; back ends take turns in the order of these hashes, each through a permutation of the slots
//! that MurmurHash3 derives from it. The two versions of the weight rule are Katran's `MaglevHash` (V1, its
//! default) and `MaglevHashV2`.
//!
//! Written from the published algorithm, and checked by the packets of Katran's own tests and by a second
//! implementation in another language (tests/vectors).

use crate::NO_TARGET;
use crate::bucket::TARGETS_MAX;
use crate::published::{combine, fnv32_signed, jhash_of_2, jhash_of_16, murmur3_of_2, spooky_of_16};
use std::net::IpAddr;
use weir_packet::FlowKey;

/// The number of slots of Katran's rings.
pub const RING: usize = 65_537;

/// A back end, as Katran sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KatranTarget {
    /// The back end's address, from which its place in the ring is computed.
    pub address: IpAddr,
    /// The back end's weight; 0 leaves it out.
    pub weight: u32,
}

/// How weights count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KatranVersion {
    /// In its first turn, a back end takes as many slots as its weight, and in every further turn one slot.
    V1,
    /// Slots are proportional to weights: each turn adds its weight to a back end's credit, and a slot costs
    /// the largest weight.
    V2,
}

/// Fills a ring of `size` slots, a prime up to [`RING`] (which Katran has), with positions in `targets`.
///
/// Without a back end of weight above 0, no slot has a target. Back ends beyond 65535 get none.
#[must_use]
pub fn fill_katran(targets: &[KatranTarget], version: KatranVersion, size: usize) -> Vec<u16> {
    let size = size.clamp(2, RING);
    let live = (0..=u16::MAX).zip(targets.iter().take(TARGETS_MAX)).filter(|(_, target)| target.weight > 0);
    let walk = |(at, target): (u16, &KatranTarget)| {
        KatranPermutation::new(at, address_hash(target.address), target.weight, size)
    };
    fill(live.map(walk).collect(), version, size)
}

/// Fills a ring with the back ends that have a weight, in any order.
fn fill(mut walks: Vec<KatranPermutation>, version: KatranVersion, size: usize) -> Vec<u16> {
    walks.sort_by_key(|walk| walk.hash);
    let mut slots = vec![NO_TARGET; size];
    if let [only] = walks[..] {
        slots.fill(only.target);
        return slots;
    }
    let price = walks.iter().map(|walk| walk.weight).max().unwrap_or(0);
    let mut free = if walks.is_empty() { 0 } else { size };
    while free > 0 {
        for walk in &mut walks {
            let turns = match version {
                KatranVersion::V1 => std::mem::replace(&mut walk.weight, 1),
                KatranVersion::V2 => walk.afford(price),
            };
            for _ in 0..turns.min(free as u64) {
                walk.take(&mut slots);
                free -= 1;
            }
        }
    }
    slots
}

/// A back end's progress through its permutation of the slots.
#[derive(Clone, Copy)]
struct KatranPermutation {
    hash: u64,
    target: u16,
    weight: u64,
    credit: u64,
    offset: u32,
    skip: u32,
    next: u32,
}

impl KatranPermutation {
    fn new(target: u16, hash: u64, weight: u32, size: usize) -> KatranPermutation {
        let size = size as u64;
        KatranPermutation {
            hash,
            target,
            weight: u64::from(weight),
            credit: 0,
            offset: (murmur3_of_2(hash, 42, 0) % size) as u32,
            skip: (murmur3_of_2(hash, 2_718_281_828, 2307) % (size - 1) + 1) as u32,
            next: 0,
        }
    }

    /// Returns how many slots the back end can pay for in this turn: 1 or 0.
    fn afford(&mut self, price: u64) -> u64 {
        self.credit += self.weight;
        let can = self.credit >= price;
        self.credit -= if can { price } else { 0 };
        u64::from(can)
    }

    /// Takes the next free slot; there must be one.
    ///
    /// Katran computes with 32 bits that wrap around, so a walk may never reach a slot that no other back end
    /// takes, and Katran would loop forever. Here, after a walk that has visited every slot it can, the first
    /// free slot is taken.
    fn take(&mut self, slots: &mut [u16]) {
        let size = slots.len() as u32;
        for _ in 0..1 << 18 {
            let at = self.offset.wrapping_add(self.next.wrapping_mul(self.skip)) % size;
            self.next = self.next.wrapping_add(1);
            if slots[at as usize] == NO_TARGET {
                slots[at as usize] = self.target;
                return;
            }
        }
        slots.iter_mut().find(|slot| **slot == NO_TARGET).into_iter().for_each(|slot| *slot = self.target);
    }
}

/// Returns the hash of an address as folly's `IPAddress::hash` computes it: of the family's number on Linux,
/// and of the bytes.
#[must_use]
pub fn address_hash(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => combine(2, u64::from(fnv32_signed(&address.octets()))),
        IpAddr::V6(address) => {
            let [first, second] = spooky_of_16(address.octets());
            combine(10, combine(first, second))
        }
    }
}

/// Which parts of a flow determine its slot, according to the flags of its VIP in Katran. The default: source
/// and both ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KatranHash {
    /// The VIP has no port of its own but accepts all ports: the destination port does not count.
    pub any_port: bool,
    /// `NO_SPORT`: the source port does not count.
    pub no_sport: bool,
    /// `DPORT_HASH`: only the destination port counts.
    pub dport_only: bool,
}

impl KatranHash {
    /// Returns the hash of a flow.
    #[inline]
    #[must_use]
    pub fn hash(&self, flow: &FlowKey) -> u32 {
        // The seed is the number of VIPs that Katran is built for, times the ring's size.
        const SEED_IPV6: u32 = 512;
        const SEED: u32 = SEED_IPV6 * RING as u32;
        let (sport, dport) = (flow.sport(), flow.dport());
        let (sport, dport) = match *self {
            KatranHash { dport_only: true, .. } => (dport, dport),
            KatranHash { any_port, no_sport, .. } => {
                (if no_sport { 0 } else { sport }, if any_port { 0 } else { dport })
            }
        };
        let ports = u32::from(sport.swap_bytes()) | u32::from(dport.swap_bytes()) << 16;
        let source = match flow.src() {
            IpAddr::V4(_) if self.dport_only => 0,
            IpAddr::V4(source) => source.to_bits().swap_bytes(),
            IpAddr::V6(source) => {
                let bits = if self.dport_only { 0 } else { source.to_bits() };
                let word = |shift: u32| ((bits >> shift) as u32).swap_bytes();
                jhash_of_16([word(96), word(64), word(32), word(0)], SEED_IPV6)
            }
        };
        jhash_of_2(source, ports, SEED)
    }

    /// Returns the slot of a flow in a ring of [`RING`] slots.
    #[inline]
    #[must_use]
    pub fn slot(&self, flow: &FlowKey) -> usize {
        self.hash(flow) as usize % RING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KatranVersion::{V1, V2};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn targets(addresses: &[&str]) -> Vec<KatranTarget> {
        addresses.iter().map(|address| KatranTarget { address: ip(address), weight: 1 }).collect()
    }

    /// Where a flow goes, in both versions.
    fn to<'a>(reals: &[&'a str], hash: KatranHash, source: &str, ports: (u16, u16)) -> &'a str {
        let source = ip(source);
        let vip = if source.is_ipv4() { ip("10.200.1.1") } else { ip("fc00:1::1") };
        let flow = FlowKey::new(source, vip, 6, ports, None);
        let [one, other] = [V1, V2].map(|version| fill_katran(&targets(reals), version, RING));
        assert_eq!(one, other, "with equal weights, both versions are the same");
        reals[usize::from(one[hash.slot(&flow)])]
    }

    const V4: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    const V6: [&str; 3] = ["fc00::1", "fc00::2", "fc00::3"];
    const ALL: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fc00::1", "fc00::2", "fc00::3"];

    /// The packets of Katran's own tests (katran/lib/testing/fixtures), with the back ends to which Katran
    /// expects them to go.
    #[test]
    fn packets_of_katrans_tests_go_where_katran_sends_them() {
        let (plain, client) = (KatranHash::default(), "192.168.1.1");
        let any_port = KatranHash { any_port: true, ..plain };
        let dport_only = KatranHash { dport_only: true, ..any_port };
        assert_eq!(to(&V4, plain, client, (31337, 80)), "10.0.0.3");
        assert_eq!(to(&V4, any_port, client, (31337, 42)), "10.0.0.2");
        assert_eq!(to(&V4, dport_only, client, (31337, 42)), "10.0.0.2");
        assert_eq!(to(&V4, dport_only, "192.168.1.100", (1337, 42)), "10.0.0.2");
        assert_eq!(to(&V4, plain, "192.168.1.42", (31337, 443)), "10.0.0.2");
        assert_eq!(to(&V4, plain, "192.168.1.42", (31337, 80)), "10.0.0.3");
        assert_eq!(to(&V6, plain, client, (31337, 80)), "fc00::1");
        assert_eq!(to(&V6, plain, "fc00:2::1", (31337, 80)), "fc00::3");
        assert_eq!(to(&V6, plain, "fc00:2::42", (31337, 443)), "fc00::1");
        // Both families in one ring, and then without the back end that has the slot.
        assert_eq!(to(&ALL, plain, "10.0.0.1", (31337, 80)), "10.0.0.2");
        let without: Vec<&str> = ALL.into_iter().filter(|address| *address != "10.0.0.2").collect();
        assert_eq!(to(&without, plain, "10.0.0.1", (31337, 80)), "fc00::2");
    }

    fn counts(weights: &[u32], version: KatranVersion, size: usize) -> Vec<usize> {
        let weigh = |(at, &weight): (u8, &u32)| KatranTarget { address: [10, 0, 0, at].into(), weight };
        let targets: Vec<_> = (0..).zip(weights).map(weigh).collect();
        crate::bucket::held(&fill_katran(&targets, version, size), weights.len())
    }

    /// Katran's MaglevHashTest expects these results for weights 2 and 1 in a ring of 7, in any order.
    #[test]
    fn weights_count_as_the_two_versions_count_them() {
        assert!([[4, 3], [5, 2]].map(Vec::from).contains(&counts(&[2, 1], V1, 7)));
        assert_eq!(counts(&[2, 1], V2, 7), [5, 2]);
        assert_eq!(counts(&[0, 3], V1, 7), [0, 7]);
        assert_eq!(counts(&[0, 0], V2, 7), [0, 0]);
        let counts = counts(&[1, 2, 3, 4], V2, RING);
        assert!(
            counts.iter().zip([6554, 13107, 19661, 26215]).all(|(count, share)| count.abs_diff(share) < 3)
        );
    }

    /// 400 back ends of equal weight differ by one slot, as in Katran's CHHelpersTest.
    #[test]
    fn equal_weights_differ_by_one_slot() {
        let address = |at: u32| KatranTarget { address: IpAddr::V4((0x0A00_0000 + at).into()), weight: 1 };
        let targets: Vec<_> = (0..400).map(address).collect();
        let counts = crate::bucket::held(&fill_katran(&targets, V1, RING), 400);
        assert_eq!(counts.iter().max().unwrap() - counts.iter().min().unwrap(), 1);
    }

    /// How many slots change when the set of back ends changes, as in Katran's VipTest, where back end `n`
    /// has the hash `n`.
    #[test]
    fn rings_change_as_katrans_vip_test_says() {
        let ring = |version, weights: &[u32]| {
            let live = (0..).zip(weights).filter(|(_, weight)| **weight > 0);
            fill(
                live.map(|(at, &weight)| KatranPermutation::new(at, at.into(), weight, RING)).collect(),
                version,
                RING,
            )
        };
        let moved = |version, old: &[u32], new: &[u32]| {
            ring(version, old).iter().zip(ring(version, new)).filter(|(old, new)| *old != new).count()
        };
        let hundred = |first, weight| [vec![first], vec![weight; 99]].concat();
        for (version, removed, heavier, one_heavier) in [(V1, 1009, 17, 109), (V2, 1020, 0, 1013)] {
            assert_eq!(moved(version, &hundred(10, 10), &hundred(0, 10)), removed);
            assert_eq!(moved(version, &hundred(10, 10), &hundred(13, 13)), heavier);
            assert_eq!(moved(version, &hundred(13, 13), &hundred(26, 13)), one_heavier);
            assert_eq!(moved(version, &[1, 0], &[1, 1]), 32768);
        }
    }

    #[test]
    fn what_a_vip_leaves_out_does_not_count() {
        let flow = |source: &str, ports| FlowKey::new(ip(source), ip("10.9.9.9"), 17, ports, None);
        let no_sport = KatranHash { no_sport: true, ..KatranHash::default() };
        assert_eq!(no_sport.hash(&flow("10.1.1.1", (5, 80))), no_sport.hash(&flow("10.1.1.1", (6, 80))));
        assert_ne!(no_sport.hash(&flow("10.1.1.1", (5, 80))), no_sport.hash(&flow("10.1.1.1", (5, 81))));
        assert_eq!(KatranHash::default().hash(&flow("192.168.1.1", (31337, 80))), 0xC7E6_8632);
    }
}
