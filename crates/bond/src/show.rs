//! The state of a bond, as shown to an operator.

use super::answer::{
    BondState, BucketList, BucketRow, HeavyBucket, LacpEnd, LacpState, LoggedMove, MemberLacp, MemberState,
    PinnedFlow, PlanReport, PlannedLoad, PlannedMove,
};
use super::app::BondApp;
use super::assignment::MoveRefusal;
use super::config::Bond;
use super::lacp::{Info, MemberStatus, Negotiation};
use super::links::Reason;
use super::rebalance::{Carrier, Elephant, Plan};
use super::traffic::Traffic;
use std::collections::BTreeMap;
use weir_app::{Sample, SampleValue};
use weir_packet::KeySource;
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
pub fn bond(app: &BondApp, now_ns: u64) -> BondState {
    let Traffic { buckets, balance, elephants } = &app.traffic;
    let ago_ms = |at_ns: u64| now_ns.saturating_sub(at_ns) / 1_000_000;
    let name = |id: u16| app.members.name(id).to_string();
    let status = app.aggregation.status();
    let members = app.bond.members.iter().map(|member| {
        let lacp = status.as_ref().and_then(|status| {
            status.members.iter().find(|one| app.members.id(&member.name) == Some(one.member))
        });
        self::member(app, &member.name, lacp, now_ns)
    });
    let moves = buckets.log.iter().rev().map(|moved| LoggedMove {
        ago_ms: ago_ms(moved.at_ns),
        buckets: moved.buckets.len(),
        first: moved.buckets.first().copied(),
        to: name(moved.to),
        why: moved.why.clone(),
        flow: moved.flow.map(|flow| flow.to_string()),
    });
    let pinned = elephants.pins.values().map(|pin| PinnedFlow {
        flow: pin.flow.to_string(),
        member: name(pin.member),
        bucket: pin.bucket,
        load: pin.load,
        for_ms: ago_ms(pin.since_ns),
        why: pin.why.clone(),
    });
    BondState {
        name: app.bond.name.clone(),
        mode: app.bond.mode.name().to_string(),
        lacp: status.as_ref().map(|status| LacpState {
            negotiation: negotiation(status.negotiation).to_string(),
            system: status.system.to_string(),
            links: status.links,
            min_links: status.min_links,
        }),
        active: app.links.active().map(name),
        buckets: app.bond.size(),
        next_rebalance_ms: balance.rebalance.remaining_ms(now_ns).filter(|_| app.bond.mode.is_balanced()),
        members: members.collect(),
        moved: app.traffic.moved(),
        moved_busy: app.traffic.moved_busy(),
        waiting: buckets.report.pending + elephants.report.pending,
        pinned: pinned.collect(),
        learnt: app.stations.learnt.len(),
        moves: moves.collect(),
        headers: headers(&app.bond).to_string(),
        basis: app.bond.basis,
        primary: app.bond.primary.clone(),
        updelay_ms: app.bond.updelay_ms,
        downdelay_ms: app.bond.downdelay_ms,
        fallback: app.bond.lacp.as_ref().is_some_and(|lacp| lacp.fallback),
    }
}

/// Returns the series of all members, and that of LACP if the bond uses it.
pub fn samples(app: &BondApp) -> Vec<Sample> {
    let mut buckets = BTreeMap::<u16, usize>::new();
    for owner in app.traffic.buckets.assignment.slots() {
        *buckets.entry(*owner).or_default() += 1;
    }
    let sample = |name, help, labels, value| Sample { name, help, labels, value: SampleValue::Gauge(value) };
    let is = |condition: bool| f64::from(u8::from(condition));
    let of_member = |name: &String| {
        let id = app.members.id(name).unwrap_or(NO_TARGET);
        let enabled = app.links.state(id).is_some_and(|link| link.enabled);
        let owned = buckets.get(&id).copied().unwrap_or_default();
        [
            ("bond_member_enabled", "1 if the member may carry traffic", is(enabled)),
            (
                "bond_member_withheld",
                "1 if an operator has disabled the member",
                is(app.members.disabled.contains(&id)),
            ),
            ("bond_member_buckets", "Buckets that lead to the member", owned as f64),
        ]
        .map(|(metric, help, value)| sample(metric, help, vec![("member", name.clone())], value))
    };
    let lacp = app.aggregation.status().map(|status| {
        let help = "1 if LACP has been negotiated";
        sample("bond_lacp_negotiated", help, vec![], is(status.negotiation == Negotiation::Negotiated))
    });
    app.bond.members.iter().flat_map(|member| of_member(&member.name)).chain(lacp).collect()
}

/// Returns the value of `headers` in the configuration.
const fn headers(bond: &Bond) -> &'static str {
    match (bond.rss, bond.key) {
        (true, _) => "rss",
        (false, KeySource::Outer) => "outer",
        (false, KeySource::Inner) => "inner",
    }
}

fn member(app: &BondApp, name: &str, lacp: Option<&MemberStatus>, now_ns: u64) -> MemberState {
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
    MemberState {
        name: name.to_string(),
        enabled: link.is_some_and(|link| link.enabled),
        active: app.links.active() == Some(id),
        disabled_by_operator: app.members.disabled.contains(&id),
        against: link.and_then(|link| link.against).map(|why| reason(why).to_string()),
        changes_in_ms: due,
        buckets: own.clone().count(),
        packets: sum(&buckets.report.packets, &heavy.packets),
        bytes: sum(&buckets.report.bytes, &heavy.bytes),
        lacp: lacp.map(lacp_member),
    }
}

fn lacp_member(status: &MemberStatus) -> MemberLacp {
    let counters = &status.counters;
    MemberLacp {
        receive: status.receive.to_string(),
        mux: status.mux.to_string(),
        periodic: status.periodic.to_string(),
        selected: status.selected,
        actor: end(&status.actor),
        partner: end(&status.partner),
        actor_churn: status.actor_churn.to_string(),
        partner_churn: status.partner_churn.to_string(),
        received: counters.lacpdus_received,
        sent: counters.lacpdus_sent,
        markers: counters.markers_received,
        refused: counters.refused.iter().sum(),
        expired: counters.expired,
        defaulted: counters.defaulted,
    }
}

fn end(info: &Info) -> LacpEnd {
    LacpEnd {
        system: info.system.to_string(),
        key: info.key,
        port: info.port.number,
        port_priority: info.port.priority,
        state: info.state.names().map(str::to_string).collect(),
    }
}

/// Returns all buckets.
pub fn buckets(app: &BondApp) -> BucketList {
    let buckets = &app.traffic.buckets;
    let bucket = |(at, id): (usize, &u16)| BucketRow {
        bucket: at,
        member: app.members.name(*id).to_string(),
        packets: buckets.report.packets.get(at).copied(),
        bytes: buckets.report.bytes.get(at).copied(),
    };
    let rows = buckets.assignment.slots().iter().enumerate().map(bucket);
    BucketList { name: app.bond.name.clone(), buckets: rows.collect() }
}

/// Returns the plan of a rebalance, which is carried out or would be.
pub fn plan(app: &BondApp, plan: Option<(&Plan, &[Carrier])>) -> PlanReport {
    let Some((plan, carriers)) = plan else {
        let why = format!("mode {} does not balance by load", app.bond.mode.name());
        return PlanReport { why_not: Some(why), ..PlanReport::default() };
    };
    let name = |id: u16| app.members.name(id).to_string();
    let moves = plan.moves.iter().map(|shift| {
        let pinned = shift.bucket.checked_sub(app.bond.size());
        let pin = pinned.and_then(|slot| app.traffic.elephants.pins.get(&slot));
        PlannedMove {
            bucket: pin.is_none().then_some(shift.bucket),
            flow: pin.map(|pin| pin.flow.to_string()),
            from: name(shift.from),
            to: name(shift.to),
            why: shift.reason.to_string(),
        }
    });
    let heavy = |Elephant { bucket, load, fair }: &Elephant| HeavyBucket {
        bucket: *bucket,
        load: *load,
        fair: *fair,
    };
    let loads = carriers.iter().zip(plan.before.iter().zip(&plan.after));
    let load = |(carrier, (before, after)): (&Carrier, (&u64, &u64))| PlannedLoad {
        member: name(carrier.member),
        before: *before,
        after: *after,
    };
    PlanReport {
        moves: moves.collect(),
        why_not: None,
        loads: Some(loads.map(load).collect()),
        elephants: Some(plan.elephants.iter().map(heavy).collect()),
    }
}
