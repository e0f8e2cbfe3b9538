//! Flows of this worker that the program in the kernel follows.
//!
//! Every worker writes its own flows to the kernel, sweeps and removes them; the kernel finds them by their
//! keys, on whatever queue a packet arrives. Only the tables that packets and flows refer to belong to a
//! single worker ([`super::kernel`]).

use crate::batch::Engine;
use weir_packet::Port;
use weir_program::change::Change;
use weir_program::replica::{FlowMark, FlowReplica};

/// How long a worker without other work waits for a port to send the packets after which the kernel handles
/// their flows. Without this wait, the next packets would come to the worker again.
const SENDING_NS: u64 = 200_000;

/// The place for this worker's flows in the kernel.
#[derive(Debug)]
pub(super) struct FollowedFlows {
    replica: Box<dyn FlowReplica>,
    /// Packets of flows that the kernel will handle once these packets have been sent.
    marks: Vec<FlowMark>,
    unsent: UnsentMarks,
}

/// The same for packets that ports have accepted.
#[derive(Debug, Default)]
struct UnsentMarks {
    marks: Vec<FlowMark>,
    /// The progress of each port at which it has sent these packets.
    until: Vec<u64>,
    /// Since when these packets have waited.
    since_ns: u64,
}

impl FollowedFlows {
    /// Lets the kernel follow flows of an engine from now on.
    pub fn new(replica: Box<dyn FlowReplica>, engine: &mut Engine, now_ns: u64) -> FollowedFlows {
        engine.follow_flows(&*replica, now_ns);
        FollowedFlows { replica, marks: Vec::new(), unsent: UnsentMarks::default() }
    }

    /// Leaves the packets of all flows to the workers until each flow is activated again.
    pub fn pause(&mut self) {
        self.replica.pause();
    }

    /// Returns the replica, which is slow to drop.
    pub fn into_replica(self) -> Box<dyn FlowReplica> {
        self.replica
    }

    /// Whether ports are about to send packets after which the kernel handles their flows.
    pub fn is_sending(&self, now_ns: u64) -> bool {
        let UnsentMarks { marks, since_ns, .. } = &self.unsent;
        !marks.is_empty() && now_ns.saturating_sub(*since_ns) < SENDING_NS
    }

    /// Informs the kernel of flows that have begun or ended.
    pub fn tell_kernel(&mut self, engine: &mut Engine) {
        engine.tell_kernel(&mut *self.replica, &mut self.marks);
    }

    /// Lets the kernel handle flows whose packets have been sent by these ports, which have just been
    /// flushed.
    pub fn activate(&mut self, ports: &[Box<dyn Port>], now_ns: u64) {
        let FollowedFlows { replica, marks, unsent } = self;
        if marks.is_empty() && unsent.marks.is_empty() {
            return;
        }
        let are_sent =
            |until: &[u64]| ports.iter().zip(until).all(|(port, until)| port.progress().done >= *until);
        // Usually, the ports have sent the packets of this breath by now.
        for _ in 0..2 {
            if !are_sent(&unsent.until) {
                return;
            }
            unsent.marks.drain(..).for_each(|mark| _ = replica.try_activate(mark));
            std::mem::swap(&mut unsent.marks, marks);
            unsent.until.clear();
            unsent.until.extend(ports.iter().map(|port| port.progress().accepted));
            unsent.since_ns = now_ns;
        }
    }

    /// Pauses if the engine has replaced an entry by another for the same target; `changes` are some of the
    /// `all` changes of a proposal. The worker that keeps the tables may have made these changes earlier. The
    /// kernel would then treat flows that were decided for the former entry, and written in between, by the
    /// new entry.
    pub fn pause_if_replaced(&mut self, changes: &[Change], all: usize) {
        let singles = || changes.iter().flat_map(Change::singles);
        let removes = |change: &Change| match change {
            Change::Remove { pipe, .. } => self.replica.follows(*pipe),
            Change::Add { .. }
            | Change::Update { .. }
            | Change::SetWeight { .. }
            | Change::SetWeights { .. }
            | Change::Publish { .. }
            | Change::NameCounters(_)
            | Change::MoveBuckets { .. }
            | Change::Batch(_) => false,
        };
        if all.max(singles().count()) > 1 && singles().any(removes) {
            self.pause();
        }
    }
}
