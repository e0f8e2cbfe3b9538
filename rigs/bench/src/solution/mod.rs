//! `weir measure --solution NAME`: recordings counted in one of the nine solutions of Agg-Evict's paper,
//! alone or behind an aggregator, and what it answers beside the exact truth.
//!
//! It is a feature of the build that has the rigs; `weir_measure` reads the arguments. Keys are those of
//! `weir measure`, of five words, so that IPv6 and tunnels are counted too. Each interval begins with an
//! empty solution, and without intervals there is one for everything.

mod answers;
mod counter;
mod front;
mod text;

use answers::{Answered, Truth};
use anyhow::Result;
use counter::Counter;
use front::Front;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use weir_app::kind::{BadInput, OwnCommand, Print};
use weir_measure::{
    COMMAND, FileReport, Frames, Link, Packets, SolutionRequest, read_packets, run_command, said,
};
use weir_sketch::{KeyHash, Projection, Update};

/// `weir measure`, with the solutions.
pub static MEASURE: OwnCommand =
    OwnCommand { arguments: COMMAND.arguments, run: |matches, print| run_command(solve, matches, print) };

/// Destinations of a spreader, if the arguments do not say.
const SPREAD: u64 = 64;

/// Intervals that are reported.
const INTERVALS: usize = 1000;

/// Counts recordings, and prints the answers.
fn solve(request: &SolutionRequest, print: &mut Print<'_>) -> Result<Vec<String>> {
    let mut solver = Solver::new(request)?;
    let read = read_packets(&request.files, &mut solver, &request.stop);
    let files = read.map_err(|error| BadInput(format!("{error:#}")))?;
    let is_interrupted = request.stop.load(Ordering::Relaxed);
    let solved = solver.end()?;
    if request.json {
        print(&format!("{}\n", solved.json(&files, is_interrupted)))?;
    } else {
        print(&text::text(&solved, request.top))?;
    }
    Ok(files.iter().filter(|file| file.error.is_some()).map(said).collect())
}

/// What was counted and answered in one interval, or in everything.
struct Interval {
    /// When it began and ended, in ns since 1970.
    span_ns: [u64; 2],
    /// Packets in flows, and their bytes.
    counted: [u64; 2],
    answers: Vec<Answered>,
}

/// The result.
struct Solved {
    counter: &'static str,
    bytes: usize,
    key: Projection,
    front: Value,
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
        let answers = |interval: &Interval| -> Value {
            interval.answers.iter().map(|answer| (answer.query.to_string(), answer.value.clone())).collect()
        };
        let of_interval = |interval: &Interval| {
            let ([start_ns, end_ns], [packets, bytes]) = (interval.span_ns, interval.counted);
            json!({
                "start_ns": start_ns, "end_ns": end_ns, "packets": packets, "bytes": bytes,
                "answers": answers(interval),
            })
        };
        let unflowed = self.unflowed.iter().map(
            |(reason, [packets, bytes])| json!({ "reason": reason, "packets": packets, "bytes": bytes }),
        );
        let [packets, bytes] = self.all;
        let mut json = json!({
            "solution": self.counter, "solution_bytes": self.bytes, "key": self.key.kind().word(),
            "aggregator": self.front, "packets": packets, "bytes": bytes,
            "unflowed": unflowed.collect::<Vec<_>>(), "no_truth": self.no_truth,
            "files": files, "interrupted": is_interrupted,
        });
        if self.has_intervals {
            json["intervals"] = self.intervals.iter().map(of_interval).collect();
            json["intervals_left_out"] = json!(self.left_out);
        } else {
            json["answers"] = self.intervals.first().map_or(json!({}), answers);
        }
        json
    }
}

/// Counts packets, interval by interval.
struct Solver<'a> {
    request: &'a SolutionRequest,
    frames: Frames,
    hash: KeyHash,
    front: Front,
    /// The counter of the current interval, and that of the one before.
    counter: Counter,
    counter_before: Option<Counter>,
    truth: Option<Truth>,
    truth_before: Option<Truth>,
    no_truth: Option<String>,
    /// The current interval; without intervals, everything.
    span_ns: Option<[u64; 2]>,
    counted: [u64; 2],
    packets_before: u64,
    all: [u64; 2],
    unflowed: BTreeMap<String, [u64; 2]>,
    intervals: Vec<Interval>,
    left_out: u64,
}

impl<'a> Solver<'a> {
    fn new(request: &'a SolutionRequest) -> Result<Solver<'a>> {
        let counter = Counter::new(&request.solution, request.key, &request.seed)?;
        check(request, &counter)?;
        Ok(Solver {
            front: Front::new(request, counter.pays_below())?,
            hash: KeyHash::new(&request.seed),
            counter,
            request,
            frames: Frames::through(request.inside),
            counter_before: None,
            truth: Some(Truth::new(request.exact_memory)),
            truth_before: None,
            no_truth: None,
            span_ns: None,
            counted: [0; 2],
            packets_before: 0,
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
        self.front.flush(&mut self.counter);
        if self.intervals.len() < INTERVALS {
            let asked = answers::IntervalAsked {
                key: self.request.key,
                hash: &self.hash,
                top: self.request.top,
                spread: self.request.spread.unwrap_or(SPREAD),
                packets: self.counted[0],
                packets_before: self.packets_before,
            };
            let truths = self.truth.as_ref().map(|truth| (truth, self.truth_before.as_ref()));
            let answers = answers::answer(&asked, &self.counter, self.counter_before.as_ref(), truths);
            let span_ns = self.span_ns.unwrap_or_default();
            self.intervals.push(Interval { span_ns, counted: self.counted, answers });
        } else {
            self.left_out += 1;
        }
        self.packets_before = self.counted[0];
        self.counted = [0; 2];
        let empty = self.counter.empty();
        self.counter_before = Some(std::mem::replace(&mut self.counter, empty));
        if let Some(truth) = &mut self.truth {
            let empty = Truth::new(self.request.exact_memory);
            self.truth_before = Some(std::mem::replace(truth, empty));
        }
    }

    fn end(mut self) -> Result<Solved> {
        if self.span_ns.is_some() {
            self.close();
        }
        Ok(Solved {
            counter: self.counter.name(),
            bytes: self.counter.bytes(),
            key: self.request.key,
            front: self.front.json(),
            all: self.all,
            unflowed: self.unflowed,
            intervals: self.intervals,
            left_out: self.left_out,
            no_truth: self.no_truth,
            has_intervals: self.request.interval_ns.is_some(),
        })
    }

    fn add_unflowed(&mut self, reason: String, packets: u64, bytes: u64) {
        let counted = self.unflowed.entry(reason).or_default();
        *counted = [counted[0].saturating_add(packets), counted[1].saturating_add(bytes)];
        self.all = [self.all[0].saturating_add(packets), self.all[1].saturating_add(bytes)];
    }
}

/// Rejects options that the solution does not have.
fn check(request: &SolutionRequest, counter: &Counter) -> Result<()> {
    let name = counter.name();
    if request.spread.is_some() && !counter.counts_destinations() {
        return Err(BadInput(format!(
            "{name} does not count destinations: `--spread` is an option of two_level"
        ))
        .into());
    }
    if counter.needs_intervals() && request.interval_ns.is_none() {
        return Err(BadInput(format!(
            "{name} finds what changes between intervals: add `--interval`, such as `--interval 5s`"
        ))
        .into());
    }
    Ok(())
}

impl Packets for Solver<'_> {
    fn packet(&mut self, time_ns: u64, link: Link, bytes: &[u8], length: u32) {
        if self.span_ns.is_none_or(|[_, end_ns]| time_ns >= end_ns) {
            self.turn(time_ns);
        }
        let length_u64 = u64::from(length);
        match self.frames.flow_on(link, bytes, length) {
            Ok((flow, _)) => {
                let update = Update::packet(self.request.key.of(&flow), length_u64);
                for counted in [&mut self.counted, &mut self.all] {
                    *counted = [counted[0] + 1, counted[1].saturating_add(length_u64)];
                }
                if let Some(truth) = &mut self.truth
                    && let Err(why) = truth.add(&update)
                {
                    self.no_truth = Some(why);
                    (self.truth, self.truth_before) = (None, None);
                }
                self.front.add(update, &mut self.counter);
            }
            Err(reason) => self.add_unflowed(reason.word().to_string(), 1, length_u64),
        }
    }

    fn skipped(&mut self, reason: String, packets: u64, bytes: u64) {
        self.add_unflowed(reason, packets, bytes);
    }
}
