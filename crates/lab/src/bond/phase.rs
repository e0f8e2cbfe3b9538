//! What a phase came to, and whether that is well.

use serde_json::{Value, json};

use super::iperf::Throughput;
use super::stream::Tally;
use super::topology::LINKS;
use crate::spread::Spread;

/// What must hold after a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Nothing is lost; nothing is reordered, unless a bucket had to move under a flow that never paused.
    Nothing,
    /// Traffic goes another way within so many milliseconds, at the median. What was lost tells how long it took; what the
    /// partner had received by the link may be overtaken.
    Elsewhere {
        /// Milliseconds.
        within_ms: f64,
    },
    /// The bond notices within so many milliseconds, by its own word; nothing is reordered.
    Noticed {
        /// Milliseconds.
        within_ms: f64,
    },
    /// Traffic comes back at all.
    Back,
}

/// One phase, perhaps of several events of the same kind.
pub struct Phase {
    /// What happened.
    pub name: String,
    promise: Promise,
    /// Packets of all events.
    pub tally: Tally,
    /// For each event how long it took until traffic was as it should be.
    recoveries_ms: Vec<f64>,
    /// Buckets that moved under a flow that never paused.
    moved_busy: u64,
    /// A load of TCP instead of a stream.
    throughput: Option<Throughput>,
    /// Share of the frames that each link carried, of those that should.
    shares: Option<Vec<f64>>,
    /// What else went wrong.
    failures: Vec<String>,
}

impl Phase {
    /// One in which nothing has happened yet.
    pub fn new(name: &str, promise: Promise) -> Phase {
        Phase {
            name: name.into(),
            promise,
            tally: Tally { back: true, ..Tally::default() },
            recoveries_ms: Vec::new(),
            moved_busy: 0,
            throughput: None,
            shares: None,
            failures: Vec::new(),
        }
    }

    /// Adds a stream through one event, and buckets that moved busy meanwhile.
    pub fn add(&mut self, tally: &Tally, moved_busy: u64) {
        self.tally.add(tally);
        self.moved_busy += moved_busy;
    }

    /// Whether nothing may overtake anything else.
    fn is_planned(&self) -> bool {
        matches!(self.promise, Promise::Nothing | Promise::Noticed { .. })
    }

    /// Whether what is to be told of it is how long the stream was cut off.
    pub fn is_outage(&self) -> bool {
        matches!(self.promise, Promise::Back | Promise::Elsewhere { .. })
    }

    /// Adds how long one event took.
    pub fn recovered(&mut self, ms: Option<f64>) {
        self.recoveries_ms.extend(ms);
    }

    /// Frames that each of the links which should carry some has carried.
    pub fn carried(&mut self, frames: [u64; LINKS], members: usize) {
        let all = frames.iter().sum::<u64>().max(1) as f64;
        let shares: Vec<f64> = frames[..members].iter().map(|&frames| frames as f64 / all).collect();
        self.shares = Some(shares);
    }

    /// It was a load of TCP, of which every link should have carried some.
    pub fn load(&mut self, throughput: Throughput, frames: &[u64]) {
        if frames.contains(&0) {
            self.failures.push(format!("a link carried nothing: {frames:?}"));
        }
        if throughput.mbps < 1.0 {
            self.failures.push("there was hardly any throughput".into());
        }
        self.throughput = Some(throughput);
    }

    /// How long it took at the median.
    pub fn recovery_ms(&self) -> Option<f64> {
        (!self.recoveries_ms.is_empty()).then(|| Spread::of(self.recoveries_ms.clone()).median)
    }

    /// Why it is not well.
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = self.failures.clone();
        let Tally { lost, reordered, back, .. } = self.tally;
        if !back {
            reasons.push("a flow did not come back".into());
        }
        if self.promise == Promise::Nothing && lost > 0 {
            reasons.push(format!("{lost} packets were lost"));
        }
        if self.is_planned() && reordered > 0 && self.moved_busy == 0 {
            reasons.push(format!("{reordered} packets were overtaken"));
        }
        if let Promise::Elsewhere { within_ms } | Promise::Noticed { within_ms } = self.promise {
            match self.recovery_ms() {
                Some(ms) if ms > within_ms => reasons.push(format!("it took {ms:.1} ms, not {within_ms:.0}")),
                Some(_) => {}
                None => reasons.push("nothing was to be seen of it".into()),
            }
        }
        reasons
    }

    /// The stable output.
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
            "recovery_ms": self.recovery_ms(),
            "recoveries_ms": self.recoveries_ms,
            "moved_busy": self.moved_busy,
            "mbps": self.throughput.as_ref().map(|load| load.mbps),
            "retransmits": self.throughput.as_ref().map(|load| load.retransmits),
            "shares": self.shares,
        })
    }

    /// A line of the table.
    pub fn text(&self) -> String {
        let mut line = format!("  {:<34}", self.name);
        match &self.throughput {
            Some(load) => line += &format!("{:>9.0} Mbit/s, {} sent anew", load.mbps, load.retransmits),
            None => {
                let Tally { sent, lost, reordered, .. } = self.tally;
                line += &format!("{sent:>9} {lost:>7} {reordered:>10}");
            }
        }
        if let Some(ms) = self.recovery_ms() {
            let Spread { min, max, .. } = Spread::of(self.recoveries_ms.clone());
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
            line += &format!("  {} buckets moved busy", self.moved_busy);
        }
        for reason in self.reasons() {
            line += &format!("\n    FAILED: {reason}");
        }
        line
    }

    /// What stands above the lines.
    pub fn heading() -> String {
        format!("  {:<34}{:>9} {:>7} {:>10}  {:>12}", "phase", "sent", "lost", "reordered", "recovery")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(lost: u64, reordered: u64) -> Tally {
        Tally { sent: 100, lost, reordered, outage_ms: None, back: true }
    }

    #[test]
    fn a_planned_change_loses_nothing_and_reorders_only_where_buckets_moved_busy() {
        let mut phase = Phase::new("x", Promise::Nothing);
        phase.add(&tally(0, 0), 0);
        assert!(phase.reasons().is_empty());
        phase.add(&tally(0, 1), 0);
        assert_eq!(phase.reasons(), ["1 packets were overtaken"]);
        phase.add(&tally(0, 0), 1);
        assert!(phase.reasons().is_empty());
        phase.add(&tally(1, 0), 0);
        assert_eq!(phase.reasons(), ["1 packets were lost"]);
    }

    #[test]
    fn a_failover_is_judged_by_its_median_and_must_have_been_seen() {
        let mut phase = Phase::new("x", Promise::Elsewhere { within_ms: 10.0 });
        assert_eq!(phase.reasons(), ["nothing was to be seen of it"]);
        [5.0, 90.0, 6.0].into_iter().for_each(|ms| phase.recovered(Some(ms)));
        assert!(phase.reasons().is_empty());
        [11.0, 12.0].into_iter().for_each(|ms| phase.recovered(Some(ms)));
        assert_eq!(phase.reasons(), ["it took 11.0 ms, not 10"]);
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
