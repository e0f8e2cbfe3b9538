//! What is measured, with how much memory, and what is given up first when that is too little.

use crate::sketches::Sketches;
use serde::{Deserialize, Serialize};
use weir_sketch::{Aggregator, KeyKind, Projection};

/// A part of a measurement that costs memory and can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Sources with many destinations ([`weir_sketch::SpreadSketch`]).
    Spreaders,
    /// How many flows have how many packets ([`weir_sketch::Mrac`]).
    FlowSizes,
    /// Quantiles of the time between packets ([`weir_sketch::Quantiles`]).
    InterArrival,
    /// Quantiles of packets' bytes ([`weir_sketch::Quantiles`]).
    PacketBytes,
    /// Source ports with most packets ([`weir_sketch::TopCounts`], like all that follow).
    TopSourcePorts,
    /// Destination ports with most packets.
    TopDestinationPorts,
    /// Destinations with most packets, their entropy and changes.
    TopDestinations,
    /// Sources with most packets, their entropy and changes.
    TopSources,
    /// Flows with most packets, their entropy and changes.
    TopFlows,
}

impl Part {
    /// All parts, in the order in which they are shed: what is asked for least goes first, and of what is
    /// asked for equally, what costs most.
    pub const SHED_ORDER: [Part; 9] = [
        Part::Spreaders,
        Part::FlowSizes,
        Part::InterArrival,
        Part::PacketBytes,
        Part::TopSourcePorts,
        Part::TopDestinationPorts,
        Part::TopDestinations,
        Part::TopSources,
        Part::TopFlows,
    ];

    /// Returns its name in outputs and settings.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Part::Spreaders => "spreaders",
            Part::FlowSizes => "flow-sizes",
            Part::InterArrival => "inter-arrival",
            Part::PacketBytes => "packet-bytes",
            Part::TopSourcePorts => "top-source-ports",
            Part::TopDestinationPorts => "top-destination-ports",
            Part::TopDestinations => "top-destinations",
            Part::TopSources => "top-sources",
            Part::TopFlows => "top-flows",
        }
    }
}

/// What is measured, and with how much memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What a flow is: by default both addresses and ports, and the protocol.
    pub flow: KeyKind,
    /// Addresses are cut to so many bits, of IPv4 and of IPv6; by default they are whole.
    pub prefixes: (u8, u8),
    /// Flows inside different tunnels are different flows.
    pub tunnels_apart: bool,
    /// Rows of each list in reports of all.
    pub top: usize,
    /// Rows of each list in reports of intervals.
    pub interval_top: usize,
    /// Keys that the summary of flows remembers; those of addresses remember half as many, those of ports a
    /// quarter.
    pub keys: usize,
    /// The most memory for sketches, in bytes. Parts are shed in the order of [`Part::SHED_ORDER`] until the
    /// others fit; totals and the numbers of flows, sources and destinations stay in any case.
    pub memory: usize,
    /// The parts that are wanted at all.
    pub parts: Vec<Part>,
    /// A source with so many destinations is reported as a super-spreader.
    pub spread_least: u64,
    /// Of so many packets, one is noted for quantiles of bytes and times.
    pub quantile_stride: u64,
    /// The largest packet that a source may deliver in bytes: it bounds bytes that were counted under
    /// another key. For records of single packets, the largest one seen is used instead.
    pub packet_bytes_max: u64,
    /// Flows are counted exactly as well, with at most so many bytes; 0 is not at all.
    pub exact_memory: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            flow: KeyKind::FiveTuple,
            prefixes: (32, 128),
            tunnels_apart: true,
            top: 10,
            interval_top: 10,
            keys: 16_384,
            memory: 64 << 20,
            parts: Part::SHED_ORDER.to_vec(),
            spread_least: 64,
            quantile_stride: 1,
            packet_bytes_max: 262_144,
            exact_memory: 0,
        }
    }
}

/// Memory of the aggregator in front of the sketches: 69,000 flows. It is larger than a second-level cache,
/// because an eviction costs ten fetches and more, and its own are made ahead.
pub(crate) const AGGREGATOR_BYTES: usize = 4 << 20;

impl Settings {
    /// How keys of one kind are made.
    #[must_use]
    pub fn projection(&self, kind: KeyKind) -> Projection {
        let projection = Projection::new(kind).prefixes(self.prefixes.0, self.prefixes.1);
        if self.tunnels_apart { projection } else { projection.across_tunnels() }
    }

    /// The parts that fit into the memory, and those that are shed, in the order of shedding.
    #[must_use]
    pub fn fit(&self) -> (Vec<Part>, Vec<Part>) {
        let wanted = |part: &Part| self.parts.contains(part);
        let mut kept: Vec<Part> = Part::SHED_ORDER.into_iter().filter(wanted).collect();
        let mut shed = Vec::new();
        while !kept.is_empty() && self.bytes_of(&kept) > self.memory {
            shed.push(kept.remove(0));
        }
        (kept, shed)
    }

    /// Bytes of memory with these parts: the aggregator's, and the sketches' of the current interval, of all
    /// and, of top lists, of the interval before.
    #[must_use]
    pub fn bytes_of(&self, parts: &[Part]) -> usize {
        let sketches: usize = parts.iter().map(|part| Sketches::bytes_of(self, *part)).sum();
        Aggregator::<5>::bytes_for(AGGREGATOR_BYTES) + Sketches::FIXED_BYTES * 2 + sketches
    }
}
