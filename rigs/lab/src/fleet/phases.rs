//! What happens to nodes and back ends, phase by phase.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::bed::FleetBed;
use super::clients::{AT_ONCE, ClientCounts, ClientFault, ClientLoad, FleetClients, now_us};
use super::configuration::{FleetMode, NodeState, Services};
use super::prediction::{Prediction, RingChange, at_most, predict};
use super::router::{Ecmp, RouteChange};
use crate::Interrupt;
use crate::report::grouped;
use crate::screen::Screen;
use weir_bed::Run;

/// How often to check whether a signal has ended the lab.
const LOOK: Duration = Duration::from_millis(50);
/// The first source port of long-lived connections, and the last that may be used.
const PORTS: std::ops::Range<u16> = 10_000..65_000;
/// The time from when nodes report the result of a check until workers no longer send packets to the back
/// end.
const APPLIED: Duration = Duration::from_millis(250);
/// How far the number of broken connections may be from the expected one, as a share of it.
const TOLERANCE: f64 = 0.1;

/// The stage on which phases are performed.
pub struct FleetStage<'a> {
    pub bed: FleetBed,
    pub run: Run,
    pub interrupt: &'a Interrupt,
    pub screen: &'a mut Screen,
    pub mode: FleetMode,
    pub load: ClientLoad,
    /// How long a phase continues after its event.
    pub phase: Duration,
    /// The least number of short connections in the phases in which none may fail.
    pub requests: u64,
    /// The source ports of long-lived and of short connections that were used.
    pub used: (u16, u64),
    /// What goes wrong on purpose.
    pub inject: Option<FleetInjection>,
}

/// What goes wrong on purpose, to see that the lab notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FleetInjection {
    /// BIRD pauses on the last node after the event, until its BFD session has ended.
    #[value(name = "route_change")]
    RouteChange,
    /// The router sends some requests directly to the back end that has died.
    #[value(name = "late_requests")]
    LateRequests,
}

/// What was observed in a phase, judged.
#[derive(Default)]
pub struct FleetJudged {
    counts: ClientCounts,
    /// The largest number of connections that may break: those whose node changed, where nodes have state,
    /// and those of a back end that died.
    expected: u64,
    /// What `weir plan --fleet` predicts for the change that the lab makes.
    predicted: Option<Prediction>,
    /// Connections whose node changed.
    moved: u64,
    /// Time from the event to the first packet on another route, in milliseconds.
    detour_ms: Option<f64>,
    unasked: Unasked,
}

/// The result of a phase.
pub type FleetPhase = crate::phase::Phase<FleetJudged>;

/// Changes of the router's next hops that the lab did not cause.
#[derive(Default)]
struct Unasked {
    /// Descriptions of the changes.
    changes: Vec<String>,
    /// The nodes that withdrew their route although their session continued.
    withdrawn: Vec<&'static str>,
    /// The connections that these changes moved.
    moved: BTreeSet<u16>,
    /// How many of them broke.
    broken: u64,
}

/// What was observed in a phase.
struct FleetSeen {
    counts: ClientCounts,
    /// When the event began and ended.
    event_us: (u64, u64),
    /// When the router's next hops changed, and when they first changed because of the event.
    changes_us: Vec<u64>,
    changed_us: Option<u64>,
    /// The connections whose node changed.
    moved: BTreeSet<u16>,
    predicted: Option<Prediction>,
    unasked: Unasked,
}

/// What a phase does to the buckets of back ends. If they change, a connection that moves because of a route
/// change that the lab did not cause may get a different back end on its new node, and break: that node does
/// not know the flow, and the bucket no longer has the back end that it had when the connection began.
#[derive(Clone, Copy, PartialEq)]
enum RingsAfter {
    Stay,
    /// This share of connections, without those that are excused, has another bucket afterwards.
    Change(f64),
}

/// Performs a phase.
pub type Perform = fn(&mut FleetStage<'_>) -> Result<FleetPhase>;

/// All phases in order.
pub const ALL: [(&str, Perform); 11] = [
    ("steady", steady),
    ("node_killed", node_killed),
    ("node_added", node_added),
    ("node_drained", node_drained),
    ("node_upgraded", node_upgraded),
    ("back_end_dies", back_end_dies),
    ("back_end_drained", back_end_drained),
    ("back_end_added", back_end_added),
    ("link_flaps", link_flaps),
    ("bird_restarts", bird_restarts),
    ("reload_in_turn", reload_in_turn),
];

/// The phases of the short form.
pub const SHORT: [&str; 4] = ["node_killed", "node_added", "node_drained", "node_upgraded"];

/// Two phases that belong together: the second revives the node that the first kills.
pub const TOGETHER: [&str; 2] = ["node_killed", "node_added"];

/// The nodes, counting from 0, to which something happens.
const KILLED: usize = 1;
const DRAINED: usize = 2;
const UPGRADED: usize = 0;

impl FleetPhase {
    /// The result as a line of text.
    pub fn text(&self, name: &str) -> String {
        let word = if self.is_ok() { "ok" } else { "FAILED" };
        let FleetJudged { counts, expected, predicted, moved, detour_ms, unasked } = &**self;
        let detour = detour_ms.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
        let predicted = predicted.map_or("-".to_owned(), |predicted| predicted.broken.to_string());
        let mut notes = self.faults().to_vec();
        if !unasked.changes.is_empty() {
            notes.push(format!(
                "route changes that were not asked for: {}; they moved {} connections, of which {} broke",
                unasked.changes.join(", "),
                unasked.moved.len(),
                unasked.broken
            ));
        }
        let (requests, broken, unasked) =
            (grouped(counts.requests), counts.broken.len(), unasked.changes.len());
        format!(
            "  {name:<18}{word:<8}{requests:>10}{:>10}{broken:>10}{predicted:>11}{expected:>10}{moved:>10}\
             {detour:>12}{unasked:>9}  {}",
            counts.failures,
            notes.join("; ")
        )
        .trim_end()
        .to_owned()
    }

    /// The header of these lines.
    pub fn header() -> String {
        format!(
            "  {:<18}{:<8}{:>10}{:>10}{:>10}{:>11}{:>10}{:>10}{:>12}{:>9}",
            "phase",
            "",
            "requests",
            "failures",
            "broken",
            "predicted",
            "expected",
            "moved",
            "detour, ms",
            "unasked"
        )
    }

    /// The result as JSON.
    pub fn json(&self, name: &str, mode: FleetMode) -> Value {
        json!({
            "name": name, "mode": mode.word(), "ok": self.is_ok(), "requests": self.counts.requests,
            "failures": self.counts.failures, "broken": self.counts.broken.len(),
            "detour_ms": self.detour_ms, "predicted": self.predicted.map(|predicted| predicted.broken),
            "moved": self.moved, "unasked": self.unasked.changes, "unasked_broken": self.unasked.broken,
        })
    }

    /// Notes a fault unless some connections have changed their node.
    fn with_moved(mut self) -> Self {
        let moved = self.moved;
        self.needs(moved > 0, || "no connection has changed its node".into());
        self
    }
}

impl FleetStage<'_> {
    /// Performs `event`, and returns what clients counted from before it until some time after it. If
    /// connections move and then move back, the event itself notes which node each one has in between.
    fn during(&mut self, event: impl FnOnce(&mut Self, &mut PhaseLoad) -> Result<()>) -> Result<FleetSeen> {
        let first = if PORTS.end - self.used.0 < self.load.connections { PORTS.start } else { self.used.0 };
        let start = (first, self.used.1);
        self.bed.router.settle(&self.run, self.interrupt)?;
        let (since, said) = (self.bed.router.now(), self.bed.router.daemon.said(&self.run));
        let network = &self.bed.network;
        let owners = self.bed.router.owners(network, first..first + self.load.connections)?;
        let clients = FleetClients::start(&mut self.run, network, self.load, start, self.interrupt)?;
        self.used.0 = first + self.load.connections;
        let mut load = PhaseLoad { clients, owners: owners.clone(), moved: BTreeSet::new() };
        self.rest(self.phase / 4)?;
        let begun_us = now_us();
        event(self, &mut load)?;
        let done_us = now_us();
        if self.inject == Some(FleetInjection::RouteChange) {
            self.bed.pause_bird(&mut self.run, self.interrupt)?;
        }
        load.note(self)?;
        self.rest(self.phase)?;
        let PhaseLoad { clients, mut moved, .. } = load;
        self.used.1 += clients.short() + u64::from(AT_ONCE);
        let counts = clients.end(&mut self.run, self.interrupt)?;
        let changes = self.bed.router.changes_since(since);
        let asked = changes.iter().find(|change| change.asked && change.at_us >= begun_us);
        let changed_us = asked.map(|change| change.at_us);
        let changes_us = changes.iter().map(|change| change.at_us).collect();
        let predicted = match asked {
            // The prediction is for this change alone.
            Some(change) if changes.iter().all(|change| change.asked) => {
                let file = self.run.folder().join(format!("{}.yaml", self.bed.network.nodes[0].name));
                Some(predict(&file, self.mode, self.bed.router.ecmp, change, &owners)?)
            }
            Some(_) | None => None,
        };
        let mut unasked = self.unasked(&changes, begun_us, said);
        for (change, others) in self.moved_by(&changes, owners)? {
            if !change.asked {
                unasked.moved.extend(&others);
            }
            moved.extend(others);
        }
        Ok(FleetSeen {
            counts,
            event_us: (begun_us, done_us),
            changes_us,
            changed_us,
            moved,
            predicted,
            unasked,
        })
    }

    /// Describes the changes that the lab did not cause; the part of the route daemon's log before `said` is
    /// older than the phase.
    fn unasked(&self, changes: &[RouteChange], begun_us: u64, said: usize) -> Unasked {
        let mut unasked = Unasked::default();
        for change in changes.iter().filter(|change| !change.asked) {
            let after = (change.at_us as f64 - begun_us as f64) / 1e6;
            let nodes = &self.bed.network.nodes;
            let mut words = Vec::new();
            for node in change.left().map(|node| &nodes[node]) {
                let why = self.bed.router.daemon.why_left(&self.run, node, said);
                words.push(format!(
                    "{} left ({})",
                    node.name,
                    why.as_deref().unwrap_or("it withdrew the route")
                ));
                if why.is_none() {
                    unasked.withdrawn.push(node.name);
                }
            }
            words.extend(change.joined().map(|node| format!("{} joined", nodes[node].name)));
            if words.is_empty() {
                words.push("the next hops had another order".to_owned());
            }
            unasked.changes.push(format!("{} at {after:.2} s", words.join(" and ")));
        }
        unasked
    }

    /// Returns which connections each change has moved, given the nodes that they had before.
    fn moved_by<'c>(
        &self,
        changes: &'c [RouteChange],
        mut owners: BTreeMap<u16, usize>,
    ) -> Result<Vec<(&'c RouteChange, BTreeSet<u16>)>> {
        let mut moved = Vec::new();
        let (Some(first), Some(last)) =
            (owners.first_key_value().map(|(port, _)| *port), owners.last_key_value().map(|(port, _)| *port))
        else {
            return Ok(moved);
        };
        for change in changes.iter().filter(|change| !change.to.is_empty()) {
            let after = match self.bed.router.ecmp {
                Ecmp::Plain => self.bed.router.owners_with(&self.bed.network, &change.to, first..last + 1)?,
                // The buckets of a node that leaves may go to any other node. A node that joins gets only
                // idle buckets.
                Ecmp::Resilient => {
                    let stays = |(_, node): &(&u16, &usize)| change.to.contains(node);
                    owners.iter().filter(stays).map(|(port, node)| (*port, *node)).collect()
                }
            };
            let others = owners.iter().filter(|(port, node)| after.get(port) != Some(node));
            moved.push((change, others.map(|(port, _)| *port).collect()));
            owners = after;
        }
        Ok(moved)
    }

    /// Waits.
    fn rest(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.interrupt.sleep(left.min(LOOK))?;
        }
    }

    /// Judges a phase in which nothing but a connection's node changes.
    fn judge(&self, seen: FleetSeen) -> FleetPhase {
        judge(self.mode.state(), seen, RingsAfter::Stay, |_| false)
    }

    /// Judges a phase in which buckets of back ends change.
    fn judge_buckets(&self, seen: FleetSeen, ring: RingChange) -> FleetPhase {
        judge(self.mode.state(), seen, RingsAfter::Change(ring.moved), |_| false)
    }
}

/// Judges a phase. A broken connection or a failed request for which `excused` holds is not a fault.
fn judge(
    state: NodeState,
    seen: FleetSeen,
    buckets: RingsAfter,
    excused: impl Fn(&ClientFault) -> bool,
) -> FleetPhase {
    let detour_ms = detour(&seen).map(|us| us as f64 / 1e3);
    let FleetSeen { counts, moved, predicted, mut unasked, changes_us, .. } = seen;
    let (its, others): (Vec<_>, Vec<_>) = counts.broken.iter().cloned().partition(&excused);
    let failed: Vec<_> = counts.failed.iter().filter(|fault| !excused(fault)).cloned().collect();
    let by_unasked = others.iter().filter(|fault| unasked.moved.contains(&fault.port));
    unasked.broken = by_unasked.count() as u64;
    // How many of the connections whose node has changed must break, and how many may. A request that is in
    // flight during the change may fail.
    let moves = moved.len() as u64;
    let in_flight = u64::from(AT_ONCE) * u64::from(moves > 0);
    let rehashed = match buckets {
        RingsAfter::Stay => 0,
        RingsAfter::Change(share) => at_most(share, unasked.moved.len() as u64),
    };
    let was_in_flight =
        |fault: &&ClientFault| changes_us.iter().any(|at| (fault.sent_us..=fault.failed_us).contains(at));
    let (least, most, may_fail) = match state {
        NodeState::Nothing => (0, rehashed, 0),
        NodeState::Answers => (0, rehashed + others.iter().filter(was_in_flight).count() as u64, in_flight),
        NodeState::Translation => (moves, moves, in_flight),
    };
    let expected = its.len() as u64 + most;
    let mut phase =
        FleetPhase::with(FleetJudged { counts, expected, predicted, moved: moves, detour_ms, unasked });
    let (broken, margin) = (others.len() as u64, (most as f64 * TOLERANCE).ceil() as u64);
    let reasons: BTreeSet<&str> = others.iter().chain(&failed).map(|fault| fault.reason.as_str()).collect();
    let why = reasons.into_iter().collect::<Vec<_>>().join(", ");
    phase.must(
        (least.saturating_sub(margin)..=most + margin).contains(&broken),
        format!("{broken} connections broke ({why}), {least} to {most} were expected to"),
    );
    let strangers = others.iter().filter(|fault| !moved.contains(&fault.port)).count();
    phase.must(strangers == 0, format!("{strangers} connections broke ({why}) whose node has not changed"));
    // Those in flight, which `weir plan --fleet` does not count, are among the `most` of other modes.
    if let Some(predicted) = predicted.filter(|_| state == NodeState::Translation) {
        phase.must(
            predicted.agrees(broken),
            format!(
                "`weir plan --fleet` predicts that {} connections break, with a margin of {}, and {broken} \
                 did",
                predicted.broken, predicted.margin
            ),
        );
    }
    for node in phase.unasked.withdrawn.clone() {
        phase.must(false, format!("{node} withdrew its route, and was not asked to"));
    }
    let failed = failed.len() as u64;
    phase.must(failed <= may_fail, format!("{failed} requests failed ({why})"));
    let (requests, short) = (phase.counts.requests, phase.counts.short);
    phase.needs(short > 0 && requests > short, || "nothing was asked".into());
    phase
}

/// The clients of a phase, and which nodes their long-lived connections have had.
struct PhaseLoad {
    clients: FleetClients,
    /// The node that each connection had last.
    owners: BTreeMap<u16, usize>,
    /// The connections whose node has changed.
    moved: BTreeSet<u16>,
}

impl PhaseLoad {
    /// Notes which node each connection has now.
    fn note(&mut self, stage: &FleetStage<'_>) -> Result<()> {
        let now = stage.bed.router.owners(&stage.bed.network, self.clients.ports.clone())?;
        let changed =
            |(port, node): &(&u16, &usize)| self.owners.get(port).is_some_and(|before| before != *node);
        self.moved.extend(now.iter().filter(changed).map(|(port, _)| *port));
        self.owners = now;
        Ok(())
    }

    /// Returns whether clients have made as many short connections as wanted.
    fn is_enough(&self, stage: &FleetStage<'_>) -> bool {
        self.clients.short() >= stage.requests
    }
}

/// Returns the time from the event to the first answer to a request that was sent on another route, in
/// microseconds. A reset is an answer, too.
fn detour(seen: &FleetSeen) -> Option<u64> {
    let FleetSeen { counts, event_us: (begun, _), changed_us, moved, .. } = seen;
    let broken = counts.broken.iter().map(|fault| (fault.sent_us, fault.failed_us, fault.port));
    let all = counts.answers.iter().copied().chain(broken);
    let on_another = |(sent, _, port): &(u64, u64, u16)| Some(*sent) >= *changed_us && moved.contains(port);
    changed_us.as_ref()?;
    let first = all.filter(on_another).map(|(_, answered, _)| answered).min()?;
    Some(first.saturating_sub(*begun))
}

/// A phase without events.
fn steady(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|_, _| Ok(()))?;
    Ok(stage.judge(seen))
}

/// weir is killed on a node (SIGKILL).
fn node_killed(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|stage, _| stage.bed.kill(&mut stage.run, KILLED, stage.interrupt))?;
    Ok(stage.judge(seen).with_moved())
}

/// A node without flows joins: the one that was killed.
fn node_added(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|stage, _| stage.bed.revive(&mut stage.run, KILLED, stage.interrupt))?;
    Ok(stage.judge(seen))
}

/// A node is drained, and then put back into service.
fn node_drained(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|stage, load| {
        loop {
            stage.bed.drain(&stage.run, DRAINED, stage.interrupt)?;
            load.note(stage)?;
            stage.rest(stage.phase)?;
            stage.bed.undrain(&stage.run, DRAINED, stage.interrupt)?;
            load.note(stage)?;
            if load.is_enough(stage) {
                return Ok(());
            }
            stage.rest(stage.phase)?;
        }
    })?;
    Ok(stage.judge(seen).with_moved())
}

/// `weir upgrade` on a node.
fn node_upgraded(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|stage, load| {
        loop {
            stage.bed.upgrade(&mut stage.run, UPGRADED)?;
            if load.is_enough(stage) {
                return Ok(());
            }
            stage.rest(stage.phase)?;
        }
    })?;
    Ok(stage.judge(seen))
}

/// The server of a back end dies: its connections break, and no others. Once all nodes say that it is down,
/// they send it no request. It returns after the phase.
fn back_end_dies(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    const DEAD: usize = 1;
    let ring = stage.bed.ring_change(&stage.run, |services| services.without = Some(DEAD))?;
    let (mut known_us, mut before) = (0, 0);
    let seen = stage.during(|stage, _| {
        stage.bed.kill_server(&mut stage.run, DEAD, stage.interrupt)?;
        stage.rest(stage.interrupt.limit(APPLIED))?;
        known_us = now_us();
        before = stage.bed.network.requests_at(DEAD)?;
        if stage.inject == Some(FleetInjection::LateRequests) {
            stage.bed.network.bypass_nodes(DEAD)?;
        }
        Ok(())
    })?;
    let late = stage.bed.network.requests_at(DEAD)? - before;
    ensure!(before > 0, "the requests at a back end are not counted");
    let name = stage.bed.network.back_ends[DEAD].name;
    let its = seen.counts.broken.iter().filter(|fault| fault.back_end == name).count();
    let rings = RingsAfter::Change(ring.moved - ring.least);
    let mut phase = judge(stage.mode.state(), seen, rings, |fault| match fault.back_end.as_str() {
        "" => fault.sent_us <= known_us,
        of => of == name,
    });
    phase.needs(its > 0, || format!("{name} had no connections"));
    phase.must(late == 0, format!("{late} requests reached {name} after all nodes said that it was down"));
    stage.bed.revive_server(&mut stage.run, DEAD, stage.interrupt)?;
    Ok(phase)
}

/// A back end is drained on all nodes: it keeps its connections. It is enabled after the phase.
fn back_end_drained(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    const DRAINED: usize = 2;
    let ring = stage.bed.ring_change(&stage.run, |services| services.without = Some(DRAINED))?;
    let seen = stage.during(|stage, _| {
        stage.bed.order("drain", DRAINED)?;
        stage.bed.wait_for_health(DRAINED, "draining", stage.interrupt)
    })?;
    stage.bed.order("enable", DRAINED)?;
    stage.bed.wait_for_health(DRAINED, "up", stage.interrupt)?;
    Ok(stage.judge_buckets(seen, ring))
}

/// The last back end is added to all nodes, one after another.
fn back_end_added(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let last = stage.bed.network.back_ends.len() - 1;
    let add = |services: &mut Services| services.back_ends = last + 1;
    let ring = stage.bed.ring_change(&stage.run, add)?;
    let seen = stage.during(|stage, _| {
        stage.bed.reload(add)?;
        stage.bed.wait_for_health(last, "up", stage.interrupt)
    })?;
    Ok(stage.judge_buckets(seen, ring))
}

/// The link of a node is cut and comes back.
fn link_flaps(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|stage, load| {
        stage.bed.flap_link(&stage.run, DRAINED, stage.interrupt)?;
        load.note(stage)?;
        stage.bed.router.wait_for(&stage.bed.all(), &stage.run, stage.interrupt)
    })?;
    Ok(stage.judge(seen).with_moved())
}

/// BIRD restarts on a node.
fn bird_restarts(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|stage, load| {
        stage.bed.stop_bird(&mut stage.run, UPGRADED, stage.interrupt)?;
        load.note(stage)?;
        stage.bed.start_bird(&mut stage.run, UPGRADED, stage.interrupt)
    })?;
    Ok(stage.judge(seen).with_moved())
}

/// All nodes get another configuration, one after another: another weight, and another service.
fn reload_in_turn(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let change = |services: &mut Services| {
        services.first_weight = 2;
        services.second = true;
    };
    let ring = stage.bed.ring_change(&stage.run, change)?;
    let seen = stage.during(|stage, _| stage.bed.reload(change))?;
    Ok(stage.judge_buckets(seen, ring))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(port: u16, back_end: &str, sent_us: u64) -> ClientFault {
        let reason = "reset".to_owned();
        ClientFault { port, back_end: back_end.into(), sent_us, failed_us: sent_us + 1, reason }
    }

    /// The lab has moved the connections from ports 1 and 2 to another node at 100 us, as the plan predicts;
    /// another change has moved the one from port 3. The connections from `ports` break.
    fn judged(state: NodeState, buckets: RingsAfter, ports: &[u16], sent_us: u64) -> Vec<String> {
        let counts = ClientCounts {
            requests: 20,
            short: 10,
            broken: ports.iter().map(|port| fault(*port, "b1", sent_us)).collect(),
            ..ClientCounts::default()
        };
        let seen = FleetSeen {
            counts,
            event_us: (90, 110),
            changes_us: vec![100],
            changed_us: Some(100),
            moved: [1, 2, 3].into(),
            predicted: None,
            unasked: Unasked { moved: [3].into(), ..Unasked::default() },
        };
        judge(state, seen, buckets, |_| false).faults().to_vec()
    }

    #[test]
    fn a_connection_may_break_only_if_its_node_lacks_what_it_needs() {
        use NodeState::{Answers, Nothing, Translation};
        use RingsAfter::{Change, Stay};
        const ALL: RingsAfter = Change(1.0);
        let none: [&str; 0] = [];
        assert_eq!(judged(Nothing, Stay, &[], 0), none);
        assert_eq!(
            judged(Nothing, Stay, &[3], 200),
            ["1 connections broke (reset), 0 to 0 were expected to"]
        );
        // Another node does not know the flow, and the bucket may have a different back end by now.
        assert_eq!(judged(Nothing, ALL, &[3], 200), none);
        assert_eq!(judged(Nothing, Change(0.0), &[3], 200).len(), 1);
        let fault = "1 connections broke (reset) whose node has not changed";
        assert_eq!(judged(Nothing, ALL, &[4], 200), [fault]);
        // Answers in flight when the node changes are lost; later ones are not.
        assert_eq!(judged(Answers, Stay, &[1], 99), none);
        assert_eq!(judged(Answers, Stay, &[1], 101).len(), 1);
        assert_eq!(judged(Translation, Stay, &[1, 2, 3], 200), none);
        assert_eq!(
            judged(Translation, Stay, &[1], 200),
            ["1 connections broke (reset), 3 to 3 were expected to"]
        );
    }
}
