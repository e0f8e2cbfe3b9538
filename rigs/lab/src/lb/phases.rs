//! The events that back ends and weir go through, phase by phase.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::bed::{Death, LbBed, PATIENCE};
use super::clients::{PhaseClients, Tally};
use super::questions::{ByName, FlowCounts, UDP_ANSWER};
use crate::Interrupt;
use crate::premise::premise;
use crate::report::grouped;
use crate::screen::Screen;
use weir_bed::Run;

/// The default weights of all back ends, and an alternative.
const WEIGHTS: [[u32; 4]; 2] = [[1, 1, 1, 1], [3, 1, 2, 1]];
/// How many flows begin after the event of a phase, at least: with fewer, a back end might get none of them
/// by chance. For a given one of four equal back ends, the probability that it gets none of 60 is one in
/// thirty million.
const NEW_MIN: u64 = 60;
/// How often to check whether the live line is due.
const LOOK: Duration = Duration::from_millis(50);
/// Clients over TCP: lost segments are retransmitted, so no request may fail unless a server has died.
const TCP: [&str; 2] = ["wrk", "curl"];

/// The stage on which phases are performed.
pub struct Stage<'a> {
    pub bed: LbBed,
    pub run: Run,
    pub interrupt: &'a Interrupt,
    pub screen: &'a mut Screen,
    /// How long a phase continues after its event.
    pub phase: Duration,
    /// Number of times the configuration is replaced in the reload phase.
    pub reloads: u32,
    /// The name of the current phase.
    pub name: String,
}

/// The counts of a phase, judged.
#[derive(Default)]
pub struct Judged {
    counts: FlowCounts,
    /// The counts of real clients.
    clients: Tally,
    /// Connections that should not have broken, and flows over UDP that should not have moved.
    broken: u64,
    /// Share of the persistent flows that got another back end, and the share that had to get one.
    moved_share: f64,
    minimum_share: f64,
    /// Time from the death of a server to its detection, in milliseconds.
    detect_ms: Option<f64>,
}

/// The result of a phase.
pub type PhaseResult = crate::phase::Phase<Judged>;

/// What was observed in a phase.
struct PhaseObservation {
    counts: FlowCounts,
    clients: Tally,
}

/// The flows that may break or move.
enum Excused<'a> {
    Nobody,
    /// The flows of a back end that dies: its name, and how many flows it had.
    Dead(&'a str, u64),
    Everybody,
}

type Perform = fn(&mut Stage<'_>) -> Result<PhaseResult>;

/// All phases in order: each starts with the network as the previous one left it.
pub const ALL: [(&str, Perform); 11] = [
    ("steady", steady),
    ("add_back_end", add),
    ("drain", drain),
    ("kill_back_end", kill),
    ("back_end_returns", returns),
    ("mac_moves", mac_moves),
    ("weights", weights),
    ("reloads", reloads),
    ("restart", |stage| restart(stage, Death::Stopped)),
    ("takeover", takeover),
    ("kill_weir", |stage| restart(stage, Death::Killed)),
];

impl PhaseResult {
    /// Judges the counts of persistent flows.
    fn of(flows: u64, seen: PhaseObservation, excused: &Excused<'_>) -> PhaseResult {
        let PhaseObservation { counts, clients } = seen;
        let (dead, had) = match excused {
            Excused::Nobody => (None, 0),
            Excused::Dead(name, had) => (Some(*name), *had),
            Excused::Everybody => (None, flows),
        };
        let others = |by: &ByName| -> u64 {
            by.iter().filter(|(name, _)| Some(name.as_str()) != dead).map(|(_, count)| count).sum()
        };
        let broken = match excused {
            Excused::Everybody => 0,
            _ => others(&counts.broken) + others(&counts.moved),
        };
        // A connection of the dead back end counts as moved when it breaks.
        let moved: u64 = counts.moved.values().chain(counts.broken.values()).sum();
        let share = |count: u64| count as f64 / flows as f64;
        let (moved_share, minimum_share) = (share(moved), share(had));
        let judged = Judged { counts, clients, broken, moved_share, minimum_share, detect_ms: None };
        let mut phase = PhaseResult::with(judged);
        phase.must(broken == 0, format!("{broken} flows broke or moved"));
        let held: u64 = phase.counts.held.values().sum();
        phase.needs(phase.counts.requests > 0, || "nothing was asked".into());
        phase.needs(held > 0, || "there are no persistent flows, so none could move or break".into());
        phase
    }

    /// Judges the counts of clients that made one pass of requests.
    pub fn of_clients(clients: Tally, back_ends: &[&str]) -> PhaseResult {
        let counts = FlowCounts { began: clients.answered.clone(), ..FlowCounts::default() };
        let phase = PhaseResult::with(Judged { counts, clients, ..Judged::default() });
        back_ends.iter().fold(phase.without_failures(), |phase, name| phase.with_new_at(name))
    }

    /// Notes a fault if requests were not answered.
    fn without_failures(mut self) -> PhaseResult {
        let failures = self.counts.failures;
        self.must(failures == 0, format!("{failures} requests of flows failed"));
        let programs = self.clients.programs.clone();
        for (program, count) in programs {
            self.must(count.failures == 0, format!("{} requests of {program} failed", count.failures));
            self.needs(count.requests > 0, || format!("{program} asked nothing"));
        }
        self
    }

    /// Notes a fault if a request over TCP was never answered.
    fn without_tcp_failures(mut self) -> PhaseResult {
        let count = self.clients.of(&TCP);
        self.must(count.failures == 0, format!("{} requests over TCP failed", count.failures));
        self.needs(count.requests > 0, || "nothing was requested over TCP".into());
        self
    }

    /// Notes a fault unless a back end got new flows.
    fn with_new_at(mut self, name: &str) -> PhaseResult {
        let new = self.new_at(name) > 0;
        self.must(new, format!("no new flows at {name}"));
        self
    }

    fn new_at(&self, name: &str) -> u64 {
        let of = |by: &ByName| by.get(name).copied().unwrap_or_default();
        of(&self.counts.began) + of(&self.clients.answered)
    }

    fn sums(&self) -> (u64, u64) {
        let clients = self.clients.programs.values();
        clients.fold((self.counts.requests, self.counts.failures), |(requests, failures), count| {
            (requests + count.requests, failures + count.failures)
        })
    }

    /// The result as a line of text.
    pub fn text(&self, name: &str) -> String {
        let word = if self.is_ok() { "ok" } else { "FAILED" };
        let (requests, failures) = self.sums();
        let detected = self.detect_ms.map_or(String::new(), |ms| format!("  detected after {ms:.0} ms"));
        let minimum = match self.minimum_share {
            0.0 => String::new(),
            share => format!(" of {:.1} %", 100.0 * share),
        };
        format!(
            "  {name:<18}{word:<7}requests {requests:>6}  failures {failures:>4}  broken {}  \
             moved {:.1} %{minimum}{detected}  {}",
            self.broken,
            100.0 * self.moved_share,
            self.faults().join("; ")
        )
    }

    /// The result as JSON.
    pub fn json(&self, name: &str) -> Value {
        let (requests, failures) = self.sums();
        let flows = json!({ "requests": self.counts.requests, "failures": self.counts.failures });
        let mut clients = self.clients.json();
        clients["flows"] = flows;
        json!({
            "name": name, "ok": self.is_ok(), "requests": requests, "failures": failures,
            "broken": self.broken, "moved_share": self.moved_share, "minimum_share": self.minimum_share,
            "detect_ms": self.detect_ms, "clients": clients, "new": self.counts.began,
            "faults": self.faults(),
        })
    }
}

impl Stage<'_> {
    /// Performs `event`, and returns what clients counted from before it until some time after it.
    fn during(&mut self, event: impl FnOnce(&mut Self) -> Result<()>) -> Result<PhaseObservation> {
        let before = self.bed.settled(self.interrupt)?;
        let load = PhaseClients::start(&mut self.run, &self.bed.network, self.interrupt)?;
        self.rest(self.phase / 4)?;
        event(self)?;
        let began = self.began();
        self.rest(self.phase)?;
        // On a busy machine, few flows begin in this time.
        let enough = self.interrupt.wait(PATIENCE, || Ok(self.began() >= began + NEW_MIN))?;
        premise(enough, || format!("only {} flows have begun", self.began().saturating_sub(began)))?;
        let clients = load.end(&mut self.run)?;
        let counts = self.bed.settled(self.interrupt)?.since(&before);
        Ok(PhaseObservation { counts, clients })
    }

    /// Returns how many flows have begun.
    fn began(&self) -> u64 {
        self.bed.counts().began.values().sum()
    }

    /// Waits.
    fn rest(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            if self.screen.is_due() {
                let FlowCounts { requests, failures, held, .. } = self.bed.counts();
                let held: Vec<String> = held.iter().map(|(name, count)| format!("{name} {count}")).collect();
                let (name, held, requests) = (&self.name, held.join(", "), grouped(requests));
                let line = format!("  {name:<18}requests {requests}  failures {failures}  flows: {held}");
                self.screen.live(&[line]);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.interrupt.sleep(left.min(LOOK))?;
        }
    }

    /// Judges an observation in which no flow may break or move.
    fn judge(&self, seen: PhaseObservation) -> PhaseResult {
        PhaseResult::of(self.bed.flows(), seen, &Excused::Nobody)
    }
}

/// A phase without events.
fn steady(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let seen = stage.during(|_| Ok(()))?;
    let phase = stage.judge(seen).without_failures();
    Ok(["b1", "b2", "b3"].iter().fold(phase, |phase, name| phase.with_new_at(name)))
}

/// The last back end is added by a reload: new flows go there, too.
fn add(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let seen = stage.during(|stage| {
        stage.bed.reload(&WEIGHTS[0])?;
        stage.bed.wait_for_health("b4", "up", stage.interrupt)
    })?;
    Ok(stage.judge(seen).without_failures().with_new_at("b4"))
}

/// A back end is drained: it keeps its flows and gets no new ones; then it works again.
fn drain(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    stage.bed.order("drain", "b1", None)?;
    let seen = stage.during(|_| Ok(()))?;
    let mut phase = stage.judge(seen).without_failures().with_new_at("b2");
    let new = phase.new_at("b1");
    phase.must(new == 0, format!("{new} new flows on drained b1"));
    let held = phase.counts.held.get("b1").copied().unwrap_or_default();
    phase.needs(held > 0, || "b1 has no flows to keep".into());
    stage.bed.order("enable", "b1", None)?;
    stage.bed.wait_for_health("b1", "up", stage.interrupt)?;
    Ok(phase)
}

/// The servers of a back end die: its flows go elsewhere, the others stay.
fn kill(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let mut detect_ms = None;
    let had = stage.bed.counts().held.get("b2").copied().unwrap_or_default();
    let seen = stage.during(|stage| {
        detect_ms = Some(stage.bed.kill(&mut stage.run, 1, stage.interrupt)?);
        stage.bed.wait_until_left("b2", stage.interrupt)?;
        // Lost questions count when they time out; wait so that this does not happen in the next phase.
        stage.rest(stage.interrupt.limit(UDP_ANSWER))
    })?;
    let mut phase = PhaseResult::of(stage.bed.flows(), seen, &Excused::Dead("b2", had));
    phase.detect_ms = detect_ms;
    phase.needs(had > 0, || "b2 had no flows".into());
    let (moved, least) = (phase.moved_share, phase.minimum_share);
    phase.must(moved <= least, format!("more flows moved ({moved:.3}) than b2 had ({least:.3})"));
    let after = stage.during(|_| Ok(()))?;
    let after = stage.judge(after).without_failures();
    after.faults().iter().for_each(|fault| phase.must(false, format!("after b2 was out: {fault}")));
    Ok(phase)
}

/// The servers work again: new flows go there, existing ones stay where they are.
fn returns(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let seen = stage.during(|stage| stage.bed.revive(&mut stage.run, 1, stage.interrupt))?;
    Ok(stage.judge(seen).without_failures().with_new_at("b2"))
}

/// A back end gets another MAC address, which the kernel learns: no flow moves.
fn mac_moves(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let seen = stage.during(|stage| {
        stage.bed.network.move_mac()?;
        stage.bed.wait_for_move(stage.interrupt)?;
        // Wait, as for questions lost by a dead back end.
        stage.rest(stage.interrupt.limit(UDP_ANSWER))
    })?;
    // Packets in flight to the previous address are lost: at most one question per flow.
    let (failures, most) = (seen.counts.failures, stage.bed.flows());
    let mut phase = stage.judge(seen).without_tcp_failures().with_new_at("b1");
    phase.must(failures <= most, format!("{failures} requests of flows failed"));
    Ok(phase)
}

/// Weights change at run time.
fn weights(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let seen = stage.during(|stage| {
        stage.bed.order("weight", "b1", Some(5))?;
        stage.bed.order("weight", "b3", Some(0))
    })?;
    Ok(stage.judge(seen).without_failures().with_new_at("b1"))
}

/// Two configurations alternate.
fn reloads(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let seen = stage.during(|stage| {
        // The last reload loads the first of the two.
        for number in (0..stage.reloads as usize).rev() {
            stage.bed.reload(&WEIGHTS[number % WEIGHTS.len()])?;
            stage.rest(stage.phase / stage.reloads)?;
        }
        Ok(())
    })?;
    Ok(stage.judge(seen).without_failures())
}

/// Another weir takes over. Packets that arrive during the handover are dropped, so requests over UDP may
/// fail.
fn takeover(stage: &mut Stage<'_>) -> Result<PhaseResult> {
    let seen = stage.during(|stage| stage.bed.succeed(&mut stage.run, stage.interrupt))?;
    Ok(stage.judge(seen).without_tcp_failures())
}

/// weir exits and restarts without its flows. With the same back ends, flows that started where the buckets
/// say keep their back end. Requests over UDP fail in between.
fn restart(stage: &mut Stage<'_>, by: Death) -> Result<PhaseResult> {
    stage.bed.renew_flows(&mut stage.run, stage.interrupt)?;
    let seen = stage.during(|stage| {
        stage.bed.restart(&mut stage.run, by, stage.interrupt)?;
        // Connections that were waiting send again.
        stage.bed.settled(stage.interrupt).map(drop)
    })?;
    if stage.bed.mode().outlives_its_flows() {
        return Ok(stage.judge(seen).without_tcp_failures());
    }
    Ok(PhaseResult::of(stage.bed.flows(), seen, &Excused::Everybody))
}
