//! The results of a lab: tables for people, and a JSON object for programs.

use serde_json::{Value, json};

use super::daemon::Snapshot;
use super::dnsperf::{LoadResult, SOCKETS};
use super::share::Share;
use super::witness::Witness;

/// A load and its results.
pub struct LoadReport {
    /// Queries sent.
    pub sent: u64,
    /// Queries answered with NOERROR.
    pub answered: u64,
    /// Queries answered with another code.
    pub refused: u64,
    /// The latency in microseconds that half of all answers do not exceed.
    pub p50_us: u64,
    /// The latency in microseconds that 99 % of all answers do not exceed.
    pub p99_us: u64,
    /// Number of pairs of client address and port.
    pub flows: u64,
}

impl LoadReport {
    /// Takes dnsperf's results, for queries from `addresses` client addresses.
    pub fn new(outcome: &LoadResult, addresses: u32) -> LoadReport {
        let tally = &outcome.tally;
        LoadReport {
            sent: outcome.sent,
            answered: tally.answered,
            refused: tally.refused,
            p50_us: tally.latency.percentile(50),
            p99_us: tally.latency.percentile(99),
            flows: outcome.sent.min(u64::from(addresses) * u64::from(SOCKETS)),
        }
    }
}

/// All results.
pub struct LabReport {
    /// The load through weir.
    pub weir: LoadReport,
    /// The same load without weir, to a single back end.
    pub direct: LoadReport,
    /// weir's counters after the load.
    pub snapshot: Snapshot,
    /// The kernel's counters for the same period.
    pub witness: Witness,
    /// The expected shares of the back ends.
    pub shares: Vec<Share>,
    /// Reloads during the load: done, wanted.
    pub reloads: (u32, u32),
}

impl LabReport {
    /// Returns the report as JSON. This format is stable. `reasons` say why the lab failed.
    pub fn json(&self, reasons: &[String]) -> Value {
        let arm = |arm: &LoadReport| json!({"p50": arm.p50_us, "p99": arm.p99_us});
        let back_ends = self.snapshot.back_ends.iter();
        let back_ends =
            back_ends.map(|at| json!({"name": at.name, "packets": at.packets, "bytes": at.bytes}));
        let share = |share: &Share| {
            json!({"name": share.name, "expected": [share.expected.0,
            share.expected.1], "sigma": share.sigma})
        };
        json!({
            "ok": reasons.is_empty(),
            "reasons": reasons,
            "queries_sent": self.weir.sent,
            "queries_answered": self.weir.answered,
            "latency_us": arm(&self.weir),
            "direct": {
                "queries_sent": self.direct.sent,
                "queries_answered": self.direct.answered,
                "latency_us": arm(&self.direct),
            },
            "frames": self.snapshot.ledger,
            "received_by_worker": self.snapshot.received_by_worker,
            "witness": self.witness.json(),
            "backends": back_ends.collect::<Vec<_>>(),
            "shares": self.shares.iter().map(share).collect::<Vec<_>>(),
            "flows": self.weir.flows,
            "reloads": self.reloads.0,
        })
    }

    /// Returns the report as text.
    pub fn text(&self, reasons: &[String]) -> String {
        let mut text = self.arms() + "\n" + &self.back_ends() + "\n" + &self.frames() + "\n";
        if reasons.is_empty() {
            text += "Every query was answered and every frame is accounted for.";
        }
        for reason in reasons {
            text += &format!("FAILED: {reason}\n");
        }
        text
    }

    fn arms(&self) -> String {
        let row = |name: &str, of: fn(&LoadReport) -> u64| {
            format!("  {name:<18}{:>12}{:>12}\n", grouped(of(&self.weir)), grouped(of(&self.direct)))
        };
        format!("\n  {:<18}{:>12}{:>12}\n", "", "weir", "direct")
            + &row("queries sent", |arm| arm.sent)
            + &row("answered", |arm| arm.answered)
            + &row("lost", |arm| arm.sent.saturating_sub(arm.answered + arm.refused))
            + &row("latency p50, us", |arm| arm.p50_us)
            + &row("latency p99, us", |arm| arm.p99_us)
    }

    fn back_ends(&self) -> String {
        let mut text = format!(
            "  {:<18}{:>12}{:>14}{:>12}{:>16}\n",
            "back end", "packets", "bytes", "share", "+- 5 sigma"
        );
        let total = self.snapshot.packets().max(1) as f64;
        for (back_end, share) in self.snapshot.back_ends.iter().zip(&self.shares) {
            text += &format!(
                "  {:<18}{:>12}{:>14}{:>10.2} %{:>14.2} %\n",
                back_end.name,
                grouped(back_end.packets),
                grouped(back_end.bytes),
                100.0 * back_end.packets as f64 / total,
                500.0 * share.sigma / total,
            );
        }
        text + &format!(
            "  ({} queries in {} flows; {} reloads)\n",
            grouped(self.weir.sent),
            grouped(self.weir.flows),
            self.reloads.0
        )
    }

    fn frames(&self) -> String {
        let frames = |name| self.snapshot.frames(name);
        let row = |name, count, witness, seen| {
            format!("  {name:<18}{:>12}    {witness:<20}{:>12}\n", grouped(count), grouped(seen))
        };
        let alone = |name, count| format!("  {name:<18}{:>12}\n", grouped(count));
        format!("  {:<18}{:>12}    {:<20}\n", "frames, according to weir", "", "according to the kernel")
            + &row("received", frames("received"), "taken by XDP", self.witness.xdp.taken)
            + &row("transmitted", frames("transmitted"), "interface sent", self.witness.weir.transmitted)
            + &row("to_kernel", frames("to_kernel"), "left by XDP", self.witness.passed())
            + &row("dropped", self.snapshot.dropped(), "dropped", self.witness.dropped())
            + &alone("to_app", frames("to_app"))
            + &alone("held", frames("held"))
            + &alone("originated", frames("originated"))
            + &alone("copied", frames("copied"))
    }
}

/// Groups digits: 1234567 -> "1 234 567".
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
    }
}
