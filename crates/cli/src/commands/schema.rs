//! `weir schema`: the JSON Schema of the configuration, for editors.

use crate::{config, output};
use anyhow::Result;
use std::process::ExitCode;

/// Prints the schema.
///
/// # Errors
/// Fails if standard output cannot be written to.
pub fn run() -> Result<ExitCode> {
    output::line(serde_json::to_string_pretty(&config::schema())?)?;
    Ok(ExitCode::SUCCESS)
}
