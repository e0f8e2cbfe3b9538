//! `weir bench rate`: the highest rate at which a configuration loses nothing, and the cost of a packet at
//! that rate.
//!
//! The sender uses the binary search of Agg-Evict's paper with a stricter criterion: a rate counts only if
//! twelve trials in a row lose no frame (`port::zero_loss`), whereas the paper tolerates the loss of a
//! thousand (`--tolerate 1024`). The daemon is a real one with the unmodified configuration.
//!
//! Traffic comes from a `mem` port of the configuration with a `share`, which then searches by itself, in the
//! worker; or from an interface connected to one of the daemon's, by a veth pair or by a cable to a NIC, with
//! frames returning on another interface; or from another host, where a sender asks the receiver for its
//! counters over TCP (`control.rs`). Except for `mem` ports, the driver may be AF_XDP or DPDK.

mod control;

use crate::changes::{Buckets, buckets, durations};
use crate::generate::{Frames, Sender};
use anyhow::{Context, Result, bail, ensure};
use control::{Near, Remote, serve};
use serde_json::{Value, json};
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_app::kind::BadInput;
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
    /// connected to the interfaces of `--from` and `--to`. Not for a sender: its receiver has it.
    #[arg(required_unless_present = "receiver")]
    file: Option<PathBuf>,
    /// The interface to send out of, through AF_XDP.
    #[arg(long, value_name = "IFACE")]
    from: Option<String>,
    /// The interface on which the frames return.
    #[arg(long, value_name = "IFACE")]
    to: Option<String>,
    /// Run the daemon for senders on other hosts, which connect to this address. Frames are counted where
    /// they return (`--to`) or, without `--to`, as the daemon receives them. Let only trusted hosts reach it.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["from", "receiver"])]
    listen: Option<SocketAddr>,
    /// End when the first sender has ended.
    #[arg(long, requires = "listen")]
    once: bool,
    /// Send to a daemon on another host, whose `weir bench rate --listen` has this address.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["file", "to"], requires = "from")]
    receiver: Option<String>,
    /// Source MAC address of the frames.
    #[arg(
        long, value_name = "MAC", requires = "from", value_parser = mac,
        default_value = "02:00:00:00:00:01"
    )]
    src_mac: [u8; 6],
    /// Destination MAC address of the frames: that of the daemon's port, unless it takes all frames.
    #[arg(
        long, value_name = "MAC", requires = "from", value_parser = mac,
        default_value = "02:00:00:00:00:02"
    )]
    dst_mac: [u8; 6],
    /// Send at these rates, in frames per second, instead of searching one, such as `100000,200000`.
    #[arg(
        long, value_name = "RATES", requires = "from", value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    speeds: Vec<u64>,
    /// How often to send at each rate of `--speeds`.
    #[arg(
        long, requires = "speeds", default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    repeats: u32,
    /// Frames that a trial may lose; the paper tolerates 1024.
    #[arg(long, value_name = "FRAMES", requires = "from", default_value = "0")]
    tolerate: u64,
    /// Also write each trial to this file, as a line of JSON: `rate`, `sent`, `lost`, `packet_ns`,
    /// `packet_ns_p99`.
    #[arg(long, value_name = "FILE", requires = "from")]
    output: Option<PathBuf>,
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

/// Parses a MAC address.
fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Vec<u8> = text
        .split(':')
        .filter_map(|byte| (byte.len() == 2).then(|| u8::from_str_radix(byte, 16).ok())?)
        .collect();
    let is_whole = text.split(':').count() == 6;
    let address = bytes.try_into().ok().filter(|_| is_whole);
    address.ok_or_else(|| "expected a MAC address, such as 02:00:00:00:00:01".to_string())
}

/// A sink for lines of output.
type Say<'a> = &'a dyn Fn(&dyn Display) -> Result<()>;

impl RateOptions {
    fn time(&self, whole: Duration) -> Duration {
        if self.quick { whole / 10 } else { whole }
    }

    /// Rejects interfaces without their other end.
    fn check(&self) -> Result<()> {
        let wrong = match (&self.from, &self.to) {
            (Some(_), None) if self.receiver.is_none() => {
                "`--from` needs the interface on which frames return, `--to`, or another host, `--receiver`"
            }
            (None, Some(_)) if self.listen.is_none() => {
                "`--to` needs the interface to send out of, `--from`, or a sender on another host, `--listen`"
            }
            _ => return Ok(()),
        };
        Err(BadInput(wrong.to_string()).into())
    }
}

/// Finds the rate, reports it, and returns the JSON.
pub fn run(options: &RateOptions, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    options.check()?;
    let interrupt = Interrupt::on_signals()?;
    let found = match (&options.receiver, &options.file) {
        (Some(receiver), _) => send(options, &mut Remote::connect(receiver)?, &interrupt, &say)?,
        (None, Some(file)) => with_daemon(options, file, &interrupt, &say)?,
        (None, None) => bail!("name a configuration, or a receiver with `--receiver HOST:PORT`"),
    };
    if let Some(rate) = found["rate_without_loss"].as_f64() {
        let number = |key: &str| found[key].as_f64().unwrap_or(f64::NAN);
        say(&format_args!(
            "{:.3} Mpps without loss; at {:.3} Mpps a packet takes {:.1} ns on average, {:.1} in the slowest \
             1 % of breaths",
            rate / 1e6,
            number("measured_at") / 1e6,
            number("packet_ns"),
            number("packet_ns_p99"),
        ))?;
    }
    Ok(found)
}

/// Starts a daemon, and measures it or lets another host do so.
fn with_daemon(options: &RateOptions, file: &Path, interrupt: &Interrupt, say: Say<'_>) -> Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let mut run = Run::begin(false)?;
    let command = |program: &str| Command::new(program);
    let weir = Weir::start_within(PATIENCE, &mut run, "weir", command, &text, interrupt)?;
    let mut near = Near { weir: &weir, to: options.to.as_deref() };
    let found = match (&options.listen, &options.from) {
        (Some(address), _) => serve(*address, options.once, &mut near, interrupt, say)?,
        (None, Some(_)) => send(options, &mut near, interrupt, say)?,
        (None, None) => in_memory(&weir, options.time(MEASURED), interrupt)?,
    };
    weir.stop(&mut run)?;
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

/// The end that receives.
trait Receiver {
    /// Returns its counters now.
    fn counters(&mut self) -> Result<RateCounters>;
}

/// Searches the rate, or sends at the given ones.
fn send(
    options: &RateOptions,
    receiver: &mut dyn Receiver,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<Value> {
    let from = options.from.as_deref().context("an interface to send out of")?;
    let unwritable = || options.output.as_ref().map_or(String::new(), |file| format!("{}", file.display()));
    let output = options.output.as_ref().map(File::create).transpose().with_context(unwritable)?;
    let frames = Frames::zipf(options.flows, options.length).with_macs(options.dst_mac, options.src_mac);
    let mut trials = Trials {
        sender: Sender::open(from)?,
        frames,
        receiver,
        time: options.time(TRIAL),
        tolerate: options.tolerate,
        output,
        rows: Vec::new(),
        say,
    };
    trials.receiver.counters()?;
    if !options.speeds.is_empty() {
        for rate in options.speeds.iter().flat_map(|rate| (0..options.repeats).map(move |_| *rate)) {
            interrupt.sleep(Duration::ZERO)?;
            trials.run(rate as f64)?;
        }
        return Ok(json!({ "trials": trials.rows }));
    }
    let rate = trials.search(interrupt)?;
    ensure!(rate > 0.0, "frames are lost at every rate that {from} can send");
    let mut found = trials.cost(rate, options.time(MEASURED))?;
    found["trials"] = json!(trials.rows);
    Ok(found)
}

/// Trials at rates, from one interface.
struct Trials<'a> {
    sender: Sender,
    frames: Frames,
    receiver: &'a mut dyn Receiver,
    /// How long a trial sends.
    time: Duration,
    /// Frames that it may lose.
    tolerate: u64,
    output: Option<File>,
    rows: Vec<Value>,
    say: Say<'a>,
}

impl Trials<'_> {
    /// Searches for the highest rate without loss, up to what the sender can send.
    fn search(&mut self, interrupt: &Interrupt) -> Result<f64> {
        let (sent, seconds) = self.send(0.0)?;
        let ceiling = sent as f64 / seconds;
        rate_without_loss(ceiling, |rate| {
            interrupt.sleep(Duration::ZERO)?;
            self.run(rate)
        })
    }

    /// Sends for the duration of a trial, at most at this rate; 0 is as fast as possible. Returns how many
    /// frames were sent, and in how many seconds.
    fn send(&mut self, rate: f64) -> Result<(u64, f64)> {
        let start = Instant::now();
        let sent = self.sender.send(&mut self.frames, rate as u64, (u64::MAX, self.time))?;
        Ok((sent, start.elapsed().as_secs_f64()))
    }

    /// Runs a trial, prints it, and appends it to the file.
    fn run(&mut self, rate: f64) -> Result<Trial> {
        let before = self.receiver.counters()?;
        let (sent, seconds) = self.send(rate)?;
        std::thread::sleep(UNDER_WAY);
        let after = self.receiver.counters()?;
        let lost = sent.saturating_sub(after.arrived.saturating_sub(before.arrived));
        let trial = match (lost <= self.tolerate, sent as f64 >= LATE * rate * seconds) {
            (true, true) => Trial::Carried,
            (_, false) => Trial::Disturbed,
            (false, true) => Trial::Lost,
        };
        let cost = after.since(&before, rate);
        let (ns, p99) = (cost["packet_ns"].as_f64(), cost["packet_ns_p99"].as_f64());
        let row = json!({
            "rate": rate, "sent": sent, "seconds": seconds, "lost": lost, "packet_ns": ns,
            "packet_ns_p99": p99,
        });
        (self.say)(&format_args!(
            "  {:.3} Mpps: {sent} sent, {lost} lost{}; {:.1} ns on average, {:.1} in the slowest \
             1 % of breaths",
            rate / 1e6,
            if trial == Trial::Disturbed { ", the sender was late" } else { "" },
            ns.unwrap_or(f64::NAN),
            p99.unwrap_or(f64::NAN),
        ))?;
        if let Some(output) = &mut self.output {
            writeln!(output, "{row}").context("the file of --output cannot be written")?;
        }
        self.rows.push(row);
        Ok(trial)
    }

    /// Measures the cost of a packet for the daemon at a rate.
    fn cost(&mut self, rate: f64, measured: Duration) -> Result<Value> {
        let before = self.receiver.counters()?;
        let start = Instant::now();
        while start.elapsed() < measured {
            self.send(rate)?;
        }
        Ok(self.receiver.counters()?.since(&before, rate))
    }
}

/// The counters of a daemon's workers, and of what has arrived behind it.
struct RateCounters {
    at: Instant,
    /// Frames that arrived where they are counted.
    arrived: u64,
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
        Ok(RateCounters { at: Instant::now(), arrived: received, received, busy_us, breaths })
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
