//! The results of a lab: tables for people, and a JSON object for programs.

use serde_json::{Value, json};

use super::daemon::{KernelCounts, Snapshot};
use super::dnsperf::{LoadResult, SOCKETS};
use super::share::Share;
use super::topology::Executor;
use super::witness::Witness;

/// Loads of one kind, one in each round, and their results.
#[derive(Default)]
pub struct LoadReport {
    /// Queries sent.
    pub sent: u64,
    /// Queries answered with NOERROR.
    pub answered: u64,
    /// Queries answered with another code.
    pub refused: u64,
    /// Number of pairs of client address and port.
    pub flows: u64,
    /// For each round, the latency in microseconds that half of all answers do not exceed.
    pub p50_us: Vec<u64>,
    /// The same for 99 % of all answers.
    pub p99_us: Vec<u64>,
}

impl LoadReport {
    /// Adds dnsperf's results of a round, for queries from `addresses` client addresses.
    pub fn add(&mut self, outcome: &LoadResult, addresses: u32) {
        let tally = &outcome.tally;
        self.sent += outcome.sent;
        self.answered += tally.answered;
        self.refused += tally.refused;
        self.flows += outcome.sent.min(u64::from(addresses) * u64::from(SOCKETS));
        self.p50_us.push(tally.latency.percentile(50));
        self.p99_us.push(tally.latency.percentile(99));
    }

    fn json(&self) -> Value {
        json!({
            "queries_sent": self.sent,
            "queries_answered": self.answered,
            "latency_us": {
                "p50": median(&self.p50_us),
                "p99": median(&self.p99_us),
                "p50_of_rounds": self.p50_us,
                "p99_of_rounds": self.p99_us,
            },
        })
    }
}

/// Returns the value in the middle; 0 if there is none.
fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// The loads through one node, and the counts there.
pub struct NodeReport {
    /// The executor that handles the node's queries.
    pub executor: Executor,
    /// The loads.
    pub load: LoadReport,
    /// weir's counters after the loads.
    pub snapshot: Snapshot,
    /// The frames that the program in the kernel has seen, except during reloads.
    pub kernel: KernelCounts,
    /// The kernel's own counters for the same period.
    pub witness: Witness,
    /// The expected shares of the back ends.
    pub shares: Vec<Share>,
    /// Reloads during the loads: done, wanted.
    pub reloads: (u32, u32),
}

impl NodeReport {
    fn json(&self) -> Value {
        let back_ends = self.snapshot.back_ends.iter();
        let back_ends =
            back_ends.map(|at| json!({"name": at.name, "packets": at.packets, "bytes": at.bytes}));
        let share = |share: &Share| {
            json!({"name": share.name, "expected": [share.expected.0,
            share.expected.1], "sigma": share.sigma})
        };
        let own = json!({
            "executor": self.executor.name(),
            "kernel": self.kernel.json(),
            "frames": self.snapshot.ledger,
            "received_by_worker": self.snapshot.received_by_worker,
            "witness": self.witness.json(),
            "backends": back_ends.collect::<Vec<_>>(),
            "shares": self.shares.iter().map(share).collect::<Vec<_>>(),
            "flows": self.load.flows,
            "reloads": self.reloads.0,
        });
        joined(self.load.json(), own)
    }

    fn text(&self) -> String {
        format!("  {} executor\n", self.executor.name()) + &self.back_ends() + "\n" + &self.frames()
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
            grouped(self.load.sent),
            grouped(self.load.flows),
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
            + &row("decided in XDP", self.kernel.decided, "sent back by XDP", self.witness.xdp.sent_back)
            + &row("transmitted", frames("transmitted"), "interface sent", self.witness.weir.transmitted)
            + &row("to_kernel", frames("to_kernel"), "left by XDP", self.witness.passed())
            + &row("dropped", self.snapshot.dropped(), "dropped", self.witness.dropped())
            + &alone("to_app", frames("to_app"))
            + &alone("held", frames("held"))
            + &alone("originated", frames("originated"))
            + &alone("copied", frames("copied"))
            + &self.given_up()
    }

    fn given_up(&self) -> String {
        let row = |(reason, frames): (&String, &u64)| {
            format!("  left to a worker {:>12}    {reason}\n", grouped(*frames))
        };
        self.kernel.given_up.iter().map(row).collect()
    }
}

/// All results.
pub struct LabReport {
    /// The loads through each node.
    pub nodes: Vec<NodeReport>,
    /// The same loads without weir, to a single back end, before and after those through the nodes. The
    /// difference between the two is the noise of the machine.
    pub direct: [LoadReport; 2],
    /// How many other processes kept processors busy.
    pub busy: u32,
}

impl LabReport {
    /// Returns all loads.
    pub fn loads(&self) -> impl Iterator<Item = &LoadReport> {
        self.direct.iter().chain(self.nodes.iter().map(|node| &node.load))
    }

    /// Returns the report as JSON. This format is stable. `reasons` say why the lab failed. Keys outside of
    /// the inner objects are about the node whose queries the kernel handles.
    pub fn json(&self, reasons: &[String]) -> Value {
        let mut json = json!({
            "ok": reasons.is_empty(),
            "reasons": reasons,
            "busy": self.busy,
            "direct": self.direct[0].json(),
            "direct_again": self.direct[1].json(),
        });
        for node in &self.nodes {
            match node.executor {
                Executor::Engine => json["engine"] = node.json(),
                Executor::Kernel => json = joined(json, node.json()),
            }
        }
        json
    }

    /// Returns the report as text.
    pub fn text(&self, reasons: &[String]) -> String {
        let mut text = self.all_loads() + "\n";
        for node in &self.nodes {
            text += &(node.text() + "\n");
        }
        if reasons.is_empty() {
            text += "Every query was answered and every frame is accounted for.";
        }
        for reason in reasons {
            text += &format!("FAILED: {reason}\n");
        }
        text
    }

    /// Returns a table with a column for each kind of load.
    fn all_loads(&self) -> String {
        let row = |name: &str, of: fn(&LoadReport) -> u64| {
            let cells: String = self.loads().map(|load| format!("{:>14}", grouped(of(load)))).collect();
            format!("  {name:<18}{cells}\n")
        };
        let nodes = self.nodes.iter().map(|node| node.executor.name());
        let names: String =
            ["direct", "direct again"].into_iter().chain(nodes).map(|name| format!("{name:>14}")).collect();
        format!("\n  {:<18}{names}\n", "")
            + &row("queries sent", |load| load.sent)
            + &row("answered", |load| load.answered)
            + &row("lost", |load| load.sent.saturating_sub(load.answered + load.refused))
            + &row("latency p50, us", |load| median(&load.p50_us))
            + &row("latency p99, us", |load| median(&load.p99_us))
    }
}

/// Returns an object with the keys of both.
fn joined(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
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
    fn the_latency_of_several_rounds_is_the_median() {
        assert_eq!((median(&[]), median(&[7]), median(&[9, 1, 5])), (0, 7, 5));
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
    }
}
