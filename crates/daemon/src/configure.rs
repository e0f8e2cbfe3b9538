//! Changes of apps' own configurations at run time: each is a reload of the text that was read last, plus the
//! change requested from the app.

use super::Daemon;
use anyhow::{Result, anyhow};
use serde_json::Value;
use std::sync::Arc;
use tracing::info;
use weir_app::RequestId;

/// The maximum number of queued changes of apps' configurations.
const CONFIGURES_MAX: usize = 64;

impl Daemon {
    /// Requests a program with an app's configuration changed. The app is notified of the outcome.
    pub(super) fn ask_configure(
        &mut self,
        app: Option<String>,
        id: RequestId,
        orders: Arc<Value>,
    ) -> Result<(), String> {
        if self.reloads.configures.len() >= CONFIGURES_MAX {
            return Err("too many configuration changes are waiting: try again".to_string());
        }
        self.doorbell.ring();
        self.reloads.configures.push_back((app, id, orders));
        Ok(())
    }

    /// Requests a program with the services that a source wants. Returns the id with which to poll for the
    /// answer, which says what has changed.
    pub(super) fn reconcile(&mut self, orders: Arc<Value>) -> Result<RequestId> {
        let id = self.host.expect();
        self.ask_configure(None, id, orders).map_err(|why| {
            self.forget(id);
            anyhow!("{why}")
        })?;
        Ok(id)
    }

    /// Reports to the app or the client that requested a change of the configuration how the change ended.
    /// `summary` describes the reload, if there was one, and `changes` what has changed.
    pub(super) fn end_configure(&mut self, id: RequestId, ended: Result<(Option<String>, Value)>) {
        let Some((app, _, orders)) = self.reloads.configures.pop_front() else { return };
        // A large list takes a while to free.
        let _ = self.disposal.send(Box::new(orders));
        if let Ok((Some(summary), _)) = &ended {
            let app = app.as_deref().unwrap_or("the configuration");
            info!("{app} was changed at run time; {summary}");
        }
        let outcome = ended.map(|(_, changes)| changes).map_err(|error| format!("{error:#}"));
        match app {
            Some(app) => self.deliver_configured(&app, id, &outcome),
            None => self.host.answer(id, outcome),
        }
    }
}
