//! Tunnels: finds the tunnel header and the headers inside, as [`weir_packet::parse`] does.
//!
//! Unlike the outer headers, which the verifier follows as pointers, those inside are kept as distances from
//! the frame's start. The layers that were found are a number that the verifier cannot know, because it
//! starts from a 0 that the verifier does not know to be 0 ([`Compiler::unknown_zero`]). Otherwise the
//! verifier would examine every combination of outer headers, tunnel and inner headers separately. So each
//! read inside checks the frame's end once more. Packets with unusual headers inside are left to the engine.

use super::{Compiler, stack};
use crate::asm::{Alu, Is, Label, Reg, Size};
use crate::coverage::Why;
use weir_packet::{Layer, Layers, TunnelKind};

use Reg::{R0, R1, R2, R3, R4, R5, R7, R8, R10};

/// The longest distance from the frame's start, which the verifier has to know.
pub const DISTANCE_MAX: i32 = 0xfff;

/// Where the parts of the parser for inner headers begin. R4 is a distance, R5 that of the end, and R0 the
/// layers.
#[derive(Clone, Copy)]
struct InsideLabels {
    ethernet: Label,
    ipv4: Label,
    ipv6: Label,
    /// Nothing that is parsed.
    unread: Label,
}

impl Compiler<'_> {
    /// Notes that nothing is inside yet.
    pub fn begin_inside(&mut self) {
        for word in 0..stack::INNER_WORDS {
            self.asm.store(Size::Dw, R10, stack::INNER - 8 * word, 0);
        }
    }

    /// Leaves the address of a header inside in R3, if the frame has `bytes` bytes there.
    pub fn inner_base(&mut self, place: i16, bytes: i32) {
        let short = self.leave(Why::Malformed);
        self.asm.load(Size::Dw, R3, R10, place);
        self.asm.alu(Alu::And, R3, DISTANCE_MAX);
        self.asm.alu(Alu::Add, R3, R7);
        self.asm.mov(R1, R3);
        self.asm.alu(Alu::Add, R1, bytes);
        // The parser has checked these bytes, but the verifier no longer knows it.
        self.asm.jump_if(R1, Is::Gt, R8, short);
    }

    /// Where the tunnels of a kind are parsed; for those directly behind IP, by the protocol inside.
    pub fn tunnel_at(&mut self, kind: TunnelKind, version: i32) -> Label {
        let asm = &mut self.asm;
        let known = self.tunnels.iter().find(|(one, of, _)| (*one, *of) == (kind, version));
        if let Some((.., label)) = known {
            return *label;
        }
        let label = asm.label();
        self.tunnels.push((kind, version, label));
        label
    }

    /// The parsers of all tunnels that were jumped to. R0 is the header behind IP, which has R4 bytes.
    pub fn tunnels(&mut self, parsed: Label) {
        if self.tunnels.is_empty() {
            return;
        }
        let [ethernet, ipv4, ipv6, unread] = [(); 4].map(|()| self.asm.label());
        let inside = InsideLabels { ethernet, ipv4, ipv6, unread };
        for (kind, version, label) in self.tunnels.clone() {
            self.asm.bind(label);
            self.enter(kind);
            match kind {
                TunnelKind::Vxlan => self.vxlan(inside),
                TunnelKind::Geneve => self.geneve(inside),
                TunnelKind::Gre => self.gre(inside),
                TunnelKind::Gue => self.gue(inside),
                TunnelKind::Ipip => self.asm.jump(if version == 4 { ipv4 } else { ipv6 }),
            }
        }
        self.inner_level(inside, parsed);
    }

    /// Finds where the tunnel's header is and where its carrier's payload ends.
    fn enter(&mut self, kind: TunnelKind) {
        let unusual = self.leave(Why::Tunnel);
        if self.uses_inner_key {
            return self.asm.jump(unusual);
        }
        self.asm.load(Size::Dw, R1, R10, stack::LENGTH);
        self.asm.jump_if(R1, Is::Gt, DISTANCE_MAX, unusual);
        self.asm.load(Size::Dw, R5, R10, stack::L3_OFFSET);
        self.asm.load(Size::Dw, R2, R10, stack::IP_LENGTH);
        self.asm.alu(Alu::Add, R5, R2);
        self.asm.mov(R2, R5);
        self.asm.alu(Alu::Sub, R2, R4);
        self.asm.mov(R4, R2);
        if kind.is_udp() {
            self.be16(R3, R0, 4);
            self.asm.mov(R5, R4);
            self.asm.alu(Alu::Add, R5, R3);
            self.asm.alu(Alu::Add, R4, 8);
        }
        self.asm.store(Size::Dw, R10, stack::TUNNEL_END, R5);
        self.unknown_zero(R1);
        self.asm.alu(Alu::Add, R1, Layers::of_tunnel(kind).0.cast_signed());
        self.asm.store(Size::W, R10, stack::TUNNEL_LAYERS, R1);
    }

    /// Loads a word of the frame twice and leaves the difference in a register.
    fn unknown_zero(&mut self, to: Reg) {
        self.asm.load(Size::Dw, to, R7, 0);
        self.asm.load(Size::Dw, R2, R7, 0);
        self.asm.alu(Alu::Sub, to, R2);
    }

    /// Leaves the address of the next bytes in R1; the frame must have them.
    fn reach(&mut self, bytes: i32) {
        let malformed = self.leave(Why::Malformed);
        self.asm.mov(R2, R4);
        self.asm.alu(Alu::Add, R2, bytes);
        self.asm.jump_if(R2, Is::Gt, R5, malformed);
        self.asm.alu(Alu::And, R4, DISTANCE_MAX);
        self.asm.mov(R1, R7);
        self.asm.alu(Alu::Add, R1, R4);
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Add, R2, bytes);
        self.asm.jump_if(R2, Is::Gt, R8, malformed);
    }

    /// Notes an ID of 24 or 32 bits at R1.
    fn tunnel_id(&mut self, offset: i16, bits: i32) {
        self.asm.load(Size::W, R2, R1, offset);
        self.asm.swap(R2, 32);
        self.asm.alu(Alu::Shr, R2, 32 - bits);
        self.asm.store(Size::W, R10, stack::TUNNEL_ID, R2);
        self.asm.load(Size::W, R2, R10, stack::TUNNEL_LAYERS);
        self.asm.alu(Alu::Add, R2, Layer::TunnelId as i32);
        self.asm.store(Size::W, R10, stack::TUNNEL_LAYERS, R2);
    }

    fn vxlan(&mut self, inside: InsideLabels) {
        let (malformed, flagged) = (self.leave(Why::Malformed), self.asm.label());
        self.reach(8);
        self.asm.load(Size::B, R2, R1, 0);
        self.asm.jump_if(R2, Is::Set, 8, flagged);
        self.asm.jump(malformed);
        self.asm.bind(flagged);
        self.tunnel_id(4, 24);
        self.asm.alu(Alu::Add, R4, 8);
        self.asm.jump(inside.ethernet);
    }

    /// Without options; control messages are not read.
    fn geneve(&mut self, inside: InsideLabels) {
        let unusual = self.leave(Why::Tunnel);
        self.reach(8);
        self.asm.load(Size::B, R2, R1, 0);
        self.asm.jump_if(R2, Is::Ne, 0, unusual);
        self.tunnel_id(4, 24);
        self.asm.alu(Alu::Add, R4, 8);
        self.asm.load(Size::B, R2, R1, 1);
        self.asm.jump_if(R2, Is::Set, 0x80, inside.unread);
        self.by_ether_type(inside);
    }

    /// With a key or without; other optional fields are unusual.
    fn gre(&mut self, inside: InsideLabels) {
        let (unusual, plain) = (self.leave(Why::Tunnel), self.asm.label());
        self.reach(4);
        self.be16(R2, R1, 0);
        self.asm.jump_if(R2, Is::Set, 0xd007, unusual);
        self.asm.alu(Alu::And, R2, 0x2000);
        self.asm.jump_if(R2, Is::Eq, 0, plain);
        self.reach(8);
        self.tunnel_id(4, 32);
        self.asm.alu(Alu::Add, R4, 4);
        self.asm.bind(plain);
        self.asm.alu(Alu::Add, R4, 4);
        self.by_ether_type(inside);
    }

    /// By the type in bytes 2 and 3 of the header at R1.
    fn by_ether_type(&mut self, inside: InsideLabels) {
        self.be16(R3, R1, 2);
        for (kind, to) in [(0x6558, inside.ethernet), (0x0800, inside.ipv4), (0x86dd, inside.ipv6)] {
            self.asm.jump_if(R3, Is::Eq, kind, to);
        }
        self.asm.jump(inside.unread);
    }

    /// Variant 0 without optional fields, or variant 1.
    fn gue(&mut self, inside: InsideLabels) {
        let (unusual, bare) = (self.leave(Why::Tunnel), self.asm.label());
        self.reach(1);
        self.asm.load(Size::B, R3, R1, 0);
        self.asm.jump_if(R3, Is::Ne, 0, bare);
        self.reach(4);
        self.asm.load(Size::B, R3, R1, 1);
        self.asm.alu(Alu::Add, R4, 4);
        self.asm.jump_if(R3, Is::Eq, 4, inside.ipv4);
        self.asm.jump_if(R3, Is::Eq, 41, inside.ipv6);
        self.asm.jump(inside.unread);
        self.asm.bind(bare);
        self.asm.alu(Alu::Shr, R3, 4);
        self.asm.jump_if(R3, Is::Eq, 4, inside.ipv4);
        self.asm.jump_if(R3, Is::Eq, 6, inside.ipv6);
        self.asm.jump(unusual);
    }

    /// Stores the present distance.
    fn note_distance(&mut self, place: i16) {
        self.asm.alu(Alu::And, R4, DISTANCE_MAX);
        self.asm.store(Size::Dw, R10, place, R4);
    }

    fn inner_level(&mut self, inside: InsideLabels, parsed: Label) {
        let [header4, header6, transport, done] = [(); 4].map(|()| self.asm.label());
        self.asm.bind(inside.ethernet);
        self.inner_ethernet((header4, header6), done);
        for (at, ether_type, header) in [(inside.ipv4, 0x0800, header4), (inside.ipv6, 0x86dd, header6)] {
            self.asm.bind(at);
            self.unknown_zero(R0);
            self.asm.alu(Alu::Add, R0, Layer::Present as i32);
            self.asm.store(Size::W, R10, stack::INNER_ETHER_TYPE, ether_type);
            self.note_distance(stack::INNER_START);
            self.note_distance(stack::INNER_L3);
            self.asm.jump(header);
        }
        self.asm.bind(header4);
        self.inner_ipv4();
        self.asm.jump(transport);
        self.asm.bind(header6);
        self.inner_ipv6();
        self.asm.bind(transport);
        self.inner_transport(done);
        self.asm.bind(done);
        self.asm.store(Size::W, R10, stack::INNER_LAYERS, R0);
        self.asm.bind(inside.unread);
        self.asm.jump(parsed);
    }

    fn inner_ethernet(&mut self, (header4, header6): (Label, Label), done: Label) {
        let (unusual, untagged) = (self.leave(Why::Tunnel), self.asm.label());
        self.reach(14);
        self.note_distance(stack::INNER_START);
        self.unknown_zero(R0);
        self.asm.alu(Alu::Add, R0, Layer::Present as i32 | Layer::Ethernet as i32);
        self.be16(R3, R1, 12);
        self.asm.alu(Alu::Add, R4, 14);
        for layer in [Layer::Vlan, Layer::SecondVlan] {
            let tag = self.asm.label();
            self.asm.jump_if(R3, Is::Eq, 0x8100, tag);
            self.asm.jump_if(R3, Is::Ne, 0x88a8, untagged);
            self.asm.bind(tag);
            self.reach(4);
            self.be16(R3, R1, 2);
            self.asm.alu(Alu::Add, R0, layer as i32);
            self.asm.alu(Alu::Add, R4, 4);
        }
        self.asm.bind(untagged);
        self.asm.store(Size::W, R10, stack::INNER_ETHER_TYPE, R3);
        self.note_distance(stack::INNER_L3);
        self.asm.jump_if(R3, Is::Eq, 0x0800, header4);
        self.asm.jump_if(R3, Is::Eq, 0x86dd, header6);
        self.asm.jump_if(R3, Is::Eq, 0x0806, unusual);
        self.asm.jump(done);
    }

    /// RFC 791: leaves the protocol in R3; the packet ends at R5.
    fn inner_ipv4(&mut self) {
        let (malformed, unusual) = (self.leave(Why::Malformed), self.leave(Why::Tunnel));
        self.reach(20);
        self.asm.load(Size::B, R3, R1, 0);
        self.asm.jump_if(R3, Is::Lt, 0x45, malformed);
        self.asm.jump_if(R3, Is::Gt, 0x4f, malformed);
        self.asm.alu(Alu::And, R3, 15);
        self.asm.alu(Alu::Shl, R3, 2);
        self.be16(R2, R1, 2);
        self.asm.jump_if(R2, Is::Lt, R3, malformed);
        self.asm.alu(Alu::Add, R2, R4);
        self.asm.jump_if(R2, Is::Gt, R5, malformed);
        self.asm.mov(R5, R2);
        self.be16(R2, R1, 6);
        self.asm.jump_if(R2, Is::Set, 0x3fff, unusual);
        self.asm.load(Size::W, R2, R1, 12);
        self.asm.swap(R2, 32);
        self.asm.jump_if(R2, Is::Eq, 0, malformed);
        // Multicast, and everything above.
        self.asm.alu(Alu::Shr, R2, 28);
        self.asm.jump_if(R2, Is::Ge, 0xe, malformed);
        self.asm.alu(Alu::Add, R4, R3);
        self.note_distance(stack::INNER_L4);
        self.asm.load(Size::B, R3, R1, 9);
        self.asm.store(Size::W, R10, stack::INNER_PROTOCOL, R3);
        self.asm.alu(Alu::Add, R0, Layer::Ipv4 as i32);
    }

    /// RFC 8200, the same.
    fn inner_ipv6(&mut self) {
        let (malformed, unusual) = (self.leave(Why::Malformed), self.leave(Why::Tunnel));
        self.reach(40);
        self.asm.load(Size::B, R3, R1, 0);
        self.asm.alu(Alu::Shr, R3, 4);
        self.asm.jump_if(R3, Is::Ne, 6, malformed);
        self.be16(R2, R1, 4);
        self.asm.alu(Alu::Add, R2, R4);
        self.asm.alu(Alu::Add, R2, 40);
        self.asm.jump_if(R2, Is::Gt, R5, malformed);
        self.asm.mov(R5, R2);
        self.asm.load(Size::B, R2, R1, 8);
        self.asm.jump_if(R2, Is::Eq, 0xff, malformed);
        self.asm.load(Size::Dw, R2, R1, 8);
        self.asm.load(Size::Dw, R3, R1, 16);
        self.asm.alu(Alu::Or, R2, R3);
        self.asm.jump_if(R2, Is::Eq, 0, malformed);
        self.asm.load(Size::B, R3, R1, 6);
        for protocol in [0, 43, 44, 51, 60] {
            self.asm.jump_if(R3, Is::Eq, protocol, unusual);
        }
        self.asm.alu(Alu::Add, R4, 40);
        self.note_distance(stack::INNER_L4);
        self.asm.store(Size::W, R10, stack::INNER_PROTOCOL, R3);
        self.asm.alu(Alu::Add, R0, Layer::Ipv6 as i32);
    }

    fn inner_transport(&mut self, done: Label) {
        let (malformed, unusual) = (self.leave(Why::Malformed), self.leave(Why::Tunnel));
        let [tcp, udp, icmp, icmpv6] = [(); 4].map(|()| self.asm.label());
        for (protocol, to) in [(6, tcp), (17, udp), (1, icmp), (58, icmpv6)] {
            self.asm.jump_if(R3, Is::Eq, protocol, to);
        }
        self.asm.jump(done);
        self.asm.bind(tcp);
        self.reach(20);
        self.asm.load(Size::B, R3, R1, 12);
        self.asm.alu(Alu::Shr, R3, 4);
        self.asm.jump_if(R3, Is::Lt, 5, malformed);
        self.asm.alu(Alu::Shl, R3, 2);
        self.asm.alu(Alu::Add, R3, R4);
        self.asm.jump_if(R3, Is::Gt, R5, malformed);
        self.asm.alu(Alu::Add, R0, Layer::Tcp as i32 | Layer::Ports as i32);
        self.asm.jump(done);
        self.asm.bind(udp);
        self.reach(8);
        self.be16(R3, R1, 4);
        self.asm.jump_if(R3, Is::Lt, 8, malformed);
        self.asm.alu(Alu::Add, R3, R4);
        self.asm.jump_if(R3, Is::Gt, R5, malformed);
        self.asm.alu(Alu::Add, R0, Layer::Udp as i32 | Layer::Ports as i32);
        self.asm.jump(done);
        for (at, ip, layer, errors) in [
            (icmp, Layer::Ipv4, Layer::Icmp, &[3, 4, 5, 11, 12][..]),
            (icmpv6, Layer::Ipv6, Layer::Icmpv6, &[1, 2, 3, 4][..]),
        ] {
            self.asm.bind(at);
            self.asm.mov(R2, R0);
            self.asm.alu(Alu::And, R2, ip as i32);
            self.asm.jump_if(R2, Is::Eq, 0, done);
            self.reach(8);
            self.asm.load(Size::B, R3, R1, 0);
            for kind in errors {
                self.asm.jump_if(R3, Is::Eq, *kind, unusual);
            }
            self.asm.alu(Alu::Add, R0, layer as i32);
            self.asm.jump(done);
        }
    }
}
