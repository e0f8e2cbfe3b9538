//! weir's configuration on each node: one service over TCP. All nodes have the same, except for the addresses
//! of a NAT pool.

use std::fmt::Write;

use super::network::{Family, FleetHost, pool};
use crate::topology::INTERFACE;

/// Capacity for flows. A pool must have a place for each connection, and a connection takes two flows.
const FLOWS: u32 = 65_536;

/// How packets are sent to back ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FleetMode {
    /// Through an IP-in-IP tunnel, which `weir decap` decapsulates.
    Ipip,
    /// With other MAC addresses.
    L2,
    /// With the destination address translated; back ends answer through the node that sent the last packet.
    Nat,
    /// With the source address translated, too, each node to addresses of its own.
    #[value(name = "full_nat")]
    FullNat,
}

impl FleetMode {
    /// All modes.
    pub const ALL: [FleetMode; 4] = [FleetMode::Ipip, FleetMode::L2, FleetMode::Nat, FleetMode::FullNat];

    /// The mode's name in the lab's options and results.
    pub fn word(self) -> &'static str {
        match self {
            FleetMode::Ipip => "ipip",
            FleetMode::L2 => "l2",
            FleetMode::Nat => "nat",
            FleetMode::FullNat => "full_nat",
        }
    }

    /// Returns what a connection needs from its node.
    pub fn state(self) -> NodeState {
        match self {
            FleetMode::Ipip | FleetMode::L2 => NodeState::Nothing,
            FleetMode::Nat => NodeState::Answers,
            FleetMode::FullNat => NodeState::Translation,
        }
    }
}

/// What a connection needs from its node, and what happens to it when another node gets its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Nothing: equal buckets say where it goes, and it continues.
    Nothing,
    /// That answers pass the node: it continues once its client has sent a packet through another node. If
    /// the node dies between a back end's acknowledgement and its answer, the client has nothing to send, and
    /// the back end repeats its answer to the dead node.
    Answers,
    /// The port that the node assigned to it: it breaks.
    Translation,
}

/// What nodes are configured to do; a reload changes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Services {
    /// Number of back ends.
    pub back_ends: usize,
    /// One of them that is left out, counting from 0.
    pub without: Option<usize>,
    /// The weight of the first back end; the others have 1.
    pub first_weight: u32,
    /// Whether there is a second service, which no client uses.
    pub second: bool,
}

/// Returns a node's configuration.
pub fn configuration(
    (mode, family): (FleetMode, Family),
    node: usize,
    services: &Services,
    back_ends: &[FleetHost],
    slowdown: u32,
) -> String {
    let its = family.addresses();
    let mut text = format!("hash_seed: 0x2f6c9d1e5b83a740\nports: {{ p0: {{ xdp: {INTERFACE} }} }}\n");
    if mode == FleetMode::FullNat {
        let _ = writeln!(text, "nat_pools: {{ pool: {{ addresses: \"{}\" }} }}", pool(family, node));
    }
    let _ = write!(text, "apps:\n  - lb: {{ flows: {FLOWS} }}\n");
    let mut service = |name: &str, port: u16| {
        let _ = write!(
            text,
            "  - lb:\n      name: {name}\n      port: p0\n      \
             service: {{ vip: \"{}\", protocol: tcp, port: {port} }}\n      announce: route\n      \
             source: \"{}\"\n      \
             check: {{ type: http, port: 80, interval: {}ms, timeout: {slowdown}s, fall: 2, rise: 2 }}\n",
            its.vip,
            its.sources,
            400 * slowdown,
        );
        if mode == FleetMode::FullNat {
            text += "      nat_pool: pool\n";
        }
        text += "      back_ends:\n";
        let all = back_ends[..services.back_ends].iter().enumerate();
        for (at, host) in all.filter(|(at, _)| services.without != Some(*at)) {
            let weight = if at == 0 { services.first_weight } else { 1 };
            let (name, ip, mode) = (host.name, &host.address, mode.word());
            let _ =
                writeln!(text, "        - {{ name: {name}, mode: {mode}, ip: \"{ip}\", weight: {weight} }}");
        }
    };
    service("web", 80);
    if services.second {
        service("other", 8080);
    }
    text
}
