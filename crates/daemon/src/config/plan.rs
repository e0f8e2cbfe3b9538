//! From the document to a plan: resolves names, checks ranges, expands apps into pipes, and checks the whole
//! program.

use super::control::{self, ControlOver};
use super::kernel;
use super::names;
use super::routes::{self, RoutesConfig};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use weir_app::edits::{self, Edits};
use weir_app::kind::{Apps, Kind, Scope};
use weir_config::attachment::Attachments;
use weir_config::nat;
use weir_config::nic::Nics;
use weir_config::node::ConfigSource;
use weir_config::pipes;
use weir_config::ports::{self, PortConfig, PortKind, Take};
use weir_config::program::ProgramReader;
use weir_config::raw::Node;
use weir_config::section::{Section, number, parsed, text, words};
use weir_config::sets;
use weir_config::socket;
use weir_config::tunnels;
use weir_config::{Frames, Key, Report, Shape};
use weir_packet::{CHUNK_MIN, HEADROOM};
use weir_program::builder::ProgramBuilder;
use weir_program::check::{check, owners};
use weir_program::{NatPrefix, PortId, Program};

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
    /// The ports, and the combinations of ports, to which apps can be attached and to which names refer.
    pub attachments: Attachments,
    /// Path of the daemon's control socket.
    pub socket: PathBuf,
    /// Address on which metrics are served to Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Where routes to announced services are written.
    pub routes: RoutesConfig,
    /// Where services are controlled over HTTP.
    pub control: Option<ControlOver>,
    /// The texts that it was read from. Files of entries that they name are not kept.
    pub source: ConfigSource,
    /// Changes made at run time, which are in the program as if they were in the file.
    pub edits: Arc<dyn Edits>,
    /// The file with the names of addresses.
    pub names: Option<PathBuf>,
    /// The folder for state that survives a restart; `None` is the system's default.
    pub state: Option<PathBuf>,
}

/// The threads that carry frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workers {
    /// A number of threads, placed by the kernel.
    Count(u16),
    /// One thread pinned to each of these cores.
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
        "the number of worker threads, or a list of cores with one worker on each" or "1";
    "busy": Shape::Boolean, "whether workers never sleep" or "false";
    "mtu": Shape::Number(MTU_MIN, MTU_MAX), "the largest MTU of the ports; sets the buffer size" or "1500";
    "hash_seed": Shape::Number(0, u64::MAX), "seed of the select hash; use the same across a fleet" or "0";
    "socket": Shape::Text, "path of the daemon's control socket" or SOCKET;
    "metrics": Shape::Endpoint, "address and port where Prometheus scrapes, such as 127.0.0.1:9105";
    "control": Shape::Map(control::KEYS), "where services are controlled over HTTP, and by whom";
    "routes": Shape::Map(routes::KEYS), "where routes to services with `announce: route` are written";
    "names": Shape::Map(names::KEYS), "the names of addresses that flow records show";
    "state": Shape::Text, "the folder for state that survives a restart" or "/var/lib/weir";
    "tunnels": Shape::Defined("tunnels", tunnels::schema), "UDP ports of tunnels";
    "fragments": Shape::Words(|| words(&FRAGMENTS)), "whether fragments get the ports of their datagram"
        or "alone";
    "ports": Shape::Named(&Shape::Defined("port", ports::schema)), "where frames arrive and leave";
    "root": Shape::Name, "the pipe that frames enter from ports without a `root` of their own";
    "counters": Shape::List(&Shape::Name), "names of shared counters; if given, only these can be used";
    "meters": Shape::Named(&Shape::Map(sets::METER)), "meters by name";
    "groups": Shape::Named(&Shape::Map(sets::GROUP)), "groups of targets by name";
    "nat_pools": Shape::Named(&Shape::Map(nat::NAT_POOL)), "addresses and ports for flows to take, by name";
    "pipes": Shape::Named(&Shape::Defined("pipe", pipes::schema)), "pipes by name";
    "apps": Shape::List(&Shape::Given("app")), "apps, which write pipes or take frames";
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
        routes: section.get("routes").map(|node| routes::read(node, report)).unwrap_or_default(),
        control: section.get("control").and_then(|node| control::read(node, report)),
        source: Default::default(),
        edits: edits::none(kinds),
        names: section.get("names").and_then(|node| names::read(node, report)),
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
    let reader = ProgramReader::new(&section, program, nics);
    let mut builder = Builder { plan, reader, section: &section, kinds };
    builder.reader.names(report);
    builder.apps(report);
    builder.reader.contents(report);
    builder.roots(report);
    builder.check(report);
    (report.errors() == 0).then(|| Plan { program: builder.reader.program.build(), ..builder.plan })
}

/// Reads `workers`: a list of cores, or a number.
fn workers(section: &Section, report: &mut Report) -> Workers {
    let Some(node) = section.get("workers") else { return Workers::Count(1) };
    if let weir_config::raw::Kind::List(nodes) = &node.kind {
        let mut cores: Vec<u16> = Vec::new();
        for node in nodes {
            let Some(core) = number(node, "a core", 0..=CORE_MAX, report) else { continue };
            if cores.contains(&(core as u16)) {
                report.error(node.span, format!("core {core} appears twice"));
            }
            cores.push(core as u16);
        }
        if nodes.is_empty() {
            report.error(node.span, "at least one worker is needed");
        }
        return Workers::Cores(cores);
    }
    let count = number(node, "the number of workers", 1..=WORKERS_MAX, report);
    Workers::Count(count.unwrap_or(1) as u16)
}

struct Builder<'a> {
    plan: Plan,
    reader: ProgramReader<'a>,
    section: &'a Section<'a>,
    kinds: &'static [Kind],
}

impl Builder<'_> {
    fn apps(&mut self, report: &mut Report) {
        let (before, mark) = (report.errors(), report.next_origin());
        let ProgramReader { program, ports, attachments, .. } = &mut self.reader;
        let scope =
            &mut Scope { kinds: self.kinds, program, attachments, ports, control: &self.plan.socket, report };
        self.plan.apps = Apps::read(self.section.get("apps"), scope);
        self.reader.taint((before, mark), mark, report);
    }

    fn roots(&mut self, report: &mut Report) {
        let own_root = self.reader.roots(report);
        self.plan.apps.enclose(&mut self.reader.program, report);
        self.plan.ports = std::mem::take(&mut self.reader.ports);
        self.plan.attachments = std::mem::take(&mut self.reader.attachments);
        self.takes_nothing(&own_root, report);
        self.takes_too_much(report);
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
        for (at, port) in self.reader.program.ports.iter().enumerate() {
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
        for (at, port) in self.reader.program.ports.iter().enumerate() {
            if let Err(why) = self.plan.frames(PortId(at as u16)).check() {
                let message = format!("port `{}` cannot take what it and its apps request: {why}", port.name);
                report.error(report.span_of(port.origin), message);
            }
        }
    }

    /// Runs the program's check.
    fn check(&mut self, report: &mut Report) {
        let is_broken = report.errors() > 0;
        self.pools_of_services(report);
        let mut findings = check(&self.reader.program);
        if self.plan.workers.count() > 1 {
            findings.extend(owners(&self.reader.program).1);
        }
        self.reader.report(findings, is_broken, report);
        if report.errors() == 0 {
            self.kernel_is_possible(report);
        }
    }

    /// Reports ports that require the kernel to handle their frames even though the kernel never can.
    fn kernel_is_possible(&self, report: &mut Report) {
        let program = &self.reader.program;
        for (at, port) in program.ports.iter().enumerate() {
            if let Some(why) = kernel::unmet(program, &self.plan.ports, PortId(at as u16)) {
                let message = format!(
                    "port `{}` has `kernel: require`, but the kernel cannot run it: {why}",
                    port.name
                );
                report.error(report.span_of(port.origin), message);
            }
        }
    }

    /// Reports NAT pools with an address that an app takes, such as that of a service: a packet to it could
    /// be a response or a request.
    fn pools_of_services(&self, report: &mut Report) {
        for pool in &self.reader.program.nat_pools {
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
                let message = format!("NAT pool `{}` has {}, which an app uses", pool.name, rule.dst);
                report.error(report.span_of(pool.origin), message);
            }
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
