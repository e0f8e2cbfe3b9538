//! A remote node: its paths, its buckets, the traffic to it, and its requests.

use super::config::{PathPort, Peer};
use super::reflector::Window;
use crate::buckets::PathBuckets;
use crate::icmp::Expired;
use crate::known::{self, Known};
use crate::paths::{PATHS_MAX, Path, Paths, Ports, ProbeReply, STEP_NS, State};
use crate::probing::{Budget, Rounds};
use crate::settings::Settings;
use crate::survey::{Survey, Surveyed, TTL_WHOLE, Wish};
use crate::tunnel::PathTunnel;
use crate::wire::{NO_PATH, Outer, Packet, ProbeId};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use weir_app::Action;
use weir_engine::worker::BucketReport;
use weir_packet::random::Random;
use weir_program::GroupId;
use weir_program::change::Change;

/// The maximum number of probes in flight: for each path the limit of crate path, plus those of a survey.
const ASKED_MAX: usize = PATHS_MAX * 64 * 2;

/// The number of idle gaps after which a bucket in use moves anyway, which reorders its flows once.
const GAPS_MAX: u64 = 100;

/// How soon a node that did not answer is surveyed again, in nanoseconds.
const RETRY_NS: u64 = 5_000_000_000;

/// The minimum time between two surveys, in nanoseconds.
const SURVEY_PAUSE_NS: u64 = 1_000_000_000;

/// The traffic on a path, and the reasons for which buckets moved to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathTraffic {
    pub packets: u64,
    pub bytes: u64,
    pub flows: u64,
    pub after_gap: u64,
    pub after_failure: u64,
    pub round_trip_ns: u64,
}

/// A probe in flight: its number, its path and its sequence number there ([`NO_PATH`] if it belongs to a
/// survey), and when it left.
#[derive(Clone, Copy, Debug)]
struct ProbeInFlight {
    session: u32,
    number: u32,
    path: u8,
    sequence: u32,
    sent_ns: u64,
    is_large: bool,
}

/// A remote node.
#[derive(Debug)]
pub struct Node {
    pub address: Ipv4Addr,
    mac: [u8; 6],
    /// Identifies it in numbers that flows keep across reloads.
    pub id: u16,
    pub paths: Paths,
    /// The result of surveys; empty if the ports are configured.
    pub known: Known,
    pub survey: Option<Survey>,
    /// The message of the last survey.
    pub found: Option<String>,
    /// Whether its paths are merely ports over which flows are spread, rather than discovered paths.
    is_spread: bool,
    pub buckets: PathBuckets,
    pub traffic: [PathTraffic; PATHS_MAX],
    /// The requests of the peer.
    pub window: Window,
    /// The group of its buckets; `None` unless the scheme uses them.
    pub group: Option<GroupId>,
    /// Whether the buckets have targets.
    pub is_given: bool,
    /// The ports in the pipes' entries for its paths; `None` without an entry.
    pub entered: [Option<u16>; PATHS_MAX],
    rounds: Rounds,
    step_ns: u64,
    survey_ns: u64,
    surveys: u8,
    /// The session of its probes, which numbers those of all paths together: a peer rejects probes of a
    /// session before the latest one. 0 before the first session.
    session: u32,
    pub(super) number: u32,
    /// The latest probes, oldest first.
    asked: VecDeque<ProbeInFlight>,
    states: Vec<State>,
    counted: BucketReport,
}

impl Node {
    /// A node about which nothing is known.
    pub fn new(peer: &Peer, id: u16, config: &PathPort) -> Node {
        let paths = spread(0, config.settings, &config.ports);
        Node {
            address: peer.address,
            mac: peer.mac,
            id,
            buckets: PathBuckets::new(&paths),
            states: states(&paths),
            paths,
            known: Known::default(),
            survey: None,
            found: None,
            is_spread: true,
            traffic: Default::default(),
            window: Window::new(),
            group: None,
            is_given: false,
            entered: [None; PATHS_MAX],
            rounds: Rounds::default(),
            step_ns: 0,
            survey_ns: 0,
            surveys: 0,
            session: 0,
            number: 0,
            asked: VecDeque::new(),
            counted: BucketReport::default(),
        }
    }

    /// Continues as `old`, the same node before a reload; if `is_same`, the state of its paths is kept.
    pub fn take_over(&mut self, old: Node, is_same: bool) {
        if is_same {
            *self = Node { mac: self.mac, group: None, ..old };
        } else {
            (self.window, self.id, self.traffic) = (old.window, old.id, old.traffic);
            self.entered = old.entered;
        }
    }

    /// Starts this session for its probes, unless they already have one.
    pub fn begin(&mut self, session: u32) {
        if self.session == 0 {
            self.session = session;
        }
    }

    /// Counts data that leaves for it.
    pub fn sent(&mut self, now_ns: u64, path: usize, bytes: u64) {
        // A time of 0 means that nothing was ever sent.
        self.paths.sent(now_ns.max(1), path, bytes);
    }

    /// Processes the counters of its buckets.
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

    /// Returns whether it is time to survey its paths.
    pub fn wants_survey(&self, now_ns: u64) -> bool {
        self.survey.is_none() && now_ns >= self.survey_ns
    }

    /// Postpones the next survey until `until_ns`.
    pub fn put_off(&mut self, until_ns: u64) {
        self.survey_ns = until_ns;
    }

    /// Begins a survey.
    pub fn begin_survey(&mut self, now_ns: u64, sources: [u16; 2], random: &mut Random) {
        self.surveys = self.surveys.wrapping_add(1);
        self.survey = Some(Survey::new(now_ns, self.surveys, &self.known.ports(), sources, random));
    }

    /// Processes the result of a survey.
    pub fn learn(
        &mut self,
        now_ns: u64,
        found: &Surveyed,
        every_ns: u64,
        config: &PathPort,
    ) -> known::PathListChange {
        self.survey = None;
        self.survey_ns = now_ns + if found.round_trip_ns.is_none() { RETRY_NS } else { every_ns };
        if found.round_trip_ns.is_some() {
            let change = self.known.learn(found, &config.settings);
            self.found = Some(self.known.sentence());
            return change;
        }
        self.found = Some(match self.known.all().len() {
            0 => "no answer to probes: does weir run there with a path app that has this node among its \
                peers, and the same key? Flows are spread over all ports"
                .to_string(),
            // The paths are kept, because the node may be down temporarily. Their states show whether it is.
            count => format!("{count} paths, and no answer"),
        });
        known::PathListChange::None
    }

    /// Updates paths and buckets to the present knowledge about the node. A single path may hide links that
    /// routers do not distinguish, so flows are then spread over all `ports`, as they are before anything is
    /// known.
    pub fn apply(
        &mut self,
        now_ns: u64,
        change: known::PathListChange,
        (settings, ports): (Settings, &[u16]),
        actions: &mut Vec<Action>,
    ) {
        let was_spread = std::mem::replace(&mut self.is_spread, self.known.all().len() < 2);
        match change {
            known::PathListChange::None => return,
            known::PathListChange::Followed(_) if was_spread && self.is_spread => return,
            known::PathListChange::Followed(followed) if !was_spread => {
                self.paths.follow(now_ns, &self.known, &followed)
            }
            _ => {
                let is_busy = self.paths.is_busy(now_ns);
                self.paths = match self.is_spread {
                    true => spread(now_ns, settings, ports),
                    false => Paths::of(now_ns, settings, &self.known),
                };
                self.buckets = PathBuckets::new(&self.paths);
                self.states.clear();
                self.rounds.hasten(now_ns);
                self.give(actions);
                if is_busy {
                    self.sent(now_ns, 0, 0);
                }
            }
        }
        self.states.extend(self.paths.all()[self.states.len()..].iter().map(Path::state));
    }

    /// Returns the probes that are due, of paths and of a survey.
    pub fn probe(
        &mut self,
        now_ns: u64,
        config: &PathPort,
        budget: &mut Budget,
        random: &mut Random,
    ) -> Vec<Packet> {
        let mut probes = Vec::new();
        let round = self.rounds.due(now_ns, &self.paths, config.idle_ns, random);
        if budget.take(now_ns, round.len() as u64) {
            for path in round {
                let sequence = self.paths.probe_sent(now_ns, path);
                let wish = Wish::whole(self.paths.all()[path].ports().main);
                probes.push(self.ask(now_ns, (path as u8, sequence), wish, config));
            }
        }
        while let Some(wish) = self.survey.as_mut().and_then(|survey| survey.wish(now_ns)) {
            if budget.take(now_ns, 1) {
                probes.push(self.ask(now_ns, (NO_PATH, 0), wish, config));
            }
        }
        probes
    }

    /// Returns the large probe that is due, if any. Large probes do not count towards the path's loss.
    pub fn probe_large(&mut self, now_ns: u64, config: &PathPort, random: &mut Random) -> Option<Packet> {
        self.paths.set_large(config.mtu);
        let path = self.paths.large_due(now_ns)?;
        let sequence = self.paths.large_sent(now_ns, path, random);
        let wish = Wish::whole(self.paths.all()[path].ports().main);
        let packet = self.ask(now_ns, (path as u8, sequence), wish, config);
        if let Some(asked) = self.asked.back_mut() {
            asked.is_large = true;
        }
        Some(Packet { path: NO_PATH, ..packet })
    }

    fn ask(&mut self, now_ns: u64, (path, sequence): (u8, u32), wish: Wish, config: &PathPort) -> Packet {
        if self.number == u32::MAX {
            (self.session, self.number) = (self.session.wrapping_add(1), 0);
        }
        self.number += 1;
        let (session, number) = (self.session, self.number);
        if self.asked.len() == ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back(ProbeInFlight {
            session,
            number,
            path,
            sequence,
            sent_ns: now_ns,
            is_large: false,
        });
        let outer = self.outer(config, wish.port);
        Packet { path, ..wish.probe(outer, ProbeId { session, number }, sequence as u8, now_ns) }
    }

    /// The outer headers of a probe from a port.
    pub fn outer(&self, config: &PathPort, port: u16) -> Outer {
        Outer {
            macs: [self.mac, config.mac],
            source: config.local,
            destination: self.address,
            port,
            tunnel: PathTunnel::vxlan(config.vxlan_port),
            dscp: config.dscp,
            marked: false,
            id: 0,
            ttl: TTL_WHOLE,
        }
    }

    /// Processes the answer to one of its probes. Returns false if no such probe is in flight.
    pub fn answered(&mut self, now_ns: u64, packet: &Packet) -> bool {
        let place = (packet.session, packet.number);
        let Ok(at) = self.asked.binary_search_by_key(&place, |one| (one.session, one.number)) else {
            return false;
        };
        let ProbeInFlight { path, sequence, sent_ns, is_large, .. } = self.asked[at];
        let delay_ns = packet.reflected_ns.wrapping_sub(packet.sent_ns) as i64;
        let round_trip_ns = now_ns.saturating_sub(sent_ns);
        if path == NO_PATH {
            if let Some(survey) = &mut self.survey {
                survey.arrived(packet.port, packet.hops, sent_ns, (round_trip_ns, delay_ns));
            }
            return true;
        }
        let path = usize::from(path);
        let is_ours = self.paths.all().get(path).is_some_and(|path| path.ports().main == packet.port);
        if is_large {
            return is_ours && self.paths.large_answered(path, sequence);
        }
        let answer = ProbeReply { delay_ns, marked: packet.marked, arrived: packet.arrived };
        if !is_ours || !self.paths.probe_answered(now_ns, path, sequence, answer) {
            return false;
        }
        self.traffic[path].round_trip_ns = round_trip_ns;
        true
    }

    /// Handles a router's report that the TTL of a probe has expired.
    pub fn expired(&mut self, expired: &Expired) {
        if let Some(survey) = &mut self.survey {
            survey.expired(expired);
        }
    }

    /// The source port of an answer to the peer: successive turns of a path come back along different paths.
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

    /// Updates states, weights and buckets from the fate of probes. Returns sentences about changed states,
    /// for the operator.
    pub fn follow(&mut self, now_ns: u64, random: &mut Random, actions: &mut Vec<Action>) -> Vec<String> {
        self.paths.tick(now_ns);
        let now = states(&self.paths);
        let notes = self.notes(&now);
        let is_turn = self.is_given && (now_ns >= self.step_ns || !notes.is_empty());
        self.states = now;
        if is_turn {
            self.step_ns = now_ns + STEP_NS;
            self.move_buckets(random, actions);
        }
        if !notes.is_empty() {
            // Routers may now map ports differently.
            self.survey_ns = self.survey_ns.min(now_ns + SURVEY_PAUSE_NS);
        }
        notes
    }

    fn notes(&self, now: &[State]) -> Vec<String> {
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

    /// Buckets whose path may no longer be used move at once, others when idle.
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
        let list = |moves: Vec<crate::buckets::Move>| -> Vec<(u32, u16)> {
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

    /// Returns true if it needs attention every few milliseconds.
    pub fn is_busy(&self, now_ns: u64) -> bool {
        self.survey.is_some() || self.paths.is_busy(now_ns)
    }
}

/// Ports that are treated as paths.
fn spread(now_ns: u64, settings: Settings, ports: &[u16]) -> Paths {
    let ports: Vec<Ports> = ports.iter().map(|&main| Ports { main, spare: None }).collect();
    Paths::new(now_ns, settings, &ports)
}

fn states(paths: &Paths) -> Vec<State> {
    paths.all().iter().map(Path::state).collect()
}
