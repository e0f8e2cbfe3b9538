//! The sketches of one time span: an interval, or everything. `queries.rs` lists them.
//!
//! The sketches are fed in batches with the evictions of an aggregator. The sketches of an interval are
//! merged into those of everything, which costs a few milliseconds once, so that each packet is counted only
//! once.

use crate::keys::{FLOWS, Keys, SOURCES};
use crate::queries::{Asks, COUNT, QUERIES, Query, TopQuery};
use crate::settings::Settings;
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
    /// Packets in no flow and their bytes, by reason.
    pub(crate) unflowed: BTreeMap<Cow<'static, str>, [u64; 2]>,
    /// The times of the first and the last packet, in ns; the first is after the last if there was none.
    pub(crate) span_ns: [u64; 2],
    /// Packets whose time was before that of the preceding packet.
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

/// The sketch that answers a query.
#[derive(Clone, Debug)]
pub(crate) enum Sketch {
    Top(TopCounts<5>),
    Sizes(Mrac),
    Spread(SpreadSketch<5>),
    Quantiles(Quantiles),
}

impl Sketch {
    fn new(settings: &Settings, asks: &Asks, seed: &Seed) -> Sketch {
        match asks {
            Asks::Top(top) => Sketch::Top(TopCounts::new(keys_of(settings, top))),
            Asks::FlowSizes => {
                Sketch::Sizes(Mrac::with_bytes(SIZES_BYTES, seed).expect("a fitting constant"))
            }
            Asks::Spreaders => {
                Sketch::Spread(SpreadSketch::with_bytes(SPREAD_BYTES, seed).expect("a fitting constant"))
            }
            Asks::Quantiles(_) => Sketch::Quantiles(Quantiles::default()),
        }
    }

    /// Adds what a sketch for the same query has counted.
    fn merge(&mut self, other: &Sketch) -> Result<(), MergeError> {
        match (self, other) {
            (Sketch::Top(one), Sketch::Top(other)) => one.merge(other),
            (Sketch::Sizes(one), Sketch::Sizes(other)) => one.merge(other),
            (Sketch::Spread(one), Sketch::Spread(other)) => one.merge(other),
            (Sketch::Quantiles(one), Sketch::Quantiles(other)) => one.merge(other),
            (Sketch::Top(_) | Sketch::Sizes(_) | Sketch::Spread(_) | Sketch::Quantiles(_), _) => {
                Err(MergeError)
            }
        }
    }

    fn clear(&mut self) {
        match self {
            Sketch::Top(top) => top.clear(),
            Sketch::Sizes(sizes) => sizes.clear(),
            Sketch::Spread(spread) => spread.clear(),
            Sketch::Quantiles(quantiles) => *quantiles = Quantiles::default(),
        }
    }
}

/// The sketches of one time span.
#[derive(Clone, Debug)]
pub(crate) struct Sketches {
    pub(crate) totals: Totals,
    pub(crate) distinct: [Distinct; 3],
    /// The sketches by the place of their query; `None` if the query was shed or is not wanted.
    pub(crate) answers: [Option<Sketch>; COUNT],
}

/// The number of keys that a top list remembers.
pub(crate) fn keys_of(settings: &Settings, top: &TopQuery) -> usize {
    (settings.keys / top.share).clamp(16, 1 << 24)
}

impl Sketches {
    /// Bytes of the sketches that are never shed: the three counts of distinct keys.
    pub(crate) const FIXED_BYTES: usize = 3 * (4 << 10) + 1024;

    /// Memory for a query in bytes: in an interval's sketches, in those of everything, and in the previous
    /// interval's top lists, from which changes are computed.
    pub(crate) fn bytes_of(settings: &Settings, query: Query) -> usize {
        match &query.row().asks {
            Asks::Spreaders => 2 * SPREAD_BYTES,
            Asks::FlowSizes => 2 * SIZES_BYTES,
            Asks::Quantiles(_) => 2 * QUANTILES_BYTES,
            Asks::Top(top) => {
                let copies = if top.has_changes { 3 } else { 2 };
                copies * TopCounts::<5>::bytes_for(keys_of(settings, top))
            }
        }
    }

    pub(crate) fn new(settings: &Settings, queries: &[Query], seed: &Seed) -> Sketches {
        let mut answers = [const { None }; COUNT];
        for query in queries {
            answers[query.place()] = Some(Sketch::new(settings, &query.row().asks, seed));
        }
        Sketches { totals: Totals::new(), distinct: Default::default(), answers }
    }

    /// The top list at a place.
    pub(crate) fn top(&self, place: usize) -> Option<&TopCounts<5>> {
        match self.answers[place].as_ref()? {
            Sketch::Top(top) => Some(top),
            Sketch::Sizes(_) | Sketch::Spread(_) | Sketch::Quantiles(_) => None,
        }
    }

    /// Sheds the answer to a query.
    pub(crate) fn shed(&mut self, query: Query) {
        self.answers[query.place()] = None;
    }

    /// Counts evictions of the aggregator.
    pub(crate) fn add(&mut self, evicted: &[Evicted<5>], keys: &Keys) {
        for chunk in evicted.chunks(CHUNK) {
            for place in 0..keys.tops.len() {
                self.add_keys(place, chunk, keys);
            }
        }
    }

    /// Counts a chunk in everything that concerns one kind of key.
    #[inline]
    fn add_keys(&mut self, place: usize, chunk: &[Evicted<5>], keys: &Keys) {
        let mut items = [Item::<5>::default(); CHUNK];
        for (item, one) in items.iter_mut().zip(chunk) {
            *item = keys.item(place, one);
            if let Some(top) = self.top(place) {
                top.prefetch(item);
            }
        }
        let items = &items[..chunk.len()];
        if let Some(top) = self.top(place) {
            items.iter().for_each(|item| top.prefetch_row(item));
        }
        if let Some(distinct) = self.distinct.get_mut(place) {
            items.iter().for_each(|item| distinct.update(item.hash));
        }
        for (row, answer) in QUERIES.iter().zip(&mut self.answers) {
            match (&row.asks, answer) {
                (Asks::FlowSizes, Some(Sketch::Sizes(sizes))) if place == FLOWS => {
                    items.iter().zip(chunk).for_each(|(flow, one)| sizes.update(flow.hash, one.packets));
                }
                (Asks::Spreaders, Some(Sketch::Spread(spread))) if place == SOURCES => {
                    items.iter().for_each(|source| spread.prefetch(source.hash));
                    for (source, one) in items.iter().zip(chunk) {
                        spread.update(source, keys.hash.hash(&keys.pair(&one.item.key)));
                    }
                }
                _ => (),
            }
        }
        if let Some(Sketch::Top(top)) = &mut self.answers[place] {
            for (item, one) in items.iter().zip(chunk) {
                top.update(item, one.packets, one.bytes);
            }
        }
    }

    /// Counts a packet in quantiles, `times` times: its bytes, and the nanoseconds since the previous packet.
    pub(crate) fn add_packet(&mut self, times: u64, bytes: f64, gap_ns: Option<f64>) {
        for (row, answer) in QUERIES.iter().zip(&mut self.answers) {
            if let (Asks::Quantiles(quantity), Some(Sketch::Quantiles(quantiles))) = (&row.asks, answer)
                && let Some(value) = (quantity.of)(bytes, gap_ns)
            {
                (0..times).for_each(|_| quantiles.update(value));
            }
        }
    }

    /// Adds the counts of other sketches. Unless these are empty, answers that either side lacks are dropped.
    pub(crate) fn merge(&mut self, other: &Sketches) -> Result<(), MergeError> {
        if other.totals.is_empty() {
            return Ok(());
        }
        for (one, other) in self.distinct.iter_mut().zip(&other.distinct) {
            // A union is less exact than its operands.
            if self.totals.is_empty() { one.clone_from(other) } else { one.merge(other) }
        }
        self.totals.merge(&other.totals);
        for (one, other) in self.answers.iter_mut().zip(&other.answers) {
            match (one.as_mut(), other) {
                (Some(one), Some(other)) => one.merge(other)?,
                (Some(_), None) | (None, _) => *one = None,
            }
        }
        Ok(())
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.totals = Totals::new();
        self.distinct = Default::default();
        self.answers.iter_mut().flatten().for_each(Sketch::clear);
    }
}
