//! What happens to nodes and back ends, phase by phase.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::bed::FleetBed;
use super::clients::{AT_ONCE, ClientCounts, ClientFault, ClientLoad, FleetClients, now_us};
use super::configuration::{FleetMode, NodeState};
use crate::Interrupt;
use crate::report::grouped;
use crate::screen::Screen;
use weir_bed::Run;

/// How often to check whether a signal has ended the lab.
const LOOK: Duration = Duration::from_millis(50);
/// The first source port of long-lived connections, and the last that may be used.
const PORTS: std::ops::Range<u16> = 10_000..65_000;
/// How long it takes from the result of a check, which nodes report, until workers no longer send packets to
/// a back end.
const APPLIED: Duration = Duration::from_millis(250);
/// How many broken connections may be more or less than expected, as a share.
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
}

/// What was observed in a phase, judged.
#[derive(Default)]
pub struct FleetJudged {
    counts: ClientCounts,
    /// The most connections that may break: those whose node changed, where nodes have state, and those of a
    /// back end that died.
    expected: u64,
    /// Connections whose node changed.
    moved: u64,
    /// Time from the event to the first packet on another route, in milliseconds.
    detour_ms: Option<f64>,
}

/// The result of a phase.
pub type FleetPhase = crate::phase::Phase<FleetJudged>;

/// What was observed in a phase.
struct FleetSeen {
    counts: ClientCounts,
    /// When the event began and was over.
    event_us: (u64, u64),
    /// When the router's next hops changed first.
    changed_us: Option<u64>,
    /// The connections whose node changed.
    moved: BTreeSet<u16>,
}

type Perform = fn(&mut FleetStage<'_>) -> Result<FleetPhase>;

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

/// The nodes, from 0, to which something happens.
const KILLED: usize = 1;
const DRAINED: usize = 2;
const UPGRADED: usize = 0;

impl FleetPhase {
    /// The result as a line of text.
    pub fn text(&self, name: &str) -> String {
        let word = if self.is_ok() { "ok" } else { "FAILED" };
        let detour = self.detour_ms.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
        let FleetJudged { counts, expected, moved, .. } = &**self;
        format!(
            "  {name:<18}{word:<8}{:>10}{:>10}{:>10}{expected:>10}{moved:>10}{detour:>11}  {}",
            grouped(counts.requests),
            counts.failures,
            counts.broken.len(),
            self.faults().join("; ")
        )
        .trim_end()
        .to_owned()
    }

    /// The header of these lines.
    pub fn header() -> String {
        format!(
            "  {:<18}{:<8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>11}",
            "phase", "", "requests", "failures", "broken", "expected", "moved", "detour, ms"
        )
    }

    /// The result as JSON.
    pub fn json(&self, name: &str, mode: FleetMode) -> Value {
        json!({
            "name": name, "mode": mode.word(), "ok": self.is_ok(), "requests": self.counts.requests,
            "failures": self.counts.failures, "broken": self.counts.broken.len(),
            "detour_ms": self.detour_ms,
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
    /// Performs `event`, and returns what clients counted from before it until some time after it. The event
    /// notes which node each connection has, as often as that changes and comes back.
    fn during(&mut self, event: impl FnOnce(&mut Self, &mut PhaseLoad) -> Result<()>) -> Result<FleetSeen> {
        let first = if PORTS.end - self.used.0 < self.load.connections { PORTS.start } else { self.used.0 };
        let start = (first, self.used.1);
        let network = &self.bed.network;
        let clients = FleetClients::start(&mut self.run, network, self.load, start, self.interrupt)?;
        self.used.0 = first + self.load.connections;
        let mut load = PhaseLoad { clients, owners: BTreeMap::new(), moved: BTreeSet::new() };
        load.note(self)?;
        self.rest(self.phase / 4)?;
        let begun_us = now_us();
        event(self, &mut load)?;
        let done_us = now_us();
        load.note(self)?;
        self.rest(self.phase)?;
        let PhaseLoad { clients, moved, .. } = load;
        self.used.1 += clients.short() + u64::from(AT_ONCE);
        let counts = clients.end(&mut self.run, self.interrupt)?;
        let changed_us = self.bed.router.changed_since(begun_us);
        Ok(FleetSeen { counts, event_us: (begun_us, done_us), changed_us, moved })
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
        self.judge_but(seen, |_| false)
    }

    /// Judges a phase. A broken connection or a failed request for which `excused` holds is no fault.
    fn judge_but(&self, seen: FleetSeen, excused: impl Fn(&ClientFault) -> bool) -> FleetPhase {
        let detour_ms = detour(&seen).map(|us| us as f64 / 1e3);
        let FleetSeen { counts, moved, .. } = seen;
        let (its, others): (Vec<_>, Vec<_>) = counts.broken.iter().cloned().partition(&excused);
        let failed: Vec<_> = counts.failed.iter().filter(|fault| !excused(fault)).cloned().collect();
        // How many of the connections whose node has changed must break and may break. A request that is in
        // flight meanwhile may fail.
        let moves = moved.len() as u64;
        let in_flight = u64::from(AT_ONCE) * u64::from(moves > 0);
        let (least, most, may_fail) = match self.mode.state() {
            NodeState::Nothing => (0, 0, 0),
            NodeState::Answers => (0, moves, in_flight),
            NodeState::Translation => (moves, moves, in_flight),
        };
        let expected = its.len() as u64 + most;
        let judged = FleetJudged { counts, expected, moved: moves, detour_ms };
        let mut phase = FleetPhase::with(judged);
        let (broken, margin) = (others.len() as u64, (most as f64 * TOLERANCE).ceil() as u64);
        let reasons: BTreeSet<&str> =
            others.iter().chain(&failed).map(|fault| fault.reason.as_str()).collect();
        let why = reasons.into_iter().collect::<Vec<_>>().join(", ");
        phase.must(
            (least.saturating_sub(margin)..=most + margin).contains(&broken),
            format!("{broken} connections broke ({why}), {least} to {most} were expected to"),
        );
        let strangers = others.iter().filter(|fault| !moved.contains(&fault.port)).count();
        phase.must(
            strangers == 0,
            format!("{strangers} connections broke ({why}) whose node has not changed"),
        );
        let failed = failed.len() as u64;
        phase.must(failed <= may_fail, format!("{failed} requests failed ({why})"));
        let (requests, short) = (phase.counts.requests, phase.counts.short);
        phase.needs(short > 0 && requests > short, || "nothing was asked".into());
        phase
    }
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
    let FleetSeen { counts, event_us: (begun, _), changed_us, moved } = seen;
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

/// A node without flows joins.
fn node_added(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let seen = stage.during(|stage, _| stage.bed.revive(&mut stage.run, KILLED, stage.interrupt))?;
    Ok(stage.judge(seen))
}

/// A node is drained, and used again.
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

/// The server of a back end dies: its connections break, and no others. It returns after the phase.
fn back_end_dies(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    const DEAD: usize = 1;
    let seen = stage.during(|stage, _| stage.bed.kill_server(&mut stage.run, DEAD, stage.interrupt))?;
    let name = stage.bed.network.back_ends[DEAD].name;
    let its = seen.counts.broken.iter().filter(|fault| fault.back_end == name).count();
    let known_us = seen.event_us.1;
    let applied_us = stage.interrupt.limit(APPLIED).as_micros() as u64;
    let mut phase = stage.judge_but(seen, |fault| match fault.back_end.as_str() {
        "" => fault.sent_us <= known_us + applied_us,
        of => of == name,
    });
    phase.needs(its > 0, || format!("{name} had no connections"));
    stage.bed.revive_server(&mut stage.run, DEAD, stage.interrupt)?;
    Ok(phase)
}

/// A back end is drained on all nodes: it keeps its connections. It is enabled after the phase.
fn back_end_drained(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    const DRAINED: usize = 2;
    let seen = stage.during(|stage, _| {
        stage.bed.order("drain", DRAINED)?;
        stage.bed.wait_for_health(DRAINED, "draining", stage.interrupt)
    })?;
    stage.bed.order("enable", DRAINED)?;
    stage.bed.wait_for_health(DRAINED, "up", stage.interrupt)?;
    Ok(stage.judge(seen))
}

/// The last back end is added to all nodes, one after another.
fn back_end_added(stage: &mut FleetStage<'_>) -> Result<FleetPhase> {
    let last = stage.bed.network.back_ends.len() - 1;
    let seen = stage.during(|stage, _| {
        stage.bed.reload(|services| services.back_ends = last + 1)?;
        stage.bed.wait_for_health(last, "up", stage.interrupt)
    })?;
    Ok(stage.judge(seen))
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
    let seen = stage.during(|stage, _| {
        stage.bed.reload(|services| {
            services.first_weight = 2;
            services.second = true;
        })
    })?;
    Ok(stage.judge(seen))
}
