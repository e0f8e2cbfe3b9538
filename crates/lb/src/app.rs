//! Writes services as pipes: tables that find a packet's service (`tables.rs`), followed by pipes that choose
//! a back end and send the packet there (`pipes.rs`).

use super::announce::{Answered, Source};
use super::answers;
use super::bits::assignment;
use super::choosers::Translated;
use super::health::{BackEndReport, Health, LbApp};
use super::names::NAME;
use super::neighbours;
use super::pipes::{self, Writer};
use super::probes;
use super::problems::{Problem, Surroundings, problems};
use super::rings;
use super::service::{Address, BackEnd, Mode, Service};
use super::sources::{SourceBoards, SourceFollower};
use super::specs::{ServiceOwner, Specs};
use super::tables::{Finder, Replies, back_ports, ports};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_app::App;
use weir_app::bits::BitAssignment;
use weir_app::kind::{Apps, Configured, Counts};
use weir_app::neighbour::{Hop, Mac};
use weir_app::rings::{BackEndStanding, Balanced};
use weir_config::attachment::{Attachment, Attachments};
use weir_config::value::write_mac;
use weir_config::{Frames, IpRule, Report, TakeRule};
use weir_packet::{PROTOCOL_TCP, PROTOCOL_UDP};
use weir_program::builder::{Number, ProgramBuilder};
use weir_program::{Entry, Forward, NatPool, NatPrefix, Origin, Pipe, PipeId, PortId, Program};

/// The load balancer of a program, with all its services.
#[derive(Clone, Debug, PartialEq)]
pub struct Lb {
    /// The services, in the order in which they were written.
    pub services: Vec<Service>,
    /// Room for flows in each pipe that keeps flows.
    pub flows: u32,
    /// The program's NAT pools.
    pub nat_pools: Vec<NatPool>,
    /// The services' health.
    pub health: Health,
    /// What weir answers on behalf of the services.
    pub answered: Arc<Answered>,
    /// Whether changes made at run time survive a restart.
    pub persist: bool,
    /// Whether the configuration has an `lb` item, to which services can be added at run time.
    pub is_there: bool,
    /// The services as they are written in the configuration.
    pub specs: Arc<Specs>,
    /// The sources of further services.
    pub sources: SourceBoards,
}

/// The default room for flows in each pipe that keeps flows.
pub const FLOWS: u32 = 1 << 18;

impl Default for Lb {
    fn default() -> Lb {
        let (nat_pools, health, answered) = (Vec::new(), Health::default(), Arc::default());
        let (services, specs) = (Vec::new(), Arc::default());
        Lb {
            services,
            flows: FLOWS,
            nat_pools,
            health,
            answered,
            persist: false,
            is_there: false,
            specs,
            sources: SourceBoards::default(),
        }
    }
}

impl Lb {
    /// Returns everything wrong with the services. [`Lb::write`] must not be called unless this is empty.
    #[must_use]
    pub fn problems(&self) -> Vec<(Origin, Problem)> {
        let around = Surroundings { pools: &self.nat_pools, flows: self.flows };
        problems(&self.services, &around)
    }

    /// Returns a description of where a service is defined.
    pub(super) fn place_of(&self, name: &str, report: &Report) -> String {
        let spec = self.specs.named(name).map(|spec| match &spec.owner {
            ServiceOwner::File(place) => format!("at {place}"),
            source @ ServiceOwner::Source(_) => format!("of {source}"),
        });
        spec.unwrap_or_else(|| format!("in {}", report.file()))
    }

    /// Adds pipes, groups and counters to `program`, and directs frames from the services' attachments there.
    pub fn write(&self, program: &mut ProgramBuilder, attachments: &Attachments) {
        let miss = self.miss(program);
        // All fragments of a datagram go where the whole datagram would go.
        program.follow_fragments();
        // The table that packets enter first comes first in the program, where readers look for it.
        let root = program.pipe(Pipe::basic(NAME));
        let shared = (miss, self.flows, &self.health);
        let of_sources = self.specs.iter().filter(|spec| matches!(spec.owner, ServiceOwner::Source(_)));
        let growing = of_sources.map(|spec| spec.name.as_str()).collect();
        let pipes = Writer::new(&self.services, attachments, program, shared, &growing).write();
        let replies = self.replies(program, miss);
        let finder = Finder::new(&self.services, attachments, &pipes, &self.nat_pools);
        let finder = finder.answering(&self.answered, replies).with_clients(program);
        let tables = finder.tables();
        let mut ids: Vec<PipeId> = vec![root];
        ids.extend(tables.iter().skip(1).map(|table| program.pipe(Pipe::basic(table.name()))));
        let checks = (&*self.services, &*self.health.services);
        let mut next = probes::write(checks, attachments, &pipes, program, miss);
        for (table, id) in tables.iter().zip(&ids).rev() {
            let blank = program.pipes[id.index()].clone();
            program.define(*id, finder.pipe(*table, blank).miss(next));
            next = Forward::Pipe(*id);
        }
        for below in self.below(attachments) {
            below.lead(program, root);
        }
    }

    /// Adds the app that gets the frames weir answers itself.
    fn replies(&self, program: &mut ProgramBuilder, miss: Forward) -> Replies {
        let mut replies = Replies { asked: [Forward::Drop; 2], echo: Forward::Drop };
        if !self.answered.vips.is_empty() {
            let app = program.app(answers::ANNOUNCE);
            replies.asked = [Forward::App(app); 2];
            // Solicitations are matched by their multicast group, which may also be the group of addresses of
            // the host.
            if miss == Forward::Kernel && self.answered.vips.iter().any(|one| one.vip.is_ipv6()) {
                let host = Pipe::basic(format!("{NAME}/host")).entry(Entry::default());
                let next = program.pipe(host.forward(Forward::Kernel).miss(Forward::Kernel));
                replies.asked[1] = Forward::Tee { app, next };
            }
        }
        if self.answered.pings.iter().any(|ping| ping.service.is_none()) {
            replies.echo = Forward::App(program.app(answers::ECHO));
        }
        replies
    }

    /// Returns the attachments of the services: their ports, or the bonds of those ports.
    pub(super) fn below<'a>(&self, attachments: &'a Attachments) -> impl Iterator<Item = &'a Attachment> {
        let all: Vec<&Attachment> =
            self.ports().into_iter().filter_map(|port| attachments.with(port)).collect();
        let is_first =
            |(at, one): &(usize, &Attachment)| all[..*at].iter().all(|other| other.name != one.name);
        all.iter().copied().enumerate().filter(is_first).map(|(_, one)| one).collect::<Vec<_>>().into_iter()
    }

    /// Returns the ports on which packets of services and answers arrive, without duplicates.
    #[must_use]
    pub fn ports(&self) -> Vec<PortId> {
        let answers = self.sources().into_iter().map(|source| source.port);
        let mut ports: Vec<PortId> = ports(&self.services).into_iter().chain(answers).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns the source addresses of checks that take a service's own path.
    pub(super) fn sources(&self) -> Vec<Source> {
        probes::sources(&self.services, &self.health.services)
    }

    /// Returns the forward for packets that belong to no service: the kernel if every port has a kernel path,
    /// otherwise drop.
    fn miss(&self, program: &Program) -> Forward {
        let can = |port: &PortId| program.ports.get(port.index()).is_some_and(|port| port.kernel_path);
        if self.ports().iter().all(can) { Forward::Kernel } else { Forward::Drop }
    }
}

impl Lb {
    /// Returns the frames that are answers to a service's translated flows: those sent to its pool, or those
    /// from its back ends.
    fn answers(&self, service: &Service) -> Vec<Frames> {
        let Some(Translated::Both(pool, _)) = Translated::of(service) else {
            let nat = service.back_ends.iter().filter(|one| matches!(one.mode, Mode::Nat { .. }));
            return nat.filter_map(|back_end| back_end.mode.ip()).map(Frames::From).collect();
        };
        let pool = self.nat_pools.get(pool.index()).into_iter();
        let answers = |pool: &NatPool| {
            let dport = Some((pool.first, pool.last));
            let rules = |prefix: &NatPrefix, protocol| {
                let (dst, prefix, protocol) = (prefix.first, prefix.length, Some(protocol));
                let whole = IpRule { dst, prefix, protocol, dport, fragments: false };
                let fragments = IpRule { dport: None, fragments: true, ..whole };
                [Frames::Ip(whole), Frames::Ip(fragments), Frames::Errors(whole)]
            };
            let all =
                |prefix| [PROTOCOL_TCP, PROTOCOL_UDP].into_iter().flat_map(move |one| rules(prefix, one));
            pool.prefixes.iter().flat_map(all).collect::<Vec<_>>()
        };
        pool.flat_map(answers).collect()
    }
}

impl Lb {
    /// Returns the addresses that weir announces and that the host should not have. The host may have the
    /// addresses of pools, because its own connections may use ports outside the pools.
    pub(crate) fn announced(&self) -> Vec<IpAddr> {
        let is_pooled = |address: &IpAddr| self.nat_pools.iter().any(|pool| pool.has(*address));
        self.answers_for().into_iter().filter(|address| !is_pooled(address)).collect()
    }
}

impl Configured for Lb {
    /// Takes the services' packets with all their fragments, because only the first fragment shows the port;
    /// ICMP errors about packets that their back ends sent; and answers that return through weir.
    fn take(&self) -> Vec<TakeRule> {
        let (mut rules, mut seen) = (Vec::new(), HashSet::new());
        let mut add = |port: PortId, frames: Frames| {
            let rule = TakeRule { port, frames };
            if seen.insert(rule) {
                rules.push(rule);
            }
        };
        for service in &self.services {
            for Address { vip, prefix, protocol, ports } in &service.addresses {
                let (dst, protocol, dport) = (*vip, Some(*protocol), Some(*ports));
                let whole = IpRule { dst, prefix: *prefix, protocol, dport, fragments: false };
                let fragments = IpRule { dport: None, fragments: true, ..whole };
                for port in &service.ports {
                    add(*port, Frames::Ip(whole));
                    add(*port, Frames::Ip(fragments));
                    add(*port, Frames::Errors(whole));
                }
            }
            for port in back_ports(service) {
                self.answers(service).into_iter().for_each(|frames| add(port, frames));
            }
        }
        self.answered.take().for_each(|rule| add(rule.port, rule.frames));
        self.sources().iter().flat_map(probes::take).for_each(|rule| add(rule.port, rule.frames));
        rules
    }

    fn bit_assignments(&self) -> Vec<BitAssignment> {
        self.services.iter().filter_map(assignment).collect()
    }

    fn balanced(&self) -> Vec<Balanced> {
        self.services.iter().map(|service| rings::balanced(service, &self.nat_pools)).collect()
    }

    fn standings(&self, service: &str) -> Vec<BackEndStanding> {
        let scale = self.health.scales().of(service);
        let standing = |(name, report): (String, BackEndReport)| {
            let weight = report.weight.map(|weight| weight * scale);
            BackEndStanding { name, weight, health: report.health, reason: report.reason }
        };
        self.health.board.of_service(service).into_iter().map(standing).collect()
    }

    fn weights_version(&self) -> u64 {
        self.health.board.weights_version()
    }

    fn scales(&self) -> HashMap<String, u32> {
        let group = |(service, scale): (&str, u32)| (format!("{NAME}/{service}"), scale);
        self.health.scales().all().map(group).collect()
    }

    fn answers_for(&self) -> Vec<IpAddr> {
        self.answered.vips.iter().map(|one| one.vip).collect()
    }

    fn checks_ways(&self) -> bool {
        self.is_there
    }

    fn has_ways(&self) -> bool {
        let mut all = self.health.services.iter().flat_map(|service| &service.back_ends);
        all.any(|(.., watch)| watch.as_ref().is_some_and(|watch| watch.check.via.is_some()))
    }

    fn hops(&self) -> Vec<Hop> {
        self.health.neighbours.hops.iter().filter(|hop| !neighbours::is_vacant(hop)).cloned().collect()
    }

    fn known(&self) -> HashMap<Hop, Mac> {
        self.health.neighbours.known()
    }

    fn settle(&self, known: &HashMap<Hop, Mac>, program: &mut Program) {
        self.health.neighbours.settle(&self.health.services, &self.health.probes, known, program);
    }

    fn running(&self) -> Vec<Box<dyn App>> {
        let app = || -> Box<dyn App> {
            Box::new(
                LbApp::new(self.health.clone())
                    .answering(&self.answered)
                    .telling(&self.specs)
                    .following(SourceFollower::new(self.sources.clone(), self.specs.clone())),
            )
        };
        self.is_there.then(app).into_iter().collect()
    }

    fn persists(&self) -> bool {
        self.persist
    }

    fn refuses(&self, orders: &Value, program: &Program) -> Result<(), String> {
        let is_edit = |one: &Value| super::requests::is_edit(one);
        if orders.as_array().is_none_or(|all| all.iter().all(is_edit)) {
            return Ok(());
        }
        // This app does not write to the running app's board.
        let mut app = LbApp::new(Health { board: Default::default(), ..self.health.clone() });
        app.bind(program);
        app.refuses(orders)
    }

    fn differences(&self, old: &Apps) -> Value {
        let old = old.of::<Lb>().map(|lb| lb.specs.clone()).unwrap_or_default();
        json!(self.specs.differences(&old))
    }

    /// Returns the back ends of every service, with their shared counters, or just the services if there are
    /// too many back ends to count.
    fn table(&self, name: &str, counts: &Counts<'_>) -> Value {
        if name == "sources" {
            return self.sources.rows();
        }
        let counted = pipes::is_counted(&self.services);
        let of = |service: &Service| {
            let group = pipes::group_name(service);
            let refused = (counts.refused)(&group);
            // Sorted by name.
            let reports = self.health.board.of_service(&service.name);
            let none = BackEndReport::default();
            let row = |back_end: &BackEnd| {
                let count = (counts.counter)(&pipes::counter_name(service, back_end, counted));
                let flows = (counts.flows)(&group, &back_end.name).filter(|_| counted);
                let at = reports.binary_search_by(|(name, _)| name.as_str().cmp(&back_end.name));
                let report = at.map_or(&none, |at| &reports[at].1);
                let mut row = json!({
                    "service": service.name, "name": back_end.name, "mode": back_end.mode.word(),
                    "mac": mac(back_end, report), "address": address(back_end),
                    "weight": report.weight.unwrap_or(back_end.weight), "state": back_end.state.word(),
                    "packets": count.packets, "bytes": count.bytes,
                    "flows": flows.map(|flows| flows.active),
                    "flows_begun": flows.map(|flows| flows.begun),
                    "syns_repeated": flows.map(|flows| flows.repeated),
                    "refused": refused.filter(|_| counted && service.is_sticky()),
                    "health": report.health, "reason": report.reason,
                    "check": report.checked.map(|last| if last.passed { "passed" } else { "failed" }),
                    "checked_s": report.checked.map(|last| (counts.date_s)(last.ended_ns)),
                });
                if !counted {
                    row["name"] = json!(format!("{} back ends", service.back_ends.len()));
                }
                row
            };
            let shown = if counted { service.back_ends.len() } else { 1 };
            service.back_ends.iter().take(shown).map(row).collect::<Vec<_>>()
        };
        self.services.iter().flat_map(of).collect()
    }
}

/// Returns the MAC address of a back end; empty while it is not known.
fn mac(back_end: &BackEnd, report: &BackEndReport) -> String {
    match back_end.resolve {
        None => write_mac(back_end.mac.number()),
        Some(_) => report.mac.map_or_else(String::new, |mac| write_mac(mac.number())),
    }
}

/// Returns the address that packets are rewritten to on their way to a back end, and the port if that is
/// rewritten; empty if they keep theirs.
fn address(back_end: &BackEnd) -> String {
    match back_end.mode {
        Mode::Nat { ip, port: Some(port) } | Mode::FullNat { ip, port: Some(port) } => {
            std::net::SocketAddr::new(ip, port).to_string()
        }
        mode => mode.ip().or(back_end.resolve).map_or_else(String::new, |ip| ip.to_string()),
    }
}
