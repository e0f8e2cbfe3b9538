//! The inputs of a walk: a frame as it arrives, and the source of live flows.

use std::net::IpAddr;
use weir_packet::FlowKey;
use weir_program::nat::Binding;
use weir_program::snapshot::{FlowSnapshot, KeptOperations};
use weir_program::{Entry, GroupId, PipeId, PortId};

/// A frame as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The port on which the frame arrives.
    pub input: PortId,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Free bytes in front of the frame (headroom).
    pub headroom: usize,
    /// The hash delivered by the NIC; 0 if there is none.
    pub hash: u32,
    /// For a later fragment, the source and destination port of its datagram, if known.
    pub ports: Option<[u16; 2]>,
}

/// Where the entries of pipes are stored.
pub trait EntrySource {
    /// Calls `each` with every entry of a pipe, in the order of insertion.
    fn each_entry(&self, pipe: PipeId, each: &mut dyn FnMut(Entry));
}

/// Live flows at one moment.
#[derive(Clone, Copy)]
pub(super) struct FlowsAt<'a> {
    pub flows: &'a dyn FlowSource,
    pub now_ns: u64,
}

/// A source of live flows: the interpreter's own state, or the workers of a running daemon.
pub trait FlowSource {
    /// The entries of pipes, if they are not in the interpreter.
    fn entries(&self) -> Option<&dyn EntrySource> {
        None
    }

    /// The live flow with this key in a FLOW pipe.
    fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot>;

    /// The values of its entry's action that this flow keeps (pipes.md A19); `None` if there is no such flow,
    /// or if the pipe's flows keep nothing.
    fn kept(&self, pipe: PipeId, key: &FlowKey) -> Option<KeptOperations>;

    /// The address and port that a new flow with this key takes from the pipe's NAT pool, if `freed` is free
    /// in addition to those that are free now; `None` if no port is left for it.
    fn next_binding(&self, pipe: PipeId, key: &FlowKey, freed: Option<Binding>) -> Option<Binding>;

    /// Whether the pipe's table has room for `_flows` more flows.
    fn has_room(&self, _pipe: PipeId, _flows: usize) -> bool {
        true
    }

    /// The next turn of a group for new flows of a pipe; `None` if none was taken yet.
    fn turn(&self, _pipe: PipeId, _group: GroupId) -> Option<u64> {
        None
    }

    /// How many live flows of a pipe a target has.
    fn flows_of(&self, _pipe: PipeId, _group: GroupId, _target: u16) -> u64 {
        0
    }

    /// The target that flows from a source prefix go to, by the prefix's first address, if the target is
    /// remembered.
    fn recalled(&self, _pipe: PipeId, _group: GroupId, _source: IpAddr, _now_ns: u64) -> Option<u16> {
        None
    }

    /// When the pipe's table last had no room for a flow, in milliseconds.
    fn full_ms(&self, _pipe: PipeId) -> Option<u64> {
        None
    }
}
