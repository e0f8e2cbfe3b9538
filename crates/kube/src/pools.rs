//! Pools of addresses, and who gets which.

use serde::Deserialize;
use serde::de::Error as _;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All pools, in the order of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Pools(pub Vec<Pool>);

/// A pool.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// The name, by which objects ask for an address of this pool.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<Range>,
    /// Whether objects that ask for no pool get its addresses.
    #[serde(default = "yes")]
    pub automatic: bool,
}

fn yes() -> bool {
    true
}

/// The version of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpVersion {
    /// IPv4.
    Four,
    /// IPv6.
    Six,
}

impl IpVersion {
    /// Returns the version of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> IpVersion {
        if address.is_ipv6() { IpVersion::Six } else { IpVersion::Four }
    }
}

/// Addresses of one version, first and last: an address, `FIRST-LAST` or a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    family: IpVersion,
    first: u128,
    last: u128,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(four) => u128::from(four.to_bits()),
        IpAddr::V6(six) => six.to_bits(),
    }
}

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let address = |text: &str| text.trim().parse::<IpAddr>().ok();
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (address(first)?, address(last)?)
        } else if let Some((base, length)) = text.split_once('/') {
            let base = address(base)?;
            let bits: u32 = if base.is_ipv6() { 128 } else { 32 };
            let length: u32 = length.parse().ok().filter(|length| *length <= bits)?;
            let mask = if length == bits { 0 } else { u128::MAX >> (128 - (bits - length)) };
            let first = number(base);
            return (first & mask == 0).then_some(Range {
                family: IpVersion::of(base),
                first,
                last: first | mask,
            });
        } else {
            (address(text)?, address(text)?)
        };
        let range = Range { family: IpVersion::of(first), first: number(first), last: number(last) };
        (first.is_ipv6() == last.is_ipv6() && range.first <= range.last).then_some(range)
    }

    fn address(self, at: u128) -> IpAddr {
        match self.family {
            // A range of IPv4 has numbers of 32 bits.
            IpVersion::Four => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(at).unwrap_or(u32::MAX))),
            IpVersion::Six => IpAddr::V6(Ipv6Addr::from_bits(at)),
        }
    }

    fn has(self, address: IpAddr) -> bool {
        IpVersion::of(address) == self.family && (self.first..=self.last).contains(&number(address))
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Range, D::Error> {
        let text = String::deserialize(from)?;
        let why = format!("`{text}` is not an address, FIRST-LAST, or a prefix without bits after it");
        Range::parse(&text).ok_or_else(|| D::Error::custom(why))
    }
}

impl Pools {
    /// Checks that no address is in two pools.
    ///
    /// # Errors
    /// The text names both pools and an address.
    pub fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        let mut ranges: Vec<(Range, &str)> = Vec::new();
        for pool in &self.0 {
            if !names.insert(&pool.name) {
                return Err(format!("pool `{}`: another pool has the same name", pool.name));
            }
            ranges.extend(pool.addresses.iter().map(|range| (*range, pool.name.as_str())));
        }
        ranges.sort_by_key(|(range, _)| (range.family, range.first));
        for pair in ranges.windows(2) {
            let ((a, one), (b, other)) = (pair[0], pair[1]);
            if a.family == b.family && b.first <= a.last {
                let address = b.address(b.first);
                return Err(format!(
                    "pool `{other}`: {address} is also in pool `{one}`; each address is in one pool"
                ));
            }
        }
        Ok(())
    }

    fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|pool| pool.has(address))
    }

    /// Whether objects that ask for this pool, or for none, may get addresses of this version.
    #[must_use]
    pub fn offer(&self, family: IpVersion, name: Option<&str>) -> bool {
        let has = |pool: &Pool| pool.addresses.iter().any(|range| range.family == family);
        self.0.iter().any(|pool| pool.is_meant(name) && has(pool))
    }
}

impl Pool {
    fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|range| range.has(address))
    }

    /// Whether objects that ask for the pool with this name, or for none, may get its addresses.
    fn is_meant(&self, name: Option<&str>) -> bool {
        name.map_or(self.automatic, |name| self.name == name)
    }
}

/// What an object asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Want {
    /// The addresses that it has now, by its status.
    pub current: Vec<IpAddr>,
    /// What it asks for.
    pub asked: AddressRequest,
}

/// What an object asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressRequest {
    /// Certain addresses.
    Addresses(Vec<IpAddr>),
    /// An address of each version, from a pool or from any.
    Families(Vec<IpVersion>, Option<String>),
    /// Certain addresses, and an address of each version that these do not have.
    Both(Vec<IpAddr>, Vec<IpVersion>, Option<String>),
    /// What cannot be understood: the object keeps what it has.
    Wrong,
}

impl AddressRequest {
    /// Returns the certain addresses.
    fn addresses(&self) -> &[IpAddr] {
        match self {
            AddressRequest::Addresses(addresses) | AddressRequest::Both(addresses, ..) => addresses,
            AddressRequest::Families(..) | AddressRequest::Wrong => &[],
        }
    }

    /// Returns the versions of which any address will do, and the pool.
    fn families(&self) -> Option<(&[IpVersion], Option<&str>)> {
        match self {
            AddressRequest::Families(families, pool) | AddressRequest::Both(_, families, pool) => {
                Some((families, pool.as_deref()))
            }
            AddressRequest::Addresses(_) | AddressRequest::Wrong => None,
        }
    }
}

impl Default for AddressRequest {
    fn default() -> AddressRequest {
        AddressRequest::Families(Vec::new(), None)
    }
}

/// What an object gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Why they are not those that it asks for.
    pub problem: Option<Shortage>,
}

/// Why an object does not get the addresses that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// No pool has a free address of this version.
    Exhausted(IpVersion),
    /// No pool has this address.
    Outside(IpAddr),
    /// Another object has this address.
    Taken(IpAddr),
}

/// Assigns addresses to objects; earlier ones take precedence. An object keeps the addresses that
/// its status has as long as they are in a pool and it does not ask for others that it can get.
#[must_use]
pub fn give(pools: &Pools, wants: &[&Want]) -> Vec<Given> {
    let mut taken: BTreeMap<IpAddr, usize> = BTreeMap::new();
    let mut all = vec![Given::default(); wants.len()];
    for (at, want) in wants.iter().enumerate() {
        for address in want.current.iter().filter(|address| pools.has(**address)) {
            if *taken.entry(*address).or_insert(at) == at && !all[at].addresses.contains(address) {
                all[at].addresses.push(*address);
            }
        }
    }
    give_certain(pools, wants, &mut taken, &mut all);
    // Where the search for a free address begins in each range. It never goes back: addresses below it
    // that an object gives up go to others only the next time.
    let mut free = Cursor::default();
    for (at, want) in wants.iter().enumerate() {
        let Some((families, pool)) = want.asked.families().filter(|_| all[at].problem.is_none()) else {
            continue;
        };
        let suits = |address: IpAddr| {
            pool.is_none_or(|name| pools.0.iter().any(|one| one.name == name && one.has(address)))
        };
        let before = std::mem::take(&mut all[at].addresses);
        let mut problem = None;
        let mut now = want.asked.addresses().to_vec();
        for family in families {
            let of_family = |address: &&IpAddr| IpVersion::of(**address) == *family;
            let kept = before.iter().filter(of_family).find(|address| suits(**address));
            let fresh = || free.next(pools, pool, *family, &taken);
            let found = kept.copied().or_else(fresh);
            if found.is_none() {
                problem = problem.or(Some(Shortage::Exhausted(*family)));
            }
            // An address of another pool is better than none.
            let found = found.or_else(|| before.iter().find(of_family).copied());
            taken.extend(found.map(|address| (address, at)));
            now.extend(found);
        }
        let gone: Vec<IpAddr> = before.into_iter().filter(|address| !now.contains(address)).collect();
        release(&mut taken, &gone);
        all[at] = Given { addresses: now, problem };
    }
    all
}

/// Assigns the certain addresses that objects ask for.
fn give_certain(pools: &Pools, wants: &[&Want], taken: &mut BTreeMap<IpAddr, usize>, all: &mut [Given]) {
    for (at, want) in wants.iter().enumerate() {
        let asked = want.asked.addresses();
        if asked.is_empty() {
            continue;
        }
        let problem = asked.iter().find_map(|address| {
            if !pools.has(*address) {
                return Some(Shortage::Outside(*address));
            }
            taken.get(address).filter(|owner| **owner != at).map(|_| Shortage::Taken(*address))
        });
        if problem.is_some() {
            all[at].problem = problem;
            continue;
        }
        let families = want.asked.families().map(|(families, _)| families).unwrap_or_default();
        let before = std::mem::take(&mut all[at].addresses);
        let is_open = |address: &IpAddr| families.contains(&IpVersion::of(*address));
        let (open, gone): (Vec<IpAddr>, Vec<IpAddr>) = before.into_iter().partition(is_open);
        release(taken, &gone);
        taken.extend(asked.iter().map(|address| (*address, at)));
        all[at].addresses = [asked, &open].concat();
    }
}

fn release(taken: &mut BTreeMap<IpAddr, usize>, addresses: &[IpAddr]) {
    for address in addresses {
        taken.remove(address);
    }
}

/// Where the search for a free address continues, by pool and range.
#[derive(Default)]
struct Cursor(BTreeMap<(usize, usize), u128>);

impl Cursor {
    fn next(
        &mut self,
        pools: &Pools,
        name: Option<&str>,
        family: IpVersion,
        taken: &BTreeMap<IpAddr, usize>,
    ) -> Option<IpAddr> {
        for (at, pool) in pools.0.iter().enumerate() {
            let ranges = pool.addresses.iter().enumerate().filter(|(_, range)| range.family == family);
            for (number, range) in ranges.filter(|_| pool.is_meant(name)) {
                let from = self.0.entry((at, number)).or_insert(range.first);
                while *from <= range.last {
                    let address = range.address(*from);
                    if !taken.contains_key(&address) {
                        return Some(address);
                    }
                    let Some(next) = from.checked_add(1) else { break };
                    *from = next;
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pools(text: &str) -> Pools {
        serde_saphyr::from_str(text).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn want(current: &[&str], asked: AddressRequest) -> Want {
        Want { current: current.iter().map(|text| ip(text)).collect(), asked }
    }

    fn given_to(wants: &[Want]) -> Vec<Given> {
        give(&pools(SMALL), &wants.iter().collect::<Vec<_>>())
    }

    fn four() -> AddressRequest {
        AddressRequest::Families(vec![IpVersion::Four], None)
    }

    const SMALL: &str = "[{ name: a, addresses: [192.0.2.0/31] },
        { name: b, addresses: [198.51.100.7-198.51.100.8], automatic: false }]";

    #[test]
    fn addresses_of_a_status_stay_and_new_objects_get_the_rest() {
        let given = given_to(&[want(&[], four()), want(&["192.0.2.0"], four()), want(&[], four())]);
        assert_eq!(given[0].addresses, [ip("192.0.2.1")]);
        assert_eq!(given[1].addresses, [ip("192.0.2.0")]);
        assert_eq!(
            given[2],
            Given { addresses: vec![], problem: Some(Shortage::Exhausted(IpVersion::Four)) }
        );
    }

    #[test]
    fn an_object_that_asks_for_what_it_cannot_have_keeps_what_it_has() {
        let asks = |text: &str| AddressRequest::Addresses(vec![ip(text)]);
        let given = given_to(&[
            want(&["192.0.2.1"], asks("203.0.113.1")),
            want(&["192.0.2.0"], asks("192.0.2.1")),
            want(&["203.0.113.9"], asks("198.51.100.7")),
            want(&[], AddressRequest::Families(vec![IpVersion::Four], Some("b".into()))),
            want(&[], AddressRequest::Wrong),
        ]);
        let expected = [
            (vec![ip("192.0.2.1")], Some(Shortage::Outside(ip("203.0.113.1")))),
            (vec![ip("192.0.2.0")], Some(Shortage::Taken(ip("192.0.2.1")))),
            (vec![ip("198.51.100.7")], None),
            (vec![ip("198.51.100.8")], None),
            (vec![], None),
        ];
        let expected = expected.map(|(addresses, problem)| Given { addresses, problem });
        assert_eq!(given, expected);
    }

    #[test]
    fn ranges_are_strict() {
        for wrong in ["192.0.2.1/24", "192.0.2.0/33", "192.0.2.9-192.0.2.1", "192.0.2.1-::1", "x", ""] {
            assert_eq!(Range::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Range::parse("::/0").unwrap().last, u128::MAX);
        assert_eq!(Range::parse("0.0.0.0/0").unwrap().last, u128::from(u32::MAX));
    }

    fn any_want() -> impl Strategy<Value = Want> {
        let address = || (0u8..12).prop_map(|last| IpAddr::from([192, 0, 2, last]));
        let asked = prop_oneof![
            3 => Just(four()),
            1 => Just(AddressRequest::Families(vec![IpVersion::Four], Some("b".into()))),
            1 => address().prop_map(|one| AddressRequest::Addresses(vec![one])),
            1 => address().prop_map(|one| AddressRequest::Both(vec![one], vec![IpVersion::Six], None)),
            1 => Just(AddressRequest::Wrong),
        ];
        (prop::collection::vec(address(), 0..2), asked).prop_map(|(current, asked)| Want { current, asked })
    }

    proptest! {
        /// No address has two owners, each is in a pool, and once the statuses say what was given, nothing
        /// changes any more.
        #[test]
        fn addresses_have_one_owner_and_come_to_rest(mut wants in prop::collection::vec(any_want(), 0..9)) {
            let pools = pools(
                "[{ name: a, addresses: [192.0.2.0/30] }, { name: b, addresses: [192.0.2.8/31] },
                  { name: six, addresses: ['2001:db8::/127'] }]",
            );
            let mut last = Vec::new();
            for round in 0..10 {
                let given = give(&pools, &wants.iter().collect::<Vec<_>>());
                let mut seen = BTreeSet::new();
                for address in given.iter().flat_map(|one| &one.addresses) {
                    prop_assert!(pools.has(*address) && seen.insert(*address), "{address} in {given:?}");
                }
                for (want, one) in wants.iter_mut().zip(&given) {
                    want.current.clone_from(&one.addresses);
                }
                let rests = given == last;
                prop_assert!(round < 9 || rests, "{last:?} {given:?}");
                last = given;
            }
        }
    }
}
