//! The output of `weir show bond` and `weir bond`: the answers of a running bond, formatted for humans.

use serde_json::Value;
use std::fmt::Write as _;
use weir_app::kind::{Argument, Verb, View};

/// The views of `weir show bond [buckets] [NAME]`.
pub(super) const VIEWS: &[View] = &[
    View { word: "", request: "show", text: bond_text },
    View { word: "buckets", request: "buckets", text: buckets_text },
];

const MEMBER: Argument = Argument { name: "MEMBER", help: "Its member", number: false };
const NEW_MEMBER: Argument =
    Argument { name: "MEMBER", help: "The member that receives the bucket", number: false };
const BUCKET: Argument =
    Argument { name: "BUCKET", help: "The bucket's number, as in `weir show bond buckets`", number: true };

/// The subcommands of `weir bond VERB NAME ...`.
pub(super) const VERBS: &[Verb] = &[
    verb(
        "migrate",
        "Move a bucket to another member, when it is idle or has waited long enough",
        &[BUCKET, NEW_MEMBER],
    ),
    verb(
        "disable",
        "Disable a member without loss: its buckets move as they become idle, then LACP announces it",
        &[MEMBER],
    ),
    verb("enable", "Enable a disabled member again; it is used once its link works", &[MEMBER]),
    verb(
        "set-active",
        "Make a member active, until it fails or the configuration names another primary",
        &[MEMBER],
    ),
    Verb {
        whole: false,
        flags: &[("dry-run", "Only print what would move")],
        ..verb("rebalance", "Balance the members' loads now", &[])
    },
];

const fn verb(name: &'static str, about: &'static str, arguments: &'static [Argument]) -> Verb {
    Verb {
        name,
        about,
        arguments,
        whole: false,
        flags: &[],
        text: |answer, flags| plan_text(answer, !flags.is_empty()),
    }
}

/// Prints a bond, its members, its latest moves, and the LACP state of each member.
fn bond_text(bond: &Value) -> String {
    let mut text = format!("{}\n", word(&bond["name"]));
    let mut line = |key: &str, value: String| _ = writeln!(text, "  {key:<15} {value}");
    line("mode", word(&bond["mode"]));
    let lacp = &bond["lacp"];
    if lacp.is_object() {
        let (links, least) = (word(&lacp["links"]), lacp["min_links"].as_u64().unwrap_or_default().max(1));
        let system = word(&lacp["system"]);
        line("LACP", format!("{}, {links} links in sync (needed: {least})", word(&lacp["negotiation"])));
        line("system", system);
    }
    let one_sends = bond["mode"] == "active_backup" || lacp["negotiation"] == "fallback";
    if one_sends || bond["mode"] == "balance_slb" {
        line("active", bond["active"].as_str().unwrap_or("none").to_string());
    }
    line("buckets", word(&bond["buckets"]));
    let next = bond["next_rebalance_ms"].as_u64();
    line("next rebalance", next.map_or_else(|| "never".to_string(), |ms| format!("in {}", seconds(ms))));
    let [moved, busy, waiting] = ["moved", "moved_busy", "waiting"].map(|key| word(&bond[key]));
    line("moved", format!("{moved} buckets, {busy} of them in use; {waiting} waiting"));
    if bond["learnt"] != 0 {
        line("learnt", format!("{} MAC addresses inside", word(&bond["learnt"])));
    }
    text + &members_text(bond) + &pinned_text(bond) + &moves_text(bond) + &lacp_text(bond)
}

fn members_text(bond: &Value) -> String {
    let members = items(&bond["members"]);
    let total: u64 = members.iter().filter_map(|member| member["bytes"].as_u64()).sum();
    let row = |member: &Value| {
        let bytes = member["bytes"].as_u64().unwrap_or_default();
        let share = if total == 0 {
            "-".to_string()
        } else {
            format!("{:.1} %", bytes as f64 * 100.0 / total as f64)
        };
        let [buckets, packets] = ["buckets", "packets"].map(|key| word(&member[key]));
        vec![
            word(&member["name"]),
            state(member),
            lacp_state(member),
            buckets,
            packets,
            bytes.to_string(),
            share,
        ]
    };
    let rows: Vec<Vec<String>> = members.iter().map(row).collect();
    grid("  ", &["member", "state", "LACP", ">buckets", ">packets", ">bytes", ">share"], &rows)
}

/// Describes whether a member is used, and why not.
pub(super) fn state(member: &Value) -> String {
    let due = member["changes_in_ms"].as_u64().map(seconds);
    let against = member["against"].as_str();
    match (member["enabled"] == true, against, due) {
        (true, Some(why), Some(due)) => format!("enabled, until in {due}: {why}"),
        (true, ..) => "enabled".to_string(),
        (false, None, Some(due)) => format!("works, enabled in {due}"),
        (false, Some(why), _) => format!("disabled: {why}"),
        (false, None, None) => "disabled".to_string(),
    }
}

/// Describes the LACP state of a member.
pub(super) fn lacp_state(member: &Value) -> String {
    let lacp = &member["lacp"];
    let words = match (lacp["mux"].as_str(), lacp["receive"].as_str()) {
        (Some("distributing"), _) => "in use",
        (Some("collecting"), _) => "receives, does not yet send",
        (Some("attached"), _) => "in sync, but the partner is not",
        (Some("waiting"), _) => "waiting for other members",
        (Some(_), Some("port disabled")) => "no link",
        (Some(_), Some("defaulted")) => "no partner",
        (Some(_), Some("expired")) => "partner is silent",
        (Some(_), Some("current")) if lacp["selected"] == false => "not selected: another partner or key",
        (Some(mux), _) => mux,
        (None, _) => "-",
    };
    words.to_string()
}

/// Prints flows with a bucket of their own, and what each carried in the last interval.
fn pinned_text(bond: &Value) -> String {
    let rows = rows(items(&bond["pinned"]), ["flow", "member", "load", "why"]);
    if rows.is_empty() {
        String::new()
    } else {
        grid("  ", &["pinned flow", "member", ">load", "why"], &rows)
    }
}

fn moves_text(bond: &Value) -> String {
    let row = |moved: &Value| {
        let ago = seconds(moved["ago_ms"].as_u64().unwrap_or_default());
        vec![
            format!("{ago} ago"),
            what_moved(moved),
            format!("to {}", word(&moved["to"])),
            word(&moved["why"]),
        ]
    };
    let rows: Vec<Vec<String>> = items(&bond["moves"]).iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    grid("  ", &[">last moves", "what", "where", "why"], &rows)
}

/// Describes what a move has moved.
pub(super) fn what_moved(moved: &Value) -> String {
    match (moved["buckets"].as_u64(), &moved["first"]) {
        _ if moved["flow"].is_string() => word(&moved["flow"]),
        (Some(1), first) => format!("bucket {}", word(first)),
        (count, _) => format!("{} buckets", count.unwrap_or_default()),
    }
}

fn lacp_text(bond: &Value) -> String {
    let mut text = String::new();
    for member in items(&bond["members"]).iter().filter(|member| member["lacp"].is_object()) {
        let lacp = &member["lacp"];
        let [receive, mux, periodic] = ["receive", "mux", "periodic"].map(|key| word(&lacp[key]));
        _ = writeln!(
            text,
            "\n  LACP of {}: receive machine {receive}, mux {mux}, sends {periodic}",
            word(&member["name"])
        );
        for end in ["actor", "partner"] {
            let info = &lacp[end];
            let [system, key, port, priority] =
                ["system", "key", "port", "port_priority"].map(|key| word(&info[key]));
            let state: Vec<String> = items(&info["state"]).iter().map(word).collect();
            _ = writeln!(text, "    {end:<8} {system}, key {key}, port {port} priority {priority}");
            let none = if state.is_empty() { "none" } else { "" };
            _ = writeln!(
                text,
                "    {:<8} state {}{none}; churn {}",
                "",
                state.join(" "),
                word(&lacp[format!("{end}_churn")])
            );
        }
        let [received, sent, markers, refused, expired, defaulted] =
            ["received", "sent", "markers", "refused", "expired", "defaulted"].map(|key| word(&lacp[key]));
        _ = writeln!(
            text,
            "    LACPDUs  {received} received, {sent} sent, {refused} refused; {markers} markers"
        );
        _ = writeln!(text, "    partner expired {expired} times, defaulted {defaulted} times");
    }
    text
}

/// Prints every bucket, one per line.
fn buckets_text(bond: &Value) -> String {
    let rows = rows(items(&bond["buckets"]), ["bucket", "member", "packets", "bytes"]);
    let table = grid("  ", &[">bucket", "member", ">packets", ">bytes"], &rows);
    format!("{}{table}", word(&bond["name"]))
}

/// Prints what a rebalance does, or would do.
fn plan_text(plan: &Value, dry_run: bool) -> String {
    if let Some(why) = plan["why_not"].as_str() {
        return format!("nothing moves: {why}\n");
    }
    let moves = items(&plan["moves"]);
    let count = match moves.len() {
        1 => "1 bucket".to_string(),
        count => format!("{count} buckets"),
    };
    let mut text = match (moves.len(), dry_run) {
        (0, _) => "nothing moves: no move would balance the loads better\n".to_string(),
        (_, true) => format!("{count} would move\n"),
        (_, false) => format!("{count} move when idle\n"),
    };
    if !moves.is_empty() {
        let row = |one: &Value| {
            let what = if one["flow"].is_string() { "flow" } else { "bucket" };
            [what, "from", "to", "why"].map(|key| word(&one[key])).to_vec()
        };
        let rows: Vec<Vec<String>> = moves.iter().map(row).collect();
        text += &grid("  ", &[">bucket", "from", "to", "why"], &rows);
    }
    let loads = rows(items(&plan["loads"]), ["member", "before", "after"]);
    text += &grid("  ", &["member", ">load before", ">load after"], &loads);
    for elephant in items(&plan["elephants"]) {
        let [bucket, load, fair] = ["bucket", "load", "fair"].map(|key| word(&elephant[key]));
        _ = writeln!(
            text,
            "  bucket {bucket} alone carries {load}, but a fair share is {fair}: no move \
            helps"
        );
    }
    text
}

fn rows<const N: usize>(of: &[Value], keys: [&str; N]) -> Vec<Vec<String>> {
    of.iter().map(|one| keys.map(|key| word(&one[key])).to_vec()).collect()
}

/// Prints a table after an empty line. Columns are as wide as their contents; columns marked `>` are
/// right-aligned.
fn grid(indent: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    let names: Vec<String> = heads.iter().map(|head| head.trim_start_matches('>').to_string()).collect();
    let lines = || std::iter::once(&names).chain(rows);
    let width = |at: usize| lines().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::from("\n");
    for line in lines() {
        let cell = |(at, cell): (usize, &String)| {
            let width = widths[at];
            if heads[at].starts_with('>') { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        let cells: Vec<String> = line.iter().enumerate().map(cell).collect();
        _ = writeln!(text, "{indent}{}", cells.join("  ").trim_end());
    }
    text
}

pub(super) use weir_app::page::items;
pub(super) use weir_app::shown::seconds;

pub(super) fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_member_says_in_words_why_it_is_not_used() {
        for (member, expected) in [
            (json!({ "enabled": true }), "enabled"),
            (json!({ "enabled": false, "against": "no carrier" }), "disabled: no carrier"),
            (
                json!({ "enabled": true, "against": "no carrier", "changes_in_ms": 200 }),
                "enabled, until in 200 ms: no carrier",
            ),
            (json!({ "enabled": false, "against": null, "changes_in_ms": 1500 }), "works, enabled in 1.5 s"),
        ] {
            assert_eq!(state(&member), expected);
        }
    }

    #[test]
    fn lacp_says_in_words_how_far_it_has_come() {
        let lacp = |mux: &str, receive: &str, selected: bool| {
            lacp_state(&json!({ "lacp": { "mux": mux, "receive": receive, "selected": selected } }))
        };
        assert_eq!(lacp("distributing", "current", true), "in use");
        assert_eq!(lacp("waiting", "current", true), "waiting for other members");
        assert_eq!(lacp("detached", "defaulted", false), "no partner");
        assert_eq!(lacp("detached", "current", false), "not selected: another partner or key");
        assert_eq!(lacp("detached", "expired", false), "partner is silent");
        assert_eq!(lacp_state(&json!({ "lacp": null })), "-");
    }

    #[test]
    fn pinned_flows_are_shown_and_their_moves() {
        let pin = json!({ "flow": "udp a > b", "member": "p1", "load": 700, "why": "because" });
        assert_eq!(
            pinned_text(&json!({ "pinned": [pin] })),
            "\n  pinned flow  member  load  why\n  udp a > b    p1       700  because\n"
        );
        assert_eq!(pinned_text(&json!({ "pinned": [] })), "");
        let moved = json!({ "ago_ms": 5, "buckets": 0, "first": null, "flow": "udp a > \
            b", "to": "p2", "why": "even" });
        assert!(moves_text(&json!({ "moves": [moved] })).contains("udp a > b  to p2  even"));
    }

    #[test]
    fn a_plan_names_moves_loads_and_elephants() {
        let plan = json!({
            "moves": [{ "bucket": 7, "from": "p1", "to": "p2", "why": "because" }],
            "loads": [{ "member": "p1", "before": 1_000_000, "after": 9 }, { "member": "p2", "before": 0,
                "after": 8 }],
            "elephants": [{ "bucket": 3, "load": 5, "fair": 2 }],
        });
        assert_eq!(
            plan_text(&plan, true),
            "1 bucket would move\n\n  bucket  from  to  why\n       7  p1    p2  because\n\n  \
             member  load before  load after\n  p1          1000000           9\n  p2                \
             0           8\n  \
             bucket 3 alone carries 5, but a fair share is 2: no move helps\n"
        );
        let flow = json!({ "moves": [{ "flow": "udp a > b", "from": "p1", "to": "p2", "why": "because" }] });
        assert!(
            plan_text(&flow, true).contains("\n  udp a > b  p1    p2  because\n"),
            "{}",
            plan_text(&flow, true)
        );
        assert!(plan_text(&json!({ "moves": [], "why_not": "no" }), false).starts_with("nothing moves: no"));
    }
}
