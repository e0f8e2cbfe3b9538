//! `weir bench engine --workers 2`: what a second worker adds, on its own core.
//!
//! One worker with all flows and two workers with half of them each take turns. A rate is frames sent divided
//! by the processor time of each worker, which excludes time spent on other programs. It includes the effects
//! of sharing between the two cores (caches, and the core itself if they are hyperthreads of one). With flow
//! state, frames either arrive at the worker that owns their flow (`rss_agrees`), or half of them arrive at
//! the other worker, which hands them over (`rss_against`).

use super::engine::assign_buckets;
use super::scenarios::{self, Scenario};
use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Display;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_engine::batch::Engine;
use weir_engine::worker::{HandOver, Worker};
use weir_lab::spread::ResultSpread;
use weir_packet::{Pools, Port, TableHash};
use weir_port::{Generator, Stream, UdpFlow};
use weir_program::PortId;
use weir_program::owner::Owners;

/// Rounds whose median is reported, after an uncounted warm-up round.
const ROUNDS: usize = 7;

/// Duration of a turn.
const TURN: Duration = Duration::from_millis(400);

/// Chunks of a worker's pool.
const CHUNKS: u32 = 512;

/// The hash secret of the tables, and of the distribution over workers.
const SECRET: TableHash = TableHash::new([3, 5]);

/// Breaths between two checks for the end of the turn.
const BREATHS: u32 = 64;

/// Which worker a frame arrives at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// Any: the program keeps no flows.
    Any,
    /// The worker that owns its flow.
    Agrees,
    /// A worker chosen by a hash that ignores owners.
    Against,
}

/// The measurements: the name in the results, the scenario, and where its frames arrive.
const ALL: [(&str, scenarios::Make, Arrival); 4] = [
    ("basic2", scenarios::basic2, Arrival::Any),
    ("hash256", scenarios::hash256, Arrival::Any),
    ("flow1m_rss_against", scenarios::flow1m, Arrival::Against),
    ("flow1m_rss_agrees", scenarios::flow1m, Arrival::Agrees),
];

/// A row of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ScalingRow {
    /// What was measured.
    pub name: &'static str,
    /// Number of workers.
    pub workers: usize,
    /// Median of the rounds, million packets per second of all workers.
    pub mpps: f64,
    /// Median over the rounds of the ratio of this rate to that of one worker.
    pub ratio: f64,
    /// The smallest ratio of a round.
    pub ratio_min: f64,
    /// The largest ratio of a round.
    pub ratio_max: f64,
    /// Share of the frames that were dropped because another worker's ring was full.
    pub dropped: f64,
}

impl Display for ScalingRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ScalingRow { name, mpps, ratio, ratio_min, ratio_max, dropped, .. } = self;
        write!(f, "{name:<20} {mpps:>6.2} Mpps  {ratio:.2} of one worker ({ratio_min:.2} - {ratio_max:.2})")?;
        if *dropped > 0.0 { write!(f, "  {:.2} % dropped", 100.0 * dropped) } else { Ok(()) }
    }
}

/// Measures the scenarios named by `only` (all when empty), and reports each.
pub fn run(only: &[String], say: impl Fn(&ScalingRow) -> Result<()>) -> Result<Vec<ScalingRow>> {
    let cores = cores();
    let [one, other] = cores[..] else { bail!("two workers need two cores") };
    let mut rows = Vec::new();
    for (name, make, arrival) in ALL {
        if only.is_empty() || only.iter().any(|wanted| name.starts_with(wanted.as_str())) {
            let row = measure(name, &make(), arrival, [one, other])?;
            say(&row)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Returns the first and the last core that this process may use.
fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    match all[..] {
        [first, .., last] => vec![last, first],
        _ => all,
    }
}

fn measure(
    name: &'static str,
    scenario: &Scenario,
    arrival: Arrival,
    cores: [usize; 2],
) -> Result<ScalingRow> {
    let mut one = Fleet::new(scenario, vec![scenario.flows.clone()])?;
    let mut two = Fleet::new(scenario, deal(scenario, arrival)?)?;
    let (mut rates, mut ratios, mut dropped) = (Vec::new(), Vec::new(), 0.0f64);
    for round in 0..=ROUNDS {
        let alone = one.turn(&cores);
        let both = two.turn(&cores);
        if round > 0 {
            rates.push(both.mpps);
            ratios.push(both.mpps / alone.mpps);
            dropped = dropped.max(both.dropped);
        }
    }
    let ratio = ResultSpread::of(ratios);
    let mpps = ResultSpread::of(rates).median;
    Ok(ScalingRow {
        name,
        workers: 2,
        mpps,
        ratio: ratio.median,
        ratio_min: ratio.min,
        ratio_max: ratio.max,
        dropped,
    })
}

/// Distributes flows to two ports.
fn deal(scenario: &Scenario, arrival: Arrival) -> Result<Vec<Vec<UdpFlow>>> {
    let flows = &scenario.flows;
    let halves = match arrival {
        Arrival::Any | Arrival::Against => {
            let half = |odd| flows.iter().skip(odd).step_by(2).copied().collect();
            vec![half(0), half(1)]
        }
        Arrival::Agrees => {
            let owners = owners(scenario);
            let (first, second) = flows.iter().partition(|flow| owner(&owners, flow) == 0);
            vec![first, second]
        }
    };
    if halves.iter().any(Vec::is_empty) { bail!("a worker owns no flow") } else { Ok(halves) }
}

/// Returns what determines the owners of the scenario's flows.
fn owners(scenario: &Scenario) -> Owners {
    Owners::new(&scenario.program, SECRET.into(), 2)
}

fn owner(owners: &Owners, flow: &UdpFlow) -> usize {
    owners.worker(PortId(0), &Stream::udp(64, [*flow]).frame(0))
}

/// The result of a turn.
struct ScalingTurn {
    mpps: f64,
    dropped: f64,
}

/// Workers, each with its own port.
struct Fleet {
    workers: Vec<Worker>,
    now_ns: u64,
}

impl Fleet {
    /// Creates a worker for each list of flows.
    fn new(scenario: &Scenario, flows: Vec<Vec<UdpFlow>>) -> Result<Fleet> {
        let mut rings = HandOver::between(flows.len());
        let mut workers = Vec::new();
        for flows in flows {
            let mut pools = Pools::region(CHUNKS);
            let pool = pools.first().id();
            let input = Generator::new("in", &mut pools, pool, Stream::udp(64, flows.clone()), u64::MAX);
            let mut engine =
                Engine::new(&scenario.program, SECRET).context("the scenarios' programs are sound")?;
            assign_buckets(&scenario.program, &mut engine);
            let mut ports: Vec<Box<dyn Port>> = vec![Box::new(input)];
            for port in &scenario.program.ports[1..] {
                let nothing = Stream::udp(64, flows[..1].iter().copied());
                ports.push(Box::new(Generator::new(&port.name, &mut pools, pool, nothing, 0)));
            }
            workers.push(Worker::new(engine, ports, pools).with_hand_over(rings.remove(0)));
        }
        Ok(Fleet { workers, now_ns: 1_000_000_000 })
    }

    /// Runs a turn, with every worker on its own core.
    fn turn(&mut self, cores: &[usize]) -> ScalingTurn {
        let before = self.counts();
        let (begin, over) = (Barrier::new(self.workers.len() + 1), AtomicBool::new(false));
        let start_ns = self.now_ns;
        let breathe = |worker: &mut Worker, core: usize| {
            let mut set = CpuSet::new();
            set.set(core);
            // On another core the rate is no worse, so failure does no harm.
            let _ = sched_setaffinity(None, &set);
            begin.wait();
            let (start, start_busy) = (Instant::now(), busy());
            while !over.load(Ordering::Relaxed) {
                for _ in 0..BREATHS {
                    worker.breathe(start_ns + start.elapsed().as_nanos() as u64);
                }
            }
            busy() - start_busy
        };
        let busy: Duration = std::thread::scope(|scope| {
            let breathe = &breathe;
            let threads: Vec<_> = self
                .workers
                .iter_mut()
                .zip(cores)
                .map(|(worker, &core)| scope.spawn(move || breathe(worker, core)))
                .collect();
            begin.wait();
            std::thread::sleep(TURN);
            over.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).sum()
        });
        self.now_ns += 2 * TURN.as_nanos() as u64;
        let (sent, dropped) = self.counts();
        let (sent, dropped) = (sent - before.0, dropped - before.1);
        let seconds = busy.as_secs_f64() / self.workers.len() as f64;
        ScalingTurn {
            mpps: sent as f64 / seconds / 1e6,
            dropped: dropped as f64 / (sent + dropped).max(1) as f64,
        }
    }

    /// Returns the frames sent and dropped by all workers.
    fn counts(&self) -> (u64, u64) {
        let sum = |(sent, dropped): (u64, u64), worker: &Worker| {
            let ledger = worker.report().ledger;
            (sent + ledger.transmitted, dropped + ledger.dropped.iter().sum::<u64>())
        };
        self.workers.iter().fold((0, 0), sum)
    }
}

/// Returns the processor time of this thread.
pub fn busy() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_dealt_out_without_loss_and_by_their_owners() {
        let mut scenario = scenarios::flow1m();
        scenario.flows.truncate(1000);
        for arrival in [Arrival::Any, Arrival::Agrees, Arrival::Against] {
            let halves = deal(&scenario, arrival).expect("both workers own flows");
            let mut all: Vec<UdpFlow> = halves.concat();
            all.sort();
            let mut wanted = scenario.flows.clone();
            wanted.sort();
            assert_eq!(all, wanted);
        }
        let halves = deal(&scenario, Arrival::Agrees).expect("both workers own flows");
        assert!(halves[1].iter().all(|flow| owner(&owners(&scenario), flow) == 1));
    }

    #[test]
    fn two_workers_hand_over_and_every_frame_is_counted() {
        let mut scenario = scenarios::flow1m();
        scenario.flows.truncate(4096);
        let mut fleet = Fleet::new(&scenario, deal(&scenario, Arrival::Against).unwrap()).unwrap();
        fleet.turn(&cores());
        let handed: u64 = fleet.workers.iter().map(|worker| worker.handed().taken).sum();
        assert!(handed > 0);
    }
}
