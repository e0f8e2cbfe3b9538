//! The running app: answers from what the thread has published.

use super::board::{FlowRow, FlowsPage, FlowsWanted, OverlayReport};
use super::explain::{Pair, explain};
use super::wanted::KEY;
use super::{KIND, Overlay};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_app::shown::{events, without_nulls};
use weir_app::task::{Board, Task};
use weir_app::{MetricHelp, Sample, SampleValue, request};

/// The two directions, as pods see them.
const DIRECTIONS: [&str; 2] = ["sent", "received"];

/// A request of an operator.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum OverlayRequest {
    Show {},
    Flows {
        /// Where the page begins.
        #[serde(default)]
        from: u32,
    },
    Explain {
        local: String,
        remote: String,
        protocol: String,
    },
}

/// What the counters mean.
const HELPS: &[MetricHelp] = &[
    ("overlay_learnt_sent", "Directions of flows learnt from sent frames"),
    ("overlay_learnt_received", "Directions of flows learnt from received frames"),
    ("overlay_not_established", "Frames from which nothing was learnt: not established"),
    ("overlay_outdated", "Frames from which nothing was learnt: something changed meanwhile"),
    ("overlay_unlearnable", "Frames from which nothing was learnt: they left in another form"),
    ("overlay_evicted", "Flows that made room for others"),
    ("overlay_forgotten", "Flows forgotten because their connection ended"),
    ("overlay_void_by_all", "Directions invalidated together with all others"),
    ("overlay_void_by_policy", "Directions invalidated by a change of policy"),
    ("overlay_void_by_node", "Directions invalidated by a change of the remote node"),
    ("overlay_void_by_pod", "Directions invalidated by a change of the pod"),
    ("overlay_nat_asked", "Frames changed by NAT, for which connection tracking was asked"),
    ("overlay_flooded", "Frames whose copies went to several nodes"),
    ("overlay_idle", "Flows that expired because they were idle"),
    ("overlay_given_sent", "Sent packets in flow records"),
    ("overlay_given_received", "Received packets in flow records"),
    ("overlay_lost_records", "Flow records for which there was no room"),
    ("overlay_lost_packets", "Packets of flow records for which there was no room"),
];

impl Task for Overlay {
    const KIND: &'static str = KEY;
    const HELPS: &'static [MetricHelp] = HELPS;
    type Report = OverlayReport;
    type Query = FlowsWanted;
    type Flows = FlowsPage;

    fn name(&self) -> &str {
        &self.name
    }

    fn show(&self, board: &Board<Overlay>) -> Value {
        let Overlay { name, tunnel, uplink, flows, .. } = self;
        let report = &board.report;
        let places = self.pods.as_ref().map(|start| format!("{start}*"));
        let places = self.bridge.clone().or(places);
        let of = |at: usize| counts(&report.frames[at]);
        without_nulls(json!({
            "name": name, "tunnel": tunnel, "uplink": uplink, "pods_at": places, "room": flows,
            "obstacle": board.obstacle, "refresh_ms": report.refresh_ns.map(|refresh| refresh / 1_000_000),
            "pods": report.pods,
            "nodes": report.nodes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "frames": { "sent": of(0), "received": of(1) },
            "hit_ratio": { "sent": report.hit_ratio(0), "received": report.hit_ratio(1) },
            "entries": counts(&report.entries),
            "causes": report.causes,
            "events": events(board.now_ns, &board.events),
        }))
    }

    fn query(request: &Value) -> Result<Option<FlowsWanted>, String> {
        Ok(match request::read(KIND.verbs, request)? {
            OverlayRequest::Show {} => None,
            OverlayRequest::Flows { from } => Some(FlowsWanted::From(from)),
            OverlayRequest::Explain { local, remote, protocol } => {
                Some(FlowsWanted::One(Pair::read([&local, &remote], &protocol)?))
            }
        })
    }

    fn answer(&self, query: &FlowsWanted, page: FlowsPage, obstacle: Option<&str>) -> Result<Value, String> {
        Ok(match query {
            FlowsWanted::From(_) => {
                let rows: Vec<Value> = page.rows.iter().map(flow).map(without_nulls).collect();
                without_nulls(
                    json!({ "name": self.name, "count": rows.len(), "flows": rows, "next": page.next }),
                )
            }
            FlowsWanted::One(pair) => explain(pair, &page.rows, page.refresh_ns, obstacle),
        })
    }

    fn counts(report: &OverlayReport) -> Vec<(&'static str, u64)> {
        report.entries.clone()
    }

    /// The series of both directions and of causes.
    fn samples(report: &OverlayReport) -> Vec<Sample> {
        let one = |name, help, labels, count| Sample { name, help, labels, value: SampleValue::Count(count) };
        let mut all = Vec::new();
        for (direction, frames) in DIRECTIONS.iter().zip(&report.frames) {
            // The sum of the others.
            for (fate, count) in frames.iter().filter(|(fate, _)| *fate != "seen") {
                let labels = vec![("direction", direction.to_string()), ("fate", fate.to_string())];
                all.push(one("overlay_frames", "Frames of pods, by outcome", labels, *count));
            }
        }
        for (cause, count) in &report.causes {
            let labels = vec![("cause", cause.to_string())];
            all.push(one("overlay_changes", "Changes that invalidated entries", labels, *count));
        }
        all
    }

    fn summary(report: &OverlayReport) -> Value {
        json!({ "pods": report.pods.len(), "nodes": report.nodes.len() })
    }
}

fn counts(all: &[(&'static str, u64)]) -> Value {
    Value::Object(all.iter().map(|&(name, count)| (name.to_string(), json!(count))).collect::<Map<_, _>>())
}

fn flow(row: &FlowRow) -> Value {
    let [local, remote] = row.addresses.map(|address| address.to_string());
    json!({
        "local": local, "remote": remote, "local_port": row.ports[0], "remote_port": row.ports[1],
        "protocol": row.protocol, "node": row.node.to_string(), "pod": row.pod, "peer": row.peer,
        "knows_sent": row.known[0], "knows_received": row.known[1],
        "packets": { "sent": row.packets[0], "received": row.packets[1] },
        "bytes": { "sent": row.bytes[0], "received": row.bytes[1] },
        "idle_ms": row.idle_ns / 1_000_000,
    })
}
