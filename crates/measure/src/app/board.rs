//! The running app: answers requests from the collector's published results.

use crate::{Query, Report};
use serde::Deserialize;
use serde_json::{Value, json};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_app::shown::{ago_ms, without_nulls};
use weir_app::{Action, App, Event, MetricHelp};
use weir_control::addresses::NamedAddress;
use weir_control::measure::IntervalState;
use weir_program::Program;

/// The number of intervals whose totals are kept.
pub const HISTORY: usize = 60;

/// The number of complete intervals whose sketches are kept for other nodes.
pub const KEPT: usize = 3;

/// A complete interval, kept to be merged with those of other nodes.
#[derive(Clone, Debug)]
pub struct KeptInterval {
    /// When it was, how much it contains, and how much of that belongs to other intervals.
    pub state: IntervalState,
    /// Its sketch file.
    pub file: Arc<[u8]>,
    /// The names of addresses in its longest lists.
    pub names: Arc<[NamedAddress]>,
}

/// The published results of a measurement.
#[derive(Clone, Debug, Default)]
pub struct MeasurementReport {
    /// The last completed interval.
    pub interval: Option<Arc<Report>>,
    /// The totals of the last intervals, newest last.
    pub history: VecDeque<Sum>,
    /// The sketches of the last intervals, newest last; none without a seed.
    pub kept: VecDeque<KeptInterval>,
    /// When the report was last written, in nanoseconds since 1970.
    pub now_ns: u64,
    /// The number of completed intervals.
    pub intervals: u64,
    /// The number of records delivered by flows, with their packets and bytes.
    pub records: [u64; 3],
    /// Packets that arrived after their interval had ended, and count in the next one.
    pub late: u64,
    /// Packets that arrived before their interval had begun, when there was no room to keep them for it.
    pub early: u64,
    /// Packets of records that began before the interval in which they count: there was no room for a delta
    /// at its end.
    pub spanning: u64,
    /// The queries that were shed, because the collector could not keep up or lacked memory.
    pub shed: Vec<Query>,
    /// What the configured `solution` answers about the last interval, or that it was given up.
    pub solution: Option<Arc<Value>>,
    /// The export by IPFIX.
    pub ipfix: Option<Export>,
    /// The export to Parquet files. Records count as sent once their file is complete.
    pub parquet: Option<Export>,
}

/// The totals of an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// When it began, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Packets, in flows or not.
    pub packets: u64,
    /// Bytes of those in flows.
    pub bytes: u64,
    /// Distinct flows, sources and destinations.
    pub distinct: [f64; 3],
    /// Entropy of flows in bits, unless it was shed.
    pub entropy: Option<f64>,
}

impl Sum {
    /// The totals of a report.
    #[must_use]
    pub fn of(report: &Report) -> Sum {
        let Report { start_ns, packets, bytes, .. } = *report;
        let distinct = [report.flows, report.sources, report.destinations].map(|one| one.estimate);
        let entropy =
            report.answers.list("top_flows").and_then(|top| top.entropy).map(|entropy| entropy.estimate);
        Sum { start_ns, packets, bytes, distinct, entropy }
    }
}

/// The fate of exported records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Records that were sent.
    pub sent: u64,
    /// Records that were not sent: the receiver was unreachable or too slow.
    pub lost: u64,
    /// Whether the last attempt succeeded.
    pub works: bool,
}

/// The board on which the collector's thread publishes results for the app. Each reload creates new boards.
#[derive(Clone, Debug, Default)]
pub struct MeasurePublisher(Arc<Mutex<MeasurementReport>>);

impl MeasurePublisher {
    /// Locks the contents for reading and writing. The lock is never held longer than a copy takes.
    pub fn look(&self) -> MutexGuard<'_, MeasurementReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of an operator.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum MeasureRequest {
    Interval {},
    History {},
}

/// What its metrics mean.
const HELPS: &[MetricHelp] = &[
    ("measured_records", "Counts of flows that were received"),
    ("measured_packets", "Packets measured"),
    ("measured_bytes", "Bytes measured"),
    ("measured_late_packets", "Packets reported after their interval had ended"),
    ("measured_early_packets", "Packets reported before their interval had begun, too many to wait"),
    ("measured_spanning_packets", "Packets whose record began in an earlier interval"),
    ("measured_intervals", "Intervals that have ended"),
    ("measured_ipfix_sent", "Flow records sent by IPFIX"),
    ("measured_ipfix_lost", "Flow records that could not be sent by IPFIX"),
    ("measured_parquet_sent", "Flow records in complete Parquet files"),
    ("measured_parquet_lost", "Flow records that could not be written to Parquet files"),
    ("interval_packets", "Packets of the last interval"),
    ("interval_bytes", "Bytes of the last interval"),
    ("interval_flows", "Distinct flows of the last interval"),
    ("interval_sources", "Distinct sources of the last interval"),
    ("interval_destinations", "Distinct destinations of the last interval"),
    ("interval_flow_entropy_bits", "Entropy of the flows of the last interval"),
    ("interval_shed", "Sketches that were given up"),
];

/// A running measurement.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    pub name: String,
    pub interval_ms: u64,
    pub board: MeasurePublisher,
}

impl Measure {
    /// The common beginning of every answer.
    fn answer(&self, snapshot: &MeasurementReport) -> Value {
        let [records, packets, bytes] = snapshot.records;
        let mut json = json!({
            "name": self.name, "interval_ms": self.interval_ms, "intervals": snapshot.intervals,
            "records": records, "packets": packets, "bytes": bytes, "late_packets": snapshot.late,
            "early_packets": snapshot.early, "spanning_packets": snapshot.spanning, "shed": snapshot.shed,
        });
        for (word, export) in [("ipfix", snapshot.ipfix), ("parquet", snapshot.parquet)] {
            if let Some(Export { sent, lost, works }) = export {
                json[word] = json!({ "sent": sent, "lost": lost, "works": works });
            }
        }
        json
    }

    fn answer_to(&self, request: &Value) -> Result<Value, String> {
        let snapshot = self.board.look().clone();
        let mut json = self.answer(&snapshot);
        match weir_app::request::read(&[], request)? {
            MeasureRequest::Interval {} => {
                json["last"] = json!(snapshot.interval.as_deref());
                json["solution"] = json!(snapshot.solution.as_deref());
            }
            MeasureRequest::History {} => {
                let row = |sum: &Sum| {
                    let [flows, sources, destinations] = sum.distinct.map(f64::round);
                    json!({
                        "ago_ms": ago_ms(snapshot.now_ns, sum.start_ns),
                        "packets": sum.packets, "bytes": sum.bytes, "flows": flows,
                        "sources": sources, "destinations": destinations, "entropy": sum.entropy,
                    })
                };
                json["history"] = snapshot.history.iter().map(row).collect();
            }
        }
        Ok(without_nulls(json))
    }
}

impl App for Measure {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "measure"
    }

    /// Keeps the results that the collector published before the reload; new ones follow when the next
    /// interval ends.
    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        if let Ok(old) = predecessor.downcast::<Measure>() {
            let old = old.board.look().clone();
            let mut snapshot = self.board.look();
            if snapshot.interval.is_none() {
                (snapshot.interval, snapshot.history) = (old.interval, old.history);
                snapshot.solution = old.solution;
            }
        }
    }

    fn bind(&mut self, _: &Program) {}

    fn step(&mut self, _now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        if let Event::Request { id, request } = event {
            actions.push(Action::Answer { id, answer: self.answer_to(request) });
        }
    }

    fn punts(&self) -> Vec<String> {
        Vec::new()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let snapshot = self.board.look();
        let [records, packets, bytes] = snapshot.records;
        let [ipfix, parquet] = [snapshot.ipfix, snapshot.parquet].map(Option::unwrap_or_default);
        vec![
            ("measured_records", records),
            ("measured_packets", packets),
            ("measured_bytes", bytes),
            ("measured_late_packets", snapshot.late),
            ("measured_early_packets", snapshot.early),
            ("measured_spanning_packets", snapshot.spanning),
            ("measured_intervals", snapshot.intervals),
            ("measured_ipfix_sent", ipfix.sent),
            ("measured_ipfix_lost", ipfix.lost),
            ("measured_parquet_sent", parquet.sent),
            ("measured_parquet_lost", parquet.lost),
        ]
    }

    fn helps(&self) -> &'static [MetricHelp] {
        HELPS
    }

    /// Totals of the last interval. Their number does not depend on the traffic.
    fn gauges(&self) -> Vec<(&'static str, f64)> {
        let snapshot = self.board.look();
        let shed = ("interval_shed", snapshot.shed.len() as f64);
        let Some(sum) = snapshot.history.back() else { return vec![shed] };
        let [flows, sources, destinations] = sum.distinct;
        let entropy = sum.entropy.map(|entropy| ("interval_flow_entropy_bits", entropy));
        let totals = [
            ("interval_packets", sum.packets as f64),
            ("interval_bytes", sum.bytes as f64),
            ("interval_flows", flows),
            ("interval_sources", sources),
            ("interval_destinations", destinations),
            shed,
        ];
        totals.into_iter().chain(entropy).collect()
    }

    fn report(&self, _now_ns: u64) -> Value {
        json!({ "interval_ms": self.interval_ms })
    }
}
