//! `weir schema`: the JSON Schema of the configuration, for editors.

use crate::config;
use anyhow::Result;
use std::process::ExitCode;

/// Prints it.
///
/// # Errors
/// The standard output is closed.
pub fn run() -> Result<ExitCode> {
    println!("{}", serde_json::to_string_pretty(&config::schema())?);
    Ok(ExitCode::SUCCESS)
}
