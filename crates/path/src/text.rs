//! The output of `weir show path` and `weir path`.

use super::board::FlowList;
use crate::tunnel::TunnelType;
use serde_json::Value;
use std::fmt::Write;
use weir_app::page::{items, word};
use weir_app::shown::latest;

/// The nodes and their paths.
pub fn show(answer: &Value) -> String {
    let mut text = format!(
        "{}: {} on {}, {} port {}\n",
        word(&answer["name"]),
        word(&answer["scheme"]),
        word(&answer["uplink"]),
        tunnel_name(&answer["tunnel"]),
        answer["tunnel_port"]
    );
    if let Some(obstacle) = answer["obstacle"].as_str() {
        let _ = writeln!(text, "  not running: {obstacle}");
    }
    let helps = answer["scheme"] != "one_sided";
    if !helps {
        text += "  remote nodes are unmodified: queue and loss are known from echo requests to routers, and \
                 from TCP\n";
    } else if answer["authenticated"] == false {
        text += "  without `key`: anyone who sends from a peer's address is trusted\n";
    }
    for node in items(&answer["nodes"]) {
        let over = node["uplink"].as_str().map(|uplink| format!(" over {uplink}")).unwrap_or_default();
        let _ = writeln!(text, "  {}{over}: {}", word(&node["address"]), word(&node["state"]));
        if !items(&node["paths"]).is_empty() {
            let _ = writeln!(
                text,
                "    {:>4} {:>6} {:<10} {:>9} {:>9} {:>6} {:>6} {:>12} {:>14}  hops",
                "path", "port", "state", "queue us", "rtt us", "loss", "weight", "packets", "bytes"
            );
        }
        items(&node["paths"]).iter().for_each(|one| path(&mut text, one));
        items(&node["paths"]).iter().for_each(|one| observed(&mut text, one));
        text += &large(node);
    }
    text + &latest(&answer["events"])
}

/// The name of the tunnels' type.
fn tunnel_name(word: &Value) -> &str {
    let all = TunnelType::WORDS.iter();
    all.into_iter().find(|(name, _)| word == name).map_or("UDP", |(_, of)| of.name())
}

/// What TCP connections have revealed about a path, and which router is asked.
fn observed(text: &mut String, path: &Value) {
    let tcp = &path["tcp"];
    if tcp.is_null() {
        return;
    }
    let asks =
        path["asks"].as_str().map_or("no router of its own answers".into(), |asks| format!("asks {asks}"));
    let _ = writeln!(
        text,
        "    {:>4} {asks}; TCP: rtt {:.0} us, {} segments, {} of them sent again, {} acknowledgements",
        path["number"],
        tcp["rtt_us"].as_f64().unwrap_or_default(),
        tcp["segments"],
        tcp["again"],
        tcp["acknowledgements"]
    );
}

/// A remark about large frames, if they need one.
fn large(node: &Value) -> String {
    let paths = items(&node["paths"]);
    let of = |what: &str| paths.iter().filter(|path| path["large"] == what).count();
    let bytes = &node["large_bytes"];
    match (of("lost"), of("unanswered")) {
        (0, 0) => String::new(),
        (0, _) => format!(
            "    no probe of {bytes} bytes was answered: the peer runs an older weir, or the path has a \
             smaller MTU\n"
        ),
        (lost, _) => format!(
            "    {lost} of {} paths lose packets of {bytes} bytes: an MTU is smaller there\n",
            paths.len()
        ),
    }
}

fn path(text: &mut String, path: &Value) {
    let number = |field: &str| path[field].as_f64().unwrap_or_default();
    let hop = |hop: &Value| hop.as_str().unwrap_or("*").to_string();
    let hops: Vec<String> = items(&path["hops"]).iter().map(hop).collect();
    let _ = writeln!(
        text,
        "    {:>4} {:>6} {:<10} {:>9.0} {:>9.0} {:>5.1}% {:>6} {:>12} {:>14}  {}",
        number("number"),
        number("port"),
        word(&path["state"]),
        number("queue_us"),
        number("rtt_us"),
        number("loss") * 100.0,
        number("weight"),
        number("packets"),
        number("bytes"),
        hops.join(" ")
    );
}

/// The flows.
pub(super) fn conntrack(list: &FlowList) -> String {
    // Only the last page has a count.
    let count = list.count.map(|count| format!("{count} flows\n"));
    list.flows.iter().map(|flow| format!("{flow}\n")).chain(count).collect()
}
