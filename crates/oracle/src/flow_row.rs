//! A flow and its state after each packet: sentences C9 and C11.

use super::effect::Newest;
use super::observed::FlowSum;
use super::packet::Segment;
use std::collections::BTreeMap;
use weir_packet::{FlowKey, Observed};
use weir_program::nat::Binding;
use weir_program::snapshot::{Count, FlowDecision, FlowSnapshot, KeptOperations};
use weir_program::{Measured, Timeouts};
use weir_table::FlowState;

/// A flow.
#[derive(Clone, Debug)]
pub(super) struct FlowRow {
    pub decision: FlowDecision,
    pub hits: Count,
    /// Observations about the packets that the flow has counted.
    pub observed: Observed,
    /// The counts that the flow has reported to a measurement.
    pub given: Count,
    pub first_ms: u64,
    pub last_ms: u64,
    /// The state of this direction, tracked if timeouts depend on it.
    pub state: FlowState,
    /// The highest byte of the flow's last sequence number.
    pub seq: u8,
    /// How many packets were tracked, up to 4.
    pub heard: u8,
    /// Whether the flow has reported counts to a measurement: if so, no further packet is the flow's first.
    pub gave: bool,
    /// The values of its entry's action that the flow keeps.
    pub kept: KeptOperations,
    /// The flow's address and port from the NAT pool.
    pub binding: Option<Binding>,
    /// The flow's newest segment: sentence C16.
    pub newest: Option<Newest>,
    /// The flow of the other direction, with which it was learnt: sentence M20.
    pub pair: Option<FlowKey>,
}

/// Tracks a packet of a flow: sentence C9. Returns whether it resets the connection.
pub(super) fn follow(flow: &mut FlowRow, segment: Option<Segment>) -> bool {
    let before = Some(flow.state).filter(|_| flow.hits.packets != 0 || flow.gave);
    flow.heard = (flow.heard + 1).min(4);
    let Some(Segment { flags, seq, has_data }) = segment else {
        flow.state = match before {
            None => FlowState::Single,
            Some(FlowState::Single | FlowState::Stream) => FlowState::Stream,
            Some(tcp) => tcp,
        };
        return false;
    };
    let (fin, syn, rst) = (flags & 1 == 1, flags & 2 == 2, flags & 4 == 4);
    let is_new = matches!(before, None | Some(FlowState::Single | FlowState::Stream));
    let far = i32::from(seq.wrapping_sub(flow.seq).cast_signed()).abs() > 1;
    if (fin || rst) && far && !is_new && before != Some(FlowState::TcpSyn) {
        return false;
    }
    if !rst {
        flow.seq = seq;
    }
    flow.state = match before {
        _ if rst => FlowState::TcpRst,
        _ if fin => FlowState::TcpHalfClosed,
        _ if is_new => FlowState::TcpSyn,
        Some(FlowState::TcpSyn | FlowState::TcpRst) if syn => FlowState::TcpSyn,
        Some(FlowState::TcpHalfClosed) if syn || !has_data => FlowState::TcpHalfClosed,
        _ => FlowState::TcpEstablished,
    };
    rst
}

/// Returns the live flow of the opposite direction: each of the two must still be the flow that the other was
/// learnt with.
pub(super) fn pair_of<'a>(
    flows: &'a BTreeMap<FlowKey, FlowRow>,
    key: &FlowKey,
    flow: &FlowRow,
) -> Option<&'a FlowRow> {
    flows.get(&flow.pair?).filter(|other| other.pair == Some(*key))
}

/// Handles a packet of the flow with this key that resets the connection; `pair` is the flow of the opposite
/// direction.
pub(super) fn reset_other(flows: &mut BTreeMap<FlowKey, FlowRow>, key: &FlowKey, pair: Option<FlowKey>) {
    let other = pair.and_then(|pair| flows.get_mut(&pair));
    if let Some(other) = other.filter(|other| other.pair == Some(*key) && other.heard > 0) {
        other.state = FlowState::TcpRst;
    }
}

/// Returns the state of a flow: both directions count as one (sentences C9 and M20).
pub(super) fn state_of(flow: &FlowRow, other: Option<&FlowRow>) -> FlowState {
    let Some(other) = other else { return flow.state };
    let both = [flow.state, other.state];
    let have = |state: FlowState| both.iter().filter(|one| **one == state).count();
    let order = [FlowState::TcpEstablished, FlowState::TcpSyn, FlowState::Stream, FlowState::Single];
    match (have(FlowState::TcpRst), have(FlowState::TcpHalfClosed)) {
        (0, 0) => order.into_iter().find(|state| both.contains(state)).unwrap_or_default(),
        (0, 1) => FlowState::TcpHalfClosed,
        (0, _) => FlowState::TcpFin,
        _ => FlowState::TcpRst,
    }
}

/// How certain it is that two hosts really have this flow: sentence C13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    None,
    Alone,
    Answered,
}

/// Returns when the last packet of a flow arrived, its state, and its proof: both directions count as one.
pub(super) fn as_one(
    flows: &BTreeMap<FlowKey, FlowRow>,
    key: &FlowKey,
    flow: &FlowRow,
) -> (u64, FlowState, Proof) {
    let other = pair_of(flows, key, flow);
    let last_ms = other.map_or(flow.last_ms, |other| flow.last_ms.max(other.last_ms));
    let proof = match (flow.heard, other.map_or(0, |other| other.heard)) {
        (2.., 2..) => Proof::Answered,
        (4, 0) | (0, 4) => Proof::Alone,
        _ => Proof::None,
    };
    (last_ms, state_of(flow, other), proof)
}

/// Returns the timeout of a flow while there is room for `room` more flows, out of `capacity`: sentence C13.
pub(super) fn hurried_ns(
    timeouts: &Timeouts,
    (state, proof): (FlowState, Proof),
    (room, capacity): (usize, u32),
) -> u64 {
    let timeout_ns = timeouts.ns(state);
    let waits = matches!(state, FlowState::Stream | FlowState::TcpEstablished);
    let (part, other) = match (state, proof) {
        (_, Proof::Answered) if waits => return timeout_ns,
        (_, Proof::Alone) if waits => (64, state),
        (FlowState::Stream, _) => (4, FlowState::Single),
        (FlowState::TcpEstablished, _) => (4, FlowState::TcpSyn),
        (FlowState::TcpHalfClosed, _) => (4, FlowState::TcpFin),
        _ => (4, state),
    };
    let (room, scarce) = (room as u64, u64::from(capacity) / part);
    if timeout_ns == 0 || room >= scarce {
        return timeout_ns;
    }
    let usual_ms = (timeout_ns / 1_000_000).max(1);
    let least_ms = match timeouts.ns(other) {
        0 => usual_ms,
        other_ns => usual_ms.min((other_ns / 1_000_000).max(1)),
    };
    let shared = least_ms * room / scarce;
    let hurried_ms = if 2 * room <= scarce {
        shared
    } else {
        (least_ms * room + (usual_ms - least_ms) * (2 * room - scarce)) / scarce
    };
    let most = if waits && proof == Proof::None { 16 } else { 32 };
    hurried_ms.max(least_ms / most).max(1) * 1_000_000
}

impl FlowRow {
    /// Whether the flow has counts from a previous period: sentence C11.
    pub fn is_due(&self, measured: Measured, now_ms: u64) -> bool {
        let period_ms = u64::from(measured.period_ms);
        self.hits.packets != 0 && self.last_ms < now_ms / period_ms * period_ms
    }

    /// Returns the flow's counts if they are due before a packet is counted: sentence C11.
    pub fn report_due(&mut self, measured: Option<Measured>, now_ms: u64) -> Option<FlowSum> {
        let measured = measured?;
        let is_due = self.is_due(measured, now_ms) || self.hits.packets >= measured.packets.into();
        let sum = is_due.then(|| self.give(now_ms));
        if self.hits.packets == 0 {
            self.first_ms = now_ms;
        }
        sum
    }

    /// Returns the flow's counts and resets them.
    pub fn give(&mut self, now_ms: u64) -> FlowSum {
        (self.first_ms, self.gave) = (now_ms, true);
        let sum = self.sum();
        self.given.add(std::mem::take(&mut self.hits));
        sum
    }

    /// What the flow has counted.
    pub fn sum(&self) -> FlowSum {
        FlowSum { hits: self.hits, observed: self.observed }
    }

    /// Counts a packet.
    pub fn count(&mut self, bytes: usize, observed: &Observed, now_ms: u64) {
        let mut sum = self.sum();
        sum.one(bytes, observed);
        (self.hits, self.observed, self.last_ms) = (sum.hits, sum.observed, now_ms);
    }

    pub fn new(decision: FlowDecision, now_ms: u64) -> FlowRow {
        FlowRow {
            decision,
            hits: Count::default(),
            observed: Observed::default(),
            given: Count::default(),
            first_ms: now_ms,
            last_ms: now_ms,
            state: FlowState::Single,
            kept: Vec::new(),
            gave: false,
            seq: 0,
            heard: 0,
            binding: None,
            newest: None,
            pair: None,
        }
    }

    pub fn snapshot(&self, key: FlowKey, by_state: bool, other: Option<&FlowRow>) -> FlowSnapshot {
        FlowSnapshot {
            key,
            decision: self.decision,
            hits: self.hits,
            given: self.given,
            first_ms: self.first_ms as u32,
            last_ms: self.last_ms as u32,
            state: by_state.then(|| state_of(self, other)),
            binding: self.binding,
            pair: self.pair.filter(|_| other.is_some()),
            in_kernel: false,
        }
    }
}
