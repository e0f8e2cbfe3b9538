//! What a program has counted, in a form that can be compared, summed over workers and shown. Both executors make it.

use crate::change::EntryKey;
use crate::program::GroupId;
use packet::FlowKey;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes of the frames, without FCS.
    pub bytes: u64,
}

impl Count {
    /// Counts one packet.
    #[inline(always)]
    pub fn one(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }

    /// Adds another count.
    pub fn add(&mut self, other: Count) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// All counts of a program, pipes and counters in the program's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// One per pipe.
    pub pipes: Vec<PipeSnapshot>,
    /// One per shared counter.
    pub counters: Vec<Count>,
    /// One per group.
    pub buckets: Vec<BucketReport>,
}

/// The buckets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketReport {
    /// Each bucket's target, by its position in the group; `u16::MAX`: none.
    pub slots: Vec<u16>,
    /// Packets that met each bucket; empty unless the group is filled by hand, as all that follows is 0 then.
    pub packets: Vec<u64>,
    /// Their bytes, as they were when the bucket was met.
    pub bytes: Vec<u64>,
    /// Moves carried out.
    pub moved: u64,
    /// Those of them that found the bucket in use: they had waited as long as they may.
    pub moved_busy: u64,
    /// Moves that wait.
    pub pending: usize,
}

/// The counts of a pipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipeSnapshot {
    /// Packets that missed.
    pub misses: Count,
    /// Entries in the order of their keys' first insertion, not promised beyond that.
    pub entries: Vec<EntrySnapshot>,
    /// Live flows of a FLOW pipe, in no order.
    pub flows: Vec<FlowSnapshot>,
    /// Packets that met the FLOW pipe and were not counted in a flow because the table was full.
    pub unflowed_full: u64,
    /// Packets that a HASH pipe has dealt out in turn (`round_robin`).
    pub turns: u64,
}

/// The counts of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySnapshot {
    /// Its key.
    pub key: EntryKey,
    /// Was it added at run time?
    pub run_time: bool,
    /// What hit it.
    pub hits: Count,
    /// When it was last hit, in milliseconds of the worker's clock; `None`: never.
    pub last_hit_ms: Option<u64>,
}

/// One live flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSnapshot {
    /// The flow.
    pub key: FlowKey,
    /// What was decided for it.
    pub decision: FlowDecision,
    /// Its packets and bytes.
    pub hits: Count,
    /// When its first packet came, milliseconds.
    pub first_ms: u32,
    /// When its last packet came, milliseconds.
    pub last_ms: u32,
}

/// What a FLOW entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDecision {
    /// The pipe's default entry.
    Default,
    /// Stays with this target of the pipe's group.
    Pinned(u16),
    /// Follows the group's buckets.
    Follow(GroupId),
    /// An entry of its own, given by configuration or at run time.
    Own,
}
