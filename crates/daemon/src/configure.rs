//! Changes of apps' own configurations at run time: each is a reload of the text that was read last, plus the
//! change requested from the app.

use super::Daemon;
use anyhow::Result;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tracing::info;
use weir_app::RequestId;
use weir_program::Program;

/// The maximum number of queued changes of apps' configurations.
const CONFIGURES_MAX: usize = 64;

impl Daemon {
    /// Requests a program with an app's configuration changed. The app is notified of the outcome.
    pub(super) fn ask_configure(&mut self, app: &str, id: RequestId, orders: Value) -> Result<(), String> {
        if self.reloads.configures.len() >= CONFIGURES_MAX {
            return Err("too many changes of the configuration wait: try again".to_string());
        }
        self.doorbell.ring();
        self.reloads.configures.push_back((app.to_string(), id, orders));
        Ok(())
    }

    /// Tells the app that requested it how a change of its configuration ended.
    pub(super) fn end_configure(&mut self, id: RequestId, summary: Result<String>) {
        let Some((app, ..)) = self.reloads.configures.pop_front() else { return };
        if let Ok(summary) = &summary {
            info!("{app} was changed at run time; {summary}");
        }
        self.deliver_configured(&app, id, &summary.map(drop).map_err(|error| format!("{error:#}")));
    }
}

/// Starts with the weights that apps want: a back end that is down gets nothing from the new program either.
/// The apps recompute them when they start.
pub fn weigh(weights: &[(String, String, u32)], program: &mut Program) {
    let mut wanted: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
    for (group, target, weight) in weights {
        wanted.entry(group).or_default().insert(target, *weight);
    }
    for group in &mut program.groups {
        let Some(weights) = wanted.get(group.name.as_str()) else { continue };
        for target in Arc::make_mut(&mut group.targets) {
            if let Some(weight) = weights.get(target.name.as_str()) {
                target.weight = *weight;
            }
        }
    }
}
