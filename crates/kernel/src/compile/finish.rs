//! The end of a walk: what is counted, where the packet goes, and how packets that are left to the engine get
//! there.

use super::{Compiler, Sockets, XDP_DROP, XDP_PASS, XDP_REDIRECT, stack};
use crate::asm::{Alu, Helper, Is, Label, Size};
use crate::counts::COUNT_BYTES;
use crate::coverage::Why;
use crate::layout::MARK_SHIFT;
use crate::samples;
use std::os::fd::RawFd;
use weir_packet::DropReason;
use weir_program::Verdict;

use crate::asm::Reg::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

/// Offset of the receive queue in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;

/// Offsets in the counters of the program that selects frames (weir_bpf, xdp_take.bpf.c).
const TAKEN: i32 = 0;
const REDIRECT_FAILED: i32 = 24;
const HELD_BACK: i32 = 32;

impl Compiler<'_> {
    /// All ends of a walk.
    pub fn end(&mut self) {
        let sample = self.asm.label();
        for (reason, at) in DropReason::ALL.iter().zip(self.drops.clone()) {
            let Some(label) = at else { continue };
            self.asm.bind(label);
            let place = self.input.counts.decided(self.input.port, Verdict::Drop(*reason));
            self.asm.store(Size::W, R10, stack::VERDICT, place as i32);
            self.asm.mov(R6, *reason as i32);
            self.asm.jump(sample);
        }
        self.asm.bind(sample);
        self.sample();
        self.count_drop();
        for (verdict, label) in self.verdicts.clone() {
            self.asm.bind(label);
            self.count_verdict(verdict);
        }
        self.asm.bind(self.finish);
        self.finish();
        let (left, marked) = (self.asm.label(), self.asm.label());
        for (why, at) in Why::ALL.iter().zip(self.left.clone()) {
            let Some(label) = at else { continue };
            self.asm.bind(label);
            let place = self.input.counts.left(self.input.port, *why);
            self.asm.store(Size::W, R10, stack::VERDICT, place as i32);
            self.asm.jump(if matches!(why, Why::Pending | Why::TcpFlags) { marked } else { left });
        }
        self.asm.bind(marked);
        self.mark_frame(left);
        self.asm.bind(left);
        self.hand_over();
    }

    /// Counts a frame that is left to the engine, and sends it there.
    pub fn hand_over(&mut self) {
        self.find_counts();
        self.asm.mov(R6, 0);
        self.asm.load(Size::W, R1, R10, stack::VERDICT);
        self.count();
        self.send_to_engine();
    }

    /// Sends every frame to the engine, uncounted.
    pub fn leave_all(&mut self) {
        self.asm.store(Size::Dw, R10, stack::CONTEXT, R1);
        self.send_to_engine();
    }

    fn send_to_engine(&mut self) {
        let Some(Sockets { sockets, counters, without_socket }) = self.input.exit.sockets else {
            self.asm.mov(R0, XDP_PASS);
            return self.asm.exit();
        };
        let (counted, failed, none) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.map_value(R1, without_socket, 0);
        self.asm.load(Size::W, R3, R1, 0);
        self.asm.load(Size::Dw, R6, R10, stack::CONTEXT);
        self.asm.load(Size::W, R2, R6, RX_QUEUE_INDEX);
        self.asm.store(Size::W, R10, stack::SCRATCH, R2);
        self.asm.map(R1, sockets);
        self.asm.call(Helper::RedirectMap);
        self.asm.mov(R6, R0);
        self.asm.map(R1, counters);
        self.asm.mov(R2, R10);
        self.asm.alu(Alu::Add, R2, i32::from(stack::SCRATCH));
        self.asm.call(Helper::MapLookup);
        self.asm.jump_if(R0, Is::Eq, 0, none);
        self.asm.jump_if(R6, Is::Ne, XDP_REDIRECT, failed);
        self.asm.mov(R2, TAKEN);
        self.asm.jump(counted);
        self.asm.bind(failed);
        self.asm.mov(R2, REDIRECT_FAILED);
        self.asm.jump_if(R6, Is::Ne, XDP_DROP, counted);
        self.asm.mov(R2, HELD_BACK);
        self.asm.bind(counted);
        self.asm.alu(Alu::Add, R0, R2);
        self.asm.load(Size::Dw, R1, R0, 0);
        self.asm.alu(Alu::Add, R1, 1);
        self.asm.store(Size::Dw, R0, 0, R1);
        self.asm.bind(none);
        self.asm.mov(R0, R6);
        self.asm.exit();
    }

    /// Ends the walk with a return value.
    pub fn verdict(&mut self, verdict: Verdict, action: i32) {
        self.asm.mov(R0, action);
        self.verdict_in_r0(verdict);
    }

    /// Ends the walk with the return value in R0.
    pub fn verdict_in_r0(&mut self, verdict: Verdict) {
        let known = self.verdicts.iter().find(|(one, _)| *one == verdict);
        let label = known.map(|(_, label)| *label).unwrap_or_else(|| {
            let label = self.asm.label();
            self.verdicts.push((verdict, label));
            label
        });
        self.asm.jump(label);
    }

    /// Counts a frame at its verdict's places, which are constant, and leaves the return value in R7.
    fn count_verdict(&mut self, verdict: Verdict) {
        let place = self.input.counts.decided(self.input.port, verdict) as i32;
        self.asm.alu(Alu::Sub, R8, R7);
        self.asm.mov(R7, R0);
        self.find_counts();
        self.asm.mov(R1, R9);
        self.asm.alu(Alu::Add, R1, self.input.maps.count_bytes.1 as i32 + place * COUNT_BYTES as i32);
        self.asm.load(Size::Dw, R2, R10, stack::LENGTH);
        self.asm.mov(R4, 1);
        // The next place has the bytes that leave.
        for (at, more) in [(0, R4), (8, R2), (COUNT_BYTES as i16 + 8, R8)] {
            self.asm.load(Size::Dw, R3, R1, at);
            self.asm.alu(Alu::Add, R3, more);
            self.asm.store(Size::Dw, R1, at, R3);
        }
        self.asm.mov(R1, R9);
        self.asm.alu(Alu::Add, R1, place >> MARK_SHIFT);
        self.asm.store(Size::B, R1, 0, 1);
        self.asm.jump(self.finish);
    }

    /// Counts what was noted, and returns R7.
    pub fn finish(&mut self) {
        for note in self.notes() {
            let none = self.asm.label();
            self.asm.load(Size::Dw, R6, R10, note);
            self.asm.jump_if(R6, Is::Eq, 0, none);
            self.asm.mov(R1, R6);
            self.asm.alu(Alu::Shr, R1, 32);
            self.asm.alu32(Alu::Mov, R6, R6);
            self.count();
            self.asm.bind(none);
        }
        self.count_flows();
        self.asm.mov(R0, R7);
        self.asm.exit();
    }

    /// Leaves the address of this processor's counts in R9.
    pub fn find_counts(&mut self) {
        self.find_slice(self.input.maps.counts, self.input.maps.count_bytes.0);
    }

    /// Leaves the address of this processor's slice of an array in R9.
    fn find_slice(&mut self, map: RawFd, bytes: usize) {
        let ours = self.asm.label();
        self.asm.call(Helper::GetSmpProcessorId);
        self.asm.jump_if(R0, Is::Lt, self.input.maps.processors as i32, ours);
        // No processor has such a number, but the verifier does not know that.
        self.asm.mov(R0, 0);
        self.asm.bind(ours);
        self.asm.alu(Alu::Mul, R0, bytes as i32);
        self.asm.map_value(R9, map, 0);
        self.asm.alu(Alu::Add, R9, R0);
    }

    /// Counts a frame that is dropped at the place that was stored, and leaves the return value in R7.
    fn count_drop(&mut self) {
        self.asm.mov(R7, XDP_DROP);
        self.find_counts();
        self.asm.load(Size::Dw, R6, R10, stack::LENGTH);
        self.asm.load(Size::W, R1, R10, stack::VERDICT);
        self.count();
        self.asm.jump(self.finish);
    }

    /// Copies the beginning of a frame that is dropped for the reason in R6, before it is counted.
    fn sample(&mut self) {
        let [short, written, none] = [(); 3].map(|()| self.asm.label());
        self.find_slice(self.input.maps.samples, samples::RING_BYTES);
        // Where headers are added, pointers into the frame may be out of date.
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.pointers();
        self.asm.load(Size::Dw, R1, R9, 0);
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::And, R2, samples::SLOTS as i32 - 1);
        self.asm.alu(Alu::Mul, R2, samples::SLOT_BYTES as i32);
        self.asm.alu(Alu::Add, R2, R9);
        self.asm.alu(Alu::Add, R2, samples::FIRST_SLOT as i32);
        self.copy_beginning(samples::LONG_BYTES, short);
        self.asm.jump(written);
        self.asm.bind(short);
        self.copy_beginning(samples::SHORT_BYTES, none);
        self.asm.bind(written);
        self.asm.mov(R3, R8);
        self.asm.alu(Alu::Sub, R3, R7);
        self.asm.store(Size::W, R2, 0, R6);
        self.asm.store(Size::W, R2, samples::LENGTH as i16, R3);
        self.asm.alu(Alu::Add, R1, 1);
        self.asm.store(Size::Dw, R9, 0, R1);
        self.asm.bind(none);
    }

    /// Copies `bytes` bytes of the frame into the slot in R2, or jumps to `shorter` if the frame has fewer.
    fn copy_beginning(&mut self, bytes: usize, shorter: Label) {
        self.asm.mov(R3, R7);
        self.asm.alu(Alu::Add, R3, bytes as i32);
        self.asm.jump_if(R3, Is::Gt, R8, shorter);
        for at in (0..bytes as i16).step_by(8) {
            self.asm.load(Size::Dw, R4, R7, at);
            self.asm.store(Size::Dw, R2, samples::BYTES as i16 + at, R4);
        }
    }

    /// Counts a packet with R6 bytes at the place in R1, and marks the block of the place.
    pub fn count(&mut self) {
        let none = self.asm.label();
        self.asm.jump_if(R1, Is::Ge, self.input.counts.total() as i32, none);
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shr, R2, MARK_SHIFT);
        self.asm.alu(Alu::Add, R2, R9);
        self.asm.alu(Alu::Shl, R1, 4);
        self.asm.alu(Alu::Add, R1, R9);
        self.asm.alu(Alu::Add, R1, self.input.maps.count_bytes.1 as i32);
        self.asm.load(Size::Dw, R3, R1, 0);
        self.asm.alu(Alu::Add, R3, 1);
        self.asm.store(Size::Dw, R1, 0, R3);
        self.asm.load(Size::Dw, R3, R1, 8);
        self.asm.alu(Alu::Add, R3, R6);
        self.asm.store(Size::Dw, R1, 8, R3);
        self.asm.store(Size::B, R2, 0, 1);
        self.asm.bind(none);
    }
}
