//! `weir import SYSTEM FILE`: converts another system's configuration to YAML and prints it.

use super::bad_input;
use crate::config::Report;
use crate::import::{self, Checked, System};
use crate::output;
use anyhow::Result;
use std::net::IpAddr;
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
    /// IPVS, and keepalived, which configures it: the output of `ipvsadm -S -n`.
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
    /// The source address of tunnels to back ends; at most one of each IP version.
    #[arg(long = "source", value_name = "ADDRESS")]
    sources: Vec<IpAddr>,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn run(source: &Source) -> Result<ExitCode> {
    match source {
        Source::Xenoflow { file, options } => convert(file, |text| {
            let yaml = import::xenoflow(file, text, options)?;
            Ok((Checked { yaml, refused: Vec::new() }, None))
        }),
        Source::Ipvs(services) => convert_services(System::Ipvs, services),
        Source::Katran(services) => convert_services(System::Katran, services),
        Source::Glb(services) => convert_services(System::Glb, services),
    }
}

/// Services that weir would refuse are commented out in the output, and the exit code is then 1.
fn convert_services(system: System, Services { file, input, sources }: &Services) -> Result<ExitCode> {
    convert(file, |text| {
        let ports = import::Ports { interface: input, sources };
        let (yaml, warnings) = import::services(system, file, text, &ports)?;
        Ok((import::checked(yaml)?, Some(warnings)))
    })
}

fn convert(
    file: &Path,
    convert: impl FnOnce(&str) -> Result<(Checked, Option<Report>), Report>,
) -> Result<ExitCode> {
    match import::text(file)?.and_then(|text| convert(&text)) {
        Ok((Checked { yaml, refused }, warnings)) => {
            warnings.iter().for_each(output::complain);
            refused
                .iter()
                .for_each(|one| output::complain(format_args!("{}: warning: {one}\n", file.display())));
            output::print(yaml)?;
            Ok(if refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(report) => {
            output::complain(report);
            Ok(bad_input())
        }
    }
}
