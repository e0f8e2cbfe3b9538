//! `weir top`: the live view ([`crate::top`]).

use super::{socket, watch};
use crate::top;
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `weir top`.
#[derive(clap::Args)]
pub struct TopArguments {
    /// Path of the daemon's control socket.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Polling interval, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = watch::seconds)]
    interval: Duration,
}

/// Runs `weir top`.
pub fn run(arguments: &TopArguments) -> Result<ExitCode> {
    top::run(socket(arguments.socket.clone(), None), arguments.interval)
}
