//! `weir ring --scheduler NAME FILE`: which back end owns which slot.
//!
//! The file is a list of back ends, or a configuration in which `--service` names a service or a group. A
//! list is read as one group, filled and checked by the engine's own code, so that the output is exactly the
//! ring that packets are assigned with.

use super::{BadInput, bad_input, socket};
use crate::config::{Nics, Plan, Report};
use crate::kinds::KINDS;
use crate::{config, import, output};
use anyhow::Result;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_app::edits;
use weir_app::rings::{self, Checksum, RingOwner};
use weir_config::fills::{self, FILLS, GLB_KEYS, KATRAN_KEYS};
use weir_config::raw::{self, Kind, Node};
use weir_config::section::{Section, list, name, text};
use weir_config::sets::{MAGLEV_SIZE, WEIGHT_MAX};
use weir_config::{Key, Shape};
use weir_control::Request;
use weir_control::answer::{Ring, Rings};
use weir_program::buckets::BucketTable;
use weir_program::check::{Severity, check};
use weir_program::director::glb_rows;
use weir_program::{Fill, Forward, Group, NewFlows, Program, Target};

/// Arguments of `weir ring`.
#[derive(clap::Args)]
pub struct RingArguments {
    /// How slots are filled: by weir's own method, or by another system's; in a configuration, the group
    /// determines it.
    #[arg(long, value_name = "NAME", value_parser = scheduler)]
    scheduler: Option<String>,
    /// A list of back ends `{ name, address, weight }`, or a configuration. With `--checksum` it may be
    /// omitted: then the running daemon is asked.
    #[arg(required_unless_present = "checksum")]
    file: Option<PathBuf>,
    /// Print the checksums of the rings of a configuration, or of a running daemon: nodes with equal ones
    /// choose the same back ends.
    #[arg(long, conflicts_with_all = ["scheduler", "size"])]
    checksum: bool,
    /// Path of the daemon's control socket, with `--checksum`.
    #[arg(long, requires = "checksum", conflicts_with = "file")]
    socket: Option<PathBuf>,
    /// The number of slots, a prime; only with maglev, where 65537 is the default.
    #[arg(long, value_name = "N")]
    size: Option<u32>,
    /// In a configuration, the service or group.
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Print a JSON object: `scheduler, size, slots[]`, and `second[]` with glb; with `--checksum`,
    /// `version, configured, effective, services[{name, configured, effective}]`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: import::NodeOption,
}

/// The values of `--scheduler`.
const RINGS: [&str; 4] = ["maglev", "katran", "katran_v2", "glb"];

/// Parses `--scheduler`: the other schedulers of services have no ring.
fn scheduler(text: &str) -> Result<String, String> {
    let no_ring = match text {
        _ if RINGS.contains(&text) => return Ok(text.to_string()),
        "round_robin" => no_ring(text, NewFlows::RoundRobin),
        "least_connections" => no_ring(text, NewFlows::LeastFlows),
        _ => None,
    };
    Err(no_ring.unwrap_or_else(|| format!("it is one of {}", RINGS.join(", "))))
}

/// Returns a message if new flows are not assigned by a ring.
fn no_ring(who: &str, new_flows: NewFlows) -> Option<String> {
    let how = match new_flows {
        NewFlows::Hash => return None,
        NewFlows::RoundRobin => "to the next back end in turn (round_robin)",
        NewFlows::LeastFlows => "to the back end with the fewest connections (least_connections)",
    };
    Some(format!(
        "{who} has no ring: each new flow goes {how}. `--scheduler maglev` prints the ring for packets \
         without a flow"
    ))
}

const FILE: &[Key] = weir_config::keys! {
    needed "back_ends": Shape::List(&Shape::Map(BACK_END)), "the list of back ends";
    "katran": Shape::Map(KATRAN_KEYS), "which fields of a flow Katran's hash covers, which is not asked here";
    "glb": Shape::Map(GLB_KEYS), "the forwarding table's `seed`";
};
const BACK_END: &[Key] = weir_config::keys! {
    "name": Shape::Name, "its name; by default its address";
    "address": Shape::Ip, "the address that identifies it in katran and glb";
    "weight": Shape::Number(0, WEIGHT_MAX), "its share of the slots; 0 gets none" or "1";
};

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be read, or if standard output cannot be written to.
pub fn run(arguments: &RingArguments) -> Result<ExitCode> {
    let Some(path) = &arguments.file else {
        let daemon = socket(arguments.socket.clone(), None);
        let Shown { rings } = weir_control::ask(&daemon, &Request::show("rings"))?;
        return print_checksums(rings, arguments);
    };
    if arguments.checksum {
        let loaded = import::load(path, &arguments.node, &import::ImportOptions::default())?;
        output::complain(&loaded.report);
        let Some(plan) = &loaded.plan else { return Ok(bad_input()) };
        return print_checksums(checksums(plan), arguments);
    }
    let source = match import::source(path, &arguments.node)? {
        Ok(source) => source,
        Err(report) => return Ok(refuse(&report)),
    };
    let mut report = source.report();
    let Some(document) = raw::document(&mut report) else { return Ok(refuse(&report)) };
    let (group, report) = if is_configuration(&document) {
        let loaded = config::read_edited(&source, &Nics::default(), &*edits::none(KINDS));
        let group = loaded.plan.as_ref().map(|plan| chosen(&plan.program, arguments));
        (group, loaded.report)
    } else {
        (Some(listed(&document, arguments, &mut report)), report)
    };
    match group {
        Some(Ok(group)) if report.errors() == 0 => print(&group, arguments.json),
        Some(Err(message)) if report.errors() == 0 => Err(BadInput(message).into()),
        _ => Ok(refuse(&report)),
    }
}

/// The daemon's answer.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Shown {
    rings: Rings,
}

/// Returns the checksums of a configuration.
pub(super) fn checksums(plan: &Plan) -> Rings {
    let rings = rings::Rings::of(&plan.program, &plan.apps);
    let sums = rings.configured(&plan.program, &plan.apps);
    let ring = |(owner, sum): (&RingOwner, &Checksum)| Ring {
        name: owner.service.name.clone(),
        configured: sum.to_string(),
        ..Ring::default()
    };
    Rings {
        version: rings::VERSION.to_string(),
        configured: rings.total(&sums).to_string(),
        services: rings.owners().iter().zip(&sums).map(ring).collect(),
        ..Rings::default()
    }
}

/// Prints the checksums of all rings, or of the requested one.
fn print_checksums(all: Rings, arguments: &RingArguments) -> Result<ExitCode> {
    let wanted = |ring: &&Ring| arguments.service.as_ref().is_none_or(|name| ring.name == *name);
    let services: Vec<&Ring> = all.services.iter().filter(wanted).collect();
    if let Some(name) = arguments.service.as_ref().filter(|_| services.is_empty()) {
        let names: Vec<&str> = all.services.iter().map(|ring| ring.name.as_str()).collect();
        let known = if names.is_empty() { "there are none".to_string() } else { names.join(", ") };
        return Err(BadInput(format!("there is no ring of `{name}` ({known})")).into());
    }
    if arguments.json {
        let row = |ring: &&Ring| {
            let mut row = json!({ "name": ring.name, "configured": ring.configured });
            ring.effective.iter().for_each(|effective| row["effective"] = json!(effective));
            row
        };
        let mut answer = json!({ "version": all.version, "configured": all.configured });
        all.effective.iter().for_each(|effective| answer["effective"] = json!(effective));
        answer["services"] = services.iter().map(row).collect();
        output::line(answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |configured: &str, effective: &Option<String>, name: &str| {
        let effective = effective.as_ref().map_or_else(String::new, |effective| format!("{effective:<12}  "));
        output::line(format!("{configured:<12}  {effective}{name}"))
    };
    row("configured", &all.effective.as_ref().map(|_| "effective".to_string()), &all.version)?;
    if arguments.service.is_none() {
        row(&all.configured, &all.effective, "all")?;
    }
    services.iter().try_for_each(|ring| row(&ring.configured, &ring.effective, &ring.name))?;
    Ok(ExitCode::SUCCESS)
}

fn refuse(report: &Report) -> ExitCode {
    output::complain(report);
    bad_input()
}

/// Unlike a configuration, a list of back ends has no ports.
fn is_configuration(document: &Node) -> bool {
    matches!(&document.kind, Kind::Map(map) if map.iter().any(|(key, _)| key.is("ports")))
}

/// Returns the selected group of a configuration.
fn chosen(program: &Program, arguments: &RingArguments) -> Result<Group, String> {
    let names: Vec<&str> = program.groups.iter().map(|group| group.name.as_str()).collect();
    let known = if names.is_empty() { "it has none".to_string() } else { names.join(", ") };
    let Some(wanted) = &arguments.service else {
        return Err(format!("this is a configuration: choose a service or group with --service ({known})"));
    };
    let of_app = format!("lb/{wanted}");
    let named = |one: &&Group| one.name == *wanted || one.name == of_app;
    let found = program.groups.iter().find(named);
    let mut group =
        found.cloned().ok_or_else(|| format!("there is no service or group called `{wanted}` ({known})"))?;
    if let Some(scheduler) = &arguments.scheduler {
        let fill = fill(scheduler);
        if std::mem::discriminant(&group.fill) != std::mem::discriminant(&fill) {
            let is = fills::word(group.fill);
            return Err(format!("group `{}` is filled by {is}, not {scheduler}", group.name));
        }
    }
    let asked = arguments.scheduler.is_some();
    if let Some(message) = no_ring(&format!("group `{}`", group.name), group.new_flows).filter(|_| !asked) {
        return Err(message);
    }
    if group.fill == Fill::Given {
        return Err(format!(
            "the buckets of group `{}` are assigned at run time: see `weir show`",
            group.name
        ));
    }
    group.size = arguments.size.unwrap_or(group.size);
    Ok(group)
}

fn fill(scheduler: &str) -> Fill {
    FILLS.iter().find(|(word, _)| *word == scheduler).map_or(Fill::Maglev, |(_, fill)| *fill)
}

/// Reads a list of back ends as a group.
fn listed(document: &Node, arguments: &RingArguments, report: &mut Report) -> Result<Group, String> {
    let Some(scheduler) = &arguments.scheduler else {
        return Err("say which ring with --scheduler: maglev, katran, katran_v2 or glb".to_string());
    };
    let mut fill = fill(scheduler);
    let back_ends = match &document.kind {
        Kind::Map(_) => {
            let section = Section::read(document, FILE, report);
            fill = fills::settings(fill, &section, false, report);
            section.needed("back_ends", report)
        }
        _ if matches!(fill, Fill::Glb(..)) => {
            let help = "write `glb: { seed: .. }`, and put the list under `back_ends:`";
            report.error_help(document.span, "glb needs the seed of its forwarding table", help);
            None
        }
        _ => Some(document),
    };
    let back_ends = back_ends.map(|node| list(node, "back ends", report)).unwrap_or_default();
    let targets: Vec<Target> = back_ends.iter().filter_map(|node| back_end(node, report)).collect();
    let size = fill.fixed_size().unwrap_or(MAGLEV_SIZE);
    let origin = report.origin(document.span);
    let group = Group::new("ring", fill, arguments.size.unwrap_or(size)).targets(targets).origin(origin);
    if report.errors() == 0 {
        findings(&group, report);
    }
    Ok(group)
}

fn back_end(node: &Node, report: &mut Report) -> Option<Target> {
    let section = Section::read(node, BACK_END, report);
    let called = match (section.get("name"), section.get("address")) {
        (Some(node), _) => name(text(node, "a name", report)?, node.span, report)?,
        (None, Some(node)) => text(node, "an IP address", report)?,
        (None, None) => {
            report.error(node.span, "a back end needs a name, or an address");
            return None;
        }
    };
    let address = section.get("address").and_then(|node| fills::address(node, report));
    let weight = section.number("weight", report).unwrap_or(1) as u32;
    let target = Target::new(called, Forward::Drop).weight(weight).inactive(weight == 0);
    let target = target.origin(report.origin(node.span));
    Some(address.map_or(target.clone(), |address| target.address(address)))
}

/// Reports what the engine would refuse in the group.
fn findings(group: &Group, report: &mut Report) {
    let program = Program { groups: vec![group.clone()], ..Program::default() };
    for finding in check(&program).iter().filter(|finding| finding.severity == Severity::Error) {
        report.error(report.span_of(finding.origin), finding.kind.to_string());
    }
    if group.targets.iter().all(|target| target.weight == 0) && report.errors() == 0 {
        report.error(report.span_of(group.origin), "no back end has a weight above 0");
    }
}

fn print(group: &Group, as_json: bool) -> Result<ExitCode> {
    let name = |target: u16| group.targets.get(usize::from(target)).map(|target| target.name.as_str());
    let (first, second): (Vec<u16>, Option<Vec<u16>>) = match group.fill {
        Fill::Glb(..) => {
            let (first, second) = glb_rows(group).iter().map(|row| (row.first, row.second)).unzip();
            (first, Some(second))
        }
        _ => (BucketTable::fill(group, None).buckets().slots().to_vec(), None),
    };
    let names = |slots: &[u16]| slots.iter().map(|&slot| name(slot)).collect::<Vec<_>>();
    if as_json {
        let mut ring =
            json!({ "scheduler": fills::word(group.fill), "size": first.len(), "slots": names(&first) });
        if let Some(second) = &second {
            ring["second"] = json!(names(second));
        }
        output::line(ring)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = String::new();
    for (slot, target) in first.iter().enumerate() {
        let _ = write!(lines, "{slot} {}", name(*target).unwrap_or("-"));
        if let Some(second) = &second {
            let _ = write!(lines, " {}", name(second[slot]).unwrap_or("-"));
        }
        lines.push('\n');
    }
    output::print(lines)?;
    Ok(ExitCode::SUCCESS)
}
