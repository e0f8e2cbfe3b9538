//! Decapsulation: the outer headers are removed, with everything behind the tunnel's payload
//! (docs/reference/pipes.md A9, A14).

use super::tunnel::DISTANCE_MAX;
use super::{Compiler, stack};
use crate::asm::{Alu, Helper, Is, Label, Reg, Size};
use weir_packet::{DropReason, Layer, Layers, TunnelKind};

use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

/// Bytes of an Ethernet header.
const ETHERNET: i16 = 14;
/// How many bytes the frame must have from a word on, for the header of either version of IP.
const WORD: i32 = 12;

impl Compiler<'_> {
    /// Removes the outer headers of a tunnel of this kind.
    pub fn decap(&mut self, kind: TunnelKind, absent: Label) {
        let (ethernet, done) = (self.asm.label(), self.asm.label());
        let wanted = Layers::of_tunnel(kind).0.cast_signed();
        self.asm.load(Size::W, R3, R10, stack::TUNNEL_LAYERS);
        self.needs(wanted, absent);
        self.asm.load(Size::W, R3, R10, stack::INNER_LAYERS);
        self.needs(Layer::Present as i32, absent);
        self.hand_on_congestion();
        self.cut_behind_tunnel(absent);
        self.asm.load(Size::W, R3, R10, stack::INNER_LAYERS);
        self.asm.alu(Alu::And, R3, Layer::Ethernet as i32);
        self.asm.jump_if(R3, Is::Ne, 0, ethernet);
        self.keep_link(absent);
        self.asm.jump(done);
        self.asm.bind(ethernet);
        self.asm.load(Size::Dw, R2, R10, stack::INNER_START);
        self.asm.bind(done);
        self.asm.alu(Alu::And, R2, DISTANCE_MAX);
        self.adjust_head(absent);
    }

    /// Sets the ECN field inside (RFC 6040 §4.2): an outer CE sets CE, an outer ECT(1) replaces ECT(0).
    fn hand_on_congestion(&mut self) {
        let [ipv4, ipv6, one, done] = [(); 4].map(|()| self.asm.label());
        let refused = self.dropped(DropReason::EcnCeNotEct);
        self.outer_congestion();
        self.asm.store(Size::Dw, R10, stack::CLASS, R4);
        self.asm.load(Size::W, R5, R10, stack::INNER_LAYERS);
        self.asm.mov(R3, R5);
        self.asm.alu(Alu::And, R3, Layer::Ipv4 as i32 | Layer::Ipv6 as i32);
        self.asm.jump_if(R3, Is::Eq, 0, done);
        self.inner_base(stack::INNER_L3, WORD);
        // The first word, whose second byte has the field: its last two bits, or those above the last four.
        self.asm.load(Size::H, R0, R3, 0);
        self.asm.swap(R0, 16);
        self.asm.load(Size::Dw, R4, R10, stack::CLASS);
        self.asm.mov(R2, R0);
        self.asm.alu(Alu::And, R5, Layer::Ipv6 as i32);
        self.asm.jump_if(R5, Is::Ne, 0, ipv6);
        self.asm.jump(ipv4);
        self.asm.bind(ipv6);
        self.asm.alu(Alu::Shr, R2, 4);
        self.asm.bind(ipv4);
        self.asm.alu(Alu::And, R2, 3);
        // R1 gets the bits that change.
        self.asm.mov(R1, R2);
        self.asm.alu(Alu::Xor, R1, 3);
        self.asm.jump_if(R4, Is::Eq, 1, one);
        self.asm.jump_if(R4, Is::Ne, 3, done);
        self.asm.jump_if(R2, Is::Eq, 0, refused);
        self.change_congestion(done);
        self.asm.bind(one);
        self.asm.jump_if(R2, Is::Ne, 2, done);
        self.asm.mov(R1, 3);
        self.change_congestion(done);
        self.asm.bind(done);
    }

    /// Leaves the outer ECN field in R4.
    fn outer_congestion(&mut self) {
        let (ipv6, done) = (self.asm.label(), self.asm.label());
        self.asm.load(Size::B, R4, R6, 1);
        self.asm.jump_if(R9, Is::Set, Layer::Ipv6 as i32, ipv6);
        self.asm.jump(done);
        self.asm.bind(ipv6);
        self.asm.alu(Alu::Shr, R4, 4);
        self.asm.bind(done);
        self.asm.alu(Alu::And, R4, 3);
    }

    /// Flips bits of the ECN field inside: those in R1. R5 is 0 for IPv4, whose checksum is updated, R3 the
    /// header and R0 its first word.
    fn change_congestion(&mut self, done: Label) {
        let ipv6 = self.asm.label();
        // A checksum is kept unchanged, even if weir would write it in another form.
        self.asm.jump_if(R1, Is::Eq, 0, done);
        self.asm.jump_if(R5, Is::Ne, 0, ipv6);
        self.asm.mov(R4, R0);
        self.asm.alu(Alu::Xor, R0, R1);
        self.asm.mov(R1, R0);
        for word in [R1, R4] {
            self.asm.swap(word, 16);
        }
        self.asm.store(Size::H, R3, 0, R1);
        self.asm.mov(R5, R3);
        self.difference(2);
        self.mend_at(R5, 10, false);
        self.asm.jump(done);
        self.asm.bind(ipv6);
        self.asm.alu(Alu::Shl, R1, 4);
        self.asm.alu(Alu::Xor, R0, R1);
        self.asm.swap(R0, 16);
        self.asm.store(Size::H, R3, 0, R0);
        self.asm.jump(done);
    }

    /// Removes what lies behind the tunnel's payload.
    fn cut_behind_tunnel(&mut self, failed: Label) {
        let none = self.asm.label();
        self.asm.load(Size::Dw, R2, R10, stack::TUNNEL_END);
        self.asm.mov(R1, R8);
        self.asm.alu(Alu::Sub, R1, R7);
        self.asm.alu(Alu::Sub, R2, R1);
        self.asm.jump_if(R2, Is::Eq, 0, none);
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.call(Helper::XdpAdjustTail);
        self.asm.jump_if(R0, Is::Ne, 0, failed);
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.load(Size::W, R7, R1, 0);
        self.asm.load(Size::W, R8, R1, 4);
        self.asm.bind(none);
    }

    /// Moves the outer Ethernet header with its tags in front of the IP packet, and leaves in R2 how many
    /// bytes are removed.
    fn keep_link(&mut self, failed: Label) {
        let done = self.asm.label();
        for (tags, layer) in [(2, Layer::SecondVlan), (1, Layer::Vlan), (0, Layer::Present)] {
            let fewer = self.asm.label();
            self.asm.mov(R3, R9);
            self.asm.alu(Alu::And, R3, layer as i32);
            self.asm.jump_if(R3, Is::Eq, 0, fewer);
            let link = ETHERNET + 4 * tags;
            self.asm.load(Size::Dw, R2, R10, stack::INNER_START);
            self.asm.alu(Alu::And, R2, DISTANCE_MAX);
            self.asm.jump_if(R2, Is::Lt, i32::from(link), failed);
            self.asm.alu(Alu::Sub, R2, i32::from(link));
            self.asm.mov(R5, R7);
            self.asm.alu(Alu::Add, R5, R2);
            for from in [R5, R7] {
                self.asm.mov(R1, from);
                self.asm.alu(Alu::Add, R1, i32::from(link));
                self.asm.jump_if(R1, Is::Gt, R8, failed);
            }
            self.move_link(link);
            self.asm.jump(done);
            self.asm.bind(fewer);
        }
        self.asm.jump(failed);
        self.asm.bind(done);
    }

    /// Copies the first bytes of the frame to R5, from the back, because the places may overlap, and writes
    /// the EtherType.
    fn move_link(&mut self, link: i16) {
        self.asm.load(Size::W, R4, R10, stack::INNER_ETHER_TYPE);
        self.asm.swap(R4, 16);
        let mut end = link;
        while end > 0 {
            let bytes = [8, 4, 2].into_iter().find(|bytes| *bytes <= end).unwrap_or(2);
            end -= bytes;
            self.asm.load(Size::of(bytes as usize), R1, R7, end);
            self.asm.store(Size::of(bytes as usize), R5, end, R1);
        }
        self.asm.store(Size::H, R5, link - 2, R4);
    }
}
