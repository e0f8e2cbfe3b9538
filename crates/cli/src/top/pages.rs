//! The pages of `weir top`: those of the daemon itself, and those that kinds of apps add
//! ([`weir_app::kind::Kind::pages`]).

use crate::kinds::KINDS;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weir_app::kind::Kind;
use weir_app::page::{Column, Holds, Page, Part, Table, column, items, table};

/// A page, and the kind of app that it is about.
#[derive(Clone, Copy)]
pub struct Listed {
    /// The page.
    pub page: &'static Page,
    /// The kind of app, if the page is about one.
    pub kind: Option<&'static Kind>,
}

/// Returns all pages: the daemon's own, and then those of apps.
pub fn all() -> Vec<Listed> {
    let own = OWN.iter().map(|page| Listed { page, kind: None });
    let of = |kind: &'static Kind| kind.pages.iter().map(move |page| Listed { page, kind: Some(kind) });
    own.chain(KINDS.iter().flat_map(of)).collect()
}

/// The daemon's own pages; the history is drawn on the first.
const OWN: &[Page] = &[
    Page {
        title: "overview",
        sections: &["ports", "health", "log_lost", "events_late"],
        requests: &[],
        parts: overview,
    },
    Page {
        title: "ports",
        sections: &["ports"],
        requests: &[],
        parts: |answer| vec![table("ports", &answer["ports"], PORTS)],
    },
    Page {
        title: "drops",
        sections: &["drops"],
        requests: &[],
        parts: |answer| vec![table("dropped frames", &answer["drops"], DROPS)],
    },
    Page {
        title: "pipes",
        sections: &["pipes"],
        requests: &[],
        parts: |answer| vec![table("pipes", &answer["pipes"], PIPES)],
    },
    Page { title: "workers", sections: &["workers", "breath_times"], requests: &[], parts: workers },
    Page { title: "flows", sections: &["deltas", "flow_account"], requests: &[], parts: flows },
];

const FATES: &[Column] = &[
    column("frames", "fate", Holds::Name),
    column("now/s", "frames", Holds::Rate),
    column("bit/s", "bytes", Holds::BitRate),
    column("in all", "frames", Holds::Total),
];

const PORTS: &[Column] = &[
    column("port", "name", Holds::Name),
    column("in/s", "received", Holds::Rate),
    column("bit/s in", "received_bytes", Holds::BitRate),
    column("out/s", "transmitted", Holds::Rate),
    column("bit/s out", "transmitted_bytes", Holds::BitRate),
    column("lost/s", "lost_before", Holds::Rate),
    column("link", "link", Holds::Text),
    column("mode", "mode", Holds::Text),
    column("kernel/s", "to_kernel", Holds::Rate),
    column("held", "held", Holds::Number),
    column("received", "received", Holds::Total),
    column("transmitted", "transmitted", Holds::Total),
    column("lost", "lost_before", Holds::Total),
    column("oversize", "oversize", Holds::Total),
    column("starved", "starved", Holds::Total),
];

const DROPS: &[Column] = &[
    column("reason", "reason", Holds::Name),
    column("frames/s", "frames", Holds::Rate),
    column("frames", "frames", Holds::Total),
    column("meaning", "meaning", Holds::Sentence),
];

const PIPES: &[Column] = &[
    column("pipe", "name", Holds::Name),
    column("type", "type", Holds::Text),
    column("hits/s", "hits", Holds::Rate),
    column("misses/s", "misses", Holds::Rate),
    column("entries", "entries", Holds::Number),
    column("flows", "flows", Holds::Number),
    column("capacity", "capacity", Holds::Number),
    column("unflowed/s", "unflowed_full", Holds::Rate),
    column("hits", "hits", Holds::Total),
    column("misses", "misses", Holds::Total),
];

const WORKERS: &[Column] = &[
    column("worker", "worker", Holds::Name),
    column("in/s", "received", Holds::Rate),
    column("breaths/s", "breaths", Holds::Rate),
    column("handed/s", "handed_over", Holds::Rate),
    column("p50 us", "p50_us", Holds::Number),
    column("p99 us", "p99_us", Holds::Number),
    column("p99.99", "p9999_us", Holds::Number),
    column("longest", "longest_us", Holds::Number),
    column("held", "held", Holds::Number),
];

const DELTAS: &[Column] = &[
    column("reason", "reason", Holds::Name),
    column("deltas/s", "deltas", Holds::Rate),
    column("packets/s", "packets", Holds::Rate),
    column("bit/s", "bytes", Holds::BitRate),
    column("deltas", "deltas", Holds::Total),
    column("packets", "packets", Holds::Total),
    column("bytes", "bytes", Holds::Total),
];

const ACCOUNT: &[Column] = &[
    column("packets that", "which", Holds::Name),
    column("now/s", "counted", Holds::Rate),
    column("in all", "packets", Holds::Total),
];

/// Where frames are and go, and whether everything is well.
fn overview(answer: &Value) -> Vec<Part> {
    let ledger = &answer["ledger"];
    let bytes = |key: &str| items(&answer["ports"]).iter().filter_map(|port| port[key].as_u64()).sum::<u64>();
    let row = |fate: &str, frames: u64, bytes: Option<u64>| {
        let frames = json!(frames);
        json!({ "fate": fate, "frames": frames, "bytes": bytes })
    };
    let of = |key: &str| ledger[key].as_u64().unwrap_or_default();
    let rows = vec![
        row("received", of("received"), Some(bytes("received_bytes"))),
        row("originated", of("originated"), None),
        row("copied", of("copied"), None),
        row("transmitted", of("transmitted"), Some(bytes("transmitted_bytes"))),
        row("to the kernel", of("to_kernel"), None),
        row("to apps", of("to_app"), None),
        row("dropped", dropped(ledger), None),
    ];
    let balances = match answer["balances"].as_bool() {
        Some(true) => "balances",
        Some(false) => "DOES NOT BALANCE: please report it",
        None => "-",
    };
    let late = answer["events_late"]["longest_us"].as_f64().unwrap_or_default() / 1e3;
    vec![
        Part::Table(Table { title: "frames".into(), columns: FATES, rows }),
        Part::Facts(vec![
            ("held", of("held").to_string()),
            ("ledger", balances.to_string()),
            ("health", answer["health"].as_str().unwrap_or("-").to_string()),
            ("apps served", format!("at most {late:.1} ms late")),
            ("log lines lost", answer["log_lost"].to_string()),
        ]),
    ]
}

/// Returns how many frames of a ledger were dropped.
pub fn dropped(ledger: &Value) -> u64 {
    ledger["dropped"].as_object().into_iter().flatten().filter_map(|(_, frames)| frames.as_u64()).sum()
}

/// The workers, and how long the breaths of all of them took.
fn workers(answer: &Value) -> Vec<Part> {
    // The daemon's histogram has eight buckets per power of two; one with a bucket per power of two fits a
    // screen.
    let mut octaves = BTreeMap::<u32, u64>::new();
    for worker in items(&answer["breath_times"]) {
        for bucket in items(&worker["processor"]["buckets"]) {
            let limit_ns = bucket[0].as_u64().unwrap_or(u64::MAX);
            let octave = limit_ns.checked_next_power_of_two().map_or(u64::BITS, u64::ilog2);
            *octaves.entry(octave).or_default() += bucket[1].as_u64().unwrap_or_default();
        }
    }
    let shortest = octaves.first_key_value().map_or(0, |(octave, _)| *octave);
    let longest = octaves.keys().rev().find(|octave| **octave < u64::BITS).map_or(0, |octave| octave + 1);
    let mut bars: Vec<(String, u64)> = (shortest..longest)
        .map(|octave| (format!("< {}", duration(1 << octave)), *octaves.get(&octave).unwrap_or(&0)))
        .collect();
    bars.extend(octaves.get(&u64::BITS).map(|count| ("longer".to_string(), *count)));
    vec![
        table("workers: breaths since the start, in processor time", &answer["workers"], WORKERS),
        Part::Bars("breaths of all workers, by processor time", bars),
    ]
}

/// Formats a duration with three digits.
fn duration(ns: u64) -> String {
    let (value, unit) = match ns as f64 {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = if unit == "ns" || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}

/// Flows: what they have exported, by reason, and where the packets that met FLOW pipes are. Results of flow
/// measurements belong here, too: one more section, and one more table.
fn flows(answer: &Value) -> Vec<Part> {
    let account = &answer["flow_account"];
    // Counters have a rate; the current positions of packets have none.
    let counted =
        |which: &str, packets: &Value| json!({ "which": which, "packets": packets, "counted": packets });
    let present = |which: &str, key: &str| json!({ "which": which, "packets": account[key] });
    let mut rows = vec![
        counted("met flow pipes", &account["met"]),
        counted("are in deltas", &account["deltas"]),
        present("are in live flows", "live"),
        present("wait for the collector", "waiting"),
        present("are lost (0, or a bug)", "lost"),
    ];
    let unflowed = account["unflowed"].as_object().into_iter().flatten();
    rows.extend(unflowed.map(|(why, packets)| counted(&format!("have no flow: {why}"), packets)));
    vec![
        table("deltas", &answer["deltas"], DELTAS),
        Part::Table(Table { title: "account of flows".into(), columns: ACCOUNT, rows }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_titles_of_their_own_and_show_an_empty_answer() {
        let titles: Vec<&str> = all().iter().map(|listed| listed.page.title).collect();
        assert!(titles.iter().enumerate().all(|(at, title)| !titles[..at].contains(title)), "{titles:?}");
        for listed in all() {
            (listed.page.parts)(&Value::Null);
        }
    }

    #[test]
    fn breaths_of_all_workers_are_added_up_by_powers_of_two() {
        let of = |buckets: Value| json!({ "processor": { "buckets": buckets } });
        let times = json!([of(json!([[1024, 1], [1152, 2], [2048, 3]])), of(json!([[8192, 4], [null, 5]]))]);
        let [_, Part::Bars(_, bars)] = &workers(&json!({ "breath_times": times }))[..] else { panic!() };
        let expected = [("< 1.0 us", 1), ("< 2.0 us", 5), ("< 4.1 us", 0), ("< 8.2 us", 4), ("longer", 5)];
        assert_eq!(bars, &expected.map(|(label, count)| (label.to_string(), count)));
    }
}
