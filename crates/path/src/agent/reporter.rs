//! Reports to operators: log lines, and the state that the app shows.

use super::aging::state_of;
use super::node::Node;
use crate::bpf::{
    PATHS_MAX, PathCounters, PathDecision, PathFlow, PathFlowKey, PathFlows, PathTraffic, TcPath,
};
use crate::loss::ProbeCounts;
use crate::paths::{Path, Paths};
use crate::scheme::Scheme;
use crate::{Fabric, FlowRow, FlowsPage, NodeReport, ObservedReport, PathReport, PathsReport};
use std::net::IpAddr;
use tracing::{info, warn};
use weir_app::RequestId;
use weir_app::clock::since_1970_ns;
use weir_app::shown::ago_ms;
use weir_app::task::Publisher;

/// How often the board is written, in nanoseconds; less often with many nodes, because the traffic of each
/// must be read.
const EVERY_NS: u64 = 50_000_000;
const EVERY_NS_PER_NODE: u64 = 1_000_000;

/// The maximum number of flows in a page.
const ROWS: u32 = 2048;

/// The reports of an app.
pub struct Reporter {
    name: String,
    scheme: Scheme,
    /// Addresses by peer index and, if there are several uplinks, the uplink.
    peers: Vec<(IpAddr, Option<String>)>,
    board: Publisher<Fabric>,
    obstacle: Option<String>,
    said: Option<String>,
    next_ns: u64,
}

impl Reporter {
    pub fn new(fabric: &Fabric, board: Publisher<Fabric>) -> Reporter {
        let over = |uplink| fabric.peers.iter().map(move |peer| (*peer, fabric.one_of_several(uplink)));
        let (name, peers) = (fabric.name.clone(), (0..fabric.uplinks.len()).flat_map(over).collect());
        let scheme = fabric.scheme;
        Reporter { name, scheme, peers, board, obstacle: None, said: None, next_ns: 0 }
    }

    /// Records whether the programs are attached to the uplink; logs a change.
    pub fn obstacle(&mut self, state: Result<(), String>) {
        let obstacle = state.err();
        if obstacle == self.obstacle {
            return;
        }
        match &obstacle {
            Some(why) => warn!("{}: {why}; weir will retry, and traffic uses ECMP", self.name),
            None => info!("{}: the uplink exists", self.name),
        }
        let mut snapshot = self.board.look();
        snapshot.note(since_1970_ns(), obstacle.clone().unwrap_or_else(|| "the uplink exists".to_string()));
        snapshot.obstacle = obstacle.clone();
        self.obstacle = obstacle;
    }

    /// Reports a message, in the log and on the board.
    pub fn say(&self, what: &str) {
        info!("{}: {what}", self.name);
        self.board.look().note(since_1970_ns(), what.to_string());
    }

    /// Reports a message unless it was the last one.
    pub fn say_once(&mut self, what: &str) {
        if self.said.as_deref() != Some(what) {
            self.said = Some(what.to_string());
            self.say(what);
        }
    }

    /// Writes the board at intervals, and lists flows if a client is waiting for them.
    pub fn report(&mut self, now_ns: u64, programs: &TcPath, nodes: &[Node], forgotten: u64) {
        let queries = std::mem::take(&mut self.board.look().queries);
        if !queries.is_empty()
            && let Ok(flows) = programs.flows()
        {
            self.list(flows, queries, nodes, now_ns);
        }
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + EVERY_NS.max(EVERY_NS_PER_NODE * nodes.len() as u64);
        let mut counts = counts(&programs.counters());
        counts.push(("path_flows_aged", forgotten));
        let uplink = |node: &Node| self.peers.get(node.index as usize).and_then(|peer| peer.1.clone());
        let nodes = nodes.iter().map(|one| NodeReport { uplink: uplink(one), ..node(one, programs, now_ns) });
        let nodes = nodes.collect();
        let mut board = self.board.look();
        (board.report, board.now_ns) = (PathsReport { counts, nodes }, since_1970_ns());
    }

    /// Reads pages of flows on a separate thread, because probes cannot wait.
    fn list(&self, flows: PathFlows, queries: Vec<(RequestId, u32)>, nodes: &[Node], now_ns: u64) {
        let port = |node: &Node, path: usize| {
            node.paths.as_ref().and_then(|paths| paths.all().get(path)).map(|path| path.ports().main)
        };
        // With DOCA-AR there are peers but no nodes.
        let ports =
            |at: usize| nodes.get(at).map(|node| (0..PATHS_MAX).map(|path| port(node, path)).collect());
        let with_ports = |(at, peer): (usize, &(IpAddr, Option<String>))| {
            (peer.0, peer.1.clone(), ports(at).unwrap_or_default())
        };
        let peers: Vec<(IpAddr, Option<String>, Vec<Option<u16>>)> =
            self.peers.iter().enumerate().map(with_ports).collect();
        let row = move |scheme: Scheme, (key, flow): (PathFlowKey, PathFlow)| {
            let (peer, uplink, ports) = peers.get(key.peer() as usize)?;
            let port = ports.get(flow.path as usize).copied().flatten();
            let ([source, destination], [sport, dport]) = (key.addresses(), key.ports());
            Some(FlowRow {
                peer: *peer,
                uplink: uplink.clone(),
                vni: key.vni(),
                source,
                destination,
                sport,
                dport,
                protocol: key.protocol(),
                path: flow.path,
                port: if flow.port == 0 { port.unwrap_or(flow.kernel_port) } else { flow.port },
                packets: flow.packets,
                bytes: flow.bytes,
                moves: flow.moves,
                idle_ms: ago_ms(now_ns, flow.last_ns),
                state: state_of(flow.packets).to_string(),
                decision: word(scheme, flow.decision).to_string(),
            })
        };
        let (board, scheme) = (self.board.clone(), self.scheme);
        let row = move |one| row(scheme, one);
        let read = move || {
            for (id, from) in queries {
                let page = flows.page(from, ROWS).map_err(|why| format!("the flows cannot be read: {why}"));
                let page = page.map(|(some, next)| {
                    let rows = some.into_iter().filter_map(&row).collect();
                    FlowsPage { rows, next }
                });
                board.look().read.push((id, page));
            }
        };
        // Waiting clients time out with a message that there is no answer.
        let _ = std::thread::Builder::new().name("weir-path-flows".into()).spawn(read);
    }
}

/// How a flow came to its path, in one word.
fn word(scheme: Scheme, decision: PathDecision) -> &'static str {
    match (scheme, decision) {
        (Scheme::LetFlow, _) => "random",
        (Scheme::DocaAr, PathDecision::AtFirst) => "first_answer",
        (Scheme::DocaAr, _) => "no_answer",
        (_, PathDecision::AtFirst) => "at_first",
        (_, PathDecision::AfterGap) => "after_gap",
        (_, PathDecision::AfterFailure) => "after_failure",
        (_, PathDecision::AfterRehash) => "after_rehash",
        (_, PathDecision::WithoutGap) => "without_gap",
    }
}

fn counts(counters: &PathCounters) -> Vec<(&'static str, u64)> {
    vec![
        ("path_steered", counters.steered),
        ("path_unsteered", counters.unsteered),
        ("path_unknown_peer", counters.unknown_peer),
        ("path_scattered", counters.scattered),
        ("path_headers_malformed", counters.header_malformed),
        ("path_headers_unknown", counters.header_unknown),
        ("path_held", counters.held),
        ("path_unheld", counters.unheld),
        ("path_probes_sent", counters.probes_sent),
        ("path_probes_answered", counters.answered),
        ("path_probes_of_strangers", counters.stranger),
        ("path_probes_malformed", counters.malformed),
        ("path_probes_with_bad_cookie", counters.bad_cookie),
        ("path_probes_repeated", counters.repeated),
        ("path_probes_limited", counters.limited),
        ("path_answers", counters.collected),
        ("path_answers_lost", counters.uncollected),
    ]
}

fn node(node: &Node, programs: &TcPath, now_ns: u64) -> NodeReport {
    let snapshot = |paths: &Paths| {
        let traffic = programs.traffic(node.index, paths.all().len());
        let all = paths.all().iter().zip(&traffic).enumerate();
        all.map(|(number, (one, traffic))| path(node, (number, one), traffic, now_ns)).collect()
    };
    NodeReport {
        address: node.address,
        uplink: None,
        state: node.state.clone(),
        large_bytes: node.paths.as_ref().map_or(0, Paths::large_bytes),
        paths: node.paths.as_ref().map(snapshot).unwrap_or_default(),
    }
}

/// What is known about a path to an unmodified node.
fn observed(node: &Node, number: usize) -> Option<ObservedReport> {
    node.paths.as_ref().filter(|paths| paths.settings().is_one_sided)?;
    let seen = node.seen.get(number)?;
    Some(ObservedReport {
        router: node.router_of(number).map(IpAddr::V4),
        round_trip_ns: node.seen_round_trips.get(number).copied().unwrap_or_default(),
        segments: seen.segments,
        again: seen.again,
        acknowledgements: seen.acknowledgements,
    })
}

fn path(node: &Node, (number, path): (usize, &Path), traffic: &PathTraffic, now_ns: u64) -> PathReport {
    let (reason, since_ns) = path.last_change();
    let ProbeCounts { probes, lost } = path.judged();
    let PathTraffic { packets, bytes, new_flows, after_gap, after_failure, after_rehash, without_gap } =
        *traffic;
    PathReport {
        port: path.ports().main,
        spare: path.ports().spare,
        hops: node.known.all().get(number).map(|found| found.hops.clone()).unwrap_or_default(),
        state: path.state().to_string(),
        why: reason.to_string(),
        for_ns: now_ns.saturating_sub(since_ns),
        queue_ns: path.queue_ns(),
        round_trip_ns: node.round_trips.get(number).copied().unwrap_or_default(),
        lost,
        probes,
        marked: f64::from(path.marked()) / 1024.0,
        weight: path.weight(),
        packets,
        bytes,
        new_flows,
        moves: [after_gap, after_failure, after_rehash, without_gap],
        rehashed: node.rehashed.get(number).copied().unwrap_or_default(),
        large: node.paths.as_ref().map(|paths| paths.fit(number)).unwrap_or_default(),
        observed: observed(node, number),
    }
}
