//! `weir replay`: runs a program on recordings, with a virtual clock. Equal inputs give equal outputs, to the
//! byte.
//!
//! Time is that of the recordings, see [`clock`]. There is one worker, one pool and a fixed secret, so
//! nothing depends on the machine.

mod apps;
mod assignment;
mod clock;

use crate::config::{Plan, PortConfig, PortKind};
use anyhow::{Context, Result, bail};
use apps::Acting;
pub use assignment::{assign, assign_apps};
use clock::Clock;
pub use clock::STEPS_MAX;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use weir_app::Account;
use weir_app::neighbour::Hop;
use weir_config::distinct::{Use, distinct};
use weir_config::outfile;
use weir_daemon::{recording, traced, wrap};
use weir_engine::batch::Engine;
use weir_engine::worker::{Report, Worker};
use weir_packet::{Pool, Pools, Port, RegionPool, Remark, TableHash};
use weir_port::PcapPort;
use weir_port::pcap::Record;
use weir_program::snapshot::Snapshot;

/// Frames in the pool: batches, and what a fault port holds back.
const CHUNKS: u32 = 8192;

/// The table secret of every replay. A recording cannot exploit a secret that is drawn after the recording
/// was made, but a replay must be repeatable.
const SECRET: [u64; 2] = [0x7765_6972, 0x7265_706c_6179];

/// The maximum number of breaths at one point in time, so that apps that keep answering each other do not
/// stop the clock.
const BREATHS_MAX: usize = 1 << 20;

/// The results of a replay.
pub struct Replayed {
    /// The worker's report.
    pub report: Report,
    /// The counts of every entry and flow.
    pub snapshot: Snapshot,
    /// Remarks about the recordings for the user, with the name of the port.
    pub remarks: Vec<(String, Remark)>,
    /// Time without frames in which apps were not woken, in nanoseconds.
    pub slept_ns: u64,
    /// Reports about the apps that ran.
    pub apps: Vec<AppReport>,
    /// The messages of apps.
    pub said: Sayings,
}

impl Replayed {
    /// Returns what is missing from the recordings.
    pub fn errors(&self) -> Vec<String> {
        let errors = self.remarks.iter().filter(|(_, remark)| remark.is_error);
        errors.map(|(port, remark)| format!("{port}: {}", remark.text)).collect()
    }
}

/// Messages of apps with their times in nanoseconds.
pub type Sayings = Vec<(u64, String)>;

/// Report about an app.
#[derive(Clone, Debug, PartialEq)]
pub struct AppReport {
    /// Its name.
    pub name: String,
    /// Counts of the app's frames.
    pub account: Account,
    /// The app's own counters.
    pub counts: Vec<(&'static str, u64)>,
}

/// The recordings of a replay.
#[derive(Clone, Debug, Default)]
pub struct Recordings {
    /// What is received, by port.
    pub input: Vec<(String, PathBuf)>,
    /// What is transmitted, by port.
    pub output: Vec<(String, PathBuf)>,
    /// Recordings of frames passed to the host's stack, by port.
    pub kernel: Vec<(String, PathBuf)>,
    /// Recordings of frames forwarded to apps, by the name used in `forward`.
    pub apps: Vec<(String, PathBuf)>,
    /// The configuration, which must not be written to.
    pub configuration: PathBuf,
}

/// Returns a plan whose neighbours need not be resolved: without a host to ask, each gets a MAC address
/// derived from its IP address.
pub fn imagine(mut plan: Plan) -> Plan {
    let mac = |hop: &Hop| match hop.address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => *address.octets().last_chunk().unwrap_or(&[0; 4]),
    };
    let known = plan.apps.hops().into_iter().map(|hop| {
        let [a, b, c, d] = mac(&hop);
        (hop, [2, 0, a, b, c, d])
    });
    plan.apps.settle(&known.collect(), &mut plan.program);
    plan
}

/// Runs the plan's program on the recordings.
pub fn replay(plan: &Plan, recordings: &Recordings) -> Result<Replayed> {
    let plan = &imagine(plan.clone());
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(RegionPool::new(CHUNKS, plan.chunk())));
    let configured: Vec<PortConfig> = plan.ports.iter().map(|port| recorded(port, recordings)).collect();
    check_files(&configured, recordings)?;
    let mut pcaps = Vec::new();
    for port in &configured {
        let PortKind::Pcap { input, output, kernel } = &port.kind else { unreachable!("set above") };
        let pcap = recording(&port.name, pool, input, output, kernel, outfile::create);
        pcaps.push(pcap.with_context(|| format!("port `{}`", port.name))?);
    }
    // All recordings share one clock: time 0 is that of the earliest frame.
    let base_ns = pcaps.iter().filter_map(PcapPort::first_ns).min();
    if let Some(base_ns) = base_ns {
        pcaps.iter_mut().for_each(|pcap| pcap.set_base(base_ns));
    }
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for (pcap, config) in pcaps.into_iter().zip(&plan.ports) {
        ports.push(wrap(Box::new(pcap), config)?);
    }
    let engine = Engine::new(&plan.program, TableHash::new(SECRET))?;
    let (mut acting, wiring) = Acting::new(plan, &recordings.apps, base_ns.unwrap_or_default())?;
    let mut worker =
        Worker::new(engine, ports, pools).with_commands(wiring.commands).with_punts(wiring.punts);
    let slept_ns = run(&mut worker, &mut acting)?;
    worker.stop();
    let (report, snapshot) = (worker.report(), worker.engine().snapshot());
    let named = report.ports.iter().flat_map(|port| port.remarks.iter().map(|remark| (&port.name, remark)));
    let remarks = named.map(|(port, remark)| (port.clone(), remark.clone())).collect();
    let (apps, said) = acting.end()?;
    Ok(Replayed { report, snapshot, remarks, slept_ns, apps, said })
}

/// Breathes until every recording has ended and nothing is pending. Returns the time in which apps slept.
fn run(worker: &mut Worker, acting: &mut Acting) -> Result<u64> {
    let mut clock = Clock::new(worker);
    acting.begin(worker)?;
    loop {
        let now_ns = clock.now_ns();
        worker.ports_mut().iter_mut().for_each(|port| port.set_time(now_ns));
        now(worker, acting, now_ns)?;
        if !clock.advance(worker, acting.wake_ns()) {
            return Ok(clock.slept_ns());
        }
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

/// Returns the port with its recordings: those of the arguments, or else those of its configuration.
fn recorded(port: &PortConfig, recordings: &Recordings) -> PortConfig {
    let named = |list: &[(String, PathBuf)]| {
        list.iter().find(|(name, _)| *name == port.name).map(|(_, path)| path.clone())
    };
    let (input, output, kernel) = match &port.kind {
        PortKind::Pcap { input, output, kernel } => (input.clone(), output.clone(), kernel.clone()),
        _ => (None, None, None),
    };
    let kind = PortKind::Pcap {
        input: named(&recordings.input).or(input),
        output: named(&recordings.output).or(output),
        kernel: named(&recordings.kernel).or(kernel),
    };
    PortConfig { kind, ..port.clone() }
}

/// Checks that no file is both read and written, or written twice.
fn check_files(ports: &[PortConfig], recordings: &Recordings) -> Result<()> {
    let (mut read, mut written) = files_of(ports);
    read.push(Use::new("the configuration".to_string(), &recordings.configuration));
    written.extend(
        recordings.apps.iter().map(|(app, path)| Use::new(format!("the frames for app `{app}`"), path)),
    );
    distinct(&read, &written)
}

/// Iterates over the frames of a recording.
pub fn frames(path: &Path) -> Result<impl Iterator<Item = Result<Vec<u8>>> + use<>> {
    let (reader, path) = (reader(path)?, path.to_path_buf());
    Ok(reader.map(move |record| Ok(record.with_context(|| format!("{}", path.display()))?.bytes)))
}

/// Returns frame number `number` (from 1, as in Wireshark) of a recording.
pub fn frame(path: &Path, number: u64) -> Result<Record> {
    let (mut reader, mut record) = (reader(path)?, Record::default());
    while reader.number() < number.max(1) {
        if !reader.read(&mut record).with_context(|| format!("{}", path.display()))? {
            bail!("{} has {} frames: there is no frame {number}", path.display(), reader.number());
        }
    }
    if reader.number() != number {
        bail!("frame {number} of {} is not Ethernet, the only link type that weir reads", path.display());
    }
    Ok(record)
}

fn reader(path: &Path) -> Result<weir_port::pcap::Reader<std::io::BufReader<std::fs::File>>> {
    // Bounded: a frame at a time, for as long as the user waits.
    let file = std::fs::File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    weir_port::pcap::Reader::open(file).with_context(|| format!("{}", path.display()))
}

/// Returns the files that ports read and those that they write.
fn files_of(ports: &[PortConfig]) -> (Vec<Use>, Vec<Use>) {
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for port in ports {
        let named = |what: &str, path: &Path| Use::new(format!("{what} of port `{}`", port.name), path);
        if let PortKind::Pcap { input, output, kernel } = &port.kind {
            read.extend(input.as_deref().map(|path| named("the input", path)));
            written.extend(output.as_deref().map(|path| named("the output", path)));
            written.extend(kernel.as_deref().map(|path| named("the frames for the kernel", path)));
        }
        for direction in ["in", "out"] {
            let path = port.trace.as_deref().map(|path| traced(path, direction, 0));
            written.extend(path.map(|path| named("the trace", &path)));
        }
    }
    (read, written)
}
