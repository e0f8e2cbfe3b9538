//! Which executor handles a packet: the program in the kernel or, for a reason, the engine.

use super::RenderNames;
use crate::config::write_forward;
use weir_kernel::{CHECKSUM_PROTOCOLS, Coverage, Why, uses_inner_key, writes_addresses};
use weir_oracle::Walk;
use weir_oracle::trace::{Lookup, Step};
use weir_packet::{Base, Depth, DropReason, FlowKey, Headers, Layer, TunnelKind, parse_into};
use weir_program::{Forward, Pipe, PipeId, PipeKind, PortId, Program, Verdict};

/// Which parts of a program the kernel can handle.
#[derive(Clone, Debug)]
pub struct KernelView {
    /// Which parts of the program compile.
    pub coverage: Coverage,
    /// Why the kernel handles no frames of the port; `None` if it handles frames.
    pub obstacle: Option<String>,
    /// Flows whose packets the kernel handles.
    pub flows: Vec<(PipeId, FlowKey)>,
}

/// The executor that handles a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executor {
    /// The program in the kernel.
    Kernel,
    /// The batch engine, for this reason.
    Engine(String),
}

impl KernelView {
    /// Returns which executor handles a packet with this walk.
    pub fn executor(&self, names: &RenderNames<'_>, input: PortId, frame: &[u8], walk: &Walk) -> Executor {
        let port = || format!("port {}", names.port(input));
        if let Some(obstacle) = &self.obstacle {
            return Executor::Engine(format!("{}: {obstacle}", port()));
        }
        let program = names.program;
        // Without a root, the kernel drops every frame before it looks for headers.
        let has_root = program.ports.get(input.index()).is_some_and(|port| port.root.is_some());
        if let Some(why) = unusual(program, frame).filter(|_| has_root) {
            return Executor::Engine(why.explanation().into());
        }
        if walk.verdict == Verdict::Drop(DropReason::Oversize) {
            return Executor::Engine(Why::Length.explanation().into());
        }
        let flags = tcp_flags(program, frame);
        let left = walk.trace.iter().find_map(|step| self.step(names, step, flags));
        left.map_or(Executor::Kernel, Executor::Engine)
    }

    /// Returns why a pipe leaves the packet to the engine.
    fn step(&self, names: &RenderNames<'_>, step: &Step, flags: u8) -> Option<String> {
        let program = names.program;
        let pipe = program.pipes.get(step.pipe.index())?;
        let place = |what: String, why: Why| format!("{what}pipe `{}`: {}", pipe.name, why.explanation());
        if let Some(why) = self.coverage.pipes[step.pipe.index()] {
            return Some(place(String::new(), why));
        }
        if let Some(why) = self.flow(pipe, step, flags & CHANGES_STATE != 0) {
            return Some(place(String::new(), why));
        }
        match &step.lookup {
            Lookup::Hit(hit) => {
                let template = pipe.templates.iter().position(|one| one.name == hit.template)? as u16;
                let is_left = flags & SYN != 0 && self.coverage.leaves_syns(program, step.pipe, template);
                let why = if is_left { Why::Syn } else { self.hit(program, step, pipe, template)? };
                Some(place(format!("entry {} of ", names.entry(step.pipe, &hit.entry)), why))
            }
            Lookup::Miss(_) => {
                let why = self.coverage.why_not_forward(program, pipe.miss)?;
                Some(place(format!("the miss ({}) of ", write_forward(pipe.miss, program)), why))
            }
            // The kernel drops it, too.
            Lookup::NoTarget => None,
        }
    }

    /// Returns why a FLOW pipe leaves the packet to the engine.
    fn flow(&self, pipe: &Pipe, step: &Step, changes_state: bool) -> Option<Why> {
        let PipeKind::Flow { timeouts, .. } = &pipe.kind else { return None };
        let key = step.flow.as_ref().and_then(|flow| flow.key);
        let is_followed = key.is_some_and(|key| self.flows.contains(&(step.pipe, key)));
        if !is_followed || step.flow.is_some_and(|flow| flow.reopened) {
            return Some(Why::NewFlow);
        }
        if changes_state && timeouts.are_by_state() {
            return Some(Why::TcpFlags);
        }
        (step.lookup == Lookup::NoTarget).then_some(Why::Targetless)
    }

    fn hit(&self, program: &Program, step: &Step, pipe: &Pipe, template: u16) -> Option<Why> {
        let lead = |forward: Forward| self.coverage.lead(program, step.pipe, (forward, template));
        if let Some(forwarded) = &step.forward {
            return lead(forwarded.said);
        }
        // The action dropped the packet, so the walk does not say where the entry leads.
        if pipe.forward != Forward::PerEntry {
            return lead(pipe.forward);
        }
        let leads = &self.coverage.leads[step.pipe.index()];
        leads.iter().filter(|one| one.1 == template).find_map(|one| lead(one.0))
    }
}

/// Flags of TCP: SYN, and all that change the state of a connection (FIN, SYN, RST).
const SYN: u8 = 0x02;
const CHANGES_STATE: u8 = 0x07;

/// Returns the flags of a frame's TCP header; none without one.
fn tcp_flags(program: &Program, frame: &[u8]) -> u8 {
    let mut headers = Headers::default();
    let is_read = parse_into(frame, program.depth(), &program.tunnels, &mut headers).is_ok();
    let outer = headers.outer();
    let flags = frame.get(outer.at(Base::L4) + 13).copied().unwrap_or_default();
    if is_read && outer.layers.has(Layer::Tcp) { flags } else { 0 }
}

/// Returns why the kernel leaves a frame to the engine because of its headers alone. Headers are examined in
/// the kernel's order.
fn unusual(program: &Program, frame: &[u8]) -> Option<Why> {
    let (depth, mut headers) = (program.depth(), Headers::default());
    if parse_into(frame, depth, &program.tunnels, &mut headers).is_err() {
        return Some(Why::Malformed);
    }
    let outer = headers.outer();
    let at = |base: Base, offset: usize| frame.get(outer.at(base) + offset).copied().unwrap_or_default();
    let (ipv4, ipv6) = (outer.layers.has(Layer::Ipv4), outer.layers.has(Layer::Ipv6));
    if !ipv4 && !ipv6 {
        return None;
    }
    if ipv4 && u16::from_be_bytes([at(Base::L3, 6), at(Base::L3, 7)]) & 0x3fff != 0 {
        return Some(Why::Fragment);
    }
    if ipv6 && matches!(at(Base::L3, 6), 0 | 43 | 44 | 51 | 60) {
        return Some(Why::ExtensionHeaders);
    }
    if writes_addresses(program) && CHECKSUM_PROTOCOLS.contains(&outer.protocol) {
        return Some(Why::Checksum);
    }
    let dport = u16::from_be_bytes([at(Base::L4, 2), at(Base::L4, 3)]);
    let of_udp = |kind: &TunnelKind| kind.is_udp() && program.tunnels.of(*kind) == dport;
    let is_tunnel = match outer.protocol {
        4 | 41 | 47 => true,
        17 => TunnelKind::ALL.iter().any(of_udp),
        _ => false,
    };
    if uses_inner_key(program) && is_tunnel {
        return Some(Why::Tunnel);
    }
    let is_error = match outer.protocol {
        1 if ipv4 => matches!(at(Base::L4, 0), 3..=5 | 11 | 12),
        58 if ipv6 => matches!(at(Base::L4, 0), 1..=4),
        _ => false,
    };
    (depth >= Depth::L4 && is_error).then_some(Why::IcmpError)
}
