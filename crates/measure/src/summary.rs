//! The measurement itself: records in, reports out.
//!
//! Records are added up by an aggregator, whose evictions feed the sketches of the current interval; at its
//! end these are merged into those of everything. Adding a record costs one lookup in the aggregator, two
//! steps of KLL for a single packet, and occasionally the updates of an eviction.

use crate::file::Unlike;
use crate::keys::Keys;
use crate::queries::{COUNT, Query, tops};
use crate::record::FlowRecord;
use crate::report::{Interval, Report};
use crate::reporting::Reporting;
use crate::settings::{AGGREGATOR_BYTES, Settings};
use crate::sketches::{Sketch, Sketches};
use crate::truth::Truth;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_sketch::top_counts::TopCount;
use weir_sketch::{Aggregator, BATCH, Evicted, Gate, Policy, Seed, TopCounts, Update};

/// Evictions that are passed to the sketches at once.
const HANDED: usize = 256;

/// Evictions per packet above which the aggregator is bypassed: an eviction costs the sketches ten times as
/// much as a lookup.
const GATE: f64 = 0.9;

/// A measurement: of everything since it began, and of the current interval.
#[derive(Clone, Debug)]
pub struct Summary {
    pub(crate) settings: Settings,
    pub(crate) seed: Seed,
    pub(crate) keys: Keys,
    pub(crate) kept: Vec<Query>,
    pub(crate) shed: Vec<Query>,
    aggregator: Aggregator<5>,
    updates: Vec<Update<5>>,
    evicted: Vec<Evicted<5>>,
    pub(crate) interval: Sketches,
    pub(crate) all: Sketches,
    /// The top lists of the previous interval.
    before: Option<[Option<Sketch>; COUNT]>,
    truth: Option<Truth>,
    /// When the last packet arrived, in ns.
    last_ns: Option<u64>,
    /// Packets since the last one that was sampled for quantiles.
    stride: u64,
    /// The largest packet, as far as known.
    pub(crate) largest: u64,
}

impl Summary {
    /// Creates an empty measurement. Measurements with equal seeds and settings can be merged.
    #[must_use]
    pub fn new(settings: &Settings, seed: Seed) -> Summary {
        let (kept, shed) = settings.fit();
        let gate = Gate::new(GATE);
        let aggregator = Aggregator::with_bytes(AGGREGATOR_BYTES, Policy::SecondChance, gate, &seed);
        Summary {
            settings: settings.clone(),
            seed,
            keys: Keys::new(settings, &seed),
            aggregator: aggregator.expect("a fitting constant"),
            updates: Vec::with_capacity(BATCH),
            evicted: Vec::with_capacity(HANDED + BATCH),
            interval: Sketches::new(settings, &kept, &seed),
            all: Sketches::new(settings, &kept, &seed),
            kept,
            shed,
            before: None,
            truth: Truth::new(settings.exact_memory),
            last_ns: None,
            stride: 0,
            largest: 0,
        }
    }

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Limits the lists of future reports to `rows` rows.
    pub fn set_top(&mut self, rows: usize) {
        (self.settings.top, self.settings.interval_top) = (rows, rows);
    }

    /// Counts packets of a flow.
    #[inline]
    pub fn add(&mut self, record: &FlowRecord) {
        let FlowRecord { key, packets, bytes, first_ns, last_ns, .. } = *record;
        let totals = &mut self.interval.totals;
        totals.flowed[0] += packets;
        totals.flowed[1] += bytes;
        self.saw(packets, bytes, first_ns, last_ns);
        self.updates.push(Update { key: self.keys.tuple(&key), packets, bytes, note: () });
        if self.updates.len() == BATCH {
            self.aggregate();
        }
    }

    /// Counts packets that belong to no flow, and why.
    pub fn add_unflowed(
        &mut self,
        reason: impl Into<Cow<'static, str>>,
        packets: u64,
        bytes: u64,
        at_ns: u64,
    ) {
        self.interval.totals.add_unflowed(reason.into(), packets, bytes);
        self.saw(packets, bytes, at_ns, at_ns);
    }

    /// Counts packets that belong to no flow and whose sizes and times are not known, and why.
    pub fn add_skipped(&mut self, reason: impl Into<Cow<'static, str>>, packets: u64, bytes: u64) {
        self.interval.totals.add_unflowed(reason.into(), packets, bytes);
    }

    /// Records the sizes and times of packets.
    #[inline]
    fn saw(&mut self, packets: u64, bytes: u64, first_ns: u64, last_ns: u64) {
        let totals = &mut self.interval.totals;
        totals.span_ns[0] = totals.span_ns[0].min(first_ns);
        totals.span_ns[1] = totals.span_ns[1].max(last_ns);
        let largest = if packets == 1 { bytes } else { self.settings.packet_bytes_max };
        self.largest = self.largest.max(largest);
        let gap_ns = self.last_ns.and_then(|before| first_ns.checked_sub(before));
        if self.last_ns.is_some() && gap_ns.is_none() {
            totals.backwards += 1;
        }
        self.last_ns = Some(last_ns);
        self.stride += packets;
        if self.stride >= self.settings.quantile_stride {
            self.note(packets, bytes, gap_ns, last_ns - first_ns.min(last_ns));
        }
    }

    /// Samples a packet for quantiles whenever the stride has passed. If several packets are counted
    /// together, only their mean is known.
    fn note(&mut self, packets: u64, bytes: u64, gap_ns: Option<u64>, lasted_ns: u64) {
        let times = self.stride / self.settings.quantile_stride.max(1);
        self.stride %= self.settings.quantile_stride.max(1);
        let size = bytes as f64 / packets as f64;
        let gap = if packets > 1 {
            Some(lasted_ns as f64 / (packets - 1) as f64)
        } else {
            gap_ns.map(|gap| gap as f64)
        };
        self.interval.add_packet(times, size, gap);
    }

    /// Passes the collected updates to the aggregator, and its evictions to the sketches.
    #[inline(never)]
    fn aggregate(&mut self) {
        if let Some(truth) = &mut self.truth {
            self.updates.iter().for_each(|update| truth.add(update));
        }
        self.aggregator.add(&self.updates, &mut self.evicted);
        self.updates.clear();
        if self.evicted.len() >= HANDED {
            self.interval.add(&self.evicted, &self.keys);
            self.evicted.clear();
        }
    }

    /// Passes everything to the sketches.
    pub(crate) fn flush(&mut self) {
        self.aggregate();
        let (interval, keys) = (&mut self.interval, &self.keys);
        interval.add(&self.evicted, keys);
        self.evicted.clear();
        while !self.aggregator.sweep(HANDED / 16, &mut self.evicted) {
            interval.add(&self.evicted, keys);
            self.evicted.clear();
        }
        interval.add(&self.evicted, keys);
        self.evicted.clear();
    }

    /// Returns the packets and bytes of the current interval.
    pub(crate) fn interval_sum(&self) -> [u64; 2] {
        self.interval.totals.sum()
    }

    /// Returns the addresses in the first `rows` rows of the current interval's top lists, as far as they
    /// have reached the sketches.
    pub(crate) fn frequent_addresses(&self, rows: usize) -> BTreeSet<IpAddr> {
        let of_list = |(place, top): (usize, &TopCounts<5>)| -> Vec<IpAddr> {
            let addresses = |row: TopCount<5>| self.keys.addresses(place, &row.key);
            top.top(rows).into_iter().flat_map(addresses).flatten().collect()
        };
        let lists = tops().filter_map(|(place, ..)| Some((place, self.interval.top(place)?)));
        lists.flat_map(of_list).collect()
    }

    /// Ends the current interval: returns its report, and begins the next.
    pub fn close(&mut self, start_ns: u64, end_ns: u64) -> Interval {
        self.flush();
        let mut report = self.reporting(&self.interval).report(start_ns, end_ns);
        if let Some(before) = &self.before {
            report.changes = self.reporting(&self.interval).changes(before);
        }
        self.all.merge(&self.interval).expect("both were made the same way");
        let before = self.before.get_or_insert([const { None }; COUNT]);
        for (place, ..) in tops().filter(|(.., top)| top.has_changes) {
            std::mem::swap(&mut before[place], &mut self.interval.answers[place]);
            if self.interval.answers[place].is_none() {
                let new = self.all.top(place).map(|top| TopCounts::new(top.capacity()));
                self.interval.answers[place] = new.map(Sketch::Top);
            }
        }
        self.interval.clear();
        if let Some(truth) = &mut self.truth {
            truth.close();
        }
        report
    }

    /// Merges the current interval into everything, which ends it.
    pub(crate) fn gather(&mut self) {
        if self.interval.totals.is_empty() {
            // As in a file that was read: merging tables of megabytes would change nothing.
            return;
        }
        self.flush();
        self.all.merge(&self.interval).expect("both were made the same way");
        self.interval.clear();
    }

    /// Reports on everything since the measurement began, including the current interval.
    pub fn report(&mut self) -> Report {
        self.flush();
        let mut both = None;
        if !self.all.totals.is_empty() {
            let all = both.insert(self.all.clone());
            all.merge(&self.interval).expect("both were made the same way");
        }
        let all = both.as_ref().unwrap_or(&self.interval);
        let [start_ns, end_ns] = all.totals.span_ns;
        let reporting = Reporting { is_all: true, ..self.reporting(all) };
        reporting.report(start_ns.min(end_ns), end_ns)
    }

    /// Reports on everything as on a single interval, and on changes since the interval in `before`.
    pub(crate) fn interval_report(
        &mut self,
        [start_ns, end_ns]: [u64; 2],
        before: Option<&Summary>,
    ) -> Report {
        self.gather();
        let reporting = Reporting { is_all: true, ..self.reporting(&self.all) };
        let mut report = reporting.report(start_ns, end_ns);
        // Records of different nodes arrive in any order, and none is of a single packet.
        report.backwards = 0;
        report.shed.retain(|query| !query.is_about_packets());
        if let Some(before) = before {
            let mut lists = [const { None }; COUNT];
            for (place, ..) in tops().filter(|(.., top)| top.has_changes) {
                lists[place].clone_from(&before.all.answers[place]);
            }
            report.changes = reporting.changes(&lists);
        }
        report
    }

    fn reporting<'a>(&'a self, sketches: &'a Sketches) -> Reporting<'a> {
        Reporting { summary: self, sketches, truth: self.truth.as_ref(), is_all: false }
    }

    /// Sheds the next query in the order of [`Query::shed_order`], for a source that the measurement cannot
    /// keep up with. Returns the query; `None` when nothing is left to shed.
    pub fn shed_next(&mut self) -> Option<Query> {
        let query = (!self.kept.is_empty()).then(|| self.kept.remove(0))?;
        self.shed_query(query);
        Some(query)
    }

    pub(crate) fn shed_query(&mut self, query: Query) {
        self.kept.retain(|one| *one != query);
        if !self.shed.contains(&query) {
            self.shed.push(query);
        }
        self.interval.shed(query);
        self.all.shed(query);
    }

    /// Adds the counts of another measurement with an equal seed and equal keys. Queries that either of the
    /// two lacks are shed. The other's intervals are not kept separate.
    ///
    /// # Errors
    /// The two measurements cannot be merged.
    pub fn merge(&mut self, mut other: Summary) -> Result<(), Unlike> {
        let (one, two) = (&self.settings, &other.settings);
        let keys = |settings: &Settings| (settings.flow, settings.prefixes, settings.tunnels_apart);
        match () {
            () if self.seed != other.seed => return Err(Unlike::Seed),
            () if keys(one) != keys(two) => return Err(Unlike::Keys),
            () if one.keys != two.keys => return Err(Unlike::Sizes(one.keys, two.keys)),
            () => (),
        }
        other.gather();
        self.gather();
        for query in self.kept.clone() {
            if !other.kept.contains(&query) {
                self.shed_query(query);
            }
        }
        self.all.merge(&other.all).expect("seeds and sizes are equal");
        self.largest = self.largest.max(other.largest);
        if let Some(truth) = &mut self.truth {
            truth.end("exact counts are not kept in sketch files".to_string());
        }
        Ok(())
    }
}
