//! Finds the headers of a frame, as [`weir_packet::parse`] does, and leaves everything unusual to the engine:
//! what is malformed, fragments, extension headers and ICMP errors.

use super::{Compiler, stack};
use crate::asm::{Alu, Is, Label, Reg, Size};
use crate::coverage::{CHECKSUM_PROTOCOLS, Why};
use weir_packet::{Depth, IPV4_MARK, Layer, TunnelKind};

use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

/// Odd constants of the select hash (weir_packet::hash).
const K0: u64 = 0x9e37_79b9_7f4a_7c15;
const K1: u64 = 0xbb67_ae85_84ca_a73b;
const K2: u64 = 0x3c6e_f372_fe94_f82b;

const ETHERNET: i32 = 14;
const IPV4: i32 = 20;
const IPV6: i32 = 40;
const TCP: i32 = 20;

impl Compiler<'_> {
    /// Finds the headers, and computes the select hash if the program uses it.
    pub fn parse(&mut self) {
        let malformed = self.leave(Why::Malformed);
        let mut end = R7;
        self.reaches(&mut end, ETHERNET, malformed);
        let first = Layer::Present as u32 | Layer::Ethernet as u32;
        self.asm.mov(R9, first as i32);
        self.tags(malformed);
        self.asm.store(Size::W, R10, stack::PROTOCOL, 0);
        let parsed = self.asm.label();
        if self.depth == Depth::Inner {
            self.begin_inside();
        }
        if self.depth > Depth::L2 {
            self.network(parsed);
        }
        self.asm.bind(parsed);
        if self.uses_hash {
            self.select_hash();
        }
        self.pickers();
    }

    /// Loads the frame's bounds and its length.
    pub fn bounds(&mut self) {
        self.pointers();
        self.asm.mov(R2, R8);
        self.asm.alu(Alu::Sub, R2, R7);
        self.asm.store(Size::Dw, R10, stack::LENGTH, R2);
    }

    /// Loads where the frame begins and ends from the context in R1.
    pub fn pointers(&mut self) {
        self.asm.load(Size::W, R7, R1, 0);
        self.asm.load(Size::W, R8, R1, 4);
    }

    /// Jumps if the frame ends less than `bytes` behind the address in `base`.
    fn reaches(&mut self, base: &mut Reg, bytes: i32, short: Label) {
        self.asm.mov(R2, *base);
        self.asm.alu(Alu::Add, R2, bytes);
        self.asm.jump_if(R2, Is::Gt, R8, short);
    }

    /// Loads 16 bits in network order.
    pub fn be16(&mut self, dst: Reg, base: Reg, offset: i16) {
        self.asm.load(Size::H, dst, base, offset);
        self.asm.swap(dst, 16);
    }

    /// Skips at most two VLAN tags. Leaves the address of L3 in R6 and the EtherType on the stack.
    fn tags(&mut self, malformed: Label) {
        let untagged = self.asm.label();
        self.asm.mov(R6, R7);
        self.asm.alu(Alu::Add, R6, ETHERNET);
        self.asm.mov(R5, ETHERNET);
        self.be16(R3, R7, 12);
        for layer in [Layer::Vlan, Layer::SecondVlan] {
            let tag = self.asm.label();
            self.asm.jump_if(R3, Is::Eq, 0x8100, tag);
            self.asm.jump_if(R3, Is::Ne, 0x88a8, untagged);
            self.asm.bind(tag);
            self.reaches(&mut R6.clone(), 4, malformed);
            self.be16(R3, R6, 2);
            self.asm.alu(Alu::Or, R9, layer as i32);
            self.asm.alu(Alu::Add, R6, 4);
            self.asm.alu(Alu::Add, R5, 4);
        }
        self.asm.bind(untagged);
        self.asm.store(Size::W, R10, stack::ETHER_TYPE, R3);
        self.asm.store(Size::Dw, R10, stack::L3_OFFSET, R5);
    }

    fn network(&mut self, parsed: Label) {
        let (ipv4, ipv6, arp) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.jump_if(R3, Is::Eq, 0x0800, ipv4);
        self.asm.jump_if(R3, Is::Eq, 0x86dd, ipv6);
        self.asm.jump_if(R3, Is::Eq, 0x0806, arp);
        self.asm.jump(parsed);
        self.asm.bind(arp);
        self.arp(parsed);
        let transport = self.asm.label();
        self.asm.bind(ipv4);
        self.ipv4();
        self.asm.jump(transport);
        self.asm.bind(ipv6);
        self.ipv6();
        self.asm.bind(transport);
        self.transport(parsed);
    }

    /// RFC 826: read if it is for IPv4 over Ethernet.
    fn arp(&mut self, parsed: Label) {
        let malformed = self.leave(Why::Malformed);
        self.reaches(&mut R6.clone(), 8, malformed);
        for (offset, word) in [(0, 0x0001_0800_u32), (4, 0x0604_0000)] {
            self.asm.load(Size::W, R3, R6, offset);
            self.asm.swap(R3, 32);
            if offset == 4 {
                self.asm.alu(Alu::Shr, R3, 16);
                self.asm.alu(Alu::Shl, R3, 16);
            }
            self.asm.jump_if(R3, Is::Ne, word as i32, parsed);
        }
        self.reaches(&mut R6.clone(), 28, malformed);
        self.asm.alu(Alu::Or, R9, Layer::Arp as i32);
        self.asm.jump(parsed);
    }

    /// RFC 791: leaves the protocol in R5 and the bytes of the payload in R4.
    fn ipv4(&mut self) {
        let (malformed, fragment) = (self.leave(Why::Malformed), self.leave(Why::Fragment));
        self.reaches(&mut R6.clone(), IPV4, malformed);
        self.asm.load(Size::B, R3, R6, 0);
        self.asm.mov(R0, R3);
        self.asm.alu(Alu::Shr, R0, 4);
        self.asm.jump_if(R0, Is::Ne, 4, malformed);
        self.asm.alu(Alu::And, R3, 15);
        self.asm.jump_if(R3, Is::Lt, 5, malformed);
        self.asm.alu(Alu::Shl, R3, 2);
        self.be16(R4, R6, 2);
        self.asm.jump_if(R4, Is::Lt, R3, malformed);
        self.fits_frame(malformed);
        self.be16(R0, R6, 6);
        self.asm.jump_if(R0, Is::Set, 0x3fff, fragment);
        self.may_send4(malformed);
        self.asm.load(Size::B, R5, R6, 9);
        self.asm.alu(Alu::Or, R9, Layer::Ipv4 as i32);
        self.asm.alu(Alu::Sub, R4, R3);
        // The verifier must know an upper bound on the length of options.
        self.asm.alu(Alu::And, R3, 0x3c);
        self.asm.mov(R0, R6);
        self.asm.alu(Alu::Add, R0, R3);
        self.asm.store(Size::Dw, R10, stack::L4, R0);
    }

    /// Notes the length of the IP packet in R4, which the frame has to contain.
    fn fits_frame(&mut self, malformed: Label) {
        self.asm.store(Size::Dw, R10, stack::IP_LENGTH, R4);
        self.asm.load(Size::Dw, R0, R10, stack::L3_OFFSET);
        self.asm.alu(Alu::Add, R0, R4);
        self.asm.load(Size::Dw, R1, R10, stack::LENGTH);
        self.asm.jump_if(R0, Is::Gt, R1, malformed);
    }

    /// Sources that no packet may have (docs/reference/pipes.md F6); the engine checks those that depend on
    /// the destination.
    fn may_send4(&mut self, malformed: Label) {
        self.asm.load(Size::W, R0, R6, 12);
        self.asm.swap(R0, 32);
        self.asm.jump_if(R0, Is::Eq, 0, malformed);
        self.asm.mov64(R1, 0xffff_ffff);
        self.asm.jump_if(R0, Is::Eq, R1, malformed);
        self.asm.alu(Alu::Shr, R0, 28);
        self.asm.jump_if(R0, Is::Eq, 0xe, malformed);
    }

    /// RFC 8200: leaves the protocol in R5 and the bytes of the payload in R4.
    fn ipv6(&mut self) {
        let (malformed, extended) = (self.leave(Why::Malformed), self.leave(Why::ExtensionHeaders));
        self.reaches(&mut R6.clone(), IPV6, malformed);
        self.asm.load(Size::B, R0, R6, 0);
        self.asm.alu(Alu::Shr, R0, 4);
        self.asm.jump_if(R0, Is::Ne, 6, malformed);
        self.be16(R4, R6, 4);
        self.asm.alu(Alu::Add, R4, IPV6);
        self.fits_frame(malformed);
        self.asm.alu(Alu::Sub, R4, IPV6);
        self.asm.load(Size::B, R0, R6, 8);
        self.asm.jump_if(R0, Is::Eq, 0xff, malformed);
        self.asm.load(Size::Dw, R0, R6, 8);
        self.asm.load(Size::Dw, R1, R6, 16);
        self.asm.alu(Alu::Or, R0, R1);
        self.asm.jump_if(R0, Is::Eq, 0, malformed);
        self.asm.load(Size::B, R5, R6, 6);
        for protocol in [0, 43, 44, 51, 60] {
            self.asm.jump_if(R5, Is::Eq, protocol, extended);
        }
        self.asm.alu(Alu::Or, R9, Layer::Ipv6 as i32);
        self.asm.mov(R0, R6);
        self.asm.alu(Alu::Add, R0, IPV6);
        self.asm.store(Size::Dw, R10, stack::L4, R0);
    }

    /// The header behind IP, at R0, with its protocol in R5 and R4 bytes.
    fn transport(&mut self, parsed: Label) {
        let malformed = self.leave(Why::Malformed);
        self.asm.store(Size::W, R10, stack::PROTOCOL, R5);
        if self.writes_addresses {
            let left = self.leave(Why::Checksum);
            for protocol in CHECKSUM_PROTOCOLS {
                self.asm.jump_if(R5, Is::Eq, i32::from(protocol), left);
            }
        }
        if self.depth == Depth::Inner {
            for (protocol, kind) in [(4, TunnelKind::Ipip), (41, TunnelKind::Ipip), (47, TunnelKind::Gre)] {
                let tunnel = self.tunnel_at(kind, protocol);
                self.asm.jump_if(R5, Is::Eq, protocol, tunnel);
            }
        }
        if self.depth < Depth::L4 {
            return;
        }
        let [tcp, udp, icmp, icmpv6] = [(); 4].map(|()| self.asm.label());
        self.asm.jump_if(R5, Is::Eq, 6, tcp);
        self.asm.jump_if(R5, Is::Eq, 17, udp);
        self.asm.jump_if(R5, Is::Eq, 1, icmp);
        self.asm.jump_if(R5, Is::Eq, 58, icmpv6);
        self.asm.jump(parsed);
        self.asm.bind(tcp);
        self.reaches(&mut R0.clone(), TCP, malformed);
        self.asm.jump_if(R4, Is::Lt, TCP, malformed);
        self.asm.load(Size::B, R3, R0, 12);
        self.asm.alu(Alu::Shr, R3, 4);
        self.asm.jump_if(R3, Is::Lt, 5, malformed);
        self.asm.alu(Alu::Shl, R3, 2);
        self.asm.jump_if(R3, Is::Gt, R4, malformed);
        self.asm.alu(Alu::Or, R9, Layer::Tcp as i32 | Layer::Ports as i32);
        self.asm.jump(parsed);
        self.asm.bind(udp);
        self.udp(malformed);
        self.asm.jump(parsed);
        self.icmp(icmp, (Layer::Ipv4, Layer::Icmp), &[3, 4, 5, 11, 12], parsed);
        self.icmp(icmpv6, (Layer::Ipv6, Layer::Icmpv6), &[1, 2, 3, 4], parsed);
        self.tunnels(parsed);
    }

    /// RFC 768.
    fn udp(&mut self, malformed: Label) {
        self.reaches(&mut R0.clone(), 8, malformed);
        self.asm.jump_if(R4, Is::Lt, 8, malformed);
        self.be16(R3, R0, 4);
        self.asm.jump_if(R3, Is::Lt, 8, malformed);
        self.asm.jump_if(R3, Is::Gt, R4, malformed);
        self.asm.alu(Alu::Or, R9, Layer::Udp as i32 | Layer::Ports as i32);
        if self.depth == Depth::Inner {
            self.be16(R3, R0, 2);
            for kind in TunnelKind::ALL.iter().filter(|kind| kind.is_udp()) {
                let port = self.input.program.tunnels.of(*kind);
                let tunnel = self.tunnel_at(*kind, 0);
                self.asm.jump_if(R3, Is::Eq, i32::from(port), tunnel);
            }
        }
    }

    /// ICMP belongs to one version of IP; errors, which have the flow key of the packet inside, are left.
    fn icmp(&mut self, at: Label, (ip, layer): (Layer, Layer), errors: &[i32], parsed: Label) {
        let (malformed, error) = (self.leave(Why::Malformed), self.leave(Why::IcmpError));
        let own = self.asm.label();
        self.asm.bind(at);
        self.asm.jump_if(R9, Is::Set, ip as i32, own);
        self.asm.jump(parsed);
        self.asm.bind(own);
        self.reaches(&mut R0.clone(), 8, malformed);
        self.asm.jump_if(R4, Is::Lt, 8, malformed);
        self.asm.load(Size::B, R3, R0, 0);
        for kind in errors {
            self.asm.jump_if(R3, Is::Eq, *kind, error);
        }
        self.asm.alu(Alu::Or, R9, layer as i32);
        self.asm.jump(parsed);
    }

    /// The select hash of the packet's flow key, or of its Ethernet header without IP.
    fn select_hash(&mut self) {
        let seed = self.input.program.select_seed;
        let first = (seed ^ K1).wrapping_mul(K0).rotate_left(32);
        let key = |word: u64| first.wrapping_add(K0.wrapping_mul(word));
        let [ipv4, ipv6, done] = [(); 3].map(|()| self.asm.label());
        self.asm.jump_if(R9, Is::Set, Layer::Ipv4 as i32, ipv4);
        self.asm.jump_if(R9, Is::Set, Layer::Ipv6 as i32, ipv6);
        // Destination, source, EtherType.
        self.asm.mov64(R1, first);
        for (word, offset) in [(0, 0), (1, 6)] {
            self.mac(offset);
            self.add_product(key(word));
        }
        self.asm.load(Size::W, R2, R10, stack::ETHER_TYPE);
        self.add_product(key(2));
        self.asm.jump(done);
        self.asm.bind(ipv4);
        let same = [(0, IPV4_MARK), (2, 0)].map(|(word, number)| product(number, key(word)));
        self.asm.mov64(R1, first.wrapping_add(same[0]).wrapping_add(same[1]));
        for (word, offset) in [(1, 12), (3, 16)] {
            self.asm.load(Size::W, R2, R6, offset);
            self.asm.swap(R2, 32);
            self.add_product(key(word));
        }
        self.last_word(key(4));
        self.asm.jump(done);
        self.asm.bind(ipv6);
        self.asm.mov64(R1, first);
        for (word, offset) in [(0, 8), (1, 16), (2, 24), (3, 32)] {
            self.asm.load(Size::Dw, R2, R6, offset);
            self.asm.swap(R2, 64);
            self.add_product(key(word));
        }
        self.last_word(key(4));
        self.asm.bind(done);
        self.finish_hash();
        self.asm.store(Size::Dw, R10, stack::HASH, R1);
    }

    /// Loads a MAC address as a number into R2.
    pub fn mac(&mut self, offset: i16) {
        self.asm.load(Size::H, R2, R7, offset);
        self.asm.swap(R2, 16);
        self.asm.alu(Alu::Shl, R2, 32);
        self.asm.load(Size::W, R3, R7, offset + 2);
        self.asm.swap(R3, 32);
        self.asm.alu(Alu::Or, R2, R3);
    }

    /// Ports, if there are any, and the protocol.
    fn last_word(&mut self, key: u64) {
        let portless = self.asm.label();
        self.asm.load(Size::W, R2, R10, stack::PROTOCOL);
        self.asm.alu(Alu::Shl, R2, 24);
        self.asm.mov(R3, R9);
        self.asm.alu(Alu::And, R3, Layer::Ports as i32);
        self.asm.jump_if(R3, Is::Eq, 0, portless);
        self.asm.load(Size::Dw, R4, R10, stack::L4);
        self.asm.load(Size::W, R3, R4, 0);
        self.asm.swap(R3, 32);
        self.asm.alu(Alu::Shl, R3, 32);
        self.asm.alu(Alu::Or, R2, R3);
        self.asm.bind(portless);
        self.add_product(key);
    }

    /// Adds the halves of R2 to those of the key, and the product of the two sums to R1 (RFC 4418).
    pub fn add_product(&mut self, key: u64) {
        self.asm.mov(R3, R2);
        self.asm.alu(Alu::Shr, R3, 32);
        self.asm.alu32(Alu::Add, R2, (key as u32).cast_signed());
        self.asm.alu32(Alu::Add, R3, ((key >> 32) as u32).cast_signed());
        self.asm.alu(Alu::Mul, R2, R3);
        self.asm.alu(Alu::Add, R1, R2);
    }

    /// The finalizer of the select hash, on R1.
    pub fn finish_hash(&mut self) {
        self.xor_rotations(25, 47);
        self.multiply(K1);
        self.xor_rotations(23, 51);
        self.multiply(K2);
        self.xor_rotations(27, 49);
    }

    fn xor_rotations(&mut self, one: i32, other: i32) {
        self.asm.mov(R2, R1);
        for by in [one, other] {
            self.asm.mov(R3, R2);
            self.asm.alu(Alu::Shl, R3, by);
            self.asm.alu(Alu::Xor, R1, R3);
            self.asm.mov(R3, R2);
            self.asm.alu(Alu::Shr, R3, 64 - by);
            self.asm.alu(Alu::Xor, R1, R3);
        }
    }

    fn multiply(&mut self, by: u64) {
        self.asm.mov64(R2, by);
        self.asm.alu(Alu::Mul, R1, R2);
    }

    /// The finalizer of splitmix64 of R1 mixed with a seed.
    pub fn mix(&mut self, seed: u64) {
        self.asm.mov64(R2, seed);
        self.asm.alu(Alu::Xor, R1, R2);
        self.asm.mov64(R2, K0);
        self.asm.alu(Alu::Add, R1, R2);
        for (shift, by) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
            self.xor_shifted(shift);
            self.multiply(by);
        }
        self.xor_shifted(31);
    }

    fn xor_shifted(&mut self, by: i32) {
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shr, R2, by);
        self.asm.alu(Alu::Xor, R1, R2);
    }
}

/// The product of a word's halves with a key's, as the program computes it.
fn product(word: u64, key: u64) -> u64 {
    let low = (word as u32).wrapping_add(key as u32);
    let high = ((word >> 32) as u32).wrapping_add((key >> 32) as u32);
    u64::from(low) * u64::from(high)
}

/// The first word of the select hash's sum, and the key of each further word.
pub fn hash_keys(seed: u64) -> (u64, impl Fn(u64) -> u64) {
    let first = (seed ^ K1).wrapping_mul(K0).rotate_left(32);
    (first, move |word| first.wrapping_add(K0.wrapping_mul(word)))
}
