//! Measurement in the data path: its cost for a program, timed over whole breaths of a worker, memory to
//! memory.
//!
//! Programs that keep flows report their counts to a collector once per second. Programs that keep none
//! aggregate packets by flow in their first pipe; for comparison, there is the cost of a flow table in front
//! of them. The collector is a separate thread that adds everything up in all sketches of crate `measure`.
//! Arms take turns.

use super::Say;
use super::round::SEED;
use super::stream::{Size, Traffic};
use crate::scaling::busy;
use crate::scenarios::{MILLION, flow, flow_pipe, one, shuffled, stateless};
use anyhow::Result;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_engine::batch::Engine;
use weir_engine::delta::FlowDelta;
use weir_engine::ring::DeltaSender;
use weir_engine::worker::Worker;
use weir_lab::spread::ResultSpread;
use weir_measure::{FlowRecord, Settings, Summary};
use weir_packet::{Pools, Port, TableHash};
use weir_port::{Generator, Stream, UdpFlow};
use weir_program::{Measured, Program};

/// Chunks of a worker's pool, as in `weir bench engine`.
const CHUNKS: u32 = 512;

/// Clock advance per breath, as if packets arrived at about 15 million per second.
const BREATH_NS: u64 = 4_300;

/// Deltas in the ring to the collector.
const RING: usize = 1 << 16;

/// Deltas that the collector adds up per poll; it only reads the rest of the ring.
const ADDED_MAX: u64 = 1024;

/// Polling interval of the collector.
const PAUSE: Duration = Duration::from_micros(500);

/// The collector's measurement interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Measured flows report their counts once per second, or after this many packets.
const MEASURED: Measured = Measured { packets: 4096, ..Measured::every(1000) };

/// How many times a round repeats the traffic.
const INTERVALS: u64 = 32;

/// Maximum number of packets per round: more than one period by the clock of breaths.
const ROUND_MAX: u64 = 16 << 20;

/// How an arm is measured.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Not at all.
    Off,
    /// Through its flow table.
    Flows,
    /// Through sums of packets.
    Sums,
}

/// A worker with a program, and the collector that reads its deltas.
struct CountingWorker {
    worker: Worker,
    now_ns: u64,
    collector: Option<JoinHandle<u64>>,
    rounds: Vec<f64>,
}

impl CountingWorker {
    fn new(program: &Program, flows: &[UdpFlow], how: How) -> Result<CountingWorker> {
        let mut pools = Pools::region(CHUNKS);
        let pool = pools.first().id();
        let stream = Stream::udp(64, flows.iter().copied());
        let input = Generator::new("in", &mut pools, pool, stream, u64::MAX);
        let (deltas, collector) = if how == How::Off { (None, None) } else { collect() };
        let mut ports: Vec<Box<dyn Port>> = vec![Box::new(input)];
        for port in &program.ports[1..] {
            let nothing = Stream::udp(64, flows[..1].iter().copied());
            ports.push(Box::new(Generator::new(&port.name, &mut pools, pool, nothing, 0)));
        }
        let engine = Engine::new(program, TableHash::new([3, 5]))?;
        let mut worker = Worker::new(engine, ports, pools);
        if let Some(deltas) = deltas {
            worker = worker.with_deltas(deltas);
        }
        Ok(CountingWorker { worker, now_ns: 1_000_000_000, collector, rounds: Vec::new() })
    }

    /// Runs a round. Returns million packets per second of processor time.
    fn round(&mut self, packets: u64) -> f64 {
        let (start, mut done) = (busy(), 0);
        while done < packets {
            self.now_ns += BREATH_NS;
            done += self.worker.breathe(self.now_ns) as u64;
        }
        done as f64 / (busy() - start).as_secs_f64() / 1e6
    }

    /// Ends the worker and its collector. Returns the rate, the deltas that arrived, and the packets that
    /// were lost.
    fn end(self) -> (ResultSpread, u64, u64) {
        let lost = self.worker.engine().flow_account().unflowed.delta;
        drop(self.worker);
        let deltas = self.collector.map_or(0, |collector| collector.join().unwrap_or(0));
        (ResultSpread::of(self.rounds), deltas, lost)
    }
}

/// Starts a collector. It exits when the worker does, and returns the number of its deltas.
fn collect() -> (Option<DeltaSender>, Option<JoinHandle<u64>>) {
    let (sender, ring) = weir_engine::ring::deltas(0, RING);
    (Some(sender), Some(std::thread::spawn(move || sum_up(&ring))))
}

/// Reads deltas and adds them up. Workers here are faster than any wire, so deltas that arrive faster than
/// they can be added up are only read. Otherwise the ring would fill, and workers would count less, at a
/// lower cost.
fn sum_up(ring: &Receiver<FlowDelta>) -> u64 {
    let mut summary = Summary::new(&Settings::default(), SEED);
    let (mut deltas, start, mut closed) = (0, Instant::now(), Duration::ZERO);
    loop {
        let mut turn = 0;
        loop {
            match ring.try_recv() {
                Ok(delta) => {
                    turn += 1;
                    if delta.packets() > 0 && turn <= ADDED_MAX {
                        summary.add(&record(&delta));
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return deltas + turn,
            }
        }
        deltas += turn;
        if turn < ADDED_MAX {
            std::thread::sleep(PAUSE);
        }
        if start.elapsed() >= closed + INTERVAL {
            let now = start.elapsed();
            summary.close(closed.as_nanos() as u64, now.as_nanos() as u64);
            closed = now;
        }
    }
}

fn record(delta: &FlowDelta) -> FlowRecord {
    let ns = |ms: u32| u64::from(ms) * 1_000_000;
    FlowRecord {
        key: delta.key,
        packets: delta.packets(),
        bytes: delta.bytes(),
        first_ns: ns(delta.first),
        last_ns: ns(delta.last.max(delta.first)),
        observed: delta.observed,
    }
}

/// A row of the table: the programs to compare.
struct Case {
    name: &'static str,
    what: &'static str,
    off: Program,
    on: Program,
    how: How,
    /// The program behind an unmeasured flow table.
    table: Option<Program>,
    flows: Arc<Vec<UdpFlow>>,
}

/// Returns the same program with its first pipe measured.
fn summed_up(mut program: Program) -> Program {
    let root = program.ports[0].root.expect("frames go somewhere");
    program.pipes[root.index()].monitor.measured = Some(MEASURED);
    program
}

fn cases(size: Size) -> Vec<Case> {
    let flows = Traffic::Zipf(super::MIDDLE).flows(size.flows, 1).take(size.packets);
    let zipf: Arc<Vec<UdpFlow>> = Arc::new(flows.map(|at| flow(at as u32)).collect());
    let stateless = |name| Case {
        name,
        what: "keeps nothing; zipf 1.1, summed up by flow",
        off: stateless(name, None),
        on: summed_up(stateless(name, None)),
        how: How::Sums,
        table: Some(stateless(name, Some(flow_pipe()))),
        flows: Arc::clone(&zipf),
    };
    let keeping = |name, what, flows| Case {
        name,
        what,
        off: one(flow_pipe()),
        on: one(flow_pipe().measured(MEASURED)),
        how: How::Flows,
        table: None,
        flows,
    };
    let every = Arc::new(shuffled(size.flows.next_power_of_two().min(MILLION.into()) as u32));
    let mut cases = vec![
        keeping("flow1m", "keeps flows; every flow in turn, measured by its flow table", every),
        keeping("flow_zipf", "keeps flows; zipf 1.1, measured by its flow table", Arc::clone(&zipf)),
    ];
    cases.extend(["basic2", "hash256"].map(stateless));
    cases
}

/// Measures all programs with and without measurement.
pub fn run(size: Size, say: Say<'_>) -> Result<Vec<Value>> {
    say(&"in the data path, Mpps of processor time without and with measurement, median (min - max)")?;
    let mut rows = Vec::new();
    for case in cases(size) {
        let arms = [(Some(&case.off), How::Off), (Some(&case.on), case.how), (case.table.as_ref(), How::Off)];
        let arms = arms.into_iter().filter_map(|(program, how)| program.map(|program| (program, how)));
        let mut arms = arms
            .map(|(program, how)| CountingWorker::new(program, &case.flows, how))
            .collect::<Result<Vec<_>>>()?;
        let packets = (INTERVALS * size.packets as u64).min(ROUND_MAX);
        for number in 0..=size.rounds {
            for arm in &mut arms {
                let mpps = arm.round(packets);
                if number > 0 {
                    arm.rounds.push(mpps);
                }
            }
        }
        let mut ends = arms.into_iter().map(CountingWorker::end);
        let (off, ..) = ends.next().expect("two arms");
        let (on, deltas, lost) = ends.next().expect("two arms");
        let table = ends.next().map(|(table, ..)| table);
        let row = row(&case, off, on, table, deltas, lost);
        say(&text(&row, case.what))?;
        rows.push(row);
    }
    Ok(rows)
}

fn row(
    case: &Case,
    off: ResultSpread,
    on: ResultSpread,
    table: Option<ResultSpread>,
    deltas: u64,
    lost: u64,
) -> Value {
    let mut row = json!({ "program": case.name });
    ResultSpread::put(Some(off), "off", &mut row);
    ResultSpread::put(Some(on), "on", &mut row);
    if table.is_some() {
        ResultSpread::put(table, "flow_table", &mut row);
    }
    row["cost_percent"] = json!(100.0 * (1.0 - on.median / off.median));
    row["deltas"] = json!(deltas);
    row["packets_lost"] = json!(lost);
    row
}

fn text(row: &Value, what: &str) -> String {
    let of = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let spread = |name: &str| {
        let [median, min, max] = ["", "_min", "_max"].map(|end| of(&format!("{name}_mpps{end}")));
        format!("{median:.2} ({min:.2} - {max:.2})")
    };
    let table = if row.get("flow_table_mpps").is_some() {
        format!("; the flow table alone {}", spread("flow_table"))
    } else {
        String::new()
    };
    let name = row["program"].as_str().unwrap_or_default();
    let cost = of("cost_percent");
    let (deltas, lost) = (&row["deltas"], &row["packets_lost"]);
    format!(
        "  {name:<14} {} {} costs {cost:.1} %{table}; {deltas} deltas, {lost} packets lost: {what}",
        spread("off"),
        spread("on")
    )
}
