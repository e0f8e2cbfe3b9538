//! The result of a phase, and whether it keeps its promise.

use std::time::Duration;

use serde_json::{Value, json};

use super::iperf::Throughput;
use super::topology::LINKS;
use crate::spread::ResultSpread;
use crate::stream::Tally;

/// What must hold after a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Nothing is lost, and nothing is reordered unless a bucket had to move while in use.
    Nothing,
    /// Traffic continues on another member within a time limit, at the median. Lost packets show how long the
    /// failover took. Packets that the partner received on the failed link may be overtaken.
    Elsewhere {
        /// The limit.
        within: Duration,
    },
    /// The bond reports the event within a time limit; nothing is reordered.
    Noticed {
        /// The limit.
        within: Duration,
    },
    /// Traffic resumes eventually.
    Back,
}

/// The observations in a phase, which may have several events of the same kind.
pub struct Streamed {
    /// What happens in the phase.
    pub name: String,
    promise: Promise,
    /// Packets of all events.
    pub tally: Tally,
    /// For each event, the milliseconds until traffic had recovered.
    recoveries_ms: Vec<f64>,
    /// Buckets that moved while in use.
    moved_busy: u64,
    /// Result of a TCP load, which replaces the stream.
    throughput: Option<Throughput>,
    /// Share of the frames on each of the links that should carry traffic.
    shares: Option<Vec<f64>>,
}

/// The result of a phase.
pub type Phase = crate::phase::Phase<Streamed>;

impl Phase {
    /// Creates a phase without events.
    pub fn new(name: &str, promise: Promise) -> Phase {
        Phase::with(Streamed {
            name: name.into(),
            promise,
            tally: Tally { back: true, ..Tally::default() },
            recoveries_ms: Vec::new(),
            moved_busy: 0,
            throughput: None,
            shares: None,
        })
    }

    /// Adds the stream of one event, and the number of buckets that moved while in use during it.
    pub fn add(&mut self, tally: &Tally, moved_busy: u64) {
        self.needs(tally.sent > tally.lost, || format!("none of {} packets arrived", tally.sent));
        self.tally.add(tally);
        self.moved_busy += moved_busy;
    }

    /// Returns true if no packet may be reordered.
    fn is_planned(&self) -> bool {
        matches!(self.promise, Promise::Nothing | Promise::Noticed { .. })
    }

    /// Returns true if the phase reports the outage duration of the stream.
    pub fn is_outage(&self) -> bool {
        matches!(self.promise, Promise::Back | Promise::Elsewhere { .. })
    }

    /// Adds the recovery time of one event.
    pub fn recovered(&mut self, ms: Option<f64>) {
        self.recoveries_ms.extend(ms);
    }

    /// Sets the number of frames on each of the links that should carry traffic.
    pub fn carried(&mut self, frames: [u64; LINKS], members: usize) {
        let all = frames.iter().sum::<u64>().max(1) as f64;
        let shares: Vec<f64> = frames[..members].iter().map(|&frames| frames as f64 / all).collect();
        self.shares = Some(shares);
    }

    /// Sets the result of a TCP load. Every link should have carried some of it.
    pub fn load(&mut self, throughput: Throughput, frames: &[u64]) {
        self.must(!frames.contains(&0), format!("a link carried nothing: {frames:?}"));
        self.must(throughput.mbps >= 1.0, "there was almost no throughput");
        self.throughput = Some(throughput);
    }

    /// Returns the median recovery time.
    pub fn recovery_ms(&self) -> Option<f64> {
        (!self.recoveries_ms.is_empty()).then(|| ResultSpread::of(self.recoveries_ms.clone()).median)
    }

    /// Returns the reasons why the phase failed; none if it succeeded.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = self.faults().to_vec();
        let Tally { lost, reordered, duplicated, back, .. } = self.tally;
        if duplicated > 0 {
            reasons.push(format!("{duplicated} packets were duplicated"));
        }
        if !back {
            reasons.push("a flow did not resume".into());
        }
        if self.promise == Promise::Nothing && lost > 0 {
            reasons.push(format!("{lost} packets were lost"));
        }
        if self.is_planned() && reordered > 0 && self.moved_busy == 0 {
            reasons.push(format!("{reordered} packets were reordered"));
        }
        if let Promise::Elsewhere { within } | Promise::Noticed { within } = self.promise {
            let within_ms = within.as_secs_f64() * 1e3;
            match self.recovery_ms() {
                Some(ms) if ms > within_ms => reasons.push(format!("it took {ms:.1} ms, not {within_ms:.0}")),
                Some(_) => {}
                None => reasons.push("no recovery was observed".into()),
            }
        }
        reasons
    }

    /// Returns the phase as JSON. This format is stable.
    pub fn json(&self) -> Value {
        let stream = self.throughput.is_none();
        let reasons = self.reasons();
        json!({
            "name": self.name,
            "ok": reasons.is_empty(),
            "reasons": reasons,
            "sent": stream.then_some(self.tally.sent),
            "lost": stream.then_some(self.tally.lost),
            "reordered": stream.then_some(self.tally.reordered),
            "duplicated": stream.then_some(self.tally.duplicated),
            "recovery_ms": self.recovery_ms(),
            "recoveries_ms": self.recoveries_ms,
            "moved_busy": self.moved_busy,
            "mbps": self.throughput.as_ref().map(|load| load.mbps),
            "retransmits": self.throughput.as_ref().map(|load| load.retransmits),
            "shares": self.shares,
        })
    }

    /// Returns the phase as a line of the table.
    pub fn text(&self) -> String {
        let mut line = format!("  {:<34}", self.name);
        match &self.throughput {
            Some(load) => line += &format!("{:>9.0} Mbit/s, {} retransmitted", load.mbps, load.retransmits),
            None => {
                let Tally { sent, lost, reordered, .. } = self.tally;
                line += &format!("{sent:>9} {lost:>7} {reordered:>10}");
            }
        }
        if let Some(ms) = self.recovery_ms() {
            let ResultSpread { min, max, .. } = ResultSpread::of(self.recoveries_ms.clone());
            line += &format!("  {ms:>9.1} ms");
            if self.recoveries_ms.len() > 1 {
                line += &format!(" ({min:.1} - {max:.1})");
            }
        }
        if let Some(shares) = &self.shares {
            let shares: Vec<String> = shares.iter().map(|share| format!("{:.0} %", 100.0 * share)).collect();
            line += &format!("  {}", shares.join(" "));
        }
        if self.moved_busy > 0 {
            line += &format!("  {} buckets moved in use", self.moved_busy);
        }
        for reason in self.reasons() {
            line += &format!("\n    FAILED: {reason}");
        }
        line
    }

    /// Returns the heading of the table.
    pub fn heading() -> String {
        format!("  {:<34}{:>9} {:>7} {:>10}  {:>12}", "phase", "sent", "lost", "reordered", "recovery")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(lost: u64, reordered: u64) -> Tally {
        Tally { sent: 100, lost, reordered, back: true, ..Tally::default() }
    }

    #[test]
    fn a_planned_change_loses_nothing_and_reorders_only_where_buckets_moved_busy() {
        let mut phase = Phase::new("x", Promise::Nothing);
        phase.add(&tally(0, 0), 0);
        assert!(phase.reasons().is_empty());
        phase.add(&tally(0, 1), 0);
        assert_eq!(phase.reasons(), ["1 packets were reordered"]);
        phase.add(&tally(0, 0), 1);
        assert!(phase.reasons().is_empty());
        phase.add(&tally(1, 0), 0);
        assert_eq!(phase.reasons(), ["1 packets were lost"]);
    }

    #[test]
    fn no_phase_may_duplicate_a_packet() {
        for promise in [Promise::Nothing, Promise::Back] {
            let mut phase = Phase::new("x", promise);
            phase.add(&Tally { duplicated: 2, ..tally(0, 0) }, 1);
            assert_eq!(phase.reasons(), ["2 packets were duplicated"]);
        }
    }

    #[test]
    fn a_failover_is_judged_by_its_median_and_must_have_been_seen() {
        let mut phase = Phase::new("x", Promise::Elsewhere { within: Duration::from_millis(10) });
        assert_eq!(phase.reasons(), ["no recovery was observed"]);
        [5.0, 90.0, 6.0].into_iter().for_each(|ms| phase.recovered(Some(ms)));
        assert!(phase.reasons().is_empty());
        [11.0, 12.0].into_iter().for_each(|ms| phase.recovered(Some(ms)));
        assert_eq!(phase.reasons(), ["it took 11.0 ms, not 10"]);
    }

    #[test]
    fn a_stream_of_which_nothing_arrives_shows_nothing() {
        for (sent, lost) in [(0, 0), (9, 9)] {
            let mut phase = Phase::new("x", Promise::Back);
            phase.add(&Tally { sent, ..tally(lost, 0) }, 0);
            assert_eq!(phase.reasons(), [format!("this shows nothing: none of {sent} packets arrived")]);
        }
        let mut phase = Phase::new("x", Promise::Elsewhere { within: Duration::from_millis(10) });
        phase.recovered(Some(0.0));
        phase.needs(false, || "link 4 carried nothing".into());
        assert_eq!(phase.reasons(), ["this shows nothing: link 4 carried nothing"]);
    }

    #[test]
    fn a_link_that_carries_nothing_is_noticed() {
        let mut phase = Phase::new("x", Promise::Nothing);
        phase.carried([30, 10, 0, 0], 2);
        phase.load(Throughput { mbps: 9.0, retransmits: 0 }, &[30, 10]);
        assert!(phase.reasons().is_empty());
        assert_eq!(phase.json()["shares"], json!([0.75, 0.25]));
        phase.load(Throughput { mbps: 9.0, retransmits: 0 }, &[30, 10, 0]);
        assert_eq!(phase.reasons().len(), 1);
    }
}
