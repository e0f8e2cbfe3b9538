//! The counts of a program, in a form that can be compared, summed over workers and displayed. Both executors
//! produce it.

use crate::change::EntryKey;
use crate::nat::Binding;
use crate::{Entry, GroupId, Operation};
use weir_packet::FlowKey;
pub use weir_table::{FlowState, UNFLOWED};

/// Numbers of packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of packets.
    pub packets: u64,
    /// Sum of the lengths of their frames in bytes, without the FCS.
    pub bytes: u64,
}

impl Count {
    /// Counts one packet, whose frame has this many `bytes` without the FCS.
    #[inline(always)]
    pub fn one(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    /// Adds packets and bytes of another count, such as that of another worker.
    pub fn add(&mut self, other: Count) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// All counts of a program; pipes and counters are in the program's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The counts of each pipe, indexed by [`PipeId`](crate::PipeId).
    pub pipes: Vec<PipeSnapshot>,
    /// The count of each shared counter, indexed by [`CounterId`](crate::CounterId).
    pub counters: Vec<Count>,
    /// The buckets of each group, indexed by [`GroupId`].
    pub buckets: Vec<BucketReport>,
}

/// How a FLOW pipe currently chooses the targets of new flows, apart from the flow counts of targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewFlowTurns {
    /// The next turn of each group, by its position; `None` where none was taken. Empty if no group has
    /// turns.
    pub turns: Vec<Option<u64>>,
    /// When its table last had no room for a flow, in milliseconds.
    pub full_ms: Option<u32>,
}

/// The buckets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketReport {
    /// The target of each bucket, by its position in the group; `u16::MAX` means none.
    pub slots: Vec<u16>,
    /// Packets that met each bucket. Only groups with given buckets have this and the following fields; for
    /// others they are empty or 0.
    pub packets: Vec<u64>,
    /// Bytes of these packets, at the time they met the bucket.
    pub bytes: Vec<u64>,
    /// How many ordered moves of buckets to other targets have been carried out.
    pub moved: u64,
    /// Moves carried out while the bucket was in use, because they had reached the maximum wait.
    pub moved_busy: u64,
    /// How many moves have been ordered but not carried out, because the bucket is in use.
    pub pending: usize,
}

impl BucketReport {
    /// Appends the buckets that follow, reported later.
    pub fn append(&mut self, mut next: BucketReport) {
        self.slots.append(&mut next.slots);
        self.packets.append(&mut next.packets);
        self.bytes.append(&mut next.bytes);
        (self.moved, self.moved_busy, self.pending) = (next.moved, next.moved_busy, next.pending);
    }
}

/// The counts of a pipe, summed over workers if there are several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipeSnapshot {
    /// Packets that entered the pipe and missed: they matched no entry, or not the pipe's constants.
    pub misses: Count,
    /// Entries, in the order in which their keys were first inserted; the order is not guaranteed.
    pub entries: Vec<EntrySnapshot>,
    /// Live flows of a FLOW pipe, in unspecified order.
    pub flows: Vec<FlowSnapshot>,
    /// Where the packets of a FLOW pipe were counted.
    pub account: FlowAccount,
    /// Packets that a HASH pipe has distributed in turn (`round_robin`).
    pub turns: u64,
}

/// Where the packets that a FLOW pipe has looked up were counted: `met` = `live` + `given` + `unflowed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowAccount {
    /// Packets looked up: those that passed the pipe's constants.
    pub met: u64,
    /// Packets in the counters of the table, including flows that have ended and await their delta.
    pub live: u64,
    /// Packets that deltas have taken out of the table, to be counted by measurements.
    pub given: u64,
    /// Packets that no flow counts.
    pub unflowed: Unflowed,
}

/// Packets that a FLOW pipe looked up but no flow counted, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unflowed {
    /// Packets without a flow key.
    pub no_key: u64,
    /// Packets whose metadata chooses no group.
    pub no_group: u64,
    /// Packets of an unknown flow, where the pipe learns no flows.
    pub unknown: u64,
    /// Packets that are ICMP errors about a pinned flow.
    pub icmp_error: u64,
    /// Packets of a flow for which there is no target, or no entry for its target.
    pub no_target: u64,
    /// Packets of a flow that the full table had no room for.
    pub full: u64,
    /// Packets of a flow for which the NAT pool had no free port.
    pub no_nat_port: u64,
    /// Packets of a flow whose answers would be the same as those of another flow.
    pub answers_taken: u64,
    /// Packets that had to wait until a delta was sent, for which there was no room.
    pub delta: u64,
}

impl FlowAccount {
    /// Moves the counts of a delta out of the table.
    pub fn give(&mut self, delta: &weir_table::FlowDelta) {
        self.live -= delta.packets();
        self.given += delta.packets();
    }

    /// Adds the counts of another table.
    pub fn add(&mut self, other: &FlowAccount) {
        self.met += other.met;
        self.live += other.live;
        self.given += other.given;
        self.unflowed.add(&other.unflowed);
    }

    /// Returns the same without `packets` of live flows.
    #[must_use]
    pub fn without(self, packets: u64) -> FlowAccount {
        FlowAccount { met: self.met - packets, live: self.live - packets, ..self }
    }

    /// Returns true if no packet was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == FlowAccount::default()
    }

    /// Returns true if every packet is accounted for.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.met == self.live + self.given + self.unflowed.sum()
    }
}

impl Unflowed {
    /// Returns the counts with their names in tables and JSON.
    #[must_use]
    pub fn by_reason(&self) -> [(&'static str, u64); UNFLOWED] {
        let Unflowed { no_key, no_group, unknown, icmp_error, no_target, full, .. } = *self;
        let Unflowed { no_nat_port, answers_taken, delta, .. } = *self;
        [
            ("no_key", no_key),
            ("no_group", no_group),
            ("unknown", unknown),
            ("icmp_error", icmp_error),
            ("no_target", no_target),
            ("full", full),
            ("no_nat_port", no_nat_port),
            ("answers_taken", answers_taken),
            ("delta", delta),
        ]
    }

    /// Returns the names of the reasons, in the order of [`Unflowed::by_reason`].
    #[must_use]
    pub fn reasons() -> [&'static str; UNFLOWED] {
        Unflowed::default().by_reason().map(|(reason, _)| reason)
    }

    /// Returns the sum over all reasons.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.by_reason().iter().map(|(_, count)| count).sum()
    }

    fn add(&mut self, other: &Unflowed) {
        self.no_key += other.no_key;
        self.no_group += other.no_group;
        self.unknown += other.unknown;
        self.icmp_error += other.icmp_error;
        self.no_target += other.no_target;
        self.full += other.full;
        self.no_nat_port += other.no_nat_port;
        self.answers_taken += other.answers_taken;
        self.delta += other.delta;
    }
}

/// The counts of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySnapshot {
    /// What identifies the entry in its pipe: the values that it matches, and for rules the priority.
    pub key: EntryKey,
    /// Whether the entry was added at run time.
    pub run_time: bool,
    /// Packets that hit the entry since it was added.
    pub hits: Count,
    /// When the entry was last hit, in milliseconds of the worker's clock; `None` if never.
    pub last_hit_ms: Option<u64>,
}

/// A live flow of a FLOW pipe, with its decision and its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSnapshot {
    /// The flow key: addresses, ports and protocol, and the ID of a tunnel.
    pub key: FlowKey,
    /// Where packets of the flow go: a target, the buckets of a group, or an entry.
    pub decision: FlowDecision,
    /// The flow's packets and bytes, without those already reported.
    pub hits: Count,
    /// The counts that the flow has reported to a measurement.
    pub given: Count,
    /// When the flow's first packet arrived, in milliseconds.
    pub first_ms: u32,
    /// When the flow's last packet arrived, in milliseconds.
    pub last_ms: u32,
    /// The flow's observed state, if timeouts depend on it.
    pub state: Option<FlowState>,
    /// The flow's address and port from the NAT pool, shared with the flow of its answers.
    pub binding: Option<Binding>,
    /// The key of the opposite flow, which was learnt with this flow, if the opposite flow is live.
    pub pair: Option<FlowKey>,
    /// Whether the program in the kernel handles the flow's packets.
    pub in_kernel: bool,
}

/// The values of its entry's action that a flow keeps: for each operation of the action, the operation with
/// the numbers that the flow keeps, or `None` if it keeps none of them.
pub type KeptOperations = Vec<Option<Operation>>;

/// The decision in a FLOW entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDecision {
    /// Use the pipe's default entry.
    Default,
    /// Stay with this target of the pipe's group.
    Pinned(u16),
    /// Stay with this target of this group, which metadata chose.
    PinnedIn(GroupId, u16),
    /// Follow the group's buckets.
    Follow(GroupId),
    /// Follow the buckets of the group that metadata chooses.
    FollowChosen,
    /// Use its own entry, configured or added at run time.
    Own,
}

/// Some of the entries of a pipe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The entries in a form in which they could be written again, and what is known about them.
    pub entries: Vec<(Entry, Seen)>,
    /// The row number at which the next page begins; `None` after the last page.
    pub next: Option<u32>,
    /// How often entries were moved to other places. An entry keeps its place while this number is unchanged.
    pub renumbered: u32,
}

/// Some of the flows of a pipe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowsPage {
    /// Live flows.
    pub flows: Vec<FlowSnapshot>,
    /// The row number at which the next page begins; `None` after the last page.
    pub next: Option<u32>,
}

/// A worker's knowledge about an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What the worker has counted for the entry.
    pub count: Count,
    /// When a packet last hit the entry on that worker or, before the first hit, when the entry was added; in
    /// milliseconds of the workers' clock.
    pub last_ms: u32,
    /// Whether the entry has been idle for longer than its timeout.
    pub idle: bool,
}

impl Seen {
    /// Merges in what another worker knows about the same entry: counts are summed, and the entry is as old
    /// as its youngest replica.
    pub fn add(&mut self, other: Seen) {
        self.count.add(other.count);
        if is_later(other.last_ms, self.last_ms) {
            self.last_ms = other.last_ms;
        }
        self.idle &= other.idle;
    }
}

/// Whether a time in milliseconds is later than another; they wrap after 49 days.
pub fn is_later(one: u32, other: u32) -> bool {
    one != other && one.wrapping_sub(other) < 1 << 31
}
