//! FLOW: finds the flow of a packet in the table that the engine has written, and counts the packet there.
//!
//! See [`crate::flows`] for the table and for what keeps packets in order.

use super::{Compiler, stack};
use crate::asm::{Alu, Atomic, Helper, Is, Label, Reg, Size};
use crate::coverage::{FLOW_PIPES_MAX, Why};
use crate::flows::{self, FlowPlace};
use crate::kept;
use crate::layout;
use weir_packet::Layer;
use weir_program::replica::MARK_BYTES;
use weir_program::{GroupChoice, Learn, Pipe, PipeId, PipeKind, Program};

use Reg::{R0, R1, R2, R3, R4, R5, R6, R9, R10};

/// Offset of the metadata's address in `struct xdp_md`.
const DATA_META: i16 = 8;

/// Offsets in a TCP header.
const TCP_SEQ: i16 = 4;
const TCP_FLAGS: i16 = 13;
/// FIN, SYN and RST.
const CHANGES_STATE: i32 = 0x07;

/// Where the lane in which a tag was found is noted. The verifier forgets what is stored there, and thus
/// checks the code that follows once rather than for each lane.
const LANE: i16 = stack::SCRATCH + 4;

impl Compiler<'_> {
    fn flows(&self) -> FlowPlace {
        self.input.maps.flows.clone().expect("a program with a FLOW pipe has flows")
    }

    /// The FLOW pipes that frames of this port can reach, each with its word on the stack.
    fn flow_notes(&self) -> Vec<(usize, i16)> {
        let all = self.input.coverage.flow_pipes(self.input.program);
        assert!(all.len() <= FLOW_PIPES_MAX, "each has a word on the stack");
        let reached = self.order();
        let notes = (0..).map(|at| stack::FLOWS - 8 * at);
        all.into_iter().zip(notes).filter(|(at, _)| reached.contains(at)).collect()
    }

    fn flow_note(&self, id: PipeId) -> i16 {
        let notes = self.flow_notes();
        notes.into_iter().find(|(at, _)| *at == id.index()).expect("the pipe is reached").1
    }

    /// Notes that the frame belongs to no flow yet.
    pub fn note_no_flows(&mut self) {
        for (_, note) in self.flow_notes() {
            self.asm.store(Size::Dw, R10, note, -1);
        }
    }

    /// Leaves in R0 the address of the record that the packet's flow was decided for. Packets of other flows
    /// are left to the engine, and so are those that may change a state, if states are tracked.
    pub fn look_up_flow(&mut self, id: PipeId, pipe: &Pipe, by_state: bool) {
        let new = self.leave(Why::NewFlow);
        let [ipv4, ipv6, found] = [(); 3].map(|()| self.asm.label());
        self.asm.jump_if(R9, Is::Set, Layer::Ipv4 as i32, ipv4);
        self.asm.jump_if(R9, Is::Set, Layer::Ipv6 as i32, ipv6);
        self.asm.jump(new);
        for (at, version, words, addresses) in [(ipv4, 4, flows::WORDS4, 12), (ipv6, 6, flows::WORDS6, 8)] {
            self.asm.bind(at);
            self.flow_key(id, version, words, addresses);
            self.hash_flow(words);
            self.find_flow(id, words, found);
        }
        self.asm.bind(found);
        self.follow(id, by_state);
        if kept::bytes_of_pipe(pipe) > 0 {
            self.asm.store(Size::Dw, R10, stack::FLOW_LINE, R0);
        }
        match followed(pipe) {
            Some(group) => self.present_record(id, pipe, group),
            None => self.flow_record(id, pipe),
        }
    }

    /// Leaves in R0 the address of the record of the target that the group's buckets give the packet now.
    fn present_record(&mut self, id: PipeId, pipe: &Pipe, group: GroupChoice) {
        let none = self.leave(Why::Targetless);
        self.asm.load(Size::Dw, R1, R10, stack::HASH);
        match group {
            GroupChoice::One(group) => self.look_up_target((id, pipe), group, none),
            GroupChoice::ByMeta(word) => {
                let no_group = self.leave(Why::NewFlow);
                self.look_up_member((id, pipe), word, (no_group, none));
            }
        }
    }

    /// Puts the words of the key at the bottom of the stack.
    fn flow_key(&mut self, id: PipeId, version: i32, words: usize, addresses: i16) {
        self.ports(R1);
        self.asm.load(Size::W, R2, R10, stack::PROTOCOL);
        self.asm.alu(Alu::Shl, R2, 32);
        self.asm.alu(Alu::Or, R1, R2);
        let pipe = u64::from(id.0) << flows::PIPE_SHIFT;
        self.asm.mov64(R2, pipe | (version as u64) << flows::VERSION_SHIFT);
        self.asm.alu(Alu::Or, R1, R2);
        self.asm.store(Size::Dw, R10, stack::BOTTOM, R1);
        for word in 1..words as i16 {
            self.asm.load(Size::Dw, R1, R6, addresses + 8 * (word - 1));
            self.asm.store(Size::Dw, R10, stack::BOTTOM + 8 * word, R1);
        }
    }

    /// Leaves the hash of the key in R1, as the table computes it.
    fn hash_flow(&mut self, words: usize) {
        let keys = self.flows().layout.keys;
        self.asm.mov(R1, 0);
        for (word, key) in keys.into_iter().take(words).enumerate() {
            self.asm.load(Size::Dw, R2, R10, stack::BOTTOM + 8 * word as i16);
            self.add_product(key);
        }
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shr, R2, 32);
        self.asm.alu(Alu::Xor, R1, R2);
        self.asm.mov64(R2, flows::SPREAD[0]);
        self.asm.alu(Alu::Mul, R1, R2);
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shr, R2, 29);
        self.asm.alu(Alu::Xor, R1, R2);
    }

    /// Looks into both buckets of the hash in R1. Leaves the address of the flow's line in R0, and its number
    /// in the pipe's note; jumps to `found`, or leaves the packet.
    fn find_flow(&mut self, id: PipeId, words: usize, found: Label) {
        let (FlowPlace { map, layout }, note) = (self.flows(), self.flow_note(id));
        let lanes = flows::LANES as i32;
        self.asm.mov(R4, R1);
        self.asm.alu(Alu::And, R4, flows::TAG_MASK);
        self.asm.alu(Alu::Or, R4, flows::TAG_FLOW);
        for bucket in 0..2 {
            let (has_tag, other) = (self.asm.label(), self.asm.label());
            self.asm.mov(R5, R1);
            if bucket == 1 {
                self.asm.mov64(R2, flows::SPREAD[1]);
                self.asm.alu(Alu::Mul, R5, R2);
            }
            self.asm.alu(Alu::Shr, R5, 32);
            self.asm.alu(Alu::Mul, R5, layout.buckets as i32);
            self.asm.alu(Alu::Shr, R5, 32);
            self.asm.alu(Alu::Mul, R5, flows::TAGS as i32);
            self.asm.map_value(R0, map, 0);
            self.asm.alu(Alu::Add, R0, R5);
            for lane in 0..lanes {
                let next = self.asm.label();
                self.asm.load(Size::H, R2, R0, 2 * lane as i16);
                self.asm.jump_if(R2, Is::Ne, R4, next);
                self.asm.store(Size::W, R10, LANE, lane);
                self.asm.jump(has_tag);
                self.asm.bind(next);
            }
            self.asm.jump(other);
            self.asm.bind(has_tag);
            self.asm.load(Size::W, R2, R10, LANE);
            self.asm.alu(Alu::And, R2, lanes - 1);
            // From the offset of the bucket's tags to the number of its first line.
            self.asm.alu(Alu::Shr, R5, 1);
            self.asm.alu(Alu::Add, R5, R2);
            self.asm.store(Size::W, R10, note, R5);
            self.asm.alu(Alu::Mul, R5, flows::LINE as i32);
            self.asm.map_value(R0, map, layout.first_line() as u32);
            self.asm.alu(Alu::Add, R0, R5);
            for word in 0..words as i16 {
                self.asm.load(Size::Dw, R2, R0, flows::KEY + 8 * word);
                self.asm.load(Size::Dw, R3, R10, stack::BOTTOM + 8 * word);
                self.asm.jump_if(R2, Is::Ne, R3, other);
            }
            self.asm.jump(found);
            self.asm.bind(other);
        }
        let new = self.leave(Why::NewFlow);
        self.asm.jump(new);
    }

    /// Leaves packets of the flow whose line is at R0 to the engine if they may change its state, or if
    /// earlier ones are on their way through the engine.
    fn follow(&mut self, id: PipeId, by_state: bool) {
        let [plain, active] = [(); 2].map(|()| self.asm.label());
        if by_state {
            let changes = self.asm.label();
            self.asm.mov(R1, R9);
            self.asm.alu(Alu::And, R1, Layer::Tcp as i32);
            self.asm.jump_if(R1, Is::Eq, 0, plain);
            self.asm.load(Size::Dw, R3, R10, stack::L4);
            self.asm.load(Size::B, R1, R3, TCP_FLAGS);
            self.asm.jump_if(R1, Is::Set, CHANGES_STATE, changes);
            // The engine judges later resets by it. A packet that is left after all has it, too.
            self.asm.load(Size::B, R1, R3, TCP_SEQ);
            self.asm.alu(Alu::Or, R1, flows::HAS_SEQ);
            self.asm.store(Size::W, R0, flows::SEQ, R1);
            self.asm.jump(plain);
            self.asm.bind(changes);
            // First counted: so the engine cannot activate the flow in between.
            self.asm.mov(R1, 1);
            self.asm.atomic(Atomic::FetchAdd, R0, flows::STATE, R1);
            self.asm.mov64(R2, !flows::ACTIVE);
            self.asm.atomic(Atomic::And, R0, flows::STATE, R2);
            self.mark(id);
            let flags = self.leave(Why::TcpFlags);
            self.asm.jump(flags);
        }
        self.asm.bind(plain);
        self.asm.load(Size::Dw, R1, R0, flows::STATE);
        self.jump_if_active(active);
        self.asm.mov(R1, 1);
        self.asm.atomic(Atomic::FetchAdd, R0, flows::STATE, R1);
        self.jump_if_active(active);
        self.asm.mov64(R2, !flows::ACTIVE);
        self.asm.atomic(Atomic::And, R0, flows::STATE, R2);
        self.mark(id);
        let left = self.leave(Why::Pending);
        self.asm.jump(left);
        self.asm.bind(active);
    }

    /// Jumps if the flow whose line is at R0 had the state in R1 and is active in this epoch.
    fn jump_if_active(&mut self, active: Label) {
        let pending = self.asm.label();
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shr, R2, 63);
        self.asm.jump_if(R2, Is::Eq, 0, pending);
        self.asm.load(Size::W, R2, R0, flows::EPOCH);
        self.epoch(R3);
        self.asm.jump_if(R2, Is::Eq, R3, active);
        self.asm.bind(pending);
    }

    /// Loads the present epoch.
    fn epoch(&mut self, to: Reg) {
        let FlowPlace { map, layout } = self.flows();
        self.asm.map_value(to, map, layout.epoch() as u32);
        self.asm.load(Size::W, to, to, 0);
    }

    /// Notes the number of the line, that of the packet, the flow's life and the epoch. R1 is the state
    /// before this packet.
    fn mark(&mut self, id: PipeId) {
        self.asm.mov64(R2, flows::LIFE);
        self.asm.alu(Alu::And, R2, R1);
        self.epoch(R3);
        self.asm.alu(Alu::Or, R2, R3);
        self.asm.store(Size::Dw, R10, stack::CLASS, R2);
        self.asm.alu32(Alu::Add, R1, 1);
        self.asm.load(Size::W, R2, R10, self.flow_note(id));
        self.asm.alu(Alu::Shl, R2, 32);
        self.asm.alu(Alu::Or, R1, R2);
        self.asm.store(Size::Dw, R10, stack::CARRIED, R1);
    }

    /// Puts the mark in front of a frame of a pending flow. Jumps if the driver does not allow this; the
    /// flow's packets then go through the engine.
    pub fn mark_frame(&mut self, left: Label) {
        let Some(FlowPlace { layout, .. }) = self.input.maps.flows.clone() else {
            return self.asm.jump(left);
        };
        let bytes = MARK_BYTES as i32;
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.mov(R2, -bytes);
        self.asm.call(Helper::XdpAdjustMeta);
        self.asm.jump_if(R0, Is::Ne, 0, left);
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.load(Size::W, R2, R1, DATA_META);
        self.asm.load(Size::W, R3, R1, 0);
        self.asm.mov(R4, R2);
        self.asm.alu(Alu::Add, R4, bytes);
        self.asm.jump_if(R4, Is::Gt, R3, left);
        self.asm.mov64(R5, layout.magic);
        self.asm.load(Size::Dw, R4, R10, stack::CLASS);
        self.asm.alu(Alu::Xor, R5, R4);
        self.asm.store(Size::Dw, R2, 0, R5);
        self.asm.load(Size::Dw, R5, R10, stack::CARRIED);
        self.asm.store(Size::Dw, R2, 8, R5);
    }

    /// Replaces the address of the flow's line in R0 with that of the record of the flow's entry. A flow that
    /// was decided for an entry in an earlier life is unknown.
    fn flow_record(&mut self, id: PipeId, pipe: &Pipe) {
        let targets = layout::targets(self.input.program, pipe);
        let new = self.leave(Why::NewFlow);
        self.asm.load(Size::W, R1, R0, flows::ENTRY);
        self.asm.load(Size::W, R4, R0, flows::STAMP);
        self.asm.jump_if(R1, Is::Ge, targets as i32, new);
        self.asm.map_value(R0, self.input.maps.pipes[id.index()], 0);
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shl, R2, 3);
        self.asm.mov(R3, R0);
        self.asm.alu(Alu::Add, R3, R2);
        self.asm.load(Size::Dw, R2, R3, 0);
        self.asm.mov(R5, R2);
        self.asm.alu(Alu::Shr, R5, 1);
        self.asm.alu32(Alu::Mov, R5, R5);
        self.asm.jump_if(R5, Is::Ne, R4, new);
        self.record_in_use(pipe, new);
    }

    /// Counts the packet in the flows that it has met, with the bytes that the pipes' notes have.
    pub fn count_flows(&mut self) {
        for (at, note) in self.flow_notes() {
            let FlowPlace { map, layout } = self.flows();
            let none = self.asm.label();
            self.asm.load(Size::W, R6, R10, note);
            self.asm.jump_if(R6, Is::Ge, layout.lines() as i32, none);
            self.asm.call(Helper::KtimeGetCoarseNs);
            self.asm.alu(Alu::Mul, R6, flows::LINE as i32);
            self.asm.map_value(R1, map, layout.first_line() as u32);
            self.asm.alu(Alu::Add, R1, R6);
            self.asm.store(Size::Dw, R1, flows::LAST, R0);
            self.asm.load(Size::W, R2, R10, self.note(at));
            self.asm.mov(R3, 1);
            self.asm.atomic(Atomic::Add, R1, flows::PACKETS, R3);
            self.asm.atomic(Atomic::Add, R1, flows::BYTES, R2);
            self.asm.bind(none);
        }
    }
}

/// The group whose buckets a pipe's flows follow.
fn followed(pipe: &Pipe) -> Option<GroupChoice> {
    match pipe.kind {
        PipeKind::Flow { learn: Learn::Follow(group), .. } => Some(group),
        _ => None,
    }
}

/// The pipes as the kernel sees them, which decides no new flows: what they hash, if anything.
pub fn without_new_flows(program: &Program) -> Program {
    let mut without = Program { pipes: Vec::new(), ..program.clone() };
    for pipe in &program.pipes {
        let mut pipe = pipe.clone();
        if let PipeKind::Flow { learn: learn @ Learn::Pin(_), .. } = &mut pipe.kind {
            *learn = Learn::Default;
        }
        without.pipes.push(pipe);
    }
    without
}
