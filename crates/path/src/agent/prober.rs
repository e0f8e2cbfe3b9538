//! The thread of a path app: sends probes, takes answers, and updates each node.

use super::aging::Aging;
use super::doca;
use super::node::Node;
use super::reporter::Reporter;
use super::turns::Turns;
use super::uplink::{Uplinks, secret};
use super::wire::{RouterMessage, Wire};
use crate::bpf::PathAnswer;
use crate::icmp::{EchoReply, echo};
use crate::paths::ProbeReply;
use crate::scheme::Scheme;
use crate::settings::{ONE_SIDED_PROBE_NS, Settings};
use crate::survey::Wish;
use crate::wire::{Address, NO_PATH, Outer, Packet, ProbeId, Secret, siphash};
use crate::{Between, Claim, Exchange, Fabric, Form, Shared, SurveyMember};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use weir_app::clock::monotonic_ns;
use weir_app::task::Wanted;
use weir_packet::random::Random;

/// The longest wait of an iteration, while the app is active and while it is not. With many nodes the former
/// is longer, because an iteration handles all of them.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];
const PAUSE_PER_NODE: Duration = Duration::from_micros(15);

/// How long to wait after an obstacle before retrying.
const AGAIN: Duration = Duration::from_secs(2);

/// How long to wait for answers to probes, in nanoseconds.
const FORGOTTEN_NS: u64 = 2_000_000_000;

/// The pause after which a flow to an unmodified node may take another path, in round trips: one may have
/// become longer since it was seen.
const ROUND_TRIPS: u64 = 2;

/// The length of an Ethernet header, which the kernel adds.
const ETHERNET: usize = 14;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug)]
enum ProbePurpose {
    /// For a path, with its sequence number.
    Path { path: usize, sequence: u32 },
    /// For a path, with a large probe.
    Large { path: usize, sequence: u32 },
    /// For a survey.
    Survey,
}

/// A probe to be sent.
#[derive(Clone, Copy, Debug)]
pub struct PathProbe {
    wish: Wish,
    turn: u8,
    /// The path that it belongs to, or [`NO_PATH`].
    path: u8,
    /// The length to which the probe is padded, counted from the IP header.
    length: u16,
}

impl PathProbe {
    /// Creates a probe that belongs to no path and is not padded.
    pub fn of(wish: Wish) -> PathProbe {
        PathProbe { wish, turn: 0, path: NO_PATH, length: 0 }
    }
}

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    node: usize,
    port: u16,
    at_ns: u64,
    asked: ProbePurpose,
}

/// The state of the thread.
pub struct Prober {
    pub fabric: Fabric,
    pub settings: Settings,
    pub stop: Arc<AtomicBool>,
    pub reporter: Reporter,
    pub random: Random,
    /// State shared with apps at ports.
    member: SurveyMember,
    session: u32,
    number: u32,
    /// The key of the cookies in echo requests.
    echo_secret: Secret,
}

/// The state of the thread once the programs are loaded.
struct Running {
    uplink: Uplinks,
    wire: Wire,
    nodes: Vec<Node>,
    sent: BTreeMap<u32, Sent>,
    turns: Turns,
    aging: Aging,
}

impl Prober {
    pub fn new(wanted: Wanted<Fabric>, stop: Arc<AtomicBool>) -> Prober {
        let Wanted { task: fabric, board } = wanted;
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let settings = Settings {
            probe_ns: fabric.probe_ns,
            lost_after_ns: fabric.probe_ns,
            ..Settings::of_rate(fabric.rate)
        };
        let settings = if fabric.scheme == Scheme::OneSided {
            settings.one_sided(fabric.probe_ns.max(ONE_SIDED_PROBE_NS))
        } else {
            settings
        };
        let mut random = Random::new(RandomState::new().hash_one(since_1970));
        Prober {
            reporter: Reporter::new(&fabric, board),
            settings,
            fabric,
            stop,
            echo_secret: Secret([random.bits(), random.bits()]),
            random,
            // The session is higher than that of any earlier process, as long as the clock is right.
            session: since_1970.as_secs() as u32,
            number: 0,
            member: Exchange::of_process().join(Form::Uplink),
        }
    }

    /// Runs until stopped.
    pub fn run(&mut self) {
        while !self.stops() {
            match self.open() {
                Ok(mut running) => match self.fabric.scheme {
                    Scheme::DocaAr => doca::run(self, running.uplink, &running.wire),
                    _ => self.watch(&mut running),
                },
                Err(error) => {
                    self.reporter.obstacle(Err(format!("{error:#}")));
                    self.sleep(AGAIN);
                }
            }
        }
    }

    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn sleep(&self, time: Duration) {
        let until = std::time::Instant::now() + time;
        while !self.stops() && std::time::Instant::now() < until {
            std::thread::sleep(PAUSES[1]);
        }
    }

    fn open(&mut self) -> anyhow::Result<Running> {
        let mut uplink = Uplinks::load(&self.fabric, &self.settings)?;
        let mut nodes = Vec::new();
        let (peers, uplinks) = (&self.fabric.peers, self.fabric.uplinks.len());
        for number in 0..uplinks {
            for (&address, window) in peers.iter().zip(0..) {
                let mut node = Node::new(address, window, number, peers.len());
                if let Some(peer) = node.peer() {
                    uplink.programs.set_peer_over(number as u32, window, address, &peer)?;
                }
                nodes.push(node);
            }
        }
        let wire = Wire::open(peers.iter().any(IpAddr::is_ipv6), uplinks)?;
        let (turns, aging) = (Turns::new(monotonic_ns()), Aging::new(self.fabric.idle_timeout_ns));
        Ok(Running { uplink, wire, nodes, sent: BTreeMap::new(), turns, aging })
    }

    /// Runs ECMP and adaptive: each iteration of a few milliseconds does everything that is due.
    fn watch(&mut self, running: &mut Running) {
        while !self.stops() {
            let now = monotonic_ns();
            if let Some(state) = running.uplink.mind(now) {
                self.reporter.obstacle(state);
            }
            for (number, name) in running.uplink.appeared() {
                if let Err(error) = running.wire.bind(number, &name) {
                    self.reporter.say_once(&format!("cannot send probes through `{name}`: {error}"));
                }
            }
            if self.knows_paths() && running.uplink.is_attached() {
                self.turn(running);
            }
            running.aging.tick(now, &running.uplink.programs);
            let forgotten = running.aging.forgotten();
            self.reporter.report(now, &running.uplink.programs, &running.nodes, forgotten);
            let is_busy = running.nodes.iter().any(|node| node.is_busy(now));
            let [short, long] = PAUSES;
            let short = short.max(PAUSE_PER_NODE * running.nodes.len() as u32);
            wait(if is_busy { short } else { long }, &running.uplink, Some(&running.wire));
        }
    }

    fn knows_paths(&self) -> bool {
        matches!(self.fabric.scheme, Scheme::Adaptive | Scheme::OneSided)
    }

    fn is_one_sided(&self) -> bool {
        self.fabric.scheme == Scheme::OneSided
    }

    fn turn(&mut self, running: &mut Running) {
        self.take_answers(running);
        let now = monotonic_ns();
        self.forget_old(running, now);
        self.survey(running, now);
        let count = running.nodes.len();
        for node in &mut running.nodes {
            node.look(now, &running.uplink.programs, count);
        }
        for (at, path) in running.turns.probes(&mut running.nodes, now, &self.fabric, &mut self.random) {
            self.probe(running, at, path, now);
        }
        let mtus = running.uplink.mtus();
        if !self.is_one_sided()
            && let Some((at, path)) = running.turns.large(&mut running.nodes, now, &mtus)
        {
            self.probe_large(running, at, path, now);
        }
        if self.is_one_sided() {
            self.keep_order(running);
        }
        for node in &mut running.nodes {
            for news in node.tick(now) {
                self.reporter.say(&news);
            }
            if let Some(peer) = node.peer()
                && let Err(error) = running.uplink.programs.set_peer_over(
                    node.uplink as u32,
                    node.window,
                    node.address,
                    &peer,
                )
            {
                node.forget_written();
                self.reporter.say_once(&format!("cannot write the paths of {}: {error}", node.address));
            }
        }
    }

    /// Takes answers of nodes and ICMP messages of routers.
    fn take_answers(&mut self, running: &mut Running) {
        while let Some(answer) = running.uplink.programs.answer() {
            let Some(sent) = self.claim(&mut running.sent, &running.nodes, &answer) else { continue };
            let round_trip_ns = answer.received_ns.saturating_sub(answer.sent_ns);
            let delay_ns = (answer.reflected_ns as i64).wrapping_sub(answer.sent_ns as i64);
            let node = &mut running.nodes[sent.node];
            match sent.asked {
                ProbePurpose::Survey => {
                    if let Some(survey) = &mut node.survey {
                        survey.arrived(answer.port, answer.ttl, sent.at_ns, (round_trip_ns, delay_ns));
                    }
                }
                ProbePurpose::Path { path, sequence } => {
                    let seen = ProbeReply { delay_ns, marked: answer.marked, arrived: answer.arrived };
                    if let Some(paths) = &mut node.paths
                        && paths.probe_answered(monotonic_ns(), path, sequence, seen)
                    {
                        node.round_trips[path] = round_trip_ns;
                    }
                }
                ProbePurpose::Large { path, sequence } => {
                    if let Some(paths) = &mut node.paths {
                        paths.large_answered(path, sequence);
                    }
                }
            }
        }
        while let Some(message) = running.wire.message() {
            match message {
                RouterMessage::Expired(expired) => {
                    let node = running
                        .nodes
                        .iter_mut()
                        .find(|node| expired.to == node.address && node.survey.is_some());
                    if let Some(survey) = node.and_then(|node| node.survey.as_mut()) {
                        survey.expired(&expired);
                    }
                }
                RouterMessage::Reply(reply) => self.take_reply(running, &reply),
            }
        }
    }

    /// Takes a router's reply to an echo request. Others may use echo requests, too.
    fn take_reply(&self, running: &mut Running, reply: &EchoReply) {
        let now = monotonic_ns();
        let Some(Sent { node, at_ns, asked: ProbePurpose::Path { path, sequence }, .. }) =
            running.sent.get(&reply.number).copied()
        else {
            return;
        };
        let node = &mut running.nodes[node];
        let is_ours =
            node.router_of(path) == Some(reply.router) && reply.cookie == self.echo_cookie(reply.number);
        let Some(paths) = node.paths.as_mut().filter(|_| is_ours) else { return };
        running.sent.remove(&reply.number);
        let round_trip_ns = now.saturating_sub(at_ns);
        node.replies[path] = node.replies[path].wrapping_add(1);
        let said = ProbeReply { delay_ns: round_trip_ns as i64, marked: false, arrived: node.replies[path] };
        if paths.probe_answered(now, path, sequence, said) {
            node.round_trips[path] = round_trip_ns;
        }
    }

    fn echo_cookie(&self, number: u32) -> u64 {
        siphash(self.echo_secret, &[number.into()])
    }

    /// Lets flows change paths only after pauses in which everything that they have sent has arrived.
    fn keep_order(&mut self, running: &mut Running) {
        let longest_ns = running.nodes.iter().map(Node::longest_ns).max().unwrap_or_default();
        let gap_ns = self.settings.flowlet_ns.max(ROUND_TRIPS * longest_ns);
        if let Err(error) = running.uplink.set_gap(gap_ns) {
            self.reporter.say_once(&format!("cannot set the length of pauses: {error}"));
        }
    }

    /// Returns the probe that an answer belongs to, and forgets it: each counts once.
    fn claim(&self, sent: &mut BTreeMap<u32, Sent>, nodes: &[Node], answer: &PathAnswer) -> Option<Sent> {
        let one = sent.get(&answer.number).copied()?;
        let is_ours = answer.session == self.session
            && nodes.get(one.node).is_some_and(|node| node.window == answer.peer)
            && one.port == answer.port;
        is_ours.then(|| sent.remove(&answer.number)).flatten()
    }

    fn forget_old(&self, running: &mut Running, now: u64) {
        while let Some(first) = running.sent.first_entry()
            && first.get().at_ns + FORGOTTEN_NS < now
        {
            first.remove();
        }
    }

    fn survey(&mut self, running: &mut Running, now: u64) {
        // Apps at ports have a single uplink.
        if !self.is_one_sided() && self.fabric.uplinks.len() == 1 {
            self.adopt(running, now);
        }
        running.turns.begin_surveys(&mut running.nodes, now, &self.fabric, &mut self.random);
        for at in 0..running.nodes.len() {
            let node = &mut running.nodes[at];
            let Some(found) = node.survey.as_mut().and_then(|survey| survey.turn(now)) else { continue };
            if let Some(forgeries) = found.forgeries() {
                self.reporter.say(&format!("{}: {forgeries}", node.address));
            }
            if let Some(news) = node.take(now, &found, &self.fabric, self.settings) {
                self.reporter.say(&news);
            }
            // Answers of routers alone say too little for apps whose remote nodes run weir.
            let between = self.between(running, at).filter(|_| !self.is_one_sided());
            let Some(between) = between else { continue };
            match found.round_trip_ns {
                Some(round_trip_ns) => {
                    let known = running.nodes[at].known.clone();
                    self.member.publish(between, Shared { known, round_trip_ns });
                }
                None => self.member.give_up(between),
            }
        }
        for (at, wish) in running.turns.wishes(&mut running.nodes, now) {
            self.send(running, at, PathProbe::of(wish), ProbePurpose::Survey, now);
        }
    }

    /// Adopts the results of other apps about nodes that are due for a survey. These nodes then need no
    /// survey of their own.
    fn adopt(&mut self, running: &mut Running, now: u64) {
        for at in 0..running.nodes.len() {
            if !running.nodes[at].wants_survey(now) {
                continue;
            }
            let Some(between) = self.between(running, at) else { continue };
            if let Claim::Other(shared) = self.member.claim(between) {
                let news = running.nodes[at].adopt(now, shared.as_ref(), self.settings);
                news.iter().for_each(|news| self.reporter.say(news));
            }
        }
    }

    /// Returns the key under which apps share their results about a node, if there is a route to it.
    fn between(&self, running: &Running, at: usize) -> Option<Between> {
        let local = running.uplink.source(running.nodes[at].window as usize)?;
        Some(Between { local, peer: running.nodes[at].address, tunnel_port: self.fabric.tunnel.port })
    }

    fn probe(&mut self, running: &mut Running, at: usize, path: usize, now: u64) {
        let node = &mut running.nodes[at];
        let (port, turn) = node.next_turn(path);
        let wire_path = node.wire_path(path);
        let Some(paths) = &mut node.paths else { return };
        let sequence = paths.probe_sent(now, path);
        if self.is_one_sided() {
            self.send_echo(running, at, path, sequence);
            return;
        }
        let probe = PathProbe { turn, path: wire_path, ..PathProbe::of(Wish::whole(port)) };
        self.send(running, at, probe, ProbePurpose::Path { path, sequence }, now);
    }

    /// Sends a large probe along a path. It does not count towards the path's loss.
    fn probe_large(&mut self, running: &mut Running, at: usize, path: usize, now: u64) {
        let node = &mut running.nodes[at];
        let (port, turn) = node.next_turn(path);
        let Some(paths) = &mut node.paths else { return };
        let sequence = paths.large_sent(now, path, &mut self.random);
        let length = paths.large_bytes();
        let probe = PathProbe { turn, length, ..PathProbe::of(Wish::whole(port)) };
        self.send(running, at, probe, ProbePurpose::Large { path, sequence }, now);
    }

    /// Sends an echo request to a path's router.
    fn send_echo(&mut self, running: &mut Running, at: usize, path: usize, sequence: u32) {
        let node = &running.nodes[at];
        let source = running.uplink.source(node.window as usize);
        let (Some(router), Some(IpAddr::V4(source)), uplink) = (node.router_of(path), source, node.uplink)
        else {
            return;
        };
        self.count_probe();
        let packet = echo([source, router], self.fabric.dscp, self.number, self.echo_cookie(self.number));
        let asked = ProbePurpose::Path { path, sequence };
        running.sent.insert(self.number, Sent { node: at, port: 0, at_ns: monotonic_ns(), asked });
        if running.wire.send(&packet, router.into(), uplink).is_err() {
            running.uplink.doubt_sources();
        }
    }

    /// Numbers the next probe.
    fn count_probe(&mut self) {
        if self.number == u32::MAX {
            (self.session, self.number) = (self.session.wrapping_add(1), 0);
        }
        self.number += 1;
    }

    fn send(&mut self, running: &mut Running, at: usize, probe: PathProbe, asked: ProbePurpose, now: u64) {
        let Node { address, window, uplink, .. } = running.nodes[at];
        let Some(source) = running.uplink.source(window as usize) else {
            self.reporter.say_once(&format!("there is no route to {address}"));
            return;
        };
        let (number, packet) = self.packet(source, address, &probe);
        running.sent.insert(number, Sent { node: at, port: probe.wish.port, at_ns: now, asked });
        if running.wire.send(&packet, address, uplink).is_err() {
            running.uplink.doubt_sources();
        }
    }

    /// Returns the next probe, starting with its IP header, and its number. eBPF adds the timestamp on
    /// transmission. Both addresses have the same IP version, which the configuration and the route
    /// guarantee.
    pub fn packet(&mut self, source: IpAddr, destination: IpAddr, probe: &PathProbe) -> (u32, Vec<u8>) {
        self.count_probe();
        let secret = secret(&self.fabric);
        let mut packet = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.request(source, destination, probe).padded(secret, probe.length)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.request(source, destination, probe).with_id().padded6(secret, probe.length)
            }
            _ => Vec::new(),
        };
        packet.drain(..ETHERNET.min(packet.len()));
        (self.number, packet)
    }

    fn request<A: Address>(&self, source: A, destination: A, probe: &PathProbe) -> Packet<A> {
        let PathProbe { wish, turn, path, .. } = *probe;
        let outer = Outer::between(source, destination, wish.port, self.fabric.tunnel);
        let outer = Outer { dscp: self.fabric.probe_dscp(), ..outer };
        let id = ProbeId { session: self.session, number: self.number };
        Packet { path, ..wish.probe(outer, id, turn, 0) }
    }

    /// The session of its probes.
    pub fn session(&self) -> u32 {
        self.session
    }
}

/// Waits for `time`, or until a flow needs a port, or a router has answered.
pub fn wait(time: Duration, uplink: &Uplinks, wire: Option<&Wire>) {
    let [_, missed] = uplink.programs.fds();
    let fds = [Some(missed), wire.map(Wire::icmp)].into_iter().flatten();
    let mut waits: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = poll(&mut waits, Some(&timeout));
}
