//! `weir bench`: how fast, on this machine, now.

use crate::{arm, bond, dpdk, engine, memory, xdp};
use anyhow::Result;
use lab::screen::{Screen, line};
use lab::{INTERRUPTED, Interrupted};
use serde_json::{Value, json};
use std::io::{Write, stderr};
use std::process::ExitCode;

/// What is measured.
#[derive(clap::Subcommand)]
pub enum Bench {
    /// The engine on memory ports: seven programs, one core, 64-byte frames. In a weir built with DPDK also
    /// its ports, beside dpdk-testpmd.
    Engine {
        /// Only these scenarios (`dpdk` is one).
        only: Vec<String>,
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Memory that an entry costs: resident bytes over live entries.
    Memory {
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// AF_XDP ports beside dpdk-testpmd's, on the same interfaces.
    Xdp {
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// A bond of two members beside Open vSwitch's, on DPDK devices; and whether its rate depends on the
    /// number of flows.
    Bond {
        /// Only these numbers of streams.
        streams: Vec<u32>,
        /// End with one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// weir's part in a comparison, in a process of its own.
    #[command(hide = true)]
    Arm(arm::Arm),
}

/// Measures, and prints what came of it.
///
/// # Errors
/// A peer that was asked for could not be run.
pub fn measure(what: &Bench) -> Result<ExitCode> {
    match print(what) {
        Err(error) if error.is::<Interrupted>() => {
            let _ = writeln!(stderr(), "weir: interrupted, all processes ended, all namespaces removed");
            Ok(ExitCode::from(INTERRUPTED))
        }
        measured => measured.map(|()| ExitCode::SUCCESS),
    }
}

fn print(what: &Bench) -> Result<()> {
    match what {
        Bench::Engine { only, json } => {
            line("scenario     Mpps  (min - max)        ns  cycles  port_ns")?;
            let rows = engine::run(only, |row, what| {
                line(format_args!(
                    "{:<10} {:>6.2}  ({:.2} - {:.2})  {:>7.1} {:>7.1} {:>8.1}  {what}",
                    row.name, row.mpps, row.mpps_min, row.mpps_max, row.ns, row.tsc_cycles, row.port_ns
                ))
            })?;
            let mut all = json!({ "results": rows });
            if only.is_empty() || only.iter().any(|name| name == "dpdk") {
                all["dpdk"] = json!(beside_testpmd()?);
            }
            if *json {
                line(all)?;
            }
        }
        Bench::Memory { json } => {
            let rows = memory::run()?;
            for row in &rows {
                line(format_args!(
                    "{:<14} {:>9} entries  {:>6.1} bytes each",
                    row.name, row.entries, row.bytes
                ))?;
            }
            if *json {
                line(json!({ "results": rows }))?;
            }
        }
        Bench::Xdp { json } => {
            let rows = xdp::run()?;
            if *json {
                line(json!({ "xdp": rows }))?;
            }
        }
        Bench::Bond { streams, json } => {
            let streams = if streams.is_empty() { &bond::STREAMS[..] } else { streams };
            let mut screen = Screen::new(*json);
            screen.say("net_pcap to a bond of two net_memif: Mpps of processor time, median (min - max)");
            let rows = bond::run(streams, &mut screen)?;
            screen.say("the bond's program on memory ports, 64-byte frames: Mpps, median (min - max)");
            let flatness = bond::flatness(|line| screen.say(line));
            if *json {
                line(json!({ "results": rows, "flatness": flatness }))?;
            }
        }
        Bench::Arm(arm) => arm::run(arm)?,
    }
    Ok(())
}

/// The DPDK ports beside dpdk-testpmd.
fn beside_testpmd() -> Result<Option<Vec<Value>>> {
    line("net_pcap to net_null, basic2 beside testpmd: Mpps of processor time, median (min - max)")?;
    dpdk::run()
}
