//! The output of `weir show bond` and `weir bond`: the answers of a running bond, formatted for humans.

use super::answer::{
    BondState, BucketList, BucketRow, HeavyBucket, LacpEnd, LacpState, LoggedMove, MemberLacp, MemberState,
    PinnedFlow, PlanReport, PlannedLoad, PlannedMove,
};
use std::fmt::{Display, Write as _};
use weir_app::kind::{Argument, Verb, View};
use weir_app::shown::{as_text, seconds};

/// The views of `weir show bond [buckets] [NAME]`.
pub(super) const VIEWS: &[View] = &[
    View { word: "", request: "show", text: |answer| as_text(answer, bond_text) },
    View { word: "buckets", request: "buckets", text: |answer| as_text(answer, buckets_text) },
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
        text: |answer, flags| as_text(answer, |plan| plan_text(plan, !flags.is_empty())),
    }
}

/// Prints a bond, its members, its latest moves, and the LACP state of each member.
fn bond_text(bond: &BondState) -> String {
    let mut text = format!("{}\n", bond.name);
    let mut line = |key: &str, value: &dyn Display| _ = writeln!(text, "  {key:<15} {value}");
    line("mode", &bond.mode);
    if let Some(LacpState { negotiation, system, links, min_links }) = &bond.lacp {
        let least = (*min_links).max(1);
        line("LACP", &format!("{negotiation}, {links} links in sync (needed: {least})"));
        line("system", system);
        if bond.fallback {
            line("fallback", &"one member is used while no partner speaks LACP");
        }
    }
    let is_fallback = bond.lacp.as_ref().is_some_and(|lacp| lacp.negotiation == "fallback");
    if is_fallback || ["active_backup", "balance_slb"].contains(&bond.mode.as_str()) {
        line("active", &bond.active.as_deref().unwrap_or("none"));
    }
    if let Some(primary) = &bond.primary {
        line("primary", primary);
    }
    line("hash", &format!("{}, basis {}", bond.headers, bond.basis));
    line("delays", &format!("up {} ms, down {} ms", bond.updelay_ms, bond.downdelay_ms));
    line("buckets", &bond.buckets);
    line("next rebalance", &bond.next_rebalance());
    line("moved", &bond.moved());
    if bond.learnt != 0 {
        line("learnt", &format!("{} MAC addresses inside", bond.learnt));
    }
    text + &members_text(&bond.members)
        + &pinned_text(&bond.pinned)
        + &moves_text(&bond.moves)
        + &lacp_text(bond)
}

fn members_text(members: &[MemberState]) -> String {
    let total: u64 = members.iter().map(|member| member.bytes).sum();
    let row = |member: &MemberState| {
        let MemberState { name, buckets, packets, bytes, .. } = member;
        let share = match total {
            0 => "-".to_string(),
            _ => format!("{:.1} %", *bytes as f64 * 100.0 / total as f64),
        };
        cells([name, &member.state(), &member.lacp_state(), buckets, packets, bytes, &share])
    };
    grid(
        &["member", "state", "LACP", ">buckets", ">packets", ">bytes", ">share"],
        &members.iter().map(row).collect::<Vec<_>>(),
    )
}

/// Prints flows with a bucket of their own, and what each carried in the last interval.
fn pinned_text(pinned: &[PinnedFlow]) -> String {
    let row = |pin: &PinnedFlow| cells([&pin.flow, &pin.member, &pin.load, &pin.why]);
    let rows: Vec<_> = pinned.iter().map(row).collect();
    if rows.is_empty() { String::new() } else { grid(&["pinned flow", "member", ">load", "why"], &rows) }
}

fn moves_text(moves: &[LoggedMove]) -> String {
    let row = |moved: &LoggedMove| {
        let (ago, to) = (format!("{} ago", seconds(moved.ago_ms)), format!("to {}", moved.to));
        cells([&ago, &moved.what(), &to, &moved.why])
    };
    let rows: Vec<_> = moves.iter().map(row).collect();
    if rows.is_empty() { String::new() } else { grid(&[">last moves", "what", "where", "why"], &rows) }
}

fn lacp_text(bond: &BondState) -> String {
    let mut text = String::new();
    for (name, lacp) in bond.members.iter().filter_map(|member| Some((&member.name, member.lacp.as_ref()?))) {
        let MemberLacp { receive, mux, periodic, .. } = lacp;
        _ = writeln!(text, "\n  LACP of {name}: receive machine {receive}, mux {mux}, sends {periodic}");
        let ends =
            [("actor", &lacp.actor, &lacp.actor_churn), ("partner", &lacp.partner, &lacp.partner_churn)];
        for (end, LacpEnd { system, key, port, port_priority, state }, churn) in ends {
            _ = writeln!(text, "    {end:<8} {system}, key {key}, port {port} priority {port_priority}");
            let state = if state.is_empty() { "none".to_string() } else { state.join(" ") };
            _ = writeln!(text, "    {:<8} state {state}; churn {churn}", "");
        }
        let MemberLacp { received, sent, markers, refused, expired, defaulted, .. } = lacp;
        _ = writeln!(
            text,
            "    LACPDUs  {received} received, {sent} sent, {refused} refused; {markers} markers"
        );
        _ = writeln!(text, "    partner expired {expired} times, defaulted {defaulted} times");
    }
    text
}

/// Prints every bucket, one per line.
fn buckets_text(list: &BucketList) -> String {
    let count = |count: Option<u64>| count.map_or_else(|| "-".to_string(), |count| count.to_string());
    let row = |one: &BucketRow| cells([&one.bucket, &one.member, &count(one.packets), &count(one.bytes)]);
    let rows: Vec<_> = list.buckets.iter().map(row).collect();
    format!("{}{}", list.name, grid(&[">bucket", "member", ">packets", ">bytes"], &rows))
}

/// Prints the plan of a rebalance, which is carried out or would be.
fn plan_text(plan: &PlanReport, dry_run: bool) -> String {
    if let Some(why) = &plan.why_not {
        return format!("nothing moves: {why}\n");
    }
    let count = match plan.moves.len() {
        1 => "1 bucket".to_string(),
        count => format!("{count} buckets"),
    };
    let mut text = match (plan.moves.len(), dry_run) {
        (0, _) => "nothing moves: no move would balance the loads better\n".to_string(),
        (_, true) => format!("{count} would move\n"),
        (_, false) => format!("{count} move when idle\n"),
    };
    let row = |PlannedMove { bucket, flow, from, to, why }: &PlannedMove| {
        let bucket = bucket.map(|bucket| bucket.to_string());
        cells([&bucket.or(flow.clone()).unwrap_or_default(), from, to, why])
    };
    let moves: Vec<_> = plan.moves.iter().map(row).collect();
    if !moves.is_empty() {
        text += &grid(&[">bucket", "from", "to", "why"], &moves);
    }
    let row = |PlannedLoad { member, before, after }: &PlannedLoad| cells([member, before, after]);
    let loads: Vec<_> = plan.loads.iter().flatten().map(row).collect();
    text += &grid(&["member", ">load before", ">load after"], &loads);
    for HeavyBucket { bucket, load, fair } in plan.elephants.iter().flatten() {
        _ = writeln!(
            text,
            "  bucket {bucket} alone carries {load}, but a fair share is {fair}: no move helps"
        );
    }
    text
}

fn cells<const N: usize>(row: [&dyn Display; N]) -> Vec<String> {
    row.iter().map(ToString::to_string).collect()
}

/// Prints a table after an empty line. Columns are as wide as their contents; columns marked `>` are
/// right-aligned.
fn grid(heads: &[&str], rows: &[Vec<String>]) -> String {
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
        _ = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(answer: Value) -> T {
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn a_member_says_in_words_why_it_is_not_used() {
        for (enabled, against, changes_in_ms, expected) in [
            (true, None, None, "enabled"),
            (false, Some("no carrier"), None, "disabled: no carrier"),
            (true, Some("no carrier"), Some(200), "enabled, until in 200 ms: no carrier"),
            (false, None, Some(1500), "works, enabled in 1.5 s"),
        ] {
            let against = against.map(str::to_string);
            let member = MemberState { enabled, against, changes_in_ms, ..MemberState::default() };
            assert_eq!(member.state(), expected);
        }
    }

    #[test]
    fn lacp_says_in_words_how_far_it_has_come() {
        let of = |lacp: Option<MemberLacp>| MemberState { lacp, ..MemberState::default() };
        for (mux, receive, selected, expected) in [
            ("distributing", "current", true, "in use"),
            ("waiting", "current", true, "waiting for other members"),
            ("detached", "defaulted", false, "no partner"),
            ("detached", "current", false, "not selected: another partner or key"),
            ("detached", "expired", false, "partner is silent"),
        ] {
            let (mux, receive) = (mux.to_string(), receive.to_string());
            let lacp = MemberLacp { mux, receive, selected, ..MemberLacp::default() };
            assert_eq!(of(Some(lacp)).lacp_state(), expected);
        }
        assert_eq!(of(None).lacp_state(), "-");
    }

    #[test]
    fn pinned_flows_are_shown_and_their_moves() {
        let bond = json!({
            "pinned": [{ "flow": "udp a > b", "member": "p1", "load": 700, "why": "because" }],
            "moves": [
                { "ago_ms": 5, "buckets": 0, "first": null, "flow": "udp a > b", "to": "p2", "why": "even" },
            ],
        });
        let BondState { pinned, moves, .. } = read(bond);
        assert_eq!(
            pinned_text(&pinned),
            "\n  pinned flow  member  load  why\n  udp a > b    p1       700  because\n"
        );
        assert_eq!(pinned_text(&[]), "");
        assert!(moves_text(&moves).contains("udp a > b  to p2  even"));
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
            plan_text(&read(plan), true),
            "1 bucket would move\n\n  bucket  from  to  why\n       7  p1    p2  because\n\n  \
             member  load before  load after\n  p1          1000000           9\n  p2                \
             0           8\n  \
             bucket 3 alone carries 5, but a fair share is 2: no move helps\n"
        );
        let flow = json!({ "moves": [{ "flow": "udp a > b", "from": "p1", "to": "p2", "why": "because" }] });
        let text = plan_text(&read(flow), true);
        assert!(text.contains("\n  udp a > b  p1    p2  because\n"), "{text}");
        let refused = read(json!({ "moves": [], "why_not": "no" }));
        assert!(plan_text(&refused, false).starts_with("nothing moves: no"));
    }
}
