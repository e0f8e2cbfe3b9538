//! `weir lab`: weir in network namespaces, with real programs around it.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::lab::dns;

/// The labs there are.
#[derive(Subcommand)]
pub enum Lab {
    /// Balance real DNS queries over three name servers, and send the same load once without weir.
    Dns(Dns),
}

/// The options of `weir lab dns`.
#[derive(Args)]
pub struct Dns {
    /// How long each of the two loads (direct, through weir) lasts.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Queries a second.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    rate: u32,
    /// weir's workers, each with a queue of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: u32,
    /// Reloads while the load runs, between two configurations that differ in pipes, entries and back ends.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    reloads: u32,
    /// End with one JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Leave the namespaces and all that runs in them, to look around; the next lab removes them.
    #[arg(long)]
    keep: bool,
}

/// Runs it.
pub fn run(lab: &Lab) -> anyhow::Result<ExitCode> {
    let Lab::Dns(Dns { seconds, rate, workers, reloads, json, keep }) = *lab;
    dns::run(&dns::Options { seconds, rate, workers, reloads, json, keep })
}
