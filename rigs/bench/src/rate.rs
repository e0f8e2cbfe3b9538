//! `weir bench rate`: the highest rate at which a configuration loses nothing, and the cost of a packet at
//! that rate.
//!
//! The sender uses the binary search of Agg-Evict's paper with a stricter criterion: a rate counts only if
//! twelve trials in a row lose no frame (`port::zero_loss`), whereas the paper tolerates the loss of a
//! thousand. The daemon is a real one with the unmodified configuration.
//!
//! Traffic comes either from a `mem` port of the configuration with a `share`, which then searches by itself,
//! in the worker; or from an interface connected to one of the daemon's, by a veth pair or by a cable to a
//! NIC, with frames returning on another interface. In the latter case, the driver may be AF_XDP or DPDK.

use crate::changes::{Buckets, buckets, durations};
use crate::generate::{Frames, Sender};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_bed::Run;
use weir_lab::Interrupt;
use weir_lab::weir::Weir;
use weir_port::zero_loss::{Trial, rate_without_loss};

/// How long a daemon may take to start, and how long the search of a `mem` port may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a trial sends, and how long frames may be in flight after it.
const TRIAL: Duration = Duration::from_millis(500);
const UNDER_WAY: Duration = Duration::from_millis(50);

/// A sender slower than this share of its target rate proves nothing about the daemon.
const LATE: f64 = 0.98;

/// Duration of measuring the cost of a packet.
const MEASURED: Duration = Duration::from_secs(3);

/// What to measure.
#[derive(clap::Args)]
pub struct RateOptions {
    /// The configuration, with a `mem` port whose `share` says what share of the rate to send, or with ports
    /// connected to those that `--from` and `--to` name.
    file: PathBuf,
    /// The interface to send out of, through AF_XDP.
    #[arg(long, value_name = "IFACE", requires = "to")]
    from: Option<String>,
    /// The interface on which the frames return.
    #[arg(long, value_name = "IFACE", requires = "from")]
    to: Option<String>,
    /// Number of flows to send, drawn from Zipf 1.1.
    #[arg(long, default_value = "65536", value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    flows: u64,
    /// Bytes of a frame without FCS.
    #[arg(long, default_value = "60", value_parser = clap::value_parser!(u32).range(60..=1514))]
    length: u32,
    /// Take a tenth of the time, to see that it runs. The results are rough.
    #[arg(long)]
    quick: bool,
    /// End with one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl RateOptions {
    fn time(&self, whole: Duration) -> Duration {
        if self.quick { whole / 10 } else { whole }
    }
}

/// Finds the rate, reports it, and returns the JSON.
pub fn run(options: &RateOptions, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    let file = options.file.display();
    let text = std::fs::read_to_string(&options.file).with_context(|| format!("{file} cannot be read"))?;
    let mut run = Run::begin(false)?;
    let interrupt = Interrupt::on_signals()?;
    let command = |program: &str| Command::new(program);
    let weir = Weir::start_within(PATIENCE, &mut run, "weir", command, &text, &interrupt)?;
    let found = match (&options.from, &options.to) {
        (Some(from), Some(to)) => {
            let mut pair = InterfacePair::open(options, from, to)?;
            let rate = pair.search(&interrupt)?;
            ensure!(rate > 0.0, "frames are lost at every rate from {from} to {to}");
            pair.cost(rate, options.time(MEASURED), &weir)?
        }
        _ => in_memory(&weir, options.time(MEASURED), &interrupt)?,
    };
    weir.stop(&mut run)?;
    let number = |key: &str| found[key].as_f64().unwrap_or(f64::NAN);
    say(&format_args!(
        "{:.3} Mpps without loss; at {:.3} Mpps a packet takes {:.1} ns on average, {:.1} in the slowest 1 \
         % of breaths",
        number("rate_without_loss") / 1e6,
        number("measured_at") / 1e6,
        number("packet_ns"),
        number("packet_ns_p99"),
    ))?;
    Ok(found)
}

/// Waits until a `mem` port has found its rate, and measures at its share of that rate.
fn in_memory(weir: &Weir, measured: Duration, interrupt: &Interrupt) -> Result<Value> {
    let mut found = None;
    interrupt.wait(PATIENCE, || {
        let ports = weir.show("ports")?;
        let ports = ports["ports"].as_array().cloned().unwrap_or_default();
        let makes = |port: &&Value| port["extra"].get("rate_without_loss").is_some();
        let traffic: Vec<&Value> = ports.iter().filter(makes).collect();
        if traffic.is_empty() {
            bail!(
                "no port generates traffic: write `mem: {{ flows: 65536, share: 80% }}` for one, or name \
                 interfaces with --from and --to"
            );
        }
        let rates = traffic.iter().filter_map(|port| port["extra"]["rate_without_loss"].as_u64());
        found = rates.max().filter(|rate| *rate > 0);
        Ok(found.is_some())
    })?;
    let rate = found.context("no port has found a loss-free rate: does one have a `share`?")?;
    let before = RateCounters::take(weir)?;
    interrupt.sleep(measured)?;
    Ok(RateCounters::take(weir)?.since(&before, rate as f64))
}

/// A pair of interfaces connected to the daemon's.
struct InterfacePair {
    sender: Sender,
    frames: Frames,
    to: String,
    /// How long a trial sends.
    trial: Duration,
}

impl InterfacePair {
    fn open(options: &RateOptions, from: &str, to: &str) -> Result<InterfacePair> {
        let frames = Frames::zipf(options.flows, options.length);
        let pair = InterfacePair {
            sender: Sender::open(from)?,
            frames,
            to: to.to_owned(),
            trial: options.time(TRIAL),
        };
        pair.arrived()?;
        Ok(pair)
    }

    /// Returns the frames that the kernel has received on the interface where they return.
    fn arrived(&self) -> Result<u64> {
        let to = &self.to;
        let table = std::fs::read_to_string("/proc/net/dev").context("/proc/net/dev")?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix(to)?.strip_prefix(':'));
        let line = line.with_context(|| format!("there is no interface `{to}`"))?;
        Ok(line.split_whitespace().nth(1).context("its counters")?.parse()?)
    }

    /// Searches for the highest rate without loss, up to what the sender can send.
    fn search(&mut self, interrupt: &Interrupt) -> Result<f64> {
        let (sent, seconds) = self.send(0.0)?;
        let ceiling = sent as f64 / seconds;
        rate_without_loss(ceiling, |rate| {
            interrupt.sleep(Duration::ZERO)?;
            self.trial(rate)
        })
    }

    /// Sends for the duration of a trial, at most at this rate; 0 is as fast as possible. Returns how many
    /// frames were sent, and in how many seconds.
    fn send(&mut self, rate: f64) -> Result<(u64, f64)> {
        let start = Instant::now();
        let sent = self.sender.send(&mut self.frames, rate as u64, (u64::MAX, self.trial))?;
        Ok((sent, start.elapsed().as_secs_f64()))
    }

    fn trial(&mut self, rate: f64) -> Result<Trial> {
        let before = self.arrived()?;
        let (sent, seconds) = self.send(rate)?;
        std::thread::sleep(UNDER_WAY);
        let arrived = self.arrived()? - before;
        Ok(match (arrived >= sent, sent as f64 >= LATE * rate * seconds) {
            (true, true) => Trial::Carried,
            (_, false) => Trial::Disturbed,
            (false, true) => Trial::Lost,
        })
    }

    /// Measures the cost of a packet for the daemon at a rate.
    fn cost(&mut self, rate: f64, measured: Duration, weir: &Weir) -> Result<Value> {
        let before = RateCounters::take(weir)?;
        let start = Instant::now();
        while start.elapsed() < measured {
            self.send(rate)?;
        }
        Ok(RateCounters::take(weir)?.since(&before, rate))
    }
}

/// The counters of a daemon's workers.
struct RateCounters {
    at: Instant,
    received: u64,
    /// Processor time of breaths, in microseconds.
    busy_us: f64,
    breaths: Buckets,
}

impl RateCounters {
    fn take(weir: &Weir) -> Result<RateCounters> {
        let (times, ledger) = (weir.show("breath_times")?, weir.show("ledger")?);
        let received = ledger["ledger"]["received"].as_u64().context("frames received")?;
        let workers = times["breath_times"].as_array().context("times of workers")?;
        let (mut breaths, mut busy_us) = (Buckets::new(), 0.0);
        for worker in workers {
            busy_us += worker["processor"]["total_us"].as_f64().context("time of breaths")?;
            for (limit, count) in buckets(&worker["processor"]) {
                *breaths.entry(limit).or_default() += count;
            }
        }
        Ok(RateCounters { at: Instant::now(), received, busy_us, breaths })
    }

    /// Returns the processor time per packet since an earlier reading: that of all breaths, divided by the
    /// number of packets they handled. A slow breath's time is the upper bound of its bucket, which is at
    /// most an eighth too high.
    fn since(&self, before: &RateCounters, rate: f64) -> Value {
        let breaths = durations(&before.breaths, &self.breaths);
        let packets = (self.received - before.received) as f64;
        let packets_a_breath = packets / breaths.count().max(1) as f64;
        let p99 = breaths.quantile_ns(0.99).map(|ns| ns as f64);
        json!({
            "rate_without_loss": rate,
            "measured_at": packets / (self.at - before.at).as_secs_f64(),
            "packets": packets,
            "packet_ns": 1e3 * (self.busy_us - before.busy_us) / packets,
            "packet_ns_p99": p99.map(|ns| ns / packets_a_breath),
            "breaths": breaths.count(),
            "breath_us_p99": p99.map(|ns| ns / 1e3),
        })
    }
}
