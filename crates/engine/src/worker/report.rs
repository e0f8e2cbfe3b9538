//! A worker's account of itself: frames, ports, pipes, counters.

use super::Worker;
use crate::snapshot::{BucketReport, Count};
use packet::{DropReason, Ledger, Port, PortStatistics};

/// A worker's own account.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Frames.
    pub ledger: Ledger,
    /// Ports in the program's order.
    pub ports: Vec<PortReport>,
    /// Shared counters in the program's order.
    pub counters: Vec<Count>,
    /// Per pipe: entries or flows held, hits, misses.
    pub pipes: Vec<PipeReport>,
    /// Buckets of every group. Counts are this worker's alone, and sum up; so may slots differ while moves wait.
    pub buckets: Vec<BucketReport>,
    /// Breaths taken.
    pub breaths: u64,
    /// Frames copied because a port wants another pool's memory.
    pub pool_copies: u64,
    /// Frames handed to other workers.
    pub handed_over: u64,
    /// Flow deltas taken by the collector.
    pub deltas: u64,
    /// Copies that a pipe wanted to give to an app whose ring had no room; the packets themselves went on.
    pub tee_missed: u64,
}

/// A pipe's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeReport {
    /// Entries.
    pub entries: usize,
    /// Live flows (FLOW).
    pub flows: usize,
    /// Packets that hit an entry.
    pub hits: u64,
    /// Packets that missed.
    pub misses: Count,
    /// Packets not counted in a flow because the table was full (FLOW).
    pub unflowed_full: u64,
}

/// A port's account.
#[derive(Clone, Debug, Default)]
pub struct PortReport {
    /// Name.
    pub name: String,
    /// How it runs.
    pub mode: String,
    /// Counters all ports have.
    pub statistics: PortStatistics,
    /// Counters only this kind has.
    pub extra: Vec<(&'static str, u64)>,
}

impl Worker {
    /// The worker's account at this moment.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut ledger = self.outbox.ledger.clone();
        self.outbox.ports.iter().for_each(|port| add_port(&mut ledger, &port.statistics()));
        ledger.held += self.waiting.len() as u64;
        // What lies between two workers is held by the one that sent it; when all stop, the other drops it.
        if !self.stopped {
            ledger.held += self.hand_over.held();
        }
        let declared = self.engine.program().ports.iter();
        let ports = self.outbox.ports.iter().zip(declared);
        Report {
            ledger,
            ports: ports.map(|(port, declared)| port_report(port.as_ref(), &declared.name)).collect(),
            counters: self.engine.counters(),
            pipes: self.engine.pipe_reports(),
            buckets: self.engine.bucket_reports(),
            breaths: self.breaths,
            pool_copies: self.outbox.pool_copies,
            handed_over: self.hand_over.given,
            deltas: self.deltas_sent,
            tee_missed: self.outbox.tee_missed,
        }
    }

    /// Frames this worker took over from others and gave to others: their difference is what its own ledger lacks.
    #[must_use]
    pub fn handed(&self) -> (u64, u64) {
        (self.hand_over.taken, self.hand_over.given)
    }
}

fn port_report(port: &dyn Port, name: &str) -> PortReport {
    let (statistics, extra) = (port.statistics(), port.extra_statistics());
    PortReport { name: name.to_string(), mode: port.mode(), statistics, extra }
}

/// Adds what a port has counted.
pub(super) fn add_port(ledger: &mut Ledger, statistics: &PortStatistics) {
    ledger.received += statistics.received;
    ledger.transmitted += statistics.transmitted;
    ledger.to_kernel += statistics.to_kernel;
    ledger.held += statistics.held;
    ledger.dropped[DropReason::Oversize as usize] += statistics.oversize;
}
