//! From a program to eBPF: one XDP program for each port.
//!
//! A packet is parsed, then walks from pipe to pipe. Until the verdict, only registers and the stack change,
//! except by actions after which no pipe can leave the packet to the engine; counts are noted on the stack.
//! At the end, [`Compiler::finish`] counts everything at once. So a packet that is left to the engine has
//! changed nothing.
//!
//! R6 is the address of the L3 header, R7 and R8 are the frame's bounds, and R9 has the layers as
//! [`weir_packet::Layers`].

mod acl;
mod actions;
mod decap;
mod fields;
mod finish;
mod flow;
mod group;
mod keyed;
mod length;
mod parse;
mod routes;
mod tunnel;

use crate::asm::{Alu, Assembler, Code, Helper, Is, Label, Reg, Size};
use crate::coverage::{Coverage, Why, uses_inner_key, writes_addresses};
use crate::flows::FlowPlace;
use crate::layout::{self, CountPlaces};
use fields::Words;
use std::os::fd::RawFd;
use weir_packet::{Depth, DropReason, KeySource, TunnelKind};
use weir_program::check::next_pipes;
use weir_program::{
    Criterion, Forward, GroupChoice, GroupId, HashInput, Match, Pipe, PipeId, PipeKind, PortId, Program,
    Verdict,
};

use Reg::{R0, R1, R2, R3, R6, R7, R8, R10};

/// Actions of an XDP program (linux/bpf.h).
pub const XDP_ABORTED: i32 = 0;
/// The frame is dropped.
pub const XDP_DROP: i32 = 1;
/// The frame goes to the host's stack.
pub const XDP_PASS: i32 = 2;
/// The frame is sent back.
pub const XDP_TX: i32 = 3;
/// The frame goes where the program has redirected it.
pub const XDP_REDIRECT: i32 = 4;

/// Places on the stack, relative to R10.
mod stack {
    pub const CONTEXT: i16 = -8;
    /// Bytes of the frame as received.
    pub const LENGTH: i16 = -16;
    pub const L4: i16 = -24;
    /// The L3 header's distance from the frame's start.
    pub const L3_OFFSET: i16 = -32;
    /// Bytes of the IP packet.
    pub const IP_LENGTH: i16 = -40;
    pub const HASH: i16 = -48;
    /// EtherType (low half) and protocol, 32 bits each.
    pub const ETHER_TYPE: i16 = -56;
    pub const PROTOCOL: i16 = -52;
    /// The record of the present pipe's entry.
    pub const RECORD: i16 = -64;
    /// The place where a frame is counted that is dropped or left to the engine.
    pub const VERDICT: i16 = -72;
    /// Four words of metadata.
    pub const META: i16 = -88;
    /// What an encapsulation fills in.
    pub const CARRIED: i16 = -96;
    pub const CLASS: i16 = -104;
    pub const SCRATCH: i16 = -112;
    /// The numbers with which groups pick targets, besides the select hash: one word for each picker.
    pub const PICKERS: i16 = -120;
    /// In a program that reads inside tunnels, words for the headers found there.
    pub const INNER: i16 = PICKERS - 8 * crate::coverage::PICKERS_MAX as i16;
    pub const INNER_WORDS: i16 = 7;
    pub const TUNNEL_END: i16 = INNER;
    /// Where what the tunnel carries starts.
    pub const INNER_START: i16 = INNER - 8;
    pub const INNER_L3: i16 = INNER - 16;
    pub const INNER_L4: i16 = INNER - 24;
    pub const TUNNEL_ID: i16 = INNER - 32;
    pub const INNER_LAYERS: i16 = INNER - 28;
    pub const INNER_ETHER_TYPE: i16 = INNER - 40;
    pub const INNER_PROTOCOL: i16 = INNER - 36;
    /// Which tunnel it is, and whether it has an ID: bits of the outer layers.
    pub const TUNNEL_LAYERS: i16 = INNER - 48;
    /// For each pipe: the place where it counts (high half) and bytes; then the same for shared counters.
    pub const NOTES: i16 = INNER + 8;
    /// The same in a program that reads inside tunnels.
    pub const NOTES_BELOW_INNER: i16 = NOTES - 8 * INNER_WORDS;
    /// For each FLOW pipe: the line of the flow that it counts, if it is less than the number of lines.
    pub const FLOWS: i16 = -392;
    /// The line of the present pipe's flow, if it keeps values. Keys are built here as well, but not while an
    /// action uses these values.
    pub const FLOW_LINE: i16 = -408;
    /// The lowest byte, where keys are built.
    pub const BOTTOM: i16 = -512;
}

/// Maps that the program refers to.
#[derive(Clone, Debug)]
pub struct Maps {
    /// For each pipe: its entries by key, or its records by target.
    pub pipes: Vec<RawFd>,
    /// For each group: buckets, then the targets' forwards.
    pub groups: Vec<RawFd>,
    /// The flows that are followed, if a FLOW pipe compiles.
    pub flows: Option<FlowPlace>,
    /// Packets and bytes, by [`CountPlaces`].
    pub counts: RawFd,
    /// The last dropped frames ([`crate::samples`]).
    pub samples: RawFd,
    /// Interfaces by port, or `None` if frames for other ports are sent back (tests).
    pub devices: Option<RawFd>,
    /// Processors that have counts.
    pub processors: usize,
    /// Bytes of the counts of each processor, and how many of these are for marks.
    pub count_bytes: (usize, usize),
}

/// How frames that are left to the engine get there.
#[derive(Clone, Copy, Debug)]
pub struct Sockets {
    /// The AF_XDP sockets by receive queue.
    pub sockets: RawFd,
    /// The counters of the program that selects frames, by receive queue.
    pub counters: RawFd,
    /// The verdict of the program that selects frames for a frame whose queue has no socket.
    pub without_socket: RawFd,
}

/// What is compiled.
pub struct Input<'a> {
    /// The program, checked.
    pub program: &'a Program,
    /// The parts of the program that compile.
    pub coverage: &'a Coverage,
    /// Where the program counts.
    pub counts: &'a CountPlaces,
    /// Its maps.
    pub maps: &'a Maps,
    /// The port on which frames arrive.
    pub port: PortId,
    /// How frames leave.
    pub exit: &'a Exit,
}

/// How frames leave a port's program.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    /// Where frames for the engine go; `None` leaves them to the host (tests).
    pub sockets: Option<Sockets>,
    /// The length above which frames are left to the engine.
    pub length_max: usize,
}

/// The state of a compilation.
struct Compiler<'a> {
    input: &'a Input<'a>,
    asm: Assembler,
    /// Where each pipe begins.
    pipes: Vec<Label>,
    /// Where frames are left to the engine, by reason.
    left: Vec<Option<Label>>,
    /// Where frames are dropped, by reason.
    drops: Vec<Option<Label>>,
    /// Where frames are counted, by verdict.
    verdicts: Vec<(Verdict, Label)>,
    finish: Label,
    depth: Depth,
    uses_hash: bool,
    /// Whether flow keys are made of the headers inside tunnels.
    uses_inner_key: bool,
    /// Where tunnels are parsed, by kind and by IP version inside.
    tunnels: Vec<(TunnelKind, i32, Label)>,
    writes_addresses: bool,
}

/// Compiles the program of a port.
#[must_use]
pub fn compile(input: &Input<'_>) -> Code {
    let mut compiler = compiler(input);
    compiler.all();
    compiler.asm.finish()
}

/// Compiles a program that leaves all frames of a port to the engine.
#[must_use]
pub fn compile_pause(input: &Input<'_>) -> Code {
    let mut compiler = compiler(input);
    compiler.leave_all();
    compiler.asm.finish()
}

fn compiler<'a>(input: &'a Input<'a>) -> Compiler<'a> {
    let program = input.program;
    let mut asm = Assembler::default();
    let pipes = program.pipes.iter().map(|_| asm.label()).collect();
    let finish = asm.label();
    let uses_hash = [KeySource::Outer, KeySource::Inner].into_iter().any(|source| {
        let of = flow::without_new_flows(program).key_use(source);
        of.select || of.select_some || of.select_unhashed
    });
    Compiler {
        input,
        asm,
        pipes,
        left: vec![None; Why::ALL.len()],
        drops: vec![None; DropReason::ALL.len()],
        verdicts: Vec::new(),
        finish,
        depth: program.depth(),
        uses_hash: uses_hash || !input.coverage.pickers.is_empty(),
        uses_inner_key: uses_inner_key(program),
        tunnels: Vec::new(),
        writes_addresses: writes_addresses(program),
    }
}

impl Compiler<'_> {
    fn all(&mut self) {
        let program = self.input.program;
        let Some(root) = program.ports[self.input.port.index()].root else {
            self.begin();
            self.drop(DropReason::Policy);
            return self.end();
        };
        self.begin();
        self.parse();
        let root = self.pipes[root.index()];
        self.asm.jump(root);
        for at in self.order() {
            self.pipe(PipeId(at as u16));
        }
        self.end();
    }

    /// The pipes that frames of the port can reach, each before those that it leads to.
    fn order(&self) -> Vec<usize> {
        let program = self.input.program;
        let mut reached = vec![false; program.pipes.len()];
        let mut order = Vec::new();
        if let Some(root) = program.ports[self.input.port.index()].root {
            visit(self.input, root.index(), &mut reached, &mut order);
        }
        order.reverse();
        order
    }

    /// Clears the notes. Frames in several buffers, and those that may become too long, are left to the
    /// engine.
    fn begin(&mut self) {
        let length = self.leave(Why::Length);
        self.asm.mov(R6, R1);
        self.asm.store(Size::Dw, R10, stack::CONTEXT, R1);
        self.asm.call(Helper::XdpGetBuffLen);
        self.asm.mov(R1, R6);
        self.bounds();
        self.asm.jump_if(R2, Is::Ne, R0, length);
        self.asm.jump_if(R2, Is::Gt, self.input.exit.length_max as i32, length);
        for note in self.notes() {
            self.asm.store(Size::Dw, R10, note, 0);
        }
        self.note_no_flows();
        self.asm.store(Size::Dw, R10, stack::META, 0);
        self.asm.store(Size::Dw, R10, stack::META + 8, 0);
    }

    /// What is noted: a count for each pipe, and one more for those with shared counters.
    fn notes(&self) -> Vec<i16> {
        let mut notes = Vec::new();
        for at in self.order() {
            notes.push(self.note(at));
            if self.input.program.pipes[at].monitor.counter.is_some() {
                notes.push(self.shared_note(at));
            }
        }
        notes
    }

    fn note(&self, pipe: usize) -> i16 {
        let first = if self.depth == Depth::Inner { stack::NOTES_BELOW_INNER } else { stack::NOTES };
        first - 8 * (pipe as i16 + 1)
    }

    fn shared_note(&self, pipe: usize) -> i16 {
        self.note(pipe) - 8 * self.input.program.pipes.len() as i16
    }

    /// Jumps to where frames are left to the engine.
    fn leave(&mut self, why: Why) -> Label {
        let asm = &mut self.asm;
        *self.left[why as usize].get_or_insert_with(|| asm.label())
    }

    /// Returns where frames are dropped for a reason.
    fn dropped(&mut self, reason: DropReason) -> Label {
        let asm = &mut self.asm;
        *self.drops[reason as usize].get_or_insert_with(|| asm.label())
    }

    fn drop(&mut self, reason: DropReason) {
        let label = self.dropped(reason);
        self.asm.jump(label);
    }

    /// One pipe: constants, look-up, hit and miss.
    fn pipe(&mut self, id: PipeId) {
        let pipe = &self.input.program.pipes[id.index()];
        self.asm.bind(self.pipes[id.index()]);
        if let Some(why) = self.input.coverage.pipes[id.index()] {
            let label = self.leave(why);
            return self.asm.jump(label);
        }
        let miss = self.asm.label();
        for one in &pipe.matches {
            self.constant(one, miss);
        }
        match &pipe.kind {
            PipeKind::Basic => self.look_up_key(id, pipe, miss),
            PipeKind::Lpm => self.look_up_prefix(id, pipe, miss),
            PipeKind::Hash { input, group: GroupChoice::One(group) } => {
                self.hash_input(input, miss);
                let none = self.dropped(DropReason::NoTarget);
                self.look_up_target((id, pipe), *group, none);
            }
            PipeKind::Acl => self.look_up_rule(id, pipe, miss),
            PipeKind::Hash { input, group: GroupChoice::ByMeta(word) } => {
                self.hash_input(input, miss);
                let none = self.dropped(DropReason::NoTarget);
                self.look_up_member((id, pipe), *word, (miss, none));
            }
            PipeKind::Flow { timeouts, .. } => self.look_up_flow(id, pipe, timeouts.are_by_state()),
        }
        self.hit(id, pipe);
        self.asm.bind(miss);
        self.note_count(self.note(id.index()), Some(self.input.counts.misses(id)));
        self.forward(pipe.miss, DropReason::Miss);
    }

    /// Notes a count at a place that is constant, or in R1, with the frame's present bytes.
    fn note_count(&mut self, note: i16, place: Option<u32>) {
        if let Some(place) = place {
            self.asm.mov(R1, place as i32);
        }
        self.asm.alu(Alu::Shl, R1, 32);
        self.asm.mov(R2, R8);
        self.asm.alu(Alu::Sub, R2, R7);
        self.asm.alu(Alu::Or, R1, R2);
        self.asm.store(Size::Dw, R10, note, R1);
    }

    /// Compares a constant; the packet misses if it differs or lacks the field.
    fn constant(&mut self, one: &Match, miss: Label) {
        let Criterion::Const { value, mask } = one.criterion else { return };
        if !self.read(one.field, mask, miss) {
            return;
        }
        let words = Words::of(one.field);
        if words == Words::Two {
            self.asm.mov64(R3, (value >> 64) as u64);
            self.asm.jump_if(R1, Is::Ne, R3, miss);
        }
        self.asm.mov64(R3, value as u64);
        self.asm.jump_if(words.low(), Is::Ne, R3, miss);
    }

    /// Leaves in R1 the hash that picks a bucket.
    fn hash_input(&mut self, input: &HashInput, miss: Label) {
        match input {
            HashInput::Fields(fields) => self.hash_fields(fields, miss),
            HashInput::Select(_) | HashInput::Rss => self.asm.load(Size::Dw, R1, R10, stack::HASH),
            HashInput::RoundRobin | HashInput::Quic => unreachable!("not compiled, as the coverage says"),
        }
    }

    /// The hit of the record in R0.
    fn hit(&mut self, id: PipeId, pipe: &Pipe) {
        self.asm.store(Size::Dw, R10, stack::RECORD, R0);
        self.asm.load(Size::W, R3, R0, layout::TEMPLATE);
        // An entry that is left to the engine has its reason in place of the forward.
        let ours = self.asm.label();
        self.asm.jump_if(R3, Is::Lt, pipe.templates.len() as i32, ours);
        self.left_entry(id);
        self.asm.bind(ours);
        self.asm.load(Size::W, R1, R0, layout::COUNT);
        self.note_count(self.note(id.index()), None);
        // Only the templates of present entries: another one needs another compilation.
        for (at, template) in pipe.templates.iter().enumerate() {
            let forwards = self.forwards(id, at as u16);
            if forwards.is_empty() {
                continue;
            }
            let other = self.asm.label();
            self.asm.jump_if(R3, Is::Ne, at as i32, other);
            if self.input.coverage.leaves_syns(self.input.program, id, at as u16) {
                self.leave_syns();
            }
            self.act(pipe, template);
            self.shared(id, pipe);
            self.forward_hit(&forwards);
            self.asm.bind(other);
        }
        self.drop(DropReason::Policy);
    }

    /// Where the compiled entries with a template lead.
    fn forwards(&self, id: PipeId, template: u16) -> Vec<Forward> {
        let Input { program, coverage, .. } = self.input;
        let leads = coverage.leads[id.index()].iter().filter(|lead| lead.1 == template);
        leads.filter(|lead| coverage.lead(program, id, **lead).is_none()).map(|lead| lead.0).collect()
    }

    /// Follows the record's forward, which is one of `forwards`.
    fn forward_hit(&mut self, forwards: &[Forward]) {
        if let [one] = forwards {
            return self.forward(*one, DropReason::Policy);
        }
        self.asm.load(Size::Dw, R2, R10, stack::RECORD);
        self.asm.load(Size::W, R3, R2, layout::FORWARD);
        for forward in forwards {
            let Some(code) = layout::forward_code(*forward) else { continue };
            let other = self.asm.label();
            self.asm.jump_if(R3, Is::Ne, code as i32, other);
            self.forward(*forward, DropReason::Policy);
            self.asm.bind(other);
        }
        self.drop(DropReason::Policy);
    }

    /// Leaves a packet to the engine for the reason that its entry's record has.
    fn left_entry(&mut self, id: PipeId) {
        let Input { program, coverage, .. } = self.input;
        let mut reasons = vec![Why::NewLead];
        for lead in &coverage.leads[id.index()] {
            if let Some(why) = coverage.lead(program, id, *lead)
                && !reasons.contains(&why)
            {
                reasons.push(why);
            }
        }
        self.asm.load(Size::W, R1, R0, layout::FORWARD);
        for why in reasons {
            let label = self.leave(why);
            self.asm.jump_if(R1, Is::Eq, why as i32, label);
        }
        let label = self.leave(Why::Operation);
        self.asm.jump(label);
    }

    /// Counts in the shared counter; the bytes are those before the action, from the pipe's own note.
    fn shared(&mut self, id: PipeId, pipe: &Pipe) {
        if pipe.monitor.counter.is_none() {
            return;
        }
        let none = self.asm.label();
        self.asm.load(Size::Dw, R2, R10, stack::RECORD);
        self.asm.load(Size::W, R1, R2, layout::SHARED);
        self.asm.jump_if(R1, Is::Eq, 0, none);
        self.asm.alu(Alu::Shl, R1, 32);
        self.asm.load(Size::W, R2, R10, self.note(id.index()));
        self.asm.alu(Alu::Or, R1, R2);
        self.asm.store(Size::Dw, R10, self.shared_note(id.index()), R1);
        self.asm.bind(none);
    }

    /// Sends the packet on; `reason` applies if the forward leads nowhere.
    fn forward(&mut self, forward: Forward, reason: DropReason) {
        if let Some(why) = self.input.coverage.why_not_forward(self.input.program, forward) {
            let label = self.leave(why);
            return self.asm.jump(label);
        }
        match forward {
            Forward::Port(port) => self.transmit(port),
            Forward::InputPort => self.transmit(self.input.port),
            Forward::Pipe(pipe) => self.asm.jump(self.pipes[pipe.index()]),
            Forward::Kernel => self.verdict(Verdict::Kernel(self.input.port), XDP_PASS),
            Forward::Drop => self.drop(reason),
            Forward::Group(group) => self.forward_to_group(group, reason),
            Forward::App(_) | Forward::Tee { .. } | Forward::Flood(_) | Forward::PerEntry => {
                unreachable!("left to the engine, as the coverage says")
            }
        }
    }

    fn transmit(&mut self, port: PortId) {
        let verdict = Verdict::Transmit(port);
        let devices = self.input.maps.devices.filter(|_| port != self.input.port);
        let Some(devices) = devices else { return self.verdict(verdict, XDP_TX) };
        self.asm.map(R1, devices);
        self.asm.mov(R2, i32::from(port.0));
        // The action if the port does not exist.
        self.asm.mov(R3, XDP_ABORTED);
        self.asm.call(Helper::RedirectMap);
        self.verdict_in_r0(verdict);
    }

    fn forward_to_group(&mut self, id: GroupId, reason: DropReason) {
        let group = &self.input.program.groups[id.index()];
        self.asm.load(Size::Dw, R1, R10, stack::HASH);
        let none = self.dropped(DropReason::NoTarget);
        self.pick(id, none);
        for (at, target) in group.targets.iter().enumerate() {
            let other = self.asm.label();
            self.asm.jump_if(R1, Is::Ne, at as i32, other);
            self.forward(target.forward, reason);
            self.asm.bind(other);
        }
        self.drop(DropReason::NoTarget);
    }
}

/// Appends the pipes that a pipe leads to, then the pipe itself.
fn visit(input: &Input<'_>, at: usize, reached: &mut Vec<bool>, order: &mut Vec<usize>) {
    if std::mem::replace(&mut reached[at], true) {
        return;
    }
    let program = input.program;
    let mut next = vec![program.pipes[at].miss];
    next.extend(input.coverage.leads[at].iter().map(|lead| lead.0));
    for to in next.into_iter().flat_map(|forward| next_pipes(program, forward)) {
        visit(input, to.index(), reached, order);
    }
    order.push(at);
}
