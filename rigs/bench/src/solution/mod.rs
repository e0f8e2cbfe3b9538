//! Traffic counted in one of the nine solutions of Agg-Evict's paper, alone or behind an aggregator, and what
//! the solution answers beside the exact truth: recordings, for `weir measure --solution NAME`, and live
//! traffic, for measurements with the key `solution`.
//!
//! Only builds with the rigs have this; `weir_measure` reads the arguments and the configuration. Keys of
//! flows are those of `weir measure`, of five words, so that IPv6 and tunnels are counted too. Each interval
//! begins with an empty solution; a recording without intervals is one interval.

mod answers;
mod counter;
mod front;
mod live;
mod text;

use answers::Truth;
use anyhow::Result;
use counter::Counter;
use front::Front;
pub use live::read_measurements;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use weir_app::kind::{BadInput, OwnCommand, Print};
use weir_measure::{
    COMMAND, FileReport, Frames, Link, Packets, Seed, SolutionError, SolutionRequest, SolutionSettings,
    read_packets, run_command, said,
};
use weir_sketch::{KeyHash, Update};

/// `weir measure`, with the solutions.
pub static MEASURE: OwnCommand = OwnCommand {
    arguments: COMMAND.arguments,
    run: |matches, find, print| run_command(solve, matches, find, print),
};

/// From how many destinations on a source is a spreader, if the settings do not say.
const SPREAD: u64 = 64;

/// Intervals that are reported.
const INTERVALS: usize = 1000;

/// Counts recordings, and prints the answers.
fn solve(request: &SolutionRequest, print: &mut Print<'_>) -> Result<Vec<String>> {
    let mut solver = Solver::new(request)?;
    let read = read_packets(&request.files, &mut solver, &request.stop);
    let files = read.map_err(|error| BadInput(format!("{error:#}")))?;
    let is_interrupted = request.stop.load(Ordering::Relaxed);
    let solved = solver.end();
    if request.json {
        print(&format!("{}\n", solved.json(&files, is_interrupted)))?;
    } else {
        print(&text::text(&solved, request.settings.top))?;
    }
    Ok(files.iter().filter(|file| file.error.is_some()).map(said).collect())
}

/// What was counted and answered in one interval, or in everything.
struct Interval {
    /// When it began and ended, in ns since 1970.
    span_ns: [u64; 2],
    /// Packets in flows, and their bytes.
    counted: [u64; 2],
    /// An object for each query.
    answers: Value,
}

impl Interval {
    fn json(&self) -> Value {
        let ([start_ns, end_ns], [packets, bytes]) = (self.span_ns, self.counted);
        json!({
            "start_ns": start_ns, "end_ns": end_ns, "packets": packets, "bytes": bytes,
            "answers": self.answers,
        })
    }
}

/// Counts flows in a solution, interval by interval.
struct Counting {
    settings: SolutionSettings,
    hash: KeyHash,
    front: Front,
    /// The counter of the current interval, and that of the one before.
    counter: Counter,
    counter_before: Option<Counter>,
    truth: Option<Truth>,
    truth_before: Option<Truth>,
    no_truth: Option<String>,
    /// Packets in flows and their bytes, and the packets of the interval before.
    counted: [u64; 2],
    packets_before: u64,
}

impl Counting {
    fn new(settings: &SolutionSettings, seed: Seed) -> Result<Counting, SolutionError> {
        let counter = Counter::new(&settings.solution, settings.key, seed)?;
        if settings.spread.is_some() && !counter.counts_destinations() {
            let why =
                format!("{} does not count destinations: this is an option of two_level", counter.name());
            return Err(SolutionError { key: "spread", value: None, why });
        }
        Ok(Counting {
            front: Front::new(settings, counter.pays_below(), seed)?,
            hash: KeyHash::new(&seed),
            counter,
            settings: settings.clone(),
            counter_before: None,
            truth: Some(Truth::new(settings.exact_memory)),
            truth_before: None,
            no_truth: None,
            counted: [0; 2],
            packets_before: 0,
        })
    }

    /// Counts packets of a flow.
    fn add(&mut self, update: Update<5>) {
        let [packets, bytes] = self.counted;
        self.counted = [packets + update.packets, bytes.saturating_add(update.bytes)];
        if let Some(truth) = &mut self.truth
            && let Err(why) = truth.add(&update)
        {
            self.no_truth = Some(why);
            (self.truth, self.truth_before) = (None, None);
        }
        self.front.add(update, &mut self.counter);
    }

    /// Ends an interval. Returns what can be answered about it, if that is `wanted`.
    fn close(&mut self, span_ns: [u64; 2], is_wanted: bool) -> Option<Interval> {
        self.front.flush(&mut self.counter);
        let interval = is_wanted.then(|| {
            let asked = answers::IntervalAsked {
                key: self.settings.key,
                hash: &self.hash,
                top: self.settings.top,
                spread: self.settings.spread.unwrap_or(SPREAD),
                packets: self.counted[0],
                packets_before: self.packets_before,
            };
            let truths = self.truth.as_ref().map(|truth| (truth, self.truth_before.as_ref()));
            let answers = answers::answer(&asked, &self.counter, self.counter_before.as_ref(), truths);
            let answers =
                answers.into_iter().map(|answer| (answer.query.to_string(), answer.value)).collect();
            Interval { span_ns, counted: self.counted, answers }
        });
        self.packets_before = self.counted[0];
        self.counted = [0; 2];
        let empty = self.counter.empty();
        self.counter_before = Some(std::mem::replace(&mut self.counter, empty));
        if let Some(truth) = &mut self.truth {
            let empty = Truth::new(self.settings.exact_memory);
            self.truth_before = Some(std::mem::replace(truth, empty));
        }
        interval
    }

    /// Describes the solution and its aggregator, whose input is `what`.
    fn json(&self, what: &str) -> Value {
        json!({
            "solution": self.counter.name(), "solution_bytes": self.counter.bytes(),
            "key": self.settings.key.kind().word(), "aggregator": self.front.json(what),
        })
    }
}

/// The result.
struct Solved {
    /// The solution and its aggregator.
    head: Value,
    /// Packets and bytes, including those in no flow.
    all: [u64; 2],
    unflowed: BTreeMap<String, [u64; 2]>,
    intervals: Vec<Interval>,
    left_out: u64,
    /// Why there is no truth, if there is none.
    no_truth: Option<String>,
    has_intervals: bool,
}

impl Solved {
    fn json(&self, files: &[FileReport], is_interrupted: bool) -> Value {
        let unflowed = self.unflowed.iter().map(
            |(reason, [packets, bytes])| json!({ "reason": reason, "packets": packets, "bytes": bytes }),
        );
        let [packets, bytes] = self.all;
        let mut json = self.head.clone();
        json["packets"] = json!(packets);
        json["bytes"] = json!(bytes);
        json["unflowed"] = unflowed.collect();
        json["no_truth"] = json!(self.no_truth);
        json["files"] = json!(files);
        json["interrupted"] = json!(is_interrupted);
        if self.has_intervals {
            json["intervals"] = self.intervals.iter().map(Interval::json).collect();
            json["intervals_left_out"] = json!(self.left_out);
        } else {
            json["answers"] = self.intervals.first().map_or(json!({}), |interval| interval.answers.clone());
        }
        json
    }
}

/// Counts the packets of recordings.
struct Solver<'a> {
    request: &'a SolutionRequest,
    frames: Frames,
    counting: Counting,
    /// The current interval; without intervals, everything.
    span_ns: Option<[u64; 2]>,
    all: [u64; 2],
    unflowed: BTreeMap<String, [u64; 2]>,
    intervals: Vec<Interval>,
    left_out: u64,
}

impl<'a> Solver<'a> {
    fn new(request: &'a SolutionRequest) -> Result<Solver<'a>> {
        let counting = Counting::new(&request.settings, request.seed);
        let counting = counting.map_err(|error| BadInput(error.of_option()))?;
        if counting.counter.needs_intervals() && request.interval_ns.is_none() {
            let name = counting.counter.name();
            return Err(BadInput(format!(
                "{name} finds what changes between intervals: add `--interval`, such as `--interval 5s`"
            ))
            .into());
        }
        Ok(Solver {
            counting,
            request,
            frames: Frames::through(request.inside),
            span_ns: None,
            all: [0; 2],
            unflowed: BTreeMap::new(),
            intervals: Vec::new(),
            left_out: 0,
        })
    }

    /// Begins the interval that contains a time, after the end of the one before: empty intervals in between
    /// are left out.
    #[cold]
    fn turn(&mut self, time_ns: u64) {
        let interval_ns = self.request.interval_ns;
        let start_ns = match (self.span_ns, interval_ns) {
            (Some([start_ns, _]), Some(interval_ns)) => {
                self.close();
                start_ns + (time_ns - start_ns) / interval_ns * interval_ns
            }
            _ => time_ns,
        };
        self.span_ns = Some([start_ns, interval_ns.map_or(u64::MAX, |ns| start_ns.saturating_add(ns))]);
    }

    /// Ends an interval, and answers what can be answered about it.
    fn close(&mut self) {
        let is_wanted = self.intervals.len() < INTERVALS;
        let interval = self.counting.close(self.span_ns.unwrap_or_default(), is_wanted);
        self.intervals.extend(interval);
        self.left_out += u64::from(!is_wanted);
    }

    fn end(mut self) -> Solved {
        if self.span_ns.is_some() {
            self.close();
        }
        let more = |why| format!("{why}: allow more with --exact-memory");
        Solved {
            head: self.counting.json("packets"),
            all: self.all,
            unflowed: self.unflowed,
            intervals: self.intervals,
            left_out: self.left_out,
            no_truth: self.counting.no_truth.map(more),
            has_intervals: self.request.interval_ns.is_some(),
        }
    }

    fn add_unflowed(&mut self, reason: String, packets: u64, bytes: u64) {
        let counted = self.unflowed.entry(reason).or_default();
        *counted = [counted[0].saturating_add(packets), counted[1].saturating_add(bytes)];
        self.all = [self.all[0].saturating_add(packets), self.all[1].saturating_add(bytes)];
    }
}

impl Packets for Solver<'_> {
    fn packet(&mut self, time_ns: u64, link: Link, bytes: &[u8], length: u32) {
        if self.span_ns.is_none_or(|[_, end_ns]| time_ns >= end_ns) {
            self.turn(time_ns);
        }
        let length_u64 = u64::from(length);
        match self.frames.flow_on(link, bytes, length) {
            Ok((flow, _)) => {
                self.all = [self.all[0] + 1, self.all[1].saturating_add(length_u64)];
                self.counting.add(Update::packet(self.request.settings.key.of(&flow), length_u64));
            }
            Err(reason) => self.add_unflowed(reason.word().to_string(), 1, length_u64),
        }
    }

    fn skipped(&mut self, reason: String, packets: u64, bytes: u64) {
        self.add_unflowed(reason, packets, bytes);
    }
}
