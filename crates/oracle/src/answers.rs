//! The flow of answers that is learnt with a flow, and what flows keep: sentences M20 and A19.

use super::Interpreter;
use super::action::{keep, settled};
use super::effect::Effect;
use super::packet::Packet;
use super::source::FlowSource;
use std::net::IpAddr;
use weir_packet::{Field, FlowKey};
use weir_program::nat::Binding;
use weir_program::operation::Value;
use weir_program::snapshot::{FlowDecision, KeptOperations};
use weir_program::{EntryMatch, Operation, PipeId, PipeKind};

/// The answers to a flow that is about to be learnt are those of another flow.
pub(super) struct Taken;

impl Interpreter {
    /// Returns what the flow that this packet begins keeps.
    pub(super) fn keep(
        &self,
        id: PipeId,
        row: usize,
        packet: &Packet,
        binding: Option<Binding>,
    ) -> KeptOperations {
        let entry = &self.pipes[id.index()].rows()[row].entry;
        let template = &self.program.pipes[id.index()].templates[usize::from(entry.template)];
        keep(template, &entry.values, Some(packet), binding)
    }

    /// Returns how the answers to the flow that this packet begins are learnt: sentence M20. The error means
    /// that another flow already has these answers.
    pub(super) fn answers(
        &self,
        id: PipeId,
        key: &FlowKey,
        (row, binding): (usize, Option<Binding>),
        packet: &Packet,
        flows: &dyn FlowSource,
    ) -> Result<Option<Effect>, Taken> {
        if !matches!(self.program.pipes[id.index()].kind, PipeKind::Flow { reverse: true, .. }) {
            return Ok(None);
        }
        let state = &self.pipes[id.index()];
        let Some(default) = state.row_of(&EntryMatch::Default) else { return Ok(None) };
        let entry = &state.rows()[row].entry;
        let template = &self.program.pipes[id.index()].templates[usize::from(entry.template)];
        let (mut src, mut dst, mut sport, mut dport) = (key.src(), key.dst(), key.sport(), key.dport());
        for operation in settled(template, &entry.values, Some(packet), binding) {
            let Operation::Set(field, Value::Const(number)) = operation else { continue };
            match field {
                Field::Ipv4Src if src.is_ipv4() => src = IpAddr::from((number as u32).to_be_bytes()),
                Field::Ipv4Dst if dst.is_ipv4() => dst = IpAddr::from((number as u32).to_be_bytes()),
                Field::Ipv6Src if src.is_ipv6() => src = IpAddr::from(number.to_be_bytes()),
                Field::Ipv6Dst if dst.is_ipv6() => dst = IpAddr::from(number.to_be_bytes()),
                Field::L4Sport | Field::TcpSport | Field::UdpSport => sport = number as u16,
                Field::L4Dport | Field::TcpDport | Field::UdpDport => dport = number as u16,
                _ => {}
            }
        }
        let answers = FlowKey::new(dst, src, key.protocol(), (dport, sport), None);
        if answers == *key {
            return Ok(None);
        }
        let known = flows.flow(id, &answers);
        if known.as_ref().is_some_and(|flow| flow.pair.is_some()) {
            return Err(Taken);
        }
        let (decision, kept) = (FlowDecision::Default, self.keep(id, default, packet, None));
        let learnt = Effect::Learn { pipe: id, key: answers, decision, kept, binding, answers: Some(*key) };
        Ok(known.is_none().then_some(learnt))
    }
}
