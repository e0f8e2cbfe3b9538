//! `weir lab`: weir in network namespaces, with real programs around it.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::{bond, dns};

/// The available labs.
#[derive(Subcommand)]
pub enum Lab {
    /// Balance real DNS queries over three name servers, and send the same load once without weir.
    Dns(Dns),
    /// Bond weir to an Open vSwitch; links fail and recover, members come and go, both ends restart.
    Bond(Bond),
    /// One end of a stream in a lab.
    #[command(hide = true, subcommand)]
    Stream(bond::stream::End),
}

/// The options of `weir lab dns`.
#[derive(Args)]
pub struct Dns {
    /// Duration of each of the two loads (direct, and through weir).
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Queries per second.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    rate: u32,
    /// Number of weir's workers, each with its own queue.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: u32,
    /// Reloads during the load, alternating between two configurations that differ in pipes, entries and back
    /// ends.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    reloads: u32,
    /// Print a JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Leave the namespaces and their processes for inspection; the next lab removes them.
    #[arg(long)]
    keep: bool,
}

/// The options of `weir lab bond`.
#[derive(Args)]
pub struct Bond {
    /// Duration of each quiet phase: steady traffic and TCP, over two links and over four.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Packets per second of the stream.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(64..=100_000))]
    rate: u32,
    /// How often a link fails and recovers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    cuts: u32,
    /// Print a JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Leave the namespaces and their processes for inspection; the next lab removes them.
    #[arg(long)]
    keep: bool,
}

/// Runs a lab.
///
/// # Errors
/// A program that the lab needs is missing, or the lab could not be set up.
pub fn perform(lab: &Lab) -> anyhow::Result<ExitCode> {
    match lab {
        Lab::Dns(Dns { seconds, rate, workers, reloads, json, keep }) => dns::run(&dns::Options {
            seconds: *seconds,
            rate: *rate,
            workers: *workers,
            reloads: *reloads,
            json: *json,
            keep: *keep,
        }),
        Lab::Bond(Bond { seconds, rate, cuts, json, keep }) => bond::run(&bond::Options {
            seconds: *seconds,
            rate: *rate,
            cuts: *cuts,
            json: *json,
            keep: *keep,
        }),
        Lab::Stream(end) => bond::stream::run_end(end).map(|()| ExitCode::SUCCESS),
    }
}
