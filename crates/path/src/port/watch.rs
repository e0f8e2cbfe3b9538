//! The app's handling of paths: it discovers and probes them, and updates entries and buckets.

use super::app::PathPortApp;
use super::config::Discovery;
use super::pipes::CHOSEN;
use crate::wire::Packet;
use crate::{Between, Claim, Shared};
use weir_app::{Action, Refusal};
use weir_program::change::{Change, ChangeError, Changes};
use weir_program::{Entry, PipeId};

/// How often nodes are examined, while one of them is in use, surveyed or in doubt, and while none is.
const LOOK_NS: u64 = 2_000_000;
const LOOK_IDLE_NS: u64 = 20_000_000;

/// How often buckets are read while something is sent, and while nothing is.
const READ_NS: u64 = 50_000_000;
const READ_IDLE_NS: u64 = 1_000_000_000;

/// How often the app checks what another app has found.
const ADOPT_NS: u64 = 100_000_000;

impl PathPortApp {
    /// When nodes are examined next.
    pub(super) fn watch_ns(&self) -> u64 {
        let is_busy = self.nodes.iter().any(|node| node.is_busy(self.ticked_ns));
        self.read_ns.min(self.ticked_ns + if is_busy { LOOK_NS } else { LOOK_IDLE_NS })
    }

    /// Examines all nodes.
    pub(super) fn watch(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        self.ticked_ns = now_ns;
        let mut notes = Vec::new();
        for at in 0..self.nodes.len() {
            self.discover(now_ns, at, actions, &mut notes);
            let secret = self.secret();
            let PathPortApp { nodes, config, random, budget, counts, .. } = self;
            let node = &mut nodes[at];
            notes.extend(node.follow(now_ns, random, actions));
            let probes = node.probe(now_ns, config, budget, random);
            counts.probes_sent += probes.len() as u64;
            let inject =
                |probe: &Packet| Action::Inject { bytes: probe.frame(secret).to_vec(), output: config.port };
            actions.extend(probes.iter().map(inject));
        }
        actions.extend(self.probe_large(now_ns));
        notes.into_iter().for_each(|what| self.log_change(now_ns, what, actions));
        if now_ns >= self.read_ns {
            let is_busy = self.nodes.iter().any(|node| node.paths.is_busy(now_ns));
            self.read_ns = now_ns + if is_busy { READ_NS } else { READ_IDLE_NS };
            actions.extend(self.nodes.iter().filter_map(|node| node.group.map(Action::ReadBuckets)));
        }
    }

    /// Returns the large probe that is due, taking nodes in turn.
    fn probe_large(&mut self, now_ns: u64) -> Option<Action> {
        if !self.budget.has_large(now_ns) {
            return None;
        }
        let (secret, count) = (self.secret(), self.nodes.len());
        let PathPortApp { nodes, config, random, .. } = self;
        let mut due = (0..count).map(|step| (self.large + step) % count);
        let (at, probe) = due.find_map(|at| Some((at, nodes[at].probe_large(now_ns, config, random)?)))?;
        self.large = at + 1;
        self.budget.take_large(now_ns);
        self.counts.probes_sent += 1;
        Some(Action::Inject { bytes: probe.padded(secret, config.mtu), output: config.port })
    }

    /// Starts a survey of a node's paths if one is due, unless another app does so; or continues a survey,
    /// and takes in its result.
    fn discover(&mut self, now_ns: u64, at: usize, actions: &mut Vec<Action>, notes: &mut Vec<String>) {
        let Some(Discovery { sources, every_ns }) = self.config.discovery else { return };
        let between = self.between(at);
        let node = &mut self.nodes[at];
        let before = node.found.clone();
        let mut settings = self.config.settings;
        let change = if node.wants_survey(now_ns) {
            match self.member.claim(between) {
                Claim::Own => return node.begin_survey(now_ns, sources, &mut self.random),
                Claim::Other(None) => return node.put_off(now_ns + ADOPT_NS),
                Claim::Other(Some(shared)) => {
                    node.put_off(now_ns + ADOPT_NS);
                    settings = settings.allowing(shared.round_trip_ns);
                    let change = node.known.adopt(&shared.known);
                    node.found = Some(node.known.sentence());
                    change
                }
            }
        } else {
            let Some(found) = node.survey.as_mut().and_then(|survey| survey.turn(now_ns)) else { return };
            let change = node.learn(now_ns, &found, every_ns, &self.config);
            notes.extend(found.forgeries().map(|forgeries| format!("{}: {forgeries}", node.address)));
            match found.round_trip_ns {
                Some(round_trip_ns) => {
                    settings = settings.allowing(round_trip_ns);
                    self.member.publish(between, Shared { known: node.known.clone(), round_trip_ns });
                }
                None => self.member.give_up(between),
            }
            change
        };
        if let Some(found) = node.found.as_ref().filter(|found| before.as_ref() != Some(found)) {
            notes.push(format!("{}: {found}", node.address));
        }
        let mut moves = Vec::new();
        node.apply(now_ns, change, (settings, &self.config.ports), &mut moves);
        actions.extend(self.entries());
        actions.extend(moves);
    }

    /// Returns the addresses and the port that determine the paths to a node.
    fn between(&self, at: usize) -> Between {
        let (local, peer) = (self.config.local.into(), self.nodes[at].address.into());
        Between { local, peer, tunnel_port: self.config.vxlan_port }
    }

    /// Updates the entries of paths to their ports.
    pub(super) fn entries(&mut self) -> Option<Action> {
        let [Some(buckets), Some(pinned)] = self.ways else { return None };
        let mut changes = Vec::new();
        for node in &mut self.nodes {
            let Some(group) = node.group else { continue };
            for (at, path) in (0..).zip(node.paths.all()) {
                let (port, entered) = (path.ports().main, &mut node.entered[usize::from(at)]);
                if *entered == Some(port) {
                    continue;
                }
                let entry = Entry::on(CHOSEN.key(group, at)).value(port).run_time();
                let change = |pipe: PipeId| match entered {
                    None => Change::Add { pipe, entry: entry.clone() },
                    Some(_) => Change::Update { pipe, entry: entry.clone() },
                };
                changes.extend([buckets, pinned].map(change));
                *entered = Some(port);
            }
        }
        let changes = Changes::new(changes).ok().filter(|changes| !changes.is_empty())?;
        Some(Action::Change(Change::Batch(changes)))
    }

    /// Returns the actions to try instead of a refused change of paths: after a reload that changed the kind
    /// of app, entries may already exist, or be gone.
    pub(super) fn otherwise(&self, change: &Change, why: &Refusal) -> Vec<Action> {
        let is_way = |pipe: &PipeId| self.ways.contains(&Some(*pipe));
        let other = match (change, why) {
            (Change::Batch(changes), _) if changes.pipes().iter().all(is_way) => changes.to_vec(),
            (Change::Add { pipe, entry }, Refusal::Change(ChangeError::Exists { .. })) if is_way(pipe) => {
                vec![Change::Update { pipe: *pipe, entry: entry.clone() }]
            }
            (Change::Update { pipe, entry }, Refusal::Change(ChangeError::NotFound { .. }))
                if is_way(pipe) =>
            {
                vec![Change::Add { pipe: *pipe, entry: entry.clone() }]
            }
            _ => Vec::new(),
        };
        other.into_iter().map(Action::Change).collect()
    }
}
