//! The output of `weir show overlay` and `weir overlay`.

use serde_json::Value;
use std::fmt::Write;
use weir_app::page::{items, word};
use weir_app::shown::latest;

/// The overlay, and what happened to frames and entries.
pub fn show(answer: &Value) -> String {
    let mut text = format!(
        "{}: {} by {}, pods at {}\n",
        word(&answer["name"]),
        word(&answer["tunnel"]),
        word(&answer["uplink"]),
        word(&answer["pods_at"])
    );
    if let Some(obstacle) = answer["obstacle"].as_str() {
        let _ = writeln!(text, "  not running: {obstacle}");
    }
    if let Some(refresh) = answer["refresh_ms"].as_u64() {
        let _ = writeln!(text, "  refresh: {refresh} ms");
    }
    let names = |list: &Value| items(list).iter().map(word).collect::<Vec<_>>().join(" ");
    let _ = writeln!(text, "  pods: {}\n  remote nodes: {}", names(&answer["pods"]), names(&answer["nodes"]));
    for direction in ["sent", "received"] {
        let frames = &answer["frames"][direction];
        let hit = percent(&answer["hit_ratio"][direction]);
        let _ = writeln!(
            text,
            "  {direction}: {} frames, {} fast, hit ratio {hit}",
            frames["seen"], frames["fast"]
        );
        let slow: Vec<_> = numbers(frames).filter(|(name, _)| !["seen", "fast"].contains(name)).collect();
        list(&mut text, &slow);
    }
    text += "  entries:\n";
    list(&mut text, &numbers(&answer["entries"]).collect::<Vec<_>>());
    text += "  changes by cause:\n";
    list(&mut text, &numbers(&answer["causes"]).collect::<Vec<_>>());
    text + &latest(&answer["events"])
}

/// The counts of an object, by name.
pub(super) fn numbers(object: &Value) -> impl Iterator<Item = (&str, u64)> {
    let all = object.as_object().into_iter().flatten();
    all.filter_map(|(name, count)| Some((name.as_str(), count.as_u64()?)))
}

/// Prints the counts that are not 0.
fn list(text: &mut String, counts: &[(&str, u64)]) {
    for (name, count) in counts.iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(text, "    {name:<24} {count:>14}");
    }
}

/// The flows.
pub fn flows(answer: &Value, _flags: &[&str]) -> String {
    let mut text = String::new();
    for flow in items(&answer["flows"]) {
        let known = |field: &str| if flow[field] == true { "known" } else { "-" };
        let _ = writeln!(
            text,
            "{} -> {} protocol {} {}: sent {} ({} packets, {} bytes), \
             received {} ({} packets, {} bytes)",
            end(flow, "local"),
            end(flow, "remote"),
            flow["protocol"],
            flow["peer"]
                .as_str()
                .map_or_else(|| format!("by {}", word(&flow["node"])), |peer| format!("at {peer}")),
            known("knows_sent"),
            flow["packets"]["sent"],
            flow["bytes"]["sent"],
            known("knows_received"),
            flow["packets"]["received"],
            flow["bytes"]["received"]
        );
    }
    // Only the last page has a count.
    if let Some(count) = answer["count"].as_u64() {
        let _ = writeln!(text, "{count} flows");
    }
    text
}

/// One end of a flow, as `10.244.1.5:80` or `[fd00::5]:80`.
fn end(flow: &Value, which: &str) -> String {
    let (address, port) = (word(&flow[which]), &flow[format!("{which}_port")]);
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

pub(super) fn percent(ratio: &Value) -> String {
    ratio.as_f64().map_or("-".to_string(), |ratio| format!("{:.1} %", ratio * 100.0))
}
