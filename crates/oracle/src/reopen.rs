//! A SYN on a flow that has ended begins another flow: sentence C15.

use super::Interpreter;
use super::packet::Packet;
use super::source::FlowSource;
use super::state::PipeState;
use std::net::IpAddr;
use weir_packet::FlowKey;
use weir_program::nat::Binding;
use weir_program::snapshot::{FlowDecision, FlowSnapshot, KeptOperations};
use weir_program::{FlowState, GroupId, Learn, PipeId, PipeKind};
use weir_table::DeltaReason;

/// The flags that determine what a segment does: FIN, SYN, RST and ACK.
const TOLD_BY: u8 = 0x17;
const SYN: u8 = 0x02;

/// The flows that remain after one of them, and the flow of its answers, have ended.
pub(super) struct Without<'a> {
    pub flows: &'a dyn FlowSource,
    pub pipe: PipeId,
    pub ended: FlowSnapshot,
    /// Whether all flows of the pipe belong to one group.
    pub one_group: bool,
}

/// Whether a decision is for a target; `one_group` is true if the pipe's decisions name no other group.
pub(super) fn is_for(decision: FlowDecision, one_group: bool, (group, target): (GroupId, u16)) -> bool {
    match decision {
        FlowDecision::Pinned(other) => one_group && other == target,
        FlowDecision::PinnedIn(of, other) => (of, other) == (group, target),
        FlowDecision::Default | FlowDecision::Follow(_) | FlowDecision::FollowChosen | FlowDecision::Own => {
            false
        }
    }
}

impl Without<'_> {
    fn has_ended(&self, pipe: PipeId, key: &FlowKey) -> bool {
        pipe == self.pipe && (self.ended.key == *key || self.ended.pair == Some(*key))
    }
}

impl FlowSource for Without<'_> {
    fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        if self.has_ended(pipe, key) { None } else { self.flows.flow(pipe, key) }
    }

    fn kept(&self, pipe: PipeId, key: &FlowKey) -> Option<KeptOperations> {
        if self.has_ended(pipe, key) { None } else { self.flows.kept(pipe, key) }
    }

    fn next_binding(&self, pipe: PipeId, key: &FlowKey, freed: Option<Binding>) -> Option<Binding> {
        let freed = if pipe == self.pipe { self.ended.binding } else { freed };
        self.flows.next_binding(pipe, key, freed)
    }

    fn has_room(&self, pipe: PipeId, flows: usize) -> bool {
        let left = if pipe == self.pipe { 1 + self.ended.pair.iter().len() } else { 0 };
        self.flows.has_room(pipe, flows.saturating_sub(left))
    }

    fn turn(&self, pipe: PipeId, group: GroupId) -> Option<u64> {
        self.flows.turn(pipe, group)
    }

    fn flows_of(&self, pipe: PipeId, group: GroupId, target: u16) -> u64 {
        let left = pipe == self.pipe && is_for(self.ended.decision, self.one_group, (group, target));
        self.flows.flows_of(pipe, group, target).saturating_sub(left.into())
    }

    fn recalled(&self, pipe: PipeId, group: GroupId, source: IpAddr, now_ns: u64) -> Option<u16> {
        self.flows.recalled(pipe, group, source, now_ns)
    }

    fn full_ms(&self, pipe: PipeId) -> Option<u64> {
        self.flows.full_ms(pipe)
    }
}

impl Interpreter {
    /// Whether a packet begins another flow although a flow with the packet's key exists.
    pub(super) fn reopens(&self, pipe: PipeId, packet: &Packet, flow: &FlowSnapshot) -> bool {
        let PipeKind::Flow { key, learn, reverse, .. } = self.program.pipes[pipe.index()].kind else {
            return false;
        };
        let opens = packet.segment(key).is_some_and(|segment| segment.flags & TOLD_BY == SYN);
        let has_ended = match flow.state {
            Some(FlowState::TcpRst | FlowState::TcpFin) => true,
            Some(FlowState::TcpHalfClosed) => !reverse,
            Some(FlowState::Single | FlowState::Stream | FlowState::TcpSyn | FlowState::TcpEstablished)
            | None => false,
        };
        let is_answers = reverse && flow.decision == FlowDecision::Default;
        opens && has_ended && learn != Learn::Nothing && !is_answers
    }
}

impl PipeState {
    /// Ends the flow with this key, together with the flow of its answers.
    pub(super) fn reopen(&mut self, key: &FlowKey) {
        let pair = self.flows.get(key).and_then(|flow| flow.pair);
        let pair = pair.filter(|pair| self.flows.get(pair).is_some_and(|other| other.pair == Some(*key)));
        self.end_flows(DeltaReason::Reopened, |one, _| one == key || Some(*one) == pair);
    }
}
