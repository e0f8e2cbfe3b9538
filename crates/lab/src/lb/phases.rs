//! What happens to back ends and to weir, phase by phase.

use anyhow::Result;
use serde_json::{Value, json};

use super::bed::Bed;
use super::questions::{ByName, Counts};
use crate::Interrupt;
use crate::run::Run;

/// Reloads in the phase of reloads.
const RELOADS: u32 = 20;
/// The weights of all back ends, and others.
const WEIGHTS: [[u32; 3]; 2] = [[1, 1, 1], [3, 1, 2]];

/// What came out of a phase.
pub struct Phase {
    counts: Counts,
    /// Connections that should not have broken, and flows over UDP that should not have moved.
    broken: u64,
    /// Flows that got another back end, as a share of those that stay.
    moved_share: f64,
    /// From the death of a server until it was known, in milliseconds.
    detect_ms: Option<f64>,
    /// What was not as it must be.
    faults: Vec<String>,
}

type Perform = fn(&mut Bed, &mut Run, &Interrupt) -> Result<Phase>;

/// All phases, in their order: each begins with the network as the one before leaves it.
pub const ALL: [(&str, Perform); 9] = [
    ("steady", steady),
    ("add_back_end", add),
    ("drain", drain),
    ("kill_back_end", kill),
    ("back_end_returns", returns),
    ("mac_moves", mac_moves),
    ("weights", weights),
    ("reloads", reloads),
    ("takeover", takeover),
];

impl Phase {
    /// Judges what was counted: only flows of `dead` may break or move.
    fn of(bed: &Bed, counts: Counts, dead: Option<&str>) -> Phase {
        let others = |by: &ByName| -> u64 {
            by.iter().filter(|(name, _)| Some(name.as_str()) != dead).map(|(_, count)| count).sum()
        };
        let broken = others(&counts.broken) + others(&counts.moved);
        // A connection of the dead back end moves by breaking.
        let moved: u64 = counts.moved.values().chain(counts.broken.values()).sum();
        let moved_share = moved as f64 / bed.flows as f64;
        let mut phase = Phase { counts, broken, moved_share, detect_ms: None, faults: Vec::new() };
        phase.must(broken == 0, format!("{broken} flows broke or moved"));
        phase.must(phase.counts.requests > 0, "nothing was asked");
        phase
    }

    /// Notes a fault unless it is as it must be.
    fn must(&mut self, so: bool, fault: impl Into<String>) {
        if !so {
            self.faults.push(fault.into());
        }
    }

    /// Notes a fault if requests were not answered.
    fn without_failures(mut self) -> Phase {
        let failures = self.counts.failures;
        self.must(failures == 0, format!("{failures} requests failed"));
        self
    }

    /// Notes a fault unless new flows went to a back end.
    fn with_new_at(mut self, name: &str) -> Phase {
        let new = self.counts.began.get(name).is_some_and(|new| *new > 0);
        self.must(new, format!("no new flows at {name}"));
        self
    }

    /// Whether everything was as it must be.
    pub fn is_ok(&self) -> bool {
        self.faults.is_empty()
    }

    /// A line for a person.
    pub fn text(&self, name: &str) -> String {
        let word = if self.is_ok() { "ok" } else { "FAILED" };
        let Phase { counts: Counts { requests, failures, .. }, broken, moved_share, faults, .. } = self;
        let detected = self.detect_ms.map_or(String::new(), |ms| format!("  detected after {ms:.0} ms"));
        format!(
            "  {name:<18}{word:<7}requests {requests:>6}  failures {failures:>4}  broken {broken}  \
             moved {:.1} %{detected}  {}",
            100.0 * moved_share,
            faults.join("; ")
        )
    }

    /// The same for a program.
    pub fn json(&self, name: &str) -> Value {
        json!({
            "name": name, "ok": self.is_ok(), "requests": self.counts.requests,
            "failures": self.counts.failures, "broken": self.broken, "moved_share": self.moved_share,
            "detect_ms": self.detect_ms, "new": self.counts.began, "faults": self.faults,
        })
    }
}

/// Returns what clients count from before `event` until some time after it.
fn during(
    bed: &mut Bed,
    run: &mut Run,
    interrupt: &Interrupt,
    event: impl FnOnce(&mut Bed, &mut Run) -> Result<()>,
) -> Result<Counts> {
    let before = bed.settled(interrupt)?;
    event(bed, run)?;
    interrupt.sleep(bed.phase)?;
    Ok(bed.settled(interrupt)?.since(&before))
}

/// Nothing happens.
fn steady(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let counts = during(bed, run, interrupt, |_, _| Ok(()))?;
    Ok(Phase::of(bed, counts, None).without_failures().with_new_at("b1").with_new_at("b2"))
}

/// The last back end is added by a reload: new flows go there, too.
fn add(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let counts = during(bed, run, interrupt, |bed, _| bed.reload(&WEIGHTS[0]))?;
    Ok(Phase::of(bed, counts, None).without_failures().with_new_at("b3"))
}

/// A back end is drained: it keeps its flows and gets no new ones; then it works again.
fn drain(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    bed.order("drain", "b1", None)?;
    let counts = during(bed, run, interrupt, |_, _| Ok(()))?;
    let new = counts.began.get("b1").copied().unwrap_or_default();
    let mut phase = Phase::of(bed, counts, None).without_failures().with_new_at("b2");
    phase.must(new == 0, format!("{new} new flows at b1, which is drained"));
    bed.order("enable", "b1", None)?;
    bed.wait_for_health("b1", "up", interrupt)?;
    Ok(phase)
}

/// A server dies: its flows go elsewhere, the others stay.
fn kill(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut detect_ms = None;
    let counts = during(bed, run, interrupt, |bed, run| {
        detect_ms = Some(bed.kill(run, 1, interrupt)?);
        Ok(())
    })?;
    let after = during(bed, run, interrupt, |_, _| Ok(()))?;
    let mut phase = Phase { detect_ms, ..Phase::of(bed, counts, Some("b2")) };
    phase.must(phase.counts.broken.contains_key("b2"), "no connection of b2 broke");
    phase.must(after.failures == 0, format!("{} requests failed after b2 was out", after.failures));
    Ok(phase)
}

/// The server works again: new flows go there, the others stay where they are.
fn returns(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let counts = during(bed, run, interrupt, |bed, run| bed.revive(run, 1, interrupt))?;
    Ok(Phase::of(bed, counts, None).without_failures().with_new_at("b2"))
}

/// A back end gets another MAC address, which the kernel hears of: no flow moves.
fn mac_moves(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let counts = during(bed, run, interrupt, |bed, _| {
        bed.move_mac()?;
        bed.wait_for_move(interrupt)
    })?;
    // What was on its way to the former address is lost, which is at most one question of each flow.
    let most = bed.flows;
    let failures = counts.failures;
    let mut phase = Phase::of(bed, counts, None).with_new_at("b1");
    phase.must(failures <= most, format!("{failures} requests failed"));
    Ok(phase)
}

/// Weights change at run time.
fn weights(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let counts = during(bed, run, interrupt, |bed, _| {
        bed.order("weight", "b1", Some(5))?;
        bed.order("weight", "b3", Some(0))
    })?;
    Ok(Phase::of(bed, counts, None).without_failures().with_new_at("b1"))
}

/// Two configurations alternate.
fn reloads(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let counts = during(bed, run, interrupt, |bed, _| {
        for number in 1..=RELOADS as usize {
            bed.reload(&WEIGHTS[number % WEIGHTS.len()])?;
            interrupt.sleep(bed.phase / RELOADS)?;
        }
        Ok(())
    })?;
    Ok(Phase::of(bed, counts, None).without_failures())
}

/// Another weir takes over. What arrives in the moment in between is dropped, so requests over UDP may fail.
fn takeover(bed: &mut Bed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let counts = during(bed, run, interrupt, |bed, run| bed.succeed(run, interrupt))?;
    Ok(Phase::of(bed, counts, None))
}
