//! Copies of a worker's tables outside of its engine, such as those of a program that runs in the kernel.
//!
//! The worker makes every change in its engine and then in the replica, between two breaths, and adds what
//! the replica has counted to the counts of its engine. So everything that reads the engine (lists, metrics,
//! timeouts) includes the replica's packets.

use crate::change::{Change, EntryKey};
use crate::snapshot::Count;
use crate::{CounterId, Entry, EntryMatch, Forward, GroupId, Operation, PipeId, PortId, Verdict};
use std::fmt;
use std::sync::Arc;
use weir_packet::{DropReason, FlowKey};

/// The forwards and templates that the entries of a pipe have.
pub type Leads = Vec<(Forward, u16)>;

/// Where a program's entries lead, and its ACL rules.
#[derive(Clone, Debug, Default)]
pub struct EntryUses {
    /// The number of the program.
    pub generation: u64,
    /// Where the entries of each pipe lead.
    pub leads: Vec<Leads>,
    /// The rules of each ACL pipe; empty for other types.
    pub rules: Vec<Vec<Entry>>,
}

/// Tables that are kept equal to those of an engine.
///
/// Methods do not fail: a replica that cannot make a change leaves all packets to the engine from then on,
/// and says why in its report.
pub trait TableReplica: fmt::Debug + Send {
    /// Adds an entry, or replaces the one with the same key.
    fn put(&mut self, pipe: PipeId, entry: &Entry);

    /// Removes an entry.
    fn remove(&mut self, pipe: PipeId, key: &EntryKey);

    /// Replaces a group's buckets; `u16::MAX` means no target.
    fn publish(&mut self, group: GroupId, buckets: &[u16]);

    /// Lets packets use the tables, which are complete, in place of those of another replica.
    fn start(&mut self);

    /// Leaves all packets to the engine until [`TableReplica::start`], except those that another replica has
    /// taken over. A packet that has met the tables before may still use them.
    fn pause(&mut self);

    /// Waits until no packet uses the tables any more, after a pause has begun. This takes milliseconds.
    fn wait_for_packets(&mut self);

    /// Passes on what was counted since the last call. With `all`, looks at every count; otherwise only at
    /// those that have changed since.
    fn sweep(&mut self, all: bool, found: &mut dyn FnMut(Swept<'_>));

    /// Returns the replica's state.
    fn report(&self) -> ReplicaReport;

    /// Returns a place for the flows of a worker, if the replica can follow flows. Each worker has its own
    /// place.
    fn flows(&self) -> Option<Box<dyn FlowReplica>> {
        None
    }
}

/// Flows that a worker's engine has learnt and a replica follows.
///
/// The engine keeps what it knows about each flow. It writes flows here, adds their counts to its own, and
/// removes them here when they have left its own table.
pub trait FlowReplica: fmt::Debug + Send {
    /// Returns what the engine reads while packets are counted.
    fn lines(&self) -> Arc<dyn FlowLines>;

    /// Whether flows of a pipe are followed.
    fn follows(&self, pipe: PipeId) -> bool;

    /// Writes a flow of a pipe that was decided for the entry with these matches, or that follows its group
    /// (`None`). `kept` are the values of the entry's action that the flow keeps, as in
    /// [`KeptOperations`](crate::snapshot::KeptOperations). Returns `None` if the flow is not followed: there
    /// is no room, or no such entry.
    fn insert(
        &mut self,
        pipe: PipeId,
        key: &FlowKey,
        decided: Option<&[EntryMatch]>,
        kept: &[Option<Operation>],
    ) -> Option<FlowSlot>;

    /// Follows a flow if the packet with this mark is the last one that was left to the engine, which has
    /// sent it and all before it. Returns whether that was so.
    fn try_activate(&mut self, mark: FlowMark) -> bool;

    /// Leaves the packets of all flows, of any worker, to the engines until each flow is activated again.
    fn pause(&mut self);

    /// Stops following a flow. The last counts follow when no packet meets it any more.
    fn remove_flow(&mut self, slot: FlowSlot);

    /// Passes on the last counts of flows that were removed. Their slots are free from then on.
    fn take_removed(&mut self, gone: &mut dyn FnMut(FlowSlot, FlowCounts));
}

/// What flows have counted in a replica, which continues to count meanwhile.
pub trait FlowLines: fmt::Debug + Send + Sync {
    /// Returns what a flow has counted since the last call.
    fn sweep(&self, slot: FlowSlot) -> FlowCounts;

    /// Returns the same as [`FlowLines::sweep`] without resetting it.
    fn peek(&self, slot: FlowSlot) -> FlowCounts;

    /// Whether the replica handles packets of a flow.
    fn is_active(&self, slot: FlowSlot) -> bool;

    /// Reads what the replica has put in front of a frame of a flow that it does not follow yet. There may be
    /// the mark of another frame, which was in the same place before.
    fn read_mark(&self, front: &[u8; MARK_BYTES]) -> Option<FlowMark>;

    /// Returns the time by the clock of [`FlowCounts::last_ns`].
    fn now_ns(&self) -> u64;
}

/// Which packet of a flow a frame is, among those that were left to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowMark {
    /// The slot of the flow in the replica. It may hold another flow by now: see `life`.
    pub slot: FlowSlot,
    /// How often a flow had been written to the slot.
    pub life: u32,
    /// How many of the flow's packets were left to the engine, including the marked one.
    pub packets: u32,
    /// How often the replica had started.
    pub epoch: u32,
}

/// Bytes that a replica may put in front of a frame.
pub const MARK_BYTES: usize = 16;

/// Where a flow is in a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowSlot(pub u32);

/// What a flow has counted since the last sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Number of packets that the replica has handled since the last sweep.
    pub packets: u64,
    /// The bytes of these packets, as the pipe met them.
    pub bytes: u64,
    /// When the last packet was counted, in nanoseconds of CLOCK_MONOTONIC_COARSE; 0 if none ever was.
    pub last_ns: u64,
    /// The highest byte of the last TCP sequence number, if the pipe tracks states.
    pub seq: Option<u8>,
}

/// The counts of a replica since the last sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Swept<'a> {
    /// Hits of an entry.
    Entry(PipeId, &'a EntryKey, Count),
    /// Misses of a pipe.
    Misses(PipeId, Count),
    /// A shared counter.
    Counter(CounterId, Count),
    /// Packets that arrived at a port, by their verdict; bytes as they arrived.
    Decided(PortId, Verdict, Count),
    /// Bytes of frames that were sent through a port.
    Sent(PortId, u64),
    /// Frames with the verdict to be sent through a port, which the kernel has not sent.
    Unsent(PortId, u64),
    /// A sample of the dropped frames: its first headers, and how many frames it represents. All of them are
    /// counted as [`Swept::Decided`].
    Dropped(DropReason, &'a [u8], u64),
}

/// The state of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaReport {
    /// Whether packets meet the replica.
    pub active: bool,
    /// Why packets do not meet the replica, or which change has to wait for another compilation.
    pub obstacle: Option<String>,
    /// Whether the program must be compiled again, because an entry has a destination that no entry had
    /// before.
    pub stale: bool,
    /// Packets that the replica has handled, by the port of arrival.
    pub decided: Vec<u64>,
    /// Packets that the replica has left to the engine, by reason and port of arrival; reasons without
    /// packets are left out.
    pub left: Vec<(&'static str, Vec<u64>)>,
}

impl dyn TableReplica {
    /// Makes changes that the engine has made. `buckets` returns the present buckets of a group.
    pub fn apply<'a>(&mut self, changes: &[Change], buckets: impl Fn(GroupId) -> &'a [u16]) {
        for change in changes.iter().flat_map(Change::singles) {
            match change {
                Change::Add { pipe, entry } | Change::Update { pipe, entry } => self.put(*pipe, entry),
                Change::Remove { pipe, key } => self.remove(*pipe, key),
                Change::SetWeight { group, .. }
                | Change::SetWeights { group, .. }
                | Change::Publish { group, .. } => self.publish(*group, buckets(*group)),
                // Packets of given buckets stay in the engine, which counts them. Names mean nothing to a
                // replica, which counts by number.
                Change::MoveBuckets { .. } | Change::NameCounters(_) => {}
                Change::Batch(_) => unreachable!("a batch contains no batch"),
            }
        }
    }
}
