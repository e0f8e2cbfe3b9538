//! `weir bench engine`: how many packets per second one core forwards through each of seven programs, memory
//! to memory.
//!
//! The bench times whole breaths of a worker: the port's receive, the program, the port's transmit, the tick.
//! The port's share is timed separately and printed alongside (`port_ns`), not subtracted.

use super::scenarios::{ALL, Scenario};
use super::selection::Selection;
use anyhow::Result;
use std::time::Instant;
use weir_engine::batch::Engine;
use weir_engine::worker::Worker;
use weir_lab::spread::ResultSpread;
use weir_packet::{Batch, Pools, Port, TableHash};
use weir_port::{Generator, Stream};
use weir_program::change::Change;
use weir_program::{Fill, GroupId, PipeId, Program};

/// Rounds whose median is reported.
const ROUNDS: usize = 5;

/// Packets per round of a program whose traffic repeats.
pub const PACKETS: u64 = 1 << 22;

/// Chunks of the pool: a few batches, which stay in the cache like a NIC's recycled buffers.
const CHUNKS: u32 = 512;

/// Clock advance per breath, as if packets arrived at about 15 million per second.
const BREATH_NS: u64 = 4_300;

/// A row of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EngineRow {
    /// Scenario.
    pub name: &'static str,
    /// Median of the rounds, million packets per second.
    pub mpps: f64,
    /// Slowest round.
    pub mpps_min: f64,
    /// Fastest round.
    pub mpps_max: f64,
    /// Nanoseconds per packet at the median.
    pub ns: f64,
    /// Timestamp counter cycles per packet at the median; 0 without such a counter.
    pub tsc_cycles: f64,
    /// Nanoseconds per packet spent in the memory ports alone.
    pub port_ns: f64,
}

/// Runs the scenarios that are selected.
pub fn run(
    only: Selection<'_>,
    mut progress: impl FnMut(&EngineRow, &str) -> Result<()>,
) -> Result<Vec<EngineRow>> {
    let mut rows = Vec::new();
    for (name, make) in ALL {
        if only.has(name) {
            let scenario = make();
            let row = measure(&scenario);
            progress(&row, scenario.what)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

fn measure(scenario: &Scenario) -> EngineRow {
    let port_ns = ports_alone(scenario);
    let mut bench = Bench::new(scenario);
    bench.round(scenario, PACKETS);
    let mut rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| bench.round(scenario, PACKETS)).collect();
    rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (ns, tsc_cycles) = rounds[ROUNDS / 2];
    EngineRow {
        name: scenario.name,
        mpps: 1e3 / ns,
        mpps_min: 1e3 / rounds[ROUNDS - 1].0,
        mpps_max: 1e3 / rounds[0].0,
        ns,
        tsc_cycles,
        port_ns,
    }
}

/// Returns the million packets per second through a scenario's program.
#[must_use]
pub fn mpps(scenario: &Scenario) -> ResultSpread {
    let mut bench = Bench::new(scenario);
    bench.round(scenario, PACKETS);
    ResultSpread::of((0..ROUNDS).map(|_| 1e3 / bench.round(scenario, PACKETS).0).collect())
}

/// Assigns the buckets of groups to their targets in turn, where buckets are assigned explicitly.
pub fn assign_buckets(program: &Program, engine: &mut Engine) {
    for (at, group) in program.groups.iter().enumerate().filter(|(_, group)| group.fill == Fill::Given) {
        let moves =
            (0..group.size).map(|bucket| (bucket, (bucket as usize % group.targets.len()) as u16)).collect();
        let given = Change::MoveBuckets { group: GroupId(at as u16), moves, idle_gap_ns: 0, wait_max_ns: 0 };
        engine.apply(&given, 0).expect("the buckets and targets are the group's own");
    }
}

/// A worker with a scenario's program and traffic.
pub struct Bench {
    worker: Worker,
    now_ns: u64,
}

impl Bench {
    /// Creates a bench, with frames of 64 bytes.
    pub fn new(scenario: &Scenario) -> Bench {
        Bench::of_length(scenario, 64)
    }

    /// Creates a bench, with frames of `length` bytes without FCS.
    pub fn of_length(scenario: &Scenario, length: usize) -> Bench {
        let mut pools = Pools::region(CHUNKS);
        let pool = pools.first().id();
        let stream = || Stream::udp(length, scenario.flows.iter().copied());
        let input = Generator::new("in", &mut pools, pool, stream(), u64::MAX);
        let mut engine = Engine::new(&scenario.program, TableHash::new([3, 5]))
            .expect("the scenarios' programs are sound");
        assign_buckets(&scenario.program, &mut engine);
        let mut ports: Vec<Box<dyn Port>> = vec![Box::new(input)];
        for port in &scenario.program.ports[1..] {
            let nothing = Stream::udp(64, scenario.flows[..1].iter().copied());
            ports.push(Box::new(Generator::new(&port.name, &mut pools, pool, nothing, 0)));
        }
        let worker = Worker::new(engine, ports, pools);
        Bench { worker, now_ns: 1_000_000_000 }
    }

    /// Runs a round of at least `packets` packets, or one per flow if every packet belongs to a new flow.
    /// Returns nanoseconds and cycles per packet.
    pub fn round(&mut self, scenario: &Scenario, packets: u64) -> (f64, f64) {
        if scenario.learns {
            self.age();
        }
        let packets = if scenario.learns { scenario.flows.len() as u64 } else { packets };
        let (start, start_cycles) = (Instant::now(), cycles());
        let mut done = 0;
        while done < packets {
            self.now_ns += BREATH_NS;
            done += self.worker.breathe(self.now_ns) as u64;
        }
        let taken = start.elapsed().as_nanos() as f64;
        (taken / done as f64, (cycles() - start_cycles) as f64 / done as f64)
    }
}

impl Bench {
    /// Returns how many packets of all rounds were not sent, and the number of all packets.
    pub fn unsent(&self) -> (u64, u64) {
        let received: u64 = self.worker.ports().iter().map(|port| port.statistics().received).sum();
        let sent: u64 = self.worker.ports().iter().map(|port| port.statistics().transmitted).sum();
        (received - sent, received)
    }

    /// Returns the number of live flows in the pipes of the program.
    pub fn flows(&self, program: &Program) -> usize {
        let live = |pipe| self.worker.engine().flows(PipeId(pipe), 0).1;
        (0..program.pipes.len() as u16).map(live).sum()
    }

    /// Expires every flow, like an hour without packets.
    pub fn age(&mut self) {
        self.now_ns += 3_600_000_000_000;
        self.worker.engine_mut().age(self.now_ns);
        self.worker.engine_mut().take_deltas(|_| true);
    }
}

/// Returns the cost of the memory ports' receive and transmit without a program in between.
fn ports_alone(scenario: &Scenario) -> f64 {
    let mut pools = Pools::region(CHUNKS);
    let pool = pools.first().id();
    let mut port =
        Generator::new("in", &mut pools, pool, Stream::udp(64, scenario.flows.iter().copied()), u64::MAX);
    let mut batch = Batch::new();
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut done = 0;
        while done < PACKETS {
            port.receive(&mut pools, &mut batch);
            done += batch.len() as u64;
            let list = batch.mask();
            port.transmit(&mut pools, &mut batch, list);
            batch.clear();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / done as f64);
    }
    best
}

/// Returns the timestamp counter; 0 if there is none.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "reading the time stamp counter touches no memory")]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and user space may execute it unless CR4.TSD is
    // set, which Linux does not do.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
pub fn cycles() -> u64 {
    0
}
