//! `weir doctor`: whether this host and the fabric meet the needs of the configuration. The command examines
//! the host, asks the daemon if one runs, and changes nothing.
//!
//! Each check is a line of a list: what was examined, its state, and one sentence with advice. Agents examine
//! what they need ([`Agent::findings`](weir_app::agent::Agent::findings)). Everything else is examined here,
//! in the file of its subject.

mod features;
mod host;
pub mod peers;
mod pools;
mod routes;

use crate::config::Plan;
use crate::kinds::KINDS;
use serde_json::json;
use std::path::Path;
use weir_app::doctor::{Examined, Has, hooks, ip};
pub use weir_app::doctor::{Finding, Level};
use weir_control::Request;

/// Examines everything: the host and, given a configuration with its file, what the configuration needs. The
/// daemon listens on `socket`.
pub fn examine(planned: Option<(&Plan, &Path)>, socket: &Path) -> Vec<Finding> {
    let plan = planned.map(|(plan, _)| plan);
    let mut found = host::findings(plan, socket);
    found.extend(features::findings(plan));
    found.extend(planned.and_then(|(plan, file)| host::ways(plan, file)));
    found.extend(plan.into_iter().flat_map(pools::findings));
    found.extend(plan.into_iter().flat_map(routes::findings));
    let ask = |app: &str, word: &str| weir_control::ask(socket, &Request::app(app, json!({ "do": word })));
    let examined = Examined { apps: plan.map(|plan| &plan.apps), ask: &ask };
    let agents = KINDS.iter().filter_map(|kind| kind.agent).map(|create| create());
    found.extend(agents.flat_map(|agent| agent.findings(&examined)));
    found
}
