//! The fabric: whether it really chooses among paths by the outer source port, and whether peers answer. To
//! find this out requires probes from many ports. The daemon sends such probes all the time, so the answers
//! come from the daemon.

use super::{Examined, Finding, Level};
use crate::Fabric;
use crate::fabric::Reflect;
use crate::scheme::Scheme;
use serde_json::Value;
use std::net::IpAddr;

/// Asks the daemon about each app.
pub fn findings(fabrics: &[Fabric], examined: &Examined<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for fabric in fabrics {
        match (examined.ask)(&fabric.name, "show") {
            Ok(shown) => found.extend(of_app(fabric, &shown)),
            Err(error) => {
                let says = format!(
                    "no weir daemon is running here ({error:#}): after `weir run`, weir doctor reports \
                     whether the fabric hashes source ports"
                );
                found.push(Finding::new("fabric", &fabric.name, Level::Warning, says));
            }
        }
    }
    if fabrics.is_empty() {
        let says = "give a configuration with a path app to learn whether the fabric hashes source ports";
        found.push(Finding::new("fabric", "peers", Level::Ok, says));
    }
    found
}

fn of_app(fabric: &Fabric, shown: &Value) -> Vec<Finding> {
    if let Some(obstacle) = shown["obstacle"].as_str() {
        return vec![Finding::new("fabric", &fabric.name, Level::Fault, obstacle)];
    }
    if !matches!(fabric.scheme, Scheme::Adaptive | Scheme::OneSided) {
        return vec![without_survey(fabric)];
    }
    let empty = Vec::new();
    let nodes = shown["nodes"].as_array().unwrap_or(&empty);
    let node = |peer: &IpAddr| nodes.iter().find(|node| node["address"] == peer.to_string());
    let one = |peer: &IpAddr| match node(peer) {
        Some(node) if fabric.scheme == Scheme::OneSided => {
            of_node_that_does_not_help(&peer.to_string(), node)
        }
        Some(node) => of_node(&peer.to_string(), fabric.reflect, node),
        None => {
            let says = "the running daemon does not have this peer: `weir reload`";
            Finding::new("fabric", peer.to_string(), Level::Warning, says)
        }
    };
    fabric.peers.iter().map(one).collect()
}

/// Other schemes use arbitrary ports, and do not survey the paths to which these lead.
fn without_survey(fabric: &Fabric) -> Finding {
    let says = format!(
        "`scheme: {}` does not discover paths, so it is unknown whether the fabric hashes source ports: use \
         `scheme: {}` to find out",
        fabric.scheme,
        Scheme::Adaptive
    );
    Finding::new("fabric", &fabric.name, Level::Warning, says)
}

fn of_node(peer: &str, reflect: Reflect, node: &Value) -> Finding {
    let state = node["state"].as_str().unwrap_or_default();
    let empty = Vec::new();
    let paths = node["paths"].as_array().unwrap_or(&empty);
    let answers = paths.iter().filter(|path| path["state"] != "failed").count();
    let narrow = narrow(node, paths);
    let is_hidden = paths.iter().all(|path| path["hops"].as_array().is_none_or(Vec::is_empty));
    let (level, says) = match (paths.len(), answers) {
        (0, _) if state.starts_with("not surveyed") => {
            (Level::Warning, "its paths are not yet known: try again in a few seconds".to_string())
        }
        (0, _) if reflect == Reflect::OpenFlow => (Level::Fault, state.to_string()),
        (0, _) => {
            let says = "it does not answer probes: run weir there, with a path app that has this node among \
                its peers, and the same `key`";
            (Level::Fault, says.to_string())
        }
        // There is no traffic to the node, so single paths are not probed, and none of them is known to have
        // failed.
        _ if state.ends_with("no answer") => (Level::Fault, "it no longer answers: is it down?".to_string()),
        (count, 0) => (Level::Fault, format!("none of its {count} paths currently answers: is it down?")),
        (1, _) => {
            let version = if peer.contains(':') { "ipv6" } else { "ipv4" };
            let says = format!(
                "probes from 32 source ports took one path: the fabric has no other path, its routers do \
                 not distinguish links, or they do not hash the UDP source port \
                 (Linux: `sysctl -w net.{version}.fib_multipath_hash_policy=1`)"
            );
            (Level::Warning, says)
        }
        _ if narrow.is_some() => (Level::Warning, narrow.unwrap_or_default()),
        (count, _) if is_hidden && reflect == Reflect::OpenFlow => {
            (Level::Ok, format!("each of {count} source ports is assumed to be a path"))
        }
        (count, _) if is_hidden => {
            let says = format!(
                "routers do not identify themselves, so each of {count} source ports is assumed to be a \
                 path: let them send ICMP time exceeded"
            );
            (Level::Warning, says)
        }
        (count, answers) if answers < count => {
            (Level::Warning, format!("{answers} of its {count} paths answer: see `weir show path`"))
        }
        (count, _) => (Level::Ok, format!("the fabric hashes source ports: {count} paths")),
    };
    Finding::new("fabric", peer, level, says)
}

/// What is known about a node's paths from routers and connections alone.
fn of_node_that_does_not_help(peer: &str, node: &Value) -> Finding {
    let empty = Vec::new();
    let paths = node["paths"].as_array().unwrap_or(&empty);
    let (count, of_routers) = (paths.len(), paths.iter().filter(|path| path["probes"] != 0).count());
    let asked = paths.iter().filter(|path| path["asks"].is_string()).count();
    let seen = paths.iter().filter(|path| path["tcp"]["acknowledgements"] != 0).count();
    let is_hidden = paths.iter().all(|path| path["hops"].as_array().is_none_or(Vec::is_empty));
    let (level, says) = match count {
        0 => {
            let says = "its paths are not yet known: routers may answer only once a second, so try again in \
                half a minute";
            (Level::Warning, says.to_string())
        }
        1 => {
            let says = "probes from 16 source ports met the same routers: the fabric has no other path, its \
                routers do not distinguish links, or they do not hash the UDP source port";
            (Level::Warning, says.to_string())
        }
        _ if is_hidden => {
            let says = format!(
                "no router answers, so each of {count} source ports is assumed to be a path, known only by \
                 TCP connections that use it: let routers send ICMP time exceeded"
            );
            (Level::Warning, says)
        }
        _ if of_routers < count => {
            let says = format!(
                "{count} paths: routers answer echo requests for {of_routers}, and TCP connections have \
                 revealed {seen}; a path is unknown while it has neither: let {} answer echo requests",
                if asked < count { "each link's end have an address of its own, and" } else { "routers" }
            );
            (Level::Warning, says)
        }
        _ => {
            let says = format!(
                "{count} paths: routers answer echo requests for all of them, and TCP connections have \
                 revealed {seen}"
            );
            (Level::Ok, says)
        }
    };
    Finding::new("fabric", peer, level, says)
}

/// Reports the result of large probes, unless it is good.
fn narrow(node: &Value, paths: &[Value]) -> Option<String> {
    let of = |what: &str| paths.iter().filter(|path| path["large"] == what).count();
    let (count, bytes) = (paths.len(), &node["large_bytes"]);
    match (of("lost"), of("unanswered")) {
        (0, 0) => None,
        (0, _) => Some(format!(
            "it answers no probe of {bytes} bytes, the MTU of the uplink: either an MTU in the fabric is \
             smaller, or an older weir runs there, so it is unknown whether large frames pass"
        )),
        (lost, _) => Some(format!(
            "{lost} of its {count} paths lose packets of {bytes} bytes but pass small ones: raise the MTU \
             of the links there (`weir show path` names their hops), or lower that of the tunnels"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(state: &str, paths: &[(&str, &[&str])]) -> Value {
        let path = |(state, hops): &(&str, &[&str])| json!({ "state": state, "hops": hops });
        json!({ "state": state, "paths": paths.iter().map(path).collect::<Vec<_>>() })
    }

    #[test]
    fn what_the_daemon_knows_of_a_peer_is_judged() {
        let (good, hop): (_, &[&str]) = ("good", &["10.9.0.1"]);
        for (node, level, words) in [
            (node("not surveyed yet", &[]), Level::Warning, "try again"),
            (node("no answer to probes", &[]), Level::Fault, "the same `key`"),
            (node("", &[(good, hop)]), Level::Warning, "fib_multipath_hash_policy=1"),
            (node("", &[(good, hop), ("failed", hop)]), Level::Warning, "1 of its 2 paths"),
            (node("", &[("failed", hop), ("failed", hop)]), Level::Fault, "is it down?"),
            (node("", &[(good, &[]), (good, &[])]), Level::Warning, "ICMP"),
            (node("", &[(good, hop), (good, hop)]), Level::Ok, "2 paths"),
        ] {
            let found = of_node("10.0.0.2", Reflect::Weir, &node);
            assert!(found.level == level && found.says.contains(words), "{found}");
        }
    }

    #[test]
    fn paths_that_lose_large_frames_are_named_unless_none_has_ever_carried_one() {
        let node = |states: [&str; 2]| {
            let path = |large| json!({ "state": "good", "hops": ["10.9.0.1"], "large": large });
            json!({ "state": "", "large_bytes": 9000, "paths": states.map(path) })
        };
        for (states, level, words) in [
            (["pass", "unknown"], Level::Ok, "2 paths"),
            (["pass", "lost"], Level::Warning, "1 of its 2 paths lose packets of 9000 bytes"),
            (["unanswered", "unanswered"], Level::Warning, "it answers no probe of 9000 bytes"),
        ] {
            let found = of_node("10.0.0.2", Reflect::Weir, &node(states));
            assert!(found.level == level && found.says.contains(words), "{found}");
        }
    }
}
