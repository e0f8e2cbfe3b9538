//! A path app and a fabric on a virtual clock. The program runs in a real engine. Links lead to a remote
//! node, and the outer source port of a frame selects its link: one of four, or, in a leaf-spine fabric, by a
//! hash. Routers send messages when a TTL expires.

use crate::Exchange;
use crate::icmp;
use crate::port::pipes::Names;
use crate::port::{Discovery, PathPort, PathPortApp, Peer};
use crate::scheme::Scheme;
use crate::settings::Settings;
use crate::tunnel::PathTunnel;
use crate::wire::{Kind, Packet, Secret};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use weir_app::{Action, App, Event, RequestId};
use weir_config::attachment::Attachment;
use weir_config::ports::{PortConfig, PortKind};
use weir_engine::batch::Engine;
use weir_engine::single::Processed;
use weir_packet::random::Random;
use weir_packet::{KeySource, TableHash, TunnelKind};
use weir_program::builder::ProgramBuilder;
use weir_program::check::{Severity, check};
use weir_program::snapshot::Page;
use weir_program::{Copied, Encap, Entry, Operation, Origin, Pipe, PortId, Program, Verdict};

pub const MS: u64 = 1_000_000;
pub const SEC: u64 = 1_000 * MS;
pub const SECRET: Secret = Secret([1, 2]);
pub const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Ports that lead along the four links.
pub const PORTS: [u16; 4] = [50_000, 50_001, 50_002, 50_003];
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const FABRIC: PortId = PortId(0);
pub const INPUT: u16 = 1;
/// How far ahead the remote node's clock is.
const AHEAD_NS: u64 = 77 * SEC;

/// A link of the fabric.
#[derive(Clone, Copy, Debug)]
pub struct FabricLink {
    pub delay_ns: u64,
    pub is_cut: bool,
}

/// Data that left: when, and from which port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentData {
    pub at_ns: u64,
    pub port: u16,
}

pub struct TunnelRig {
    pub now_ns: u64,
    pub config: PathPort,
    pub program: Program,
    pub engine: Engine,
    pub app: Box<PathPortApp>,
    pub links: Vec<FabricLink>,
    /// The fabric hashes ports; otherwise they alternate.
    pub hashes: bool,
    /// Routers do not report expired TTLs.
    pub is_silent: bool,
    /// The remote node answers probes.
    pub answers: bool,
    /// The remote node is unaware that answers through its first link are lost.
    pub is_broken_back: bool,
    /// The link that drops frames of more than 1000 bytes.
    pub narrow: Option<usize>,
    /// Data sent towards the fabric, in order.
    pub sent: Vec<SentData>,
    /// Frames sent by the app towards the fabric.
    pub injected: Vec<Vec<u8>>,
    /// Frames that left through the input.
    pub inside: Vec<Vec<u8>>,
    pub dropped: BTreeMap<String, u64>,
    pub said: Vec<String>,
    pub refused: Vec<String>,
    pub moves: Vec<usize>,
    pub answered: Vec<Value>,
    /// Probes of each path that have reached the remote node.
    arrived: [u32; 256],
    flying: Vec<(u64, Vec<u8>)>,
    last_tick_ns: Option<u64>,
}

pub fn config(scheme: Scheme) -> PathPort {
    PathPort {
        name: "fabric".into(),
        port: FABRIC,
        port_name: "p0".into(),
        input: Some(input()),
        root: None,
        local: LOCAL,
        mac: OURS,
        peers: vec![Peer { address: REMOTE, mac: THEIRS }],
        scheme,
        key: KeySource::Inner,
        ports: PORTS.to_vec(),
        discovery: None,
        idle_ns: SEC,
        vxlan_port: 4789,
        dscp: 0,
        mtu: 0,
        settings: Settings::of_rate(1_000_000_000),
        flows: 1 << 15,
        idle_timeout_ns: 10 * SEC,
        answers: 1000,
        secret: Some(SECRET),
        origin: Origin::default(),
    }
}

/// A configuration whose paths must be discovered.
pub fn discovering() -> PathPort {
    let ports = (0..16).map(|at| 49_152 + 1024 * at).collect();
    let discovery = Some(Discovery { sources: [49_152, 65_535], every_ns: 5 * SEC });
    PathPort { ports, discovery, ..config(Scheme::Adaptive) }
}

fn input() -> Attachment {
    let port = PortConfig::new("p1", PortKind::Mem);
    Attachment::port(PortId(INPUT), &port, Origin::default())
}

pub fn program_of(config: &PathPort) -> Program {
    let mut program = ProgramBuilder::new();
    program.ports(["p0", "p1"]);
    config.write(&mut program);
    if config.input.is_none() {
        encapsulate(&mut program);
    }
    let program = program.build();
    let errors: Vec<_> =
        check(&program).into_iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert_eq!(errors, []);
    program
}

/// Directs frames from the input into tunnels to the peer.
fn encapsulate(program: &mut ProgramBuilder) {
    let to = program.pipe_named("fabric").expect("it is written");
    let encap = Encap {
        eth_dst: THEIRS.into(),
        eth_src: OURS.into(),
        src: LOCAL.into(),
        dst: REMOTE.into(),
        id: Some(42_u32.into()),
        ..Encap::new(TunnelKind::Vxlan)
    };
    let wrap = Pipe::basic("wrap").act([Operation::Encap(encap)]).entry(Entry::default()).forward(to);
    let wrap = program.pipe(wrap);
    program.root(PortId(INPUT), wrap);
}

/// A VXLAN frame to a peer, with this inner flow.
pub fn data(peer: Ipv4Addr, flow: u32, outer_port: u16) -> Vec<u8> {
    let mut inner = vec![2, 0, 0, 0, 9, 1, 2, 0, 0, 0, 9, 2, 8, 0];
    inner.extend([0x45, 0, 0, 36, 0, 1, 0, 0, 64, 17, 0, 0, 192, 168, 0, 1, 192, 168]);
    let [_, high, middle, low] = flow.to_be_bytes();
    inner.extend([high, middle, low, low, 0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let mut frame = [&THEIRS[..], &OURS, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + 8 + 8 + inner.len() as u16).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    frame.extend(LOCAL.octets().iter().chain(&peer.octets()));
    frame.extend(outer_port.to_be_bytes());
    frame.extend(4789_u16.to_be_bytes());
    frame.extend((16 + inner.len() as u16).to_be_bytes());
    frame.extend([0, 0, 8, 0, 0, 0, 0, 0, 42, 0]);
    frame.extend(inner);
    frame
}

fn port_of(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

impl TunnelRig {
    pub fn new(config: PathPort) -> TunnelRig {
        TunnelRig::sharing(config, &Exchange::default())
    }

    /// Creates a tunnel in front of a fabric of `count` spines, whose paths must be discovered.
    pub fn spines(count: usize) -> TunnelRig {
        let mut rig = TunnelRig::new(discovering());
        rig.links = vec![FabricLink { delay_ns: MS / 10, is_cut: false }; count];
        rig.hashes = true;
        rig
    }

    pub fn sharing(config: PathPort, exchange: &Exchange) -> TunnelRig {
        let program = program_of(&config);
        let mut rig = TunnelRig {
            now_ns: 0,
            engine: Engine::new(&program, TableHash::new([1, 2])).expect("it compiles"),
            app: Box::new(PathPortApp::new(config.clone(), exchange)),
            config,
            program,
            links: vec![FabricLink { delay_ns: MS / 10, is_cut: false }; 4],
            hashes: false,
            is_silent: false,
            answers: true,
            is_broken_back: false,
            narrow: None,
            sent: Vec::new(),
            injected: Vec::new(),
            inside: Vec::new(),
            dropped: BTreeMap::new(),
            said: Vec::new(),
            refused: Vec::new(),
            moves: Vec::new(),
            answered: Vec::new(),
            arrived: [0; 256],
            flying: Vec::new(),
            last_tick_ns: None,
        };
        rig.begin();
        rig
    }

    fn begin(&mut self) {
        self.app.bind(&self.program);
        self.app.set_date(1_000 + self.now_ns / SEC);
        self.deliver(Event::Start);
    }

    pub fn reload(&mut self, config: PathPort) {
        self.program = program_of(&config);
        let mut engine = Engine::new(&self.program, TableHash::new([1, 2])).expect("it compiles");
        engine.inherit(&mut self.engine, self.now_ns);
        self.engine = engine;
        let old = std::mem::replace(
            &mut self.app,
            Box::new(PathPortApp::new(config.clone(), &Exchange::default())),
        );
        self.config = config;
        self.app.inherit(old);
        self.begin();
    }

    pub fn deliver(&mut self, event: Event<'_>) {
        let mut actions = Vec::new();
        self.app.step(self.now_ns, event, &mut actions);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            actions.extend(self.perform(action));
        }
    }

    fn perform(&mut self, action: Action) -> Vec<Action> {
        let mut more = Vec::new();
        match action {
            Action::Inject { bytes, output } => {
                assert_eq!(output, FABRIC);
                self.injected.push(bytes.clone());
                self.carry(bytes);
            }
            Action::Change(change) => {
                if let weir_program::change::Change::MoveBuckets { moves, .. } = &change {
                    self.moves.push(moves.len());
                }
                if let Err(why) = self.engine.apply(&change, self.now_ns) {
                    self.refused.push(why.to_string());
                    let refused = Event::Refused { change: &change, why: &why.into() };
                    self.app.step(self.now_ns, refused, &mut more);
                }
            }
            Action::ReadBuckets(group) => {
                let report = self.engine.bucket_reports()[group.index()].clone();
                self.app.step(self.now_ns, Event::Buckets { group, report: &report }, &mut more);
            }
            Action::ReadEntries { pipe, from, limit } => {
                let Page { entries, next, .. } = self.engine.page(pipe, from, limit as u32, self.now_ns);
                let read = Event::Entries { pipe, from, entries: &entries, next };
                self.app.step(self.now_ns, read, &mut more);
            }
            Action::Say(_, text) => self.said.push(text),
            Action::Answer { answer, .. } => self.answered.push(answer.expect("it is understood")),
            other => panic!("{other:?}"),
        }
        more
    }

    /// The link of a source port.
    pub fn link_of(&self, port: u16) -> usize {
        let links = self.links.len();
        if self.hashes {
            Random::new(port.into()).below(links as u64) as usize
        } else {
            usize::from(port) % links
        }
    }

    /// Carries a frame through the fabric.
    fn carry(&mut self, frame: Vec<u8>) {
        let at = self.link_of(port_of(&frame));
        let link = self.links[at];
        let Ok(mut packet) = Packet::read(&frame, PathTunnel::VXLAN, SECRET) else { return };
        let is_narrow = self.narrow == Some(at) && frame.len() > 1000;
        if link.is_cut || is_narrow || !self.answers || packet.kind == Kind::Answer {
            return;
        }
        let there_ns = self.now_ns + link.delay_ns;
        if packet.outer.ttl < 3 {
            let router = [Ipv4Addr::new(10, 8, 0, 1), Ipv4Addr::new(10, 9, at as u8, 2)];
            let router = router[usize::from(packet.outer.ttl) - 1];
            // Some routers quote no more than the minimum.
            let quotes = if router.octets()[3].is_multiple_of(2) { 28 } else { 128 };
            let message =
                [&OURS[..], &THEIRS, &[8, 0], &icmp::message(router, &frame[14..], quotes)].concat();
            self.flying.extend(Some((there_ns, message)).filter(|_| !self.is_silent));
            return;
        }
        packet.outer.ttl -= 2;
        // The remote node sends probes, too, and answers through working links.
        let whole: Vec<usize> = (0..self.links.len()).filter(|link| !self.links[*link].is_cut).collect();
        let back = whole[usize::from(packet.turn) % whole.len()];
        let arrived = &mut self.arrived[usize::from(packet.path)];
        *arrived += 1;
        if self.is_broken_back && back == 0 {
            return;
        }
        let answer = packet.answer(PORTS[0] + back as u16, *arrived, there_ns + AHEAD_NS);
        self.flying.push((there_ns + self.links[back].delay_ns, answer.frame(SECRET).to_vec()));
    }

    /// A frame arrives at a port now.
    pub fn frame(&mut self, port: u16, bytes: &[u8]) {
        let Processed { verdict, copies, bytes } = self.engine.process_one(PortId(port), bytes, self.now_ns);
        let mut punts = Vec::new();
        for Copied { to, bytes } in copies.into_iter().chain([Copied { to: verdict, bytes }]) {
            match to {
                Verdict::Transmit(FABRIC) => {
                    self.sent.push(SentData { at_ns: self.now_ns, port: port_of(&bytes) });
                }
                Verdict::Transmit(_) => self.inside.push(bytes),
                Verdict::App(app) => punts.push((app.index(), bytes)),
                Verdict::Drop(reason) => *self.dropped.entry(reason.to_string()).or_default() += 1,
                Verdict::Kernel(_) => panic!("no port has a path to the host"),
            }
        }
        for (app, bytes) in punts {
            let name = self.program.apps[app].clone();
            self.deliver(Event::Frame { app: &name, input: PortId(port), bytes: &bytes });
        }
    }

    /// Sends a packet of a flow; returns its outer source port.
    pub fn send(&mut self, flow: u32) -> u16 {
        let before = self.sent.len();
        let frame = data(REMOTE, flow, 60_000 + flow as u16 % 1000);
        // Without an input, weir encapsulates the inner frame.
        let from = if self.config.input.is_some() { 0 } else { 50 };
        self.frame(INPUT, &frame[from..]);
        assert_eq!(self.sent.len(), before + 1, "no packet is queued, and none is lost: {:?}", self.dropped);
        self.sent[before].port
    }

    /// Advances time.
    pub fn run(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while let Some(next) = self.next_ns().filter(|next| *next <= until) {
            self.now_ns = self.now_ns.max(next);
            self.engine.tick(self.now_ns);
            let now_ns = self.now_ns;
            let (due, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.flying).into_iter().partition(|one| one.0 <= now_ns);
            self.flying = later;
            due.iter().for_each(|(_, frame)| self.frame(0, frame));
            if self.tick_ns().is_some_and(|wake| wake <= self.now_ns) {
                self.last_tick_ns = Some(self.now_ns);
                self.deliver(Event::Tick);
            }
        }
        self.now_ns = until;
        self.engine.tick(until);
    }

    /// Advances a second in which workers age their entries, a slice at a time.
    pub fn age(&mut self) {
        for _ in 0..100 {
            self.run(10 * MS);
            self.engine.take_deltas(|_| true);
        }
    }

    /// Advances time while each of `flows` flows sends a packet every millisecond.
    pub fn run_with(&mut self, flows: u32, ns: u64) {
        for _ in 0..ns / MS {
            (0..flows).for_each(|flow| _ = self.send(flow));
            self.run(MS);
        }
    }

    fn next_ns(&self) -> Option<u64> {
        let flying = self.flying.iter().map(|one| one.0).min();
        [self.tick_ns(), flying].into_iter().flatten().min()
    }

    fn tick_ns(&self) -> Option<u64> {
        let least = self.last_tick_ns.map_or(0, |last| last + MS);
        self.app.wake_ns().map(|wake_ns| wake_ns.max(least))
    }

    /// The answer to `weir show path`.
    pub fn show(&mut self) -> Value {
        self.ask("show")
    }

    pub fn ask(&mut self, request: &str) -> Value {
        self.deliver(Event::Request { id: RequestId(1), request: &json!(request) });
        self.answered.pop().expect("an answer")
    }

    /// The states of the paths to the remote node.
    pub fn states(&mut self) -> Vec<String> {
        let shown = self.show();
        let paths = shown["nodes"][0]["paths"].as_array().expect("paths").clone();
        paths.iter().map(|path| path["state"].as_str().unwrap_or_default().to_string()).collect()
    }

    /// Flows with an entry.
    pub fn pinned(&self) -> usize {
        let pipe = self.program.pipe_named(&Names("fabric").flows()).expect("it is written");
        self.engine.entries(pipe).len()
    }

    pub fn count(&self, name: &str) -> u64 {
        self.app.counts().iter().find(|one| one.0 == name).expect("a counter").1
    }
}
