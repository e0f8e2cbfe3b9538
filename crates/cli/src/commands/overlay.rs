//! `weir overlay cleanup`: removes what overlays have left behind on this node, without a daemon to ask.

use crate::output;
use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::json;
use std::process::ExitCode;
use weir_daemon::Left;

/// The kind of app whose subcommand it is, and its name.
pub const KEY: &str = "overlay";
pub const CLEANUP: &str = "cleanup";

/// Returns the subcommand.
pub fn command() -> Command {
    Command::new(CLEANUP)
        .about("Remove what is left of an overlay on this node when no daemon runs")
        .long_about(None)
        .arg(
            Arg::new("json")
                .long("json")
                .help("Print a JSON object: `ok, removed[], left[], refused`")
                .action(ArgAction::SetTrue),
        )
}

/// Runs it. The exit code is 1 if something remains, for example because a process holds it.
///
/// # Errors
/// Fails if the kernel does not answer, or refuses; usually a privilege is missing.
pub fn cleanup(matches: &ArgMatches) -> Result<ExitCode> {
    let found = Left::look()?;
    let refused = found.belongs_to();
    let (mut removed, mut left) = (Vec::new(), found.sentences());
    if refused.is_none() {
        removed = found.remove()?;
        left = Left::look()?.sentences();
    }
    let ok = refused.is_none() && left.is_empty();
    if let Some(why) = &refused {
        output::complain(format_args!("weir: {why}\n"));
    }
    if matches.get_flag("json") {
        output::line(json!({ "ok": ok, "removed": removed, "left": left, "refused": refused }))?;
    } else if refused.is_none() {
        removed.iter().chain(&left).try_for_each(output::line)?;
        if removed.is_empty() && left.is_empty() {
            output::line("nothing of an overlay is left here")?;
        }
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
