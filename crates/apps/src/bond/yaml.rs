//! Reads bonds from the configuration and writes them into the program, before all other apps, which refer to
//! bonds like ports.

use super::lacp::{Config, ETHER_TYPE, Policy, Rate, System};
use super::links::{Need, Reselect};
use super::rebalance::Rule;
use super::{
    BUCKETS, BUCKETS_MAX, Bond, BondApp, ELEPHANTS_MAX, Inward, KIND, LEARNT_MAX, MEMBERS_MAX, Member, Mode, Probe,
    problems,
};
use crate::App;
use crate::kind::{Configured, Item, Scope};
use config::attachment::Attachment;
use config::ports::{PortConfig, PortKind, mac};
use config::raw::{Kind, Node};
use config::section::{Section, boolean, choice, duration, list, number, parsed, text};
use config::sets::WEIGHT_MAX;
use config::{Frames, Report, TakeRule, suggestion};
use engine::program::Pipe;
use packet::KeySource;
use std::net::Ipv4Addr;
use std::sync::Arc;

const KEYS: &[&str] = &[
    "name",
    "mode",
    "members",
    "inside",
    "root",
    "buckets",
    "hash",
    "lacp",
    "primary",
    "reselect",
    "updelay",
    "downdelay",
    "probe",
    "rebalance",
    "idle_gap",
    "idle_gap_max",
    "learnt_max",
    "announce",
];
const MEMBER: &[&str] = &["port", "weight", "lacp_priority", "lacp_key"];
const LACP: &[&str] = &["mode", "rate", "system_priority", "system_id", "key", "min_links", "select", "fallback"];
const PROBE: &[&str] = &["targets", "source", "interval", "missed_max", "need"];
const REBALANCE: &[&str] = &["interval", "by_capacity", "moves_on", "budget", "elephants"];

/// Default priority of systems and ports (802.1AX 6.3.2, 6.3.4).
const PRIORITY: u16 = 0x8000;
/// Open vSwitch's default interval, in nanoseconds.
const REBALANCE_NS: u64 = 10_000_000_000;
/// Longer than the difference in delay between two links of a host; shorter than TCP's pause between two
/// windows. In nanoseconds.
const IDLE_GAP_NS: u64 = 1_000_000;
const IDLE_GAP_MAX_NS: u64 = 1_000_000_000;
/// The largest delay or interval: one hour, in nanoseconds.
const DELAY_MAX_NS: u64 = 3_600_000_000_000;
const TARGETS_MAX: usize = 16;

/// The bonds of a configuration.
#[derive(Debug)]
pub struct Bonds(pub Vec<Bond>);

impl Configured for Bonds {
    /// A bond that forwards its frames takes all of them, whatever their destination; a bond with another app
    /// on top takes only its own LACP.
    fn take(&self) -> Vec<TakeRule> {
        let of = |bond: &Bond| {
            let inside = if let Inward::Port(inside) = bond.inward { Some(inside) } else { None };
            let frames = if bond.inward == Inward::Open { Frames::Group(ETHER_TYPE) } else { Frames::All };
            bond.ports().into_iter().chain(inside).map(move |port| TakeRule { port, frames }).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    fn running(&self) -> Vec<Box<dyn App>> {
        self.0.iter().map(|bond| -> Box<dyn App> { Box::new(BondApp::new(bond.clone())) }).collect()
    }
}

/// Reads the bonds. If there are no errors, writes them and offers them to other apps.
pub(super) fn read(items: &[Item<'_>], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let before = scope.report.errors();
    let mut bonds: Vec<Bond> = Vec::new();
    let mut called: Vec<&Node> = Vec::new();
    for item in items {
        let section = Section::of(item.node, &["name"], &mut Report::default());
        let own = section.get("name");
        if let Some(node) = own.filter(|node| called.iter().any(|other| other.kind == node.kind)) {
            scope.report.error(node.span, "two bonds are called so");
        } else if own.is_none() || scope.name_is_free(&section) {
            called.extend(own);
            bonds.extend(bond(item.node, scope));
        }
    }
    for (origin, problem) in problems(&bonds) {
        scope.report.error(scope.report.span_of(origin), problem.to_string());
    }
    if scope.report.errors() == before {
        bonds.iter().for_each(|bond| scope.attachments.add(bond.write(scope.program)));
    } else {
        called.into_iter().for_each(|node| unusable(node, scope));
    }
    Arc::new(Bonds(bonds))
}

/// Registers a bond with errors, so that references to it are not errors too.
fn unusable(node: &Node, scope: &mut Scope<'_>) {
    let Kind::Scalar(name) = &node.kind else { return };
    let origin = scope.report.origin(node.span);
    let pipe = scope.program.pipe(Pipe::basic(name).origin(origin));
    scope.attachments.add(Attachment::unusable(name, KIND.key, pipe, origin));
}

/// Reads a bond; `None` if it has errors, which are in the report.
fn bond(node: &Node, scope: &mut Scope<'_>) -> Option<Bond> {
    let before = scope.report.errors();
    let section = Section::of(node, KEYS, scope.report);
    let called = scope.name(&section);
    let members = section.need("members", "the ports that are one", scope.report);
    let members = members.map(|node| members_of(node, scope)).unwrap_or_default();
    let inward = inward(&section, scope);
    let report = &mut *scope.report;
    let modes: Vec<(&str, Mode)> = Mode::ALL.into_iter().map(|mode| (mode.name(), mode)).collect();
    let mode = section.need("mode", "how frames find their member", report);
    let mode = mode.and_then(|node| choice(node, "a mode", &modes, report));
    let Hashed { basis, key, rss } = hash(section.get("hash"), report);
    let buckets = section.get("buckets");
    let buckets = buckets.and_then(|node| number(node, "buckets", 1..=u64::from(BUCKETS_MAX), report));
    let reselects = [("always", Reselect::Always), ("better", Reselect::Better), ("failure", Reselect::Failure)];
    let reselect = section.get("reselect").and_then(|node| choice(node, "a policy", &reselects, report));
    let (rule, rebalance_ms, elephants) = rebalance(section.get("rebalance"), report);
    let learnt_max = section.get("learnt_max").and_then(|node| number(node, "addresses", 1..=65_536, report));
    let announce = section.get("announce").map(|node| list(node, "addresses", report)).unwrap_or_default();
    let mut bond = Bond {
        name: called.unwrap_or_default(),
        mode: mode.unwrap_or(Mode::ActiveBackup),
        members,
        inward,
        buckets: buckets.map_or(BUCKETS, |buckets| buckets as u32),
        basis,
        key,
        rss,
        lacp: None,
        primary: section.get("primary").and_then(|node| text(node, "a member", report)).map(str::to_string),
        reselect: reselect.unwrap_or_default(),
        updelay_ms: milliseconds(section.get("updelay"), 0, report),
        downdelay_ms: milliseconds(section.get("downdelay"), 0, report),
        probe: section.get("probe").and_then(|node| probe(node, report)),
        rule,
        rebalance_ms,
        elephants,
        idle_gap_ns: time(section.get("idle_gap"), IDLE_GAP_NS, report),
        idle_gap_max_ns: time(section.get("idle_gap_max"), IDLE_GAP_MAX_NS, report),
        learnt_max: learnt_max.map_or(LEARNT_MAX, |most| most as u32),
        announce: announce.iter().filter_map(|node| parsed(node, "an IP address", report)).collect(),
        origin: report.origin(section.get("name").unwrap_or(node).span),
    };
    let system = bond.mac();
    bond.lacp = section.get("lacp").and_then(|node| lacp(node, system, report));
    (report.errors() == before).then_some(bond)
}

/// What picks the bucket of a frame.
#[derive(Clone, Copy)]
struct Hashed {
    basis: u64,
    key: KeySource,
    rss: bool,
}

/// Reads `rss`, or a mapping.
fn hash(node: Option<&Node>, report: &mut Report) -> Hashed {
    let default = Hashed { basis: 0, key: KeySource::Outer, rss: false };
    let Some(node) = node else { return default };
    if matches!(node.kind, Kind::Scalar(_)) {
        let chosen = choice(node, "`hash` (`rss`, or a mapping of `basis` and `headers`)", &[("rss", ())], report);
        return Hashed { rss: chosen.is_some(), ..default };
    }
    let section = Section::of(node, &["basis", "headers"], report);
    let basis = section.get("basis").and_then(|node| number(node, "a basis", 0..=u64::MAX, report));
    // Frames without a hash from their NIC use their outer headers.
    let headers =
        [("outer", (KeySource::Outer, false)), ("inner", (KeySource::Inner, false)), ("rss", (KeySource::Outer, true))];
    let headers = section.get("headers").and_then(|node| choice(node, "the headers that are hashed", &headers, report));
    let (key, rss) = headers.unwrap_or((default.key, default.rss));
    Hashed { basis: basis.unwrap_or(default.basis), key, rss }
}

fn members_of(node: &Node, scope: &mut Scope<'_>) -> Vec<Member> {
    let nodes = list(node, "ports", scope.report);
    if nodes.len() > MEMBERS_MAX {
        scope.report.error(node.span, format!("a bond has {MEMBERS_MAX} members at most"));
    }
    nodes.iter().filter_map(|node| member(node, scope)).collect()
}

/// Reads a port's name, or a mapping with it.
fn member(node: &Node, scope: &mut Scope<'_>) -> Option<Member> {
    let plain = matches!(node.kind, Kind::Scalar(_));
    let section = if plain { None } else { Some(Section::of(node, MEMBER, scope.report)) };
    let named = match &section {
        None => Some(node),
        Some(section) => section.need("port", "the member's port", scope.report),
    }?;
    let mut given = |key: &str, what: &str, most: u64| {
        let node = section.as_ref().and_then(|section| section.get(key));
        node.and_then(|node| number(node, what, 0..=most, scope.report))
    };
    let weight = given("weight", "a weight", WEIGHT_MAX);
    let priority = given("lacp_priority", "a priority", 0xffff);
    let key = given("lacp_key", "a key", 0xffff);
    let port = scope.port(named)?;
    let config = scope.ports.get(port.index())?;
    Some(Member {
        port,
        name: config.name.clone(),
        mac: config.mac,
        mtu: mtu(config),
        weight: weight.map(|weight| weight as u32),
        priority: priority.map_or(PRIORITY, |priority| priority as u16),
        key: key.map(|key| key as u16),
        origin: scope.report.origin(named.span),
    })
}

/// Returns the MTU of an existing interface; that of other ports is unknown.
fn mtu(config: &PortConfig) -> Option<u32> {
    let PortKind::Xdp(xdp) = &config.kind else { return None };
    std::fs::read_to_string(format!("/sys/class/net/{}/mtu", xdp.interface)).ok()?.trim().parse().ok()
}

fn inward(section: &Section<'_>, scope: &mut Scope<'_>) -> Inward {
    if let (Some(_), Some(node)) = (section.get("inside"), section.get("root")) {
        scope.report.error(node.span, "frames from the members go to `inside` or to a `root`, not to both");
    }
    let inside = section.get("inside").and_then(|node| scope.port(node)).map(Inward::Port);
    let root = section.get("root").and_then(|node| {
        let name = text(node, "the name of a pipe", scope.report)?;
        let pipe = scope.program.pipe_named(name);
        if pipe.is_none() {
            let help = suggestion(name, scope.program.pipes.iter().map(|pipe| pipe.name.as_str()));
            scope.report.error_help(node.span, format!("there is no pipe `{name}`"), help);
        }
        pipe
    });
    inside.or(root.map(Inward::Pipe)).unwrap_or(Inward::Open)
}

fn lacp(node: &Node, own: [u8; 6], report: &mut Report) -> Option<Config> {
    let section = Section::of(node, LACP, report);
    let active = [("active", true), ("passive", false)];
    let active = section.get("mode").map_or(Some(true), |node| choice(node, "`active` or `passive`", &active, report));
    let rates = [("fast", Rate::Fast), ("slow", Rate::Slow)];
    let rate = section.get("rate").and_then(|node| choice(node, "`fast` or `slow`", &rates, report));
    let policies = [("stable", Policy::Stable), ("bandwidth", Policy::Bandwidth), ("count", Policy::Count)];
    let policy = section.get("select").and_then(|node| choice(node, "a policy", &policies, report));
    let mut sixteen = |key: &str, what: &str, default: u16| {
        let given = section.get(key).and_then(|node| number(node, what, 0..=0xffff, report));
        given.map_or(default, |given| given as u16)
    };
    let priority = sixteen("system_priority", "a priority", PRIORITY);
    let key = sixteen("key", "a key", 1);
    let min_links = sixteen("min_links", "a number of links", 0);
    let system = section.get("system_id").and_then(|node| mac(node, report)).unwrap_or(own);
    let fallback = section.get("fallback").and_then(|node| boolean(node, "`fallback`", report));
    Some(Config {
        system: System { priority, mac: system },
        key,
        active: active?,
        rate: rate.unwrap_or_default(),
        min_links,
        policy: policy.unwrap_or_default(),
        fallback: fallback.unwrap_or(false),
    })
}

fn probe(node: &Node, report: &mut Report) -> Option<Probe> {
    let section = Section::of(node, PROBE, report);
    let targets = section.need("targets", "whom to ask", report).map(|node| (node, list(node, "addresses", report)));
    let (at, nodes) = targets?;
    if nodes.is_empty() || nodes.len() > TARGETS_MAX {
        report.error(at.span, format!("1 to {TARGETS_MAX} addresses can be asked"));
    }
    let needs = [("any", Need::Any), ("all", Need::All)];
    let need = section.get("need").and_then(|node| choice(node, "`any` or `all`", &needs, report));
    let missed = section.get("missed_max").and_then(|node| number(node, "probes", 1..=100, report));
    let source = section.get("source").and_then(|node| parsed(node, "an IPv4 address", report));
    Some(Probe {
        targets: nodes.iter().filter_map(|node| parsed(node, "an IP address", report)).collect(),
        source: source.unwrap_or(Ipv4Addr::UNSPECIFIED),
        interval_ms: milliseconds(section.get("interval"), 1000, report).max(1),
        missed_max: missed.map_or(2, |missed| missed as u32),
        need: need.unwrap_or_default(),
    })
}

/// Reads `never`, an interval, or a mapping.
fn rebalance(node: Option<&Node>, report: &mut Report) -> (Rule, u32, u32) {
    let default = (REBALANCE_NS / 1_000_000) as u32;
    let Some(node) = node else { return (Rule::default(), default, 0) };
    if matches!(node.kind, Kind::Scalar(_)) {
        return (Rule::default(), milliseconds(Some(node), default, report), 0);
    }
    let section = Section::of(node, REBALANCE, report);
    let mut flag =
        |key: &str| section.get(key).and_then(|node| boolean(node, "`true` or `false`", report)).unwrap_or(false);
    let (by_capacity, moves_on) = (flag("by_capacity"), flag("moves_on"));
    let budget = section.get("budget").and_then(|node| number(node, "moves", 1..=u64::from(BUCKETS_MAX), report));
    let rule = Rule { by_capacity, moves_on, budget: budget.map(|budget| budget as usize) };
    let elephants = section.get("elephants");
    let elephants = elephants.and_then(|node| number(node, "elephants", 0..=u64::from(ELEPHANTS_MAX), report));
    (rule, milliseconds(section.get("interval"), default, report), elephants.map_or(0, |most| most as u32))
}

fn milliseconds(node: Option<&Node>, default: u32, report: &mut Report) -> u32 {
    (time(node, u64::from(default) * 1_000_000, report) / 1_000_000) as u32
}

fn time(node: Option<&Node>, default: u64, report: &mut Report) -> u64 {
    let Some(node) = node else { return default };
    let Some(time) = duration(node, "a time", report) else { return default };
    if time > DELAY_MAX_NS {
        report.error(node.span, "an hour at most");
    }
    time
}
