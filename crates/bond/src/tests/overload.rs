//! For a minute, the members of a bond are offered twice the traffic that they can send. The LACPDUs of the
//! bond and of its partner get through in time. The worker is real, with in-memory ports whose transmit
//! queues are drained by a slow wire.
//!
//! On transmit, a frame of the app waits for room ahead of data; on receive, LACPDUs have their own ring, so
//! that copies of other frames for the same app (here: a flood of answers to its probes) cannot fill it.

use super::frames::udp;
use super::rig::{MS, SEC, bond, lacp_config, program_of};
use crate::lacp::{self, Lacp, Settings};
use crate::links::Need;
use crate::{Bond, BondApp, Mode, Names, Probe};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::mpsc::{SyncSender, sync_channel};
use weir_app::RunningApps;
use weir_app::{Action, Event};
use weir_engine::batch::Engine;
use weir_engine::ring::{CarrierReceiver, CarrierSender, carriers};
use weir_engine::worker::{Command, Inject, Report, Worker};
use weir_packet::{DropReason, Pools, TableHash, craft};
use weir_port::{MemPort, MemWire};
use weir_program::{AppId, PortDeclaration, PortId};

const MEMBERS: u16 = 2;
/// Frames that a member's wire takes per millisecond, and slots of the transmit queue before it.
const WIRE: usize = 2;
const QUEUE: usize = 32;
/// Data frames offered to each member per millisecond.
const OFFERED: usize = 2 * WIRE;
/// Answers to probes that arrive on each member per millisecond.
const FLOOD: usize = 2;
/// Flows of each member.
const FLOWS: usize = 32;
/// How often the app runs, the number of frames that it then takes off each ring, and the size of a ring.
/// Copies of answers arrive twice as fast as the app takes them.
const TURN_NS: u64 = 4 * MS;
const TAKEN: usize = 8;
const RING: usize = 64;
/// The maximum delay until a frame of the app is on its port's wire. In the next breath it reaches the
/// worker, behind that breath's data, which has filled the queue; in the following breath, the wire has made
/// room and it gets the first slot; then it has the rest of the queue ahead of it.
const LATE_NS: u64 = (2 + QUEUE / WIRE) as u64 * MS;

/// The address that the bond asks for.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ETHER_IPV4: [u8; 2] = [8, 0];

/// The traffic of one member.
#[derive(Default)]
struct Carried {
    /// Data that it sent.
    data: u64,
    /// Frames that the app wants to send and when it requested that, oldest first.
    asked: VecDeque<(u64, Vec<u8>)>,
    /// Frames sent by the app, and LACPDUs among them.
    ours: u64,
    lacpdus: u64,
    /// The longest delay of a frame, and the longest time between two LACPDUs.
    slowest_ns: u64,
    gap_ns: u64,
    last_lacpdu_ns: Option<u64>,
    /// LACPDUs of the partner.
    partners: u64,
}

/// A worker, the bond's app driven like in the daemon, and the partner.
struct Overload {
    now_ns: u64,
    worker: Worker,
    commands: SyncSender<Command>,
    wires: Vec<MemWire>,
    rings: Vec<CarrierReceiver>,
    apps: RunningApps,
    partner: Lacp,
    members: BTreeMap<u16, Carried>,
    /// Frames that the app received, by the name of the ring.
    punted: BTreeMap<String, u64>,
    /// The app's log, and the partner's observations.
    said: Vec<String>,
}

impl Overload {
    fn new(bond: Bond) -> Overload {
        let program = program_of(&bond);
        let mut pools = Pools::region(512);
        let pool = pools.first().id();
        let open = |one: &PortDeclaration| MemPort::new(&one.name, pool);
        let (ports, wires): (Vec<MemPort>, Vec<MemWire>) = program.ports.iter().map(open).unzip();
        let (punts, rings): (Vec<CarrierSender>, _) = program.apps.iter().map(|_| carriers(RING)).unzip();
        let (commands, receiver) = sync_channel(256);
        let engine = Engine::new(&program, TableHash::new([1, 2])).expect("it compiles");
        let ports = ports.into_iter().map(|port| Box::new(port) as _).collect();
        let worker = Worker::new(engine, ports, pools).with_commands(receiver).with_punts(punts);
        (1..=MEMBERS).for_each(|port| wires[usize::from(port)].limit_transmit(QUEUE));
        let mut overload = Overload {
            now_ns: 0,
            worker,
            commands,
            wires,
            rings,
            apps: RunningApps::new(vec![Box::new(BondApp::new(bond))], RunningApps::default(), &program),
            partner: Lacp::new(lacp_config(9)),
            members: (1..=MEMBERS).map(|port| (port, Carried::default())).collect(),
            punted: BTreeMap::new(),
            said: Vec::new(),
        };
        overload.deliver(Event::Start);
        for port in 1..=MEMBERS {
            overload.deliver(Event::Link { port: PortId(port), up: true, speed_bps: None });
            let number = port.try_into().unwrap();
            let settings =
                Settings { mac: [2, 9, 9, 0, 0, port as u8], port: number, priority: 0x8000, key: None };
            overload.partner_event(lacp::Event::Add { member: port, settings });
            overload.partner_event(lacp::Event::Link { member: port, up: true, speed_bps: None });
        }
        overload
    }

    /// Delivers an event to the app, and carries out its actions.
    fn deliver(&mut self, event: Event<'_>) {
        let mut actions = VecDeque::from(self.apps.step(0, self.now_ns, event));
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Inject { bytes, output } => self.inject(bytes, output),
                Action::Change(change) => {
                    self.worker.engine_mut().apply(&change, self.now_ns).expect("no change is refused");
                }
                Action::ReadBuckets(group) => {
                    let report = self.worker.engine().bucket_reports()[group.index()].clone();
                    actions.extend(self.apps.step(0, self.now_ns, Event::Buckets { group, report: &report }));
                }
                Action::Say(_, text) => self.said.push(text),
                other => panic!("not in this test: {other:?}"),
            }
        }
    }

    fn inject(&mut self, bytes: Vec<u8>, output: PortId) {
        self.members.get_mut(&output.0).expect("a member").asked.push_back((self.now_ns, bytes.clone()));
        let inject = Inject { bytes, output: Some(output), input: PortId::default() };
        let commands = &self.commands;
        self.apps
            .inject(0, inject, |inject, answer| commands.try_send(Command::Inject(inject, answer)).is_ok());
    }

    fn partner_event(&mut self, event: lacp::Event<'_>) {
        let mut actions = Vec::new();
        self.partner.step(self.now_ns, event, &mut actions);
        for action in actions {
            match action {
                lacp::Action::Transmit { member, frame } => {
                    self.members.get_mut(&member).unwrap().partners += 1;
                    self.wires[usize::from(member)].push(&frame);
                }
                other => self.said.push(format!("partner: {other:?}")),
            }
        }
    }

    /// Simulates a millisecond: wires take frames, the worker breathes, and the app may run.
    fn step(&mut self) {
        self.now_ns += MS;
        for port in 1..=MEMBERS {
            for _ in 0..WIRE {
                let Some(frame) = self.wires[usize::from(port)].pop() else { break };
                self.leave(port, &frame);
            }
        }
        while self.wires[0].pop().is_some() {}
        if self.partner.wake_ns().is_some_and(|wake_ns| wake_ns <= self.now_ns) {
            self.partner_event(lacp::Event::Tick);
        }
        self.worker.breathe(self.now_ns);
        if self.now_ns.is_multiple_of(TURN_NS) {
            self.turn();
        }
    }

    /// A frame reaches a member's wire.
    fn leave(&mut self, port: u16, frame: &[u8]) {
        let member = self.members.get_mut(&port).unwrap();
        if frame[12..14] == ETHER_IPV4 {
            member.data += 1;
            return;
        }
        let (asked_ns, bytes) = member.asked.pop_front().expect("a frame of the app that it asked for");
        assert!(bytes == frame, "the app's frames leave in their order, none is lost");
        member.ours += 1;
        member.slowest_ns = member.slowest_ns.max(self.now_ns - asked_ns);
        if frame[12..14] == lacp::ETHER_TYPE.to_be_bytes() {
            let gap_ns = member.last_lacpdu_ns.map_or(0, |last_ns| self.now_ns - last_ns);
            (member.gap_ns, member.last_lacpdu_ns) = (member.gap_ns.max(gap_ns), Some(self.now_ns));
            member.lacpdus += 1;
            self.partner_event(lacp::Event::Pdu { member: port, bytes: frame });
        } else {
            self.wires[usize::from(port)].push(&answer(port));
        }
    }

    /// One turn of the daemon for an app: reports on injected frames, a tick, some frames off each ring.
    fn turn(&mut self) {
        self.apps.collect();
        if self.apps.due(self.now_ns).is_some() {
            self.deliver(Event::Tick);
        }
        for at in 0..self.rings.len() {
            for _ in 0..TAKEN {
                let Some(carrier) = self.rings[at].receive() else { break };
                let name = self.apps.name(AppId(at as u16)).to_string();
                self.deliver(Event::Frame { app: &name, input: carrier.input, bytes: carrier.bytes() });
                *self.punted.entry(name).or_default() += 1;
                self.rings[at].done(carrier);
            }
        }
    }

    fn app(&self) -> &BondApp {
        let app: &dyn Any = self.apps.app(0);
        app.downcast_ref().expect("a bond")
    }

    fn assert_negotiated(&self) {
        assert_eq!(self.app().links.enabled().count(), usize::from(MEMBERS), "{:?}", self.said);
        for status in [self.app().aggregation.status().unwrap(), self.partner.status()] {
            assert_eq!(status.members.len(), usize::from(MEMBERS));
            for member in status.members {
                let silent = member.counters.expired + member.counters.defaulted;
                assert_eq!((member.mux, silent), ("distributing", 0), "{:?}", self.said);
            }
        }
    }

    /// Flows that leave through each member.
    fn flows(&mut self) -> Vec<Vec<Vec<u8>>> {
        let mut flows = vec![Vec::new(); usize::from(MEMBERS)];
        for flow in 0.. {
            let before: Vec<u64> = self.members.values().map(|member| member.data).collect();
            self.wires[0].push(&udp(flow));
            (0..2).for_each(|_| self.step());
            let after = self.members.values().map(|member| member.data);
            let by = after.zip(before).position(|(after, before)| after > before).expect("it has left");
            if flows[by].len() < FLOWS {
                flows[by].push(udp(flow));
            }
            if flows.iter().all(|flows| flows.len() == FLOWS) {
                break;
            }
        }
        flows
    }

    /// Offers twice the traffic that the members can send, and a flood of answers on every member, for
    /// `steps` milliseconds.
    fn overload(&mut self, flows: &[Vec<Vec<u8>>], steps: usize) {
        for step in 0..steps {
            for flow in 0..OFFERED {
                flows
                    .iter()
                    .for_each(|flows| self.wires[0].push(&flows[(step * OFFERED + flow) % flows.len()]));
            }
            for port in 1..=MEMBERS {
                let answer = answer(port);
                (0..FLOOD).for_each(|_| self.wires[usize::from(port)].push(&answer));
            }
            self.step();
            if step % 100 == 0 {
                self.assert_negotiated();
            }
        }
    }

    fn report(&self) -> Report {
        let report = self.worker.report();
        assert!(report.ledger.balances(), "{:?} {:?}", report.ledger.sides(), report.ledger);
        report
    }
}

/// Probes of the gateway, every second.
fn probe() -> Probe {
    Probe {
        targets: vec![GATEWAY.into()],
        source: Ipv4Addr::UNSPECIFIED,
        vlan: None,
        interval_ms: 1000,
        missed_max: 2,
        need: Need::Any,
    }
}

/// The gateway's answer to a request of the bond.
fn answer(member: u16) -> Vec<u8> {
    craft::frame(&format!(
        "eth.src=02:00:00:00:07:07 eth.dst=02:00:00:00:00:{member:02x} arp=reply sender_ip={GATEWAY}"
    ))
}

#[test]
fn a_minute_at_twice_what_members_can_send_loses_no_lacpdu_and_delays_none() {
    let mut rig = Overload::new(Bond { probe: Some(probe()), ..bond(Mode::BalanceTcp, MEMBERS) });
    (0..6000).for_each(|_| rig.step());
    rig.assert_negotiated();
    let flows = rig.flows();
    let (before, data_before) = (rig.report(), rig.members.values().map(|member| member.data).sum::<u64>());
    rig.said.clear();

    let minute = 60 * SEC / MS;
    rig.overload(&flows, minute as usize);
    let after = rig.report();

    // This was an overload: half of the offered data was dropped, for the expected reason only.
    let dropped: BTreeMap<String, u64> = DropReason::ALL
        .iter()
        .map(|&reason| {
            (reason, after.ledger.dropped[reason as usize] - before.ledger.dropped[reason as usize])
        })
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.to_string(), count))
        .collect();
    assert_eq!(dropped.keys().collect::<Vec<_>>(), [&DropReason::TransmitFull.to_string()]);
    let offered = minute * (OFFERED * usize::from(MEMBERS)) as u64;
    let lost = dropped.values().sum::<u64>();
    assert!(lost.abs_diff(offered / 2) < offered / 100, "{lost} of {offered}");
    // And a flood: copies of answers found their ring full.
    let (missed, answers) = (after.tee_missed - before.tee_missed, rig.punted[&Names("bond0").answers()]);
    assert!(missed > minute * (FLOOD * usize::from(MEMBERS)) as u64 / 3, "{missed} missed, {answers} taken");

    // The load ends; the queues drain.
    (0..100).for_each(|_| rig.step());
    rig.assert_negotiated();
    assert_eq!(rig.said, [""; 0], "nothing has happened");
    let ledger = rig.report().ledger;
    assert_eq!(ledger.held, 0);
    let data = rig.members.values().map(|member| member.data).sum::<u64>() - data_before;
    assert_eq!(data + lost, offered);

    // Receive: the app got everything the partner sent.
    let partners: u64 = rig.members.values().map(|member| member.partners).sum();
    assert_eq!(rig.punted[&Names("bond0").slow()], partners);
    let status = rig.app().aggregation.status().unwrap();
    assert_eq!(status.members.iter().map(|member| member.counters.lacpdus_received).sum::<u64>(), partners);
    // Transmit: everything the app sent has left, in time.
    let account = rig.apps.account(0);
    let ours: u64 = rig.members.values().map(|member| member.ours).sum();
    assert_eq!((account.injected, account.refused), (ours, 0));
    for (port, member) in &rig.members {
        assert!(member.asked.is_empty() && member.lacpdus >= 60 && member.ours >= 120, "p{port}");
        assert!(member.slowest_ns <= LATE_NS, "p{port}: {} ns", member.slowest_ns);
        assert!(member.gap_ns <= SEC + LATE_NS + TURN_NS, "p{port}: {} ns", member.gap_ns);
    }
    let slowest_ns = rig.members.values().map(|member| member.slowest_ns).max().unwrap();
    assert!(slowest_ns > LATE_NS / 2, "queues were full: {slowest_ns} ns");
}
