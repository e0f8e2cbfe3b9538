//! `weir bench`: how fast weir is on this machine, now.

use crate::selection::Selection;
use crate::{
    arm, bond, changes, dpdk, engine, executors, generate, kernel, lb, measure, memory, overlay, path, pipes,
    rate, record, scaling, scenarios, xdp, xenoflow,
};
use anyhow::Result;
use serde_json::{Value, json};
use std::io::{Write, stderr};
use std::process::ExitCode;
use weir_lab::premise::premise;
use weir_lab::screen::{Screen, line};
use weir_lab::{INTERRUPTED, Interrupted};

/// Allowed numbers of entries for `changes`.
const ENTRIES: std::ops::RangeInclusive<i64> = 1024..=4_194_304;

/// The available measurements.
#[derive(clap::Subcommand)]
pub enum Bench {
    /// The engine on memory ports: seven programs, one core, 64-byte frames. In a weir built with DPDK also
    /// its ports, compared with dpdk-testpmd.
    Engine {
        /// Only these scenarios (including `dpdk`).
        only: Vec<String>,
        /// Also measure how the rate scales with workers: 2, on two cores.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=2), default_value = "1")]
        workers: u16,
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Breaths and loss at 80 % of the highest rate without loss, while something changes: reload, scrapes,
    /// entries, ageing, weights.
    Changes {
        /// Entries of the program, and flows.
        #[arg(long, default_value = "1048576", value_parser = clap::value_parser!(u32).range(ENTRIES))]
        entries: u32,
        /// Only these phases.
        only: Vec<String>,
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Memory per entry: resident bytes divided by live entries; and the cost of a configuration with a
    /// million entries.
    Memory {
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// AF_XDP ports compared with dpdk-testpmd's, on the same interfaces.
    Xdp {
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// The engine behind AF_XDP ports compared with the kernel's executor, on veth pairs: rate without loss,
    /// processor time of a frame, what reloads and takeovers lose, how soon frames follow a change.
    Executors(executors::ExecutorOptions),
    /// Programs that are compiled to eBPF: nanoseconds per packet in test runs of the kernel, compared with
    /// XDP programs in C for the same jobs and with the engine on memory ports.
    Kernel(kernel::KernelOptions),
    /// Six programs compared with their equivalents in DPDK's match-action pipeline (SWX), on DPDK devices.
    /// The environment variable SWX names the built SWX example.
    Pipes {
        /// Only these programs.
        only: Vec<String>,
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// A bond of two members compared with Open vSwitch's, on DPDK devices, directly and through a stand-in
    /// for a virtual machine (PVP); and whether its rate depends on the number of flows.
    Bond {
        /// Only these numbers of streams: 1 to 500000.
        streams: Vec<u32>,
        /// Measure only frames that take this way. Default: both.
        #[arg(long, value_enum)]
        way: Option<bond::BondWay>,
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Sketches and their aggregator: the cost of a packet in each of Agg-Evict's nine solutions, alone and
    /// aggregated, compared with the paper's figures; and accuracy compared with the exact truth and with
    /// rivals.
    Measure(measure::MeasureOptions),
    /// `weir measure` on a recording, compared with cat, tshark and nfpcapd: elapsed time, processor time,
    /// memory.
    Record(record::RecordOptions),
    /// The highest rate at which a configuration loses nothing, and the cost of a packet at that rate.
    Rate(rate::RateOptions),
    /// Traffic with known ground truth (true Zipf, popzipf, packet trains, a SYN flood, or a recording in a
    /// loop), into a recording or out of an interface.
    Generate(generate::GenerateOptions),
    /// The load balancer compared with the engine's programs that do the bare minimum of the same work: a
    /// service without flow state, a million persistent flows, new flows, IP-in-IP, ten thousand services;
    /// and how soon packets follow a change.
    Lb(lb::LbOptions),
    /// The experiments of XenoFlow's thesis, with its program: rate by payload, and added latency and loss by
    /// load, compared with its figures.
    Xenoflow(xenoflow::XenoFlowOptions),
    /// Path selection schemes: the time of messages through a tunnel over four links, one of them full; how
    /// soon traffic leaves a cut link; connections per second.
    Path(path::PathOptions),
    /// The cache in front of a container network, compared with plain VXLAN, a cache like ONCache's, and the
    /// nodes' own addresses: transactions, streams, interfaces traversed, and the cost of a miss.
    Overlay(overlay::OverlayOptions),
    /// One end of the measurements of `overlay`.
    #[command(hide = true)]
    OverlayEnd(overlay::LoadEnd),
    /// weir's part in a comparison, in a separate process.
    #[command(hide = true)]
    Arm(arm::WorkerArm),
}

/// Measures, and prints the results.
///
/// # Errors
/// A requested peer could not be run.
pub fn run(what: &Bench) -> Result<ExitCode> {
    match print(what) {
        Err(error) if error.is::<Interrupted>() => {
            let _ = writeln!(
                stderr(),
                "weir: interrupted; all processes have ended and all namespaces are \
                removed"
            );
            Ok(ExitCode::from(INTERRUPTED))
        }
        measured => measured.map(|()| ExitCode::SUCCESS),
    }
}

fn print(what: &Bench) -> Result<()> {
    match what {
        Bench::Engine { only, workers, json } => print_engine(only, *workers, *json)?,
        Bench::Memory { json } => print_memory(*json)?,
        Bench::Changes { entries, only, json } => {
            let changes = changes::run(*entries, only, |text| line(text))?;
            if *json {
                line(changes)?;
            }
        }
        Bench::Xdp { json } => {
            let rows = xdp::run()?;
            if *json {
                line(json!({ "xdp": rows }))?;
            }
            was_measured("xdp", rows.is_some())?;
        }
        Bench::Executors(options) => {
            let found = executors::run(options, |text| line(text))?;
            let is_measured = found.is_some();
            end(options.json, json!({ "executors": found }))?;
            was_measured("executors", is_measured)?;
        }
        Bench::Kernel(options) => {
            let results = kernel::run(options, |text| line(text))?;
            let is_measured = results.is_some();
            end(options.json, json!(results))?;
            was_measured("kernel", is_measured)?;
        }
        Bench::Pipes { only, json } => {
            let programs = pipes::run(only, |text| line(text))?;
            if *json {
                line(json!({ "programs": programs }))?;
            }
            was_measured("pipes", programs.is_some())?;
        }
        Bench::Bond { streams, way, json } => print_bond(streams, *way, *json)?,
        Bench::Rate(options) => end(options.json, rate::run(options, |text| line(text))?)?,
        Bench::Record(options) => end(options.json, record::run(options, |text| line(text))?)?,
        Bench::Lb(options) => end(options.json, lb::run(options, |text| line(text))?)?,
        Bench::Xenoflow(options) => end(options.json, xenoflow::run(options, |text| line(text))?)?,
        Bench::Path(options) => path::run(options)?,
        Bench::Overlay(options) => overlay::run(options)?,
        Bench::OverlayEnd(end) => overlay::run_end(end)?,
        Bench::Generate(options) => generate::run(options)?,
        Bench::Measure(options) => {
            let results = measure::run(options, &mut |text| line(text))?;
            if options.json {
                line(results)?;
            }
        }
        Bench::Arm(arm) => arm::run(arm)?,
    }
    Ok(())
}

/// Prints a final JSON object, if requested.
fn end(json: bool, found: Value) -> Result<()> {
    if json { line(found) } else { Ok(()) }
}

fn print_engine(only: &[String], workers: u16, json: bool) -> Result<()> {
    line("scenario     Mpps  (min - max)        ns  cycles  port_ns")?;
    let chosen = Selection::new(only, scenarios::ALL.iter().map(|one| one.0).chain(["dpdk"]))?;
    let rows = engine::run(chosen, |row, what| {
        line(format_args!(
            "{:<10} {:>6.2}  ({:.2} - {:.2})  {:>7.1} {:>7.1} {:>8.1}  {what}",
            row.name, row.mpps, row.mpps_min, row.mpps_max, row.ns, row.tsc_cycles, row.port_ns
        ))
    })?;
    let mut all = json!({ "results": rows });
    if workers > 1 {
        line("two workers compared with one: Mpps of processor time, median of the rounds")?;
        all["scaling"] = json!(scaling::run(only, |row| line(row))?);
        all["testpmd_scaling"] = json!(dpdk::scaling()?);
    }
    if chosen.has("dpdk") {
        all["dpdk"] = json!(beside_testpmd()?);
    }
    if json { line(all) } else { Ok(()) }
}

fn print_memory(json: bool) -> Result<()> {
    let rows = memory::run()?;
    for row in &rows {
        line(format_args!("{:<14} {:>9} entries  {:>6.1} bytes each", row.name, row.entries, row.bytes))?;
    }
    let million = memory::million()?;
    line(format_args!(
        "a million entries in a configuration: check {:.1} s, start {:.1} s, {:.0} MB",
        million.check_s, million.start_s, million.rss_mb
    ))?;
    let services = memory::services()?;
    line(format_args!(
        "10 000 services, a million pairs: check {:.1} s, start {:.1} s, {:.0} MB; reload {:.1} s, then \
         {:.0} MB; another worker {:.0} MB",
        services.check_s,
        services.start_s,
        services.rss_mb,
        services.reload_s,
        services.reloaded_rss_mb,
        services.worker_mb,
    ))?;
    if json { line(json!({ "results": rows, "million": million, "services": services })) } else { Ok(()) }
}

fn print_bond(streams: &[u32], way: Option<bond::BondWay>, json: bool) -> Result<()> {
    let streams = if streams.is_empty() { &bond::STREAMS[..] } else { streams };
    let mut screen = Screen::new(json);
    // An absent key was not asked for; one that is null could not be measured.
    let (mut results, mut is_measured) = (json!({}), true);
    if way != Some(bond::BondWay::Pvp) {
        screen.say("net_pcap to a bond of two net_memif: Mpps of processor time, median (min - max)");
        let rows = bond::run(streams, bond::BondWay::Direct, &mut screen)?;
        is_measured &= rows.is_some();
        results["results"] = json!(rows);
    }
    if way != Some(bond::BondWay::Direct) {
        screen.say(&format!("PVP: the same, through a virtual machine first ({})", bond::MACHINE));
        let rows = bond::run(streams, bond::BondWay::Pvp, &mut screen)?;
        is_measured &= rows.is_some();
        results["pvp"] = json!({ "machine": bond::MACHINE, "rows": rows });
    }
    screen.say("the bond's program on memory ports, 64-byte frames: Mpps, median (min - max)");
    let flatness = bond::flatness(|line| screen.say(line));
    results["flatness"] = json!(flatness);
    if json {
        line(results)?;
    }
    was_measured("bond", is_measured)
}

/// Fails if a requested measurement was impossible; the reason has already been printed.
fn was_measured(what: &str, is_so: bool) -> Result<()> {
    Ok(premise(is_so, || format!("{what} was not measured, for the reason above"))?)
}

/// Compares the DPDK ports with dpdk-testpmd.
fn beside_testpmd() -> Result<Option<Vec<Value>>> {
    line("net_pcap to net_null, basic2 compared with testpmd: Mpps of processor time, median (min - max)")?;
    dpdk::run()
}
