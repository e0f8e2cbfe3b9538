//! Reads bonds from the configuration and writes them into the program, before all other apps, which refer to
//! bonds like ports.

use super::announcements::{ADVERTISEMENT, link_local};
use super::lacp::{Config, ETHER_TYPE, Policy, Rate, System};
use super::links::{Need, Reselect};
use super::pipes::KEY;
use super::rebalance::Rule;
use super::{
    BUCKETS, BUCKETS_MAX, Bond, BondApp, ELEPHANTS_MAX, Inward, LEARNT_MAX, MEMBERS_MAX, Member, Mode, Probe,
    problems,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use weir_app::App;
use weir_app::kind::{Configured, Scope};
use weir_config::attachment::Attachment;
use weir_config::ports::mac;
use weir_config::raw::{Kind, Node};
use weir_config::section::{Section, choice, list, named, parsed, text, words};
use weir_config::sets::WEIGHT_MAX;
use weir_config::{Frames, IpRule, Key, Report, Shape, TakeRule};
use weir_packet::{ETHER_ARP, KeySource, PROTOCOL_ICMPV6};
use weir_program::{Pipe, PipeId, PortId};

pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "name": Shape::Name, "its name; others forward to it as to a port";
    needed "mode": Shape::Words(|| words(&Mode::WORDS)), "how frames are assigned to members";
    needed "members": Shape::List(&Shape::Either(&[Shape::Name, Shape::Map(MEMBER)])),
        "the ports that act as one";
    "inside": Shape::Name, "the port that the bond extends";
    "root": Shape::Name, "the pipe that frames from the members enter, instead of `inside`";
    "forward_reserved": Shape::Boolean,
        "whether frames to 01:80:c2:00:00:00 through :0f pass between `inside` and the members" or "false";
    "buckets": Shape::Number(1, BUCKETS_MAX as u64), "the number of buckets, a power of two" or "256";
    "hash": Shape::Either(&[Shape::Words(|| vec!["rss"]), Shape::Map(HASH)]),
        "what picks the bucket of a frame";
    "lacp": Shape::Map(LACP), "how the bond speaks LACP";
    "primary": Shape::Name, "the member that should be active";
    "reselect": Shape::Words(|| words(&RESELECT)),
        "when the primary takes over from a working member" or "always";
    "updelay": Shape::Time, "how long a link must be up before it counts as up, at most an hour";
    "downdelay": Shape::Time, "how long a link must be down before it counts as down, at most an hour";
    "probe": Shape::Map(PROBE), "addresses that are probed through every member";
    // The interval of Open vSwitch.
    "rebalance": Shape::Either(&[Shape::Time, Shape::Map(REBALANCE)]), "when loads are compared" or "10s";
    // Longer than the difference in delay between two links of a host; shorter than TCP's pause between two
    // windows.
    "idle_gap": Shape::Time, "how long a bucket must be idle before it moves" or "1ms";
    "idle_gap_max": Shape::Time, "how long a bucket may wait before it moves even if it is not idle" or "1s";
    "learnt_max": Shape::Number(1, 65_536), "how many inside MAC addresses are remembered" or "1024";
    "announce": Shape::List(&Shape::Ip), "IP addresses that the bond announces after a failover";
};
const MEMBER: &[Key] = weir_config::keys! {
    needed "port": Shape::Name, "the member's port";
    "weight": Shape::Number(0, WEIGHT_MAX), "its share of the buckets, by default its speed in Mbit/s";
    "lacp_priority": Shape::Number(0, 0xffff), "its priority; lower is better" or "32768";
    "lacp_key": Shape::Number(0, 0xffff), "its LACP key, by default the bond's";
};
const HASH: &[Key] = weir_config::keys! {
    "basis": Shape::Number(0, u64::MAX), "a seed for the hash" or "0";
    "headers": Shape::Words(|| words(&HEADERS)),
        "the headers that are hashed, or `rss`: the NIC's hash" or "outer";
};
const LACP: &[Key] = weir_config::keys! {
    "mode": Shape::Words(|| words(&ACTIVE)), "whether the bond sends LACPDUs first" or "active";
    "rate": Shape::Words(|| words(&RATES)), "how often the partner is asked to send LACPDUs" or "slow";
    "system_priority": Shape::Number(0, 0xffff), "its priority; lower is better" or "32768";
    "system_id": Shape::Mac, "the system's MAC address, by default the first member's";
    "key": Shape::Number(0, 0xffff), "the key of the bond's links" or "1";
    "min_links": Shape::Number(0, 0xffff), "how many members must be in sync before any is used" or "0";
    "select": Shape::Words(|| words(&POLICIES)), "which partner is used if there are several" or "stable";
    "fallback": Shape::Boolean, "whether one member is used while no partner speaks LACP" or "false";
};
const PROBE: &[Key] = weir_config::keys! {
    needed "targets": Shape::List(&Shape::Ip), "the addresses to probe";
    "source": Shape::Ipv4, "the IPv4 source address of probes" or "0.0.0.0";
    "vlan": Shape::Number(1, 4094), "the VLAN of probes, by default none";
    "interval": Shape::Time, "the interval between probes, at least 1 ms" or "1s";
    "missed_max": Shape::Number(1, 100), "how many answers in a row may be lost" or "2";
    "need": Shape::Words(|| words(&NEEDS)), "whether one or all of the targets must answer" or "any";
};
const REBALANCE: &[Key] = weir_config::keys! {
    "interval": Shape::Time, "how often loads are compared" or "10s";
    "by_capacity": Shape::Boolean, "whether a member's load is relative to its speed" or "false";
    "moves_on": Shape::Boolean, "whether a bucket may move again right after it moved" or "false";
    "budget": Shape::Number(1, BUCKETS_MAX as u64), "how many buckets may move at a time";
    "elephants": Shape::Number(0, ELEPHANTS_MAX as u64), "how many flows may have their own bucket" or "0";
};
const RESELECT: [(&str, Reselect); 3] =
    [("always", Reselect::Always), ("better", Reselect::Better), ("failure", Reselect::Failure)];
/// Frames without a hash from their NIC use their outer headers.
const HEADERS: [(&str, (KeySource, bool)); 3] = [
    ("outer", (KeySource::Outer, false)),
    ("inner", (KeySource::Inner, false)),
    ("rss", (KeySource::Outer, true)),
];
const ACTIVE: [(&str, bool); 2] = [("active", true), ("passive", false)];
const RATES: [(&str, Rate); 2] = [("fast", Rate::Fast), ("slow", Rate::Slow)];
const POLICIES: [(&str, Policy); 3] =
    [("stable", Policy::Stable), ("bandwidth", Policy::Bandwidth), ("count", Policy::Count)];
const NEEDS: [(&str, Need); 2] = [("any", Need::Any), ("all", Need::All)];

/// Default priority of systems and ports (802.1AX 6.3.2, 6.3.4).
const PRIORITY: u16 = 0x8000;
/// The largest delay or interval: one hour, in nanoseconds.
const DELAY_MAX_NS: u64 = 3_600_000_000_000;
const TARGETS_MAX: usize = 16;

/// The bonds of a configuration.
#[derive(Debug)]
pub struct Bonds(pub Vec<Bond>);

impl Configured for Bonds {
    /// A bond that forwards its frames takes all of them, regardless of their destination; a bond with
    /// another app on top takes only its own LACP, and the answers to its probes.
    fn take(&self) -> Vec<TakeRule> {
        let of = |bond: &Bond| -> Vec<TakeRule> {
            let all = |port: PortId| TakeRule { port, frames: Frames::All };
            match bond.inward {
                Inward::Port(inside) => bond.ports().into_iter().chain([inside]).map(all).collect(),
                Inward::Pipe(_) => bond.ports().into_iter().map(all).collect(),
                Inward::Open => bond.members.iter().flat_map(|member| bond.own_frames(member)).collect(),
            }
        };
        self.0.iter().flat_map(of).collect()
    }

    fn running(&self) -> Vec<Box<dyn App>> {
        self.0.iter().map(|bond| -> Box<dyn App> { Box::new(BondApp::new(bond.clone())) }).collect()
    }
}

impl Bond {
    /// The frames that a member takes if another app handles everything else.
    fn own_frames(&self, member: &Member) -> Vec<TakeRule> {
        let targets = self.probe.iter().flat_map(|probe| &probe.targets);
        let answers = targets.map(|target| match target {
            IpAddr::V4(_) => Frames::Own(ETHER_ARP),
            IpAddr::V6(_) => {
                let dst = link_local(self.asks_as(member)).into();
                let advertised = u16::from(ADVERTISEMENT) << 8;
                let (protocol, dport) = (Some(PROTOCOL_ICMPV6), Some((advertised, advertised)));
                Frames::Ip(IpRule { dst, prefix: 128, protocol, dport, fragments: false })
            }
        });
        let all = [Frames::Group(ETHER_TYPE)].into_iter().chain(answers);
        all.map(|frames| TakeRule { port: member.port, frames }).collect()
    }
}

/// Reads the bonds. If there are no errors, writes them and offers them to other apps.
pub(super) fn read(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let before = scope.report.errors();
    let mut bonds: Vec<Bond> = Vec::new();
    let mut called: Vec<&Node> = Vec::new();
    for item in items {
        let section = Section::read(item, KEYS, &mut Report::default());
        let own = section.get("name");
        if let Some(node) = own.filter(|node| called.iter().any(|other| other.kind == node.kind)) {
            scope.report.error(node.span, "two bonds have this name");
        } else if own.is_none() || scope.name_is_free(&section) {
            called.extend(own);
            bonds.extend(bond(item, scope));
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
    scope.attachments.add(Attachment::unusable(name, KEY, pipe, origin));
}

/// Reads a bond; `None` if it has errors, which are in the report.
fn bond(node: &Node, scope: &mut Scope<'_>) -> Option<Bond> {
    let before = scope.report.errors();
    let section = Section::read(node, KEYS, scope.report);
    let called = scope.name(&section);
    let members = section.needed("members", scope.report);
    let members = members.map(|node| members_of(node, scope)).unwrap_or_default();
    let inward = inward(&section, scope);
    let report = &mut *scope.report;
    let _ = section.needed("mode", report);
    let mode = section.choice("mode", &Mode::WORDS, report);
    let Hashed { basis, key, rss } = hash(section.get("hash"), report);
    let buckets = section.number("buckets", report);
    let (rule, rebalance_ms, elephants) = rebalance(&section, report);
    let learnt_max = section.number("learnt_max", report);
    let announce = section.get("announce").map(|node| list(node, "addresses", report)).unwrap_or_default();
    let mut bond = Bond {
        name: called.unwrap_or_default(),
        mode: mode.unwrap_or(Mode::ActiveBackup),
        members,
        inward,
        forward_reserved: section.boolean("forward_reserved", report),
        buckets: buckets.map_or(BUCKETS, |buckets| buckets as u32),
        basis,
        key,
        rss,
        lacp: None,
        primary: section.get("primary").and_then(|node| text(node, "a member", report)).map(str::to_string),
        reselect: section.choice("reselect", &RESELECT, report).unwrap_or_default(),
        updelay_ms: milliseconds(&section, "updelay", report),
        downdelay_ms: milliseconds(&section, "downdelay", report),
        probe: section.get("probe").and_then(|node| probe(node, report)),
        rule,
        rebalance_ms,
        elephants,
        idle_gap_ns: time(&section, "idle_gap", report),
        idle_gap_max_ns: time(&section, "idle_gap_max", report),
        learnt_max: learnt_max.map_or(LEARNT_MAX, |most| most as u32),
        announce: announce.iter().filter_map(|node| parsed(node, "an IP address", report)).collect(),
        origin: report.origin(section.get("name").unwrap_or(node).span),
    };
    let system = bond.mac();
    bond.lacp = section.get("lacp").and_then(|node| lacp(node, system, report));
    (report.errors() == before).then_some(bond)
}

/// The hash that picks the bucket of a frame.
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
        let chosen =
            choice(node, "`hash` (`rss`, or a mapping of `basis` and `headers`)", &[("rss", ())], report);
        return Hashed { rss: chosen.is_some(), ..default };
    }
    let section = Section::read(node, HASH, report);
    let basis = section.number("basis", report).unwrap_or(default.basis);
    let (key, rss) = section.choice("headers", &HEADERS, report).unwrap_or((default.key, default.rss));
    Hashed { basis, key, rss }
}

fn members_of(node: &Node, scope: &mut Scope<'_>) -> Vec<Member> {
    let nodes = list(node, "ports", scope.report);
    if nodes.len() > MEMBERS_MAX {
        scope.report.error(node.span, format!("a bond has at most {MEMBERS_MAX} members"));
    }
    nodes.iter().filter_map(|node| member(node, scope)).collect()
}

/// Reads a port's name, or a mapping with it.
fn member(node: &Node, scope: &mut Scope<'_>) -> Option<Member> {
    let plain = matches!(node.kind, Kind::Scalar(_));
    let section = if plain { None } else { Some(Section::read(node, MEMBER, scope.report)) };
    let named = match &section {
        None => Some(node),
        Some(section) => section.needed("port", scope.report),
    }?;
    let mut given = |key: &str| section.as_ref().and_then(|section| section.number(key, scope.report));
    let (weight, priority, key) = (given("weight"), given("lacp_priority"), given("lacp_key"));
    let port = scope.port(named)?;
    let config = scope.ports.get(port.index())?;
    Some(Member {
        port,
        name: config.name.clone(),
        mac: config.mac,
        mtu: config.nic.as_ref().map(|nic| nic.mtu),
        weight: weight.map(|weight| weight as u32),
        priority: priority.map_or(PRIORITY, |priority| priority as u16),
        key: key.map(|key| key as u16),
        origin: scope.report.origin(named.span),
    })
}

fn inward(section: &Section<'_>, scope: &mut Scope<'_>) -> Inward {
    if let (Some(_), Some(node)) = (section.get("inside"), section.get("root")) {
        scope.report.error(node.span, "frames from the members go to `inside` or to a `root`, not both");
    }
    let inside = section.get("inside").and_then(|node| scope.port(node)).map(Inward::Port);
    let root = section.get("root").and_then(|node| {
        let names = scope.program.pipes.iter().map(|pipe| pipe.name.as_str());
        named("pipe", node, names, scope.report).map(|at| Inward::Pipe(PipeId(at as u16)))
    });
    inside.or(root).unwrap_or(Inward::Open)
}

fn lacp(node: &Node, own: [u8; 6], report: &mut Report) -> Option<Config> {
    let section = Section::read(node, LACP, report);
    let active = section.choice("mode", &ACTIVE, report);
    let rate = section.choice("rate", &RATES, report);
    let policy = section.choice("select", &POLICIES, report);
    let mut sixteen = |key: &str| section.number(key, report).unwrap_or_default() as u16;
    let (priority, key, min_links) = (sixteen("system_priority"), sixteen("key"), sixteen("min_links"));
    let system = section.get("system_id").and_then(|node| mac(node, report)).unwrap_or(own);
    Some(Config {
        system: System { priority, mac: system },
        key,
        active: active?,
        rate: rate.unwrap_or_default(),
        min_links,
        policy: policy.unwrap_or_default(),
        fallback: section.boolean("fallback", report),
    })
}

fn probe(node: &Node, report: &mut Report) -> Option<Probe> {
    let section = Section::read(node, PROBE, report);
    let targets = section.needed("targets", report).map(|node| (node, list(node, "addresses", report)));
    let (at, nodes) = targets?;
    if nodes.is_empty() || nodes.len() > TARGETS_MAX {
        report.error(at.span, format!("write 1 to {TARGETS_MAX} addresses"));
    }
    let missed = section.number("missed_max", report);
    let vlan = section.get("vlan").and_then(|_| section.number("vlan", report)).map(|vlan| vlan as u16);
    let source = section.get("source").and_then(|node| parsed(node, "an IPv4 address", report));
    Some(Probe {
        targets: nodes.iter().filter_map(|node| parsed(node, "an IP address", report)).collect(),
        source: source.unwrap_or(Ipv4Addr::UNSPECIFIED),
        vlan,
        interval_ms: milliseconds(&section, "interval", report).max(1),
        missed_max: missed.map_or(2, |missed| missed as u32),
        need: section.choice("need", &NEEDS, report).unwrap_or_default(),
    })
}

/// Reads `never`, an interval, or a mapping.
fn rebalance(bond: &Section<'_>, report: &mut Report) -> (Rule, u32, u32) {
    let Some(node) = bond.get("rebalance").filter(|node| !matches!(node.kind, Kind::Scalar(_))) else {
        return (Rule::default(), milliseconds(bond, "rebalance", report), 0);
    };
    let section = Section::read(node, REBALANCE, report);
    let (by_capacity, moves_on) =
        (section.boolean("by_capacity", report), section.boolean("moves_on", report));
    let budget = section.number("budget", report).map(|budget| budget as usize);
    let elephants = section.number("elephants", report).unwrap_or_default() as u32;
    (Rule { by_capacity, moves_on, budget }, milliseconds(&section, "interval", report), elephants)
}

fn milliseconds(section: &Section<'_>, key: &str, report: &mut Report) -> u32 {
    (time(section, key, report) / 1_000_000) as u32
}

fn time(section: &Section<'_>, key: &str, report: &mut Report) -> u64 {
    let time = section.time(key, report);
    if let Some(node) = section.get(key).filter(|_| time > DELAY_MAX_NS) {
        report.error(node.span, "an hour at most");
    }
    time
}
