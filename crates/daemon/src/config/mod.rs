//! The configuration: one YAML file, read in two steps. The first step reads exactly what was typed; the
//! second (`plan`) resolves names, and checks ranges and the program. Both report every error at once, with
//! its place in the file.
//!
//! The caller gives the kinds of apps that a configuration may have; `docs/reference/configuration.md`
//! describes every key.

mod control;
mod frames;
mod kernel;
mod names;
mod plan;
mod routes;

pub use control::ControlOver;
pub use kernel::{coverage_with, kernel_use, port_obstacle};
pub use plan::{Plan, SOCKET, Workers};
pub use routes::{Needs, RoutesConfig};
pub use weir_config::attachment::Attachments;
pub use weir_config::entry::{write as write_entry, write_key};
pub use weir_config::forward::write as write_forward;
pub use weir_config::nic::{Nic, Nics};
pub use weir_config::node::{ConfigSource, NodeFile};
pub use weir_config::ports::{Fault, LeaveRule, PortConfig, PortKind, Take, Xdp, XdpMode};
pub use weir_config::value::{duration, masked, write as write_value, write_mac, write_masked};
pub use weir_config::{Diagnostic, Report, RunTime, Span, entry, entry_key};

use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use weir_app::edits::{Amended, Edits, Requested, RunningConfig};
use weir_app::kind::{self, Kind};
use weir_app::moves::{Moves, compare};
use weir_app::neighbour::{Hop, Mac};
use weir_config::raw::{self, Node};

/// Rereads the configuration for a reload, on a separate thread.
pub type Load = Arc<dyn Fn(&dyn Edits, &Nics) -> anyhow::Result<Plan> + Send + Sync>;

/// The result of reading a configuration.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration; `None` if it has errors.
    pub plan: Option<Plan>,
    /// Errors and warnings.
    pub report: Report,
    /// Why changes made at run time are discarded.
    pub forgotten: Vec<String>,
}

/// Reads a configuration with apps of these kinds, given information about interfaces, and with changes made
/// at run time.
#[must_use]
pub fn read(source: &ConfigSource, kinds: &'static [Kind], nics: &Nics, edits: &dyn Edits) -> Loaded {
    let mut report = source.report();
    let Some(document) = raw::document(&mut report) else {
        return Loaded { plan: None, report, forgotten: Vec::new() };
    };
    read_document(source, (document, report), kinds, nics, edits)
}

/// Reads a parsed configuration.
fn read_document(
    source: &ConfigSource,
    (mut document, mut report): (Node, Report),
    kinds: &'static [Kind],
    nics: &Nics,
    edits: &dyn Edits,
) -> Loaded {
    let (edits, forgotten) = edits.apply(&mut document, &mut report);
    let plan = plan::plan(&document, kinds, nics, &mut report);
    let source = source.clone();
    Loaded { plan: plan.map(|plan| Plan { source, edits, ..plan }), report, forgotten }
}

/// A plan with requests applied, and what they change.
pub struct Edited {
    /// The plan; `None` if nothing changes.
    pub plan: Option<Plan>,
    /// What changes, an object or null.
    pub summary: Value,
}

/// Reads the text of a plan again, with requests of an app ([`weir_app::Action::Configure`]) applied.
///
/// # Errors
/// The error says which of the requests is wrong, and how.
pub fn edit(old: &Plan, nics: &Nics, orders: &Value) -> Result<Edited, String> {
    let mut report = old.source.report();
    let document = raw::document(&mut report).ok_or_else(|| report.to_string())?;
    let requests = orders.as_array().map(Vec::as_slice).unwrap_or_default();
    let Requested { edits, changed, dry_run, summary } = old.edits.request(&document, &old.apps, requests)?;
    if !changed {
        old.apps.refuse(orders, &old.program)?;
        let is_missing = dry_run && summary.is_null();
        let summary = if is_missing { old.apps.differences(&old.apps) } else { summary };
        return Ok(Edited { plan: None, summary });
    }
    let read = read_document(&old.source, (document, report), old.apps.kinds(), nics, &*edits);
    let Loaded { plan, report, .. } = read;
    let mut plan = plan.ok_or_else(|| edits.explain(&report, requests))?;
    plan.socket.clone_from(&old.socket);
    plan.apps.refuse(orders, &plan.program)?;
    if dry_run {
        return Ok(Edited { plan: None, summary: foreseen(old, &plan, nics, summary) });
    }
    Ok(Edited { plan: Some(plan), summary })
}

/// Returns how to carry out requests of an app in the running plan, if that is possible
/// ([`weir_app::edits::Amended`]). `neighbours` looks up which neighbours the host knows.
#[must_use]
pub fn amend(
    old: &Plan,
    neighbours: &dyn Fn(Vec<Hop>) -> HashMap<Hop, Mac>,
    orders: &Value,
) -> Option<Amended> {
    let running = RunningConfig {
        program: &old.program,
        apps: &old.apps,
        attachments: &old.attachments,
        ports: &old.ports,
        control: &old.socket,
        neighbours,
    };
    old.edits.amend(&running, orders.as_array()?)
}

/// Returns the share of each group's flows that a plan would send elsewhere if it replaced the running one.
#[must_use]
pub fn moves(old: &Plan, new: &Plan, nics: &Nics) -> Vec<Moves> {
    // The plan that runs has no entries.
    let whole = read(&old.source, old.apps.kinds(), nics, &*old.edits).plan;
    let program = whole.as_ref().map_or(&old.program, |whole| &whole.program);
    let sides = [(program, &old.apps), (&new.program, &new.apps)];
    let [before, after] = sides.map(|(program, apps)| (program, apps.bit_assignments()));
    compare((before.0, &before.1), (after.0, &after.1))
}

/// Adds to a summary the share of each group's flows that a plan would send elsewhere.
fn foreseen(old: &Plan, new: &Plan, nics: &Nics, summary: Value) -> Value {
    let mut summary = if summary.is_null() { new.apps.differences(&old.apps) } else { summary };
    let moves = moves(old, new, nics);
    let moves = moves.iter().filter(|one| one.moved > 0.0 || one.flows_end).map(Moves::json);
    if summary.is_object() {
        summary["groups"] = moves.collect();
    }
    summary
}

/// The JSON Schema (draft 2020-12) of a configuration with apps of these kinds.
#[must_use]
pub fn schema(kinds: &[Kind]) -> Value {
    weir_config::schema::document(plan::KEYS, |schema| {
        schema.define("app", |schema| kind::schema(kinds, schema));
    })
}
