//! `weir replay`: runs a program on recordings, with a virtual clock. Equal inputs give equal outputs, to the
//! byte.
//!
//! Time is that of the recordings: the clock jumps from one frame's arrival to the next, and between them, at
//! most a tick at a time, to when ages end and apps want to be woken. There is one worker, one pool and a
//! fixed secret, so nothing depends on the machine.

mod apps;

use crate::config::{Plan, PortConfig, PortKind};
use crate::daemon::{recording, wrap};
use ::apps::Account;
use anyhow::{Context, Result, bail};
use apps::Acting;
use engine::batch::Engine;
use engine::snapshot::Snapshot;
use engine::worker::{Report, Worker};
use packet::{CHUNK_MIN, Pool, Pools, Port, RegionPool, TableHash};
use port::PcapPort;
use std::path::{Path, PathBuf};

/// Frames in the pool: batches, and what a fault port holds back.
const CHUNKS: u32 = 8192;

/// The table secret of every replay. A recording cannot exploit a secret drawn after it was made, but a
/// replay must be repeatable.
const SECRET: [u64; 2] = [0x7765_6972, 0x7265_706c_6179];

/// How far the clock advances after the last frame, in steps of a tick, for frames that are late. In
/// nanoseconds.
const AFTER_NS: u64 = 1_000_000_000;

/// The largest number of breaths at one point in time: apps that answer each other for ever do not stop the
/// clock.
const BREATHS_MAX: usize = 1 << 20;

/// The longest step of the clock, in nanoseconds.
const TICK_NS: u64 = 10_000_000;

/// The results of a replay.
pub struct Replayed {
    /// The worker's report.
    pub report: Report,
    /// The counts of every entry and flow.
    pub snapshot: Snapshot,
    /// The error that ended a recording early.
    pub read_error: Option<String>,
    /// Reports about the apps that ran.
    pub apps: Vec<AppReport>,
    /// The messages of apps.
    pub said: Sayings,
}

/// Messages of apps with their times in nanoseconds.
pub type Sayings = Vec<(u64, String)>;

/// Report about an app.
#[derive(Clone, Debug, PartialEq)]
pub struct AppReport {
    /// Its name.
    pub name: String,
    /// Counts of its frames.
    pub account: Account,
    /// Its own counters.
    pub counts: Vec<(&'static str, u64)>,
}

/// The recordings of a replay.
#[derive(Clone, Debug, Default)]
pub struct Recordings {
    /// What is received, by port.
    pub input: Vec<(String, PathBuf)>,
    /// What is transmitted, by port.
    pub output: Vec<(String, PathBuf)>,
    /// What is passed to the host's stack, by port.
    pub kernel: Vec<(String, PathBuf)>,
    /// What is forwarded to apps, by the name used in `forward`.
    pub apps: Vec<(String, PathBuf)>,
}

/// Runs the plan's program on the recordings.
pub fn replay(plan: &Plan, recordings: &Recordings) -> Result<Replayed> {
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(RegionPool::new(CHUNKS, CHUNK_MIN)));
    let mut pcaps = Vec::new();
    for port in &plan.ports {
        let named = |list| named(list, &port.name);
        let (input, output, kernel) = configured(port);
        let (input, output) = (named(&recordings.input).or(input), named(&recordings.output).or(output));
        let kernel = named(&recordings.kernel).or(kernel);
        let pcap = recording(&port.name, pool, &input, &output, &kernel);
        pcaps.push(pcap.with_context(|| format!("port `{}`", port.name))?);
    }
    // All recordings share one clock: time 0 is that of the earliest frame.
    let base_ns = pcaps.iter().filter_map(PcapPort::first_ns).min();
    if let Some(base_ns) = base_ns {
        pcaps.iter_mut().for_each(|pcap| pcap.set_base(base_ns));
    }
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for (pcap, config) in pcaps.into_iter().zip(&plan.ports) {
        ports.push(wrap(Box::new(pcap), config, 0)?);
    }
    let engine = Engine::new(&plan.program, TableHash::new(SECRET))?;
    let (mut acting, wiring) = Acting::new(plan, &recordings.apps, base_ns.unwrap_or_default())?;
    let mut worker =
        Worker::new(engine, ports, pools).with_commands(wiring.commands).with_punts(wiring.punts);
    run(&mut worker, &mut acting)?;
    let (report, snapshot) = (worker.report(), worker.engine().snapshot());
    let errors = report
        .ports
        .iter()
        .filter(|port| port.extra.iter().any(|&(name, count)| name == "read_errors" && count > 0));
    let read_error = errors.map(|port| format!("{}: {}", port.name, port.mode)).next();
    let (apps, said) = acting.end()?;
    Ok(Replayed { report, snapshot, read_error, apps, said })
}

/// Breathes until every recording has ended and nothing is late.
fn run(worker: &mut Worker, acting: &mut Acting) -> Result<()> {
    let (mut now_ns, mut rest_ns) = (0, AFTER_NS);
    acting.begin(worker)?;
    loop {
        worker.ports_mut().iter_mut().for_each(|port| port.set_time(now_ns));
        now(worker, acting, now_ns)?;
        let arrival = worker.ports().iter().filter_map(|port| port.next_arrival_ns()).min();
        let next_ns =
            arrival.into_iter().chain(acting.wake_ns()).chain([now_ns + TICK_NS]).min().unwrap_or_default();
        let step_ns = next_ns.saturating_sub(now_ns);
        if arrival.is_none() {
            if rest_ns == 0 {
                return Ok(());
            }
            rest_ns = rest_ns.saturating_sub(step_ns.max(1));
        }
        now_ns += step_ns;
    }
}

/// Processes everything at one point in time: breathes until nothing is left to do, running the apps after
/// each breath.
fn now(worker: &mut Worker, acting: &mut Acting, now_ns: u64) -> Result<()> {
    for _ in 0..BREATHS_MAX {
        let handled = worker.breathe(now_ns);
        if !acting.drive(worker, now_ns)? && handled == 0 {
            break;
        }
    }
    Ok(())
}

fn named(list: &[(String, PathBuf)], port: &str) -> Option<PathBuf> {
    list.iter().find(|(name, _)| name == port).map(|(_, path)| path.clone())
}

fn configured(port: &PortConfig) -> (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>) {
    match &port.kind {
        PortKind::Pcap { input, output, kernel } => (input.clone(), output.clone(), kernel.clone()),
        _ => (None, None, None),
    }
}

/// Parses `IN.pcap` or `PORT=IN.pcap`. Without a port, the first one of the program is meant for input, and
/// the port `first` for output.
pub fn assign(plan: &Plan, list: &[PathBuf], first: usize) -> Result<Vec<(String, PathBuf)>> {
    let mut all = Vec::new();
    for (at, path) in list.iter().enumerate() {
        let text = path.to_string_lossy();
        let named = text.split_once('=').filter(|(name, _)| plan.program.port_named(name).is_some());
        let (name, path) = match named {
            Some((name, path)) => (name.to_string(), PathBuf::from(path)),
            None => {
                let port = plan.ports.get(at + first).or(plan.ports.first());
                (port.context("the configuration has no port")?.name.clone(), path.clone())
            }
        };
        all.push((name, path));
    }
    Ok(all)
}

/// Iterates over the frames of a recording.
pub fn frames(path: &Path) -> Result<impl Iterator<Item = Result<Vec<u8>>> + use<>> {
    let (reader, path) = (reader(path)?, path.to_path_buf());
    Ok(reader.map(move |record| Ok(record.with_context(|| format!("{}", path.display()))?.bytes)))
}

/// Parses `NAME=OUT.pcap`, where `NAME` is what frames are forwarded to.
pub fn assign_apps(plan: &Plan, list: &[PathBuf]) -> Result<Vec<(String, PathBuf)>> {
    let mut all: Vec<(String, PathBuf)> = Vec::new();
    for path in list {
        let text = path.to_string_lossy();
        let Some((name, path)) = text.split_once('=') else { bail!("--app {text}: write NAME=OUT.pcap") };
        if !plan.program.apps.iter().any(|app| app == name) {
            bail!("--app {text}: there is no app `{name}`; there are: {}", plan.program.apps.join(", "));
        }
        if all.iter().any(|(other, _)| other == name) {
            bail!("--app {text}: `{name}` is here twice");
        }
        all.push((name.to_string(), path.into()));
    }
    Ok(all)
}

/// Returns frame number `number` (from 1, as in Wireshark) of a recording.
pub fn frame(path: &Path, number: u64) -> Result<Vec<u8>> {
    let (mut reader, mut record) = (reader(path)?, port::pcap::Record::default());
    for at in 1.. {
        if !reader.read(&mut record).with_context(|| format!("{}", path.display()))? {
            anyhow::bail!("{} has {} frames, there is no frame {number}", path.display(), at - 1);
        }
        if at == number {
            return Ok(record.bytes.clone());
        }
    }
    unreachable!("a recording ends or has the frame")
}

fn reader(path: &Path) -> Result<port::pcap::Reader<std::io::BufReader<std::fs::File>>> {
    let file = std::fs::File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    port::pcap::Reader::open(std::io::BufReader::new(file)).with_context(|| format!("{}", path.display()))
}
