//! The checksum of a ring: a number that is equal on two nodes if they choose the same back end for every new
//! flow. docs/design/maglev.md specifies it ("ring-1"), so that other programs can compute it, and
//! `tests/vectors/rings.py` is a second implementation.
//!
//! The checksum covers what determines the choice: the hash and its seed, the slots by the names of their
//! back ends, the addresses of these back ends, and the destinations of the service. Two nodes of one fleet
//! may differ in everything else: ports, source addresses, MAC addresses, tunnels and checks.
//!
//! A checksum is published in metrics, which anyone who can reach them may read, so it is made with a key
//! that is derived from `hash_seed`. Each guess of a secret seed costs an attacker as much as 2^17 hashes.

use crate::bits::BitAssignment;
use crate::kind::Apps;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use weir_config::fills;
use weir_program::buckets::{BucketTable, GroupTables};
use weir_program::{Fill, GlbHash, Group, GroupId, NewFlows, Program};
use weir_table::NO_TARGET;

/// The version of the checksum, which changes only if checksums change.
pub const VERSION: &str = "ring-1";

/// The number of rounds in the derivation of the key.
const ROUNDS: u32 = 65_536;

/// The checksum of a ring, of 48 bits, so that a number of 64-bit floating point in a metric is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Checksum(u64);

impl Checksum {
    /// Returns the checksum as a number below 2^48.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

/// A destination: protocol, prefix, and first and last port.
pub type Destination = (u8, (IpAddr, u8), (u16, u16));

/// A service as all nodes of a fleet see it: the parts of its configuration, besides the buckets of its
/// group, that determine which back end a flow gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balanced {
    /// The name of the service.
    pub name: String,
    /// The name of its group; without one, [`Balanced::bits`] assigns its packets.
    pub group: String,
    /// The destinations to which clients send.
    pub destinations: Vec<Destination>,
    /// How packets are assigned, in a word of the configuration.
    pub by: String,
    /// Whether its flows keep their back ends.
    pub keeps: bool,
    /// The assignment, if bits of the source address determine the back end.
    pub bits: Option<BitAssignment>,
    /// The back ends among which the flows of the service are distributed.
    pub back_ends: Vec<BalancedBackEnd>,
    /// The name of the NAT pool from which its flows take their source.
    pub nat_pool: Option<String>,
}

/// A back end of a [`Balanced`] service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BalancedBackEnd {
    /// The name of the back end, unique in its service.
    pub name: String,
    /// Its address, if it is known by one.
    pub address: Option<IpAddr>,
    /// The port that packets are sent to, if it differs from the client's.
    pub port: Option<u16>,
    /// How packets are sent to it, in a word of the configuration.
    pub mode: &'static str,
}

impl Balanced {
    /// Returns its destinations in words, sorted.
    #[must_use]
    pub fn destinations_in_words(&self) -> Vec<String> {
        let mut to: Vec<String> = self.destinations.iter().map(destination).collect();
        to.sort();
        to.dedup();
        to
    }
}

/// The current state of a back end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackEndStanding {
    /// The name of the back end.
    pub name: String,
    /// Its weight in its group when nothing is wrong, if it is known.
    pub weight: Option<u32>,
    /// Its health in one word.
    pub health: &'static str,
    /// The reason; empty if there is nothing to explain.
    pub reason: String,
}

/// The key of checksums.
#[derive(Clone)]
pub struct RingKey(Hmac<Sha256>);

impl RingKey {
    /// Derives the key from a seed. The last result is kept, because this takes tens of milliseconds.
    #[must_use]
    pub fn of(hash_seed: u64) -> RingKey {
        static LAST: Mutex<Option<(u64, RingKey)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, key)) = last.as_ref().filter(|(seed, _)| *seed == hash_seed) {
            return key.clone();
        }
        // HMAC fills a short key up with zeros.
        let mut key = [0; 64];
        pbkdf2::pbkdf2_hmac::<Sha256>(&hash_seed.to_be_bytes(), b"weir ring-1", ROUNDS, &mut key[..32]);
        let key = RingKey(Hmac::new(&key.into()));
        *last = Some((hash_seed, key.clone()));
        key
    }

    /// Returns the checksum of a text.
    #[must_use]
    pub fn sum(&self, text: &str) -> Checksum {
        let all = self.0.clone().chain_update(text).finalize().into_bytes();
        Checksum(all.iter().take(6).fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}

/// The rings of a program: those of its services, and those of its other groups.
#[derive(Clone)]
pub struct Rings {
    key: RingKey,
    owners: Vec<RingOwner>,
}

/// An owner of a ring: a service, or a group that belongs to no service.
#[derive(Clone, Debug)]
pub struct RingOwner {
    /// The service, or a group's name alone.
    pub service: Balanced,
    /// The group whose buckets are the ring; `None` if bits of the source address assign packets.
    pub group: Option<GroupId>,
}

impl Rings {
    /// Finds the rings of a program with these apps.
    #[must_use]
    pub fn of(program: &Program, apps: &Apps) -> Rings {
        let groups: HashMap<&str, GroupId> =
            program.groups.iter().zip(0..).map(|(group, at)| (group.name.as_str(), GroupId(at))).collect();
        let owner = |service: Balanced| {
            let group = groups.get(service.group.as_str()).copied();
            RingOwner { service, group }
        };
        let mut owners: Vec<RingOwner> = apps.balanced().into_iter().map(owner).collect();
        let owned: BTreeSet<GroupId> = owners.iter().filter_map(|one| one.group).collect();
        for (group, at) in program.groups.iter().zip(0..) {
            if !owned.contains(&GroupId(at)) && group.fill != Fill::Given {
                let name = format!("group/{}", group.name);
                let service = Balanced { name, group: group.name.clone(), ..Balanced::default() };
                owners.push(RingOwner { service, group: Some(GroupId(at)) });
            }
        }
        owners.sort_by(|one, other| one.service.name.cmp(&other.service.name));
        Rings { key: RingKey::of(program.select_seed), owners }
    }

    /// Returns the services and groups, sorted by the bytes of their names.
    #[must_use]
    pub fn owners(&self) -> &[RingOwner] {
        &self.owners
    }

    /// Returns the checksum of a ring, with the weights of `group` and its filled `table`.
    #[must_use]
    pub fn sum(&self, owner: &RingOwner, group: Option<(&Group, &BucketTable)>) -> Checksum {
        self.key.sum(&text(&owner.service, group))
    }

    /// Returns a checksum of the seed alone, which shows whether nodes have different seeds.
    #[must_use]
    pub fn seed(&self) -> Checksum {
        self.key.sum("ring-1 seed\n")
    }

    /// Returns a checksum of a text, such as a configuration.
    #[must_use]
    pub fn text(&self, text: &str) -> Checksum {
        self.key.sum(text)
    }

    /// Returns a checksum of the seeds and keys, other than the program's seed, with which a ring's packets
    /// are hashed.
    #[must_use]
    pub fn secrets(&self, group: &Group) -> Checksum {
        self.key.sum(&secrets(group))
    }

    /// Returns the checksum of all rings, given that of each.
    #[must_use]
    pub fn total(&self, sums: &[Checksum]) -> Checksum {
        let mut text = "ring-1 all\n".to_string();
        for (sum, owner) in sums.iter().zip(&self.owners) {
            let _ = writeln!(text, "{sum} {}", owner.service.name);
        }
        self.key.sum(&text)
    }

    /// Returns the groups of a program as they are configured, including changes of weights at run time: with
    /// all back ends up and none drained.
    #[must_use]
    pub fn configured_groups(&self, program: &Program, apps: &Apps) -> Vec<Group> {
        let mut groups = program.groups.clone();
        for owner in &self.owners {
            let Some(group) = owner.group.and_then(|id| groups.get_mut(id.index())) else { continue };
            let weights: HashMap<String, u32> = apps
                .standings(&owner.service.name)
                .into_iter()
                .filter_map(|one| Some((one.name, one.weight?)))
                .collect();
            for at in 0..group.targets.len() {
                let target = &group.targets[at];
                if let Some(weight) = weights.get(&target.name).filter(|weight| **weight != target.weight) {
                    group.set_weight(at, *weight);
                }
            }
        }
        groups
    }

    /// Returns the checksum of each ring as it is configured.
    #[must_use]
    pub fn configured(&self, program: &Program, apps: &Apps) -> Vec<Checksum> {
        let groups = self.configured_groups(program, apps);
        let tables = GroupTables::new(&Program { groups, ..Program::default() });
        let sum = |owner: &RingOwner| {
            let group = owner.group.map(|id| (&tables.groups()[id.index()], &**tables.table(id)));
            self.sum(owner, group)
        };
        self.owners.iter().map(sum).collect()
    }
}

/// Returns the text whose checksum is that of a ring.
fn text(service: &Balanced, group: Option<(&Group, &BucketTable)>) -> String {
    let mut text = format!("{VERSION}\n");
    service.destinations_in_words().iter().for_each(|line| _ = writeln!(text, "to {line}"));
    if !service.by.is_empty() {
        let _ = writeln!(text, "by {}", service.by);
    }
    let new = match group.map(|(group, _)| group.new_flows) {
        _ if !service.keeps && !service.by.is_empty() => "none",
        Some(NewFlows::RoundRobin) => "round_robin",
        Some(NewFlows::LeastFlows) => "least_connections",
        Some(NewFlows::Hash) | None => "hash",
    };
    let _ = writeln!(text, "new {new}");
    if let Some((group, _)) = group {
        if let Some(affinity) = group.affinity {
            let remembers = if group.remembers() { " remembered" } else { "" };
            let _ = writeln!(text, "affinity {} {}{remembers}", affinity.ipv4, affinity.ipv6);
        }
        text += &secrets(group);
    }
    let values: Vec<u16>;
    let slots = match (group, &service.bits) {
        (Some((group, table)), _) => Slots {
            first: table.buckets().slots(),
            second: table.seconds(),
            names: group.targets.iter().map(|target| target.name.as_str()).collect(),
        },
        (None, Some(bits)) => {
            let names: Vec<&str> = bits.targets.iter().map(String::as_str).collect();
            let value = |(name, at): (&&str, u16)| if name.is_empty() { NO_TARGET } else { at };
            values = names.iter().zip(0..).map(value).collect();
            Slots { first: &values, second: &[], names }
        }
        (None, None) => Slots { first: &[], second: &[], names: Vec::new() },
    };
    let known: HashMap<&str, &BalancedBackEnd> =
        service.back_ends.iter().map(|one| (one.name.as_str(), one)).collect();
    let addresses: HashMap<&str, IpAddr> = group
        .iter()
        .flat_map(|(group, _)| &*group.targets)
        .filter_map(|target| Some((target.name.as_str(), target.address?)))
        .collect();
    let used = slots.used();
    for name in &used {
        let one = known.get(name);
        let address = one.and_then(|one| one.address).or_else(|| addresses.get(name).copied());
        let dash = || "-".to_string();
        let address = address.map_or_else(dash, |one| one.to_string());
        let port = one.and_then(|one| one.port).map_or_else(dash, |port| port.to_string());
        let _ = writeln!(text, "back_end {name} {address} {port}");
    }
    let _ = writeln!(text, "size {}", slots.first.len());
    let _ = writeln!(text, "slots {}", slots.digest(&used));
    text
}

/// Returns how a group's targets are chosen, in a word of the configuration.
#[must_use]
pub fn scheduler(group: &Group) -> &'static str {
    match group.new_flows {
        NewFlows::Hash => fills::word(group.fill),
        NewFlows::RoundRobin => "round_robin",
        NewFlows::LeastFlows => "least_connections",
    }
}

fn destination((protocol, (first, length), (from, to)): &Destination) -> String {
    // The host's part of a prefix does not count.
    let first = match first {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(*length)).unwrap_or(0);
            IpAddr::from(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(*length)).unwrap_or(0);
            IpAddr::from(std::net::Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    };
    format!("{protocol} {first}/{length} {from}-{to}")
}

/// Returns the lines about seeds, keys and hashes of a group.
fn secrets(group: &Group) -> String {
    let mut text = String::new();
    if let Some(seed) = group.seed {
        let _ = writeln!(text, "seed {seed:016x}");
    }
    match group.fill {
        Fill::Katran(_, hash) => {
            let flags = [("any_port", hash.any_port), ("no_sport", hash.no_sport)];
            let flags = flags.into_iter().chain([("dport_only", hash.dport_only)]);
            let flags =
                flags.filter(|(_, is_set)| *is_set).fold(String::new(), |all, (word, _)| all + " " + word);
            let _ = writeln!(text, "hash katran{flags}");
        }
        Fill::Glb(_, GlbHash { key, fields }) => {
            let _ = writeln!(text, "hash glb {} {fields}", hex(&key));
        }
        Fill::Maglev | Fill::Wants | Fill::Given => {}
    }
    let mut configs: Vec<_> = group.quic.iter().flat_map(|configs| configs.iter()).collect();
    configs.sort_by_key(|config| config.id);
    for config in configs {
        let key = config.key.map_or_else(|| "-".to_string(), |key| hex(&key));
        let _ = writeln!(text, "quic {} {} {} {key}", config.id, config.server_id, config.nonce);
    }
    if group.quic.is_some() {
        let ids = group.targets.iter().filter_map(|one| Some((hex(one.server_id?.as_bytes()), &one.name)));
        let ids: BTreeSet<(String, &String)> = ids.collect();
        ids.iter().for_each(|(id, name)| _ = writeln!(text, "server {id} {name}"));
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut all, byte| {
        let _ = write!(all, "{byte:02x}");
        all
    })
}

/// The back end in each slot, as a position in a list of names.
struct Slots<'a> {
    first: &'a [u16],
    /// The second back ends, with the GLB director's table.
    second: &'a [u16],
    names: Vec<&'a str>,
}

impl Slots<'_> {
    fn all(&self) -> impl Iterator<Item = u16> + '_ {
        self.first.iter().chain(self.second).copied()
    }

    /// Returns the names that have a slot, sorted by their bytes.
    fn used(&self) -> Vec<&str> {
        let mut is_used = vec![false; self.names.len()];
        self.all()
            .for_each(|slot| is_used.get_mut(usize::from(slot)).into_iter().for_each(|one| *one = true));
        let mut used: Vec<&str> =
            self.names.iter().zip(is_used).filter_map(|(name, is_used)| is_used.then_some(*name)).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    fn digest(&self, used: &[&str]) -> String {
        let position = |name: &&str| used.binary_search(name).map_or(NO_TARGET, |at| at as u16);
        let positions: Vec<u16> = self.names.iter().map(position).collect();
        let bytes = |slot| positions.get(usize::from(slot)).copied().unwrap_or(NO_TARGET).to_be_bytes();
        hex(&Sha256::digest(self.all().flat_map(bytes).collect::<Vec<u8>>()))
    }
}

/// Keeps the checksums of a program, and computes those again whose ring has changed.
#[derive(Default)]
pub struct RingCache {
    kept: Option<Kept>,
}

struct Kept {
    /// Also keeps the address of the plan from being used again.
    plan: Weak<dyn Any + Send + Sync>,
    rings: Arc<Rings>,
    version: u64,
    configured: Vec<Checksum>,
    effective: Vec<(Weak<BucketTable>, Checksum)>,
}

/// The checksums of a running program, in the order of [`Rings::owners`].
#[derive(Clone)]
pub struct RingSums {
    /// The rings to which the checksums belong.
    pub rings: Arc<Rings>,
    /// The checksums of the rings as they are configured.
    pub configured: Vec<Checksum>,
    /// The checksums of the rings as they are now, without back ends that are down or drained.
    pub effective: Vec<Checksum>,
}

impl RingCache {
    /// Returns the checksums of a program. `plan` is the owner of program and apps: as long as it is the same
    /// object, the checksums are unchanged.
    pub fn sums(
        &mut self,
        plan: &Arc<dyn Any + Send + Sync>,
        (program, apps): (&Program, &Apps),
        tables: &GroupTables,
    ) -> RingSums {
        let version = apps.weights_version();
        let is_same = |kept: &Kept| kept.plan.as_ptr().cast::<()>() == Arc::as_ptr(plan).cast::<()>();
        let mut kept = self.kept.take().filter(is_same).unwrap_or_else(|| {
            let rings = Arc::new(Rings::of(program, apps));
            let configured = rings.configured(program, apps);
            let effective = rings.owners.iter().map(|one| (Weak::new(), rings.sum(one, None))).collect();
            Kept { plan: Arc::downgrade(plan), rings, version, configured, effective }
        });
        if kept.version != version {
            (kept.version, kept.configured) = (version, kept.rings.configured(program, apps));
        }
        for (owner, (of, sum)) in kept.rings.owners.iter().zip(&mut kept.effective) {
            // Without a group, the plan alone determines the ring.
            let Some(id) = owner.group else { continue };
            let table = tables.table(id);
            if of.as_ptr() != Arc::as_ptr(table) {
                *of = Arc::downgrade(table);
                *sum = kept.rings.sum(owner, Some((&tables.groups()[id.index()], table)));
            }
        }
        let sums = RingSums {
            rings: Arc::clone(&kept.rings),
            configured: kept.configured.clone(),
            effective: kept.effective.iter().map(|(_, sum)| *sum).collect(),
        };
        self.kept = Some(kept);
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_program::{Affinity, Forward, KatranHash, KatranVersion, QuicConfig, ServerId, Target};

    fn group(fill: Fill, targets: &[(String, u32)]) -> Group {
        let target = |(at, (name, weight)): (usize, &(String, u32))| {
            let address = IpAddr::from([10, 0, (at >> 8) as u8, at as u8]);
            Target::new(name, Forward::Drop).weight(*weight).address(address)
        };
        let size = fill.fixed_size().unwrap_or(251);
        Group::new("g", fill, size).targets(targets.iter().enumerate().map(target))
    }

    fn sums(groups: Vec<Group>, hash_seed: u64) -> Vec<Checksum> {
        let program = Program { groups, select_seed: hash_seed, ..Program::default() };
        Rings::of(&program, &Apps::default()).configured(&program, &Apps::default())
    }

    fn sum(group: &Group) -> Checksum {
        sums(vec![group.clone()], 7)[0]
    }

    fn named(count: usize) -> Vec<(String, u32)> {
        (0..count).map(|at| (format!("b{at}"), 1 + at as u32 % 3)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Two rings have equal checksums exactly if their slots name the same back ends.
        #[test]
        fn equal_checksums_mean_equal_slots(
            targets in prop::collection::btree_map("[a-e]", 0_u32..4, 1..5),
            others in prop::collection::btree_map("[a-e]", 0_u32..4, 1..5),
            seed: u64,
        ) {
            // Addresses would distinguish equal rings.
            let bare = |targets: &std::collections::BTreeMap<String, u32>| {
                let target =
                    |(name, weight): (&String, &u32)| Target::new(name, Forward::Drop).weight(*weight);
                Group::new("g", Fill::Maglev, 61).targets(targets.iter().map(target))
            };
            let slots = |group: &Group| -> Vec<Option<String>> {
                let name = |slot: &u16| group.targets.get(usize::from(*slot)).map(|one| one.name.clone());
                BucketTable::fill(group, None).buckets().slots().iter().map(name).collect()
            };
            let (one, other) = (bare(&targets), bare(&others));
            prop_assert_eq!(sum(&one) == sum(&other), slots(&one) == slots(&other));
            let reversed = Group::new("g", Fill::Maglev, 61).targets(one.targets.iter().rev().cloned());
            prop_assert_eq!(sum(&one), sum(&reversed));
            let seeded = Group { seed: Some(seed), ..one.clone() };
            prop_assert_ne!(sum(&one), sum(&seeded));
        }
    }

    #[test]
    fn hashes_seeds_and_keys_count() {
        let katran = |hash| group(Fill::Katran(KatranVersion::V2, hash), &named(3));
        let plain = KatranHash::default();
        let glb =
            |seed, key, fields| group(Fill::Glb([seed; 16], GlbHash { key: [key; 16], fields }), &named(3));
        let quic = |key: Option<[u8; 16]>, id: &[u8]| {
            let configs = [QuicConfig { id: 1, server_id: 2, nonce: 6, key }];
            let mut group = group(Fill::Maglev, &named(3));
            group.quic = Some(Arc::new(configs));
            group.target_mut(0).server_id = ServerId::new(id);
            group
        };
        let all = [
            group(Fill::Maglev, &named(3)),
            group(Fill::Maglev, &named(3)).affinity(Some(Affinity::ADDRESS)),
            group(Fill::Maglev, &named(3)).affinity(Some(Affinity { timeout_ns: 1, ..Affinity::ADDRESS })),
            group(Fill::Maglev, &named(3)).seed(0),
            group(Fill::Maglev, &named(3)).new_flows(NewFlows::RoundRobin),
            group(Fill::Maglev, &named(3)).new_flows(NewFlows::LeastFlows),
            katran(plain),
            katran(KatranHash { any_port: true, ..plain }),
            katran(KatranHash { no_sport: true, ..plain }),
            katran(KatranHash { dport_only: true, ..plain }),
            glb(1, 2, 3),
            glb(2, 2, 3),
            glb(1, 3, 3),
            glb(1, 2, 4),
            quic(None, &[1, 2]),
            quic(Some([3; 16]), &[1, 2]),
            quic(Some([4; 16]), &[1, 2]),
            quic(None, &[1, 3]),
        ];
        let sums: BTreeSet<Checksum> = all.iter().map(sum).collect();
        assert_eq!(sums.len(), all.len());
    }

    #[test]
    fn one_ring_changes_the_sum_of_all_and_no_other() {
        let three = |weight| {
            let group = |name: &str, weight| {
                let group = group(Fill::Maglev, &[("a".into(), 1), ("b".into(), weight)]);
                Group { name: name.into(), ..group }
            };
            sums(vec![group("x", 1), group("y", weight), group("z", 1)], 0)
        };
        let (before, after) = (three(1), three(2));
        assert_eq!((before[0], before[2]), (after[0], after[2]));
        assert_ne!(before[1], after[1]);
        assert_eq!(before[0], before[2], "the name of a ring is not part of its own sum");
    }

    #[test]
    fn weights_at_run_time_are_kept_apart_from_health_until_a_table_is_published() {
        let program = Program { groups: vec![group(Fill::Maglev, &named(3))], ..Program::default() };
        let plan: Arc<dyn Any + Send + Sync> = Arc::new(0);
        let (mut cache, apps) = (RingCache::default(), Apps::default());
        let mut tables = GroupTables::new(&program);
        let mut ask = |tables: &GroupTables| cache.sums(&plan, (&program, &apps), tables);
        let whole = ask(&tables);
        assert_eq!(whole.configured, whole.effective);
        let weigh = |weight| weir_program::change::Change::SetWeight { group: GroupId(0), target: 1, weight };
        drop(tables.publish(&weigh(0)).unwrap());
        let less = ask(&tables);
        assert_eq!(less.configured, whole.configured);
        assert_ne!(less.effective, whole.effective);
        drop(tables.publish(&weigh(2)).unwrap());
        assert_eq!(ask(&tables).effective, whole.effective, "the target is back");
    }
}
