//! `weir explain`: what happens to a packet and why, in a file's program or, with `--live`, in the daemon's.

use super::show::Connection;
use super::{bad_input, packet};
use crate::replay::imagine;
use crate::{import, output, replay};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use weir_control::Request;
use weir_daemon::explain::{Explanation, RenderNames};
use weir_packet::write_hex;
use weir_port::pcap::{RECORD_ALL, Record};
use weir_program::PortId;

/// Arguments of `weir explain`.
#[derive(clap::Args)]
pub struct ExplainArguments {
    /// The configuration file; not used with `--live`.
    #[arg(required_unless_present = "live", conflicts_with = "live")]
    file: Option<PathBuf>,
    /// Ask the running daemon, with its program, entries, buckets and flows.
    #[arg(long)]
    live: bool,
    /// A packet in words: 'src=10.0.0.1 dst=10.0.0.53 proto=udp sport=5000 dport=53'. With `--live`, it goes
    /// to the port's MAC address unless it contains `eth.dst=`.
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
    node: import::NodeOption,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
///
/// # Errors
/// Fails if the input is invalid, or if there is no daemon.
pub fn run(arguments: &ExplainArguments) -> Result<ExitCode> {
    let record = record(arguments)?;
    let frame = &record.bytes;
    if arguments.live {
        // The daemon adds the destination if the recipe has none.
        let packet = arguments.packet.clone();
        let hex = packet.is_none().then(|| write_hex(frame, ""));
        let request = weir_control::Explain { packet, hex, port: arguments.port.clone() };
        let mut answer: Value = arguments.connection.answer(&Request::Explain(request))?;
        let text = answer["text"].as_str().unwrap_or_default().to_string();
        answer["recorded_of"] = recorded_of(&record);
        print(arguments, &record, &answer, &text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = arguments.file.as_ref().context("which configuration?")?;
    let loaded = import::load(file, &arguments.node, &import::ImportOptions::default())?;
    let Some(plan) = &loaded.plan else {
        output::complain(&loaded.report);
        return Ok(bad_input());
    };
    let plan = &imagine(plan.clone());
    let input = match &arguments.port {
        Some(name) => plan.program.port_named(name).ok_or_else(|| anyhow!("there is no port `{name}`"))?,
        None if plan.program.ports.is_empty() => bail!("there is no port on which a packet could arrive"),
        None => PortId(0),
    };
    let explanation = Explanation::offline(plan, input, frame)?;
    let names = RenderNames { program: &plan.program, report: Some(&loaded.report) };
    let mut json = explanation.json(&names, input, frame);
    json["recorded_of"] = recorded_of(&record);
    print(arguments, &record, &json, &explanation.text(&names, input, frame))?;
    Ok(if explanation.agrees() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the frame's length on the wire, if the recording has less of it.
fn recorded_of(record: &Record) -> Value {
    json!(record.is_truncated().then_some(record.length))
}

fn print(arguments: &ExplainArguments, record: &Record, json: &Value, text: &str) -> Result<()> {
    if arguments.connection.is_json() {
        return output::line(json);
    }
    if record.is_truncated() {
        let (bytes, length) = (record.bytes.len(), record.length);
        output::line(format_args!(
            "note    the recording has {bytes} of the frame's {length} bytes: {RECORD_ALL}"
        ))?;
    }
    output::print(text)
}

fn record(arguments: &ExplainArguments) -> Result<Record> {
    match (&arguments.packet, &arguments.pcap) {
        (Some(recipe), _) => {
            let bytes = packet(recipe)?;
            Ok(Record { time_ns: 0, length: bytes.len() as u32, bytes })
        }
        (None, Some(pcap)) => replay::frame(pcap, arguments.frame),
        (None, None) => bail!("give --packet or --pcap"),
    }
}
