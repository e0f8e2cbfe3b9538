//! From the document to a plan: resolves names, checks ranges, expands apps into pipes, and checks the whole
//! program.

use super::conflicts;
use super::control::{self, ControlOver};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use weir_app::edits::{self, Edits};
use weir_app::kind::{Apps, Kind, Scope};
use weir_config::attachment::{Attachment, Attachments};
use weir_config::entry::Counters;
use weir_config::nat;
use weir_config::nic::Nics;
use weir_config::pipes;
use weir_config::ports::{self, PortConfig, PortKind, Take};
use weir_config::raw::Node;
use weir_config::section::{Section, list, name, number, pairs, parsed, text, words};
use weir_config::sets;
use weir_config::socket;
use weir_config::tunnels;
use weir_config::{Frames, Key, Report, Shape, Span};
use weir_packet::{CHUNK_MIN, HEADROOM};
use weir_program::builder::ProgramBuilder;
use weir_program::check::{Finding, FindingKind, Severity, check, owners};
use weir_program::{Fill, Group, GroupId, NatPrefix, Origin, Pipe, PipeId, PortDeclaration, PortId, Program};

/// Default path of the daemon's control socket.
pub const SOCKET: &str = "/run/weir/weir.sock";
/// The minimum and maximum MTU: that of IPv4 (RFC 791), and that of jumbo frames with room for tunnels.
const MTU_MIN: u64 = 68;
const MTU_MAX: u64 = 9216;

/// Ethernet header and two VLAN tags.
const ETHERNET: usize = 14 + 2 * 4;

/// Bytes that AF_XDP reserves in front of a frame.
const XDP_HEADROOM: usize = 256;

/// The maximum number of workers.
const WORKERS_MAX: u64 = 256;
/// Highest core number (`CPU_SETSIZE` - 1).
const CORE_MAX: u64 = 1023;

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Pipes, groups, entries, counters and meters.
    pub program: Program,
    /// The configuration of the program's ports, in the program's order.
    pub ports: Vec<PortConfig>,
    /// The threads that carry frames.
    pub workers: Workers,
    /// Whether workers poll without ever sleeping.
    pub busy: bool,
    /// The largest MTU of the ports, if configured: the largest packet in bytes, without Ethernet header.
    pub mtu: Option<u16>,
    /// The apps; their pipes are already part of the program.
    pub apps: Apps,
    /// What apps can be attached to, and what the name of a port may refer to.
    pub attachments: Attachments,
    /// Path of the daemon's control socket.
    pub socket: PathBuf,
    /// Address on which metrics are served to Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Where services are controlled over HTTP.
    pub control: Option<ControlOver>,
    /// The file's name and its text. Files of entries that it names are not kept.
    pub source: (String, Arc<String>),
    /// Changes made at run time, which are in the program as if they were in the file.
    pub edits: Arc<dyn Edits>,
    /// The folder for state that survives a restart; `None` is the system's default.
    pub state: Option<PathBuf>,
}

/// The threads that carry frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workers {
    /// This many, placed by the kernel.
    Count(u16),
    /// One pinned to each of these cores.
    Cores(Vec<u16>),
}

impl Workers {
    /// The number of workers.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Workers::Count(count) => usize::from(*count),
            Workers::Cores(cores) => cores.len(),
        }
    }
}

/// How a program treats fragments: whether they follow the first one of their datagram.
const FRAGMENTS: [(&str, bool); 2] = [("follow", true), ("alone", false)];

/// The keys at the top level of the file.
pub const KEYS: &[Key] = weir_config::keys! {
    "workers": Shape::Either(&[Shape::Number(1, WORKERS_MAX), Shape::List(&Shape::Number(0, CORE_MAX))]),
        "how many threads carry frames, or a list of cores with one on each" or "1";
    "busy": Shape::Boolean, "whether workers never sleep" or "false";
    "mtu": Shape::Number(MTU_MIN, MTU_MAX), "the largest MTU of the ports; buffers are made for it" or "1500";
    "hash_seed": Shape::Number(0, u64::MAX), "seed of the select hash; equal over a fleet" or "0";
    "socket": Shape::Text, "path of the daemon's control socket" or SOCKET;
    "metrics": Shape::Endpoint, "address and port where Prometheus asks, such as 127.0.0.1:9105";
    "control": Shape::Map(control::KEYS), "where services are controlled over HTTP, and by whom";
    "state": Shape::Text, "the folder of what survives a restart" or "/var/lib/weir";
    "tunnels": Shape::Defined("tunnels", tunnels::schema), "UDP ports of tunnels";
    "fragments": Shape::Words(|| words(&FRAGMENTS)), "whether fragments have the ports of their datagram"
        or "alone";
    "ports": Shape::Named(&Shape::Defined("port", ports::schema)), "where frames come from and go to";
    "root": Shape::Name, "the pipe that frames enter from ports without a `root` of their own";
    "counters": Shape::List(&Shape::Name), "names of shared counters; then no others can be used";
    "meters": Shape::Named(&Shape::Map(sets::METER)), "meters by name";
    "groups": Shape::Named(&Shape::Map(sets::GROUP)), "groups of targets by name";
    "nat_pools": Shape::Named(&Shape::Map(nat::NAT_POOL)), "addresses and ports for flows to take, by name";
    "pipes": Shape::Named(&Shape::Defined("pipe", pipes::schema)), "pipes by name";
    "apps": Shape::List(&Shape::Given("app")), "functions that write pipes or take frames";
};

/// Converts a document to a plan, with apps of these kinds. Errors go to the report; returns `None` if there
/// are any.
#[must_use]
pub fn plan(document: &Node, kinds: &'static [Kind], nics: &Nics, report: &mut Report) -> Option<Plan> {
    let section = Section::read(document, KEYS, report);
    let plan = Plan {
        program: Program::default(),
        ports: Vec::new(),
        workers: workers(&section, report),
        busy: section.boolean("busy", report),
        mtu: section.number("mtu", report).map(|mtu| mtu as u16),
        apps: Apps::default(),
        attachments: Attachments::default(),
        socket: section.get("socket").and_then(|node| socket::path(node, report)).unwrap_or(SOCKET).into(),
        metrics: section
            .get("metrics")
            .and_then(|node| parsed(node, "an address and port such as 127.0.0.1:9105", report)),
        control: section.get("control").and_then(|node| control::read(node, report)),
        source: Default::default(),
        edits: edits::none(kinds),
        state: section.get("state").and_then(|node| text(node, "a folder", report)).map(PathBuf::from),
    };
    let mut program = ProgramBuilder::new();
    program.select_seed(section.number("hash_seed", report).unwrap_or_default());
    if let Some(node) = section.get("tunnels") {
        program.tunnels(tunnels::read(node, report));
    }
    if section.choice("fragments", &FRAGMENTS, report) == Some(true) {
        program.follow_fragments();
    }
    let mut builder = Builder { section: &section, plan, program, kinds, nics, tainted: Vec::new() };
    builder.names(report);
    builder.apps(report);
    builder.contents(report);
    builder.roots(report);
    builder.check(report);
    (report.errors() == 0).then(|| Plan { program: builder.program.build(), ..builder.plan })
}

/// Reads `workers`: a list of cores, or a number.
fn workers(section: &Section, report: &mut Report) -> Workers {
    let Some(node) = section.get("workers") else { return Workers::Count(1) };
    if let weir_config::raw::Kind::List(nodes) = &node.kind {
        let mut cores: Vec<u16> = Vec::new();
        for node in nodes {
            let Some(core) = number(node, "a core", 0..=CORE_MAX, report) else { continue };
            if cores.contains(&(core as u16)) {
                report.error(node.span, format!("core {core} is here twice"));
            }
            cores.push(core as u16);
        }
        if nodes.is_empty() {
            report.error(node.span, "one worker at least is needed");
        }
        return Workers::Cores(cores);
    }
    let count = number(node, "the number of workers", 1..=WORKERS_MAX, report);
    Workers::Count(count.unwrap_or(1) as u16)
}

struct Builder<'a> {
    section: &'a Section<'a>,
    plan: Plan,
    program: ProgramBuilder,
    kinds: &'static [Kind],
    nics: &'a Nics,
    /// Marks of pipes and groups that could not be read completely; the check's findings there are
    /// consequences of that.
    tainted: Vec<Range<u32>>,
}

impl<'a> Builder<'a> {
    /// Collects all names first, so that anything can refer to anything.
    fn names(&mut self, report: &mut Report) {
        for (called, span, node) in self.named("ports", report) {
            self.port(called, span, node, report);
        }
        // Apps may have work that needs no frames.
        if self.plan.ports.is_empty() && self.section.get("apps").is_none() {
            report.error(self.section.span, "there is no port: write `ports: { p0: { xdp: eth0 } }`");
        }
        let spans: Vec<Span> = self.program.ports.iter().map(|port| report.span_of(port.origin)).collect();
        conflicts::report(&self.plan.ports, &spans, report);
        for (called, span, _) in self.named("groups", report) {
            let group = Group::new(called, Fill::Maglev, sets::MAGLEV_SIZE);
            self.program.group(group.origin(report.origin(span)));
        }
        for (called, span, _) in self.named("pipes", report) {
            self.program.pipe(Pipe::basic(called).origin(report.origin(span)));
        }
        for (called, span, node) in self.named("meters", report) {
            sets::meter(called, span, node, report).map(|meter| self.program.meter(meter));
        }
        for (called, span, node) in self.named("nat_pools", report) {
            nat::pool(called, span, node, report).map(|pool| self.program.nat_pool(pool));
        }
        for node in self.section.get("counters").map(|node| list(node, "names", report)).unwrap_or_default() {
            let called = text(node, "a name", report).and_then(|called| name(called, node.span, report));
            let Some(called) = called else { continue };
            let before = self.program.counters.len();
            if self.program.counter(called).index() < before {
                report.error(node.span, format!("two counters are called `{called}`"));
            }
        }
    }

    /// The mappings under `key` with their names, leaving out invalid names.
    fn named(&self, key: &str, report: &mut Report) -> Vec<(&'a str, Span, &'a Node)> {
        let Some(node) = self.section.get(key) else { return Vec::new() };
        let pairs = pairs(node, report);
        pairs.into_iter().filter(|(called, span, _)| name(called, *span, report).is_some()).collect()
    }

    fn port(&mut self, called: &str, span: Span, node: &Node, report: &mut Report) {
        let id = PortId(self.plan.ports.len() as u16);
        let port = ports::read((called, span), id, node, self.nics, report);
        let declaration = PortDeclaration::new(&port.name).kernel_path(port.kernel_path()).mac(port.mac);
        let origin = report.origin(span);
        self.program.port(declaration.origin(origin));
        self.plan.attachments.add(Attachment::port(id, &port, origin));
        self.plan.ports.push(port);
    }

    fn apps(&mut self, report: &mut Report) {
        let (before, mark) = (report.errors(), report.next_origin());
        let Plan { ports, socket, attachments, .. } = &mut self.plan;
        let scope = &mut Scope {
            kinds: self.kinds,
            program: &mut self.program,
            attachments,
            ports,
            control: socket,
            report,
        };
        self.plan.apps = Apps::read(self.section.get("apps"), scope);
        self.taint((before, mark), mark, report);
    }

    fn contents(&mut self, report: &mut Report) {
        let groups: HashMap<String, GroupId> =
            self.program.groups.iter().map(|group| group.name.clone()).zip((0..).map(GroupId)).collect();
        for (called, _, node) in self.named("groups", &mut Report::default()) {
            let Some(&id) = groups.get(called) else { continue };
            let before = (report.errors(), report.next_origin());
            let group = sets::group(id, node, &self.program, report);
            self.taint(before, group.origin, report);
            *self.program.group_mut(id) = group;
        }
        let listed = self.section.get("counters").is_some();
        let mut counters = Counters::new(self.program.counters.clone(), !listed);
        for (called, _, node) in self.named("pipes", &mut Report::default()) {
            let Some(id) = self.program.pipe_named(called) else { continue };
            let before = (report.errors(), report.next_origin());
            let named = (&*self.program, &self.plan.attachments);
            let pipe = pipes::read(id, node, named, &mut counters, report);
            self.taint(before, pipe.origin, report);
            self.program.define(id, pipe);
        }
        counters.names.into_iter().for_each(|name| _ = self.program.counter(name));
    }

    fn taint(&mut self, before: (usize, Origin), own: Origin, report: &Report) {
        if report.errors() > before.0 {
            self.tainted.push(before.1.0..report.next_origin().0);
            self.tainted.push(own.0..own.0 + 1);
        }
    }

    /// Gives each port its root: its own, else that of the app receiving from it, else the common one.
    fn roots(&mut self, report: &mut Report) {
        let common = self.section.get("root").and_then(|node| self.root(node, report));
        let ports = self.named("ports", &mut Report::default());
        let mut own_root = Vec::new();
        for (at, (_, _, node)) in ports.into_iter().enumerate() {
            // Its other keys were checked when the port was read.
            let section = Section::of(node, &["root"], &mut Report::default());
            let own = section.get("root").and_then(|node| self.root(node, report));
            if let Some(root) = own.or(self.program.ports[at].root).or(common) {
                self.program.root(PortId(at as u16), root);
            }
            own_root.push(section.get("root").is_some());
        }
        self.plan.apps.enclose(&mut self.program, report);
        self.takes_nothing(&own_root, report);
        self.takes_too_much(report);
    }

    fn root(&self, node: &Node, report: &mut Report) -> Option<PipeId> {
        let names = self.program.pipes.iter().map(|pipe| pipe.name.as_str());
        weir_config::section::named("pipe", node, names, report).map(|at| PipeId(at as u16))
    }

    /// Warns of a port that has its own root but takes nothing from the kernel, since it never sees a frame;
    /// and of all ports if none takes anything.
    fn takes_nothing(&self, own_root: &[bool], report: &mut Report) {
        let takes = |at: usize| match &self.plan.ports[at].kind {
            PortKind::Xdp(xdp) => {
                xdp.take != Take::Rules(Vec::new()) || !self.plan.apps.take(PortId(at as u16)).is_empty()
            }
            PortKind::Pcap { .. } | PortKind::Mem | PortKind::Traffic(_) | PortKind::Dpdk { .. } => true,
        };
        let none = !(0..self.plan.ports.len()).any(takes);
        for (at, port) in self.program.ports.iter().enumerate() {
            if !takes(at) && port.root.is_some() && (own_root[at] || none) {
                let message = format!(
                    "port `{}` takes nothing from the kernel: write `take: all`, or rules",
                    port.name
                );
                report.warning(report.span_of(port.origin), message);
            }
        }
    }

    /// Reports interfaces with more rules than fit, which the daemon would otherwise only discover when
    /// starting.
    fn takes_too_much(&self, report: &mut Report) {
        for (at, port) in self.program.ports.iter().enumerate() {
            if let Err(why) = self.plan.frames(PortId(at as u16)).check() {
                let message = format!("port `{}` cannot take what it and its apps name: {why}", port.name);
                report.error(report.span_of(port.origin), message);
            }
        }
    }

    /// Runs the program's check. If the text has errors, findings that follow from them are left out.
    fn check(&mut self, report: &mut Report) {
        let broken = report.errors() > 0;
        self.pools_of_services(report);
        let mut findings = check(&self.program);
        if self.plan.workers.count() > 1 {
            findings.extend(owners(&self.program).1);
        }
        for finding in findings {
            if !(broken && self.follows(&finding)) {
                let span = self.span(&finding, report);
                match finding.severity {
                    Severity::Error => report.error(span, finding.kind.to_string()),
                    Severity::Warning => report.warning(span, finding.kind.to_string()),
                }
            }
        }
    }

    /// Reports NAT pools with an address that an app takes, such as that of a service: a packet to it could
    /// be a response or a request.
    fn pools_of_services(&self, report: &mut Report) {
        for pool in &self.program.nat_pools {
            let taken = (0..self.plan.ports.len()).flat_map(|port| self.plan.apps.take(PortId(port as u16)));
            // An app that takes fragments also takes whole packets.
            let mut rules = taken.filter_map(|frames| match frames {
                Frames::Ip(rule) if !rule.fragments => Some(rule),
                _ => None,
            });
            let shared = rules.find(|rule| {
                let taken = NatPrefix { first: rule.dst, length: rule.prefix };
                // The app whose flows use the pool takes what responses are sent to.
                let is_its = pool.prefixes.contains(&taken) && rule.dport == Some((pool.first, pool.last));
                taken.length > 0 && !is_its && pool.prefixes.iter().any(|prefix| prefix.overlaps(taken))
            });
            if let Some(rule) = shared {
                let message = format!("NAT pool `{}` has {}, which an app takes", pool.name, rule.dst);
                report.error(report.span_of(pool.origin), message);
            }
        }
    }

    fn follows(&self, finding: &Finding) -> bool {
        match finding.kind {
            // A forward that could not be read leads nowhere, so it cannot close a loop.
            FindingKind::Loop { .. } | FindingKind::KernelUnavailable { .. } => false,
            FindingKind::MetadataUnwritten { .. } => true,
            _ => {
                let tainted = self.tainted.iter().any(|range| range.contains(&finding.origin.0));
                tainted || finding.severity == Severity::Warning
            }
        }
    }

    /// Where the subject of a finding was written; for a counter, which has no mark, where it is listed.
    fn span(&self, finding: &Finding, report: &Report) -> Span {
        let listed = self.section.get("counters");
        match &finding.kind {
            FindingKind::Unused { what: "counter", name } => {
                let nodes =
                    listed.map(|node| list(node, "names", &mut Report::default())).unwrap_or_default();
                let is =
                    |node: &&Node| matches!(&node.kind, weir_config::raw::Kind::Scalar(text) if text == name);
                nodes.iter().find(is).map(|node| node.span).unwrap_or_default()
            }
            _ => report.span_of(finding.origin),
        }
    }
}

impl Plan {
    fn has_xdp(&self) -> bool {
        self.ports.iter().any(|port| matches!(port.kind, PortKind::Xdp(_)))
    }

    /// The size of the buffers for frames outside DPDK, in bytes: a power of two.
    #[must_use]
    pub fn chunk(&self) -> usize {
        let front = if self.has_xdp() { XDP_HEADROOM } else { usize::from(HEADROOM) };
        let wanted = self.mtu.map_or(0, |mtu| front + usize::from(mtu) + ETHERNET);
        wanted.next_power_of_two().max(CHUNK_MIN)
    }

    /// The longest frame for the configured MTU, in bytes; 0 if there is none.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.mtu.map_or(0, |mtu| usize::from(mtu) + ETHERNET)
    }

    /// Whether an app takes every frame that arrives on this port, whatever its destination address.
    #[must_use]
    pub fn bridges(&self, port: PortId) -> bool {
        self.apps.take(port).contains(&Frames::All)
    }
}
