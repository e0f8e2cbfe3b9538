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
use crate::{HISTORY, KEPT, KeptInterval, MeasurePublisher, Measurement, MeasurementReport, Sum};
use serde_json::json;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_app::names::AddressNames;
use weir_control::addresses::{AddressName, NamedAddress};
use weir_control::measure::IntervalState;
use weir_engine::delta::{DeltaReason, FlowDelta};
use weir_program::snapshot::{UNFLOWED, Unflowed};

const NS_PER_MS: u64 = 1_000_000;

/// Records of future intervals that may wait: 22 MiB. Flows produce such records only when they are removed,
/// overflow or are flushed while another worker has not ended the interval, which takes it a quarter of a
/// second.
const WAITING_MAX: usize = 262_144;

/// The number of rows of each list whose names are kept for merging: merged lists may be longer than those of
/// a node.
const NAMED_ROWS: usize = 64;

/// The distance, in milliseconds, by which the wall clock must have moved to count as set; following smaller
/// moves would shift records needlessly.
const SET_MS: u64 = 100;

/// An hour in milliseconds. The workers' clock began at a full hour of the wall clock.
const HOUR_MS: u64 = 3_600_000;

/// The maximum distance to a full hour, in milliseconds, that is explained by reading two clocks one after
/// the other.
const READING_MS: u64 = SET_MS / 2;

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
        let hour_ms = (epoch_ms + HOUR_MS / 2) / HOUR_MS * HOUR_MS;
        let epoch_ms = if hour_ms.abs_diff(epoch_ms) <= READING_MS { hour_ms } else { epoch_ms };
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
    /// Packets in no flow of future intervals, by reason.
    waiting_unflowed: Vec<(u64, [u32; UNFLOWED])>,
    /// For each pipe of each worker, the time before which it has reported everything, in milliseconds.
    complete_ms: HashMap<(u8, Arc<str>), u64>,
    exports: Exports,
    /// Late, early and spanning packets in the intervals that have ended.
    misplaced: [u64; 3],
    snapshot: MeasurementReport,
    /// Whether anything has changed since the last report.
    changed: bool,
    /// The current names of addresses.
    names: AddressNames,
}

impl Measuring {
    /// Begins.
    pub fn new(wanted: Measurement, workers: usize) -> Measuring {
        let summary = Summary::new(&wanted.settings, wanted.seed.unwrap_or_else(Seed::random));
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
            waiting_unflowed: Vec::new(),
            complete_ms: HashMap::new(),
            exports,
            misplaced: [0; 3],
            snapshot,
            changed: true,
            names: AddressNames::default(),
        }
    }

    /// Continues with the current configuration. If the configuration defines a different measurement, only
    /// the totals are kept.
    pub fn succeed(self, wanted: Measurement, workers: usize) -> Measuring {
        let solution = |one: &Measurement| one.solution.as_ref().map(|one| one.settings.clone());
        let same = self.wanted.settings == wanted.settings
            && self.wanted.interval_ms == wanted.interval_ms
            && self.wanted.seed == wanted.seed
            && solution(&self.wanted) == solution(&wanted);
        let exports = self.exports.succeed(&self.wanted, &wanted);
        if same {
            return Measuring { wanted, workers, exports, changed: true, ..self };
        }
        let quiet = Measurement { ipfix: None, parquet: None, ..wanted.clone() };
        let began = Measuring::new(quiet, workers);
        let (shed, kept) = (began.snapshot.shed.clone(), VecDeque::new());
        let MeasurementReport { late, early, spanning, .. } = self.snapshot;
        let snapshot = MeasurementReport { shed, kept, ..self.snapshot };
        Measuring { wanted, snapshot, exports, misplaced: [late, early, spanning], ..began }
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

    /// Sets the names that addresses have from now on.
    pub fn set_names(&mut self, names: &AddressNames) {
        self.names.clone_from(names);
    }

    /// Takes a delta of one of its pipes.
    pub fn take(&mut self, delta: &FlowDelta, named: &Named<'_>, times: &Times) {
        let Named { pipe, target, ingress } = *named;
        if delta.reason() == DeltaReason::Swept {
            let until_ms = self.complete_ms.entry((delta.source, pipe.clone())).or_default();
            let until = times.full_ms(delta.first);
            *until_ms = until.max(*until_ms);
            // Packets in no flow were counted before that time.
            let number = until.saturating_sub(1) / self.wanted.interval_ms;
            self.add_unflowed(number, delta.unflowed());
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
        let names = &self.names;
        self.exports.give(|| Given {
            record,
            end: end(delta.reason()),
            target: target.cloned(),
            ingress: ingress.cloned(),
            point: Some(pipe.clone()),
            names: names.of_flow(&record.key),
        });
        let (began, number) = (first_ms / self.wanted.interval_ms, last_ms / self.wanted.interval_ms);
        if began < number {
            self.snapshot.spanning += record.packets;
        }
        self.add(number, record);
    }

    /// Returns true if packets of an interval have to wait until it begins, and there is room. Otherwise they
    /// count in the current one, and are noted as early or late if they do not belong there.
    fn must_wait(&mut self, number: u64, waiting: usize, packets: u64) -> bool {
        let present = *self.interval.get_or_insert(number);
        if number > present && waiting < WAITING_MAX {
            return true;
        }
        match number.cmp(&present) {
            Ordering::Greater => self.snapshot.early += packets,
            Ordering::Less => self.snapshot.late += packets,
            Ordering::Equal => {}
        }
        false
    }

    /// Adds a record to its interval, or keeps it until that begins.
    fn add(&mut self, number: u64, record: FlowRecord) {
        if self.must_wait(number, self.waiting.len(), record.packets) {
            self.waiting.push((number, record));
        } else {
            self.count(&record);
        }
    }

    /// Adds packets in no flow to their interval, or keeps them until that begins.
    fn add_unflowed(&mut self, number: u64, counts: [u32; UNFLOWED]) {
        if counts == [0; UNFLOWED] {
            return;
        }
        let packets = counts.iter().map(|count| u64::from(*count)).sum();
        // These are few, because each pipe of each worker reports once in an interval.
        if self.must_wait(number, self.waiting_unflowed.len(), packets) {
            self.waiting_unflowed.push((number, counts));
        } else {
            self.count_unflowed(counts);
        }
    }

    /// Counts packets in no flow in the current interval. Their bytes are not known.
    fn count_unflowed(&mut self, counts: [u32; UNFLOWED]) {
        let counts = Unflowed::reasons().into_iter().zip(counts);
        for (reason, count) in counts.filter(|(_, count)| *count > 0) {
            self.summary.add_skipped(reason, count.into(), 0);
        }
        self.changed = true;
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
            let waiting = self.next_waiting();
            self.begin(waiting.map_or(next, |number| number.clamp(present + 1, next)));
        }
    }

    /// The number of the first interval for which something waits.
    fn next_waiting(&self) -> Option<u64> {
        let unflowed = self.waiting_unflowed.iter().map(|(number, _)| *number);
        self.waiting.iter().map(|(number, _)| *number).chain(unflowed).min()
    }

    fn close(&mut self, number: u64, times: &Times) {
        let [start_ms, end_ms] = [number, number + 1].map(|number| number * self.wanted.interval_ms);
        let [start_ns, end_ns] = [start_ms, end_ms].map(|ms| times.wall_ns(ms));
        if self.wanted.seed.is_some() {
            // Other nodes wait for it, and the report below takes a while.
            self.keep([start_ns, end_ns]);
        }
        let mut report = self.summary.close(start_ns, end_ns);
        if let Some(solution) = &mut self.solution {
            self.snapshot.solution = Some(Arc::new(solution.close(start_ns, end_ns)));
        }
        // Deltas of different flows arrive in any order.
        report.backwards = 0;
        report.find_names(|address| Some(self.names.find(address)?.answer()));
        self.snapshot.intervals += 1;
        self.snapshot.history.push_back(Sum::of(&report));
        if self.snapshot.history.len() > HISTORY {
            self.snapshot.history.pop_front();
        }
        self.snapshot.shed.clone_from(&report.shed);
        self.snapshot.interval = Some(Arc::new(report));
        self.changed = true;
    }

    /// Keeps and publishes the sketches of the current interval, so that they can be merged with those of
    /// other nodes.
    fn keep(&mut self, [start_ns, end_ns]: [u64; 2]) {
        let file = self.summary.interval_file().into();
        let [packets, bytes] = self.summary.interval_sum();
        let MeasurementReport { late, early, spanning, .. } = self.snapshot;
        let before = std::mem::replace(&mut self.misplaced, [late, early, spanning]);
        let state = IntervalState {
            start_ns,
            end_ns,
            packets,
            bytes,
            late_packets: late - before[0],
            early_packets: early - before[1],
            spanning_packets: spanning - before[2],
        };
        let name = |address: IpAddr| {
            let AddressName { name, namespace, kind, node } = self.names.find(address)?.answer();
            Some(NamedAddress { address: address.to_string(), name, namespace, kind, node })
        };
        let addresses = match self.names.is_empty() {
            true => BTreeSet::new(),
            false => self.summary.frequent_addresses(NAMED_ROWS),
        };
        let names = addresses.into_iter().filter_map(name).collect();
        self.snapshot.kept.push_back(KeptInterval { state, file, names });
        if self.snapshot.kept.len() > KEPT {
            self.snapshot.kept.pop_front();
        }
        self.board().look().kept.clone_from(&self.snapshot.kept);
    }

    /// Begins an interval with the records that were waiting for it.
    fn begin(&mut self, number: u64) {
        self.interval = Some(number);
        let (now, later) = std::mem::take(&mut self.waiting).into_iter().partition(|one| one.0 <= number);
        self.waiting = later;
        let now: Vec<(u64, FlowRecord)> = now;
        now.iter().for_each(|(_, record)| self.count(record));
        let waiting = std::mem::take(&mut self.waiting_unflowed).into_iter();
        let (now, later): (Vec<_>, Vec<_>) = waiting.partition(|one| one.0 <= number);
        self.waiting_unflowed = later;
        now.into_iter().for_each(|(_, counts)| self.count_unflowed(counts));
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
            let next = self.next_waiting();
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
