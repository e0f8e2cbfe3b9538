//! The output of `weir show measure`.

use crate::queries::{TopQuery, tops};
use crate::report::names_text;
use crate::{solution_line, write_answers};
use serde_json::Value;
use std::fmt::Write;
use weir_app::shown::seconds;

/// The last interval of a measurement.
pub fn interval(answer: &Value) -> String {
    let mut text = head(answer);
    let last = &answer["last"];
    if last.is_null() {
        text += "  no interval has finished yet\n";
        return text;
    }
    let seconds = (number(&last["end_ns"]) - number(&last["start_ns"])) / 1e9;
    let _ = writeln!(text, "  last interval          {seconds:.1} s");
    for name in ["packets", "bytes"] {
        let _ = writeln!(text, "  {name:<22} {}", number(&last[name]));
    }
    for one in last["unflowed"].as_array().into_iter().flatten() {
        let (packets, reason) = (number(&one["packets"]), word(&one["reason"]));
        let _ = writeln!(text, "  {:<22} {packets} packets: {reason}", "no flow");
    }
    for name in ["flows", "sources", "destinations"] {
        let _ = writeln!(text, "  {name:<22} {}", estimated(&last[name]));
    }
    for (_, row, TopQuery { one, .. }) in tops() {
        let entropy = &last[row.field]["entropy"];
        if !entropy.is_null() {
            let _ = writeln!(text, "  {:<22} {}", format!("entropy by {one}"), estimated(entropy));
        }
    }
    tops().for_each(|(_, row, list)| top(&mut text, &last[row.field], list.one));
    spreaders(&mut text, &last["spreaders"]);
    changes(&mut text, &last["changes"]);
    solution(&mut text, &answer["solution"]);
    text
}

/// What the solution of a paper answers.
fn solution(text: &mut String, solution: &Value) {
    if solution.is_null() {
        return;
    }
    if solution["given_up"] == true {
        let _ = writeln!(text, "  {} was given up: records came too fast", word(&solution["solution"]));
        return;
    }
    let _ = writeln!(text, "  {}", solution_line(solution));
    if let Some(why) = solution["no_truth"].as_str() {
        let _ = writeln!(text, "  without exact values: {why}");
    }
    let mut answers = String::new();
    write_answers(&mut answers, &solution["answers"], usize::MAX);
    answers.lines().for_each(|line| {
        let _ = writeln!(text, "  {line}");
    });
}

/// The totals of the last intervals.
pub fn history(answer: &Value) -> String {
    let mut text = head(answer);
    let _ = writeln!(
        text,
        "  {:>14} {:>12} {:>16} {:>10} {:>10} {:>12}",
        "began", "packets", "bytes", "flows", "sources", "destinations"
    );
    for row in answer["history"].as_array().into_iter().flatten() {
        let began = format!("{} ago", seconds(row["ago_ms"].as_u64().unwrap_or_default()));
        let _ = write!(text, "  {began:>14}");
        for (name, width) in
            [("packets", 12), ("bytes", 16), ("flows", 10), ("sources", 10), ("destinations", 12)]
        {
            let _ = write!(text, " {:>width$}", number(&row[name]));
        }
        text.push('\n');
    }
    text
}

/// The measurement, and what users must know about its results.
fn head(answer: &Value) -> String {
    let mut text = format!("measurement {}\n", word(&answer["name"]));
    let of = |name: &str| number(&answer[name]);
    let _ =
        writeln!(text, "  intervals              {} of {:.1} s", of("intervals"), of("interval_ms") / 1e3);
    let _ = writeln!(text, "  total                  {} packets in {} records", of("packets"), of("records"));
    for (name, what) in [
        ("late_packets", "arrived after their interval had ended"),
        ("early_packets", "arrived before their interval had begun"),
        ("spanning_packets", "may belong to an earlier interval"),
    ] {
        if of(name) != 0.0 {
            let _ = writeln!(text, "  {name:<22} {} {what}", of(name));
        }
    }
    let shed: Vec<&str> = answer["shed"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !shed.is_empty() {
        let _ = writeln!(text, "  given up               {}", shed.join(", "));
    }
    for (word, away) in [
        ("ipfix", "; the collector is unreachable"),
        (
            "parquet",
            "; files cannot be \
        written",
        ),
    ] {
        if let Some(export) = answer[word].as_object() {
            let state = if export["works"] == Value::Bool(true) { "" } else { away };
            let (sent, lost) = (&export["sent"], &export["lost"]);
            let _ = writeln!(text, "  {word:<22} {sent} records sent, {lost} lost{state}");
        }
    }
    text
}

fn top(text: &mut String, list: &Value, what: &str) {
    let Some(rows) = list["rows"].as_array().filter(|rows| !rows.is_empty()) else { return };
    let _ = writeln!(text, "  {:>12} {:>10} {:>14}  {what}", "packets", "at most +", "bytes");
    for row in rows {
        let (packets, bound) = (number(&row["packets"]), number(&row["bound"]));
        let bytes = number(&row["bytes"]);
        // A count may be too large but is never too small, so this shows the certain part of the count, and
        // the possible rest.
        let (certain, key, names) = (packets - bound, word(&row["key"]), names(row));
        let _ = writeln!(text, "  {certain:>12} {bound:>10} {bytes:>14}  {key}{names}");
    }
}

fn spreaders(text: &mut String, rows: &Value) {
    for row in rows.as_array().into_iter().flatten() {
        let _ = writeln!(
            text,
            "  {} sends to {} destinations{}",
            word(&row["source"]),
            estimated(&row["destinations"]),
            names(row)
        );
    }
}

fn changes(text: &mut String, rows: &Value) {
    for row in rows.as_array().into_iter().flatten() {
        let change = number(&row["change"]["estimate"]);
        let (kind, key, names) = (word(&row["kind"]), word(&row["key"]), names(row));
        let _ = writeln!(text, "  {kind} {key}: {change:+} packets{names}");
    }
}

/// Formats the names of a row's addresses.
pub(super) fn names(row: &Value) -> String {
    names_text(&["source_name", "destination_name"].map(|field| {
        let name = &row[field];
        Some((name["namespace"].as_str(), name["name"].as_str()?))
    }))
}

/// An estimate and its bounds.
pub(super) fn estimated(value: &Value) -> String {
    let [estimate, low, high] = ["estimate", "low", "high"].map(|name| number(&value[name]));
    let round =
        |number: f64| if number.abs() < 100.0 { (number * 100.0).round() / 100.0 } else { number.round() };
    format!("{} ({} to {})", round(estimate), round(low), round(high))
}

pub(super) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

pub(super) use weir_app::page::word;
