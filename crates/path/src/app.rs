//! The running app: answers from what the thread has published.

use super::board::{FlowRow, FlowsPage, NodeReport, PathReport};
use super::{Fabric, TunnelPublisher};
use crate::paths::Fit;
use serde_json::{Value, json};
use std::any::Any;
use std::net::IpAddr;
use weir_app::shown::{ago_ms, page_from, without_nulls};
use weir_app::{Action, App, Event, RequestId, Sample, SampleValue};
use weir_program::Program;

/// How often the board is polled while a request waits for flows, in nanoseconds.
const LOOK_NS: u64 = 5_000_000;

/// How long a request waits for a page of them.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Tunnels that are watched.
#[derive(Clone, Debug)]
pub(super) struct PathApp {
    pub fabric: Fabric,
    pub board: TunnelPublisher,
    /// Requests that wait for flows, with their deadlines.
    pub waiting: Vec<(RequestId, u64)>,
    pub wake_ns: Option<u64>,
}

impl PathApp {
    fn show(&self) -> Value {
        let snapshot = self.board.look().clone();
        let Fabric { name, uplink, scheme, vxlan_port, .. } = &self.fabric;
        let mut json = json!({
            "name": name, "uplink": uplink, "scheme": scheme.name(), "vxlan_port": vxlan_port,
            "authenticated": self.fabric.secret.is_some(), "obstacle": snapshot.obstacle,
        });
        json["counts"] =
            Value::Object(snapshot.counts.iter().map(|&(name, n)| (name.to_string(), json!(n))).collect());
        json["nodes"] = snapshot.nodes.iter().map(node).collect();
        let now_ns = snapshot.now_ns;
        let event =
            |event: &super::TunnelEvent| json!({ "ago_ms": ago_ms(now_ns, event.at_ns), "what": event.what });
        json["events"] = snapshot.events.iter().map(event).collect();
        without_nulls(json)
    }

    /// Answers waiting requests whose flows have arrived or whose deadline has passed.
    fn answer_waiting(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let read = std::mem::take(&mut self.board.look().read);
        let name = &self.fabric.name;
        for (id, page) in read {
            // It may already have been answered with a timeout.
            let Some(at) = self.waiting.iter().position(|(waits, _)| *waits == id) else { continue };
            self.waiting.remove(at);
            let answer = page.map(|FlowsPage { rows, next }| listed(name, &rows, next));
            actions.push(Action::Answer { id, answer });
        }
        self.waiting.retain(|&(id, until)| {
            if until <= now_ns {
                let why = format!(
                    "the flows of `{name}` cannot be read right now: see `weir show path \
                    {name}`"
                );
                actions.push(Action::Answer { id, answer: Err(why) });
            }
            until > now_ns
        });
        self.wake_ns = (!self.waiting.is_empty()).then_some(now_ns + LOOK_NS);
    }
}

/// A request.
pub(super) enum PathRequest {
    Show,
    /// The page of flows that begins at this place.
    Flows(u32),
}

/// Reads a request.
pub(super) fn read_request(request: &Value) -> Result<PathRequest, String> {
    let words = request.as_str().map(str::trim);
    match (words, words.and_then(|words| page_from(words, "conntrack"))) {
        (Some("show"), _) => Ok(PathRequest::Show),
        (_, Some(from)) => from.map(PathRequest::Flows),
        _ => Err("a path app answers `show` and `conntrack`".to_string()),
    }
}

/// The answer to `conntrack`.
pub(super) fn listed(name: &str, flows: &[FlowRow], next: Option<u32>) -> Value {
    let rows: Vec<Value> = flows.iter().map(flow).collect();
    without_nulls(json!({ "name": name, "count": rows.len(), "flows": rows, "next": next }))
}

pub(super) fn node(node: &NodeReport) -> Value {
    let paths: Vec<Value> = node.paths.iter().enumerate().map(path).collect();
    json!({
        "address": node.address.to_string(), "state": node.state, "large_bytes": node.large_bytes,
        "paths": paths,
    })
}

fn path((number, path): (usize, &PathReport)) -> Value {
    let PathReport { port, spare, state, why, for_ns, queue_ns, round_trip_ns, lost, probes, .. } = path;
    // Like traceroute's notation for a router that does not answer.
    let hop = |hop: &Option<IpAddr>| hop.map_or_else(|| "*".to_string(), |hop| hop.to_string());
    let hops: Vec<String> = path.hops.iter().map(hop).collect();
    let loss = if *probes == 0 { 0.0 } else { f64::from(*lost) / f64::from(*probes) };
    let [after_gap, after_failure, after_rehash, without_gap] = path.moves;
    json!({
        "number": number, "port": port, "spare": spare, "hops": hops, "state": state, "why": why,
        "for_ms": for_ns / 1_000_000, "queue_us": *queue_ns as f64 / 1e3,
        "rtt_us": *round_trip_ns as f64 / 1e3,
        "loss": loss, "probes": probes, "marked": path.marked, "weight": path.weight,
        "packets": path.packets, "bytes": path.bytes, "new_flows": path.new_flows,
        "moves": {
            "after_gap": after_gap, "after_failure": after_failure, "after_rehash": after_rehash,
            "without_gap": without_gap,
        },
        "rehashed": path.rehashed, "large": path.large.to_string(),
    })
}

/// The series of a path. There are as many paths as discovery finds, at most 16 per node.
pub(super) fn samples(peer: IpAddr, number: usize, path: &PathReport) -> Vec<Sample> {
    use SampleValue::{Count, Gauge};
    let loss = f64::from(path.lost) / f64::from(path.probes.max(1));
    let one = |(name, help, value)| {
        let labels = vec![("peer", peer.to_string()), ("path", number.to_string())];
        Sample { name, help, labels, value }
    };
    let all = [
        ("path_packets", "Packets sent by the path", Count(path.packets)),
        ("path_bytes", "Bytes sent by the path", Count(path.bytes)),
        ("path_flows", "Flows that began on the path", Count(path.new_flows)),
        ("path_moves", "Flows that moved here from another path", Count(path.moves.iter().sum())),
        (
            "path_queue_seconds",
            "Delay above the minimum, measured by probes",
            Gauge(path.queue_ns as f64 / 1e9),
        ),
        ("path_round_trip_seconds", "Round-trip time of probes", Gauge(path.round_trip_ns as f64 / 1e9)),
        ("path_loss_ratio", "Share of recent probes that were lost", Gauge(loss)),
        ("path_weight_ratio", "Weight for new flows, 1 if healthy", Gauge(f64::from(path.weight) / 1024.0)),
        (
            "path_large_lost",
            "1 if the path loses large probes while small ones return",
            Gauge(f64::from(u8::from(path.large == Fit::Lost))),
        ),
    ];
    all.map(one).into()
}

fn flow(row: &FlowRow) -> Value {
    let [source, destination] = row.addresses.map(|address: IpAddr| address.to_string());
    json!({
        "peer": row.peer.to_string(), "vni": row.vni, "source": source, "destination": destination,
        "sport": row.ports[0], "dport": row.ports[1], "protocol": row.protocol, "path": row.path,
        "port": row.port, "packets": row.packets, "bytes": row.bytes, "moves": row.moves,
        "idle_ms": row.idle_ns / 1_000_000,
    })
}

impl App for PathApp {
    fn name(&self) -> &str {
        &self.fabric.name
    }

    fn kind(&self) -> &'static str {
        "path"
    }

    /// If nothing has changed, the thread keeps running, and its board is kept.
    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        if let Ok(old) = predecessor.downcast::<PathApp>() {
            if old.fabric == self.fabric {
                self.board = old.board;
            }
            (self.waiting, self.wake_ns) = (old.waiting, old.wake_ns);
        }
    }

    fn bind(&mut self, _: &Program) {}

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Request { id, request } => match read_request(request) {
                Ok(PathRequest::Show) => actions.push(Action::Answer { id, answer: Ok(self.show()) }),
                Ok(PathRequest::Flows(from)) => {
                    self.board.look().wanted.push((id, from));
                    self.waiting.push((id, now_ns + PATIENCE_NS));
                    self.wake_ns = Some(now_ns + LOOK_NS);
                }
                Err(why) => actions.push(Action::Answer { id, answer: Err(why) }),
            },
            Event::Tick => self.answer_waiting(now_ns, actions),
            _ => {}
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn punts(&self) -> Vec<String> {
        Vec::new()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.board.look().counts.clone()
    }

    fn samples(&self) -> Vec<Sample> {
        let snapshot = self.board.look();
        let nodes = snapshot.nodes.iter();
        let all = nodes.flat_map(|node| node.paths.iter().enumerate().map(move |path| (node.address, path)));
        all.flat_map(|(peer, (number, path))| samples(peer, number, path)).collect()
    }

    fn report(&self, _now_ns: u64) -> Value {
        let snapshot = self.board.look();
        let paths: usize = snapshot.nodes.iter().map(|node| node.paths.len()).sum();
        json!({ "nodes": snapshot.nodes.len(), "paths": paths, "obstacle": snapshot.obstacle })
    }
}
