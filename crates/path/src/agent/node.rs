//! A remote node: its paths, their state, and the settings for the programs.

use crate::bpf::{PathOut, PathPeer, PathSeen, TcPath};
use crate::fabric::Reflect;
use crate::known::{Known, PathListChange};
use crate::paths::{Observed, Offer, PATHS_MAX, Path, Paths, REHASHES_MAX, State};
use crate::probing::Rounds;
use crate::scheme::Scheme;
use crate::settings::Settings;
use crate::survey::{Survey, Surveyed};
use crate::{Fabric, Shared};
use std::net::{IpAddr, Ipv4Addr};
use weir_packet::random::Random;

/// How often the traffic to a node is read, in nanoseconds: as often as an active node is probed. With many
/// nodes it is less often, so that a thread makes at most 20,000 system calls per second.
const LOOK_NS: u64 = 10_000_000;
const LOOK_NS_PER_NODE: u64 = 50_000;

/// Costs that differ by less than the congested delay divided by this are considered equal: the programs are
/// updated when a cost has changed, and noise must not count as a change.
const COST_STEPS: u64 = 16;

/// The minimum time between two surveys, in nanoseconds.
const SURVEY_PAUSE_NS: u64 = 1_000_000_000;

/// How long after a node did not answer to retry, in nanoseconds.
const RETRY_NS: u64 = 5_000_000_000;

/// How often to check what another app has found, in nanoseconds.
const ADOPT_NS: u64 = 100_000_000;

/// A message to be logged once.
pub type LogNotice = String;

/// A remote node.
pub struct Node {
    pub address: IpAddr,
    /// The node's index among the programs' peers over all uplinks.
    pub index: u32,
    /// Its index among those over one uplink.
    pub window: u32,
    /// The number of the uplink that its paths begin with.
    pub uplink: usize,
    pub known: Known,
    pub paths: Option<Paths>,
    pub survey: Option<Survey>,
    /// The node's state, in a sentence.
    pub state: String,
    pub round_trips: [u64; PATHS_MAX],
    /// The number of flows on each path for which the kernel chose another port.
    pub rehashed: [u64; PATHS_MAX],
    /// If the node is unmodified: what TCP connections have revealed, and their latest round trips.
    pub seen: [PathSeen; PATHS_MAX],
    pub seen_round_trips: [u64; PATHS_MAX],
    /// How many echo requests for each path were answered.
    pub replies: [u32; PATHS_MAX],
    echo_ns: u64,
    /// The latest windows of round trips that were passed on.
    windows: [u64; PATHS_MAX],
    turns: [u8; PATHS_MAX],
    states: Vec<State>,
    written: Option<PathPeer>,
    surveys: u8,
    survey_ns: u64,
    rounds: Rounds,
    look_ns: u64,
}

impl Node {
    /// Creates a node, which has the number `window` among the `peers` over this uplink.
    pub fn new(address: IpAddr, window: u32, uplink: usize, peers: usize) -> Node {
        Node {
            address,
            index: window + (uplink * peers) as u32,
            window,
            uplink,
            known: Known::default(),
            paths: None,
            survey: None,
            state: "not surveyed yet".to_string(),
            round_trips: [0; PATHS_MAX],
            rehashed: [0; PATHS_MAX],
            seen: [PathSeen::default(); PATHS_MAX],
            seen_round_trips: [0; PATHS_MAX],
            replies: [0; PATHS_MAX],
            echo_ns: 0,
            windows: [0; PATHS_MAX],
            turns: [0; PATHS_MAX],
            states: Vec::new(),
            written: None,
            surveys: 0,
            survey_ns: 0,
            rounds: Rounds::default(),
            look_ns: 0,
        }
    }

    /// Returns whether a survey of its paths is due.
    pub fn wants_survey(&self, now_ns: u64) -> bool {
        self.survey.is_none() && now_ns >= self.survey_ns
    }

    /// Begins a survey.
    pub fn begin_survey(&mut self, now_ns: u64, fabric: &Fabric, random: &mut Random) {
        let known = self.known.ports();
        self.surveys = self.surveys.wrapping_add(1);
        let survey =
            Survey::new(now_ns, self.surveys, &known, fabric.sources, random).through(fabric.tunnel.of);
        let helps = fabric.scheme != Scheme::OneSided;
        self.survey = Some(if helps { survey } else { survey.one_sided() });
    }

    /// Adopts the result that another app has published, if any. Returns what to log.
    pub fn adopt(&mut self, now_ns: u64, shared: Option<&Shared>, settings: Settings) -> Option<LogNotice> {
        self.survey_ns = now_ns + ADOPT_NS;
        let Shared { known, round_trip_ns } = shared?;
        let change = self.known.adopt(known);
        self.apply(now_ns, change, settings.allowing(*round_trip_ns));
        let before = std::mem::replace(&mut self.state, self.known.sentence());
        (self.state != before).then(|| format!("{}: {}", self.address, self.state))
    }

    /// Takes the result of a survey. Returns what to log.
    pub fn take(
        &mut self,
        now_ns: u64,
        found: &Surveyed,
        fabric: &Fabric,
        settings: Settings,
    ) -> Option<LogNotice> {
        self.survey = None;
        self.survey_ns = now_ns + if found.seen.is_empty() { RETRY_NS } else { fabric.discover_ns };
        let before = std::mem::take(&mut self.state);
        self.state = self.learn(now_ns, found, fabric.reflect, settings);
        (self.state != before).then(|| format!("{}: {}", self.address, self.state))
    }

    fn learn(&mut self, now_ns: u64, found: &Surveyed, reflect: Reflect, settings: Settings) -> String {
        let Some(round_trip_ns) = found.round_trip_ns else {
            return match self.paths {
                // The paths are kept, because the node may only be unreachable for a moment. The paths'
                // states show whether it is.
                Some(_) => format!("{} paths, and no answer", self.known.all().len()),
                None => match reflect {
                    Reflect::Weir => {
                        "no answer to probes: does weir run there with a path app that has this node among \
                         its peers, and the same key? Traffic uses ECMP"
                    }
                    Reflect::OpenFlow => {
                        "no probe has come back: has its switch the flow that sends them back \
                         (UDP port 4789, DSCP 8), and is there no router in between? Traffic uses ECMP"
                    }
                }
                .to_string(),
            };
        };
        let settings = settings.allowing(round_trip_ns);
        let change = self.known.learn(found, &settings);
        self.apply(now_ns, change, settings);
        self.known.sentence()
    }

    /// Updates the paths to the present knowledge about the node.
    fn apply(&mut self, now_ns: u64, change: PathListChange, settings: Settings) {
        match (change, &mut self.paths) {
            (PathListChange::None, Some(_)) => return,
            (PathListChange::Followed(followed), Some(paths)) => paths.follow(now_ns, &self.known, &followed),
            // Flows keep their path numbers, and so change paths once.
            _ => {
                self.paths = Some(Paths::of(now_ns, settings, &self.known));
                self.states.clear();
                self.rounds.hasten(now_ns);
            }
        }
        let paths = self.paths.as_ref().map(Paths::all).unwrap_or_default();
        self.states.extend(paths[self.states.len()..].iter().map(Path::state));
    }

    /// Makes a survey due soon, because a path has failed or is grey: routers may now map ports to paths
    /// differently.
    fn hasten(&mut self, now_ns: u64) {
        self.survey_ns = self.survey_ns.min(now_ns + SURVEY_PAUSE_NS);
    }

    /// Reads from the programs the traffic to this node. `nodes` is the total number of nodes that are read.
    pub fn look(&mut self, now_ns: u64, programs: &TcPath, nodes: usize) {
        let Some(paths) = &mut self.paths else { return };
        if now_ns < self.look_ns {
            return;
        }
        self.look_ns = now_ns + LOOK_NS.max(LOOK_NS_PER_NODE * nodes as u64);
        let activity = programs.activity(self.index);
        for (path, (at_ns, bytes)) in activity.loads.into_iter().enumerate().filter(|load| load.1.0 > 0) {
            paths.loaded(path, at_ns, bytes);
        }
        for (path, (before, now)) in self.rehashed.into_iter().zip(activity.rehashed).enumerate() {
            (before..now.min(before + u64::from(REHASHES_MAX))).for_each(|_| paths.rehashed(now_ns, path));
        }
        self.rehashed = activity.rehashed;
        if paths.settings().is_one_sided {
            self.observe(now_ns, programs.seen(self.index));
        }
    }

    /// Passes on what TCP connections have revealed since the last time.
    fn observe(&mut self, now_ns: u64, seen: [PathSeen; PATHS_MAX]) {
        let Some(paths) = &mut self.paths else { return };
        let before = std::mem::replace(&mut self.seen, seen);
        for (path, (before, seen)) in before.iter().zip(&seen).enumerate() {
            let since = |before: u64, now: u64| u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
            // A window in which round trips may still be seen is left for the next time.
            let is_new = |window: u64| window < PathSeen::window(now_ns) && window > self.windows[path];
            let least = seen.least.into_iter().find(|(window, _)| is_new(*window));
            if let Some((window, least_ns)) = least {
                (self.windows[path], self.seen_round_trips[path]) = (window, least_ns);
            }
            let observed = Observed {
                round_trip_ns: least.map(|(_, least_ns)| least_ns),
                segments: since(before.segments, seen.segments),
                again: since(before.again, seen.again),
                is_heard: seen.acknowledgements > before.acknowledgements,
            };
            if observed != Observed::default() {
                paths.observed(now_ns, path, observed);
            }
        }
    }

    /// The longest round trip that was seen lately: a flow that pauses for longer cannot be reordered.
    pub fn longest_ns(&self) -> u64 {
        self.round_trips.iter().chain(&self.seen_round_trips).copied().max().unwrap_or_default()
    }

    /// The router that is asked about a path to an unmodified node: the last one that no other path has.
    pub fn router_of(&self, path: usize) -> Option<Ipv4Addr> {
        let all = self.known.all();
        let is_own = |hop: &IpAddr| all.iter().filter(|found| found.hops.contains(&Some(*hop))).count() == 1;
        let last = all.get(path)?.hops.iter().flatten().rev().find(|hop| is_own(hop))?;
        match last {
            IpAddr::V4(router) => Some(*router),
            IpAddr::V6(_) => None,
        }
    }

    /// Returns the paths to probe now, if a probe is due: those of a round or, between the rounds of a node
    /// without traffic, those in doubt.
    pub fn round(&mut self, now_ns: u64, fabric: &Fabric, random: &mut Random) -> Vec<usize> {
        let Some(paths) = &self.paths else { return Vec::new() };
        if paths.settings().is_one_sided {
            let is_due = now_ns >= self.echo_ns && paths.all().len() > 1;
            if is_due {
                self.echo_ns = now_ns + paths.settings().probe_ns;
            }
            let all = (0..paths.all().len()).filter(|path| is_due && self.router_of(*path).is_some());
            return all.collect();
        }
        self.rounds.due(now_ns, paths, fabric.idle_ns, random)
    }

    /// Returns the port of a path, and the number of the next probe there.
    pub fn next_turn(&mut self, path: usize) -> (u16, u8) {
        let port = self.paths.as_ref().and_then(|paths| paths.all().get(path)).map(|path| path.ports().main);
        let turn = self.turns.get_mut(path).map(|turn| {
            *turn = turn.wrapping_add(1);
            *turn
        });
        (port.unwrap_or_default(), turn.unwrap_or_default())
    }

    /// Updates states and weights. Returns what to log.
    pub fn tick(&mut self, now_ns: u64) -> Vec<LogNotice> {
        let Some(paths) = &mut self.paths else { return Vec::new() };
        paths.tick(now_ns);
        let mut news = Vec::new();
        let mut failed = false;
        for (number, (path, before)) in paths.all().iter().zip(&mut self.states).enumerate() {
            let state = path.state();
            if state == *before {
                continue;
            }
            *before = state;
            failed |= matches!(state, State::Failed | State::Grey);
            news.push(format!("path {number} to {} is {state}: {}", self.address, path.last_change().0));
        }
        if failed {
            self.hasten(now_ns);
        }
        news
    }

    /// Returns the programs' new settings, if they differ from the last ones.
    pub fn peer(&mut self) -> Option<PathPeer> {
        let out = |paths: &Paths| -> Vec<PathOut> {
            let step_ns = (paths.settings().congested_ns / COST_STEPS).max(1);
            let one = |Offer { port, weight, is_congested, cost_ns }| PathOut {
                port,
                weight,
                congested: is_congested,
                cost_ns: u32::try_from(cost_ns - cost_ns % step_ns).unwrap_or(u32::MAX),
            };
            paths.offers().into_iter().map(one).collect()
        };
        // A single path may hide links that are indistinguishable to routers, so not all flows can be put on
        // its port.
        let several = self.paths.as_ref().filter(|paths| paths.all().len() > 1);
        let paths = several.map(out).unwrap_or_default();
        let peer = PathPeer { index: self.index, paths };
        if self.written.as_ref() == Some(&peer) {
            return None;
        }
        self.written = Some(peer.clone());
        Some(peer)
    }

    /// The number by which probes name a path: its number among those over all uplinks.
    pub fn wire_path(&self, path: usize) -> u8 {
        (self.uplink * PATHS_MAX + path) as u8
    }

    /// Records that the programs have no settings of this node any more.
    pub fn forget_written(&mut self) {
        self.written = None;
    }

    /// Returns true if it needs attention every few milliseconds.
    pub fn is_busy(&self, now_ns: u64) -> bool {
        self.survey.is_some() || self.paths.as_ref().is_some_and(|paths| paths.is_busy(now_ns))
    }
}
