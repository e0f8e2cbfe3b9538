//! `weir ports`: the interfaces, what they support, and obstacles to using them.

use crate::output;
use anyhow::{Context, Result};
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `weir ports`.
#[derive(clap::Args)]
pub struct PortsArguments {
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// Fails if the kernel cannot be queried, or if standard output cannot be written to.
pub fn run(arguments: &PortsArguments) -> Result<ExitCode> {
    let all = weir_port::xdp::interfaces().context("cannot list the kernel's interfaces")?;
    if arguments.json {
        let one = |report: &weir_port::xdp::InterfaceReport| {
            json!({
                "name": report.name, "driver": report.driver, "rx_queues": report.rx_queues,
                "tx_queues": report.tx_queues, "mtu": report.mtu, "carrier": report.carrier,
                "modes": report.modes.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "rss": report.spread.word(), "numa_node": report.numa_node, "obstacles": report.obstacles,
            })
        };
        output::line(json!({ "ports": all.iter().map(one).collect::<Vec<_>>() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for report in &all {
        let modes: Vec<String> = report.modes.iter().map(ToString::to_string).collect();
        output::line(format_args!(
            "{:<16} {:<10} {}/{} queues, MTU {}, {}{}; XDP: {}",
            report.name,
            if report.driver.is_empty() { "-" } else { &report.driver },
            report.rx_queues,
            report.tx_queues,
            report.mtu,
            if report.carrier { "up" } else { "down" },
            report.numa_node.map(|node| format!(", NUMA node {node}")).unwrap_or_default(),
            if modes.is_empty() { "none".into() } else { modes.join(", ") },
        ))?;
        if let Some(spread) = report.spread.sentence(&report.name, report.rx_queues) {
            output::line(format_args!("    {spread}"))?;
        }
        for obstacle in &report.obstacles {
            output::line(format_args!("  ! {obstacle}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
