//! `weir compile --to openflow FILE`: writes a program for another switch.

use super::bad_input;
use crate::config::{Loaded, Plan, PortConfig, PortKind, Report, Span, Take};
use crate::{import, output};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use weir_openflow::{Compiled, Options, Part, RefusedPart};
use weir_program::Program;

/// Arguments of `weir compile`.
#[derive(clap::Args)]
pub struct CompileArguments {
    /// The configuration file.
    file: PathBuf,
    /// What to compile it to: `openflow` is a file of flows and groups of Open vSwitch, for
    /// `ovs-ofctl -O OpenFlow15 bundle BRIDGE FLOWS`. It replaces all flows and groups of the bridge.
    #[arg(long)]
    to: CompileTarget,
    /// What `forward: kernel` becomes at a switch: `normal` is Open vSwitch's own switching, which is not the
    /// same. Without this option, such entries are refused.
    #[arg(long, value_name = "ACTION")]
    kernel_as: Option<KernelAction>,
    #[command(flatten)]
    node: import::NodeOption,
}

/// What a program can be compiled to.
#[derive(Clone, Copy, clap::ValueEnum)]
enum CompileTarget {
    Openflow,
}

/// What `forward: kernel` becomes at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KernelAction {
    Normal,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be read, or if standard output cannot be written to.
pub fn run(arguments: &CompileArguments) -> Result<ExitCode> {
    let CompileTarget::Openflow = arguments.to;
    let loaded = import::load(&arguments.file, &arguments.node, &import::ImportOptions::default())?;
    let Loaded { plan, mut report, .. } = loaded;
    let Some(plan) = plan.filter(|_| report.errors() == 0) else {
        output::complain(&report);
        return Ok(bad_input());
    };
    let export = Export::of(&plan, arguments.kernel_as);
    for (span, message) in export.reasons(&plan, &report) {
        report.error(span, message);
    }
    output::complain(&report);
    if report.errors() > 0 {
        return Ok(bad_input());
    }
    output::line(format!("# {}, by weir {}.", arguments.file.display(), env!("CARGO_PKG_VERSION")))?;
    output::line("# Before, once: ovs-vsctl set Open_vSwitch . other_config:vlan-limit=2")?;
    output::line("# Then: ovs-ofctl -O OpenFlow15 bundle BRIDGE THIS_FILE")?;
    output::print(export.compiled.text())?;
    Ok(ExitCode::SUCCESS)
}

/// A configuration as flows of Open vSwitch, and what of it cannot be.
pub struct Export {
    compiled: Compiled,
    /// Ports whose frames do not all come to the program, and why.
    ports: Vec<(usize, &'static str)>,
}

impl Export {
    /// Compiles a configuration. A port is the switch's port with the name of its interface, or its own.
    pub fn of(plan: &Plan, kernel_as: Option<KernelAction>) -> Export {
        let names: Vec<String> = plan.ports.iter().map(name_at_switch).collect();
        let kernel_is_normal = kernel_as == Some(KernelAction::Normal);
        let options = Options { ports: &names, kernel_is_normal };
        let compiled = weir_openflow::compile(&plan.program, &options);
        let ports = plan.ports.iter().enumerate().filter_map(|(at, port)| Some((at, why_not_port(port)?)));
        Export { compiled, ports: ports.collect() }
    }

    /// What cannot be expressed, with its place.
    fn reasons(&self, plan: &Plan, report: &Report) -> Vec<(Span, String)> {
        let port = |(at, why): &(usize, &str)| {
            let declared = &plan.program.ports[*at];
            (report.span_of(declared.origin), format!("port `{}`: {why}", declared.name))
        };
        let refusal = |refusal: &RefusedPart| {
            let part = part(&plan.program, refusal.part);
            (report.span_of(refusal.origin), format!("{part} has no equivalent in OpenFlow: {}", refusal.why))
        };
        self.ports.iter().map(port).chain(self.compiled.refusals.iter().map(refusal)).collect()
    }

    /// Returns it as text for `weir check --openflow`: a line for each pipe, and one for each reason.
    pub fn text(&self, plan: &Plan, report: &Report) -> String {
        let mut text = String::new();
        for table in &self.compiled.tables {
            let pipe = &plan.program.pipes[table.pipe.index()];
            let (name, kind, flows) = (&pipe.name, pipe.kind.word(), table.flows);
            let flows = if flows == 1 { "1 flow".into() } else { format!("{flows} flows") };
            text += &format!("openflow: pipe {name} ({kind}): table {}, {flows}\n", table.table);
        }
        for (at, why) in &self.ports {
            let declared = &plan.program.ports[*at];
            text += &format!("openflow: {}: port {}: {why}\n", report.place(declared.origin), declared.name);
        }
        for refusal in &self.compiled.refusals {
            let place = match report.place(refusal.origin) {
                place if place.is_empty() => place,
                place => format!("{place}: "),
            };
            let part = part(&plan.program, refusal.part);
            text += &format!("openflow: {place}{part}: {}\n", refusal.why);
        }
        text + match self.compiles() {
            true => "openflow: compiles\n",
            false => "openflow: does not compile\n",
        }
    }

    fn compiles(&self) -> bool {
        self.compiled.refusals.is_empty() && self.ports.is_empty()
    }

    /// Returns it as JSON.
    pub fn json(&self, plan: &Plan, report: &Report) -> Value {
        let tables = self.compiled.tables.iter().map(|table| {
            let pipe = &plan.program.pipes[table.pipe.index()];
            json!({ "pipe": pipe.name, "table": table.table, "flows": table.flows })
        });
        let port = |(at, why): &(usize, &str)| {
            let declared = &plan.program.ports[*at];
            let (part, place) = (format!("port {}", declared.name), report.place(declared.origin));
            json!({ "part": part, "place": place, "why": why })
        };
        let refusals = self.compiled.refusals.iter().map(|refusal| {
            json!({ "part": part(&plan.program, refusal.part), "place": report.place(refusal.origin),
                "why": refusal.why.to_string() })
        });
        let refused: Vec<Value> = self.ports.iter().map(port).chain(refusals).collect();
        json!({ "compiles": self.compiles(), "groups": self.compiled.groups.len(),
            "tables": tables.collect::<Vec<_>>(), "refused": refused })
    }
}

/// The name of a port at the switch.
fn name_at_switch(port: &PortConfig) -> String {
    match &port.kind {
        PortKind::Xdp(xdp) => xdp.interface.clone(),
        _ => port.name.clone(),
    }
}

/// Why a port of a bridge is not the same as this one.
fn why_not_port(port: &PortConfig) -> Option<&'static str> {
    match &port.kind {
        PortKind::Xdp(xdp) if xdp.take != Take::All || !xdp.leave.is_empty() => Some(
            "some of its frames stay with the kernel, and a bridge takes them all; say `take: all` without \
             `leave`",
        ),
        _ => None,
    }
}

/// A part of a program in words.
fn part(program: &Program, part: Part) -> String {
    let name = |pipe: weir_program::PipeId| &program.pipes[pipe.index()].name;
    match part {
        Part::Program => "the program".into(),
        Part::Pipe(pipe) => format!("pipe {}", name(pipe)),
        Part::Entry(pipe, at) => format!("pipe {}, entry {}", name(pipe), at + 1),
        Part::Miss(pipe) => format!("the miss of pipe {}", name(pipe)),
    }
}
