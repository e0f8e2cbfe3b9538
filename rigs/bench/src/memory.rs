//! `weir bench memory`: the memory cost of an entry, as the growth of the process's resident memory divided
//! by live entries, with tables filled to the capacity they were created for; and what a configuration with a
//! million entries costs a daemon.

use super::million;
use super::scenarios::{basic1m, flow1m, shuffled};
use anyhow::{Context, Result, ensure};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_bed::Run;
use weir_engine::batch::Engine;
use weir_lab::Interrupt;
use weir_lab::premise::premise;
use weir_lab::weir::{self, Weir};
use weir_packet::Port;
use weir_packet::{Batch, Pools, TableHash};
use weir_port::{Generator, Stream};
use weir_program::PortId;

/// Entries of each kind.
const ENTRIES: u32 = 1 << 20;

/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(300);

/// A row of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MemoryRow {
    /// Kind of entry.
    pub name: &'static str,
    /// Live entries.
    pub entries: u32,
    /// Resident bytes per entry.
    pub bytes: f64,
}

/// Measures both kinds.
pub fn run() -> Result<Vec<MemoryRow>> {
    Ok(vec![flows()?, basic()?])
}

/// Measures entries with 40-byte keys, learnt from packets.
fn flows() -> Result<MemoryRow> {
    let scenario = flow1m();
    let mut pools = Pools::region(512);
    let pool = pools.first().id();
    let mut port =
        Generator::new("in", &mut pools, pool, Stream::udp(64, shuffled(ENTRIES)), u64::from(ENTRIES));
    let before = resident("self")?;
    let mut engine = Engine::new(&scenario.program, TableHash::new([1, 2]))?;
    let mut batch = Batch::new();
    loop {
        port.receive(&mut pools, &mut batch);
        if batch.is_empty() {
            break;
        }
        let list = batch.mask();
        engine.process(&mut batch, list, PortId(0), 1_000_000);
        port.transmit(&mut pools, &mut batch, list);
        batch.clear();
    }
    let live = engine.flows(weir_program::PipeId(0), 0).1 as u32;
    premise(live >= ENTRIES / 10 * 9, || format!("the table has {live} of {ENTRIES} flows"))?;
    Ok(MemoryRow {
        name: "flow, 40 B key",
        entries: live,
        bytes: (resident("self")? - before) as f64 / f64::from(live),
    })
}

/// Measures entries with 16-byte keys, from the configuration.
fn basic() -> Result<MemoryRow> {
    let scenario = basic1m();
    let before = resident("self")?;
    let engine = Engine::new(&scenario.program, TableHash::new([1, 2]))?;
    let bytes = (resident("self")? - before) as f64 / f64::from(ENTRIES);
    drop(engine);
    Ok(MemoryRow { name: "basic, 16 B key", entries: ENTRIES, bytes })
}

/// The cost of a configuration with a million entries.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Million {
    /// Duration of `weir check` in seconds.
    pub check_s: f64,
    /// Seconds until a daemon answers.
    pub start_s: f64,
    /// The daemon's resident memory at that time, in MB (10^6 bytes).
    pub rss_mb: f64,
}

/// Checks and starts a configuration with a million entries.
pub fn million() -> Result<Million> {
    let interrupt = Interrupt::on_signals()?;
    let mut run = Run::begin(false)?;
    let text = million::configuration(ENTRIES, &million::QUIET);
    let file = run.folder().join("million.yaml");
    std::fs::write(&file, &text)?;
    let start = Instant::now();
    let checked = Command::new(weir::program()?).arg("check").arg(&file).stdout(Stdio::null()).status()?;
    let check_s = start.elapsed().as_secs_f64();
    ensure!(checked.success(), "`weir check` refuses a million entries");
    let start = Instant::now();
    let weir =
        Weir::start_within(PATIENCE, &mut run, "weir", |program| Command::new(program), &text, &interrupt)?;
    let start_s = start.elapsed().as_secs_f64();
    let process = run.child(weir.process()).id();
    let rss_mb = resident(&process.to_string())? as f64 / 1e6;
    weir.stop(&mut run)?;
    Ok(Million { check_s, start_s, rss_mb })
}

/// The cost of ten thousand services: a million pairs of service and back end.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Services {
    /// Duration of `weir check` in seconds.
    pub check_s: f64,
    /// Seconds until a daemon answers, and for a reload that changes a weight.
    pub start_s: f64,
    pub reload_s: f64,
    /// The daemon's resident memory with one worker before and after the reload, in MB (10^6 bytes).
    pub rss_mb: f64,
    pub reloaded_rss_mb: f64,
    /// The memory cost of an additional worker.
    pub worker_mb: f64,
}

/// Checks, starts and reloads a configuration of the load balancer with ten thousand services.
pub fn services() -> Result<Services> {
    let interrupt = Interrupt::on_signals()?;
    let mut run = Run::begin(false)?;
    let text = million::services(1, 2);
    let file = run.folder().join("services.yaml");
    std::fs::write(&file, &text)?;
    let start = Instant::now();
    let checked = Command::new(weir::program()?).arg("check").arg(&file).stdout(Stdio::null()).status()?;
    let check_s = start.elapsed().as_secs_f64();
    ensure!(checked.success(), "`weir check` refuses ten thousand services");
    let start = Instant::now();
    let mut begin = |name, text: &str| {
        let command = |program: &str| Command::new(program);
        let weir = Weir::start_within(PATIENCE, &mut run, name, command, text, &interrupt)?;
        let process = run.child(weir.process()).id().to_string();
        anyhow::Ok((resident(&process)? as f64 / 1e6, process, weir))
    };
    let (rss_mb, process, weir) = begin("weir", &text)?;
    let start_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    weir.reload(&million::services(1, 3))?;
    let reload_s = start.elapsed().as_secs_f64();
    let reloaded_rss_mb = resident(&process)? as f64 / 1e6;
    let (two_mb, _, two) = begin("two", &million::services(2, 2))?;
    weir.stop(&mut run)?;
    two.stop(&mut run)?;
    Ok(Services { check_s, start_s, reload_s, rss_mb, reloaded_rss_mb, worker_mb: two_mb - rss_mb })
}

/// Returns the resident bytes of a process.
fn resident(process: &str) -> Result<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).context("/proc is not mounted")?;
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).context("statm")?;
    Ok(pages * rustix::param::page_size() as u64)
}
