//! `weir doctor`: whether this host and the fabric meet the needs of the configuration. It examines, asks the
//! daemon if one runs, and changes nothing.
//!
//! Each check is a line of a list: what was examined, its state, and one sentence with advice. New checks go
//! into the file of their subject: the host, tunnels, the fabric.

mod fabric;
mod features;
mod host;
mod pools;
mod tunnel;

use crate::config::Plan;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use weir_daemon::needed_settings;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, but something else would be better; or it could not be examined.
    Warning,
    /// The configuration cannot work.
    Fault,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Fault => "fault",
        })
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check: a stable word, for programs.
    pub check: &'static str,
    /// What was examined: an interface, a peer, a setting.
    pub of: String,
    /// Its state.
    pub level: Level,
    /// A sentence: its state, and what to do.
    pub says: String,
}

impl Finding {
    fn new(check: &'static str, of: impl Into<String>, level: Level, says: impl Into<String>) -> Finding {
        Finding { check, of: of.into(), level, says: says.into() }
    }

    /// Returns it as an object; its format is stable.
    pub fn json(&self) -> Value {
        json!({ "check": self.check, "of": self.of, "level": self.level.to_string(), "says": self.says })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8} {:<14} {}: {}", self.level, self.check, self.of, self.says)
    }
}

/// Kernel settings that overlays need.
fn overlay_settings(plan: &Plan) -> Vec<Finding> {
    let all = plan.apps.wanted::<weir_overlay::Wanted>();
    let of_each = all.iter().flat_map(|wanted| needed_settings(&wanted.overlay));
    let finding = |(name, is_so): (&str, anyhow::Result<()>)| match is_so {
        Ok(()) => Finding::new("sysctl", name, Level::Ok, "as the overlay needs it"),
        Err(why) => Finding::new("sysctl", name, Level::Fault, why.to_string()),
    };
    of_each.map(finding).collect()
}

/// Examines everything: the host, and with a configuration and its file what that needs. `socket`: where the
/// daemon listens.
pub fn examine(planned: Option<(&Plan, &Path)>, socket: &Path) -> Vec<Finding> {
    let plan = planned.map(|(plan, _)| plan);
    let fabrics: Vec<_> = plan
        .map(|plan| plan.apps.wanted::<weir_path::Wanted>())
        .unwrap_or_default()
        .into_iter()
        .map(|one| one.fabric)
        .collect();
    let mut found = host::findings(plan, socket);
    found.extend(plan.into_iter().flat_map(overlay_settings));
    found.extend(features::findings(plan));
    found.extend(planned.and_then(|(plan, file)| host::ways(plan, file)));
    found.extend(plan.into_iter().flat_map(pools::findings));
    found.extend(tunnel::findings(&fabrics));
    if plan.is_none_or(|_| !fabrics.is_empty()) {
        found.extend(fabric::findings(&fabrics, socket));
    }
    found
}
