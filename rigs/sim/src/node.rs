//! The hosts' knowledge about the paths to each leaf, and the times of their probes.

use crate::fabric::{Fabric, Shape};
use crate::scenario::Contender;
use weir_packet::random::Random;
use weir_path::flow::Round;
use weir_path::paths::{Paths, Ports};
use weir_path::probing::Budget;
use weir_path::scheme::Scheme;
use weir_path::settings::Settings;

/// Maximum offset of host clocks, ns: no scheme may rely on synchronized clocks.
const CLOCKS_OFF_NS: u64 = 1_000_000_000;

/// A host's knowledge about the paths to the hosts of a leaf.
pub struct SimNode {
    /// The paths.
    pub paths: Paths,
    /// The host.
    pub host: u32,
    /// The host that this host sent to last, which gets its probes.
    to: u32,
    is_probing: bool,
    /// The number of probes that arrived at that host, by path.
    pub arrived: Vec<u32>,
    /// CLOVE: when a path may lose weight again.
    rests_until: Vec<u64>,
}

impl SimNode {
    fn new(now: u64, settings: Settings, ports: &[Ports], (host, to): (u32, u32)) -> SimNode {
        let paths = Paths::new(now, settings, ports);
        SimNode {
            paths,
            host,
            to,
            is_probing: false,
            arrived: vec![0; ports.len()],
            rests_until: vec![0; ports.len()],
        }
    }

    /// Notes that data leaves for a host. Returns true if probes must be sent from now on.
    #[inline]
    pub fn sends(&mut self, to: u32) -> bool {
        self.to = to;
        !std::mem::replace(&mut self.is_probing, true)
    }

    /// Takes the feedback from a round trip of a flow on a path.
    pub fn take_echo(&mut self, now: u64, contender: Contender, path: usize, round: Round) {
        match contender.scheme() {
            Scheme::Adaptive => self.paths.echoed(now, path, round.packets, round.marked),
            Scheme::Clove if round.marked > 0 => {
                let rests = &mut self.rests_until[path];
                if now >= *rests {
                    *rests = now + self.paths.settings().congested_ns / 2;
                    self.paths.clove_marked(path);
                }
            }
            _ => (),
        }
    }
}

/// A round of probes.
#[derive(Default)]
pub struct ProbeRound {
    /// From a host to another.
    pub from: u32,
    /// The other.
    pub to: u32,
    /// Paths and sequence numbers.
    pub probes: Vec<(usize, u32)>,
    /// The time until the next round, ns.
    pub next_in: Option<u64>,
}

/// The knowledge of all hosts.
pub struct Nodes {
    settings: Settings,
    hosts_of_leaf: u32,
    leaves: u32,
    /// The index of the node of `host * leaves + leaf`, plus 1.
    places: Vec<u32>,
    are_known: bool,
    nodes: Vec<SimNode>,
    clocks: Vec<u64>,
    budgets: Vec<Budget>,
}

impl Nodes {
    /// Creates hosts that know nothing yet; `are_known`: the scheme needs to know paths.
    #[must_use]
    pub fn new(shape: &Shape, settings: Settings, are_known: bool, seed: u64) -> Nodes {
        let (hosts, mut random) = (shape.all_hosts(), Random::new(seed.rotate_left(32)));
        Nodes {
            settings,
            hosts_of_leaf: shape.hosts,
            leaves: shape.leaves,
            places: vec![0; if are_known { (hosts * shape.leaves) as usize } else { 0 }],
            are_known,
            nodes: if are_known { Vec::new() } else { vec![SimNode::new(0, settings, &[], (0, 0))] },
            clocks: (0..hosts).map(|_| random.below(CLOCKS_OFF_NS)).collect(),
            budgets: vec![Budget::new(0); hosts as usize],
        }
    }

    /// The node for traffic from one host to another. Schemes that know no paths share one node.
    #[inline]
    pub fn of(&mut self, now: u64, from: u32, to: u32, fabric: &Fabric) -> u32 {
        if !self.are_known {
            return 0;
        }
        let place = (from * self.leaves + to / self.hosts_of_leaf) as usize;
        if self.places[place] == 0 {
            let count = fabric.spines(from, to).len() as u16;
            let ports: Vec<Ports> = (0..count).map(|main| Ports { main, spare: None }).collect();
            self.nodes.push(SimNode::new(now, self.settings, &ports, (from, to)));
            self.places[place] = self.nodes.len() as u32;
        }
        self.places[place] - 1
    }

    /// The node with a number.
    #[inline]
    pub fn at(&mut self, number: u32) -> &mut SimNode {
        &mut self.nodes[number as usize]
    }

    /// What a host's clock shows, ns.
    #[must_use]
    pub fn clock(&self, now: u64, host: u32) -> u64 {
        now.wrapping_add(self.clocks[host as usize])
    }

    /// Gives up on late probes, and returns what to probe now, within the host's budget.
    pub fn plan(&mut self, now: u64, number: u32, random: &mut Random) -> ProbeRound {
        let node = &mut self.nodes[number as usize];
        node.paths.tick(now);
        let Some(next) = node.paths.next_round_in(now, random) else {
            node.is_probing = false;
            return ProbeRound::default();
        };
        let mut probes = Vec::new();
        let round = node.paths.round(now, random);
        if self.budgets[node.host as usize].take(now, round.len() as u64) {
            probes.extend(round.into_iter().map(|path| (path, node.paths.probe_sent(now, path))));
        }
        ProbeRound { from: node.host, to: node.to, probes, next_in: Some(next) }
    }
}
