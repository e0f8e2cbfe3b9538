//! `weir import xenoflow FILE`: prints XenoFlow's `backends.json` as a configuration in YAML.

use super::bad_input;
use crate::{import, output};
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// The system to import from.
#[derive(clap::Subcommand)]
pub enum Source {
    /// XenoFlow: `{"backends": [{"name": ..., "mac_address": ...}]}`.
    Xenoflow {
        /// The file `backends.json`.
        file: PathBuf,
        #[command(flatten)]
        options: import::Options,
    },
}

/// Runs the command.
///
/// # Errors
/// The file cannot be read.
pub fn run(source: &Source) -> Result<ExitCode> {
    let Source::Xenoflow { file, options } = source;
    match import::text(file)?.and_then(|text| import::xenoflow(file, &text, options)) {
        Ok(yaml) => {
            output::print(yaml)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(report) => {
            output::complain(report);
            Ok(bad_input())
        }
    }
}
