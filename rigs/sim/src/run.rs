//! A run: flows arrive, hosts send, the fabric forwards, hosts reply.

use crate::calendar::Calendar;
use crate::fabric::{Fabric, Passage};
use crate::loads::draw_gap;
use crate::node::Nodes;
use crate::outcome::{RunOutcome, Slowdowns};
use crate::packet::{Account, Arena, Packet, PacketKind};
use crate::scenario::{Contender, Scenario};
use crate::tcp::{Ack, DATA_BYTES, HEADER_BYTES, Receiver, TcpSender};
use anyhow::{Result, ensure};
use std::collections::VecDeque;
use weir_packet::random::Random;
use weir_path::flow::{Flow, Route};
use weir_path::scheme::{DOCA_TIMEOUT_NS, Scheme, doca_ports, port_of};
use weir_path::settings::Settings;

/// How long flows may take to finish after the last arrival, ns: two timeouts in a row.
const GRACE_NS: u64 = 1_000_000_000;

/// Percentage of first flows that are not counted, while the fabric fills.
const WARM_UP_PERCENT: u32 = 10;

/// Maximum number of flows per run: the state of each takes about 700 bytes.
pub const FLOWS_MAX: u32 = 4_000_000;

/// The meaning of a calendar payload is in its upper bits.
const PACKET: u32 = 0;
const TIMER: u32 = 1 << 29;
const ARRIVAL: u32 = 2 << 29;
const ROUND: u32 = 3 << 29;
const DOCA: u32 = 4 << 29;
const KINDS: u32 = 7 << 29;

/// A flow and both of its ends.
pub(crate) struct Transfer {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) bytes: u64,
    pub(crate) arrived_at: u64,
    pub(crate) ended_at: Option<u64>,
    packets: u32,
    sender: TcpSender,
    receiver: Receiver,
    /// The direction of data, and that of acknowledgements.
    flows: [Flow; 2],
    /// The path and hash that belong to a flow's route.
    routes: [Option<(Route, u8, u64)>; 2],
    timer: u64,
    is_waiting: bool,
    conga: (u64, usize),
}

impl Transfer {
    /// The paths of the last packets, forward and back.
    pub(crate) fn paths(&self) -> [Option<u8>; 2] {
        self.routes.map(|route| route.map(|(_, path, _)| path))
    }
}

/// A run of a scenario.
pub struct Run {
    scenario: Scenario,
    fabric: Fabric,
    calendar: Calendar,
    packets: Arena,
    transfers: Vec<Transfer>,
    nodes: Nodes,
    account: Account,
    arrivals: Random,
    random: Random,
    unended: u32,
    now: u64,
    last_arrival: u64,
    events: u64,
    /// DOCA-AR: for each host, the flow whose probes are in flight, followed by those that wait.
    doca: Vec<VecDeque<u32>>,
}

impl Run {
    /// Builds the fabric. Errors name the invalid option.
    pub fn new(scenario: &Scenario) -> Result<Run> {
        let percent = scenario.percent;
        ensure!((1.0..=99.0).contains(&percent), "--load: {percent} is not between 1 and 99 percent");
        ensure!((1..=FLOWS_MAX).contains(&scenario.flows), "--flows: not between 1 and {FLOWS_MAX}");
        ensure!(
            scenario.shape.leaves >= 2,
            "--leaves: flows go from leaf to leaf, so there must be at \
            least 2"
        );
        let fabric = Fabric::new(&scenario.shape, &scenario.faults, scenario.seed)?;
        let mut settings = Settings::of_rate((scenario.shape.rate * 1e9) as u64);
        settings.probe_ns = scenario.probe_ns;
        settings.lost_after_ns = scenario.probe_ns.max(scenario.tcp.timeout_min.min(10_000_000));
        settings.cell_bytes = (scenario.contender == Contender::AdaptiveCells).then_some(0);
        settings.flowlet_ns = scenario.flowlet_ns.unwrap_or(settings.flowlet_ns);
        let hosts = scenario.shape.all_hosts() as usize;
        let mut run = Run {
            nodes: Nodes::new(&scenario.shape, settings, scenario.contender.knows_paths(), scenario.seed),
            fabric,
            calendar: Calendar::new(),
            packets: Arena::default(),
            transfers: Vec::with_capacity(scenario.flows as usize),
            account: Account::default(),
            arrivals: Random::new(scenario.seed),
            random: Random::new(!scenario.seed),
            unended: scenario.flows,
            now: 0,
            last_arrival: u64::MAX,
            events: 0,
            doca: vec![VecDeque::new(); hosts],
            scenario: scenario.clone(),
        };
        run.calendar.add(0, ARRIVAL);
        Ok(run)
    }

    /// Handles at most `events` events; returns false when the run has ended.
    pub fn advance(&mut self, events: u64) -> bool {
        for _ in 0..events {
            let over = self.now > self.last_arrival.saturating_add(GRACE_NS);
            if self.unended == 0 || over {
                return false;
            }
            let Some((now, payload)) = self.calendar.take() else { return false };
            self.now = now;
            self.events += 1;
            let number = payload & !KINDS;
            match payload & KINDS {
                PACKET => self.hop(number),
                TIMER => self.timer(number),
                ARRIVAL => self.arrive(),
                ROUND => self.probe(number),
                _ => self.doca_ends(number, None),
            }
        }
        true
    }

    /// The number of unfinished flows, and of all flows.
    #[must_use]
    pub fn left(&self) -> (u32, u32) {
        (self.unended, self.scenario.flows)
    }

    /// All flows that have arrived, in order of arrival.
    pub(crate) fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// Lets a flow arrive between two hosts of different leaves.
    fn arrive(&mut self) {
        let (hosts, leaf) =
            (u64::from(self.scenario.shape.all_hosts()), u64::from(self.scenario.shape.hosts));
        let from = self.arrivals.below(hosts);
        let beyond = (from / leaf + 1) * leaf;
        let to = (beyond + self.arrivals.below(hosts - leaf)) % hosts;
        let bytes = self.scenario.load.draw(&mut self.arrivals);
        self.start(from as u32, to as u32, bytes);
        if (self.transfers.len() as u32) < self.scenario.flows {
            let gap = draw_gap(self.scenario.gap_ns(), &mut self.arrivals);
            self.calendar.add(self.now + gap, ARRIVAL);
        } else {
            self.last_arrival = self.now;
        }
    }

    /// Starts a flow now.
    fn start(&mut self, from: u32, to: u32, bytes: u64) {
        let packets = bytes.div_ceil(u64::from(DATA_BYTES)).min(u64::from(u32::MAX / 2)) as u32;
        let scheme = self.scheme();
        let hash = self.random.bits();
        let number = self.transfers.len() as u32;
        self.transfers.push(Transfer {
            from,
            to,
            bytes,
            arrived_at: self.now,
            ended_at: None,
            packets,
            sender: TcpSender::new(packets, self.scenario.tcp),
            receiver: Receiver::default(),
            flows: [Flow::new(scheme, hash), Flow::new(scheme, hash.rotate_left(17))],
            routes: [None; 2],
            timer: u64::MAX,
            is_waiting: scheme == Scheme::DocaAr,
            conga: (0, 0),
        });
        if scheme == Scheme::DocaAr {
            let waiting = &mut self.doca[from as usize];
            waiting.push_back(number);
            if waiting.len() == 1 {
                self.doca_probe(number);
            }
        } else {
            self.send(number);
        }
    }

    fn scheme(&self) -> Scheme {
        self.scenario.contender.scheme()
    }

    /// Sends what the window allows.
    fn send(&mut self, number: u32) {
        loop {
            let transfer = &mut self.transfers[number as usize];
            let next = transfer.sender.highest_sent();
            let Some(packet) = transfer.sender.take(self.now) else { break };
            let late = transfer.sender.is_backed_off();
            self.account.ledger.again += u64::from(packet < next);
            let packet = Packet {
                number: packet,
                bytes: (DATA_BYTES + HEADER_BYTES) as u16,
                kind: PacketKind::Data,
                markable: self.scenario.tcp.dctcp,
                late,
                ..BLANK
            };
            self.send_in_flow(number, 0, packet);
        }
        let transfer = &mut self.transfers[number as usize];
        if transfer.timer == u64::MAX && transfer.sender.deadline() != u64::MAX {
            transfer.timer = transfer.sender.deadline();
            self.calendar.add(transfer.timer, TIMER | number);
        }
    }

    /// Sends a packet of a flow, in one of its directions, along the path that the scheme chooses.
    fn send_in_flow(&mut self, number: u32, direction: usize, packet: Packet) {
        let transfer = &mut self.transfers[number as usize];
        let ends = [(transfer.from, transfer.to), (transfer.to, transfer.from)];
        let (from, to) = ends[direction];
        let node = self.nodes.of(self.now, from, to, &self.fabric);
        let paths = &mut self.nodes.at(node).paths;
        let bytes = u64::from(packet.bytes);
        let route = transfer.flows[direction].place(self.now, bytes, paths, &mut self.random);
        let known = transfer.routes[direction].filter(|known| known.0 == route);
        let (mut path, hash) = match known {
            Some((_, path, hash)) => (path, hash),
            None => {
                let (path, hash) = found(&self.fabric, from, to, route);
                transfer.routes[direction] = Some((route, path, hash));
                (path, hash)
            }
        };
        if self.scenario.contender == Contender::CongaLike && direction == 0 {
            path =
                conga(transfer, self.now, paths.settings().flowlet_ns, &self.fabric, &mut self.random) as u8;
        }
        let packet = Packet { of: number, stamp: self.now, path, hash: hash as u32, ..packet };
        self.launch(from, to, packet);
        if self.scheme() == Scheme::Adaptive && self.nodes.at(node).sends(to) {
            let phase = self.random.below(self.scenario.probe_ns);
            self.calendar.add(self.now + phase, ROUND | node);
        }
    }

    /// Hands a packet to its host's link. `packet.path` determines the route.
    fn launch(&mut self, from: u32, to: u32, packet: Packet) {
        let (way, links) = self.fabric.way(from, to, usize::from(packet.path));
        let at = self.packets.add(Packet { way, links, at: 0, ..packet });
        self.account.ledger.sent += 1;
        if !matches!(packet.kind, PacketKind::Data | PacketKind::Ack) {
            self.account.ledger.probes += 1;
        }
        self.pass(at);
    }

    /// Enqueues a packet at the link it has reached.
    fn pass(&mut self, at: u32) {
        let packet = self.packets.at(at);
        let (link, bytes) = (packet.way[usize::from(packet.at)], u32::from(packet.bytes));
        match self.fabric.pass(link, self.now, bytes, u64::from(packet.hash), &mut self.random) {
            Passage::Arrives(time, is_long) => {
                if is_long && packet.markable {
                    packet.marked = true;
                    self.account.ledger.marked += 1;
                }
                self.calendar.add(time, PACKET | at);
            }
            Passage::Dropped(reason) => {
                self.packets.remove(at);
                self.account.drop(reason);
            }
        }
    }

    /// Handles a packet that has reached the end of a link.
    fn hop(&mut self, at: u32) {
        let packet = self.packets.at(at);
        packet.at += 1;
        if packet.at < packet.links {
            self.pass(at);
            return;
        }
        let packet = self.packets.remove(at);
        self.account.ledger.delivered += 1;
        match packet.kind {
            PacketKind::Data => self.take_data(&packet),
            PacketKind::Ack => self.take_ack(&packet),
            PacketKind::Probe => self.reflect(&packet),
            PacketKind::Answer => self.take_answer(&packet),
            PacketKind::DocaProbe => self.doca_echo(&packet),
            PacketKind::DocaEcho => self.doca_ends(packet.of, Some(packet.number as u16)),
        }
    }

    fn take_data(&mut self, packet: &Packet) {
        let transfer = &mut self.transfers[packet.of as usize];
        let is_known = transfer.receiver.has(packet.number);
        let next = transfer.receiver.take(packet.number);
        if next == transfer.packets && transfer.ended_at.is_none() {
            transfer.ended_at = Some(self.now);
            self.unended -= 1;
        }
        if is_known && packet.late {
            // The acknowledgements did not arrive. Like Linux, the receiver changes their path, too.
            let (from, to) = (transfer.to, transfer.from);
            let node = self.nodes.of(self.now, from, to, &self.fabric);
            let paths = &mut self.nodes.at(node).paths;
            self.transfers[packet.of as usize].flows[1].timed_out(self.now, paths, &mut self.random);
        }
        let ack = Packet {
            number: packet.number,
            next,
            bytes: HEADER_BYTES as u16,
            kind: PacketKind::Ack,
            marked: packet.marked,
            echo: packet.stamp,
            ..BLANK
        };
        self.send_in_flow(packet.of, 1, ack);
    }

    fn take_ack(&mut self, packet: &Packet) {
        let transfer = &mut self.transfers[packet.of as usize];
        let ack = Ack { next: packet.next, packet: packet.number, marked: packet.marked, sent: packet.echo };
        let round = transfer.sender.acknowledged(self.now, ack);
        if let Some(round) = round {
            let (from, to) = (transfer.from, transfer.to);
            transfer.flows[0].round(self.now, round, &mut self.random);
            if let Some(Route::Path(path)) = transfer.flows[0].route() {
                let node = self.nodes.of(self.now, from, to, &self.fabric);
                self.nodes.at(node).take_echo(self.now, self.scenario.contender, path, round);
            }
        }
        if !self.transfers[packet.of as usize].sender.is_done() {
            self.send(packet.of);
        }
    }

    /// Handles a flow's timer. It may fire too early, since acknowledgements postpone the deadline.
    fn timer(&mut self, number: u32) {
        let transfer = &mut self.transfers[number as usize];
        transfer.timer = u64::MAX;
        if transfer.sender.is_done() {
            return;
        }
        if self.now >= transfer.sender.deadline() {
            transfer.sender.timed_out(self.now);
            let (from, to) = (transfer.from, transfer.to);
            let node = self.nodes.of(self.now, from, to, &self.fabric);
            let paths = &mut self.nodes.at(node).paths;
            self.transfers[number as usize].flows[0].timed_out(self.now, paths, &mut self.random);
        }
        self.send(number);
    }

    /// Sends a round of probes to a node.
    fn probe(&mut self, number: u32) {
        let now = self.now;
        let plan = self.nodes.plan(now, number, &mut self.random);
        if let Some(next) = plan.next_in {
            self.calendar.add(now + next, ROUND | number);
        }
        for (path, sequence) in plan.probes {
            let (_, hash) = found(&self.fabric, plan.from, plan.to, Route::Path(path));
            let probe = Packet {
                of: number,
                number: sequence,
                next: plan.to,
                stamp: self.nodes.clock(now, plan.from),
                hash: hash as u32,
                path: path as u8,
                bytes: HEADER_BYTES as u16,
                kind: PacketKind::Probe,
                markable: true,
                ..BLANK
            };
            self.launch(plan.from, plan.to, probe);
        }
    }

    /// Answers a probe at a host.
    fn reflect(&mut self, probe: &Packet) {
        let node = self.nodes.at(probe.of);
        let (from, to, arrived) = (probe.next, node.host, &mut node.arrived[usize::from(probe.path)]);
        *arrived += 1;
        let echo = u64::from(*arrived);
        let stamp = self.nodes.clock(self.now, from).wrapping_sub(probe.stamp);
        let (path, hash) = found(&self.fabric, from, to, Route::Port(port_of(self.random.bits())));
        let answer = Packet {
            stamp,
            echo,
            next: u32::from(probe.path),
            path,
            hash: hash as u32,
            kind: PacketKind::Answer,
            at: 0,
            markable: false,
            ..*probe
        };
        self.launch(from, to, answer);
    }

    fn take_answer(&mut self, answer: &Packet) {
        let (path, delay_ns) = (answer.next as usize, answer.stamp as i64);
        let received =
            weir_path::paths::ProbeReply { delay_ns, marked: answer.marked, arrived: answer.echo as u32 };
        self.nodes.at(answer.of).paths.probe_answered(self.now, path, answer.number, received);
    }

    /// DOCA-AR: sends four probes. The host's other new flows wait until the first echo or the timeout.
    fn doca_probe(&mut self, number: u32) {
        let transfer = &self.transfers[number as usize];
        let (from, to) = (transfer.from, transfer.to);
        for port in doca_ports(transfer.flows[0].own_port()) {
            let (path, hash) = found(&self.fabric, from, to, Route::Port(port));
            let probe = Packet {
                of: number,
                number: u32::from(port),
                path,
                hash: hash as u32,
                bytes: HEADER_BYTES as u16,
                kind: PacketKind::DocaProbe,
                ..BLANK
            };
            self.launch(from, to, probe);
        }
        self.calendar.add(self.now + DOCA_TIMEOUT_NS, DOCA | number);
    }

    fn doca_echo(&mut self, probe: &Packet) {
        let transfer = &self.transfers[probe.of as usize];
        let (from, to) = (transfer.to, transfer.from);
        // The echo goes to a different destination port, so its hash differs.
        let (path, hash) = found(&self.fabric, from, to, Route::Port(!(probe.number as u16)));
        self.launch(
            from,
            to,
            Packet { path, hash: hash as u32, kind: PacketKind::DocaEcho, at: 0, ..*probe },
        );
    }

    fn doca_ends(&mut self, number: u32, echo: Option<u16>) {
        let transfer = &mut self.transfers[number as usize];
        if !transfer.is_waiting {
            return;
        }
        transfer.is_waiting = false;
        if let Some(port) = echo {
            transfer.flows[0].pin(port);
        }
        let waiting = &mut self.doca[transfer.from as usize];
        waiting.pop_front();
        let next = waiting.front().copied();
        self.send(number);
        if let Some(next) = next {
            self.doca_probe(next);
        }
    }

    /// The outcome. Unfinished flows count with the time elapsed so far.
    #[must_use]
    pub fn outcome(&self) -> RunOutcome {
        let mut slowdowns = Slowdowns::default();
        let warm = self.scenario.flows / 100 * WARM_UP_PERCENT;
        for transfer in self.transfers.iter().skip(warm as usize) {
            let time = transfer.ended_at.unwrap_or(self.now) - transfer.arrived_at;
            slowdowns.add(transfer.bytes, time as f64 / self.unloaded_ns(transfer.packets) as f64);
        }
        let ledger = self.account.closed(self.packets.len());
        RunOutcome::new(&self.scenario, slowdowns, ledger, [self.now, self.events, u64::from(self.unended)])
    }

    /// How long a flow takes alone in the fabric, ns: slow start from 10 packets, each window one round trip
    /// after the previous one, until windows follow each other without a gap.
    #[must_use]
    pub fn unloaded_ns(&self, packets: u32) -> u64 {
        let (packet, one_way) = self.fabric.unloaded(DATA_BYTES + HEADER_BYTES);
        let round_trip = one_way + self.fabric.unloaded(HEADER_BYTES).1;
        let (mut left, mut window, mut time) = (u64::from(packets.max(1)), 10_u64, 0);
        while left > window && window * packet < round_trip {
            left -= window;
            window *= 2;
            time += round_trip;
        }
        time + (left - 1) * packet + one_way
    }
}

const BLANK: Packet = Packet {
    way: [0; 4],
    stamp: 0,
    echo: 0,
    of: 0,
    number: 0,
    next: 0,
    hash: 0,
    bytes: 0,
    kind: PacketKind::Data,
    at: 0,
    links: 0,
    path: 0,
    markable: false,
    marked: false,
    late: false,
};

/// The path that a route takes, and the switches' hash. The port of a path is the first one that leads there,
/// as in discovery.
fn found(fabric: &Fabric, from: u32, to: u32, route: Route) -> (u8, u64) {
    match route {
        Route::Port(port) => {
            let hash = fabric.hash(from, to, port);
            (fabric.path_of(from, to, hash) as u8, hash)
        }
        Route::Path(path) => {
            let hashes = (0_u32..).map(|port| fabric.hash(from, to, port as u16));
            let first = hashes.take(1 << 16).find(|hash| fabric.path_of(from, to, *hash) == path);
            (path as u8, first.unwrap_or_default())
        }
    }
}

/// CONGA: after a gap, picks the path with the shortest queues.
fn conga(transfer: &mut Transfer, now: u64, gap: u64, fabric: &Fabric, random: &mut Random) -> usize {
    if transfer.conga.0 == 0 || now.saturating_sub(transfer.conga.0) >= gap {
        let count = fabric.spines(transfer.from, transfer.to).len();
        let first = random.below(count as u64) as usize;
        let order = (0..count).map(|at| (first + at) % count);
        let wait = |path: &usize| fabric.wait(now, transfer.from, transfer.to, *path);
        transfer.conga.1 = order.min_by_key(wait).unwrap_or(0);
    }
    transfer.conga.0 = now.max(1);
    transfer.conga.1
}

#[cfg(test)]
mod tests;
