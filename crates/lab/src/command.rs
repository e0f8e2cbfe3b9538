//! `weir lab`: weir in network namespaces, with real programs around it.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{bond, dns};

/// The available labs.
#[derive(Subcommand)]
pub enum Lab {
    /// Balance real DNS queries over three name servers, and send the same load once without weir.
    Dns(dns::Options),
    /// Bond weir to an Open vSwitch; links fail and recover, members come and go, both ends restart.
    Bond(bond::Options),
    /// One end of a stream in a lab.
    #[command(hide = true, subcommand)]
    Stream(bond::stream::End),
}

/// Runs a lab.
///
/// # Errors
/// A program that the lab needs is missing, or the lab could not be set up.
pub fn perform(lab: &Lab) -> anyhow::Result<ExitCode> {
    match lab {
        Lab::Dns(options) => dns::run(options),
        Lab::Bond(options) => bond::run(options),
        Lab::Stream(end) => bond::stream::run_end(end).map(|()| ExitCode::SUCCESS),
    }
}
