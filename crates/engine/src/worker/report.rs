//! A worker's report: frames, ports, pipes, counters.

use super::{Breaths, DroppedFlows, Worker};
use crate::ring::DeltaSender;
use weir_packet::{DropReason, Ledger, Port, PortStatistics, Remark};
use weir_program::replica::ReplicaReport;
use weir_program::snapshot::{Count, FlowAccount};
use weir_program::{PortDeclaration, PortId};

/// A worker's report. Its size does not depend on the size of tables and groups.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of the program: 1, or that of the last swap.
    pub generation: u64,
    /// The number of workers, as known to this one.
    pub workers: usize,
    /// Whether counts of the previous program are still being taken over.
    pub is_settling: bool,
    /// The worker's account of all frames: where they came from and what became of them.
    pub ledger: Ledger,
    /// Which flows lost most frames.
    pub dropped_flows: DroppedFlows,
    /// Ports in the program's order.
    pub ports: Vec<PortReport>,
    /// Shared counters in the program's order.
    pub counters: Vec<Count>,
    /// For each pipe: entries or flows held, hits, misses.
    pub pipes: Vec<PipeReport>,
    /// Bucket tables that the worker filled itself: none, if changes of weights come with their buckets.
    pub filled: u64,
    /// The number of breaths since the worker started, including those that handled no frame.
    pub breaths: u64,
    /// How long breaths took, if the worker's driver measures them.
    pub breath_times: Breaths,
    /// Frames copied because a port requires another pool's memory.
    pub pool_copies: u64,
    /// Frames handed to other workers.
    pub handed_over: u64,
    /// Frames handed to other workers but not yet taken.
    pub between: u64,
    /// Flow deltas sent to the collector.
    pub deltas: u64,
    /// Packets in deltas that were sent to the collector, or wait for room in its ring.
    pub deltas_left: u64,
    /// Where the packets that met FLOW pipes were counted, including those of previous programs.
    pub flows: FlowAccount,
    /// Copies for an app that were not made because its ring had no room; the packets themselves were
    /// forwarded.
    pub tee_missed: u64,
    /// The state of the program in the kernel, from the worker that keeps its tables.
    pub kernel: Option<ReplicaReport>,
}

/// The totals of a pipe on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeReport {
    /// The number of entries in the table, configured and added at run time.
    pub entries: usize,
    /// Number of live flows (FLOW).
    pub flows: usize,
    /// Packets that hit an entry.
    pub hits: u64,
    /// Packets that entered the pipe and missed.
    pub misses: Count,
    /// Where the packets that the pipe looked up were counted (FLOW).
    pub account: FlowAccount,
    /// Address and port pairs of the pipe's NAT pool that are taken.
    pub nat_used: usize,
}

/// The counters of one worker's queue of a port.
#[derive(Clone, Debug, Default)]
pub struct PortReport {
    /// Name of the port.
    pub name: String,
    /// How the port runs, in words for operators, such as `native zero-copy` of an `xdp` port.
    pub mode: String,
    /// Counters that all ports have.
    pub statistics: PortStatistics,
    /// Counters that only this kind of port has.
    pub extra: Vec<(&'static str, u64)>,
    /// Remarks for users about its recordings.
    pub remarks: Vec<Remark>,
}

/// Frames that a worker has handed over to other workers, and has taken from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Frames taken from others.
    pub taken: u64,
    /// Frames handed to others.
    pub given: u64,
}

impl Worker {
    /// Returns the report of a port, including the counts of its queues on workers that have been removed.
    fn port_report(&self, at: usize, port: &dyn Port, declared: &PortDeclaration) -> PortReport {
        let mut report = port_report(port, &declared.name);
        self.past_port(PortId(at as u16)).into_iter().for_each(|past| past.add_to(&mut report));
        report
    }

    /// Returns the worker's report.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut ledger = self.outbox.ledger.clone();
        self.outbox.ports.iter().for_each(|port| add_port(&mut ledger, &port.statistics()));
        self.leaving.statistics().for_each(|statistics| add_port(&mut ledger, &statistics));
        ledger.held += (self.waiting.len() + self.fragments.held()) as u64;
        self.assert_accounted(&ledger);
        // Frames between two workers are held by the sender; when all stop, the receiver drops them.
        if !self.closed {
            ledger.held += self.hand_over.held();
        }
        let declared = self.engine.program().ports.iter();
        let ports = self.outbox.ports.iter().map(Box::as_ref).zip(declared).enumerate();
        let ports = ports.map(|(at, (port, declared))| self.port_report(at, port, declared)).collect();
        Report {
            generation: self.generation,
            workers: self.hand_over.workers(),
            is_settling: self.engine.is_settling(),
            ledger,
            dropped_flows: self.outbox.dropped_flows.clone(),
            ports,
            counters: self.engine.counters(),
            pipes: self.engine.pipe_reports(),
            filled: self.engine.filled(),
            breaths: self.breaths,
            breath_times: self.breath_times.clone(),
            pool_copies: self.outbox.pool_copies,
            handed_over: self.hand_over.given,
            between: self.hand_over.held(),
            deltas: self.deltas.as_ref().map_or(0, DeltaSender::sent) + self.unread.0,
            deltas_left: self.deltas.as_ref().map_or(0, DeltaSender::packets)
                + self.unread.1
                + self.engine.packets_in_deltas(),
            flows: self.engine.flow_account(),
            tee_missed: self.outbox.tee_missed,
            kernel: self.kernel_report(),
        }
    }

    /// Checks, in debug builds, that every frame of this worker is accounted for. Frames between two workers
    /// belong to neither of them here: the two sides differ by the frames taken from other workers and handed
    /// to them.
    fn assert_accounted(&self, ledger: &Ledger) {
        let ((came, went), handed) = (ledger.sides(), self.handed());
        debug_assert_eq!(came + handed.taken, went + handed.given, "{handed:?}: {ledger:?}");
    }

    /// Returns the frames taken over from others and handed to others; the worker's own ledger is off by
    /// their difference.
    #[must_use]
    pub fn handed(&self) -> Handed {
        Handed { taken: self.hand_over.taken, given: self.hand_over.given }
    }
}

fn port_report(port: &dyn Port, name: &str) -> PortReport {
    let (statistics, extra) = (port.statistics(), port.extra_statistics());
    PortReport { name: name.to_string(), mode: port.mode(), statistics, extra, remarks: port.remarks() }
}

/// Adds the counts of a port.
pub(super) fn add_port(ledger: &mut Ledger, statistics: &PortStatistics) {
    ledger.received += statistics.received;
    ledger.transmitted += statistics.transmitted;
    ledger.to_kernel += statistics.to_kernel;
    ledger.held += statistics.held;
    ledger.dropped[DropReason::Oversize as usize] += statistics.oversize;
    ledger.dropped[DropReason::NotWritten as usize] += statistics.not_written;
    ledger.dropped[DropReason::InterfaceGone as usize] += statistics.gone;
}
