//! From sketches to a report.

use crate::entropy::entropy;
use crate::keys::{DESTINATIONS, FLOWS, SOURCES};
use crate::queries::{Asks, COUNT, QUERIES, TopQuery, tops};
use crate::report::{
    Answer, Answers, ChangeRow, Estimated, QuantileRow, Report, RowNames, SizeClass, SpreaderRow, TopList,
    TopRow, Unflowed,
};
use crate::sketches::{Sketch, Sketches};
use crate::summary::Summary;
use crate::truth::{self, Truth};
use std::collections::BTreeMap;
use weir_sketch::top_counts::TopCount;
use weir_sketch::{Distinct, Estimate, Exact, Mrac, Quantiles, SpreadSketch, TopCounts};

/// The shares of quantiles.
pub(crate) const SHARES: [f64; 7] = [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0];

/// The sketches of a time span, and the context for reporting on them.
pub(crate) struct Reporting<'a> {
    pub(crate) summary: &'a Summary,
    pub(crate) sketches: &'a Sketches,
    pub(crate) truth: Option<&'a Truth>,
    /// Whether the report covers everything rather than an interval.
    pub(crate) is_all: bool,
}

impl Reporting<'_> {
    /// The exact counts of 5-tuples of this time span, if they are known.
    fn tuples(&self) -> Option<&Exact<5>> {
        let truth = self.truth.filter(|truth| truth.ended.is_none())?;
        Some(if self.is_all { &truth.all } else { &truth.interval })
    }

    /// The number of rows of a list.
    fn rows(&self) -> usize {
        let settings = &self.summary.settings;
        if self.is_all { settings.top } else { settings.interval_top }
    }

    pub(crate) fn report(&self, start_ns: u64, end_ns: u64) -> Report {
        let (sketches, keys) = (self.sketches, &self.summary.keys);
        let [packets, bytes] = sketches.totals.sum();
        let unflowed = sketches.totals.unflowed.iter().map(|(reason, [packets, bytes])| Unflowed {
            reason: reason.to_string(),
            packets: *packets,
            bytes: *bytes,
        });
        let by_kind = |place| self.tuples().map(|tuples| truth::by_kind(tuples, keys, place));
        let exact: Vec<Option<Exact<5>>> = tops().map(|(place, ..)| by_kind(place)).collect();
        let distinct = |place: usize| {
            let mut number = Estimated::from(sketches.distinct[place].estimate());
            number.exact = exact[place].as_ref().map(|exact| exact.len() as f64);
            number
        };
        let answer = |place| self.answer(place, exact.get(place).and_then(Option::as_ref));
        let answers = Answers(std::array::from_fn(answer));
        let top = answers.list(QUERIES[FLOWS].field).map(|list| list.rows.clone()).unwrap_or_default();
        Report {
            start_ns,
            end_ns,
            packets,
            bytes,
            unflowed: unflowed.collect(),
            backwards: sketches.totals.backwards,
            flows: distinct(FLOWS),
            sources: distinct(SOURCES),
            destinations: distinct(DESTINATIONS),
            top,
            answers,
            changes: Vec::new(),
            shed: self.summary.shed.clone(),
            memory: self.summary.settings.bytes_of(&self.summary.kept),
            exact_ended: self.truth.and_then(|truth| truth.ended.clone()),
        }
    }

    /// Answers the query at a place; `exact` are the true counts of the keys of a list.
    fn answer(&self, place: usize, exact: Option<&Exact<5>>) -> Option<Answer> {
        Some(match self.sketches.answers[place].as_ref()? {
            Sketch::Top(top) => Answer::Top(self.top(place, top, exact)),
            Sketch::Sizes(sizes) => Answer::Sizes(self.sizes(sizes)),
            Sketch::Spread(spread) => Answer::Spreaders(self.spreaders(spread)),
            Sketch::Quantiles(sketch) => Answer::Quantiles(quantiles(sketch)),
        })
    }

    fn top(&self, place: usize, top: &TopCounts<5>, exact: Option<&Exact<5>>) -> TopList {
        let row = |row: TopCount<5>| {
            let bytes = row.bytes(self.summary.largest);
            let exact = exact.map(|exact| exact.get(&row.key));
            TopRow {
                key: self.summary.keys.text(place, &row.key),
                names: RowNames::of(self.summary.keys.addresses(place, &row.key)),
                packets: row.packets,
                bytes: row.bytes,
                bound: row.error,
                bytes_bound: (bytes.high - bytes.low) as u64,
                exact_packets: exact.map(|count| count.packets),
                exact_bytes: exact.map(|count| count.bytes),
            }
        };
        let rows = top.top(self.rows()).into_iter().map(row).collect();
        let number = match (self.sketches.distinct.get(place), &QUERIES[place].asks) {
            (None, Asks::Top(TopQuery { keys_max: high, .. })) => {
                Estimate { value: 2.0 * top.len() as f64, low: 0.0, high: *high, confidence: 1.0 }
            }
            (distinct, _) => distinct.map_or(Estimate::exact(0.0), Distinct::estimate),
        };
        let entropy = entropy(top, number).map(|bits| {
            let mut bits = Estimated::from(bits);
            bits.exact = exact.map(Exact::entropy);
            bits
        });
        TopList { rows, missing: top.missing(), entropy }
    }

    fn sizes(&self, sizes: &Mrac) -> Vec<SizeClass> {
        let sizes = sizes.distribution().sizes;
        let exact = self.tuples().map(|tuples| truth::sizes(tuples, &self.summary.keys));
        let mut classes: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
        for (column, sizes) in [Some(&sizes), exact.as_ref()].into_iter().enumerate() {
            for (size, flows) in sizes.into_iter().flatten().filter(|(size, _)| *size > 0) {
                classes.entry(size.ilog2()).or_default()[column] += flows;
            }
        }
        let class = |(power, [flows, truth]): (u32, [f64; 2])| SizeClass {
            from: 1 << power,
            to: (1 << power) - 1 + (1 << power),
            flows,
            exact: exact.as_ref().map(|_| truth.round() as u64),
        };
        classes.into_iter().map(class).collect()
    }

    fn spreaders(&self, sketch: &SpreadSketch<5>) -> Vec<SpreaderRow> {
        let (keys, settings) = (&self.summary.keys, &self.summary.settings);
        let found = sketch.spreaders(settings.spread_least as f64, |key| keys.hash.hash(key));
        let exact = self.tuples().map(|tuples| truth::spreads(tuples, keys));
        let row = |one: &weir_sketch::Spread<5>| {
            let mut destinations = Estimated::from(one.spread);
            destinations.exact =
                exact.as_ref().map(|exact| exact.get(&one.key).copied().unwrap_or_default() as f64);
            let names = RowNames::of(keys.addresses(SOURCES, &one.key));
            SpreaderRow { source: keys.text(SOURCES, &one.key), names, destinations }
        };
        found.iter().take(self.rows()).map(row).collect()
    }

    /// Heavy changes since the interval with these top lists. Only certain changes are reported.
    pub(crate) fn changes(&self, before: &[Option<Sketch>; COUNT]) -> Vec<ChangeRow> {
        let mut rows = Vec::new();
        for (place, _, top) in tops() {
            if let (Some(now), Some(Sketch::Top(before))) = (self.sketches.top(place), &before[place]) {
                rows.extend(self.changes_of(place, top.one, now, before));
            }
        }
        rows.sort_by(|one, other| other.change.estimate.abs().total_cmp(&one.change.estimate.abs()));
        rows
    }

    fn changes_of(
        &self,
        place: usize,
        kind: &'static str,
        now: &TopCounts<5>,
        before: &TopCounts<5>,
    ) -> Vec<ChangeRow> {
        let keys = &self.summary.keys;
        let mut found: Vec<(f64, Estimate, [u64; 5])> = Vec::new();
        for key in now.iter().chain(before.iter()).map(|row| row.key) {
            let item = keys.hash.item(key);
            let [now, before] = [now, before].map(|top| top.get(&item).packets());
            let (low, high) = (now.low - before.high, now.high - before.low);
            let certain = low.max(-high);
            if certain > 0.0 {
                let value = now.low - before.low;
                found.push((
                    certain,
                    Estimate { value: value.clamp(low, high), low, high, confidence: 1.0 },
                    key,
                ));
            }
        }
        found.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.2.cmp(&other.2)));
        found.dedup_by_key(|(_, _, key)| *key);
        found.truncate(self.rows());
        let exact = self
            .truth
            .filter(|truth| truth.ended.is_none())
            .map(|truth| [&truth.interval, &truth.before].map(|tuples| truth::by_kind(tuples, keys, place)));
        let row = |(_, change, key): (f64, Estimate, [u64; 5])| {
            let mut change = Estimated::from(change);
            change.exact = exact
                .as_ref()
                .map(|[now, before]| now.get(&key).packets as f64 - before.get(&key).packets as f64);
            let names = RowNames::of(keys.addresses(place, &key));
            ChangeRow { kind, key: keys.text(place, &key), names, change }
        };
        found.into_iter().map(row).collect()
    }
}

fn quantiles(sketch: &Quantiles) -> Vec<QuantileRow> {
    let row = |share: f64| Some(QuantileRow { share, value: sketch.quantile(share)?.into() });
    SHARES.into_iter().filter_map(row).collect()
}
