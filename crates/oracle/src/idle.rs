//! An app resets connections whose flows have been idle too long: sentence C16.

use super::Interpreter;
use super::bytes::{TransportKind, number16};
use super::effect::Newest;
use super::flow_row::{FlowRow, as_one};
use super::packet::Packet;
use super::state::{PipeState, is_over};
use weir_packet::KeySource;
use weir_program::snapshot::FlowDecision;
use weir_program::{AppId, FlowState, Group, GroupChoice, Learn, Pipe, PipeKind, PortId};
use weir_table::DeltaReason;

/// The longest headers that are kept.
const LONGEST: usize = 112;

impl Packet {
    /// Returns the headers that a flow keeps of the segment.
    pub fn newest(&self) -> Option<Newest> {
        let (ip, tcp) = (self.headers.ip.as_ref()?, self.headers.transport_of(TransportKind::Tcp)?);
        let number = |at: usize| number16(&self.bytes, at).unwrap_or_default();
        let flags = number(tcp + 12);
        let (fin, syn, rst, ack) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0, flags & 16 != 0);
        if !ack || syn || rst || tcp + 20 > LONGEST {
            return None;
        }
        let data = ip.end.saturating_sub(tcp + 4 * usize::from(number(tcp + 12) >> 12)) as u32;
        let seq = u32::from(number(tcp + 4)) << 16 | u32::from(number(tcp + 6));
        let end = seq.wrapping_add(data).wrapping_add(fin.into());
        Some(Newest { end, input: self.input, bytes: self.bytes.get(..tcp + 20)?.to_vec() })
    }
}

impl FlowRow {
    /// Keeps the headers of a segment, unless it is older than the one already kept.
    pub fn keep_newest(&mut self, segment: &Option<Newest>) {
        let is_older = |one: &Newest, kept: &Newest| kept.end.wrapping_sub(one.end).wrapping_sub(1) < 1 << 31;
        match (segment, &self.newest) {
            (None, _) => {}
            (Some(one), Some(kept)) if is_older(one, kept) => {}
            (Some(one), _) => self.newest = Some(one.clone()),
        }
    }
}

impl PipeState {
    /// Passes the newest segments of connections that have been idle too long to apps.
    pub(super) fn announce(&mut self, pipe: &Pipe, groups: &[Group], now_ms: u64) {
        let PipeKind::Flow { key: KeySource::Outer, learn: Learn::Pin(choice), timeouts, .. } = pipe.kind
        else {
            return;
        };
        let all = self.flows.clone();
        for (key, flow) in all.iter().filter(|_| timeouts.are_by_state()) {
            let (last_ms, state, _) = as_one(&all, key, flow);
            let app = app_of(choice, flow.decision, groups);
            let is_idle = is_over(now_ms.saturating_sub(last_ms), timeouts.ns(state));
            let (Some(app), Some(newest), FlowState::TcpEstablished, true) =
                (app, &flow.newest, state, is_idle)
            else {
                continue;
            };
            self.idle.push((app, newest.input, newest.bytes.clone()));
            let Some(flow) = self.flows.get_mut(key) else { continue };
            if let Some(sum) = flow.report_due(pipe.monitor.measured, now_ms) {
                self.given += sum.hits.packets;
                self.ended.push((*key, sum, DeltaReason::Interval));
            }
            (flow.state, flow.last_ms, flow.newest) = (FlowState::TcpRst, now_ms, None);
        }
    }
}

/// Returns the app that resets idle flows with this decision.
fn app_of(choice: GroupChoice, decision: FlowDecision, groups: &[Group]) -> Option<AppId> {
    let group = match decision {
        FlowDecision::Pinned(_) => choice.one()?,
        FlowDecision::PinnedIn(group, _) => group,
        FlowDecision::Default | FlowDecision::Follow(_) | FlowDecision::FollowChosen | FlowDecision::Own => {
            return None;
        }
    };
    groups.get(group.index())?.idle
}

impl Interpreter {
    /// Returns what must be reported to apps about idle connections since the last call: the app, the port
    /// that the newest segment came from, and its headers.
    pub fn take_idle(&mut self) -> Vec<(AppId, PortId, Vec<u8>)> {
        self.pipes.iter_mut().flat_map(|pipe| std::mem::take(&mut pipe.idle)).collect()
    }
}
