//! The pages of `weir top`: those of the daemon itself, and those that kinds of apps add
//! ([`weir_app::kind::Kind::pages`]).

use crate::kinds::KINDS;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weir_app::kind::Kind;
use weir_app::page::{Column, Holds, Page, Part, Table, column, table};
use weir_control::answer::{DroppedFlow, Drops, KernelPort, Port, Shown};

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
    Page { title: "drops", sections: &["drops"], requests: &[], parts: drops },
    Page {
        title: "pipes",
        sections: &["pipes"],
        requests: &[],
        parts: |answer| vec![table("pipes", &answer["pipes"], PIPES)],
    },
    Page { title: "workers", sections: &["workers", "breath_times"], requests: &[], parts: workers },
    Page { title: "flows", sections: &["deltas", "flow_account"], requests: &[], parts: flows },
    Page { title: "kernel", sections: &["kernel"], requests: &[], parts: kernel },
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

const DROPPED_FLOWS: &[Column] = &[
    column("reason", "reason", Holds::Name),
    column("flow", "flow", Holds::Name),
    column("about/s", "frames", Holds::Rate),
    column("about", "frames", Holds::Total),
];

const KERNEL: &[Column] = &[
    column("port", "port", Holds::Name),
    column("decided/s", "decided", Holds::Rate),
    column("decided", "decided", Holds::Total),
    column("program", "program", Holds::Text),
];

const LEFT: &[Column] = &[
    column("port", "port", Holds::Name),
    column("left/s", "frames", Holds::Rate),
    column("left", "frames", Holds::Total),
    column("because", "because", Holds::Name),
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

/// Returns the sections of an answer that are interpreted here.
pub fn shown(answer: &Value) -> Shown {
    Shown::deserialize(answer).unwrap_or_default()
}

/// Where frames are and go, and whether everything is well.
fn overview(answer: &Value) -> Vec<Part> {
    let Shown { ledger, balances, health, log_lost, events_late, ports, .. } = shown(answer);
    let bytes = |of: fn(&Port) -> u64| Some(ports.iter().map(of).sum::<u64>());
    let row = |fate: &str, frames: u64, bytes: Option<u64>| {
        let frames = json!(frames);
        json!({ "fate": fate, "frames": frames, "bytes": bytes })
    };
    let rows = vec![
        row("received", ledger.received, bytes(|port| port.received_bytes)),
        row("originated", ledger.originated, None),
        row("copied", ledger.copied, None),
        row("transmitted", ledger.transmitted, bytes(|port| port.transmitted_bytes)),
        row("to the kernel", ledger.to_kernel, None),
        row("to apps", ledger.to_app, None),
        row("dropped", ledger.drops(), None),
    ];
    let balances = match balances {
        Some(true) => "balances",
        Some(false) => "DOES NOT BALANCE: please report it",
        None => "-",
    };
    vec![
        Part::Table(Table { title: "frames".into(), columns: FATES, rows }),
        Part::Facts(vec![
            ("held", ledger.held.to_string()),
            ("ledger", balances.to_string()),
            ("health", health.unwrap_or_else(|| "-".to_string())),
            ("apps served", format!("at most {:.1} ms late", events_late.longest_us / 1e3)),
            ("log lines lost", log_lost.to_string()),
        ]),
    ]
}

/// What was dropped, and whose frames they were.
fn drops(answer: &Value) -> Vec<Part> {
    let all = shown(answer).drops;
    let of = |drops: &Drops| -> Vec<Value> {
        let row =
            |flow: &DroppedFlow| json!({ "reason": drops.reason, "flow": flow.flow, "frames": flow.frames });
        drops.flows.iter().map(row).collect()
    };
    let rows = all.iter().flat_map(of).collect();
    vec![
        table("dropped frames", &answer["drops"], DROPS),
        Part::Table(Table { title: "flows that lose most".into(), columns: DROPPED_FLOWS, rows }),
    ]
}

/// What the kernel handles, and why it leaves the rest to workers.
fn kernel(answer: &Value) -> Vec<Part> {
    let all = shown(answer).kernel;
    let row = |of: &KernelPort| -> Value {
        let program = of.obstacle.as_deref().unwrap_or("runs");
        json!({ "port": of.port, "program": program, "decided": of.decided })
    };
    let left = |of: &KernelPort| -> Vec<Value> {
        let row =
            |(why, frames): (&String, &Value)| json!({ "port": of.port, "because": why, "frames": frames });
        of.left.iter().map(row).collect()
    };
    let rows = all.iter().map(row).collect();
    vec![
        Part::Table(Table { title: "frames that the kernel decides".into(), columns: KERNEL, rows }),
        Part::Table(Table {
            title: "frames left to workers".into(),
            columns: LEFT,
            rows: all.iter().flat_map(left).collect(),
        }),
    ]
}

/// The workers, and how long the breaths of all of them took.
fn workers(answer: &Value) -> Vec<Part> {
    // The daemon's histogram has eight buckets per power of two; one with a bucket per power of two fits a
    // screen.
    let mut octaves = BTreeMap::<u32, u64>::new();
    let times = shown(answer).breath_times;
    for (limit_ns, count) in times.into_iter().flat_map(|breaths| breaths.processor.buckets) {
        let limit = limit_ns.and_then(u64::checked_next_power_of_two);
        *octaves.entry(limit.map_or(u64::BITS, u64::ilog2)).or_default() += count;
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

/// Flows: their deltas, by reason, and where the packets that reached FLOW pipes are counted. Results of flow
/// measurements belong here, too: one more section, and one more table.
fn flows(answer: &Value) -> Vec<Part> {
    let account = shown(answer).flow_account;
    // Counters have a rate; the current positions of packets have none.
    let counted =
        |which: &str, packets: &Value| json!({ "which": which, "packets": packets, "counted": packets });
    let present = |which: &str, packets: u64| json!({ "which": which, "packets": packets });
    let mut rows = vec![
        counted("met flow pipes", &account.met.into()),
        counted("are in deltas", &account.deltas.into()),
        present("are in live flows", account.live),
        present("wait for the collector", account.waiting),
        present("are lost (0, or a bug)", account.lost),
    ];
    let unflowed = account.unflowed.iter();
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
