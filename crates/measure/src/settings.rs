//! The settings of a measurement: what is measured, how much memory it may use, and what is shed first if the
//! memory is too small.

use crate::inside::Encapsulations;
use crate::queries::Query;
use crate::sketches::Sketches;
use weir_sketch::{Aggregator, KeyKind, Projection, Seed};

/// What is measured, and with how much memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The definition of a flow: by default both addresses and ports, and the protocol.
    pub flow: KeyKind,
    /// The lengths to which IPv4 and IPv6 addresses are truncated; by default they are whole.
    pub prefixes: (u8, u8),
    /// Whether flows inside different tunnels are different flows.
    pub tunnels_apart: bool,
    /// The encapsulations to look inside.
    pub inside: Encapsulations,
    /// Rows per list in reports on everything.
    pub top: usize,
    /// Rows per list in reports on intervals.
    pub interval_top: usize,
    /// The number of keys that the summary of flows remembers; those of addresses remember half as many,
    /// those of ports a quarter.
    pub keys: usize,
    /// The memory limit for sketches, in bytes. Queries are shed in the order of [`Query::shed_order`] until
    /// the rest fits; totals and the numbers of flows, sources and destinations are always kept.
    pub memory: usize,
    /// The wanted queries.
    pub queries: Vec<Query>,
    /// The minimum number of destinations for which a source is reported as a super-spreader.
    pub spread_least: u64,
    /// The number of packets of which one is sampled for quantiles of bytes and times.
    pub quantile_stride: u64,
    /// The largest packet that a source may deliver, in bytes: it bounds bytes that were counted under
    /// another key. For records of single packets, the largest one seen is used instead.
    pub packet_bytes_max: u64,
    /// Memory limit for counting flows exactly as well, in bytes; 0 disables it.
    pub exact_memory: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            flow: KeyKind::FiveTuple,
            prefixes: (32, 128),
            tunnels_apart: true,
            inside: Encapsulations::default(),
            top: 10,
            interval_top: 10,
            keys: 16_384,
            memory: 64 << 20,
            queries: Query::all().collect(),
            spread_least: 64,
            quantile_stride: 1,
            packet_bytes_max: 262_144,
            exact_memory: 0,
        }
    }
}

/// Memory of the aggregator in front of the sketches: 69,000 flows. The aggregator is larger than a
/// second-level cache, because an eviction costs at least ten fetches, while the aggregator's own fetches are
/// prefetched.
pub(crate) const AGGREGATOR_BYTES: usize = 4 << 20;

impl Settings {
    /// How keys of one kind are built.
    #[must_use]
    pub fn projection(&self, kind: KeyKind) -> Projection {
        let projection = Projection::new(kind).prefixes(self.prefixes.0, self.prefixes.1);
        if self.tunnels_apart { projection } else { projection.across_tunnels() }
    }

    /// The queries that fit into the memory, and those that are shed, in the order of shedding.
    #[must_use]
    pub fn fit(&self) -> (Vec<Query>, Vec<Query>) {
        let mut kept = Query::shed_order();
        kept.retain(|query| self.queries.contains(query));
        let mut shed = Vec::new();
        while !kept.is_empty() && self.bytes_of(&kept) > self.memory {
            shed.push(kept.remove(0));
        }
        (kept, shed)
    }

    /// Memory used for these queries, in bytes: that of the aggregator, and of the sketches of the current
    /// interval, of everything and, for top lists, of the previous interval.
    #[must_use]
    pub fn bytes_of(&self, queries: &[Query]) -> usize {
        let sketches: usize = queries.iter().map(|query| Sketches::bytes_of(self, *query)).sum();
        Aggregator::<5>::bytes_for(AGGREGATOR_BYTES) + Sketches::FIXED_BYTES * 2 + sketches
    }
}

/// Reads a seed of up to 32 hexadecimal digits.
pub(crate) fn hex_seed(text: &str) -> Option<Seed> {
    let is_hex = !text.is_empty() && text.bytes().all(|one| one.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
    Some(Seed::new([(number >> 64) as u64, number as u64]))
}
