//! Answers for terminals.

use super::answers::Answered;
use super::{Interval, Solved};
use serde_json::Value;
use std::fmt::Write;
use weir_measure::grouped;

/// Formats everything, with at most `rows` rows per list.
pub fn text(solved: &Solved, rows: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{} packets, {} bytes", grouped(solved.all[0]), grouped(solved.all[1]));
    for (reason, [packets, bytes]) in &solved.unflowed {
        let _ =
            writeln!(text, "in no flow: {reason}, {} packets, {} bytes", grouped(*packets), grouped(*bytes));
    }
    let (name, key) = (solved.counter, solved.key.kind().word());
    let _ = writeln!(
        text,
        "{name}, {} bytes, of {key} keys, {}",
        grouped(solved.bytes as u64),
        front(&solved.front)
    );
    solved.no_truth.iter().for_each(|why| {
        let _ = writeln!(text, "without exact values: {why}");
    });
    let start_ns = solved.intervals.first().map_or(0, |interval| interval.span_ns[0]);
    for interval in &solved.intervals {
        if solved.has_intervals {
            let since = |ns: u64| (ns - start_ns) as f64 / 1e9;
            let [from, to] = interval.span_ns.map(since);
            let _ = writeln!(text, "\n{from:.3} s to {to:.3} s: {} packets", grouped(interval.counted[0]));
        }
        answers(&mut text, interval, rows);
    }
    if solved.left_out > 0 {
        let _ = writeln!(text, "\n{} intervals are omitted", grouped(solved.left_out));
    }
    text
}

/// Describes the aggregator.
fn front(front: &Value) -> String {
    let count = |key: &str| front[key].as_u64().unwrap_or(0);
    let Some(policy) = front["policy"].as_str() else { return "without an aggregator".to_string() };
    let share = |key: &str| 100.0 * count(key) as f64 / count("packets").max(1) as f64;
    let simd = if front["simd"] == true { "" } else { ", without SIMD" };
    format!(
        "behind {policy} of {} KV arrays{simd}: {:.1} % of the packets found their key, {:.1} % evicted one, \
         {:.1} % bypassed it because aggregation did not pay",
        grouped(count("kvs")),
        share("hits"),
        share("evictions"),
        share("bypassed"),
    )
}

fn answers(text: &mut String, interval: &Interval, rows: usize) {
    for Answered { query, value } in &interval.answers {
        let name = query.replace('_', " ");
        let number = |key: &str| value[key].as_f64();
        match *query {
            "decoded" => {
                let exact = if value["is_exact"] == true { "exactly" } else { "not all" };
                let _ = writeln!(
                    text,
                    "{name} {exact}: {} flows, {} missing; {} fit",
                    value["flows"], value["missing"], value["room"]
                );
            }
            "distribution" => {
                let error = number("wmre").map_or(String::new(), |error| format!(", WMRE {error:.4}"));
                let _ = writeln!(text, "{name} of flow sizes{error}");
                list(text, value, "flows", "packets", rows);
            }
            _ if value.is_null() => {
                let _ = writeln!(text, "{name}: there is no interval before");
            }
            _ if value["rows"].is_array() => {
                let quality = number("f1").zip(number("are"));
                let quality =
                    quality.map_or(String::new(), |(f1, are)| format!(", F1 {f1:.4}, ARE {are:.4}"));
                let _ = writeln!(text, "{name} from {} on: {}{quality}", value["least"], value["found"]);
                let what = ["packets", "change", "destinations"];
                let what = what.into_iter().find(|what| value["rows"][0].get(what).is_some());
                list(text, value, what.unwrap_or("packets"), "key", rows);
            }
            _ => {
                let exact = number("exact").zip(number("error")).map_or(String::new(), |(exact, error)| {
                    format!("  exactly {exact:.3}, error {:.2} %", 100.0 * error)
                });
                let _ = writeln!(text, "{name} {:.3}{exact}", number("estimate").unwrap_or(f64::NAN));
            }
        }
    }
}

/// Formats the rows of a list: the estimate, the exact value, and what they are about.
fn list(text: &mut String, value: &Value, what: &str, about: &str, rows: usize) {
    let list = value["rows"].as_array().map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return;
    }
    let _ = writeln!(text, "  {what:>12} {:>12}  {about}", "exact");
    for row in list.iter().take(rows) {
        let number = |key: &str| row[key].as_f64().map_or("-".to_string(), |number| format!("{number:.0}"));
        let key = row[about].as_str().map_or_else(|| row[about].to_string(), str::to_string);
        let _ = writeln!(text, "  {:>12} {:>12}  {key}", number(what), number("exact"));
    }
}
