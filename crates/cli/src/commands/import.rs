//! `weir import SYSTEM FILE`: prints what another system has been told as a configuration in YAML.

use super::bad_input;
use crate::config::Report;
use crate::import::{self, System};
use crate::output;
use anyhow::Result;
use std::path::{Path, PathBuf};
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
    /// IPVS, and keepalived, which configures it: what `ipvsadm -S -n` prints.
    Ipvs(Services),
    /// Katran: commands of its example client, `-A -t VIP:PORT` and `-a -t VIP:PORT -r REAL -w WEIGHT`.
    Katran(Services),
    /// The GLB director: its forwarding tables, in JSON.
    Glb(Services),
}

/// A file with services.
#[derive(clap::Args)]
pub struct Services {
    /// The file.
    file: PathBuf,
    /// The interface on which packets arrive.
    #[arg(long = "in", value_name = "INTERFACE", default_value = "eth0")]
    input: String,
}

/// Runs the command.
///
/// # Errors
/// The file cannot be read.
pub fn run(source: &Source) -> Result<ExitCode> {
    match source {
        Source::Xenoflow { file, options } => {
            convert(file, |text| import::xenoflow(file, text, options).map(|yaml| (yaml, None)))
        }
        Source::Ipvs(services) => convert_services(System::Ipvs, services),
        Source::Katran(services) => convert_services(System::Katran, services),
        Source::Glb(services) => convert_services(System::Glb, services),
    }
}

fn convert_services(system: System, Services { file, input }: &Services) -> Result<ExitCode> {
    convert(file, |text| {
        import::services(system, file, text, input).map(|(yaml, warnings)| (yaml, Some(warnings)))
    })
}

fn convert(
    file: &Path,
    convert: impl FnOnce(&str) -> Result<(String, Option<Report>), Report>,
) -> Result<ExitCode> {
    match import::text(file)?.and_then(|text| convert(&text)) {
        Ok((yaml, warnings)) => {
            warnings.iter().for_each(output::complain);
            output::print(yaml)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(report) => {
            output::complain(report);
            Ok(bad_input())
        }
    }
}
