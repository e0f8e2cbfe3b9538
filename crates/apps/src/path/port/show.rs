//! What the app tells: in the shape in which the kernel's data plane tells it.

use super::app::{Counts, PathPortApp};
use super::node::Node;
use path::paths::State;
use serde_json::{Value, json};

/// Everything known of nodes and paths.
pub fn json(app: &PathPortApp) -> Value {
    let config = &app.config;
    let counts = counts(&app.counts).into_iter().map(|(name, n)| (name.to_string(), json!(n)));
    let event = |(at_ns, what): &(u64, String)| json!({ "at_ns": at_ns, "what": what });
    json!({
        "name": config.name, "uplink": config.port_name, "scheme": config.scheme.name(),
        "vxlan_port": config.vxlan_port, "authenticated": config.secret.is_some(), "obstacle": null,
        "counts": Value::Object(counts.collect()),
        "nodes": app.nodes.iter().map(node).collect::<Vec<_>>(),
        "events": app.events.iter().map(event).collect::<Vec<_>>(),
    })
}

/// What to ask instead of the app, which keeps nothing of flows.
pub fn flows_are_elsewhere(name: &str) -> String {
    format!("flows of `{name}` are in its pipe: `weir entry list {name}/flows` lists them")
}

/// The counters, by name.
pub fn counts(counts: &Counts) -> Vec<(&'static str, u64)> {
    let Counts { pinned, unpinned, timed_out, probes_sent, collected, late, .. } = *counts;
    let Counts { answered, malformed, bad_cookie, repeated, limited, .. } = *counts;
    vec![
        ("pinned", pinned),
        ("unpinned", unpinned),
        ("timed_out", timed_out),
        ("probes_sent", probes_sent),
        ("collected", collected),
        ("late", late),
        ("answered", answered),
        ("malformed", malformed),
        ("bad_cookie", bad_cookie),
        ("repeated", repeated),
        ("limited", limited),
    ]
}

fn node(node: &Node) -> Value {
    let all = node.paths.all();
    let is = |state: State| all.iter().filter(|path| path.state() == state).count();
    let state = if node.group.is_none() {
        "each flow has a port of its own".to_string()
    } else if is(State::New) == all.len() {
        "nothing has answered yet".to_string()
    } else if is(State::Failed) == all.len() {
        "nothing answers: flows are spread over all ports".to_string()
    } else {
        format!("{} of {} paths answer", all.len() - is(State::Failed) - is(State::New), all.len())
    };
    let paths: Vec<Value> = (0..all.len()).map(|at| path(node, at)).collect();
    json!({ "address": node.address.to_string(), "state": state, "paths": paths })
}

fn path(node: &Node, at: usize) -> Value {
    let (path, traffic) = (&node.paths.all()[at], node.traffic[at]);
    let (probes, lost) = path.judged();
    let loss = if probes == 0 { 0.0 } else { f64::from(lost) / f64::from(probes) };
    let (why, since_ns) = path.last_change();
    let buckets = node.buckets.slots().iter().filter(|slot| usize::from(**slot) == at).count();
    json!({
        "number": at, "port": path.ports().main, "spare": path.ports().spare, "hops": [],
        "state": path.state().to_string(), "why": why.to_string(), "since_ns": since_ns,
        "queue_us": path.queue_ns() as f64 / 1e3, "rtt_us": traffic.round_trip_ns as f64 / 1e3,
        "loss": loss, "probes": probes, "marked": f64::from(path.marked()) / 1024.0,
        "weight": path.weight(), "buckets": buckets,
        "packets": traffic.packets, "bytes": traffic.bytes, "new_flows": traffic.flows,
        "moves": {
            "after_gap": traffic.after_gap, "after_failure": traffic.after_failure, "after_rehash": 0,
            "without_gap": 0,
        },
        "rehashed": 0,
    })
}
