//! Which nodes are probed and surveyed next. A host's probe traffic is bounded, so with many nodes not all
//! probes can be sent when they are due. Nodes then take turns, and probes wait for their turn, so that no
//! node starves.

use super::node::Node;
use crate::Fabric;
use crate::paths::PATHS_MAX;
use crate::probing::Budget;
use crate::survey::Wish;
use weir_packet::random::Random;

/// Maximum number of concurrent surveys: 200 nodes are surveyed in some ten seconds.
const SURVEYS_MAX: usize = 16;

/// The allowed traffic divided by this number is the maximum for surveys, so that failures are still noticed
/// meanwhile.
const SURVEY_SHARE: u64 = 4;

/// Which nodes go first, and how much may be sent.
pub struct Turns {
    budget: Budget,
    /// The node at which the next round of probes starts.
    probed: usize,
    /// The first node whose survey may begin next, and the first that may send.
    surveyed: usize,
    sending: usize,
    /// The first node that may send a large probe.
    large: usize,
}

/// Returns all numbers below `count`, starting with `first` and wrapping around.
fn from(first: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (first + step) % count)
}

impl Turns {
    pub fn new(now_ns: u64) -> Turns {
        Turns { budget: Budget::new(now_ns), probed: 0, surveyed: 0, sending: 0, large: 0 }
    }

    /// Begins surveys that are due, up to the limit.
    pub fn begin_surveys(&mut self, nodes: &mut [Node], now_ns: u64, fabric: &Fabric, random: &mut Random) {
        let mut going = nodes.iter().filter(|node| node.survey.is_some()).count();
        for at in from(self.surveyed, nodes.len()) {
            if going >= SURVEYS_MAX {
                break;
            }
            // Routers' messages name the node, not the uplink, so only one survey of a node runs at a time.
            let is_surveyed =
                |address| nodes.iter().any(|node| node.survey.is_some() && node.address == address);
            if nodes[at].wants_survey(now_ns) && !is_surveyed(nodes[at].address) {
                nodes[at].begin_survey(now_ns, fabric, random);
                going += 1;
                self.surveyed = at + 1;
            }
        }
    }

    /// Returns the probes that surveys want to send now, within the limit.
    pub fn wishes(&mut self, nodes: &mut [Node], now_ns: u64) -> Vec<(usize, Wish)> {
        let mut share = self.budget.left(now_ns) / SURVEY_SHARE;
        let mut wishes = Vec::new();
        for at in from(self.sending, nodes.len()) {
            let Some(survey) = &mut nodes[at].survey else { continue };
            while share > 0
                && let Some(wish) = survey.wish(now_ns)
            {
                share -= 1;
                self.budget.take(now_ns, 1);
                wishes.push((at, wish));
            }
            if share == 0 {
                self.sending = at;
                break;
            }
        }
        wishes
    }

    /// Returns the nodes and paths to probe now.
    pub fn probes(
        &mut self,
        nodes: &mut [Node],
        now_ns: u64,
        fabric: &Fabric,
        random: &mut Random,
    ) -> Vec<(usize, usize)> {
        let mut due = Vec::new();
        for at in from(self.probed, nodes.len()) {
            if self.budget.left(now_ns) < PATHS_MAX as u64 {
                self.probed = at;
                break;
            }
            let round = nodes[at].round(now_ns, fabric, random);
            self.budget.take(now_ns, round.len() as u64);
            due.extend(round.into_iter().map(|path| (at, path)));
        }
        due
    }

    /// Returns the node and the path along which to send a large probe now. `bytes` is its length by uplink.
    pub fn large(&mut self, nodes: &mut [Node], now_ns: u64, bytes: &[u16]) -> Option<(usize, usize)> {
        if !self.budget.has_large(now_ns) {
            return None;
        }
        let count = nodes.len();
        let due = |at: usize| {
            let bytes = bytes.get(nodes[at].uplink).copied().unwrap_or_default();
            let paths = nodes[at].paths.as_mut()?;
            paths.set_large(bytes);
            Some((at, paths.large_due(now_ns)?))
        };
        let found = from(self.large, count).find_map(due)?;
        self.large = found.0 + 1;
        self.budget.take_large(now_ns);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Observation;
    use crate::fabric::Reflect;
    use crate::icmp::{self, Expired};
    use crate::probing::PACKETS_PER_SECOND_MAX;
    use crate::scheme::Scheme;
    use crate::settings::Settings;
    use crate::survey::{Surveyed, TTL_WHOLE};
    use crate::tunnel::PathTunnel;
    use crate::wire::{Outer, ProbeId, Secret};
    use std::net::{IpAddr, Ipv4Addr};

    const NODES: usize = 200;
    const SECOND: u64 = 1_000_000_000;
    const TURN: u64 = 3_000_000;

    fn fabric() -> Fabric {
        let peers = (0..NODES as u32).map(|at| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0001 + at)));
        Fabric {
            name: "fabric".into(),
            uplinks: vec!["up0".into()],
            peers: peers.collect(),
            local: None,
            scheme: Scheme::Adaptive,
            reflect: Reflect::Weir,
            tunnel: PathTunnel::VXLAN,
            sources: [49_152, 65_535],
            dscp: 0,
            rate: 10_000_000_000,
            flows: 10,
            idle_timeout_ns: 10_000_000_000,
            probe_ns: 10_000_000,
            idle_ns: SECOND,
            discover_ns: 15 * SECOND,
            answers: 5000,
            secret: None,
        }
    }

    fn nodes(fabric: &Fabric) -> Vec<Node> {
        fabric
            .peers
            .iter()
            .zip(0..)
            .map(|(peer, index)| Node::new(*peer, index, 0, fabric.peers.len()))
            .collect()
    }

    #[test]
    fn two_hundred_nodes_in_use_are_probed_in_turn_within_the_budget() {
        let (fabric, mut random) = (fabric(), Random::new(1));
        let mut nodes = nodes(&fabric);
        let settings = Settings::of_rate(fabric.rate);
        let seen = |port: u16| Observation { port, hops: vec![Some([10, 9, port as u8, 2].into())] };
        let found =
            Surveyed { seen: (1..=4).map(seen).collect(), round_trip_ns: Some(1000), ..Surveyed::default() };
        for node in &mut nodes {
            node.take(SECOND, &found, &fabric, settings);
        }
        let (mut turns, mut sent, mut longest) = (Turns::new(SECOND), 0, 0);
        let mut last = [SECOND; NODES];
        for now in (SECOND..6 * SECOND).step_by(TURN as usize) {
            for node in &mut nodes {
                node.paths.as_mut().expect("paths").loaded(0, now, 1500);
            }
            for (at, _) in turns.probes(&mut nodes, now, &fabric, &mut random) {
                sent += 1;
                longest = longest.max(now - last[at]);
                last[at] = now;
            }
        }
        let budget = 5 * PACKETS_PER_SECOND_MAX;
        assert!((budget * 9 / 10..=budget * 11 / 10).contains(&sent), "{sent}");
        assert!(
            longest < 150_000_000 && last.iter().all(|at| *at > 6 * SECOND - 150_000_000),
            "{longest} ns"
        );
    }

    /// A router's ICMP message about a probe.
    fn said(wish: &Wish, router: [u8; 4]) -> Expired {
        let outer = Outer::between(
            Ipv4Addr::new(10, 0, 0, 1),
            Ipv4Addr::new(10, 0, 0, 2),
            wish.port,
            PathTunnel::VXLAN,
        );
        let probe = wish.probe(outer, ProbeId { session: 1, number: 1 }, 0, 0).datagram(Secret::default());
        icmp::expired(&icmp::message(router.into(), &probe, 28)).expect("a message")
    }

    #[test]
    fn surveys_of_two_hundred_nodes_end_within_the_budget_while_others_are_probed() {
        let (fabric, mut random) = (fabric(), Random::new(1));
        let mut nodes = nodes(&fabric);
        let settings = Settings::of_rate(fabric.rate);
        let mut turns = Turns::new(0);
        let (mut sent, mut most, mut now) = (0, 0, 0);
        while nodes.iter().any(|node| node.known.all().is_empty()) {
            now += TURN;
            assert!(now < 30 * SECOND, "they end");
            turns.begin_surveys(&mut nodes, now, &fabric, &mut random);
            most = most.max(nodes.iter().filter(|node| node.survey.is_some()).count());
            sent += turns.probes(&mut nodes, now, &fabric, &mut random).len();
            for (at, wish) in turns.wishes(&mut nodes, now) {
                sent += 1;
                let survey = nodes[at].survey.as_mut().expect("it wished");
                match wish.ttl {
                    TTL_WHOLE => survey.arrived(wish.port, 62, now, (1000, 500)),
                    1 => survey.expired(&said(&wish, [10, 0, 0, 1])),
                    _ => survey.expired(&said(&wish, [10, 9, (wish.port % 4) as u8, 2])),
                }
            }
            for node in &mut nodes {
                if let Some(found) = node.survey.as_mut().and_then(|survey| survey.turn(now)) {
                    node.take(now, &found, &fabric, settings);
                }
            }
        }
        assert!(nodes.iter().all(|node| node.known.all().len() == 4), "none is missed for lack of probes");
        assert!(most <= SURVEYS_MAX, "{most}");
        let budget = (now / 1_000_000) as usize * (PACKETS_PER_SECOND_MAX as usize / 1000);
        assert!(sent <= budget + PACKETS_PER_SECOND_MAX as usize / 10, "{sent} of {budget}");
    }
}
