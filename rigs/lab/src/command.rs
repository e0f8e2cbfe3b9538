//! `weir lab`: weir in network namespaces, with real programs around it.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{bond, dns, fleet, lb, overlay, path, stream};

/// The available labs.
#[derive(Subcommand)]
pub enum Lab {
    /// Balance real DNS queries over three name servers, and send the same load once without weir.
    Dns(dns::DnsOptions),
    /// Bond weir to an Open vSwitch; links fail and recover, members come and go, both ends restart.
    Bond(bond::BondOptions),
    /// Balance TCP connections and UDP flows while back ends come, go and die, and another weir takes over.
    Lb(lb::LbOptions),
    /// Spread connections over nodes behind a router, while nodes and back ends come, go and die.
    Fleet(fleet::FleetOptions),
    /// Put a cache in front of a container network of three nodes, while everything that it depends on
    /// changes.
    Overlay(overlay::OverlayOptions),
    /// Send flows through a tunnel over four links, one of them full, with several schemes.
    Path(path::PathOptions),
    /// One end of a stream in a lab.
    #[command(hide = true, subcommand)]
    Stream(stream::StreamEnd),
    /// One end of the messages in a lab.
    #[command(hide = true, subcommand)]
    Messages(path::messages::MessageEnd),
    /// One end of the requests and answers in a lab.
    #[command(hide = true, subcommand)]
    Talk(overlay::talk::TalkEnd),
    /// The clients of a load balancer in a lab.
    #[command(hide = true)]
    Questions(lb::questions::QuestionOptions),
    /// The clients of a fleet in a lab.
    #[command(hide = true)]
    FleetClients(fleet::clients::FleetClientOptions),
    /// A flow that fills a link.
    #[command(hide = true)]
    Elephant(path::elephant::ElephantOptions),
}

/// Runs a lab.
///
/// # Errors
/// A program that the lab needs is missing, or the lab could not be set up.
pub fn perform(lab: &Lab) -> anyhow::Result<ExitCode> {
    match lab {
        Lab::Dns(options) => dns::run(options),
        Lab::Bond(options) => bond::run(options),
        Lab::Lb(options) => lb::run(options),
        Lab::Questions(options) => lb::questions::run_end(options).map(|()| ExitCode::SUCCESS),
        Lab::Fleet(options) => fleet::run(options),
        Lab::FleetClients(options) => fleet::clients::run_end(options).map(|()| ExitCode::SUCCESS),
        Lab::Overlay(options) => overlay::run(options),
        Lab::Talk(end) => overlay::talk::run_end(end).map(|()| ExitCode::SUCCESS),
        Lab::Path(options) => path::run(options),
        Lab::Messages(end) => path::messages::run_end(end).map(|()| ExitCode::SUCCESS),
        Lab::Elephant(options) => path::elephant::run(options).map(|()| ExitCode::SUCCESS),
        Lab::Stream(end) => stream::run_end(end).map(|()| ExitCode::SUCCESS),
    }
}
