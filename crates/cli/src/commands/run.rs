//! `weir run FILE`: the daemon in the foreground. SIGHUP or `weir reload` swaps the program, SIGTERM stops
//! it.

use super::{BadInput, bad_input, socket};
use crate::config::{Loaded, Nics, SOCKET};
use crate::{import, output};
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tracing::warn;
use weir_app::edits::Edits;
use weir_daemon::log::Log;

/// The log level.
#[derive(Clone, Copy, ValueEnum)]
enum LogLevel {
    /// Failures.
    Error,
    /// Also what needs attention.
    Warn,
    /// Also events.
    Info,
    /// Also requests to the daemon.
    Debug,
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> tracing::Level {
        match level {
            LogLevel::Error => tracing::Level::ERROR,
            LogLevel::Warn => tracing::Level::WARN,
            LogLevel::Info => tracing::Level::INFO,
            LogLevel::Debug => tracing::Level::DEBUG,
        }
    }
}

/// Arguments of `weir run`.
#[derive(clap::Args)]
pub struct RunArguments {
    /// The configuration file, or XenoFlow's `backends.json`.
    file: PathBuf,
    #[command(flatten)]
    node: import::NodeOption,
    #[command(flatten)]
    import: import::ImportOptions,
    /// Path of the control socket; overrides the configuration.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Take over from the weir running on the same control socket: its flows, run-time weights and run-time
    /// entries are kept, and its interfaces are handed over.
    #[arg(long)]
    takeover: bool,
    /// Log level on standard error.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LogLevel,
}

/// Runs the command.
///
/// # Errors
/// The error says why the daemon cannot run.
pub fn run(arguments: &RunArguments) -> Result<ExitCode> {
    let RunArguments { file, node, import, socket: own, .. } = arguments;
    let (file, node, import, own) = (file.clone(), node.clone(), import.clone(), own.clone());
    let at = file.clone();
    let accept = move |loaded: Loaded| {
        loaded.forgotten.iter().for_each(|why| warn!("{why}"));
        let Some(mut plan) = loaded.plan else {
            bail!("{} has errors\n{}", at.display(), loaded.report.to_string().trim_end());
        };
        if loaded.report.warnings() > 0 {
            warn!("{}", loaded.report);
        }
        let configured = Some(plan.socket).filter(|path| path != Path::new(SOCKET));
        plan.socket = socket(own.clone(), configured);
        if let Some(wrong) = plan.socket.to_str().and_then(weir_config::socket::wrong) {
            return Err(
                BadInput(format!("the control socket's path {wrong}: {}", plan.socket.display())).into()
            );
        }
        Ok(plan)
    };
    let first = import::load(&file, &node, &import)?;
    if first.plan.is_none() {
        output::complain(&first.report);
        return Ok(bad_input());
    }
    let _log = Log::start(arguments.log.into())?;
    let plan = accept(first)?;
    let load = move |edits: &dyn Edits, known: &Nics| {
        accept(import::load_edited((&file, &node), &import, edits, known)?)
    };
    weir_daemon::run(arguments.file.clone(), plan, Arc::new(load), arguments.takeover)?;
    Ok(ExitCode::SUCCESS)
}
