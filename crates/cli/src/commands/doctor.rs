//! `weir doctor [FILE]`: checks whether this host and the fabric meet weir's needs.

use super::{bad_input, socket};
use crate::config::SOCKET;
use crate::doctor::{self, Level};
use crate::{import, output};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `weir doctor`.
#[derive(clap::Args)]
pub struct DoctorArguments {
    /// The configuration file; without one, only the host is examined.
    file: Option<PathBuf>,
    /// Path of the daemon's control socket; overrides the configuration.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Print a JSON object: `ok, checks[]{check, of, level, says}`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: import::NodeOption,
}

/// Runs the command. The exit code is 1 if something is a fault.
///
/// # Errors
/// Fails if the file cannot be read, or if standard output cannot be written to.
pub fn run(arguments: &DoctorArguments) -> Result<ExitCode> {
    let mut plan = None;
    if let Some(file) = &arguments.file {
        let loaded = import::load(file, &arguments.node, &import::ImportOptions::default())?;
        if loaded.plan.is_none() {
            output::complain(&loaded.report);
            return Ok(bad_input());
        }
        plan = loaded.plan;
    }
    let configured = plan.as_ref().map(|plan| plan.socket.clone()).filter(|path| path != Path::new(SOCKET));
    let planned = plan.as_ref().zip(arguments.file.as_deref());
    let found = doctor::examine(planned, &socket(arguments.socket.clone(), configured));
    let ok = found.iter().all(|one| one.level < Level::Fault);
    if arguments.json {
        let checks: Vec<_> = found.iter().map(doctor::Finding::json).collect();
        output::line(serde_json::json!({ "ok": ok, "checks": checks }))?;
    } else {
        found.iter().try_for_each(output::line)?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
