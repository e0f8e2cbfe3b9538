//! A remote node: its paths, its buckets, what was sent to it, and what it asked.

use super::config::{PathPort, Peer};
use super::reflector::Window;
use crate::app::Action;
use engine::change::Change;
use engine::program::GroupId;
use engine::worker::BucketReport;
use path::buckets::PathBuckets;
use path::paths::{Answer, PATHS_MAX, Paths, Ports, STEP_NS, State};
use path::probing::Budget;
use path::random::Random;
use path::wire::{Outer, Packet};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// Probes whose answers are waited for: of each path as many as crate path waits for.
const ASKED_MAX: usize = PATHS_MAX * 64;

const TTL: u8 = 64;

/// A bucket in use moves after so many idle gaps at the latest: its flows are then reordered once.
const GAPS_MAX: u64 = 100;

/// What was sent along a path, and why buckets came to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
    pub flows: u64,
    pub after_gap: u64,
    pub after_failure: u64,
    pub round_trip_ns: u64,
}

/// A probe on its way: its number, its path, and its sequence number there.
#[derive(Clone, Copy, Debug)]
struct Asked {
    session: u32,
    number: u32,
    path: u8,
    sequence: u32,
}

/// A remote node.
#[derive(Clone, Debug)]
pub struct Node {
    pub address: Ipv4Addr,
    mac: [u8; 6],
    pub paths: Paths,
    pub buckets: PathBuckets,
    pub traffic: Vec<Traffic>,
    /// What the peer asks.
    pub window: Window,
    /// The group of its buckets; `None` unless the scheme uses them.
    pub group: Option<GroupId>,
    /// The buckets have targets.
    pub is_given: bool,
    /// When paths are probed next; `None` while nothing is sent to it.
    pub round_ns: Option<u64>,
    /// When states were judged last.
    pub judged_ns: u64,
    step_ns: u64,
    /// In which its probes are numbered, those of all paths together: a peer takes no probe of an earlier
    /// session than the last. 0 before the first.
    session: u32,
    pub(super) number: u32,
    /// The latest probes, oldest first.
    asked: VecDeque<Asked>,
    states: Vec<State>,
    counted: BucketReport,
}

impl Node {
    /// A node of which nothing is known.
    pub fn new(peer: &Peer, config: &PathPort) -> Node {
        let ports: Vec<Ports> = config.ports.iter().map(|&main| Ports { main, spare: None }).collect();
        let paths = Paths::new(0, config.settings, &ports);
        let buckets = PathBuckets::new(&paths);
        let states = states(&paths);
        Node {
            address: peer.address,
            mac: peer.mac,
            traffic: vec![Traffic::default(); ports.len()],
            paths,
            buckets,
            window: Window::new(),
            group: None,
            is_given: false,
            round_ns: None,
            judged_ns: 0,
            step_ns: 0,
            session: 0,
            number: 0,
            asked: VecDeque::new(),
            states,
            counted: BucketReport::default(),
        }
    }

    /// Goes on as `old`, the same node before a reload, if its paths are the same.
    pub fn take_over(&mut self, old: Node) {
        let ports = |node: &Node| node.paths.all().iter().map(|path| path.ports()).collect::<Vec<_>>();
        if ports(self) == ports(&old) && self.paths.settings() == old.paths.settings() {
            *self = Node { mac: self.mac, group: None, ..old };
        } else {
            self.window = old.window;
        }
    }

    /// Its probes belong to this session, unless they belong to one already.
    pub fn begin(&mut self, session: u32) {
        if self.session == 0 {
            self.session = session;
        }
    }

    /// Data leaves for it.
    pub fn sent(&mut self, now_ns: u64, path: usize, bytes: u64) {
        // Nothing was ever sent at 0.
        self.paths.sent(now_ns.max(1), path, bytes);
        self.round_ns.get_or_insert(now_ns);
    }

    /// Takes in what its buckets have carried.
    pub fn count(&mut self, now_ns: u64, report: &BucketReport) {
        let slots = self.buckets.slots().to_vec();
        for (bucket, path) in slots.into_iter().enumerate() {
            let of = |counts: &[u64]| counts.get(bucket).copied().unwrap_or_default();
            let packets = of(&report.packets).saturating_sub(of(&self.counted.packets));
            let bytes = of(&report.bytes).saturating_sub(of(&self.counted.bytes));
            let Some(traffic) = self.traffic.get_mut(usize::from(path)).filter(|_| packets > 0) else {
                continue;
            };
            traffic.packets += packets;
            traffic.bytes += bytes;
            self.sent(now_ns, usize::from(path), bytes);
        }
        self.counted.clone_from(report);
    }

    /// Gives every bucket its target.
    pub fn give(&mut self, actions: &mut Vec<Action>) {
        let slots = self.buckets.slots().iter().copied();
        let moves: Vec<(u32, u16)> = (0..).zip(slots).collect();
        actions.extend(self.order(moves, 0));
        self.is_given = true;
    }

    /// Probes its paths if it is time.
    pub fn probe(
        &mut self,
        now_ns: u64,
        config: &PathPort,
        budget: &mut Budget,
        random: &mut Random,
    ) -> Vec<Packet> {
        if self.round_ns.is_none_or(|round_ns| round_ns > now_ns) {
            return Vec::new();
        }
        let round = self.paths.round(now_ns, random);
        let next = self.paths.next_round_in(now_ns, random);
        self.round_ns = next.map(|time| now_ns + time);
        if next.is_none() || !budget.take(now_ns, round.len() as u64) {
            return Vec::new();
        }
        round.into_iter().map(|path| self.ask(now_ns, path, config)).collect()
    }

    fn ask(&mut self, now_ns: u64, path: usize, config: &PathPort) -> Packet {
        if self.number == u32::MAX {
            (self.session, self.number) = (self.session.wrapping_add(1), 0);
        }
        self.number += 1;
        let sequence = self.paths.probe_sent(now_ns, path);
        let (session, number, path) = (self.session, self.number, path as u8);
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back(Asked { session, number, path, sequence });
        let port = self.paths.all()[usize::from(path)].ports().main;
        let outer = self.outer(config, port);
        Packet { path, ..Packet::request(outer, (session, number), sequence as u8, now_ns) }
    }

    /// What is around a probe from a port.
    pub fn outer(&self, config: &PathPort, port: u16) -> Outer {
        Outer {
            macs: [self.mac, config.mac],
            source: config.local,
            destination: self.address,
            port,
            vxlan_port: config.vxlan_port,
            dscp: config.dscp,
            marked: false,
            id: 0,
            ttl: TTL,
        }
    }

    /// Takes the answer to one of its probes. Returns false if none is on its way.
    pub fn answered(&mut self, now_ns: u64, packet: &Packet) -> bool {
        let is_it = |one: &Asked| (one.session, one.number) == (packet.session, packet.number);
        let Some(asked) = self.asked.iter().find(|one| is_it(one)) else { return false };
        let (path, sequence) = (usize::from(asked.path), asked.sequence);
        let is_ours = self.paths.all().get(path).is_some_and(|path| path.ports().main == packet.port);
        let delay_ns = packet.reflected_ns.wrapping_sub(packet.sent_ns) as i64;
        let answer = Answer { delay_ns, marked: packet.marked, arrived: packet.arrived };
        if !is_ours || !self.paths.probe_answered(now_ns, path, sequence, answer) {
            return false;
        }
        self.traffic[path].round_trip_ns = now_ns.saturating_sub(packet.sent_ns);
        true
    }

    /// The port of an answer to the peer: successive turns of a path come back by different paths.
    pub fn answer_port(&self, packet: &Packet) -> u16 {
        let usable: Vec<u16> = self.usable().collect();
        let turn = usize::from(packet.turn) + usize::from(packet.port);
        usable.get(turn % usable.len().max(1)).copied().unwrap_or(packet.port)
    }

    fn usable(&self) -> impl Iterator<Item = u16> {
        let shares = self.paths.shares();
        let fit = self.paths.all().iter().zip(shares).filter(|(_, share)| *share > 0);
        fit.map(|(path, _)| path.ports().main)
    }

    /// Lets states, weights and buckets follow what became of probes. Returns sentences about states that
    /// have changed, for the operator.
    pub fn follow(&mut self, now_ns: u64, random: &mut Random, actions: &mut Vec<Action>) -> Vec<String> {
        self.paths.tick(now_ns);
        self.judged_ns = now_ns;
        let now = states(&self.paths);
        let told = self.told(&now);
        let is_turn = self.is_given && (now_ns >= self.step_ns || !told.is_empty());
        self.states = now;
        if is_turn {
            self.step_ns = now_ns + STEP_NS;
            self.move_buckets(random, actions);
        }
        told
    }

    fn told(&self, now: &[State]) -> Vec<String> {
        let faults = |state: &State| matches!(state, State::Failed | State::Grey);
        let changed = (0..).zip(self.states.iter().zip(now)).filter(|(_, (was, is))| was != is);
        let changed = changed.filter(|(_, (was, is))| faults(was) || faults(is));
        let sentence = |(at, (_, is)): (usize, (&State, &State))| {
            let path = &self.paths.all()[at];
            format!(
                "path {at} to {} (port {}) is {is}: {}",
                self.address,
                path.ports().main,
                path.last_change().0
            )
        };
        changed.map(sentence).collect()
    }

    /// Buckets whose path may not be used any more move at once, others when they rest.
    fn move_buckets(&mut self, random: &mut Random, actions: &mut Vec<Action>) {
        let usable: Vec<bool> = self.paths.shares().iter().map(|share| *share > 0).collect();
        let is_usable = |path: u16| usable.get(usize::from(path)).copied().unwrap_or(false);
        let moves = self.buckets.follow(&self.paths, random);
        for one in &moves {
            let Some(traffic) = self.traffic.get_mut(usize::from(one.to)) else { continue };
            let count = if is_usable(one.from) { &mut traffic.after_gap } else { &mut traffic.after_failure };
            *count += 1;
        }
        let (rest, flee): (Vec<_>, Vec<_>) = moves.iter().partition(|one| is_usable(one.from));
        let list = |moves: Vec<path::buckets::Move>| -> Vec<(u32, u16)> {
            moves.iter().map(|one| (one.bucket as u32, one.to)).collect()
        };
        actions.extend(self.order(list(flee), 0));
        actions.extend(self.order(list(rest), self.paths.settings().flowlet_ns));
    }

    fn order(&self, moves: Vec<(u32, u16)>, idle_gap_ns: u64) -> Option<Action> {
        let group = self.group.filter(|_| !moves.is_empty())?;
        let wait_max_ns = idle_gap_ns.saturating_mul(GAPS_MAX);
        let change = Change::MoveBuckets { group, moves: moves.into(), idle_gap_ns, wait_max_ns };
        Some(Action::Change(change))
    }
}

fn states(paths: &Paths) -> Vec<State> {
    paths.all().iter().map(|path| path.state()).collect()
}
