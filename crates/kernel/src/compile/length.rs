//! Operations on lengths: the longest packet, and the longest segment (docs/reference/pipes.md A21, A22).

use super::actions::ValuePlace;
use super::{Compiler, stack};
use crate::asm::{Alu, Helper, Is, Label, Reg, Size};
use crate::coverage::Why;
use weir_packet::{DropReason, Field, Layer};
use weir_program::operation::Value;

use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

/// The lengths of TCP's header without options, of the longest options, and of the option with the maximum
/// segment size.
const TCP: i32 = 20;
const OPTIONS: i32 = 40;
const MSS: i32 = 4;

impl Compiler<'_> {
    /// Refuses a packet, or a frame, that is longer: the packet is left to the engine if the pipe has an app
    /// that answers its sender.
    pub fn limit_length(
        &mut self,
        bytes: Value,
        frame: bool,
        (at, absent, answered): (Option<ValuePlace>, Label, bool),
    ) {
        let (fits, long) = (self.asm.label(), self.asm.label());
        self.asm.mov(R3, R9);
        self.asm.alu(Alu::And, R3, Layer::Ipv4 as i32 | Layer::Ipv6 as i32);
        self.asm.jump_if(R3, Is::Eq, 0, absent);
        self.value(bytes, Field::UdpSport, at);
        self.asm.alu(Alu::And, R1, 0xffff);
        if frame {
            self.asm.mov(R4, R8);
            self.asm.alu(Alu::Sub, R4, R7);
        } else {
            self.asm.load(Size::Dw, R4, R10, stack::IP_LENGTH);
        }
        self.asm.jump_if(R4, Is::Le, R1, fits);
        self.asm.jump_if(R9, Is::Set, Layer::Ipv6 as i32, long);
        // Don't Fragment.
        self.asm.load(Size::B, R1, R6, 6);
        self.asm.jump_if(R1, Is::Set, 0x40, long);
        self.drop(DropReason::NotFragmented);
        self.asm.bind(long);
        let refused = if answered { self.leave(Why::TooLong) } else { self.dropped(DropReason::TooLong) };
        self.asm.jump(refused);
        self.asm.bind(fits);
    }

    /// Leaves SYNs to the engine.
    pub fn leave_syns(&mut self) {
        let others = self.asm.label();
        self.jump_unless_syn(others);
        let left = self.leave(Why::Syn);
        self.asm.jump(left);
        self.asm.bind(others);
    }

    /// Jumps unless the packet is a SYN, whose TCP header R5 points to afterwards.
    fn jump_unless_syn(&mut self, others: Label) {
        self.asm.mov(R3, R9);
        self.asm.alu(Alu::And, R3, Layer::Tcp as i32);
        self.asm.jump_if(R3, Is::Eq, 0, others);
        self.asm.load(Size::Dw, R5, R10, stack::L4);
        self.asm.load(Size::B, R1, R5, 13);
        self.asm.alu(Alu::And, R1, 2);
        self.asm.jump_if(R1, Is::Eq, 0, others);
    }

    /// Lowers the maximum segment size of a SYN. The options are copied to the stack, and each place where
    /// one can begin has code of its own: a position that the verifier follows as a number has too many
    /// values.
    pub fn clamp_mss(&mut self, mss: Value, at: Option<ValuePlace>) {
        let (found, done) = (self.asm.label(), self.asm.label());
        self.jump_unless_syn(done);
        self.copy_options(done);
        let places: Vec<Label> = (0..=OPTIONS - MSS).map(|_| self.asm.label()).collect();
        for (place, label) in (0..).zip(&places) {
            let option = stack::BOTTOM + place as i16;
            self.asm.bind(*label);
            self.asm.mov(R4, place);
            self.asm.load(Size::B, R1, R10, option);
            self.asm.jump_if(R1, Is::Eq, 0, done);
            self.asm.jump_if(R1, Is::Eq, 2, found);
            let next = |length: i32| places.get((place + length) as usize).copied().unwrap_or(done);
            self.asm.jump_if(R1, Is::Eq, 1, next(1));
            self.asm.load(Size::B, R1, R10, option + 1);
            for length in 2..=OPTIONS - MSS - place {
                self.asm.jump_if(R1, Is::Eq, length, next(length));
            }
            // Behind the last place, there is no room for the option.
            self.asm.jump(done);
        }
        self.asm.bind(found);
        self.lower_mss(mss, at, done);
        self.asm.bind(done);
    }

    /// Copies the options of the TCP header at R5 to the bottom of the stack, where zeros follow.
    fn copy_options(&mut self, done: Label) {
        self.asm.load(Size::B, R4, R5, 12);
        self.asm.alu(Alu::Shr, R4, 4);
        self.asm.alu(Alu::Shl, R4, 2);
        self.asm.jump_if(R4, Is::Le, TCP, done);
        self.asm.alu(Alu::Sub, R4, TCP);
        for word in 0..=OPTIONS as i16 / 8 {
            self.asm.store(Size::Dw, R10, stack::BOTTOM + 8 * word, 0);
        }
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.mov(R2, R5);
        self.asm.alu(Alu::Sub, R2, R7);
        self.asm.alu(Alu::Add, R2, TCP);
        self.asm.mov(R3, R10);
        self.asm.alu(Alu::Add, R3, i32::from(stack::BOTTOM));
        self.asm.call(Helper::XdpLoadBytes);
        self.asm.jump_if(R0, Is::Ne, 0, done);
    }

    /// Lowers the value of the option at the place in R4, if there is one and it is larger.
    fn lower_mss(&mut self, mss: Value, at: Option<ValuePlace>, done: Label) {
        let even = self.asm.label();
        self.value(mss, Field::UdpSport, at);
        self.asm.alu(Alu::And, R1, 0xffff);
        self.asm.mov(R0, R1);
        self.asm.load(Size::Dw, R5, R10, stack::L4);
        self.asm.mov(R3, R5);
        self.asm.alu(Alu::Add, R3, R4);
        self.asm.mov(R1, R3);
        self.asm.alu(Alu::Add, R1, TCP + MSS);
        self.asm.jump_if(R1, Is::Gt, R8, done);
        self.asm.load(Size::B, R1, R3, TCP as i16 + 1);
        self.asm.jump_if(R1, Is::Ne, MSS, done);
        // The value must lie within the header.
        self.asm.load(Size::B, R1, R5, 12);
        self.asm.alu(Alu::Shr, R1, 4);
        self.asm.alu(Alu::Shl, R1, 2);
        self.asm.mov(R5, R4);
        self.asm.alu(Alu::Add, R4, TCP + MSS);
        self.asm.jump_if(R1, Is::Lt, R4, done);
        self.asm.mov(R1, R0);
        self.asm.load(Size::H, R4, R3, TCP as i16 + 2);
        self.asm.mov(R2, R4);
        self.asm.swap(R2, 16);
        self.asm.jump_if(R2, Is::Le, R1, done);
        self.asm.swap(R1, 16);
        self.asm.store(Size::H, R3, TCP as i16 + 2, R1);
        self.difference(2);
        // An odd byte is the other half of a word of the checksum.
        self.asm.alu(Alu::And, R5, 1);
        self.asm.jump_if(R5, Is::Eq, 0, even);
        self.asm.swap(R1, 16);
        self.asm.bind(even);
        self.mend(Field::TcpSport);
    }
}
