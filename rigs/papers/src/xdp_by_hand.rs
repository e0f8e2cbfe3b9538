//! The programs of `xdp_by_hand.bpf.c` with their tables.

use crate::XdpArm;
use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::{ProgramError, ProgramFd, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader};
use std::net::Ipv4Addr;
use weir_bpf::load::uninterrupted;
use weir_packet::PROTOCOL_UDP;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xdp_by_hand.bpf.o"));

/// Sizes of the tables, as in `xdp_by_hand.bpf.c`.
const RECORDS: usize = 256;
const BUCKETS: usize = 65538;
const ROUTES: usize = 16384;
const RULE_MASKS: usize = 7;

/// Marks the number of a table of longer routes.
const LONGER: u16 = 0x8000;

/// The longest prefix in the first table.
const SHORT: u8 = 24;

/// A route: prefix, its length, and the record of its next hop.
#[derive(Clone, Copy, Debug)]
pub struct HandRoute {
    /// The first address of the prefix, most significant byte first.
    pub prefix: u32,
    /// The length of the prefix in bits, 0 to 32.
    pub length: u8,
    /// The position of the next hop in [`HandTables::records`].
    pub next_hop: u8,
}

/// The values that a rule matches, or their mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandRule {
    /// IPv4 source address, most significant byte first.
    pub source: u32,
    /// IPv4 destination address, most significant byte first.
    pub destination: u32,
    /// Destination port of TCP or UDP.
    pub port: u16,
}

impl HandRule {
    /// As the program compares it, under the mask of this number.
    fn key(self, mask: u16) -> [u8; 12] {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.source.to_be_bytes());
        key[4..8].copy_from_slice(&self.destination.to_be_bytes());
        key[8..10].copy_from_slice(&self.port.to_be_bytes());
        key[10..].copy_from_slice(&mask.to_ne_bytes());
        key
    }
}

/// A UDP flow and its target.
#[derive(Clone, Copy, Debug)]
pub struct HandFlow {
    /// Source and destination address.
    pub addresses: [Ipv4Addr; 2],
    /// Source and destination port.
    pub ports: [u16; 2],
    /// The position of the target in [`HandTables::records`].
    pub target: u16,
}

impl HandFlow {
    fn key(&self) -> [u8; 16] {
        let [source, destination] = self.addresses.map(|address| address.octets());
        let [sport, dport] = self.ports.map(u16::to_be_bytes);
        let protocol = u32::from(PROTOCOL_UDP).to_ne_bytes();
        let mut key = [0; 16];
        let parts = [&source[..], &destination, &sport, &dport, &protocol];
        key.iter_mut().zip(parts.concat()).for_each(|(to, from)| *to = from);
        key
    }
}

/// The contents of the tables; those that a program does not use are empty.
#[derive(Clone, Debug, Default)]
pub struct HandTables {
    /// The first bytes of frames as they are sent: MAC addresses or headers.
    pub records: Vec<[u8; 64]>,
    /// The record of each bucket.
    pub buckets: Vec<u16>,
    /// Known flows.
    pub flows: Vec<HandFlow>,
    /// Services by address, protocol and port.
    pub services: Vec<(Ipv4Addr, u8, u16)>,
    /// Routes, which are counted in this order.
    pub routes: Vec<HandRoute>,
    /// The masks of rules; rules refer to them by position.
    pub masks: Vec<HandRule>,
    /// Rules, which are counted in this order, each with the number of its mask.
    pub rules: Vec<(HandRule, u16)>,
}

/// A loaded program.
pub struct XdpByHand {
    /// Keeps the maps.
    _ebpf: Ebpf,
    program: ProgramFd,
}

impl XdpByHand {
    /// Loads the program of this name with its tables.
    ///
    /// # Errors
    /// Returns the kernel's error, usually a missing privilege.
    ///
    /// # Panics
    /// Panics if there is no such program, or the tables are larger than its own.
    pub fn load(name: &str, tables: &HandTables) -> Result<XdpByHand, EbpfError> {
        let (first, longer) = first_and_longer(&tables.routes);
        let mut records = tables.records.concat();
        records.resize(RECORDS * 64, 0);
        let mut buckets = tables.buckets.clone();
        let bucket_count = buckets.len().max(1) as u32;
        buckets.resize(BUCKETS, 0);
        let mut hops: Vec<u8> = tables.routes.iter().map(|route| route.next_hop).collect();
        hops.resize(ROUTES, 0);
        let mut masks: Vec<u8> = tables.masks.iter().flat_map(|mask| mask.key(0)).collect();
        masks.resize(RULE_MASKS * 12, 0);
        let mut ebpf = EbpfLoader::new()
            .override_global("records", &records[..], true)
            .override_global("buckets", &buckets[..], true)
            .override_global("bucket_count", &bucket_count, true)
            .override_global("next_hops", &hops[..], true)
            .override_global("masks", &masks[..], true)
            .map_max_entries("flows", tables.flows.len().max(1) as u32)
            .map_max_entries("routes", first.len().max(1) as u32)
            .map_max_entries("longer_routes", longer.len().max(1) as u32)
            .load(OBJECT)?;
        for (map, tables) in [("routes", first), ("longer_routes", longer)] {
            let mut map: Array<&mut MapData, [u16; 256]> = Array::try_from(self::map(&mut ebpf, map))?;
            for (at, table) in (0..).zip(&tables) {
                map.set(at, table, 0)?;
            }
        }
        add_services(&mut ebpf, tables)?;
        add_flows(&mut ebpf, tables)?;
        add_rules(&mut ebpf, tables)?;
        uninterrupted(|| program(&mut ebpf, name)?.load())?;
        let program = program(&mut ebpf, name)?.fd()?.try_clone().map_err(ProgramError::IOError)?;
        Ok(XdpByHand { _ebpf: ebpf, program })
    }

    /// Returns it to be measured.
    #[must_use]
    pub fn arm(&self) -> XdpArm<'_> {
        XdpArm::Program(&self.program)
    }
}

/// Services count behind the back ends.
fn add_services(ebpf: &mut Ebpf, tables: &HandTables) -> Result<(), EbpfError> {
    let mut map: HashMap<&mut MapData, [u8; 8], u32> = HashMap::try_from(map(ebpf, "services"))?;
    for (at, (address, protocol, port)) in (RECORDS as u32..).zip(&tables.services) {
        let mut key = [0; 8];
        key[..4].copy_from_slice(&address.octets());
        key[4..6].copy_from_slice(&port.to_be_bytes());
        key[6..].copy_from_slice(&u16::from(*protocol).to_ne_bytes());
        map.insert(key, at, 0)?;
    }
    Ok(())
}

fn add_flows(ebpf: &mut Ebpf, tables: &HandTables) -> Result<(), EbpfError> {
    let mut map: HashMap<&mut MapData, [u8; 16], [u64; 4]> = HashMap::try_from(map(ebpf, "flows"))?;
    for flow in &tables.flows {
        map.insert(flow.key(), [0, 0, 0, flow.target.into()], 0)?;
    }
    Ok(())
}

fn add_rules(ebpf: &mut Ebpf, tables: &HandTables) -> Result<(), EbpfError> {
    let mut map: HashMap<&mut MapData, [u8; 12], u32> = HashMap::try_from(map(ebpf, "rules"))?;
    // Of equal rules, the first one stays.
    for (at, (rule, mask)) in tables.rules.iter().enumerate().rev() {
        map.insert(rule.key(*mask), at as u32, 0)?;
    }
    Ok(())
}

/// Routes as two tables: by the first 24 bits, and by the last 8 where a longer route exists.
fn first_and_longer(routes: &[HandRoute]) -> (Vec<[u16; 256]>, Vec<[u16; 256]>) {
    if routes.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let mut by_length: Vec<(u16, HandRoute)> = (0..).zip(routes.iter().copied()).collect();
    by_length.sort_by_key(|(_, route)| route.length);
    let mut first = vec![0_u16; 1 << SHORT];
    let mut longer: Vec<[u16; 256]> = Vec::new();
    for (number, HandRoute { prefix, length, .. }) in by_length {
        let at = (prefix >> 8) as usize;
        if length <= SHORT {
            first[at..at + (1 << (SHORT - length))].fill(number);
            continue;
        }
        if first[at] & LONGER == 0 {
            longer.push([first[at]; 256]);
            first[at] = LONGER | (longer.len() - 1) as u16;
        }
        let last = (prefix & 0xff) as usize;
        longer[usize::from(first[at] & !LONGER)][last..last + (1 << (32 - length))].fill(number);
    }
    (first.as_chunks().0.to_vec(), longer)
}

fn map<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut Map {
    ebpf.map_mut(name).expect("xdp_by_hand.bpf.c defines it")
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, ProgramError> {
    ebpf.program_mut(name).expect("it is one of xdp_by_hand.bpf.c").try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(routes: &[HandRoute], address: u32) -> u16 {
        let (first, longer) = first_and_longer(routes);
        let found = first[(address >> 16) as usize][(address >> 8 & 0xff) as usize];
        if found & LONGER == 0 {
            found
        } else {
            longer[usize::from(found & !LONGER)][(address & 0xff) as usize]
        }
    }

    #[test]
    fn the_longest_prefix_wins_in_both_tables() {
        let route = |prefix, length| HandRoute { prefix, length, next_hop: 0 };
        // In any order: the shorter ones must not hide the longer ones.
        let routes = [
            route(0x0a01_0280, 25),
            route(0, 0),
            route(0x0a01_0281, 32),
            route(0x0a01_0000, 16),
            route(0x0a01_0200, 24),
        ];
        for (address, number) in
            [(0x0a01_0281, 2), (0x0a01_0282, 0), (0x0a01_0201, 4), (0x0a01_0301, 3), (0x0b00_0000, 1)]
        {
            assert_eq!(look_up(&routes, address), number, "{address:08x}");
        }
    }
}
