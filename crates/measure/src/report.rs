//! The results of a measurement, as plain data: numbers with their bounds, ready to be written as JSON, as
//! text or as a page.
//!
//! Times are nanoseconds of the source's clock. An `exact` beside an estimate is the true value, if it was
//! counted.

use crate::queries::{COUNT, QUERIES, Query};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::net::IpAddr;
use weir_control::addresses::AddressName;
use weir_sketch::Estimate;

/// An estimate, its bounds, and the true value if it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimated {
    /// The estimated value, in the unit of the query.
    pub estimate: f64,
    /// The lower bound: the true value is not less than this, with probability `confidence`.
    pub low: f64,
    /// The upper bound: the true value is not more than this, with probability `confidence`.
    pub high: f64,
    /// The probability that the true value lies between the bounds; 1 means certainty.
    pub confidence: f64,
    /// The true value.
    pub exact: Option<f64>,
}

impl From<Estimate> for Estimated {
    fn from(one: Estimate) -> Estimated {
        let Estimate { value, low, high, confidence } = one;
        Estimated { estimate: value, low, high, confidence, exact: None }
    }
}

impl Estimated {
    /// Returns true if the true value is known and outside the bounds.
    #[must_use]
    pub fn misses(&self) -> bool {
        self.exact.is_some_and(|exact| exact < self.low - 1e-6 || exact > self.high + 1e-6)
    }
}

/// Packets that belong to no flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unflowed {
    /// The reason in a word, such as `no_key` or `full`.
    pub reason: String,
    /// The number of packets.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
}

/// The names of a row's addresses. Their fields are part of the row in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RowNames {
    /// The source and destination of the row's key, where the key has the whole address.
    #[serde(skip)]
    pub addresses: [Option<IpAddr>; 2],
    /// The name of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_name: Option<AddressName>,
    /// The name of the destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_name: Option<AddressName>,
}

impl RowNames {
    /// The names of these addresses, which are not known yet.
    pub(crate) fn of(addresses: [Option<IpAddr>; 2]) -> RowNames {
        RowNames { addresses, ..RowNames::default() }
    }

    fn find(&mut self, find: &impl Fn(IpAddr) -> Option<AddressName>) {
        let own = [&mut self.source_name, &mut self.destination_name];
        for (own, address) in own.into_iter().zip(self.addresses) {
            if let Some(name) = address.and_then(find) {
                *own = Some(name);
            }
        }
    }

    /// Formats the names behind two spaces; nothing if there are none.
    pub(crate) fn text(&self) -> String {
        names_text(&[&self.source_name, &self.destination_name].map(|name| {
            let one = name.as_ref()?;
            Some((one.namespace.as_deref(), one.name.as_str()))
        }))
    }
}

/// Formats the names of a source and a destination, each with its namespace, behind two spaces; nothing if
/// there are none.
pub(crate) fn names_text(names: &[Option<(Option<&str>, &str)>; 2]) -> String {
    let text = |(namespace, name): (Option<&str>, &str)| match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_string(),
    };
    match names.map(|name| name.map(text)) {
        [None, None] => String::new(),
        [Some(one), None] => format!("  {one}"),
        [None, Some(one)] => format!("  > {one}"),
        [Some(source), Some(destination)] => format!("  {source} > {destination}"),
    }
}

/// A row of a top list. The true values are guaranteed to lie between `packets - bound` and `packets`, and
/// between `bytes` and `bytes + bytes_bound`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopRow {
    /// The key as text.
    pub key: String,
    /// The names of its addresses.
    #[serde(flatten)]
    pub names: RowNames,
    /// Number of packets, never too low.
    pub packets: u64,
    /// Number of bytes, never too high.
    pub bytes: u64,
    /// How many packets may belong to another key.
    pub bound: u64,
    /// How many bytes may be missing.
    pub bytes_bound: u64,
    /// The true number of packets.
    pub exact_packets: Option<u64>,
    /// The true number of bytes.
    pub exact_bytes: Option<u64>,
}

/// A top list: heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TopList {
    /// The rows, heaviest key first.
    pub rows: Vec<TopRow>,
    /// No key outside the summary behind the list has more packets than this; 0 if nothing was left out.
    pub missing: u64,
    /// Entropy of the packets' keys in bits.
    pub entropy: Option<Estimated>,
}

/// Flows with `from` to `to` packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SizeClass {
    /// Least number of packets.
    pub from: u64,
    /// Largest number of packets.
    pub to: u64,
    /// Number of flows; not whole, and without a proven bound.
    pub flows: f64,
    /// The true number of flows.
    pub exact: Option<u64>,
}

/// A source with many destinations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpreaderRow {
    /// The source as text.
    pub source: String,
    /// The names of the source, if its address has one.
    #[serde(flatten)]
    pub names: RowNames,
    /// Number of different destinations.
    pub destinations: Estimated,
}

/// A key that had many more or many fewer packets than in the previous interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangeRow {
    /// The noun for the key, such as `flow` or `source`.
    pub kind: &'static str,
    /// The key as text.
    pub key: String,
    /// The names of its addresses.
    #[serde(flatten)]
    pub names: RowNames,
    /// The increase in packets; negative if it has decreased.
    pub change: Estimated,
}

/// A quantile of a distribution over packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QuantileRow {
    /// The share of packets that do not exceed the value.
    pub share: f64,
    /// The value that this share of packets does not exceed, with bounds.
    pub value: Estimated,
}

/// The answer to a query.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// The keys with the most packets.
    Top(TopList),
    /// The distribution of flows by packets, in size classes that double.
    Sizes(Vec<SizeClass>),
    /// Sources with many destinations.
    Spreaders(Vec<SpreaderRow>),
    /// Quantiles.
    Quantiles(Vec<QuantileRow>),
}

impl Answer {
    /// Limits a list to `rows` rows.
    pub(crate) fn truncate(&mut self, rows: usize) {
        match self {
            Answer::Top(list) => list.rows.truncate(rows),
            Answer::Spreaders(list) => list.truncate(rows),
            Answer::Sizes(_) | Answer::Quantiles(_) => (),
        }
    }
}

/// The answers to all queries, by place; `None` if a query was shed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers(pub(crate) [Option<Answer>; COUNT]);

impl Answers {
    /// Returns the answer with a key in JSON, such as `top_flows`.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<&Answer> {
        self.0[QUERIES.iter().position(|row| row.field == field)?].as_ref()
    }

    /// Returns the top list with a key in JSON.
    #[must_use]
    pub fn list(&self, field: &str) -> Option<&TopList> {
        match self.get(field)? {
            Answer::Top(list) => Some(list),
            Answer::Sizes(_) | Answer::Spreaders(_) | Answer::Quantiles(_) => None,
        }
    }
}

impl Serialize for Answers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(COUNT))?;
        for (row, answer) in QUERIES.iter().zip(&self.0) {
            map.serialize_entry(row.field, answer)?;
        }
        map.end()
    }
}

/// The composition of the traffic in an interval, or of all traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// When it began, in ns.
    pub start_ns: u64,
    /// When it ended, in ns.
    pub end_ns: u64,
    /// Number of packets, whether or not they belong to flows.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// Packets outside of flows, by reason.
    pub unflowed: Vec<Unflowed>,
    /// Packets with an earlier timestamp than the packet before them.
    pub backwards: u64,
    /// Number of distinct flows.
    pub flows: Estimated,
    /// Number of distinct sources.
    pub sources: Estimated,
    /// Number of distinct destinations.
    pub destinations: Estimated,
    /// Top flows, in a list of its own for readers of JSON; the same list as `top_flows.rows`.
    pub top: Vec<TopRow>,
    /// The answers to queries.
    #[serde(flatten)]
    pub answers: Answers,
    /// Heavy changes since the previous interval, largest first; none in the report on everything.
    pub changes: Vec<ChangeRow>,
    /// The queries that were shed for lack of memory, in the order of shedding.
    pub shed: Vec<Query>,
    /// Memory used by sketches, in bytes.
    pub memory: usize,
    /// Why exact counts are missing although they were requested.
    pub exact_ended: Option<String>,
}

impl Report {
    /// Returns the names of all rows.
    fn names(&mut self) -> impl Iterator<Item = &mut RowNames> {
        let answers = self.answers.0.iter_mut().flatten().flat_map(|answer| -> Vec<&mut RowNames> {
            match answer {
                Answer::Top(list) => list.rows.iter_mut().map(|row| &mut row.names).collect(),
                Answer::Spreaders(rows) => rows.iter_mut().map(|row| &mut row.names).collect(),
                Answer::Sizes(_) | Answer::Quantiles(_) => Vec::new(),
            }
        });
        let top = self.top.iter_mut().map(|row| &mut row.names);
        top.chain(self.changes.iter_mut().map(|row| &mut row.names)).chain(answers)
    }

    /// Sets the names of all rows for which names are found.
    pub fn find_names(&mut self, find: impl Fn(IpAddr) -> Option<AddressName>) {
        self.names().for_each(|names| names.find(&find));
    }

    /// Returns the report without lists: only totals and numbers.
    #[must_use]
    pub fn in_short(self) -> Report {
        Report {
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            packets: self.packets,
            bytes: self.bytes,
            unflowed: self.unflowed,
            backwards: self.backwards,
            flows: self.flows,
            sources: self.sources,
            destinations: self.destinations,
            shed: self.shed,
            ..Report::default()
        }
    }
}

/// The report of an interval.
pub type Interval = Report;
