//! Subcommands: each reads its arguments, does one thing, says how it went. Exit codes: 0 done, 1 failed, 2 bad input.

pub mod apps;
pub mod check;
pub mod explain;
pub mod import;
pub mod inject;
pub mod ports;
pub mod replay;
pub mod run;
pub mod schema;
pub mod show;

use crate::config::SOCKET;
use std::path::PathBuf;
use std::process::ExitCode;

/// The input is bad: a configuration with errors, wrong arguments (clap says the same).
pub const BAD_INPUT: u8 = 2;

/// The exit code of bad input.
#[must_use]
pub fn bad_input() -> ExitCode {
    ExitCode::from(BAD_INPUT)
}

/// The control socket to use: as asked, as configured, from `WEIR_SOCKET`, or the usual one.
#[must_use]
pub fn socket(asked: Option<PathBuf>, configured: Option<PathBuf>) -> PathBuf {
    let from_environment = || std::env::var_os("WEIR_SOCKET").map(PathBuf::from);
    asked.or(configured).or_else(from_environment).unwrap_or_else(|| SOCKET.into())
}
