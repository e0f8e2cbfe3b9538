//! A flow and its state after each packet: sentences C9 and C11.

use super::action::KeptOperations;
use super::observed::FlowSum;
use crate::nat::Binding;
use crate::program::Measured;
use crate::snapshot::{Count, FlowDecision, FlowSnapshot};
use packet::{FlowKey, Observed};
use std::collections::BTreeMap;
use table::FlowState;

/// A flow.
#[derive(Clone, Debug)]
pub(super) struct FlowRow {
    pub decision: FlowDecision,
    pub hits: Count,
    /// What was observed of the packets that it has counted.
    pub observed: Observed,
    /// What it has given to a measurement.
    pub given: Count,
    pub first_ms: u64,
    pub last_ms: u64,
    /// Followed if timeouts depend on it.
    pub state: FlowState,
    /// Whether it has given counts to a measurement: then no packet is its first one.
    pub gave: bool,
    /// What it keeps of its entry's action.
    pub kept: KeptOperations,
    /// What it has of the NAT pool.
    pub binding: Option<Binding>,
    /// The flow of the other direction, with which it was learnt: sentence M20.
    pub pair: Option<FlowKey>,
}

/// Returns the state of a flow after a packet with these TCP flags: sentence C9.
pub(super) fn state_after(flow: &FlowRow, flags: Option<u8>) -> FlowState {
    let before = Some(flow.state).filter(|_| flow.hits.packets != 0 || flow.gave);
    let Some(flags) = flags else {
        return match before {
            None => FlowState::Single,
            Some(FlowState::Single | FlowState::Stream) => FlowState::Stream,
            Some(tcp) => tcp,
        };
    };
    let (fin, syn, rst) = (flags & 1 == 1, flags & 2 == 2, flags & 4 == 4);
    let is_new = matches!(before, None | Some(FlowState::Single | FlowState::Stream));
    let has_ended = matches!(before, Some(FlowState::TcpFin | FlowState::TcpRst));
    match before {
        _ if rst => FlowState::TcpRst,
        _ if fin => FlowState::TcpFin,
        _ if is_new => FlowState::TcpSyn,
        _ if syn && before != Some(FlowState::TcpEstablished) => FlowState::TcpSyn,
        Some(ended) if has_ended => ended,
        _ => FlowState::TcpEstablished,
    }
}

/// Returns the live flow of the other direction: each must still be the one that the other was learnt with.
pub(super) fn pair_of<'a>(
    flows: &'a BTreeMap<FlowKey, FlowRow>,
    key: &FlowKey,
    flow: &FlowRow,
) -> Option<&'a FlowRow> {
    flows.get(&flow.pair?).filter(|other| other.pair == Some(*key))
}

/// Returns the time of the last packet of a flow, and its state. Both directions are one: the last packet of
/// the two counts, and the state that has come further (sentence M20).
pub(super) fn as_one(flows: &BTreeMap<FlowKey, FlowRow>, key: &FlowKey, flow: &FlowRow) -> (u64, FlowState) {
    let other = pair_of(flows, key, flow);
    let last_ms = other.map_or(flow.last_ms, |other| flow.last_ms.max(other.last_ms));
    let further = other.filter(|other| other.state as u8 > flow.state as u8);
    (last_ms, further.map_or(flow.state, |other| other.state))
}

/// Returns the timeout of a flow in this state while there is room for so many flows more, of so many:
/// sentence C13.
pub(super) fn hurried_ns(timeout_ns: u64, state: FlowState, (room, capacity): (usize, u32)) -> u64 {
    let (room, scarce) = (room as u64, u64::from(capacity) / 4);
    let waits = matches!(state, FlowState::Stream | FlowState::TcpEstablished);
    if timeout_ns == 0 || waits || room >= scarce {
        return timeout_ns;
    }
    let usual_ms = (timeout_ns / 1_000_000).max(1);
    (usual_ms * room / scarce).max(usual_ms / 32).max(1) * 1_000_000
}

impl FlowRow {
    /// Whether it has counts from a former period: sentence C11.
    pub fn is_due(&self, measured: Measured, now_ms: u64) -> bool {
        let period_ms = u64::from(measured.period_ms);
        self.hits.packets != 0 && self.last_ms < now_ms / period_ms * period_ms
    }

    /// Returns its counts, which begin anew.
    pub fn give(&mut self, now_ms: u64) -> FlowSum {
        (self.first_ms, self.gave) = (now_ms, true);
        let sum = self.sum();
        self.given.add(std::mem::take(&mut self.hits));
        sum
    }

    /// What it has counted.
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
            binding: None,
            pair: None,
        }
    }

    pub fn snapshot(&self, key: FlowKey, by_state: bool, paired: bool) -> FlowSnapshot {
        FlowSnapshot {
            key,
            decision: self.decision,
            hits: self.hits,
            given: self.given,
            first_ms: self.first_ms as u32,
            last_ms: self.last_ms as u32,
            state: by_state.then_some(self.state),
            binding: self.binding,
            paired,
        }
    }
}
