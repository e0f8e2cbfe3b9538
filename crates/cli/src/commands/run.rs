//! `weir run FILE`: the daemon in the foreground. SIGHUP or `weir reload` swaps the program, SIGTERM stops.

use super::{bad_input, socket};
use crate::{daemon, import};
use anyhow::{Result, anyhow};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `weir run`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration, or XenoFlow's `backends.json`.
    file: PathBuf,
    #[command(flatten)]
    import: import::Options,
    /// The control socket, instead of the configuration's.
    #[arg(long)]
    socket: Option<PathBuf>,
}

/// Runs it.
///
/// # Errors
/// Whatever keeps the daemon from running.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let load = || {
        let loaded = import::load(&arguments.file, &arguments.import)?;
        eprint!("{}", loaded.report);
        let mut plan = loaded.plan.ok_or_else(|| anyhow!("{} has errors", arguments.file.display()))?;
        plan.socket = socket(arguments.socket.clone(), Some(plan.socket));
        Ok(plan)
    };
    let first = import::load(&arguments.file, &arguments.import)?;
    if first.plan.is_none() {
        eprint!("{}", first.report);
        return Ok(bad_input());
    }
    daemon::run(arguments.file.clone(), load()?, load)?;
    Ok(ExitCode::SUCCESS)
}
