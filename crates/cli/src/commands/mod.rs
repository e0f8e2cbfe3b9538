//! The subcommands. Exit codes: 0 on success, 1 on failure, 2 on invalid input.

pub mod apps;
pub mod check;
mod check_nodes;
pub mod compile;
pub mod decap;
pub mod doctor;
pub mod drain;
pub mod entry;
pub mod explain;
mod fleet;
pub mod generate;
pub mod import;
pub mod inject;
mod listing;
pub mod plan;
pub mod ports;
pub mod reference;
pub mod replay;
pub mod ring;
pub mod run;
pub mod schema;
pub mod show;
pub mod test;
pub mod top;
pub mod ui;
pub mod upgrade;
mod watch;

use crate::config::SOCKET;
use std::path::PathBuf;
use std::process::ExitCode;
pub use weir_app::kind::BadInput;
use weir_packet::craft::Recipe;

/// Exit code for invalid input: a configuration with errors or wrong arguments. clap uses the same code.
pub const BAD_INPUT: u8 = 2;

/// [`BAD_INPUT`] as an [`ExitCode`].
#[must_use]
pub fn bad_input() -> ExitCode {
    ExitCode::from(BAD_INPUT)
}

/// Returns the frame that `--packet` describes.
///
/// # Errors
/// The error names the wrong word.
pub fn packet(text: &str) -> Result<Vec<u8>, BadInput> {
    let recipe = text.parse::<Recipe>().map_err(|error| BadInput(format!("--packet: {error}")));
    recipe.map(|recipe| recipe.build())
}

/// Returns the control socket to use: the one from the arguments, the configured one, the one in
/// `WEIR_SOCKET`, or the default.
#[must_use]
pub fn socket(asked: Option<PathBuf>, configured: Option<PathBuf>) -> PathBuf {
    let from_environment = || std::env::var_os("WEIR_SOCKET").map(PathBuf::from);
    asked.or(configured).or_else(from_environment).unwrap_or_else(|| SOCKET.into())
}
