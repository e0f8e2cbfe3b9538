//! One measurement: deltas in, intervals out.
//!
//! A delta belongs to the interval of its last packet. Workers end an interval one after the other, so deltas
//! of the next interval wait until all workers' pipes have reported the current one as complete
//! ([`DeltaReason::Swept`]). Deltas that arrive after the end of their interval count in the current one, and
//! are also counted as late.

use super::exports::Exports;
use super::names::Named;
use crate::export::{End, Given};
use crate::{FlowRecord, Seed, SolutionCounter, Summary};
use crate::{HISTORY, MeasurePublisher, Measurement, MeasurementReport, Sum};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_engine::delta::{DeltaReason, FlowDelta};

const NS_PER_MS: u64 = 1_000_000;

/// Records of future intervals that may wait: 22 MiB. Flows produce such records only when they are removed,
/// overflow or are flushed while another worker has not ended the interval, which takes it a quarter of a
/// second.
const WAITING_MAX: usize = 262_144;

/// The distance, in milliseconds, by which the wall clock must have moved to count as set; following smaller
/// moves would shift records needlessly.
const SET_MS: u64 = 100;

/// The readings of two clocks at the same moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The workers' clock, in milliseconds, which does not wrap.
    pub now_ms: u64,
    /// Milliseconds since 1970 when the workers' clock was 0.
    pub epoch_ms: u64,
}

impl Times {
    /// Compares the workers' clock with the wall clock, and adjusts the difference if the wall clock was set.
    pub fn at(self, now_ns: u64, wall: SystemTime) -> Times {
        let now_ms = now_ns / NS_PER_MS;
        let wall_ms = wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let epoch_ms = wall_ms.saturating_sub(now_ms);
        let was_set = epoch_ms.abs_diff(self.epoch_ms) > SET_MS;
        Times { now_ms, epoch_ms: if was_set { epoch_ms } else { self.epoch_ms } }
    }

    /// Returns the full time of a time that wraps after 49 days and is recent, or slightly ahead.
    pub fn full_ms(&self, wrapped: u32) -> u64 {
        let ago = (self.now_ms as u32).wrapping_sub(wrapped) as i32;
        self.now_ms.saturating_add_signed(-i64::from(ago))
    }

    fn wall_ns(&self, ms: u64) -> u64 {
        (self.epoch_ms + ms) * NS_PER_MS
    }
}

/// A running measurement.
pub struct Measuring {
    wanted: Measurement,
    workers: usize,
    summary: Summary,
    /// The solution of a paper, until it is given up.
    solution: Option<Box<dyn SolutionCounter>>,
    /// The number of the current interval, counted from the workers' time 0; `None` before the first delta.
    interval: Option<u64>,
    /// Records of future intervals, with their numbers.
    waiting: Vec<(u64, FlowRecord)>,
    /// For each pipe of each worker, the time before which it has reported everything, in milliseconds.
    complete_ms: HashMap<(u8, Arc<str>), u64>,
    exports: Exports,
    snapshot: MeasurementReport,
    /// Whether anything has changed since the last report.
    changed: bool,
}

impl Measuring {
    /// Begins.
    pub fn new(wanted: Measurement, workers: usize) -> Measuring {
        let summary = Summary::new(&wanted.settings, Seed::random());
        let exports = Exports::start(&wanted);
        // It was created once before, to check its settings.
        let solution = wanted.solution.as_ref();
        let solution = solution.and_then(|one| (one.create)(&one.settings, Seed::random()).ok());
        let snapshot = MeasurementReport { shed: wanted.settings.fit().1, ..MeasurementReport::default() };
        Measuring {
            wanted,
            workers,
            summary,
            solution,
            interval: None,
            waiting: Vec::new(),
            complete_ms: HashMap::new(),
            exports,
            snapshot,
            changed: true,
        }
    }

    /// Continues with the current configuration. If the configuration defines a different measurement, only
    /// the totals are kept.
    pub fn succeed(self, wanted: Measurement, workers: usize) -> Measuring {
        let solution = |one: &Measurement| one.solution.as_ref().map(|one| one.settings.clone());
        let same = self.wanted.settings == wanted.settings
            && self.wanted.interval_ms == wanted.interval_ms
            && solution(&self.wanted) == solution(&wanted);
        let exports = self.exports.succeed(&self.wanted, &wanted);
        if same {
            return Measuring { wanted, workers, exports, changed: true, ..self };
        }
        let quiet = Measurement { ipfix: None, parquet: None, ..wanted.clone() };
        let began = Measuring::new(quiet, workers);
        let snapshot = MeasurementReport { shed: began.snapshot.shed.clone(), ..self.snapshot };
        Measuring { wanted, snapshot, exports, ..began }
    }

    /// Returns the measurement's name.
    pub fn name(&self) -> &str {
        &self.wanted.name
    }

    /// Returns true if it measures the pipe with this name.
    pub fn has(&self, pipe: &str) -> bool {
        self.wanted.pipes.iter().any(|one| one == pipe)
    }

    /// Returns the name shown in place of a pipe's, if the measurement is of an overlay.
    pub fn overlay(&self) -> Option<&str> {
        self.wanted.overlay.as_ref()?;
        self.wanted.pipes.first().map(String::as_str)
    }

    /// Takes a delta of one of its pipes.
    pub fn take(&mut self, delta: &FlowDelta, named: &Named<'_>, times: &Times) {
        let Named { pipe, target, ingress } = *named;
        if delta.reason() == DeltaReason::Swept {
            let until_ms = self.complete_ms.entry((delta.source, pipe.clone())).or_default();
            *until_ms = times.full_ms(delta.first).max(*until_ms);
            self.close_due(times);
            return;
        }
        if delta.packets() == 0 {
            return;
        }
        let (first_ms, last_ms) = (times.full_ms(delta.first), times.full_ms(delta.last));
        let record = FlowRecord {
            key: delta.key,
            packets: delta.packets(),
            bytes: delta.bytes(),
            first_ns: times.wall_ns(first_ms.min(last_ms)),
            last_ns: times.wall_ns(last_ms),
            observed: delta.observed,
        };
        let [records, packets, bytes] = &mut self.snapshot.records;
        (*records, *packets, *bytes) = (*records + 1, *packets + record.packets, *bytes + record.bytes);
        self.changed = true;
        self.exports.give(|| Given {
            record,
            end: end(delta.reason()),
            target: target.cloned(),
            ingress: ingress.cloned(),
            point: Some(pipe.clone()),
        });
        let (began, number) = (first_ms / self.wanted.interval_ms, last_ms / self.wanted.interval_ms);
        if began < number {
            self.snapshot.spanning += record.packets;
        }
        self.add(number, record);
    }

    /// Adds a record to its interval, or keeps it until that begins.
    fn add(&mut self, number: u64, record: FlowRecord) {
        let present = *self.interval.get_or_insert(number);
        if number > present && self.waiting.len() < WAITING_MAX {
            self.waiting.push((number, record));
            return;
        }
        let misplaced = if number > present { &mut self.snapshot.early } else { &mut self.snapshot.late };
        if number != present {
            *misplaced += record.packets;
        }
        self.count(&record);
    }

    /// Counts a record in the current interval.
    fn count(&mut self, record: &FlowRecord) {
        self.summary.add(record);
        if let Some(solution) = &mut self.solution {
            solution.add(&record.key, record.packets, record.bytes);
        }
    }

    /// Ends the intervals that all workers have completed.
    fn close_due(&mut self, times: &Times) {
        let pipes = self.wanted.pipes.iter().map(|pipe| Arc::<str>::from(pipe.as_str()));
        let givers = self.wanted.givers(self.workers);
        let each = pipes.flat_map(|pipe| (0..givers).map(move |worker| (worker as u8, pipe.clone())));
        let until_ms = each.map(|one| self.complete_ms.get(&one).copied().unwrap_or(0)).min().unwrap_or(0);
        let next = until_ms / self.wanted.interval_ms;
        if self.interval.is_none() && next > 0 {
            self.interval = Some(next);
        }
        while let Some(present) = self.interval.filter(|present| *present < next) {
            self.close(present, times);
            // Empty intervals between this one and the next are not reported.
            let waiting = self.waiting.iter().map(|(number, _)| *number).min();
            self.begin(waiting.map_or(next, |number| number.clamp(present + 1, next)));
        }
    }

    fn close(&mut self, number: u64, times: &Times) {
        let [start_ms, end_ms] = [number, number + 1].map(|number| number * self.wanted.interval_ms);
        let [start_ns, end_ns] = [start_ms, end_ms].map(|ms| times.wall_ns(ms));
        let mut report = self.summary.close(start_ns, end_ns);
        if let Some(solution) = &mut self.solution {
            self.snapshot.solution = Some(Arc::new(solution.close(start_ns, end_ns)));
        }
        // Deltas of different flows arrive in any order.
        report.backwards = 0;
        self.snapshot.intervals += 1;
        self.snapshot.history.push_back(Sum::of(&report));
        if self.snapshot.history.len() > HISTORY {
            self.snapshot.history.pop_front();
        }
        self.snapshot.shed.clone_from(&report.shed);
        self.snapshot.interval = Some(Arc::new(report));
        self.changed = true;
    }

    /// Begins an interval with the records that were waiting for it.
    fn begin(&mut self, number: u64) {
        self.interval = Some(number);
        let (now, later) = std::mem::take(&mut self.waiting).into_iter().partition(|one| one.0 <= number);
        self.waiting = later;
        let now: Vec<(u64, FlowRecord)> = now;
        now.iter().for_each(|(_, record)| self.count(record));
    }

    /// Called after the reading of each iteration: passes records on and publishes reports.
    pub fn turn(&mut self, times: &Times) {
        let exports = self.exports.flush();
        self.changed |= [self.snapshot.ipfix, self.snapshot.parquet] != exports;
        [self.snapshot.ipfix, self.snapshot.parquet] = exports;
        self.snapshot.now_ns = times.wall_ns(times.now_ms);
        if std::mem::take(&mut self.changed) {
            self.board().look().clone_from(&self.snapshot);
        }
        self.board().look().now_ns = self.snapshot.now_ns;
    }

    /// Ends the current interval, because there will be no more deltas. Only the exports are left.
    pub fn finish(mut self, times: &Times) -> Exports {
        while let Some(present) = self.interval.take() {
            self.close(present, times);
            let next = self.waiting.iter().map(|(number, _)| *number).min();
            if let Some(next) = next {
                self.begin(next);
            }
        }
        self.turn(times);
        self.exports
    }

    /// Gives up the next part, the `solution` first, as no other part depends on it. Returns the name of
    /// the measurement and the part.
    pub fn shed(&mut self) -> Option<(String, &str)> {
        let name = self.wanted.name.clone();
        if self.solution.take().is_some() {
            let solution = self.wanted.solution.as_ref().map_or("", |one| one.settings.solution.as_str());
            self.snapshot.solution = Some(Arc::new(json!({ "solution": solution, "given_up": true })));
            self.changed = true;
            return Some((name, solution));
        }
        let part = self.summary.shed_next()?;
        self.snapshot.shed.push(part);
        self.changed = true;
        Some((name, part.word()))
    }

    fn board(&self) -> &MeasurePublisher {
        &self.wanted.board
    }
}

/// The reason for exporting a flow's counts, in the exporters' terms.
fn end(reason: DeltaReason) -> End {
    match reason {
        DeltaReason::Aged => End::Idle,
        DeltaReason::Evicted => End::Evicted,
        DeltaReason::Reopened => End::Closed,
        DeltaReason::Removed | DeltaReason::Stopped => End::Forced,
        DeltaReason::Overflow | DeltaReason::First | DeltaReason::Interval | DeltaReason::Swept => {
            End::Active
        }
    }
}
