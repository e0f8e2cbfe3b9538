//! `weir explain`: what happens to a packet and why, in a file's program or, with `--live`, in the daemon's.

use super::show::Connection;
use super::{bad_input, packet};
use crate::explain::{Explanation, Names};
use crate::{import, output, replay};
use anyhow::{Context, Result, anyhow, bail};
use engine::program::PortId;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `weir explain`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration file; not used with `--live`.
    #[arg(required_unless_present = "live", conflicts_with = "live")]
    file: Option<PathBuf>,
    /// Ask the running daemon, with its program, entries, buckets and flows.
    #[arg(long)]
    live: bool,
    /// A packet in words: 'src=10.0.0.1 dst=10.0.0.53 proto=udp sport=5000 dport=53'.
    #[arg(long, conflicts_with = "pcap", required_unless_present = "pcap")]
    packet: Option<String>,
    /// A recording; see `--frame`.
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// The number of the frame in the recording, counted from 1.
    #[arg(long, default_value_t = 1)]
    frame: u64,
    /// The port on which it arrives; by default the program's first.
    #[arg(long)]
    port: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
///
/// # Errors
/// The input is invalid, or there is no daemon.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let frame = bytes(arguments)?;
    if arguments.live {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let request = json!({ "command": "explain", "hex": hex, "port": arguments.port });
        return arguments
            .connection
            .ask(&request, |answer| answer["text"].as_str().unwrap_or_default().to_string());
    }
    let file = arguments.file.as_ref().context("which configuration?")?;
    let loaded = import::load(file, &import::Options::default())?;
    let Some(plan) = &loaded.plan else {
        output::complain(&loaded.report);
        return Ok(bad_input());
    };
    let input = match &arguments.port {
        Some(name) => plan.program.port_named(name).ok_or_else(|| anyhow!("there is no port `{name}`"))?,
        None => PortId(0),
    };
    let explanation = Explanation::offline(plan, input, &frame)?;
    let names = Names { program: &plan.program, report: Some(&loaded.report) };
    if arguments.connection.is_json() {
        output::line(explanation.json(&names, input, &frame))?;
    } else {
        output::print(explanation.text(&names, input, &frame))?;
    }
    Ok(if explanation.agrees() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bytes(arguments: &Arguments) -> Result<Vec<u8>> {
    match (&arguments.packet, &arguments.pcap) {
        (Some(recipe), _) => Ok(packet(recipe)?),
        (None, Some(pcap)) => replay::frame(pcap, arguments.frame),
        (None, None) => bail!("give --packet or --pcap"),
    }
}
