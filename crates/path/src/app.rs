//! The running app: answers requests from the state that the thread has published.

use super::Fabric;
use super::board::{FlowList, FlowRow, FlowsPage, NodeReport, PathReport, PathsReport};
use crate::paths::Fit;
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::IpAddr;
use weir_app::shown::{events, without_nulls};
use weir_app::task::{Board, Task};
use weir_app::{MetricHelp, Sample, SampleValue, request};

/// A request to a path app of either form.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum PathRequest {
    Show {},
    Conntrack {
        /// Where the page begins.
        #[serde(default)]
        from: u32,
    },
}

/// What the counters mean.
const HELPS: &[MetricHelp] = &[
    ("path_steered", "Frames that were assigned a path"),
    ("path_unsteered", "Frames to peers that kept the port of the kernel"),
    ("path_unknown_peer", "Frames of tunnels to addresses that are not peers"),
    ("path_scattered", "Frames without IP inside, spread by the port of the kernel"),
    ("path_headers_malformed", "Frames whose tunnel header is malformed"),
    ("path_headers_unknown", "Frames whose tunnel header has an unknown version"),
    ("path_held", "First frames that waited for a path (DOCA-AR)"),
    ("path_unheld", "First frames that could not wait for a path (DOCA-AR)"),
    ("path_flows_aged", "Flows forgotten because they were idle"),
    ("path_probes_sent", "Probes sent"),
    ("path_probes_answered", "Probes of peers answered"),
    ("path_probes_of_strangers", "Probes from addresses that are not peers"),
    ("path_probes_malformed", "Probes with a wrong length or layout"),
    ("path_probes_with_bad_cookie", "Probes and answers whose cookie does not match"),
    ("path_probes_repeated", "Duplicate probes"),
    ("path_probes_limited", "Probes beyond the rate"),
    ("path_answers", "Answers that arrived"),
    ("path_answers_lost", "Answers for which there was no room"),
];

impl Task for Fabric {
    const KIND: &'static str = "path";
    const HELPS: &'static [MetricHelp] = HELPS;
    type Report = PathsReport;
    type Query = u32;
    type Flows = Result<FlowsPage, String>;

    fn name(&self) -> &str {
        &self.name
    }

    fn show(&self, board: &Board<Fabric>) -> Value {
        let Fabric { name, uplinks, scheme, tunnel, .. } = self;
        let counts = board.report.counts.iter().map(|&(name, n)| (name.to_string(), json!(n)));
        without_nulls(json!({
            "name": name, "uplink": uplinks.join(", "), "scheme": scheme.name(),
            "tunnel": tunnel.of.kind().word(), "tunnel_port": tunnel.port,
            "authenticated": self.secret.is_some(), "obstacle": board.obstacle,
            "counts": Value::Object(counts.collect()),
            "nodes": board.report.nodes.iter().map(node).collect::<Vec<_>>(),
            "events": events(board.now_ns, &board.events),
        }))
    }

    fn query(request: &Value) -> Result<Option<u32>, String> {
        Ok(match request::read(&[], request)? {
            PathRequest::Show {} => None,
            PathRequest::Conntrack { from } => Some(from),
        })
    }

    fn answer(
        &self,
        _: &u32,
        page: Result<FlowsPage, String>,
        _obstacle: Option<&str>,
    ) -> Result<Value, String> {
        page.map(|FlowsPage { rows, next }| listed(&self.name, rows, next))
    }

    fn counts(report: &PathsReport) -> Vec<(&'static str, u64)> {
        report.counts.clone()
    }

    fn samples(report: &PathsReport) -> Vec<Sample> {
        let of = |node: &NodeReport| {
            let peer = (node.address, node.uplink.as_deref());
            node.paths
                .iter()
                .enumerate()
                .flat_map(|(number, path)| samples(peer, number, path))
                .collect::<Vec<_>>()
        };
        report.nodes.iter().flat_map(of).collect()
    }

    fn summary(report: &PathsReport) -> Value {
        let paths: usize = report.nodes.iter().map(|node| node.paths.len()).sum();
        json!({ "nodes": report.nodes.len(), "paths": paths })
    }
}

/// The answer to `conntrack`.
pub(super) fn listed(name: &str, flows: Vec<FlowRow>, next: Option<u32>) -> Value {
    let (name, count) = (name.to_string(), Some(flows.len()));
    without_nulls(json!(FlowList { name, count, flows, next }))
}

pub(super) fn node(node: &NodeReport) -> Value {
    let paths: Vec<Value> = node.paths.iter().enumerate().map(path).collect();
    json!({
        "address": node.address.to_string(), "uplink": node.uplink, "state": node.state,
        "large_bytes": node.large_bytes, "paths": paths,
    })
}

fn path((number, path): (usize, &PathReport)) -> Value {
    let PathReport { port, spare, state, why, for_ns, queue_ns, round_trip_ns, lost, probes, .. } = path;
    // Like traceroute's notation for a router that does not answer.
    let hop = |hop: &Option<IpAddr>| hop.map_or_else(|| "*".to_string(), |hop| hop.to_string());
    let hops: Vec<String> = path.hops.iter().map(hop).collect();
    let loss = if *probes == 0 { 0.0 } else { f64::from(*lost) / f64::from(*probes) };
    let [after_gap, after_failure, after_rehash, without_gap] = path.moves;
    let observed = path.observed.as_ref();
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
        "asks": observed.and_then(|seen| seen.router).map(|router| router.to_string()),
        "tcp": observed.map(|seen| json!({
            "rtt_us": seen.round_trip_ns as f64 / 1e3, "segments": seen.segments, "again": seen.again,
            "acknowledgements": seen.acknowledgements,
        })),
    })
}

/// The series of a path. There are as many paths as discovery finds, at most 16 per node.
pub(super) fn samples(
    (peer, uplink): (IpAddr, Option<&str>),
    number: usize,
    path: &PathReport,
) -> Vec<Sample> {
    use SampleValue::{Count, Gauge};
    let loss = f64::from(path.lost) / f64::from(path.probes.max(1));
    let one = |(name, help, value)| {
        let mut labels = vec![("peer", peer.to_string()), ("path", number.to_string())];
        labels.extend(uplink.map(|uplink| ("uplink", uplink.to_string())));
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
    let observed = path.observed.iter().flat_map(|seen| {
        [
            ("path_tcp_segments", "TCP segments sent by the path", Count(seen.segments)),
            ("path_tcp_segments_again", "TCP segments that were sent again", Count(seen.again)),
            (
                "path_tcp_round_trip_seconds",
                "Shortest time until a TCP segment was acknowledged, lately",
                Gauge(seen.round_trip_ns as f64 / 1e9),
            ),
        ]
    });
    all.into_iter().chain(observed).map(one).collect()
}
