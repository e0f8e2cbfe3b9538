//! `weir check FILE --node A --node B`: a configuration that several nodes share. The configuration is
//! checked for each node on its own, and then whether the nodes work together: answers must reach the node
//! that has the flow, and every node must choose the same back ends.

use super::check::{CheckArguments, examine, summary};
use super::ring::checksums;
use super::{BadInput, bad_input};
use crate::config::{Loaded, Span};
use crate::{import, output};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::process::ExitCode;
use weir_config::node::NodeValue;
use weir_program::{NatPool, NatPrefix};

/// A node: the file with the node's values, and the configuration with these values.
type CheckedNode = (String, Loaded);

/// Checks all nodes.
///
/// # Errors
/// Fails if a file cannot be read, if an option is about a single node, or if standard output cannot be
/// written to.
pub fn run(arguments: &CheckArguments) -> Result<ExitCode> {
    if arguments.resolved || arguments.kernel || arguments.openflow {
        let why = "`--resolved`, `--kernel` and `--openflow` are about one node: write `--node` once";
        return Err(BadInput(why.to_string()).into());
    }
    let mut nodes: Vec<CheckedNode> = Vec::new();
    for node in &arguments.nodes {
        let name = node.display().to_string();
        if nodes.iter().any(|(other, _)| *other == name) {
            return Err(BadInput(format!("`--node {name}` appears twice")).into());
        }
        let option = import::NodeOption::of(Some(node.clone()));
        let mut loaded = import::load(&arguments.file, &option, &import::ImportOptions::default())?;
        examine(&mut loaded, &arguments.file, false);
        nodes.push((name, loaded));
    }
    for second in 1..nodes.len() {
        let (before, after) = nodes.split_at_mut(second);
        before.iter().for_each(|first| compare(first, &mut after[0]));
    }
    let file = arguments.file.display().to_string();
    for (node, loaded) in &nodes {
        output::complain(&loaded.report);
        output::line(format!("{node}: {}", summary(&file, loaded)))?;
    }
    let errors: usize = nodes.iter().map(|(_, loaded)| loaded.report.errors()).sum();
    if arguments.json {
        let warnings: usize = nodes.iter().map(|(_, loaded)| loaded.report.warnings()).sum();
        let all: Vec<Value> = nodes.iter().map(row).collect();
        output::line(json!({ "ok": errors == 0, "errors": errors, "warnings": warnings, "nodes": all }))?;
    }
    Ok(if errors == 0 { ExitCode::SUCCESS } else { bad_input() })
}

fn row((node, loaded): &CheckedNode) -> Value {
    let pair = |one: &NodeValue| (one.name.clone(), Value::from(one.value.clone()));
    let values: Map<String, Value> = loaded.report.node_values().map(pair).collect();
    json!({ "file": node, "node": values, "diagnostics": loaded.report.json() })
}

/// Adds to the second node's report what does not work together with the first node.
fn compare((one, first): &CheckedNode, (other, second): &mut CheckedNode) {
    let (Some(first), Some(plan)) = (&first.plan, &second.plan) else { return };
    let report = &mut second.report;
    for pool in &plan.program.nat_pools {
        for theirs in &first.program.nat_pools {
            let Some(shared) = shared(pool, theirs) else { continue };
            let message = format!(
                "{shared} is in NAT pool `{}` of {one} and in `{}` of {other}, but answers reach only the \
                 node that the address is routed to",
                theirs.name, pool.name
            );
            let help = "give each node addresses of its own, as a value of the node";
            let span = report.span_of(pool.origin);
            report.error_help(span, message, help);
        }
    }
    let [sums, own] = [first, plan].map(checksums);
    if sums.configured == own.configured {
        return;
    }
    let differs = |name: &str| {
        let of = |rings: &weir_control::answer::Rings| {
            rings.services.iter().find(|ring| ring.name == name).map(|ring| ring.configured.clone())
        };
        of(&sums) != of(&own)
    };
    let names = sums.services.iter().chain(&own.services).map(|ring| ring.name.as_str());
    let mut names: Vec<&str> = names.filter(|name| differs(name)).collect();
    names.sort_unstable();
    names.dedup();
    let which = if names.is_empty() { "all services".to_string() } else { names.join(", ") };
    let message = format!(
        "{other} chooses other back ends than {one} ({which}): a connection breaks when routers send it to \
         the other node"
    );
    let help = "only addresses of the node, MAC addresses, ports and NAT pools may differ";
    report.error_help(Span::default(), message, help);
}

/// Returns the first addresses that two pools share, unless their ports are divided.
fn shared(one: &NatPool, other: &NatPool) -> Option<String> {
    if one.last < other.first || other.last < one.first {
        return None;
    }
    let overlaps =
        |prefix: &NatPrefix| other.prefixes.iter().find(|theirs| prefix.overlaps(**theirs)).copied();
    let (ours, theirs) = one.prefixes.iter().find_map(|prefix| Some((*prefix, overlaps(prefix)?)))?;
    let smaller = if ours.length >= theirs.length { ours } else { theirs };
    Some(smaller.to_string())
}
