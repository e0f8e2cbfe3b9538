//! A bond and its environment.
//!
//! Port 0 is inside; ports 1 to 4 can be members. A frame that leaves through a port reaches the partner
//! after that link's latency, if the link works. A partner with LACP drops data on links on which it does not
//! collect. The public fields record everything for later inspection.

use crate::lacp::{self, Lacp, Policy, Rate, Settings, System};
use crate::links::Reselect;
use crate::rebalance::Rule;
use crate::{BUCKETS, Bond, BondApp, Inward, LEARNT_MAX, Member, Mode, Names, problems};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weir_app::{Action, App, Event, RequestId};
use weir_config::attachment::Attachment;
use weir_engine::batch::Engine;
use weir_engine::single::Processed;
use weir_packet::{KeySource, TableHash};
use weir_program::builder::{Number, ProgramBuilder};
use weir_program::check::{Finding, Severity, check};
use weir_program::snapshot::BucketReport;
use weir_program::{Copied, EntryMatch, Origin, PortId, Program, Verdict};
use weir_table::NO_TARGET;

pub const MS: u64 = 1_000_000;
pub const SEC: u64 = 1_000 * MS;
pub const INSIDE: PortId = PortId(0);
/// Number of ports that can be members.
pub const LINKS: u16 = 4;
const TICK_LEAST_NS: u64 = MS;
const GIGABIT: u64 = 1_000_000_000;

/// A frame that was sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub at_ns: u64,
    pub port: u16,
    pub bytes: Vec<u8>,
}

/// A link of the bond.
#[derive(Clone, Copy, Debug)]
pub struct BondWire {
    pub carrier: bool,
    pub speed_bps: Option<u64>,
    pub latency_ns: u64,
    /// Whether frames to the partner, and from it, are silently lost.
    pub cut: [bool; 2],
}

/// The fate of frames.
#[derive(Clone, Debug, Default)]
pub struct FrameFates {
    pub came: u64,
    pub originated: u64,
    pub copied: u64,
    pub transmitted: u64,
    pub to_app: u64,
    pub dropped: BTreeMap<String, u64>,
}

/// The partner, at the other end of every link.
pub struct Partner {
    pub lacp: Lacp,
    /// Whether it collects and distributes, by link.
    pub used: BTreeMap<u16, (bool, bool)>,
}

enum Flying {
    Out(Seen),
    In(Seen),
}

/// The bond, its partner, the links and the time.
pub struct BondRig {
    pub now_ns: u64,
    pub bond: Bond,
    pub program: Program,
    pub engine: Engine,
    pub app: Box<BondApp>,
    pub partner: Option<Partner>,
    pub wires: BTreeMap<u16, BondWire>,
    /// Everything the members sent, data or not, in order.
    pub sent: Vec<Seen>,
    /// Data the partner accepted, in order of arrival.
    pub taken: Vec<Seen>,
    /// Data that arrived at links on which the partner does not collect.
    pub refused_by_partner: u64,
    /// Frames that left through the inside port.
    pub inside: Vec<Vec<u8>>,
    pub ledger: FrameFates,
    pub answers: Vec<(RequestId, Result<Value, String>)>,
    pub said: Vec<String>,
    /// Changes the engine refused.
    pub refused: Vec<String>,
    flying: Vec<(u64, Flying)>,
    last_tick_ns: Option<u64>,
    next_request: u64,
}

/// A bond in this mode over the first `members` ports, without rebalancing and with default gaps.
pub fn bond(mode: Mode, members: u16) -> Bond {
    let mut bond = Bond {
        name: "bond0".into(),
        mode,
        members: (1..=members).map(member).collect(),
        inward: Inward::Port(INSIDE),
        forward_reserved: false,
        buckets: BUCKETS,
        basis: 0,
        key: KeySource::Outer,
        rss: false,
        lacp: None,
        primary: None,
        reselect: Reselect::Always,
        updelay_ms: 0,
        downdelay_ms: 0,
        probe: None,
        rule: Rule::default(),
        rebalance_ms: 0,
        elephants: 0,
        idle_gap_ns: MS,
        idle_gap_max_ns: SEC,
        learnt_max: LEARNT_MAX,
        announce: Vec::new(),
        origin: Origin::default(),
    };
    bond.lacp = (mode == Mode::BalanceTcp).then(|| lacp_config(1));
    bond
}

/// Port number `port` as a member.
pub fn member(port: u16) -> Member {
    Member {
        port: PortId(port),
        name: format!("p{port}"),
        mac: Some([2, 0, 0, 0, 0, port as u8]),
        mtu: None,
        weight: None,
        priority: 0x8000,
        key: None,
        origin: Origin::default(),
    }
}

/// LACP with the fast rate, active, for the system whose address ends in this byte.
pub fn lacp_config(system: u8) -> lacp::Config {
    lacp::Config {
        system: System { priority: 0x8000, mac: [2, 9, 0, 0, 0, system] },
        key: 1,
        active: true,
        rate: Rate::Fast,
        min_links: 1,
        policy: Policy::Stable,
        fallback: false,
    }
}

/// A program with a bond in it, and the bond as an attachment for other apps.
pub fn builder_of(bond: &Bond) -> (ProgramBuilder, Attachment) {
    let mut program = ProgramBuilder::new();
    (0..=LINKS).for_each(|number| _ = program.port(format!("p{number}")));
    assert_eq!(problems(std::slice::from_ref(bond)), []);
    let attachment = bond.write(&mut program);
    (program, attachment)
}

/// The program of a bond.
pub fn program_of(bond: &Bond) -> Program {
    let program = builder_of(bond).0.build();
    assert_eq!(errors(&program), []);
    program
}

/// The errors the check finds in a program.
pub fn errors(program: &Program) -> Vec<Finding> {
    check(program).into_iter().filter(|finding| finding.severity == Severity::Error).collect()
}

impl BondRig {
    /// A new bond with all links up and no LACP partner.
    pub fn new(bond: Bond) -> BondRig {
        BondRig::with_wires(bond, |wire| *wire)
    }

    pub fn with_wires(bond: Bond, wire: impl Fn(&BondWire) -> BondWire) -> BondRig {
        let program = program_of(&bond);
        let usual =
            BondWire { carrier: true, speed_bps: Some(GIGABIT), latency_ns: MS / 10, cut: [false; 2] };
        let mut rig = BondRig {
            now_ns: 0,
            engine: Engine::new(&program, TableHash::new([1, 2])).expect("it compiles"),
            app: Box::new(BondApp::new(bond.clone())),
            bond,
            program,
            partner: None,
            wires: (1..=LINKS).map(|port| (port, wire(&usual))).collect(),
            sent: Vec::new(),
            taken: Vec::new(),
            refused_by_partner: 0,
            inside: Vec::new(),
            ledger: FrameFates::default(),
            answers: Vec::new(),
            said: Vec::new(),
            refused: Vec::new(),
            flying: Vec::new(),
            last_tick_ns: None,
            next_request: 0,
        };
        rig.begin();
        rig
    }

    /// A balance_tcp bond that has negotiated with its partner.
    pub fn negotiated(members: u16) -> BondRig {
        let mut rig = BondRig::new(bond(Mode::BalanceTcp, members));
        rig.add_partner();
        rig.run(5 * SEC);
        assert_eq!(rig.enabled(), (1..=members).collect::<Vec<_>>());
        rig
    }

    /// Adds a partner that speaks LACP on every link, with the same port numbers as ours.
    pub fn add_partner(&mut self) {
        self.partner = Some(Partner { lacp: Lacp::new(lacp_config(9)), used: BTreeMap::new() });
        for port in 1..=LINKS {
            let settings = Settings {
                mac: [2, 9, 9, 0, 0, port as u8],
                port: port.try_into().unwrap(),
                priority: 0x8000,
                key: None,
            };
            self.partner_event(lacp::Event::Add { member: port, settings });
            let BondWire { carrier, speed_bps, .. } = self.wires[&port];
            self.partner_event(lacp::Event::Link { member: port, up: carrier, speed_bps });
        }
    }

    fn begin(&mut self) {
        self.app.bind(&self.program);
        self.deliver(Event::Start);
        for port in self.app.watches() {
            self.report_link(port.0);
        }
    }

    /// Ignores refused removals: an entry to be removed from a pipe that is new or has shrunk may already be
    /// gone.
    pub fn forgive_removals(&mut self) {
        self.refused.retain(|why| !why.starts_with("Remove"));
        assert!(self.said.iter().all(|line| !line.contains("a change was refused")));
    }

    /// Reloads with another configuration.
    pub fn reload(&mut self, bond: Bond) {
        let program = program_of(&bond);
        self.reload_as(bond, program);
    }

    /// Reloads with a program that was generated separately.
    pub fn reload_as(&mut self, bond: Bond, program: Program) {
        self.program = program;
        let mut engine = Engine::new(&self.program, TableHash::new([1, 2])).expect("it compiles");
        engine.inherit(&mut self.engine, self.now_ns);
        self.engine = engine;
        let old = std::mem::replace(&mut self.app, Box::new(BondApp::new(bond.clone())));
        self.bond = bond;
        self.app.inherit(old);
        self.begin();
    }

    /// Delivers an event to the app and carries out its actions.
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
                self.ledger.originated += 1;
                self.transmit(output.0, bytes);
            }
            Action::InjectThrough { bytes, input } => {
                self.ledger.originated += 1;
                self.process(input.0, &bytes);
            }
            Action::Change(change) => {
                if let Err(why) = self.engine.apply(&change, self.now_ns) {
                    self.refused.push(format!("{change:?}: {why}"));
                    let refused = Event::Refused { change: &change, why: &why.into() };
                    self.app.step(self.now_ns, refused, &mut more);
                }
            }
            Action::ReadBuckets(group) => {
                let report = self.engine.bucket_reports()[group.index()].clone();
                self.app.step(self.now_ns, Event::Buckets { group, report: &report }, &mut more);
            }
            Action::Say(_, text) => self.said.push(text),
            Action::Answer { id, answer } => self.answers.push((id, answer)),
            other => panic!("a bond has no clients and runs no checks: {other:?}"),
        }
        more
    }

    /// A frame arrives at a port now.
    pub fn frame(&mut self, port: u16, bytes: &[u8]) {
        self.ledger.came += 1;
        self.process(port, bytes);
    }

    fn process(&mut self, port: u16, bytes: &[u8]) {
        let Processed { verdict, copies, bytes } = self.engine.process_one(PortId(port), bytes, self.now_ns);
        self.ledger.copied += copies.len() as u64;
        let mut punts = Vec::new();
        for Copied { to, bytes } in copies.into_iter().chain([Copied { to: verdict, bytes }]) {
            match to {
                Verdict::Transmit(out) => self.transmit(out.0, bytes),
                Verdict::App(app) => punts.push((app.index(), bytes)),
                Verdict::Drop(reason) => *self.ledger.dropped.entry(reason.to_string()).or_default() += 1,
                Verdict::Kernel(_) => panic!("no port has a path to the host"),
            }
        }
        for (app, bytes) in punts {
            self.ledger.to_app += 1;
            let name = self.program.apps[app].clone();
            assert!(self.app.punts().contains(&name), "nothing listens on {name}");
            self.deliver(Event::Frame { app: &name, input: PortId(port), bytes: &bytes });
        }
    }

    fn transmit(&mut self, port: u16, bytes: Vec<u8>) {
        self.ledger.transmitted += 1;
        let Some(wire) = self.wires.get(&port) else { return self.inside.push(bytes) };
        let seen = Seen { at_ns: self.now_ns, port, bytes };
        self.sent.push(seen.clone());
        if wire.carrier && !wire.cut[0] {
            self.flying.push((self.now_ns + wire.latency_ns, Flying::Out(seen)));
        }
    }

    /// The partner sends a frame.
    pub fn partner_sends(&mut self, port: u16, bytes: &[u8]) {
        let wire = self.wires[&port];
        if wire.carrier && !wire.cut[1] {
            let seen = Seen { at_ns: self.now_ns, port, bytes: bytes.to_vec() };
            self.flying.push((self.now_ns + wire.latency_ns, Flying::In(seen)));
        }
    }

    fn partner_event(&mut self, event: lacp::Event<'_>) {
        let Some(partner) = &mut self.partner else { return };
        let mut actions = Vec::new();
        partner.lacp.step(self.now_ns, event, &mut actions);
        for action in actions {
            match action {
                lacp::Action::Transmit { member, frame } => self.partner_sends(member, &frame),
                lacp::Action::Member { member, collecting, distributing } => {
                    let partner = self.partner.as_mut().unwrap();
                    partner.used.insert(member, (collecting, distributing));
                }
                lacp::Action::Negotiation(_) | lacp::Action::Report { .. } => {}
            }
        }
    }

    /// The partner's operator disables a link, or enables it again.
    pub fn partner_holds(&mut self, port: u16, held: bool) {
        self.partner_event(lacp::Event::Hold { member: port, held });
    }

    /// Sets the carrier of a link.
    pub fn carrier(&mut self, port: u16, up: bool) {
        let wire = self.wires.get_mut(&port).unwrap();
        wire.carrier = up;
        let speed_bps = wire.speed_bps;
        if !up {
            self.flying.retain(|(_, one)| match one {
                Flying::Out(seen) | Flying::In(seen) => seen.port != port,
            });
        }
        self.report_link(port);
        self.partner_event(lacp::Event::Link { member: port, up, speed_bps });
    }

    fn report_link(&mut self, port: u16) {
        let BondWire { carrier, speed_bps, .. } = self.wires[&port];
        if self.app.watches().contains(&PortId(port)) {
            let speed_bps = speed_bps.filter(|_| carrier);
            self.deliver(Event::Link { port: PortId(port), up: carrier, speed_bps });
        }
    }

    /// Makes a link lose all frames silently, or stop doing so.
    pub fn cut(&mut self, port: u16, cut: bool) {
        self.wires.get_mut(&port).unwrap().cut = [cut; 2];
    }

    /// Advances the time from one event to the next.
    pub fn run(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while let Some(next) = self.next_ns().filter(|next| *next <= until) {
            self.now_ns = self.now_ns.max(next);
            self.engine.tick(self.now_ns);
            self.carry_frames();
            if self
                .partner
                .as_ref()
                .and_then(|one| one.lacp.wake_ns())
                .is_some_and(|wake| wake <= self.now_ns)
            {
                self.partner_event(lacp::Event::Tick);
            }
            if self.tick_ns().is_some_and(|wake| wake <= self.now_ns) {
                self.last_tick_ns = Some(self.now_ns);
                self.deliver(Event::Tick);
            }
        }
        self.now_ns = until;
        self.engine.tick(until);
    }

    fn next_ns(&self) -> Option<u64> {
        let partner = self.partner.as_ref().and_then(|partner| partner.lacp.wake_ns());
        let flying = self.flying.iter().map(|one| one.0).min();
        [self.tick_ns(), partner, flying].into_iter().flatten().min()
    }

    /// When the app next gets a tick, at most once a millisecond.
    fn tick_ns(&self) -> Option<u64> {
        let least = self.last_tick_ns.map_or(0, |last| last + TICK_LEAST_NS);
        self.app.wake_ns().map(|wake_ns| wake_ns.max(least))
    }

    fn carry_frames(&mut self) {
        let now_ns = self.now_ns;
        let (mut due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.flying).into_iter().partition(|one| one.0 <= now_ns);
        self.flying = later;
        due.sort_by_key(|one| one.0);
        for (at_ns, one) in due {
            match one {
                Flying::In(seen) => self.frame(seen.port, &seen.bytes),
                Flying::Out(seen) => self.arrive(at_ns, seen),
            }
        }
    }

    fn arrive(&mut self, at_ns: u64, seen: Seen) {
        if is_slow(&seen.bytes) {
            return self.partner_event(lacp::Event::Pdu { member: seen.port, bytes: &seen.bytes });
        }
        let collects = |partner: &Partner| partner.used.get(&seen.port).is_some_and(|used| used.0);
        if self.partner.as_ref().is_none_or(collects) {
            self.taken.push(Seen { at_ns, ..seen });
        } else {
            self.refused_by_partner += 1;
        }
    }

    /// Sends an operator's request, asserting that it is answered once.
    pub fn ask(&mut self, words: &str) -> Result<Value, String> {
        self.ask_json(&Value::String(words.into()))
    }

    pub fn ask_json(&mut self, request: &Value) -> Result<Value, String> {
        self.next_request += 1;
        let (id, before) = (RequestId(self.next_request), self.answers.len());
        self.deliver(Event::Request { id, request });
        assert_eq!(self.answers.len(), before + 1, "{request} is answered once");
        let (answered, answer) = self.answers.last().unwrap().clone();
        assert_eq!(answered, id);
        answer
    }

    /// The app's own report.
    pub fn app_report(&self) -> Value {
        self.app.report(self.now_ns)
    }

    /// The ports of enabled members.
    pub fn enabled(&self) -> Vec<u16> {
        let port = |id: u16| self.app.members.get(id).map(|member| member.port.0);
        let mut ports: Vec<u16> = self.app.links.enabled().filter_map(port).collect();
        ports.sort_unstable();
        ports
    }

    /// The port of the active member.
    pub fn active(&self) -> Option<u16> {
        self.app.members.get(self.app.links.active()?).map(|member| member.port.0)
    }

    /// The engine's report on the bond's buckets.
    pub fn report(&self) -> BucketReport {
        self.engine.bucket_reports()[0].clone()
    }

    /// The port of each bucket, according to the engine.
    pub fn table(&self) -> Vec<Option<u16>> {
        let port = |slot: &u16| self.plain(*slot).map(|member| member.port.0);
        self.report().slots.iter().map(port).collect()
    }

    /// The member of a target; a twin counts as its member.
    fn plain(&self, target: u16) -> Option<&Member> {
        let (count, target) = (self.bond.members.len(), usize::from(target));
        let twins = if self.bond.elephants > 0 { 2 } else { 1 };
        (target < twins * count).then(|| &self.bond.members[target % count])
    }

    /// Number of buckets of each member.
    pub fn shares(&self) -> BTreeMap<u16, usize> {
        let mut shares = BTreeMap::new();
        for port in self.table().into_iter().flatten() {
            *shares.entry(port).or_default() += 1;
        }
        shares
    }

    /// The values matched by the entries of one of the bond's pipes.
    pub fn entries(&self, pipe: &str) -> BTreeSet<u128> {
        let Some(pipe) = self.program.pipe_named(pipe) else { return BTreeSet::new() };
        let number = |one: &EntryMatch| if let EntryMatch::Value(value) = one { Some(*value) } else { None };
        self.engine.entries(pipe).iter().filter_map(|(entry, _)| number(entry.matches.first()?)).collect()
    }

    /// Ports whose frames are accepted.
    pub fn admitted(&self) -> Vec<u16> {
        self.entries(&Names(&self.bond.name).inward()).into_iter().map(|port| port as u16).collect()
    }

    /// Frames sent by members since `mark`, except LACPDUs.
    pub fn data_since(&self, mark: usize) -> Vec<&Seen> {
        self.sent[mark..].iter().filter(|seen| !is_slow(&seen.bytes)).collect()
    }

    /// Sends a frame from inside; returns the members through which it left.
    pub fn send(&mut self, bytes: &[u8]) -> Vec<u16> {
        let mark = self.sent.len();
        self.frame(0, bytes);
        let left = self.sent[mark..].iter().filter(|seen| seen.bytes == bytes);
        left.map(|seen| seen.port).collect()
    }

    /// Delivers a frame to a member; returns how many copies come out inside.
    pub fn receive(&mut self, port: u16, bytes: &[u8]) -> usize {
        let mark = self.inside.len();
        self.frame(port, bytes);
        self.inside[mark..].iter().filter(|frame| *frame == bytes).count()
    }

    pub fn dropped(&self) -> u64 {
        self.ledger.dropped.values().sum()
    }

    /// Asserts the invariants that must hold at all times.
    pub fn assert_sound(&self) {
        assert_eq!(self.refused, [""; 0], "no change is refused");
        self.assert_balanced();
        self.assert_buckets();
        self.assert_elephants();
        self.assert_entries();
    }

    fn assert_balanced(&self) {
        let FrameFates { came, originated, copied, transmitted, to_app, .. } = self.ledger;
        assert_eq!(came + originated + copied, transmitted + to_app + self.dropped(), "{:?}", self.ledger);
    }

    /// Every bucket is assigned to an enabled member, if there is one, and to the one the app believes.
    fn assert_buckets(&self) {
        let (app, enabled) = (&self.app, self.enabled());
        let wanted: Vec<u16> =
            app.traffic.buckets.assignment.slots().iter().map(|id| app.members.target(*id)).collect();
        let report = self.report();
        assert_eq!(wanted.len(), report.slots.len());
        if enabled.is_empty() {
            assert_eq!(report.slots, vec![NO_TARGET; wanted.len()], "nothing is sent without a member");
            return;
        }
        let single = app.is_single();
        for &target in &wanted {
            let port = self.bond.members.get(usize::from(target)).map(|member| member.port.0);
            let fits =
                port.is_some_and(|port| enabled.contains(&port) && (!single || self.active() == Some(port)));
            assert!(fits, "a bucket is with {port:?} of {enabled:?}");
        }
        let same = |wanted: u16, is: u16| {
            self.plain(wanted).map(|one| one.port) == self.plain(is).map(|one| one.port)
        };
        let elsewhere = wanted.iter().zip(&report.slots).filter(|(wanted, is)| !same(**wanted, **is)).count();
        assert_eq!(elsewhere, report.pending, "a bucket is where it should be, or waits to go there");
        assert!(report.moved_busy <= report.moved);
    }

    /// Every pinned flow has its entry, and its bucket is assigned to an enabled member; and only a bucket
    /// being looked at is assigned to a twin.
    fn assert_elephants(&self) {
        let (app, members) = (&self.app, self.bond.members.len() as u16);
        let elephants = &app.traffic.elephants;
        assert!(elephants.pins.len() <= self.bond.elephants as usize);
        let own = self.report().slots;
        let twins = (0..).zip(&own).filter(|(_, slot)| **slot != NO_TARGET && **slot >= members);
        let twins: Vec<u32> = twins.map(|one| one.0).collect();
        assert_eq!(twins, elephants.looked_at_bucket().into_iter().collect::<Vec<_>>());
        let Some(group) = self.program.group_named(&Names(&self.bond.name).heavy()) else { return };
        let flows = self.program.pipe_named(&self.bond.name).unwrap();
        let entries = self.engine.entries(flows);
        let flow = |one: &EntryMatch| if let EntryMatch::Flow(flow) = one { Some(*flow) } else { None };
        let known: BTreeSet<_> =
            entries.iter().filter_map(|(entry, _)| flow(entry.matches.first()?)).collect();
        let pinned: BTreeSet<_> = elephants.pins.values().map(|pin| pin.flow).collect();
        assert_eq!(known, pinned);
        if self.enabled().is_empty() {
            assert!(pinned.is_empty());
            return;
        }
        let report = self.engine.bucket_reports()[group.index()].clone();
        let mut elsewhere = 0;
        for (slot, is) in (0..).zip(&report.slots) {
            let free = app.traffic.buckets.assignment.slots()[slot as usize % self.bond.size() as usize];
            let wanted = elephants.pins.get(&slot).map_or(free, |pin| pin.member);
            assert!(
                app.traffic.buckets.assignment.lives(wanted),
                "a bucket is with a member that may be used"
            );
            elsewhere += usize::from(app.members.target(wanted) != *is);
        }
        assert!(elsewhere <= report.pending, "a bucket is where it should be, or waits to go there");
    }

    /// The entries match the state of links and LACP.
    fn assert_entries(&self) {
        let (app, names) = (&self.app, Names(&self.bond.name));
        let lingers = |id: u16| app.admitted.lingers(id);
        let status = app.aggregation.status();
        for member in &self.bond.members {
            let id = self.app.members.id(&member.name).unwrap();
            let port = member.port.0;
            let enabled = self.enabled().contains(&port);
            let collects = |status: &lacp::Status| {
                let one = status.members.iter().find(|one| one.member == id).unwrap();
                matches!(one.mux, "collecting" | "distributing")
                    && one.link_up
                    && !app.members.disabled.contains(&id)
            };
            let wanted = match &status {
                Some(status) if status.negotiation != lacp::Negotiation::Fallback => collects(status),
                _ if self.app.is_single() => self.active() == Some(port),
                _ => enabled,
            };
            let is = self.admitted().contains(&port);
            assert!(is == wanted || is && lingers(id), "p{port} is admitted: {is}, expected: {wanted}");
        }
        let members: Vec<u16> = self.bond.members.iter().map(|member| member.port.0).collect();
        assert!(self.admitted().iter().all(|port| members.contains(port)), "only members are admitted");
        if self.bond.mode == Mode::BalanceSlb {
            let active: BTreeSet<u128> = self.active().into_iter().map(u128::from).collect();
            assert_eq!(self.entries(&names.group_active()), active);
        }
        self.assert_learnt();
    }

    fn assert_learnt(&self) {
        let names = Names(&self.bond.name);
        let known: BTreeSet<u128> = self.app.stations.learnt.iter().map(|(mac, _)| mac.number()).collect();
        assert!(known.len() <= self.bond.learnt_max as usize);
        for pipe in [names.learn(), names.reflected()] {
            if self.program.pipe_named(&pipe).is_some() {
                assert_eq!(self.entries(&pipe), known, "{pipe}");
            }
        }
    }
}

/// Whether it is a frame of a slow protocol.
fn is_slow(bytes: &[u8]) -> bool {
    bytes[12..14] == lacp::ETHER_TYPE.to_be_bytes()
}
