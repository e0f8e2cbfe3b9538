//! The running app: it answers probes, assigns buckets or ports to flows, and reports what it knows. The
//! handling of paths is in `watch.rs`.

use super::config::PathPort;
use super::flows::{Begun, Hashes, Waiting, bucket_to};
use super::node::Node;
use super::pipes::Names;
use super::reflector::Unanswered;
use super::show;
use crate::app::PathRequest;
use crate::icmp;
use crate::probing::Budget;
use crate::scheme::{DOCA_PROBES, Scheme, doca_ports};
use crate::tunnel::PathTunnel;
use crate::wire::{self, Kind, Packet, ProbeId, Secret};
use crate::{Exchange, Form, SurveyMember};
use serde_json::{Value, json};
use std::any::Any;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use weir_app::task::EVENTS;
use weir_app::{Action, App, Event, Level, MetricHelp, Refusal, RequestId, Sample};
use weir_packet::random::Random;
use weir_program::change::{Change, ChangeError, EntryKey};
use weir_program::snapshot::Seen;
use weir_program::{Entry, PipeId, Program};

/// The length of an Ethernet header.
const ETHERNET: usize = 14;

/// How long no flow is pinned after a refusal, because the table is full, ns.
const REST_NS: u64 = 100_000_000;

/// About how many flows are in a page. Workers list them between frames.
const ROWS: usize = 2048;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TunnelCounts {
    pub pinned: u64,
    pub unpinned: u64,
    pub timed_out: u64,
    pub probes_sent: u64,
    pub collected: u64,
    pub late: u64,
    pub expired: u64,
    pub answered: u64,
    pub malformed: u64,
    pub bad_cookie: u64,
    pub repeated: u64,
    pub limited: u64,
}

/// Tunnels whose frames leave through a port of weir.
pub struct PathPortApp {
    pub(super) config: PathPort,
    pub(super) nodes: Vec<Node>,
    pub(super) counts: TunnelCounts,
    /// The time in nanoseconds since 1970 (in replay, since its start), and what happened.
    pub(super) events: VecDeque<(u64, String)>,
    /// The time of day at the start, in nanoseconds since 1970, and the app's own clock at that time.
    started: [u64; 2],
    pub(super) waiting: Waiting,
    /// Requests that wait for flows to be listed, and where their page begins.
    asked: Vec<(RequestId, u32)>,
    /// The peers that have an entry in the first pipe, with the numbers of their groups.
    entered: Vec<(Ipv4Addr, u16)>,
    out: Option<PipeId>,
    flows: Option<PipeId>,
    /// The pipes whose entries are paths.
    pub(super) ways: [Option<PipeId>; 2],
    pub(super) hashes: Hashes,
    pub(super) member: SurveyMember,
    pub(super) random: Random,
    pub(super) budget: Budget,
    session: u32,
    /// The first node that may send a large probe.
    pub(super) large: usize,
    rest_until_ns: u64,
    pub(super) read_ns: u64,
    pub(super) ticked_ns: u64,
    numbers: Vec<u16>,
}

impl PathPortApp {
    /// Creates an app that knows no paths yet and shares its results with others.
    #[must_use]
    pub fn new(config: PathPort, exchange: &Exchange) -> PathPortApp {
        let nodes = config.peers.iter().zip(0..).map(|(peer, id)| Node::new(peer, id, &config));
        PathPortApp {
            nodes: nodes.collect(),
            counts: TunnelCounts::default(),
            events: VecDeque::new(),
            started: [0; 2],
            waiting: Waiting::default(),
            asked: Vec::new(),
            entered: Vec::new(),
            out: None,
            flows: None,
            ways: [None; 2],
            hashes: Hashes::new(0),
            member: exchange.join(Form::Port),
            random: Random::new(
                u64::from(config.local.to_bits()) ^ config.secret.map_or(0, |secret| secret.0[0]),
            ),
            budget: Budget::new(0),
            session: 1,
            large: 0,
            rest_until_ns: 0,
            read_ns: 0,
            ticked_ns: 0,
            numbers: Vec::new(),
            config,
        }
    }

    pub(super) fn secret(&self) -> Secret {
        self.config.secret.unwrap_or_default()
    }

    /// Takes over state; the engine keeps buckets and entries under the same names.
    fn take_over(&mut self, old: PathPortApp) {
        let same_pipes = old.config.scheme == self.config.scheme
            && old.config.keyed() == self.config.keyed()
            && old.config.vxlan_port == self.config.vxlan_port;
        let [was, is] = [&old.config, &self.config];
        let is_same = (&was.ports, was.discovery, was.settings) == (&is.ports, is.discovery, is.settings);
        let mut known: Vec<(Ipv4Addr, u16)> = old.nodes.iter().map(|node| (node.address, node.id)).collect();
        for node in &mut self.nodes {
            if known.iter().all(|known| known.0 != node.address) {
                let free = (0..=u16::MAX).find(|id| known.iter().all(|known| known.1 != *id));
                node.id = free.unwrap_or_default();
                known.push((node.address, node.id));
            }
        }
        for mut was in old.nodes {
            if !same_pipes {
                (was.is_given, was.entered) = (false, Default::default());
            }
            if let Some(node) = self.nodes.iter_mut().find(|node| node.address == was.address) {
                node.take_over(was, is_same);
            }
        }
        self.entered = if same_pipes { old.entered } else { Vec::new() };
        (self.counts, self.events) = (old.counts, old.events);
        if same_pipes {
            self.waiting = old.waiting;
        }
        (self.random, self.budget, self.asked) = (old.random, old.budget, old.asked);
        // New paths number their probes from the start, which must not look like repetitions.
        self.session = old.session.wrapping_add(1);
    }

    /// Starts: first buckets get their targets, then frames are directed to them.
    fn begin(&mut self, actions: &mut Vec<Action>) {
        if self.config.scheme != Scheme::Adaptive {
            return;
        }
        let session = self.session;
        self.nodes.iter_mut().for_each(|node| node.begin(session));
        actions.extend(self.entries());
        self.nodes.iter_mut().filter(|node| !node.is_given).for_each(|node| node.give(actions));
        let Some(pipe) = self.out else { return };
        let addresses: Vec<Ipv4Addr> = self.nodes.iter().map(|node| node.address).collect();
        let wanted: Vec<(Ipv4Addr, u16)> = addresses.into_iter().zip(self.numbers.iter().copied()).collect();
        for (address, _) in self.entered.iter().filter(|one| wanted.iter().all(|other| other.0 != one.0)) {
            let key = EntryKey::of(&Entry::on(*address));
            actions.push(Action::Change(Change::Remove { pipe, key }));
        }
        for one in wanted.iter().filter(|one| !self.entered.contains(one)) {
            let entry = Entry::on(one.0).value(one.1).run_time();
            let is_there = self.entered.iter().any(|other| other.0 == one.0);
            let change = if is_there { Change::Update { pipe, entry } } else { Change::Add { pipe, entry } };
            actions.push(Action::Change(change));
        }
        self.entered = wanted;
    }

    fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        if self.config.scheme == Scheme::Adaptive {
            self.watch(now_ns, actions);
        }
        while let Some(flow) = self.waiting.overdue(now_ns) {
            self.counts.timed_out += 1;
            self.pin(now_ns, &flow, u32::from(flow.port), actions);
        }
    }

    pub(super) fn log_change(&mut self, now_ns: u64, what: String, actions: &mut Vec<Action>) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((now_ns, what.clone()));
        actions.push(Action::Say(Level::Info, what));
    }

    /// Handles the first packet of a flow, which has left.
    fn begun(&mut self, now_ns: u64, frame: &[u8], actions: &mut Vec<Action>) {
        let Some(flow) = Begun::read(frame, self.config.keyed()) else { return };
        let Some(at) = self.nodes.iter().position(|node| node.address == flow.peer) else { return };
        match self.config.scheme {
            Scheme::Adaptive => self.place(now_ns, at, &flow, frame.len() as u64, actions),
            _ => self.ask(now_ns, at, flow, actions),
        }
    }

    /// Adaptive: the flow stays on the path of its hash, unless another one is better.
    fn place(&mut self, now_ns: u64, at: usize, flow: &Begun, bytes: u64, actions: &mut Vec<Action>) {
        let own = self.hashes.bucket_of(&flow.key);
        let PathPortApp { nodes, random, .. } = self;
        let node = &mut nodes[at];
        let path = node.buckets.slots().get(own).copied().unwrap_or_default();
        node.sent(now_ns, usize::from(path), bytes);
        if now_ns < self.rest_until_ns {
            self.counts.unpinned += 1;
            return;
        }
        let path = node.paths.choose_again(now_ns, usize::from(path), random);
        let bucket = bucket_to(path as u16, own, &node.buckets, random);
        if let Some(traffic) = node.traffic.get_mut(path) {
            traffic.flows += 1;
        }
        let number = self.hashes.number_of(node.id, bucket);
        self.pin(now_ns, flow, number, actions);
    }

    /// DOCA-AR: sends four probes and waits for the first answer.
    fn ask(&mut self, now_ns: u64, at: usize, flow: Begun, actions: &mut Vec<Action>) {
        if self.waiting.has(&flow.key) {
            return;
        }
        let probes = u64::from(DOCA_PROBES);
        let number = if self.budget.take(now_ns, probes) { self.waiting.add(now_ns, flow) } else { None };
        let Some(number) = number else {
            return self.pin(now_ns, &flow, u32::from(flow.port), actions);
        };
        let secret = self.secret();
        for (turn, port) in (0..).zip(doca_ports(flow.port)) {
            let number = number.wrapping_mul(u32::from(DOCA_PROBES)) + turn;
            let outer = self.nodes[at].outer(&self.config, port);
            let probe = Packet::request(outer, ProbeId { session: self.session, number }, turn as u8, now_ns);
            let bytes = probe.frame(secret).to_vec();
            actions.push(Action::Inject { bytes, output: self.config.port });
        }
        self.counts.probes_sent += probes;
    }

    fn pin(&mut self, now_ns: u64, flow: &Begun, number: u32, actions: &mut Vec<Action>) {
        if now_ns < self.rest_until_ns {
            self.counts.unpinned += 1;
            return;
        }
        let Some(pipe) = self.flows else { return };
        self.counts.pinned += 1;
        actions.push(Action::Change(Change::Add { pipe, entry: flow.entry(number) }));
    }

    /// Handles a refused change. If a flow was not pinned, either it already is, or there is no room.
    fn refused(&mut self, now_ns: u64, change: &Change, why: &Refusal, actions: &mut Vec<Action>) {
        match change {
            Change::Add { pipe, .. } if Some(*pipe) == self.flows => {
                self.counts.pinned -= 1;
                if !matches!(why, Refusal::Change(ChangeError::Exists { .. })) {
                    self.counts.unpinned += 1;
                    self.rest_until_ns = now_ns + REST_NS;
                }
            }
            _ => actions.extend(self.otherwise(change, why)),
        }
    }

    /// Handles a router's message about a probe.
    fn expired(&mut self, frame: &[u8]) {
        let Some(expired) = frame.get(ETHERNET..).and_then(icmp::expired) else { return };
        let PathPort { local, vxlan_port, .. } = self.config;
        let Some(node) = self.nodes.iter_mut().find(|node| expired.to == node.address) else { return };
        if expired.from == local && expired.dport == vxlan_port {
            self.counts.expired += 1;
            node.expired(&expired);
        }
    }

    /// Handles a page of listed flows.
    fn listed(
        &mut self,
        now_ns: u64,
        (from, next): (u32, Option<u32>),
        entries: &[(Entry, Seen)],
        actions: &mut Vec<Action>,
    ) {
        let answer = show::flows(self, now_ns, entries, next);
        let each = |(id, _)| Action::Answer { id, answer: Ok(answer.clone()) };
        actions.extend(self.asked.extract_if(.., |(_, asked)| *asked == from).map(each));
    }

    fn requested(&mut self, id: RequestId, request: &Value, now_ns: u64, actions: &mut Vec<Action>) {
        let answer = match (weir_app::request::read(&[], request), self.flows) {
            (Ok(PathRequest::Show {}), _) => Ok(show::json(self, now_ns)),
            (Ok(PathRequest::Conntrack { from }), Some(pipe)) => {
                self.asked.push((id, from));
                return actions.push(Action::ReadEntries { pipe, from, limit: ROWS });
            }
            (Ok(PathRequest::Conntrack { .. }), None) => Ok(show::flows(self, 0, &[], None)),
            (Err(why), _) => Err(why),
        };
        actions.push(Action::Answer { id, answer });
    }

    /// Handles a probe from a peer, or an answer.
    fn arrived(&mut self, now_ns: u64, frame: &[u8], actions: &mut Vec<Action>) {
        let packet = match Packet::read(frame, PathTunnel::vxlan(self.config.vxlan_port), self.secret()) {
            Ok(packet) => packet,
            Err(wire::PacketRefusal::Malformed) => return self.counts.malformed += 1,
            Err(wire::PacketRefusal::BadCookie) => return self.counts.bad_cookie += 1,
        };
        let source = packet.outer.source;
        let Some(at) = self.nodes.iter().position(|node| node.address == source) else { return };
        if packet.outer.destination != self.config.local {
            return self.counts.malformed += 1;
        }
        match packet.kind {
            Kind::Request => self.reflect(now_ns, at, &packet, actions),
            Kind::Answer => self.collect(now_ns, at, &packet, actions),
            // The probe should have expired: the route has become shorter.
            Kind::Trace => self.counts.malformed += 1,
        }
    }

    fn reflect(&mut self, now_ns: u64, at: usize, packet: &Packet, actions: &mut Vec<Action>) {
        let node = &mut self.nodes[at];
        match node.window.ask(now_ns, packet, self.config.answers) {
            Err(Unanswered::Repeated) => self.counts.repeated += 1,
            Err(Unanswered::Limited) => self.counts.limited += 1,
            Ok(arrived) => {
                let answer = packet.answer(node.answer_port(packet), arrived, now_ns);
                self.counts.answered += 1;
                let bytes = answer.frame(self.secret()).to_vec();
                actions.push(Action::Inject { bytes, output: self.config.port });
            }
        }
    }

    fn collect(&mut self, now_ns: u64, at: usize, packet: &Packet, actions: &mut Vec<Action>) {
        let taken = if self.config.scheme == Scheme::DocaAr {
            let flow = self.waiting.take(packet.number / u32::from(DOCA_PROBES));
            if let Some(flow) = &flow {
                self.pin(now_ns, flow, u32::from(packet.port), actions);
            }
            flow.is_some()
        } else {
            self.nodes[at].answered(now_ns, packet)
        };
        let count = if taken { &mut self.counts.collected } else { &mut self.counts.late };
        *count += 1;
    }
}

impl App for PathPortApp {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        "path"
    }

    fn punts(&self) -> Vec<String> {
        let names = Names(&self.config.name);
        vec![names.flows(), names.probes(), names.expired()]
    }

    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        if let Ok(old) = predecessor.downcast::<PathPortApp>() {
            self.take_over(*old);
        }
    }

    fn bind(&mut self, program: &Program) {
        let names = Names(&self.config.name);
        self.out = program.pipe_named(&self.config.name);
        self.flows = program.pipe_named(&names.flows());
        self.ways = names.ways().map(|name| program.pipe_named(&name));
        self.config.port = program.port_named(&self.config.port_name).unwrap_or_default();
        self.hashes = Hashes::new(program.select_seed);
        self.numbers.clear();
        for node in &mut self.nodes {
            node.group = program.group_named(&names.group(node.address));
            let number = node.group.and_then(|group| program.groups[group.index()].number);
            self.numbers.push(number.unwrap_or_default());
        }
    }

    fn set_date(&mut self, unix_s: u64) {
        self.session = self.session.max(unix_s as u32);
        self.started[0] = unix_s.saturating_mul(1_000_000_000);
    }

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Start => {
                // Replay has its own clock, which starts at 0, and provides no date.
                self.started[1] = if self.started[0] == 0 { 0 } else { now_ns };
                self.begin(actions);
            }
            Event::Frame { app, bytes, .. } if app == Names(&self.config.name).flows() => {
                self.begun(now_ns, bytes, actions);
            }
            Event::Frame { app, bytes, .. } if app == Names(&self.config.name).expired() => {
                self.expired(bytes);
            }
            Event::Frame { bytes, .. } => self.arrived(now_ns, bytes, actions),
            Event::Tick => self.tick(now_ns, actions),
            Event::Buckets { group, report } => {
                if let Some(node) = self.nodes.iter_mut().find(|node| node.group == Some(group)) {
                    node.count(now_ns, report);
                }
            }
            Event::Refused { change, why } => self.refused(now_ns, change, why, actions),
            Event::Entries { from, entries, next, .. } => self.listed(now_ns, (from, next), entries, actions),
            Event::Request { id, request } => self.requested(id, request, now_ns, actions),
            Event::Link { .. } | Event::Client { .. } | Event::Checked { .. } => {}
            Event::Flows { .. }
            | Event::TooLong { .. }
            | Event::Neighbour { .. }
            | Event::CheckSends { .. }
            | Event::Configured { .. }
            | Event::Amended => {}
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        let watch = (self.config.scheme == Scheme::Adaptive).then(|| self.watch_ns());
        self.waiting.wake_ns().into_iter().chain(watch).min()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        show::counts(&self.counts)
    }

    fn helps(&self) -> &'static [MetricHelp] {
        show::HELPS
    }

    fn gauges(&self) -> Vec<(&'static str, f64)> {
        let paths = || self.nodes.iter().flat_map(|node| node.paths.all());
        let usable = paths().filter(|path| path.weight() > 0).count();
        vec![("paths", paths().count() as f64), ("paths_usable", usable as f64)]
    }

    fn samples(&self) -> Vec<Sample> {
        show::samples(self)
    }

    fn report(&self, _now_ns: u64) -> Value {
        let paths: usize = self.nodes.iter().map(|node| node.paths.all().len()).sum();
        json!({ "nodes": self.nodes.len(), "paths": paths, "waiting": self.waiting.len() })
    }
}
