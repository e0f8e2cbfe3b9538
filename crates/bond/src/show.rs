//! The state of a bond, as shown to an operator.

use super::app::BondApp;
use super::assignment::MoveRefusal;
use super::config::Bond;
use super::lacp::{Info, MemberStatus, Negotiation};
use super::links::Reason;
use super::rebalance::{Carrier, Plan};
use super::traffic::Traffic;
use serde_json::{Value, json};
use weir_table::NO_TARGET;

/// Describes the state of the LACP negotiation.
pub fn negotiation(negotiation: Negotiation) -> &'static str {
    match negotiation {
        Negotiation::Configured => "configured",
        Negotiation::TooFewLinks => "too few links",
        Negotiation::Negotiated => "negotiated",
        Negotiation::Fallback => "fallback",
    }
}

/// Describes why a member is not used.
pub fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Removed => "removed",
        Reason::Operator => "by the operator",
        Reason::Carrier => "no carrier",
        Reason::Lacp => "LACP does not let it send",
        Reason::Probe => "its probes get no answer",
    }
}

/// Reports that there is no such member, and lists the members.
pub fn no_member(bond: &Bond, name: &str) -> String {
    let names: Vec<&str> = bond.members.iter().map(|member| member.name.as_str()).collect();
    format!("bond `{}` has no member `{name}`; its members are {}", bond.name, names.join(", "))
}

/// Describes why a bucket is not moved.
pub fn refusal(app: &BondApp, why: &MoveRefusal) -> String {
    match why {
        MoveRefusal::NoBucket(bucket) => {
            format!("there is no bucket {bucket}: buckets are numbered 0 to {}", app.bond.size() - 1)
        }
        MoveRefusal::NoMember(id) | MoveRefusal::NotLiving(id) => {
            format!("{} is not enabled, or has weight 0", app.members.name(*id))
        }
    }
}

/// Returns the state of the bond, its members and its latest moves.
pub fn bond(app: &BondApp, now_ns: u64) -> Value {
    let Traffic { buckets, balance, elephants } = &app.traffic;
    let status = app.aggregation.status();
    let members = app.bond.members.iter().map(|member| {
        let lacp = status.as_ref().and_then(|status| {
            status.members.iter().find(|one| app.members.id(&member.name) == Some(one.member))
        });
        self::member(app, &member.name, lacp, now_ns)
    });
    let moves = buckets.log.iter().rev().map(|moved| {
        let ago_ms = now_ns.saturating_sub(moved.at_ns) / 1_000_000;
        let first = moved.buckets.first();
        let mut shown = json!({
            "ago_ms": ago_ms, "buckets": moved.buckets.len(), "first": first,
                "to": app.members.name(moved.to), "why": moved.why,
        });
        if let Some(flow) = moved.flow {
            shown["flow"] = json!(flow.to_string());
        }
        shown
    });
    let pinned = elephants.pins.values().map(|pin| {
        json!({
            "flow": pin.flow.to_string(),
            "member": app.members.name(pin.member),
            "bucket": pin.bucket,
            "load": pin.load,
            "for_ms": now_ns.saturating_sub(pin.since_ns) / 1_000_000,
            "why": pin.why,
        })
    });
    let (moved, moved_busy) = app.traffic.moved();
    json!({
        "name": app.bond.name,
        "mode": app.bond.mode.name(),
        "lacp": status.as_ref().map(|status| json!({
            "negotiation": negotiation(status.negotiation),
            "system": status.system.to_string(),
            "links": status.links,
            "min_links": status.min_links,
        })),
        "active": app.links.active().map(|id| app.members.name(id)),
        "buckets": app.bond.size(),
        "next_rebalance_ms": balance.rebalance.remaining_ms(now_ns).filter(|_| app.bond.mode.is_balanced()),
        "members": members.collect::<Vec<_>>(),
        "moved": moved,
        "moved_busy": moved_busy,
        "waiting": buckets.report.pending + elephants.report.pending,
        "pinned": pinned.collect::<Vec<_>>(),
        "learnt": app.stations.learnt.len(),
        "moves": moves.collect::<Vec<_>>(),
    })
}

fn member(app: &BondApp, name: &str, lacp: Option<&MemberStatus>, now_ns: u64) -> Value {
    let Traffic { buckets, elephants, .. } = &app.traffic;
    let id = app.members.id(name).unwrap_or(NO_TARGET);
    let link = app.links.state(id);
    let own =
        buckets.assignment.slots().iter().enumerate().filter(|entry| *entry.1 == id).map(|entry| entry.0);
    let pins = elephants.pins.iter().filter(|one| one.1.member == id).map(|one| *one.0 as usize);
    let sum = |totals: &[u64], pinned: &[u64]| {
        let pinned = pins.clone().filter_map(|slot| pinned.get(slot));
        own.clone().filter_map(|bucket| totals.get(bucket)).chain(pinned).sum::<u64>()
    };
    let heavy = &elephants.report;
    let due = link.and_then(|link| link.due_ns).map(|due_ns| due_ns.saturating_sub(now_ns) / 1_000_000);
    json!({
        "name": name,
        "enabled": link.is_some_and(|link| link.enabled),
        "active": app.links.active() == Some(id),
        "disabled_by_operator": app.members.disabled.contains(&id),
        "against": link.and_then(|link| link.against).map(reason),
        "changes_in_ms": due,
        "buckets": own.clone().count(),
        "packets": sum(&buckets.report.packets, &heavy.packets),
        "bytes": sum(&buckets.report.bytes, &heavy.bytes),
        "lacp": lacp.map(lacp_member),
    })
}

fn lacp_member(status: &MemberStatus) -> Value {
    let counters = &status.counters;
    json!({
        "receive": status.receive,
        "mux": status.mux,
        "periodic": status.periodic,
        "selected": status.selected,
        "actor": info(&status.actor),
        "partner": info(&status.partner),
        "actor_churn": status.actor_churn,
        "partner_churn": status.partner_churn,
        "received": counters.lacpdus_received,
        "sent": counters.lacpdus_sent,
        "markers": counters.markers_received,
        "refused": counters.refused.iter().sum::<u64>(),
        "expired": counters.expired,
        "defaulted": counters.defaulted,
    })
}

fn info(info: &Info) -> Value {
    json!({
        "system": info.system.to_string(),
        "key": info.key,
        "port": info.port.number,
        "port_priority": info.port.priority,
        "state": info.state.names().collect::<Vec<_>>(),
    })
}

/// Returns all buckets.
pub fn buckets(app: &BondApp) -> Value {
    let buckets = &app.traffic.buckets;
    let bucket = |(at, id): (usize, &u16)| {
        json!({
            "bucket": at,
            "member": app.members.name(*id),
            "packets": buckets.report.packets.get(at),
            "bytes": buckets.report.bytes.get(at),
        })
    };
    json!({
        "name": app.bond.name,
        "buckets": buckets.assignment.slots().iter().enumerate().map(bucket).collect::<Vec<_>>(),
    })
}

/// Returns what a rebalance does, or would do.
pub fn plan(app: &BondApp, plan: Option<(&Plan, &[Carrier])>) -> Value {
    let Some((plan, carriers)) = plan else {
        let why = format!("mode {} does not balance by load", app.bond.mode.name());
        return json!({ "moves": [], "why_not": why });
    };
    let pin = |bucket: u32| app.traffic.elephants.pins.get(&bucket.checked_sub(app.bond.size())?);
    let moves = plan.moves.iter().map(|shift| {
        let [from, to] = [shift.from, shift.to].map(|member| app.members.name(member));
        let why = shift.reason.to_string();
        match pin(shift.bucket) {
            Some(pin) => json!({ "flow": pin.flow.to_string(), "from": from, "to": to, "why": why }),
            None => json!({ "bucket": shift.bucket, "from": from, "to": to, "why": why }),
        }
    });
    let loads = carriers.iter().zip(plan.before.iter().zip(&plan.after)).map(|(carrier, (before, after))| {
        json!({ "member": app.members.name(carrier.member), "before": before,
            "after": after })
    });
    let elephants = plan
        .elephants
        .iter()
        .map(|elephant| json!({ "bucket": elephant.bucket, "load": elephant.load, "fair": elephant.fair }));
    json!({
        "moves": moves.collect::<Vec<_>>(),
        "loads": loads.collect::<Vec<_>>(),
        "elephants": elephants.collect::<Vec<_>>(),
    })
}
