//! `weir check FILE`: reports everything that is wrong with a configuration, each error with its line and a
//! caret.

use super::bad_input;
use super::compile::{Export, KernelAction};
use super::test::{NO_SUCH_PACKET, every_packet_hits};
use crate::config::{Loaded, Plan, PortKind, Report, Span};
use crate::{import, output, ways};
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_config::node::{self, NodeValue};
use weir_cover::shadow::{WhyUnreachable, unreachable};
use weir_daemon::compiled::KernelCheck;
use weir_daemon::private;
use weir_program::{Origin, PipeId};

/// The maximum number of entries of a pipe that are searched for unreachable ones.
const SEARCHED_MAX: usize = 1000;

/// The maximum number of steps that are spent on one entry.
const STEPS: u32 = 2000;

/// Arguments of `weir check`.
#[derive(clap::Args)]
pub struct CheckArguments {
    /// The configuration file.
    pub(super) file: PathBuf,
    /// Print a JSON object: `ok, errors, warnings, diagnostics[]`, with `--kernel` also `kernel`, with
    /// `--openflow` also `openflow{compiles, groups, tables[{pipe, table, flows}], refused[{part, place,
    /// why}]}`, and `node{}` with the values of this node that the configuration refers to.
    #[arg(long)]
    pub(super) json: bool,
    /// Also print which parts of the program run in the kernel, in XDP, and why the others do not. If
    /// privileges suffice, the kernel loads the program, but no frame reaches it.
    #[arg(long)]
    pub(super) kernel: bool,
    /// Also print which parts of the program `weir compile --to openflow` cannot express, and why.
    #[arg(long)]
    pub(super) openflow: bool,
    /// What `forward: kernel` becomes with `--openflow`, as with `weir compile`.
    #[arg(long, value_name = "ACTION", requires = "openflow")]
    pub(super) kernel_as: Option<KernelAction>,
    /// Print the configuration with this node's values in place of `${NODE.name}`, and nothing else.
    #[arg(long, conflicts_with_all = ["json", "kernel", "openflow"])]
    pub(super) resolved: bool,
    /// The file with this node's values, to which `${NODE.name}` in the configuration refers; by default
    /// `node.yaml` in the folder of the configuration. If it is given several times, all of these nodes are
    /// checked, and whether they work together: their NAT pools and rings. With `--json`, `nodes[]` then has
    /// an object for each.
    #[arg(long = "node", value_name = "FILE")]
    pub(super) nodes: Vec<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be read, or if standard output cannot be written to.
pub fn run(arguments: &CheckArguments) -> Result<ExitCode> {
    if arguments.nodes.len() > 1 {
        return super::check_nodes::run(arguments);
    }
    let node = import::NodeOption::of(arguments.nodes.first().cloned());
    let mut loaded = import::load(&arguments.file, &node, &import::ImportOptions::default())?;
    examine(&mut loaded, &arguments.file, true);
    let report = &loaded.report;
    output::complain(report);
    let values: Vec<NodeValue> = report.node_values().cloned().collect();
    if arguments.resolved {
        output::print(node::resolved(&report.text(), &values))?;
        return Ok(if loaded.plan.is_some() { ExitCode::SUCCESS } else { bad_input() });
    }
    output::line(summary(&arguments.file.display().to_string(), &loaded))?;
    if let Some(first) = values.first() {
        let all: Vec<String> = values.iter().map(NodeValue::shown).collect();
        output::line(format!("node: {} ({})", all.join(", "), report.name_of(first.span.file)))?;
    }
    let plan = loaded.plan.as_ref().filter(|_| arguments.kernel);
    let kernel = plan.map(KernelCheck::of).transpose()?;
    if let Some(kernel) = &kernel {
        output::print(kernel.text())?;
    }
    let plan = loaded.plan.as_ref().filter(|_| arguments.openflow);
    let export = plan.map(|plan| (plan, Export::of(plan, arguments.kernel_as)));
    if let Some((plan, export)) = &export {
        output::print(export.text(plan, report))?;
    }
    if arguments.json {
        let (errors, warnings) = (report.errors(), report.warnings());
        let ok = errors == 0;
        let mut json = json!({ "ok": ok, "errors": errors, "warnings": warnings,
            "diagnostics": report.json() });
        if !values.is_empty() {
            let pair = |one: &NodeValue| (one.name.clone(), Value::from(one.value.clone()));
            json["node"] = values.iter().map(pair).collect::<Map<_, _>>().into();
        }
        if let Some(kernel) = kernel {
            json["kernel"] = kernel.json();
        }
        if let Some((plan, export)) = &export {
            json["openflow"] = export.json(plan, report);
        }
        output::line(json)?;
    }
    Ok(if loaded.plan.is_some() { ExitCode::SUCCESS } else { bad_input() })
}

/// Reports what reading a configuration does not find; the plan remains if none of this is an error.
/// `is_here` says that the configuration is that of this host.
pub(super) fn examine(loaded: &mut Loaded, file: &Path, is_here: bool) {
    if let Some(plan) = &loaded.plan {
        if is_here {
            absent_interfaces(plan, &mut loaded.report);
            private::problems(plan).into_iter().for_each(|why| loaded.report.error(Span::default(), why));
        }
        unreachable_ways(plan, file, &mut loaded.report);
        unreachable_entries(plan, &mut loaded.report);
    }
    loaded.plan = loaded.plan.take().filter(|_| loaded.report.errors() == 0);
}

/// Warns of interfaces that do not exist on this host now. They may exist later, or on another host, so this
/// is not an error until `weir run`.
fn absent_interfaces(plan: &Plan, report: &mut Report) {
    for (port, declared) in plan.ports.iter().zip(&plan.program.ports) {
        let PortKind::Xdp(xdp) = &port.kind else { continue };
        if port.nic.is_none() {
            let message = format!(
                "there is currently no interface `{}` on this host: `weir run` will need it",
                xdp.interface
            );
            report.warning(report.span_of(declared.origin), message);
        }
    }
}

/// Warns of entries that no packet can hit because none meets their conditions, or because several others
/// together take all of their packets. The check of the program itself has found the entries that are
/// shadowed by a single other entry. Pipes of apps are left out: users cannot change their entries.
fn unreachable_entries(plan: &Plan, report: &mut Report) {
    let found: BTreeSet<Span> = report.diagnostics().iter().map(|one| one.span).collect();
    for (id, pipe) in (0..).map(PipeId).zip(&plan.program.pipes) {
        if pipe.entries.len() > SEARCHED_MAX || pipe.name.contains('/') {
            continue;
        }
        let origins: Vec<Origin> = pipe.entries.iter().map(|entry| entry.origin).collect();
        for (at, why) in unreachable(&plan.program, id, STEPS) {
            let span = report.span_of(origins[at]);
            if found.contains(&span) {
                continue;
            }
            let why = match why {
                WhyUnreachable::Shadowed(by) => {
                    let name = |by: usize| format!("entry {} ({})", by + 1, report.place(origins[by]));
                    every_packet_hits(&by, name)
                }
                WhyUnreachable::NoSuchPacket => NO_SUCH_PACKET.into(),
                // Which packets arrive at a pipe is for `weir test`.
                WhyUnreachable::NotReached => continue,
            };
            report.warning(span, format!("no packet hits this entry: {why}"));
        }
    }
}

/// Reports what is missing for checks with `via: service`.
fn unreachable_ways(plan: &Plan, file: &Path, report: &mut Report) {
    match ways::missing(plan, file) {
        Some(missing) if missing.is_certain => report.error(Span::default(), missing.says),
        Some(missing) => report.warning(Span::default(), missing.says),
        None => {}
    }
}

pub(super) fn summary(file: &str, loaded: &Loaded) -> String {
    let report = &loaded.report;
    let Some(plan) = &loaded.plan else {
        return format!(
            "{file}: {}, {}",
            count(report.errors(), "error"),
            count(report.warnings(), "warning")
        );
    };
    let Plan { program, ports, .. } = plan;
    let entries: usize = program.pipes.iter().map(|pipe| pipe.entries.len()).sum();
    let warnings = match report.warnings() {
        0 => String::new(),
        some => format!(", {}", count(some, "warning")),
    };
    format!(
        "{file}: valid ({}, {}, {}, {}{warnings})",
        count(ports.len(), "port"),
        count(program.pipes.len(), "pipe"),
        if entries == 1 { "1 entry".to_string() } else { format!("{entries} entries") },
        count(program.groups.len(), "group"),
    )
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
