//! A change of the configuration that is made in the running program in place.

use super::{app_host, neighbours};
use crate::config::{self, Plan};
use serde_json::Value;
use std::sync::Arc;
use weir_app::edits::{Amended, AmendedGroup};
use weir_program::CounterId;

/// A plan that differs from the running one in targets of some groups, and these changes.
pub struct Amendment {
    pub plan: Plan,
    pub groups: Vec<AmendedGroup>,
    pub counters: Arc<[(CounterId, String)]>,
    /// Whether ports must now take a different set of frames from the kernel.
    pub takes: bool,
    pub summary: Value,
}

impl Amendment {
    /// Prepares the change that requests of an app ask for; `None` if it cannot be made in place.
    pub fn of(old: &Plan, orders: &Value) -> Option<Amendment> {
        let neighbours = |hops| neighbours::known(app_host::places(old), hops);
        let amended = config::amend(old, &neighbours, orders)?;
        let Amended { edits, summary, apps, groups, counters, takes } = amended;
        let mut plan = Plan { edits, apps, ..old.clone() };
        for (id, name) in &counters {
            plan.program.counters[id.index()].clone_from(name);
        }
        Some(Amendment { plan, groups, counters: counters.into(), takes, summary })
    }
}
