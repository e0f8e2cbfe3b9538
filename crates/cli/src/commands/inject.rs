//! `weir inject`: sends frames through a port of the running daemon, or through its program, one after the
//! other.

use super::packet;
use super::show::Connection;
use crate::{output, replay};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use weir_control::{Inject, Request};
use weir_packet::write_hex;

/// Arguments of `weir inject`.
#[derive(clap::Args)]
pub struct InjectArguments {
    /// The port to send through; with `--through`, the port on which the frames appear to arrive.
    port: String,
    /// A recording, all of whose frames are sent.
    #[arg(required_unless_present = "packet", conflicts_with = "packet")]
    pcap: Option<PathBuf>,
    /// Send only this frame of the recording, counted from 1.
    #[arg(long, conflicts_with = "packet")]
    frame: Option<u64>,
    /// A packet in words: 'src=10.0.0.1 dst=10.0.0.53 proto=udp sport=5000 dport=53'.
    #[arg(long)]
    packet: Option<String>,
    /// Send through the program, as if the frames had arrived on the port.
    #[arg(long)]
    through: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs the command.
///
/// # Errors
/// Fails if the input is invalid, if there is no daemon, or if a frame was not sent.
pub fn run(arguments: &InjectArguments) -> Result<ExitCode> {
    let port = Some(arguments.port.clone());
    let (input, output) = if arguments.through { (port, None) } else { (None, port) };
    let mut many = 0;
    for frame in frames(arguments)? {
        let hex = write_hex(&frame?, "");
        let (input, output) = (input.clone(), output.clone());
        let request = Request::Inject(Inject { packet: None, hex: Some(hex), output, input });
        let _: Value =
            arguments.connection.answer(&request).with_context(|| format!("after {many} frames"))?;
        many += 1;
    }
    if arguments.connection.is_json() {
        output::line(json!({ "sent": many }))?;
    } else {
        output::line(format_args!("{many} {} sent", if many == 1 { "frame" } else { "frames" }))?;
    }
    Ok(ExitCode::SUCCESS)
}

type FrameIterator = Box<dyn Iterator<Item = Result<Vec<u8>>>>;

fn frames(arguments: &InjectArguments) -> Result<FrameIterator> {
    if let Some(recipe) = &arguments.packet {
        return Ok(Box::new(std::iter::once(Ok(packet(recipe)?))));
    }
    let path = arguments.pcap.as_ref().context("give --packet or a recording")?;
    match arguments.frame {
        Some(number) => Ok(Box::new(std::iter::once(Ok(replay::frame(path, number)?.bytes)))),
        None => Ok(Box::new(replay::frames(path)?)),
    }
}
