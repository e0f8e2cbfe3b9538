//! The table of flows as `weir show flows` reads it, beside the thread that minds it.

use super::super::clock::Clock;
use super::giver::key;
use ::apps::overlay::flows_of;
use bpf::{OverlayFlow, OverlayFlows};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// What reads the flows of an overlay, while its programs are at work.
#[derive(Clone)]
pub struct Table {
    /// What stands for a pipe's name.
    name: String,
    clock: Clock,
    flows: Arc<Mutex<Option<Arc<OverlayFlows>>>>,
}

impl Table {
    pub fn new(overlay: &str, clock: Clock) -> Table {
        Table { name: flows_of(overlay), clock, flows: Arc::default() }
    }

    /// Notes where the flows are now.
    pub fn set(&self, flows: Option<OverlayFlows>) {
        *self.flows.lock().unwrap_or_else(PoisonError::into_inner) = flows.map(Arc::new);
    }

    /// Returns the flows, a row for each direction, as those of pipes are shown.
    pub fn rows(&self) -> Vec<Value> {
        let flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = flows.map(|flows| flows.read()).unwrap_or_default();
        all.iter().flat_map(|flow| [0, 1].map(|at| self.row(flow, at))).flatten().collect()
    }

    /// One direction; `None` if its frames are not found by this key and it has counted nothing.
    fn row(&self, flow: &OverlayFlow, at: usize) -> Option<Value> {
        if flow.packets[at] == 0 && !(flow.is_usable[at] && flow.learnt_ns[at] > 0) {
            return None;
        }
        let sent = flow.key.sent();
        let tuple = [sent, flow.translated[1].unwrap_or(sent.reversed())][at];
        let ms = |ns: u64| ns.saturating_sub(self.clock.origin_ns()) / 1_000_000;
        let decision = match (at, flow.peer) {
            (0, Some(_)) => "pod of this node".to_string(),
            (0, None) => format!("node {}", flow.node),
            _ => "pod".to_string(),
        };
        Some(json!({
            "pipe": self.name, "flow": key(&tuple).to_string(), "decision": decision,
            "packets": flow.packets[at], "bytes": flow.bytes[at], "first_ms": ms(flow.born_ns),
            "last_ms": ms(flow.used_ns), "state": null, "nat": null,
        }))
    }
}
