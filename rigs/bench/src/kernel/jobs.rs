//! The jobs that are measured: a scenario's program, and the tables of the program written by hand for it.

use super::compiled::buckets;
use crate::lb;
use crate::scenarios::{self, BACK_ENDS, MILLION, Make, NEXT_HOPS, SERVICE, Scenario, back_end, mac};
use std::net::Ipv4Addr;
use weir_packet::tunnel::{Inside, Outer, OuterShape};
use weir_packet::{PROTOCOL_UDP, SelectIpv4, TunnelKind, TunnelPorts};
use weir_papers::{HandFlow, HandRoute, HandRule, HandTables};
use weir_port::UdpFlow;
use weir_program::EntryMatch;

/// The source MAC address of frames that are sent, and the source address of tunnels.
const OWN_MAC: u128 = 0x0200_0000_0001;
const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);

/// The VNI of `vxlan`.
const VNI: u32 = 77;

/// A program that is written by hand, by its name, and the function that fills its tables.
type ByHand = (&'static str, fn(&Scenario) -> HandTables);

/// A row of results.
pub struct Job {
    /// Its name.
    pub name: &'static str,
    /// Creates the row's program and flows.
    pub make: Make,
    /// The program that is written by hand for it.
    pub by_hand: ByHand,
}

/// All rows. Those whose programs do not compile are left out, with the reason.
pub const ALL: [Job; 11] = [
    Job { name: "basic2", make: scenarios::basic2, by_hand: ("basic2", basic2) },
    Job { name: "hash256", make: scenarios::hash256, by_hand: ("hash256", hash256) },
    Job { name: "ipip", make: scenarios::ipip, by_hand: ("ipip", ipip) },
    Job { name: "lb", make: || lb::through_tunnels(None), by_hand: ("ipip", lb) },
    Job { name: "lb_flows1", make: || flows(1), by_hand: ("lb_flows", lb_flows) },
    Job { name: "lb_flows1k", make: || flows(1000), by_hand: ("lb_flows", lb_flows) },
    Job { name: "lb_flows1m", make: || flows(MILLION), by_hand: ("lb_flows", lb_flows) },
    Job { name: "nat", make: scenarios::nat, by_hand: ("nat", nat) },
    Job { name: "acl100", make: scenarios::acl100, by_hand: ("acl100", acl100) },
    Job { name: "lpm10k", make: scenarios::lpm10k, by_hand: ("lpm10k", lpm10k) },
    Job { name: "vxlan", make: scenarios::vxlan, by_hand: ("vxlan", vxlan) },
];

fn flows(count: u32) -> Scenario {
    lb::through_tunnels(Some(count))
}

/// Both MAC addresses of the frames to a number of next hops.
fn stations(count: u32) -> Vec<[u8; 64]> {
    let record = |at| {
        let mut record = [0; 64];
        record[..6].copy_from_slice(&octets(mac(at)));
        record[6..12].copy_from_slice(&octets(OWN_MAC));
        record
    };
    (0..count).map(record).collect()
}

fn octets(mac: u128) -> [u8; 6] {
    mac.to_be_bytes()[10..].try_into().expect("6 of 16 bytes")
}

/// The headers of a number of tunnels.
fn tunnels(kind: TunnelKind, inside: Inside, count: u32) -> Vec<[u8; 64]> {
    let outer = |at| Outer {
        eth_dst: octets(mac(at)),
        eth_src: octets(OWN_MAC),
        src: OWN_ADDRESS.into(),
        dst: Ipv4Addr::from_bits(back_end(at)).into(),
        ttl: 64,
        id: VNI,
    };
    (0..count).map(|at| headers(kind, inside, &outer(at))).collect()
}

fn headers(kind: TunnelKind, inside: Inside, outer: &Outer) -> [u8; 64] {
    let shape = OuterShape { kind, is_ipv6: false, extended: kind == TunnelKind::Vxlan, bare: false };
    let mut headers = [0; 64];
    shape.write(outer, inside, &TunnelPorts::default(), &mut headers[..shape.length()]);
    headers
}

fn basic2(_: &Scenario) -> HandTables {
    HandTables { records: stations(2), ..HandTables::default() }
}

fn hash256(scenario: &Scenario) -> HandTables {
    HandTables { records: stations(256), buckets: first_buckets(scenario), ..HandTables::default() }
}

fn first_buckets(scenario: &Scenario) -> Vec<u16> {
    buckets(&scenario.program).swap_remove(0)
}

fn ipip(scenario: &Scenario) -> HandTables {
    let records = tunnels(TunnelKind::Ipip, Inside::Ipv4, BACK_ENDS.into());
    HandTables { records, buckets: first_buckets(scenario), services: vec![SERVICE], ..HandTables::default() }
}

/// The headers of tunnels with the app's own addresses.
fn lb(scenario: &Scenario) -> HandTables {
    let record = |(eth_dst, eth_src, src, dst): lb::TunnelAddresses| {
        let outer = Outer { eth_dst, eth_src, src: src.into(), dst: dst.into(), ttl: 64, id: 0 };
        headers(TunnelKind::Ipip, Inside::Ipv4, &outer)
    };
    let records = lb::tunnel_addresses().map(record).collect();
    HandTables { records, ..ipip(scenario) }
}

/// The tables of `lb`, with a table of all flows.
fn lb_flows(scenario: &Scenario) -> HandTables {
    HandTables { flows: pinned(scenario), ..lb(scenario) }
}

fn nat(scenario: &Scenario) -> HandTables {
    let record = |(address, port): (u32, u16)| {
        let mut record = [0; 64];
        record[..4].copy_from_slice(&address.to_be_bytes());
        record[4..6].copy_from_slice(&port.to_be_bytes());
        record
    };
    let records = scenarios::nat_sources().map(record).collect();
    HandTables { records, flows: pinned(scenario), ..HandTables::default() }
}

/// The flows with the targets to which their hashes pin them.
fn pinned(scenario: &Scenario) -> Vec<HandFlow> {
    let buckets = first_buckets(scenario);
    let hash = SelectIpv4::new(scenario.program.select_seed);
    let pin = |&(source, destination, sport, dport): &UdpFlow| {
        let addresses = u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits());
        let last = u64::from(sport) << 48 | u64::from(dport) << 32 | u64::from(PROTOCOL_UDP) << 24;
        let bucket = ((hash.hash(addresses, last) >> 32) * buckets.len() as u64) >> 32;
        let target = buckets[bucket as usize];
        HandFlow { addresses: [source, destination], ports: [sport, dport], target }
    };
    scenario.flows.iter().map(pin).collect()
}

fn vxlan(_: &Scenario) -> HandTables {
    HandTables { records: tunnels(TunnelKind::Vxlan, Inside::Ethernet, 2), ..HandTables::default() }
}

fn lpm10k(scenario: &Scenario) -> HandTables {
    let route = |(at, entry): (u32, weir_program::Entry)| match entry.matches[..] {
        [EntryMatch::Prefix { value, length }] => {
            HandRoute { prefix: value as u32, length, next_hop: (at % NEXT_HOPS) as u8 }
        }
        _ => unreachable!("a route matches a prefix"),
    };
    let routes = (0..).zip(scenario.program.pipes[0].entries.iter()).map(route).collect();
    HandTables { records: stations(NEXT_HOPS), routes, ..HandTables::default() }
}

/// All rules but the last, which is for all other packets.
fn acl100(scenario: &Scenario) -> HandTables {
    let mut tables = HandTables::default();
    let parts = |one: &EntryMatch| match *one {
        EntryMatch::Masked { value, mask } => (value, mask),
        _ => (0, 0),
    };
    let entries = &scenario.program.pipes[0].entries;
    for entry in entries.iter().take(entries.len() - 1) {
        let [source, destination, port] =
            entry.matches[..].as_array().expect("a rule has three matches").each_ref().map(parts);
        let rule = |part: fn((u128, u128)) -> u128| HandRule {
            source: part(source) as u32,
            destination: part(destination) as u32,
            port: part(port) as u16,
        };
        let (mask, rule) = (rule(|both| both.1), rule(|both| both.0));
        let known = tables.masks.iter().position(|known| *known == mask);
        let number = known.unwrap_or_else(|| {
            tables.masks.push(mask);
            tables.masks.len() - 1
        });
        tables.rules.push((rule, number as u16));
    }
    tables
}
