//! Changes of apps' own configurations at run time: each is a reload of the text that was read last, plus the
//! change requested from the app.

use super::Daemon;
use anyhow::Result;
use serde_json::Value;
use tracing::info;
use weir_app::RequestId;

/// The maximum number of queued changes of apps' configurations.
const CONFIGURES_MAX: usize = 64;

impl Daemon {
    /// Requests a program with an app's configuration changed. The app is notified of the outcome.
    pub(super) fn ask_configure(&mut self, app: &str, id: RequestId, orders: Value) -> Result<(), String> {
        if self.reloads.configures.len() >= CONFIGURES_MAX {
            return Err("too many configuration changes are waiting: try again".to_string());
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
