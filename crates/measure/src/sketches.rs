//! The sketches of one time span: an interval, or everything. Each question is answered by the estimator with
//! the best bounds:
//!
//! | question | by | bound |
//! |---|---|---|
//! | top flows, addresses, ports; their bytes; entropy; changes | [`TopCounts`] | certain, key by key |
//! | number of flows, sources, destinations | [`Distinct`] | 99.7 % |
//! | distribution of flows by packets | [`Mrac`] | none is proven; the truth beside it on request |
//! | super-spreaders | [`SpreadSketch`] | 95 % |
//! | quantiles of bytes and of times | [`Quantiles`] | 99 % |
//!
//! They are fed in batches with the evictions of an aggregator. The sketches of an interval are merged into
//! those of everything, which costs a few milliseconds once, so that each packet is counted only once.

use crate::keys::{DESTINATIONS, FLOWS, Keys, SOURCES, TOPS};
use crate::settings::{Part, Settings};
use std::borrow::Cow;
use std::collections::BTreeMap;
use weir_sketch::{Distinct, Evicted, Item, MergeError, Mrac, Quantiles, Seed, SpreadSketch, TopCounts};

/// Bytes for the counters of [`Mrac`]: 2^18 of them distinguish a million flows from half a million.
const SIZES_BYTES: usize = 1 << 20;

/// Bytes for [`SpreadSketch`]: rows of 3640 buckets.
const SPREAD_BYTES: usize = 2 << 20;

/// An upper bound of the bytes of one [`Quantiles`].
const QUANTILES_BYTES: usize = 128 << 10;

/// Keys whose memory is prefetched at once.
const CHUNK: usize = 32;

/// Packets and bytes, with their time span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Packets in flows and their bytes.
    pub(crate) flowed: [u64; 2],
    /// Packets in none and their bytes, by reason.
    pub(crate) unflowed: BTreeMap<Cow<'static, str>, [u64; 2]>,
    /// The times of the first and the last packet, in ns; the first is after the last if there was none.
    pub(crate) span_ns: [u64; 2],
    /// Packets that were earlier than the preceding packet.
    pub(crate) backwards: u64,
}

impl Totals {
    fn new() -> Totals {
        Totals { span_ns: [u64::MAX, 0], ..Totals::default() }
    }

    pub(crate) fn add_unflowed(&mut self, reason: Cow<'static, str>, packets: u64, bytes: u64) {
        let [all_packets, all_bytes] = self.unflowed.entry(reason).or_default();
        *all_packets = all_packets.saturating_add(packets);
        *all_bytes = all_bytes.saturating_add(bytes);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flowed[0] == 0 && self.unflowed.is_empty()
    }

    pub(crate) fn sum(&self) -> [u64; 2] {
        self.unflowed.values().fold(self.flowed, added)
    }

    fn merge(&mut self, other: &Totals) {
        self.flowed = added(self.flowed, &other.flowed);
        for (reason, [packets, bytes]) in &other.unflowed {
            self.add_unflowed(reason.clone(), *packets, *bytes);
        }
        self.span_ns[0] = self.span_ns[0].min(other.span_ns[0]);
        self.span_ns[1] = self.span_ns[1].max(other.span_ns[1]);
        self.backwards = self.backwards.saturating_add(other.backwards);
    }
}

/// Adds packets and bytes. Merged files may contain any numbers, so the sums saturate.
fn added(one: [u64; 2], other: &[u64; 2]) -> [u64; 2] {
    [one[0].saturating_add(other[0]), one[1].saturating_add(other[1])]
}

/// The sketches of one time span; `None` if shed or not wanted.
#[derive(Clone, Debug)]
pub(crate) struct Sketches {
    pub(crate) totals: Totals,
    pub(crate) distinct: [Distinct; 3],
    pub(crate) tops: [Option<TopCounts<5>>; TOPS.len()],
    pub(crate) sizes: Option<Mrac>,
    pub(crate) spread: Option<SpreadSketch<5>>,
    pub(crate) packet_bytes: Option<Quantiles>,
    pub(crate) inter_arrival: Option<Quantiles>,
}

/// The part that a top list belongs to, by index.
pub(crate) const TOP_PARTS: [Part; TOPS.len()] = [
    Part::TopFlows,
    Part::TopSources,
    Part::TopDestinations,
    Part::TopSourcePorts,
    Part::TopDestinationPorts,
];

/// The number of keys that a top list remembers, by index.
pub(crate) fn keys_of(settings: &Settings, place: usize) -> usize {
    let share = match place {
        FLOWS => 1,
        SOURCES | DESTINATIONS => 2,
        _ => 4,
    };
    (settings.keys / share).clamp(16, 1 << 24)
}

impl Sketches {
    /// Bytes for what is never shed: the three counts of distinct keys.
    pub(crate) const FIXED_BYTES: usize = 3 * (4 << 10) + 1024;

    /// Memory of a part in bytes: in an interval's sketches, in those of everything, and in the previous
    /// interval's top lists, from which changes are computed.
    pub(crate) fn bytes_of(settings: &Settings, part: Part) -> usize {
        match part {
            Part::Spreaders => 2 * SPREAD_BYTES,
            Part::FlowSizes => 2 * SIZES_BYTES,
            Part::InterArrival | Part::PacketBytes => 2 * QUANTILES_BYTES,
            Part::TopFlows
            | Part::TopSources
            | Part::TopDestinations
            | Part::TopSourcePorts
            | Part::TopDestinationPorts => {
                let place = TOP_PARTS.iter().position(|one| *one == part).unwrap_or(FLOWS);
                let copies = if place <= DESTINATIONS { 3 } else { 2 };
                copies * TopCounts::<5>::bytes_for(keys_of(settings, place))
            }
        }
    }

    pub(crate) fn new(settings: &Settings, parts: &[Part], seed: &Seed) -> Sketches {
        let has = |part: Part| parts.contains(&part);
        let top = |place: usize| has(TOP_PARTS[place]).then(|| TopCounts::new(keys_of(settings, place)));
        let sizes = || Mrac::with_bytes(SIZES_BYTES, seed).expect("a fitting constant");
        let spread = || SpreadSketch::with_bytes(SPREAD_BYTES, seed).expect("a fitting constant");
        Sketches {
            totals: Totals::new(),
            distinct: Default::default(),
            tops: std::array::from_fn(top),
            sizes: has(Part::FlowSizes).then(sizes),
            spread: has(Part::Spreaders).then(spread),
            packet_bytes: has(Part::PacketBytes).then(Quantiles::default),
            inter_arrival: has(Part::InterArrival).then(Quantiles::default),
        }
    }

    /// Sheds a part.
    pub(crate) fn shed(&mut self, part: Part) {
        match part {
            Part::Spreaders => self.spread = None,
            Part::FlowSizes => self.sizes = None,
            Part::InterArrival => self.inter_arrival = None,
            Part::PacketBytes => self.packet_bytes = None,
            Part::TopFlows
            | Part::TopSources
            | Part::TopDestinations
            | Part::TopSourcePorts
            | Part::TopDestinationPorts => {
                for (top, _) in self.tops.iter_mut().zip(TOP_PARTS).filter(|(_, one)| *one == part) {
                    *top = None;
                }
            }
        }
    }

    /// Counts evictions of the aggregator.
    pub(crate) fn add(&mut self, evicted: &[Evicted<5>], keys: &Keys) {
        for chunk in evicted.chunks(CHUNK) {
            for place in 0..TOPS.len() {
                self.add_to_top(place, chunk, keys);
            }
        }
    }

    /// Counts a chunk in everything that concerns one kind of key.
    #[inline]
    fn add_to_top(&mut self, place: usize, chunk: &[Evicted<5>], keys: &Keys) {
        let mut items = [Item::<5>::default(); CHUNK];
        for (item, one) in items.iter_mut().zip(chunk) {
            *item = keys.item(place, one);
            if let Some(top) = &self.tops[place] {
                top.prefetch(item);
            }
        }
        let items = &items[..chunk.len()];
        if let Some(top) = &self.tops[place] {
            items.iter().for_each(|item| top.prefetch_row(item));
        }
        if let Some(distinct) = self.distinct.get_mut(place) {
            items.iter().for_each(|item| distinct.update(item.hash));
        }
        match place {
            FLOWS => self.add_sizes(items, chunk),
            SOURCES => self.add_spread(items, chunk, keys),
            _ => (),
        }
        if let Some(top) = &mut self.tops[place] {
            for (item, one) in items.iter().zip(chunk) {
                top.update(item, one.packets, one.bytes);
            }
        }
    }

    fn add_sizes(&mut self, flows: &[Item<5>], chunk: &[Evicted<5>]) {
        let Some(sizes) = &mut self.sizes else { return };
        for (flow, one) in flows.iter().zip(chunk) {
            sizes.update(flow.hash, one.packets);
        }
    }

    fn add_spread(&mut self, sources: &[Item<5>], chunk: &[Evicted<5>], keys: &Keys) {
        let Some(spread) = &mut self.spread else { return };
        sources.iter().for_each(|source| spread.prefetch(source.hash));
        for (source, one) in sources.iter().zip(chunk) {
            spread.update(source, keys.hash.hash(&keys.pair(&one.item.key)));
        }
    }

    /// Adds what other sketches have counted. If there is anything to add, a part that either side lacks is
    /// dropped.
    pub(crate) fn merge(&mut self, other: &Sketches) -> Result<(), MergeError> {
        if other.totals.is_empty() {
            return Ok(());
        }
        for (one, other) in self.distinct.iter_mut().zip(&other.distinct) {
            // A union is less exact than its operands.
            if self.totals.is_empty() { one.clone_from(other) } else { one.merge(other) }
        }
        self.totals.merge(&other.totals);
        for (one, other) in self.tops.iter_mut().zip(&other.tops) {
            join(one, other.as_ref(), TopCounts::merge)?;
        }
        join(&mut self.sizes, other.sizes.as_ref(), Mrac::merge)?;
        join(&mut self.spread, other.spread.as_ref(), SpreadSketch::merge)?;
        join(&mut self.packet_bytes, other.packet_bytes.as_ref(), Quantiles::merge)?;
        join(&mut self.inter_arrival, other.inter_arrival.as_ref(), Quantiles::merge)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.totals = Totals::new();
        self.distinct = Default::default();
        self.tops.iter_mut().flatten().for_each(TopCounts::clear);
        self.sizes.iter_mut().for_each(Mrac::clear);
        self.spread.iter_mut().for_each(SpreadSketch::clear);
        self.packet_bytes.iter_mut().for_each(|one| *one = Quantiles::default());
        self.inter_arrival.iter_mut().for_each(|one| *one = Quantiles::default());
    }
}

/// Merges where both exist.
fn join<T>(
    one: &mut Option<T>,
    other: Option<&T>,
    merge: impl Fn(&mut T, &T) -> Result<(), MergeError>,
) -> Result<(), MergeError> {
    match (one.as_mut(), other) {
        (Some(one), Some(other)) => merge(one, other),
        _ => {
            *one = None;
            Ok(())
        }
    }
}
