//! The app's answers, in the format of the kernel's data plane.

use super::app::{PathPortApp, TunnelCounts};
use super::flows::Hashes;
use super::node::Node;
use crate::app::{listed, node as node_json, samples as samples_of};
use crate::loss::ProbeCounts;
use crate::paths::State;
use crate::scheme::Scheme;
use crate::{FlowRow, NodeReport, PathReport};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use weir_app::shown::{events, without_nulls};
use weir_app::{MetricHelp, Sample};
use weir_program::snapshot::Seen;
use weir_program::{Entry, EntryMatch};

/// Everything known about nodes and paths.
pub fn json(app: &PathPortApp, now_ns: u64) -> Value {
    let config = &app.config;
    let counts = counts(&app.counts).into_iter().map(|(name, n)| (name.to_string(), json!(n)));
    without_nulls(json!({
        "name": config.name, "uplink": config.port_name, "scheme": config.scheme.name(),
        "tunnel": "vxlan", "tunnel_port": config.vxlan_port,
        "authenticated": config.secret.is_some(),
        "counts": Value::Object(counts.collect()),
        "nodes": app.nodes.iter().map(|one| node_json(&node(one, now_ns))).collect::<Vec<_>>(),
        "events": events(now_ns, &app.events),
    }))
}

/// The series of all paths.
pub fn samples(app: &PathPortApp) -> Vec<Sample> {
    let of = |one: &Node| {
        let NodeReport { address, paths, .. } = node(one, 0);
        paths
            .iter()
            .enumerate()
            .flat_map(|(at, path)| samples_of((address, None), at, path))
            .collect::<Vec<_>>()
    };
    app.nodes.iter().filter(|node| node.group.is_some()).flat_map(of).collect()
}

/// The flows that have an entry.
pub fn flows(app: &PathPortApp, now_ns: u64, entries: &[(Entry, Seen)], next: Option<u32>) -> Value {
    let rows = entries.iter().filter_map(|(entry, seen)| row(app, now_ns, entry, seen)).collect();
    listed(&app.config.name, rows, next)
}

fn row(app: &PathPortApp, now_ns: u64, entry: &Entry, seen: &Seen) -> Option<FlowRow> {
    let [EntryMatch::Flow(key)] = entry.matches[..] else { return None };
    let number = u32::try_from(*entry.values.first()?).ok()?;
    let (peer, path, port) = match app.config.scheme {
        Scheme::Adaptive => way(&app.nodes, &app.hashes, number),
        // Such a flow keeps a port that leads along no known path.
        _ => (Ipv4Addr::UNSPECIFIED, 0, number as u16),
    };
    let idle_ms = ((now_ns / 1_000_000) as u32).wrapping_sub(seen.last_ms);
    Some(FlowRow {
        peer: peer.into(),
        uplink: None,
        vni: key.vni().unwrap_or_default(),
        source: key.src(),
        destination: key.dst(),
        sport: key.sport(),
        dport: key.dport(),
        protocol: key.protocol(),
        path,
        port,
        packets: seen.count.packets,
        bytes: seen.count.bytes,
        moves: 0,
        idle_ms: idle_ms.into(),
        state: "open".to_string(),
        decision: if app.config.scheme == Scheme::DocaAr { "first_answer" } else { "at_first" }.to_string(),
    })
}

/// The node, the path and the port of a flow, from the number that it keeps.
fn way(nodes: &[Node], hashes: &Hashes, number: u32) -> (Ipv4Addr, u32, u16) {
    let (id, bucket) = hashes.place_of(number);
    let Some(node) = nodes.iter().find(|node| node.id == id) else { return (Ipv4Addr::UNSPECIFIED, 0, 0) };
    let path = node.buckets.slots().get(bucket).copied().unwrap_or_default();
    let port = node.paths.all().get(usize::from(path)).map(|path| path.ports().main);
    (node.address, path.into(), port.unwrap_or_default())
}

/// What the counters, and the numbers of paths, mean.
pub const HELPS: &[MetricHelp] = &[
    ("pinned", "Flows that were given a path of their own"),
    ("unpinned", "Flows that could not be given a path of their own"),
    ("timed_out", "Flows whose probes got no answer in time (DOCA-AR)"),
    ("probes_sent", "Probes sent"),
    ("collected", "Answers that arrived in time"),
    ("late", "Answers that arrived too late"),
    ("expired", "Answers of routers on the way"),
    ("answered", "Probes of peers answered"),
    ("malformed", "Probes that cannot be read"),
    ("bad_cookie", "Probes and answers whose cookie does not match"),
    ("repeated", "Duplicate probes"),
    ("limited", "Probes beyond the rate"),
    ("paths", "Paths to all peers"),
    ("paths_usable", "Paths that new flows may take"),
];

/// The counters, by name.
pub fn counts(counts: &TunnelCounts) -> Vec<(&'static str, u64)> {
    let TunnelCounts { pinned, unpinned, timed_out, probes_sent, collected, late, .. } = *counts;
    let TunnelCounts { answered, malformed, bad_cookie, repeated, limited, expired, .. } = *counts;
    vec![
        ("pinned", pinned),
        ("unpinned", unpinned),
        ("timed_out", timed_out),
        ("probes_sent", probes_sent),
        ("collected", collected),
        ("late", late),
        ("expired", expired),
        ("answered", answered),
        ("malformed", malformed),
        ("bad_cookie", bad_cookie),
        ("repeated", repeated),
        ("limited", limited),
    ]
}

fn node(node: &Node, now_ns: u64) -> NodeReport {
    let all = node.paths.all();
    // Flows are spread over ports if only one path was found.
    let what = if node.known.all().len() == 1 { "ports" } else { "paths" };
    let is = |state: State| all.iter().filter(|path| path.state() == state).count();
    let answer = if node.group.is_none() {
        "each flow has its own port".to_string()
    } else if is(State::New) == all.len() {
        "no answer yet".to_string()
    } else if is(State::Failed) == all.len() {
        "no answers: flows are spread over all ports".to_string()
    } else {
        format!("{} of {} {what} answer", all.len() - is(State::Failed) - is(State::New), all.len())
    };
    let state = match &node.found {
        Some(found) if node.group.is_some() => format!("{found}; {answer}"),
        _ => answer,
    };
    NodeReport {
        address: node.address.into(),
        uplink: None,
        state,
        large_bytes: node.paths.large_bytes(),
        paths: (0..all.len()).map(|at| path(node, at, now_ns)).collect(),
    }
}

fn path(node: &Node, at: usize, now_ns: u64) -> PathReport {
    let (path, traffic) = (&node.paths.all()[at], node.traffic[at]);
    let ProbeCounts { probes, lost } = path.judged();
    let (why, since_ns) = path.last_change();
    let known = Some(node.known.all()).filter(|known| known.len() > 1);
    PathReport {
        port: path.ports().main,
        spare: path.ports().spare,
        hops: known.and_then(|known| known.get(at)).map(|found| found.hops.clone()).unwrap_or_default(),
        state: path.state().to_string(),
        why: why.to_string(),
        for_ns: now_ns.saturating_sub(since_ns),
        queue_ns: path.queue_ns(),
        round_trip_ns: traffic.round_trip_ns,
        lost,
        probes,
        marked: f64::from(path.marked()) / 1024.0,
        weight: path.weight(),
        packets: traffic.packets,
        bytes: traffic.bytes,
        new_flows: traffic.flows,
        moves: [traffic.after_gap, traffic.after_failure, 0, 0],
        rehashed: 0,
        large: node.paths.fit(at),
        observed: None,
    }
}
