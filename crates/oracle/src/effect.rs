//! The changes of state that a packet causes.

use super::meter::MeterState;
use super::packet::Segment;
use std::net::IpAddr;
use weir_packet::{FlowKey, Observed};
use weir_program::nat::Binding;
use weir_program::snapshot::FlowDecision;
use weir_program::{CounterId, GroupId, MeterId, Operation, PipeId, PortId};

/// A change of state by a packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The packet hit an entry (`entry` is its position among the pipe's entries).
    Hit {
        /// The pipe.
        pipe: PipeId,
        /// Position of the entry.
        row: usize,
        /// Bytes counted.
        bytes: usize,
    },
    /// The packet missed.
    Miss {
        /// The pipe.
        pipe: PipeId,
        /// Bytes counted.
        bytes: usize,
    },
    /// The packet counts in a shared counter.
    Counter {
        /// The counter.
        counter: CounterId,
        /// Bytes counted.
        bytes: usize,
    },
    /// The packet spends a meter's tokens.
    Meter {
        /// The meter.
        meter: MeterId,
        /// The remaining tokens.
        left: MeterState,
    },
    /// The packet meets a given bucket.
    Bucket {
        /// The group.
        group: GroupId,
        /// The bucket.
        bucket: usize,
        /// Bytes counted.
        bytes: usize,
    },
    /// The packet is flooded to a group; due moves of the group's buckets are carried out.
    Flood {
        /// The group.
        group: GroupId,
    },
    /// The packet takes a turn of a pipe that distributes packets in turn.
    Turn {
        /// The pipe.
        pipe: PipeId,
    },
    /// A flow that the packet creates takes a turn of the flow's group.
    TurnOfFlow {
        /// The pipe.
        pipe: PipeId,
        /// The group.
        group: GroupId,
        /// The turn that was taken.
        turn: u64,
    },
    /// The packet creates a flow.
    Learn {
        /// The pipe.
        pipe: PipeId,
        /// The flow.
        key: FlowKey,
        /// The decision for the flow.
        decision: FlowDecision,
        /// The values that the flow keeps: see `per_flow` in docs/reference/pipes.md.
        kept: Vec<Option<Operation>>,
        /// The address and port that the flow takes from the pipe's NAT pool, shared with its answers.
        binding: Option<Binding>,
        /// The flow that this flow answers.
        answers: Option<FlowKey>,
    },
    /// The target of its source is remembered.
    Remember {
        /// The pipe.
        pipe: PipeId,
        /// The group.
        group: GroupId,
        /// The first address of the source's prefix.
        source: IpAddr,
        /// The target.
        target: u16,
    },
    /// The packet ends a flow, and the flow of its answers, because the packet begins another flow with the
    /// same key.
    Reopened {
        /// The pipe.
        pipe: PipeId,
        /// The flow.
        key: FlowKey,
    },
    /// The packet belongs to a live flow.
    Flow {
        /// The pipe.
        pipe: PipeId,
        /// The flow.
        key: FlowKey,
        /// Bytes counted.
        bytes: usize,
        /// What the packet's TCP header says.
        segment: Option<Segment>,
        /// What is observed about the packet.
        observed: Observed,
        /// The packet's headers, if it shows the sequence numbers of both ends of a connection.
        newest: Option<Newest>,
    },
    /// The packet is added to the sum of its flow.
    Sum {
        /// The pipe.
        pipe: PipeId,
        /// The flow.
        key: FlowKey,
        /// Bytes counted.
        bytes: usize,
        /// What is observed about the packet.
        observed: Observed,
    },
    /// The packet was looked up in a FLOW pipe, or was subject to summing up.
    Met {
        /// The pipe.
        pipe: PipeId,
    },
    /// The packet is not counted in a flow.
    Unflowed {
        /// The pipe.
        pipe: PipeId,
        /// The reason.
        why: Why,
    },
}

/// Why a packet is not counted in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The packet has no flow key.
    NoKey,
    /// The packet's metadata chooses no group.
    NoGroup,
    /// The packet's flow is unknown, and the pipe learns no flows.
    Unknown,
    /// The packet is an ICMP error about a pinned flow.
    IcmpError,
    /// There is no target, or no entry for the target.
    NoTarget,
    /// The table is full.
    Full,
    /// There is no free port in the NAT pool.
    NoNatPort,
    /// Another flow already has the same answers.
    AnswersTaken,
}

/// The headers of a segment that shows the sequence numbers of both ends of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The sequence number after the segment.
    pub end: u32,
    /// The port that the segment came from.
    pub input: PortId,
    /// The segment's bytes, up to the end of the TCP header without options.
    pub bytes: Vec<u8>,
}
