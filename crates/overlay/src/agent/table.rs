//! The table of flows as read by `weir show flows`, independently of the thread that maintains it.

use super::giver::key;
use crate::bpf::{OverlayFlow, OverlayFlows};
use crate::flows_of;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use weir_app::agent::FlowTable;
use weir_app::clock::Clock;
use weir_app::names::AddressNames;

/// Sets read in one step when flows are counted.
const SETS: u32 = 1024;

/// Returns false for a direction that has counted nothing and whose frames are found under another key.
fn shows(flow: &OverlayFlow, at: usize) -> bool {
    flow.packets[at] > 0 || (flow.is_usable[at] && flow.learnt_ns[at] > 0)
}

/// Reads the flows of an overlay, while its programs are attached.
pub struct Table {
    /// The name that is shown in place of a pipe's name.
    name: String,
    clock: Clock,
    flows: Mutex<Option<Arc<OverlayFlows>>>,
    /// How often all flows export their counts, in milliseconds; 0 means never.
    period_ms: AtomicU64,
}

impl Table {
    pub fn new(overlay: &str, clock: Clock) -> Table {
        Table { name: flows_of(overlay), clock, flows: Mutex::default(), period_ms: AtomicU64::new(0) }
    }

    /// Sets where the flows are now.
    pub fn set(&self, flows: Option<OverlayFlows>) {
        *self.flows.lock().unwrap_or_else(PoisonError::into_inner) = flows.map(Arc::new);
    }

    /// Returns how often all flows export their counts, in milliseconds; 0 means never.
    pub fn period_ms(&self) -> u64 {
        self.period_ms.load(Ordering::Relaxed)
    }

    fn flows(&self) -> Option<Arc<OverlayFlows>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the row of one direction; `None` if it has nothing to show.
    fn row(&self, flow: &OverlayFlow, at: usize, names: &AddressNames) -> Option<Value> {
        if !shows(flow, at) {
            return None;
        }
        let sent = flow.key.sent();
        let tuple = [sent, flow.translated[1].unwrap_or(sent.reversed())][at];
        let ms = |ns: u64| self.clock.at(ns) / 1_000_000;
        let decision = match (at, flow.peer) {
            (0, Some(_)) => "pod of this node".to_string(),
            (0, None) => format!("node {}", flow.node),
            _ => "pod".to_string(),
        };
        let key = key(&tuple);
        let mut row = json!({
            "pipe": self.name, "flow": key.to_string(), "decision": decision,
            "packets": flow.packets[at], "bytes": flow.bytes[at], "first_ms": ms(flow.born_ns),
            "last_ms": ms(flow.used_ns), "state": null, "nat": null,
        });
        for (field, name) in ["source_name", "destination_name"].into_iter().zip(names.of_flow(&key)) {
            if let Some(name) = name {
                row[field] = json!(name.answer());
            }
        }
        Some(row)
    }
}

impl FlowTable for Table {
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns a row for each direction of each flow.
    fn page(&self, from: u32, sets: u32, names: &AddressNames) -> (Vec<Value>, Option<u32>) {
        let Some(flows) = self.flows() else { return (Vec::new(), None) };
        let (some, next) = flows.page(from, sets);
        (some.iter().flat_map(|flow| [0, 1].map(|at| self.row(flow, at, names))).flatten().collect(), next)
    }

    fn count(&self) -> usize {
        let Some(flows) = self.flows() else { return 0 };
        let (mut count, mut next) = (0, Some(0));
        while let Some(from) = next {
            let (some, then) = flows.page(from, SETS);
            count +=
                some.iter().flat_map(|flow| [0, 1].map(|at| shows(flow, at))).filter(|shows| *shows).count();
            next = then;
        }
        count
    }

    fn export_every(&self, period_ms: u64) {
        self.period_ms.store(period_ms, Ordering::Relaxed);
    }
}
