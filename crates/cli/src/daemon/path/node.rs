//! A remote node: its paths, what is known of them, and what the programs are told.

use super::survey::{Survey, Surveyed};
use ::apps::path::Fabric;
use ::path::buckets::PathBuckets;
use ::path::discovery::{Change, Found, changes, distinct};
use ::path::paths::{PATHS_MAX, Paths, Ports, STEP_NS, State};
use ::path::probing::Use;
use ::path::random::Random;
use ::path::settings::Settings;
use bpf::{BUCKETS, PathOut, PathPeer, PathTraffic, TcPath};
use std::net::Ipv4Addr;

/// How often the traffic of a node that nothing was sent to is looked at, in nanoseconds.
const LOOK_NS: u64 = 20_000_000;

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
    /// The address that its probes are sent from, and that data is.
    pub source: Option<Ipv4Addr>,
    pub found: Vec<Found>,
    pub paths: Option<Paths>,
    pub survey: Option<Survey>,
    /// What is known, in a sentence.
    pub state: String,
    pub traffic: Vec<PathTraffic>,
    pub round_trips: [u64; PATHS_MAX],
    turns: [u8; PATHS_MAX],
    buckets: Option<PathBuckets>,
    stepped_ns: u64,
    shares: Vec<bool>,
    states: Vec<State>,
    written: Option<PathPeer>,
    surveys: u8,
    survey_ns: u64,
    round_ns: u64,
    look_ns: u64,
}

impl Node {
    pub fn new(address: Ipv4Addr, index: u32) -> Node {
        Node {
            address,
            index,
            source: None,
            found: Vec::new(),
            paths: None,
            survey: None,
            state: "not surveyed yet".to_string(),
            traffic: Vec::new(),
            round_trips: [0; PATHS_MAX],
            turns: [0; PATHS_MAX],
            buckets: None,
            stepped_ns: 0,
            shares: Vec::new(),
            states: Vec::new(),
            written: None,
            surveys: 0,
            survey_ns: 0,
            round_ns: 0,
            look_ns: 0,
        }
    }

    /// Begins a survey if it is time.
    pub fn mind_survey(&mut self, now_ns: u64, fabric: &Fabric, random: &mut Random) {
        if self.survey.is_some() || now_ns < self.survey_ns {
            return;
        }
        let ports = self.found.iter().flat_map(|found| [Some(found.ports.main), found.ports.spare]);
        let known: Vec<u16> = ports.flatten().collect();
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
        let hidden = now.is_empty() || found.seen.iter().all(|one| one.hops.is_empty());
        if hidden {
            // As far as anybody can tell, each port is a path.
            let some = found.seen.iter().take(PATHS_MAX);
            let alone = |port| Found { ports: Ports { main: port, spare: None }, hops: Vec::new() };
            now = some.map(|one| alone(one.port)).collect();
        }
        let knew = self.paths.is_some();
        if !knew {
            self.begin(now_ns, now, settings);
        } else if !hidden {
            self.change(now_ns, changes(&self.found, &found.seen), settings);
        }
        match (hidden, self.found.len()) {
            (true, count) if knew => format!("{count} paths; routers do not answer now"),
            (true, count) => format!("routers do not say who they are: {count} ports are taken for paths"),
            (false, 1) => {
                "one path: the fabric has no other, or does not hash the UDP source port".to_string()
            }
            (false, count) => format!("{count} paths"),
        }
    }

    fn begin(&mut self, now_ns: u64, found: Vec<Found>, settings: Settings) {
        let ports: Vec<Ports> = found.iter().map(|found| found.ports).collect();
        let paths = Paths::new(now_ns, settings, &ports);
        self.buckets = Some(PathBuckets::new(&paths));
        self.states = paths.all().iter().map(|path| path.state()).collect();
        self.found = found;
        self.found.truncate(paths.all().len());
        self.paths = Some(paths);
        self.round_ns = now_ns;
    }

    fn change(&mut self, now_ns: u64, changes: Vec<Change>, settings: Settings) {
        let mut gone: Vec<usize> = Vec::new();
        let mut new: Vec<Found> = Vec::new();
        let Some(paths) = &mut self.paths else { return };
        for change in changes {
            match change {
                Change::Ports { path, ports } => {
                    self.found[path].ports = ports;
                    paths.set_ports(now_ns, path, ports, false);
                }
                Change::Gone { path } => gone.push(path),
                Change::New(found) => new.push(found),
            }
        }
        // A path that is there for one that is gone takes its number.
        while let (Some(path), Some(found)) = (gone.last().copied(), new.pop()) {
            gone.pop();
            paths.set_ports(now_ns, path, found.ports, true);
            self.found[path] = found;
        }
        // One that is gone keeps its number, by which flows and counters refer to it, and its port, which
        // leads along another path now.
        if !new.is_empty() {
            let mut all = std::mem::take(&mut self.found);
            all.extend(new);
            self.begin(now_ns, all, settings);
        }
    }

    /// A path has failed or is grey: routers may choose other ports now.
    fn hasten(&mut self, now_ns: u64) {
        self.survey_ns = self.survey_ns.min(now_ns + SURVEY_PAUSE_NS);
    }

    /// Learns from the programs what was sent.
    pub fn look(&mut self, now_ns: u64, programs: &TcPath) {
        let Some(paths) = &mut self.paths else { return };
        if now_ns < self.look_ns {
            return;
        }
        self.look_ns = if paths.usage(now_ns) == Use::Active { now_ns } else { now_ns + LOOK_NS };
        let traffic = programs.traffic(self.index, paths.all().len());
        for (path, one) in traffic.iter().enumerate() {
            let before = self.traffic.get(path).copied().unwrap_or_default();
            let bytes = one.bytes.saturating_sub(before.bytes);
            if bytes > 0 {
                paths.sent(now_ns, path, bytes);
            }
            for _ in before.rehashed..one.rehashed.min(before.rehashed + 8) {
                paths.rehashed(now_ns, path);
            }
        }
        self.traffic = traffic;
    }

    /// Returns the paths to be probed now, if it is time.
    pub fn round(&mut self, now_ns: u64, fabric: &Fabric, random: &mut Random) -> Vec<usize> {
        let Some(paths) = &self.paths else { return Vec::new() };
        // A node that nothing is sent to is probed as often when something seems to be wrong.
        let doubtful = |path: &::path::paths::Path| {
            path.state() != State::Failed && path.is_suspect(now_ns, paths.settings())
        };
        let is_hot = paths.usage(now_ns) == Use::Active || paths.all().iter().any(doubtful);
        let interval = if is_hot { paths.settings().probe_ns } else { fabric.idle_ns };
        if now_ns.saturating_add(interval) < self.round_ns {
            self.round_ns = now_ns;
        }
        if now_ns < self.round_ns {
            return Vec::new();
        }
        self.round_ns = now_ns + random.jittered(interval);
        paths.round(now_ns, random)
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

    /// Lets states, weights and buckets follow. Returns what is to be said.
    pub fn tick(&mut self, now_ns: u64, random: &mut Random) -> Vec<News> {
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
        let shares: Vec<bool> = paths.shares().iter().map(|share| *share > 0).collect();
        if shares != self.shares || now_ns >= self.stepped_ns {
            self.stepped_ns = now_ns + STEP_NS;
            self.shares = shares;
            if let Some(buckets) = &mut self.buckets {
                buckets.follow(paths, random);
            }
        }
        if failed {
            self.hasten(now_ns);
        }
        news
    }

    /// Returns what the programs are to be told, if it is not what they were told last.
    pub fn peer(&mut self) -> Option<PathPeer> {
        let out = |paths: &Paths| -> Vec<PathOut> {
            let fit = paths.all().iter().zip(&self.shares).filter(|(_, usable)| **usable);
            let common = fit.map(|(path, _)| path.queue_ns()).min().unwrap_or_default();
            let one = |(at, path): (usize, &::path::paths::Path)| PathOut {
                port: path.ports().main,
                usable: self.shares.get(at).copied().unwrap_or_default(),
                congested: path.state() == State::Congested,
                cost_ns: u32::try_from(path.queue_ns().saturating_sub(common)).unwrap_or(u32::MAX),
            };
            paths.all().iter().enumerate().map(one).collect()
        };
        let slots = self.buckets.as_ref().map(PathBuckets::slots).unwrap_or_default();
        let slot = |at: usize| slots.get(at).map_or(0, |&path| (path as usize).min(PATHS_MAX - 1) as u8);
        let peer = PathPeer {
            index: self.index,
            paths: self.paths.as_ref().map(out).unwrap_or_default(),
            buckets: std::array::from_fn::<u8, BUCKETS, _>(slot),
        };
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
        self.survey.is_some()
            || paths.usage(now_ns) == Use::Active
            || paths
                .all()
                .iter()
                .any(|path| path.state() != State::Failed && path.is_suspect(now_ns, paths.settings()))
    }
}
