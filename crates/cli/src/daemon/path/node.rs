//! A remote node: its paths, what is known of them, and what the programs are told.

use super::survey::{Survey, Surveyed};
use ::apps::path::Fabric;
use ::path::covariation::groups;
use ::path::discovery::{Found, distinct, follow, is_hidden};
use ::path::paths::{NOISE, Offer, PATHS_MAX, Path, Paths, Ports, REHASHES_MAX, State};
use ::path::probing::Use;
use ::path::random::Random;
use ::path::settings::Settings;
use bpf::{PathOut, PathPeer, TcPath};
use std::net::Ipv4Addr;

/// How often it is looked at what is sent to a node, in nanoseconds: as often as an active one is probed.
/// With many nodes it is less often, so that a thread makes 20,000 system calls a second at most.
const LOOK_NS: u64 = 10_000_000;
const LOOK_NS_PER_NODE: u64 = 50_000;

/// Costs that differ by less than the congested delay over this are not told apart: the programs are told
/// when something has changed, and noise is no change.
const COST_STEPS: u64 = 16;

/// The least time between two surveys, in nanoseconds.
const SURVEY_PAUSE_NS: u64 = 1_000_000_000;

/// How long after a node did not answer it is tried again, in nanoseconds.
const RETRY_NS: u64 = 5_000_000_000;

/// Something to be said once.
pub type News = String;

/// A remote node.
pub struct Node {
    pub address: Ipv4Addr,
    /// Its index among the peers of the programs.
    pub index: u32,
    pub found: Vec<Found>,
    pub paths: Option<Paths>,
    pub survey: Option<Survey>,
    /// What is known, in a sentence.
    pub state: String,
    pub round_trips: [u64; PATHS_MAX],
    /// Flows on each path that the kernel gave another port.
    pub rehashed: [u64; PATHS_MAX],
    turns: [u8; PATHS_MAX],
    states: Vec<State>,
    written: Option<PathPeer>,
    surveys: u8,
    survey_ns: u64,
    round_ns: u64,
    doubts_ns: u64,
    look_ns: u64,
}

impl Node {
    pub fn new(address: Ipv4Addr, index: u32) -> Node {
        Node {
            address,
            index,
            found: Vec::new(),
            paths: None,
            survey: None,
            state: "not surveyed yet".to_string(),
            round_trips: [0; PATHS_MAX],
            rehashed: [0; PATHS_MAX],
            turns: [0; PATHS_MAX],
            states: Vec::new(),
            written: None,
            surveys: 0,
            survey_ns: 0,
            round_ns: 0,
            doubts_ns: 0,
            look_ns: 0,
        }
    }

    /// Begins a survey if it is time.
    pub fn mind_survey(&mut self, now_ns: u64, fabric: &Fabric, random: &mut Random) {
        if self.survey.is_some() || now_ns < self.survey_ns {
            return;
        }
        let spares = self.found.iter().filter_map(|found| found.ports.spare);
        let known: Vec<u16> = self.found.iter().map(|found| found.ports.main).chain(spares).collect();
        self.surveys = self.surveys.wrapping_add(1);
        self.survey = Some(Survey::new(now_ns, self.surveys, &known, fabric.sources, random));
    }

    /// Takes what a survey has found. Returns what is to be said.
    pub fn take(
        &mut self,
        now_ns: u64,
        found: &Surveyed,
        fabric: &Fabric,
        settings: Settings,
    ) -> Option<News> {
        self.survey = None;
        self.survey_ns = now_ns + if found.seen.is_empty() { RETRY_NS } else { fabric.discover_ns };
        let before = std::mem::take(&mut self.state);
        self.state = self.learn(now_ns, found, settings);
        (self.state != before).then(|| format!("{}: {}", self.address, self.state))
    }

    fn learn(&mut self, now_ns: u64, found: &Surveyed, mut settings: Settings) -> String {
        let Some(round_trip_ns) = found.round_trip_ns else {
            return match self.paths {
                // States of paths say it: the node may be away for a moment.
                Some(_) => format!("{} paths, and no answer", self.found.len()),
                None => {
                    "no answer to probes: weir runs there with a path app, this node among its peers, and \
                         the same key? Traffic goes by ECMP"
                        .to_string()
                }
            };
        };
        settings.lost_after_ns = settings.lost_after_ns.max(2 * round_trip_ns);
        let mut now = distinct(&found.seen);
        let hidden = is_hidden(&now);
        if hidden {
            now = self.by_delays(found, settings);
        }
        let knew = self.paths.is_some();
        if !knew {
            self.begin(now_ns, now, settings);
        } else if !hidden {
            self.follow(now_ns, found, settings);
        } else if now.len() < self.found.len() && self.is_by_delays() {
            self.begin(now_ns, now, settings);
        }
        match (hidden, self.found.len()) {
            (true, count) if self.is_by_delays() => {
                format!("routers do not say who they are: {count} ports are taken for paths")
            }
            (true, count) => format!("{count} paths; routers do not answer now"),
            (false, 1) => {
                "one path: the fabric has no other, or does not hash the UDP source port".to_string()
            }
            (false, count) => format!("{count} paths"),
        }
    }

    /// Returns true if no hops are known: ports are told apart by their delays, or not at all.
    fn is_by_delays(&self) -> bool {
        self.found.iter().all(|found| found.hops.is_empty())
    }

    /// The paths as far as delays tell: ports that move together are one, every other port is a path of its
    /// own. What was once put together stays so, since queues are not always there to tell.
    fn by_delays(&self, found: &Surveyed, settings: Settings) -> Vec<Found> {
        let groups = groups(&found.delays, settings.congested_ns / NOISE);
        let ports =
            groups.iter().map(|group| group.iter().map(|at| found.seen[*at].port).collect::<Vec<_>>());
        let alone = |main, spare| Found { ports: Ports { main, spare }, hops: Vec::new() };
        if self.found.is_empty() {
            return ports.map(|ports| alone(ports[0], ports.get(1).copied())).collect();
        }
        let mut known = self.found.clone();
        for ports in ports {
            let is_known = |port: &u16| known.iter().any(|known| known.ports.main == *port);
            let same: Vec<u16> = ports.into_iter().filter(is_known).collect();
            let [first, others @ ..] = &same[..] else { continue };
            known.retain(|known| !others.contains(&known.ports.main));
            for path in known.iter_mut().filter(|known| known.ports.main == *first) {
                path.ports.spare = path.ports.spare.or(others.first().copied());
            }
        }
        known
    }

    fn begin(&mut self, now_ns: u64, found: Vec<Found>, settings: Settings) {
        let ports: Vec<Ports> = found.iter().map(|found| found.ports).collect();
        let paths = Paths::new(now_ns, settings, &ports);
        self.states = paths.all().iter().map(|path| path.state()).collect();
        self.found = found;
        self.found.truncate(paths.all().len());
        self.paths = Some(paths);
        self.round_ns = now_ns;
    }

    fn follow(&mut self, now_ns: u64, surveyed: &Surveyed, settings: Settings) {
        let followed = follow(&mut self.found, &surveyed.seen);
        let Some(paths) = self.paths.as_mut().filter(|_| !followed.is_renumbered) else {
            // Flows keep numbers, and so go by other paths once.
            let found = std::mem::take(&mut self.found);
            self.begin(now_ns, found, settings);
            return;
        };
        for (path, elsewhere) in followed.changed {
            paths.set_ports(now_ns, path, self.found[path].ports, elsewhere);
        }
        for found in &self.found[paths.all().len()..] {
            paths.add(now_ns, found.ports);
        }
        self.states.extend(paths.all()[self.states.len()..].iter().map(Path::state));
    }

    /// A path has failed or is grey: routers may choose other ports now.
    fn hasten(&mut self, now_ns: u64) {
        self.survey_ns = self.survey_ns.min(now_ns + SURVEY_PAUSE_NS);
    }

    /// Learns from the programs what was sent. `nodes`: so many are looked at.
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
    }

    /// Returns the paths to be probed now, if it is time: those of a round, or between the rounds of a node
    /// that nothing is sent to, those that are in doubt.
    pub fn round(&mut self, now_ns: u64, fabric: &Fabric, random: &mut Random) -> Vec<usize> {
        let Some(paths) = &self.paths else { return Vec::new() };
        let probe_ns = paths.settings().probe_ns;
        let interval = if paths.usage(now_ns) == Use::Active { probe_ns } else { fabric.idle_ns };
        if now_ns.saturating_add(interval) < self.round_ns {
            self.round_ns = now_ns;
        }
        if now_ns >= self.round_ns {
            self.round_ns = now_ns + random.jittered(interval);
            self.doubts_ns = now_ns + random.jittered(probe_ns);
            return paths.round(now_ns, random);
        }
        if now_ns < self.doubts_ns {
            return Vec::new();
        }
        self.doubts_ns = now_ns + random.jittered(probe_ns);
        paths.doubtful(now_ns)
    }

    /// Returns the port of a path, and the turn of the next probe there.
    pub fn next_turn(&mut self, path: usize) -> (u16, u8) {
        let port = self.paths.as_ref().and_then(|paths| paths.all().get(path)).map(|path| path.ports().main);
        let turn = self.turns.get_mut(path).map(|turn| {
            *turn = turn.wrapping_add(1);
            *turn
        });
        (port.unwrap_or_default(), turn.unwrap_or_default())
    }

    /// Lets states and weights follow. Returns what is to be said.
    pub fn tick(&mut self, now_ns: u64) -> Vec<News> {
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

    /// Returns what the programs are to be told, if it is not what they were told last.
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
        let paths = self.paths.as_ref().map(out).unwrap_or_default();
        let peer = PathPeer { index: self.index, paths };
        if self.written.as_ref() == Some(&peer) {
            return None;
        }
        self.written = Some(peer.clone());
        Some(peer)
    }

    /// The programs know nothing of it any more.
    pub fn forget_written(&mut self) {
        self.written = None;
    }

    /// Returns true if it needs attention every few milliseconds.
    pub fn is_busy(&self, now_ns: u64) -> bool {
        let Some(paths) = &self.paths else { return self.survey.is_some() };
        let is_doubtful = |path: &Path| path.is_doubtful(now_ns, paths.settings());
        self.survey.is_some() || paths.usage(now_ns) == Use::Active || paths.all().iter().any(is_doubtful)
    }
}
