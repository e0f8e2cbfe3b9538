//! `weir bench executors`: the engine behind AF_XDP ports compared with the kernel's executor, on the same
//! two veth pairs.
//!
//! ```text
//!   far:  f0 (source)      f1 (counts)
//!         |                ^
//!   node: w0 --[ weir ]--- w1
//! ```
//!
//! The kernel generates the frames (`source.rs`), and counts at f1 those that arrive. A daemon forwards them,
//! with `kernel: off` or `kernel: require`; it is started for each turn, and the turns alternate. The worker
//! has a core of its own; the source and everything else share the other one. The kernel's executor runs
//! where the interface receives, which on a veth is the core that sends. A second source, on the worker's
//! core, lets the kernel's executor use both cores.
//!
//! - `rate`: the highest rate without loss, with one source and with two. The ratio is that of each
//!   executor's better arrangement.
//! - `cost`: the processor time of a frame at a rate that both carry, summed over all cores, softirqs
//!   included. This includes the source and the far end's network stack. A third turn has only these two,
//!   without weir.
//! - `reloads`, `takeovers`: the frames lost during a reload or takeover, compared with intervals of the same
//!   duration in which nothing changes, at half of each executor's highest rate and at half of the engine's.
//! - `follow`: how soon frames follow a change of one of very many entries.

mod cost;
mod follow;
mod losses;

use crate::peers::Setting;
use crate::selection::Selection;
use crate::source::{FrameSources, received, use_core};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::fmt::Display;
use std::time::Duration;
use weir_bed::{Namespace, Run, cable};
use weir_lab::spread::ResultSpread;
use weir_lab::weir::Weir;
use weir_lab::{Interrupt, kernel};
use weir_port::zero_loss::{Trial, rate_without_loss};

/// How long a trial sends, and how long frames may be in flight after it.
const TRIAL: Duration = Duration::from_millis(500);
const UNDER_WAY: Duration = Duration::from_millis(50);

/// A sender slower than this share of its target rate proves nothing about the daemon.
const LATE: f64 = 0.98;

/// How long the kernel may take to get a program, with all entries.
const COMPILED: Duration = Duration::from_secs(120);

/// The largest number of sources.
const SOURCES: usize = 2;

/// Rounds whose median is reported.
const ROUNDS: usize = 5;

/// What to measure.
#[derive(clap::Args)]
pub struct ExecutorOptions {
    /// Only these: `rate`, `cost`, `reloads`, `takeovers`, `follow`.
    only: Vec<String>,
    /// Number of reloads.
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    reloads: u32,
    /// Number of takeovers.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    takeovers: u32,
    /// The number of entries in the program of `follow`, which changes one of them at a time.
    #[arg(long, default_value = "1048576", value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    entries: u32,
    /// Number of changes.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    changes: u32,
    /// Fail if more frames are lost during reloads or takeovers than in control intervals, or if weir drops
    /// any.
    #[arg(long)]
    strict: bool,
    /// One round, of a tenth of the time, to see that it runs. The results are rough.
    #[arg(long)]
    quick: bool,
    /// End with one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl ExecutorOptions {
    fn rounds(&self) -> usize {
        if self.quick { 1 } else { ROUNDS }
    }

    fn time(&self, whole: Duration) -> Duration {
        if self.quick { whole / 10 } else { whole }
    }
}

/// The path of a turn's frames between w0 and w1.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    /// Only the network stack at w0, which drops them.
    Stack,
    /// weir's worker.
    Engine,
    /// weir's program in the kernel.
    Kernel,
}

/// The two executors, and their place in results.
const EXECUTORS: [(Between, &str); 2] = [(Between::Engine, "engine"), (Between::Kernel, "kernel")];

/// What can be measured; all but the last need the rates without loss.
const PHASES: [&str; 5] = ["rate", "cost", "reloads", "takeovers", "follow"];

/// Runs the requested measurements; returns `None`, and prints the reason, if that is impossible.
pub fn run(options: &ExecutorOptions, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Option<Value>> {
    let only = Selection::new(&options.only, PHASES)?;
    let setting = Setting::new(0, false);
    if !rustix::process::geteuid().is_root() || setting.core == setting.other {
        let why = "network namespaces and AF_XDP need root, and the worker needs a core of its own";
        say(&format_args!("executors: not measured: {why}"))?;
        return Ok(None);
    }
    let mut bench = ExecutorBench::new(options, setting)?;
    let mut found = json!({});
    let rates = if PHASES[..4].iter().any(|phase| only.has(phase)) {
        let [engine, kernel] = bench.rates(&say)?;
        let [best_engine, best_kernel] = [engine, kernel].map(|rates| rates.into_iter().fold(0.0, f64::max));
        found["rate"] = json!({
            "engine_mpps": engine.map(|rate| rate / 1e6), "kernel_mpps": kernel.map(|rate| rate / 1e6),
            "ratio": best_kernel / best_engine,
        });
        [engine[0], kernel[0]]
    } else {
        [0.0; 2]
    };
    if only.has("cost") {
        found["cost"] = cost::measure(&mut bench, rates[0], &say)?;
    }
    if only.has("reloads") {
        found["reloads"] = losses::of_reloads(&mut bench, rates, &say)?;
    }
    if only.has("takeovers") {
        found["takeovers"] = losses::of_takeovers(&mut bench, rates, &say)?;
    }
    if only.has("follow") {
        found["follow"] = follow::measure(&mut bench, &say)?;
    }
    Ok(Some(found))
}

/// The namespaces of the bench.
struct ExecutorBench<'a> {
    options: &'a ExecutorOptions,
    run: Run,
    interrupt: Interrupt,
    far: Namespace,
    node: Namespace,
    setting: Setting,
}

/// The far end of a turn, on a thread in its namespace.
struct FarEnd<'a> {
    sources: FrameSources,
    /// The interface on which the frames arrive.
    to: &'static str,
    interrupt: &'a Interrupt,
    trial: Duration,
}

impl<'a> ExecutorBench<'a> {
    fn new(options: &'a ExecutorOptions, setting: Setting) -> Result<ExecutorBench<'a>> {
        use_core(setting.other)?;
        let interrupt = Interrupt::on_signals()?;
        let run = Run::begin(false)?;
        let (far, node) = (run.namespace("far")?, run.namespace("node")?);
        // For one source and for two: with as many queues, each source's frames are received on its core.
        for (end, queues) in [1, 1, 2, 2].into_iter().enumerate() {
            cable(Some(queues), &far.end(&format!("f{end}")), &node.end(&format!("w{end}")))?;
        }
        far.ip("link add name g0 type veth peer name g1\nlink set g0 up\nlink set g1 up\n")?;
        Ok(ExecutorBench { options, run, interrupt, far, node, setting })
    }

    /// Returns the configuration of a turn with `sources` sources: every frame leaves with other MAC
    /// addresses.
    fn configuration(&self, between: Between, sources: usize) -> String {
        let workers = if sources == 1 { vec![self.setting.core] } else { self.cores().to_vec() };
        let [input, output] = if sources == 1 { [0, 1] } else { [2, 3] };
        let kernel = if between == Between::Kernel { "require" } else { "off" };
        format!(
            "workers: {workers:?}
ports:
  in: {{ xdp: w{input}, take: all, promisc: true, kernel: {kernel}, root: balance }}
  out: {{ xdp: w{output}, kernel: {kernel} }}
pipes:
  balance:
    type: basic
    match: {{ ipv4.src: per_entry/0.0.0.1 }}
    monitor: {{ counter: per_entry }}
    action: [{{ set: {{ eth.src: 02:00:00:00:00:03, eth.dst: per_entry }} }}]
    forward: out
    miss: drop
    entries:
      - {{ match: {{ ipv4.src: 0.0.0.0 }}, set: {{ eth.dst: 02:00:00:00:01:00 }}, counter: even }}
      - {{ match: {{ ipv4.src: 0.0.0.1 }}, set: {{ eth.dst: 02:00:00:00:01:01 }}, counter: odd }}
"
        )
    }

    /// The cores of the sources, the first of which has no worker.
    fn cores(&self) -> [usize; SOURCES] {
        [self.setting.other, self.setting.core]
    }

    /// Starts a daemon, and waits until its executor is at work.
    fn start(&mut self, between: Between, text: &str) -> Result<Weir> {
        let inside = |program: &str| self.node.command(program);
        let weir = Weir::start_within(COMPILED, &mut self.run, "weir", inside, text, &self.interrupt)?;
        if between == Between::Kernel {
            weir.wait_for_kernel(COMPILED, &self.run, &self.interrupt)?;
        }
        Ok(weir)
    }

    /// Runs a turn: `work` is done on a thread at the far end.
    fn turn<T: Send>(
        &mut self,
        (between, sources): (Between, usize),
        work: impl FnOnce(&mut FarEnd<'_>) -> Result<T> + Send,
    ) -> Result<T> {
        let weir = match between {
            Between::Stack => None,
            Between::Engine | Between::Kernel => {
                Some(self.start(between, &self.configuration(between, sources))?)
            }
        };
        // The interfaces to which XDP sends, unless weir has a program there.
        let _passing = match between {
            Between::Stack => Some(kernel::pass_all(&self.node, "w0")?),
            Between::Engine => None,
            Between::Kernel => Some(kernel::pass_all(&self.far, if sources == 1 { "f1" } else { "f3" })?),
        };
        let (interrupt, trial) = (&self.interrupt, self.options.time(TRIAL));
        let (cores, [from, to]) = (self.cores(), if sources == 1 { ["f0", "f1"] } else { ["f2", "f3"] });
        let found = self.far.within(|| {
            let sources = FrameSources::open(from, &cores[..sources])?;
            work(&mut FarEnd { sources, to, interrupt, trial })
        })?;
        if let Some(weir) = weir {
            weir.stop(&mut self.run)?;
        }
        Ok(found)
    }

    /// Returns the highest rates without loss of both executors, in frames per second, for each number of
    /// sources.
    fn rates(&mut self, say: &impl Fn(&dyn Display) -> Result<()>) -> Result<[[f64; SOURCES]; 2]> {
        say(&"rate without loss, Mpps:  engine  kernel  two sources: engine  kernel")?;
        let mut rates = [const { [const { Vec::new() }; SOURCES] }; EXECUTORS.len()];
        for _ in 0..self.options.rounds() {
            for sources in 1..=SOURCES {
                for ((between, name), rates) in EXECUTORS.into_iter().zip(&mut rates) {
                    let rate = self.turn((between, sources), |far| far.search())?;
                    if rate <= 0.0 && sources == 1 {
                        bail!("{name}: frames are lost at every rate");
                    }
                    rates[sources - 1].push(rate);
                }
            }
            let last = |executor: usize, at: usize| rates[executor][at].last().unwrap_or(&f64::NAN) / 1e6;
            let columns = [last(0, 0), last(1, 0), last(0, 1), last(1, 1)];
            say(&format_args!(
                "{:>32.3} {:>7.3} {:>20.3} {:>7.3}",
                columns[0], columns[1], columns[2], columns[3]
            ))?;
        }
        let rates = rates.map(|rates| rates.map(|rates| ResultSpread::of(rates).median));
        let [engine, kernel] = rates.map(|rates| rates.into_iter().fold(0.0, f64::max));
        say(&format_args!(
            "median {:>25.3} {:>7.3} {:>20.3} {:>7.3}  kernel / engine, each at its best {:.2}",
            rates[0][0] / 1e6,
            rates[1][0] / 1e6,
            rates[0][1] / 1e6,
            rates[1][1] / 1e6,
            kernel / engine
        ))?;
        Ok(rates)
    }
}

impl FarEnd<'_> {
    /// Sends at a rate until `is_over` returns true. Returns how many frames were sent, how many of them
    /// arrived, and how long it took to send them.
    fn carry(
        &mut self,
        rate: f64,
        is_over: impl Fn(Duration) -> bool + Sync,
    ) -> Result<(u64, u64, Duration)> {
        let before = received(self.to)?;
        let (sent, time) = self.sources.carry(rate, is_over)?;
        std::thread::sleep(UNDER_WAY);
        Ok((sent, received(self.to)? - before, time))
    }

    /// Searches for the highest rate without loss.
    fn search(&mut self) -> Result<f64> {
        let time = self.trial;
        let (sent, arrived, took) = self.carry(0.0, |elapsed| elapsed > time)?;
        // An overloaded executor carries fewer frames than at its best.
        let ceiling = sent.min(2 * arrived) as f64 / took.as_secs_f64();
        rate_without_loss(ceiling, |rate| {
            self.interrupt.sleep(Duration::ZERO)?;
            let (sent, arrived, took) = self.carry(rate, |elapsed| elapsed > time)?;
            Ok(match (arrived >= sent, sent as f64 >= LATE * rate * took.as_secs_f64()) {
                (true, true) => Trial::Carried,
                (_, false) => Trial::Disturbed,
                (false, true) => Trial::Lost,
            })
        })
    }
}
