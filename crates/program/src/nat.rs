//! NAT pools: addresses and ports. A new flow takes an address and a port, with which its answers are
//! recognised.
//!
//! A pool is cut into 64 *slices* by port: port `n` is in slice `n % 64`. A flow takes from the slice that
//! its key belongs to, and a slice belongs to one worker. So a worker hands out ports without coordination,
//! and the destination port of an answer identifies its worker. Slices depend on ports and keys alone:
//! changing the number of workers or adding addresses moves no flow to another slice.

use crate::Origin;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{FlowKey, rss_hash};
use weir_table::NUMBERS_MAX;

/// The number of slices of every pool. Workers beyond this number would have none.
pub const SLICES: u32 = 64;

/// Maximum number of prefixes in a pool: an answer's address is compared with each.
pub const PREFIXES_MAX: usize = 16;

/// Maximum number of address and port pairs in a pool, so that a slice fits a [`weir_table::NumberSet`].
pub const PLACES_MAX: u64 = NUMBERS_MAX as u64 * SLICES as u64;

/// Addresses and ports for flows to take.
#[derive(Clone, Debug, PartialEq)]
pub struct NatPool {
    /// The name by which pipes and metrics refer to the pool; unique in the program.
    pub name: String,
    /// The pool's addresses, all of one family: prefixes in which every address is used.
    pub prefixes: Vec<NatPrefix>,
    /// The lowest port that flows may get, inclusive.
    pub first: u16,
    /// The highest port that flows may get, inclusive.
    pub last: u16,
    /// Place in the configuration.
    pub origin: Origin,
}

/// The addresses of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatPrefix {
    /// The prefix's first address: all bits after `length` are 0.
    pub first: IpAddr,
    /// The length of the prefix in bits.
    pub length: u8,
}

impl std::fmt::Display for NatPrefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.first, self.length)
    }
}

/// An address and a port from a pool.
pub type Binding = (IpAddr, u16);

impl NatPrefix {
    fn bits(self) -> u128 {
        number(self.first)
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn addresses(self) -> u128 {
        let width = if self.first.is_ipv4() { 32 } else { 128 };
        1_u128.checked_shl(width - u32::from(self.length)).unwrap_or(u128::MAX)
    }

    /// Returns the address at an offset, which is less than [`NatPrefix::addresses`].
    fn at(self, offset: u128) -> IpAddr {
        let bits = self.bits() + offset;
        match self.first {
            IpAddr::V4(_) => Ipv4Addr::from_bits(bits as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
        }
    }

    /// Returns true if the prefix contains this address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        self.offset(address).is_some()
    }

    /// Returns how many of the prefix's addresses come before `address`.
    fn offset(self, address: IpAddr) -> Option<u128> {
        let offset = number(address).checked_sub(self.bits()).filter(|offset| *offset < self.addresses());
        offset.filter(|_| self.first.is_ipv4() == address.is_ipv4())
    }

    /// Returns the same as [`NatPrefix::offset`] for a prefix of a pool, which has at most 2^24 addresses.
    fn place(self, address: IpAddr) -> Option<u32> {
        self.offset(address).map(|offset| offset as u32)
    }

    /// Returns true if the two have an address in common.
    #[must_use]
    pub fn overlaps(self, other: NatPrefix) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl NatPool {
    /// Whether the pool's addresses are IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.prefixes.first().is_none_or(|prefix| prefix.first.is_ipv4())
    }

    /// Returns how many address and port pairs the pool has.
    #[must_use]
    pub fn places(&self) -> u64 {
        let ports = u64::from(self.last).saturating_sub(u64::from(self.first)) + 1;
        u64::try_from(self.address_count()).unwrap_or(u64::MAX).saturating_mul(ports)
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn address_count(&self) -> u128 {
        self.prefixes.iter().fold(0_u128, |sum, prefix| sum.saturating_add(prefix.addresses()))
    }

    /// Iterates over the pool's addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.prefixes.iter().flat_map(|prefix| (0..prefix.addresses()).map(|offset| prefix.at(offset)))
    }

    /// Returns how many pairs the pool's smallest slice has. This number of flows find a pair, whatever their
    /// keys are.
    #[must_use]
    pub fn smallest_slice(&self) -> u64 {
        (0..SLICES).map(|slice| self.places_of(slice)).min().unwrap_or_default()
    }

    /// Returns how many of the pool's pairs are in a slice.
    pub fn places_of(&self, slice: u32) -> u64 {
        // Number of the slice's ports below a limit.
        let below = |limit: u32| (limit + SLICES - 1 - slice) / SLICES;
        let ports = below(u32::from(self.last) + 1) - below(self.first.into());
        self.address_count() as u64 * u64::from(ports)
    }

    /// Returns how many ports of an address are in each slice, rounded up.
    fn rounds(&self) -> u32 {
        u32::from(self.last) / SLICES - u32::from(self.first) / SLICES + 1
    }

    /// Returns an upper bound of the places that [`NatPool::place`] returns in a slice.
    #[must_use]
    pub fn bound(&self) -> u32 {
        u32::try_from(self.address_count()).unwrap_or(u32::MAX).saturating_mul(self.rounds())
    }

    /// Whether the pool contains this address.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.prefixes.iter().any(|prefix| prefix.contains(address))
    }

    /// Returns the slice of an address and a port, and the place in the slice; `None` if the pool does not
    /// have them.
    #[inline]
    #[must_use]
    pub fn place(&self, (address, port): Binding) -> Option<(u32, u32)> {
        if port < self.first || port > self.last {
            return None;
        }
        let mut before = 0;
        for prefix in &self.prefixes {
            if let Some(place) = prefix.place(address) {
                let round = u32::from(port) / SLICES - u32::from(self.first) / SLICES;
                return Some((u32::from(port) % SLICES, (before + place) * self.rounds() + round));
            }
            before += prefix.addresses() as u32;
        }
        None
    }

    /// Returns the address and the port at a place of a slice; `None` if the pool has no such place.
    #[must_use]
    pub fn binding(&self, slice: u32, place: u32) -> Option<Binding> {
        let port = (u32::from(self.first) / SLICES + place % self.rounds()) * SLICES + slice;
        let port = u16::try_from(port).ok().filter(|port| (self.first..=self.last).contains(port))?;
        let mut left = u128::from(place / self.rounds());
        for prefix in &self.prefixes {
            if left < prefix.addresses() {
                return Some((prefix.at(left), port));
            }
            left -= prefix.addresses();
        }
        None
    }

    /// Returns the slice of a flow: that of its destination if the pool contains it, as for answers;
    /// otherwise the lowest bits of the hash with which NICs distribute frames. If the number of workers
    /// divides 64, that is the worker whose queue the NIC chooses, where the NIC can be configured.
    #[inline]
    #[must_use]
    pub fn slice(&self, key: &FlowKey) -> u32 {
        let answer = if self.last >= key.dport() { self.place((key.dst(), key.dport())) } else { None };
        answer.map_or(rss_hash(key) % SLICES, |(slice, _)| slice)
    }

    /// Returns the worker of a slice, given the number of workers.
    #[inline]
    #[must_use]
    pub fn worker(slice: u32, workers: usize) -> usize {
        slice as usize % workers.max(1)
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(prefixes: &[(&str, u8)], first: u16, last: u16) -> NatPool {
        let prefix =
            |(first, length): &(&str, u8)| NatPrefix { first: first.parse().unwrap(), length: *length };
        let prefixes = prefixes.iter().map(prefix).collect();
        NatPool { name: "out".into(), prefixes, first, last, origin: Origin::default() }
    }

    #[test]
    fn every_address_and_port_has_one_place_and_every_place_is_of_one() {
        for (first, last) in [(1024, 1087), (1000, 1200), (0, 63), (65_472, 65_535), (63, 129)] {
            let pool = pool(&[("192.0.2.4", 30), ("198.51.100.1", 32)], first, last);
            let mut seen = std::collections::HashSet::new();
            let all = (0..SLICES).flat_map(|slice| (0..pool.bound()).map(move |place| (slice, place)));
            for (slice, place) in all {
                let Some(binding) = pool.binding(slice, place) else { continue };
                assert_eq!(pool.place(binding), Some((slice, place)), "{binding:?}");
                assert!(seen.insert(binding));
            }
            assert_eq!(seen.len() as u64, pool.places());
            assert_eq!(pool.places(), 5 * (u64::from(last - first) + 1));
            for slice in 0..SLICES {
                let held = (0..pool.bound()).filter(|place| pool.binding(slice, *place).is_some()).count();
                assert_eq!(pool.places_of(slice), held as u64);
            }
            let least = (0..SLICES).map(|slice| pool.places_of(slice)).min();
            assert_eq!(Some(pool.smallest_slice()), least);
            let addresses: std::collections::HashSet<IpAddr> =
                seen.iter().map(|(address, _)| *address).collect();
            assert_eq!(pool.addresses().collect::<std::collections::HashSet<_>>(), addresses);
        }
    }

    #[test]
    fn an_answer_is_of_the_slice_of_its_port_and_more_addresses_move_none() {
        let small = pool(&[("192.0.2.4", 32)], 1024, 2047);
        let large = pool(&[("203.0.113.0", 24), ("192.0.2.4", 32)], 1024, 65_535);
        let key = |dst: &str, dport| {
            FlowKey::new("10.0.0.1".parse().unwrap(), dst.parse().unwrap(), 6, (7, dport), None)
        };
        for port in 1024..2048 {
            assert_eq!(small.slice(&key("192.0.2.4", port)), u32::from(port) % SLICES);
            assert_eq!(large.slice(&key("192.0.2.4", port)), u32::from(port) % SLICES);
        }
        let elsewhere = key("192.0.2.5", 1024);
        assert_eq!(small.slice(&elsewhere), rss_hash(&elsewhere) % SLICES);
        let slices = (0..640).map(|port| small.slice(&key("192.0.2.9", port)));
        assert_eq!(slices.collect::<std::collections::BTreeSet<u32>>().len(), 64, "flows use all slices");
    }

    #[test]
    fn prefixes_of_ipv6_have_places_too() {
        let pool = pool(&[("2001:db8::8", 125)], 1024, 65_535);
        assert_eq!(pool.places(), 8 * 64_512);
        let (slice, place) = pool.place(("2001:db8::f".parse().unwrap(), 65_535)).unwrap();
        assert_eq!(pool.binding(slice, place), Some(("2001:db8::f".parse().unwrap(), 65_535)));
        assert!(!pool.has("2001:db8::10".parse().unwrap()) && !pool.has("10.0.0.1".parse().unwrap()));
        let [whole, part] = [("2001:db8::", 64), ("2001:db8::1:0:0:0", 120)]
            .map(|(first, length)| NatPrefix { first: first.parse().unwrap(), length });
        assert!(whole.overlaps(part) && part.overlaps(whole), "also beyond 2^32 addresses");
    }
}
