//! Actions: each operation on the bytes that the previous one left, with checksums updated for what was
//! changed (RFC 1624).

use super::fields::Words;
use super::{Compiler, stack};
use crate::asm::{Alu, Helper, Is, Label, Reg, Size};
use crate::kept::{self, KeptPlace};
use crate::layout;
use weir_packet::tunnel::OuterShape;
use weir_packet::{Base, DropReason, Field, FieldKind, Layer, Source};
use weir_program::operation::Value;
use weir_program::{Encap, Operation, Pipe, Template};

use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

/// Where the checksums that cover a field are.
const IPV4_CHECKSUM: i16 = 10;
const TCP_CHECKSUM: i16 = 16;
const UDP_CHECKSUM: i16 = 6;
const ICMPV6_CHECKSUM: i16 = 2;

/// Where an action finds a number that is not a constant.
#[derive(Clone, Copy, Debug)]
pub struct ValuePlace {
    /// The word on the stack with the address of the record, or of the flow's line.
    base: i16,
    offset: i16,
    bytes: usize,
}

impl ValuePlace {
    fn in_record(offset: i16, bytes: usize) -> ValuePlace {
        ValuePlace { base: stack::RECORD, offset, bytes }
    }

    fn in_flow(KeptPlace { offset, bytes }: KeptPlace) -> ValuePlace {
        ValuePlace { base: stack::FLOW_LINE, offset, bytes }
    }
}

/// Returns the place of each number of an operation whose values in the record begin at `at`. Of an
/// encapsulation, there is one for all of them.
fn in_record(operation: &Operation, mut at: i16) -> Vec<Option<ValuePlace>> {
    if matches!(operation, Operation::Encap(_)) {
        return vec![Some(ValuePlace::in_record(at, layout::operation_bytes(operation)))];
    }
    let place = |(_, value, like): (&str, Value, Field)| {
        value.is_given().then(|| {
            let bytes = layout::value_bytes(like);
            at += bytes as i16;
            ValuePlace::in_record(at - bytes as i16, bytes)
        })
    };
    operation.numbers().map(place).collect()
}

impl Compiler<'_> {
    /// Performs a template's operations with the values of the present record, and those that the flow keeps.
    pub fn act(&mut self, pipe: &Pipe, template: &Template) {
        let mut at = layout::VALUES;
        for (operation, kept) in template.operations.iter().zip(kept::places(template)) {
            let places = match operation.is_kept() {
                true => kept.into_iter().map(|place| Some(ValuePlace::in_flow(place))).collect(),
                false => in_record(operation, at),
            };
            self.operation(pipe, operation, &places);
            at += layout::operation_bytes(operation) as i16;
        }
    }

    fn operation(&mut self, pipe: &Pipe, operation: &Operation, places: &[Option<ValuePlace>]) {
        let [at, second] = [0, 1].map(|number| places.get(number).copied().flatten());
        let absent = self.dropped(DropReason::NotApplicable);
        match operation {
            Operation::Set(field, value) => {
                if self.present(*field, absent) {
                    self.set(*field, *value, at);
                }
            }
            Operation::Add(field, value) => {
                if self.present(*field, absent) {
                    self.add(*field, *value, at);
                    self.write(*field);
                }
            }
            Operation::Copy { from, to } => {
                if self.present(*from, absent) && self.present(*to, absent) {
                    self.load_field(*from);
                    self.convert(*from, *to);
                    self.write(*to);
                }
            }
            Operation::DecrementTtl => self.decrement_ttl(absent),
            Operation::PopVlan => self.pop_vlan(absent),
            Operation::PushVlan { tpid, vid, pcp } => self.push_vlan(*tpid, (*vid, at), (*pcp, second)),
            Operation::Encap(encap) => self.encap(encap, at.map_or(0, |at| at.offset), absent),
            Operation::LimitLength { bytes, frame } => {
                self.limit_length(*bytes, *frame, (at, absent, pipe.too_long.is_some()));
            }
            Operation::ClampMss { mss } => self.clamp_mss(*mss, at),
            Operation::Decap(kind) => self.decap(*kind, absent),
        }
    }

    /// Leaves a value in R1, or in R1 and R2.
    pub fn value(&mut self, value: Value, like: Field, at: Option<ValuePlace>) {
        let words = Words::of(like);
        match (value, at) {
            (Value::Const(number), _) => {
                if words == Words::Two {
                    self.asm.mov64(R1, (number >> 64) as u64);
                }
                self.asm.mov64(words.low(), number as u64);
            }
            (_, at) => {
                let ValuePlace { base, offset, bytes } = at.expect("what is no constant has a place");
                self.asm.load(Size::Dw, R3, R10, base);
                self.asm.load(Size::of(bytes.min(8)), R1, R3, offset);
                if words == Words::Two {
                    self.asm.load(Size::Dw, R2, R3, offset + 8);
                }
            }
        }
    }

    fn add(&mut self, field: Field, value: Value, at: Option<ValuePlace>) {
        let words = Words::of(field);
        self.load_field(field);
        self.asm.mov(R4, R1);
        self.asm.mov(R5, words.low());
        self.value(value, field, at);
        self.asm.alu(Alu::Add, words.low(), R5);
        if words == Words::Two {
            // The carry: the sum is less than what was added.
            let none = self.asm.label();
            self.asm.alu(Alu::Add, R1, R4);
            self.asm.jump_if(R2, Is::Ge, R5, none);
            self.asm.alu(Alu::Add, R1, 1);
            self.asm.bind(none);
        }
    }

    /// Converts a value to another width by keeping its low bits.
    fn convert(&mut self, from: Field, to: Field) {
        match (Words::of(from), Words::of(to)) {
            (Words::One, Words::Two) => {
                self.asm.mov(R2, R1);
                self.asm.mov(R1, 0);
            }
            (Words::Two, Words::One) => self.asm.mov(R1, R2),
            (Words::One, Words::One) | (Words::Two, Words::Two) => {}
        }
    }

    /// Writes R1, or R1 and R2, into a field that the packet has.
    fn write(&mut self, field: Field) {
        let spec = field.spec();
        let Source::Frame(base) = spec.source else {
            let word = field.meta_word().expect("of the packet's properties, only metadata is written");
            return self.asm.store(Size::W, R10, stack::META + 4 * word as i16, R1);
        };
        match spec.bytes {
            6 => self.write_mac(spec.offset.into()),
            16 => self.write_address6(field, base),
            _ => self.write_bits(field, base),
        }
    }

    fn set(&mut self, field: Field, value: Value, at: Option<ValuePlace>) {
        if layout::is_mac(field) {
            return self.set_mac(field, value, at);
        }
        self.value(value, field, at);
        self.write(field);
    }

    /// Sets a MAC address. The record, or what a flow keeps, contains the address as it appears in a frame.
    fn set_mac(&mut self, field: Field, value: Value, at: Option<ValuePlace>) {
        let offset = i16::from(field.spec().offset);
        if let Value::Const(number) = value {
            let [a, b, c, d, e, f, ..] = ((number as u64) << 16).to_be_bytes();
            self.asm.store(Size::W, R7, offset, i32::from_ne_bytes([a, b, c, d]));
            return self.asm.store(Size::H, R7, offset + 4, i32::from(u16::from_ne_bytes([e, f])));
        }
        let ValuePlace { base, offset: from, .. } = at.expect("what is no constant has a place");
        self.asm.load(Size::Dw, R3, R10, base);
        self.asm.load(Size::W, R1, R3, from);
        self.asm.load(Size::H, R2, R3, from + 4);
        self.asm.store(Size::W, R7, offset, R1);
        self.asm.store(Size::H, R7, offset + 4, R2);
    }

    fn write_mac(&mut self, offset: i16) {
        self.asm.mov(R2, R1);
        self.asm.swap(R2, 32);
        self.asm.store(Size::W, R7, offset + 2, R2);
        self.asm.alu(Alu::Shr, R1, 32);
        self.asm.swap(R1, 16);
        self.asm.store(Size::H, R7, offset, R1);
    }

    /// Writes a field of up to 32 bits: replaces the 16-bit words that contain the field, and updates the
    /// checksums for these words.
    fn write_bits(&mut self, field: Field, base: Base) {
        let spec = field.spec();
        let (first, end) = (i16::from(spec.offset), i16::from(spec.offset) + i16::from(spec.bytes));
        // The smallest aligned piece of 2 or 4 bytes around the field.
        let (start, bytes) = match first / 2 * 2 {
            even if end <= even + 2 => (even, 2),
            even => (if even % 4 == 0 || spec.bytes == 4 { even } else { even - 2 }, 4),
        };
        let (size, bits) = (Size::of(bytes as usize), bytes as i32 * 8);
        // Bits of the piece below the field.
        let shift = i32::from(start + bytes - end) * 8 + i32::from(spec.shift);
        let mask = (field.max() as u64) << shift;
        self.asm.mov64(R3, field.max() as u64);
        self.asm.alu(Alu::And, R1, R3);
        self.asm.alu(Alu::Shl, R1, shift);
        let to = self.base(base, R5);
        self.asm.load(size, R2, to, start);
        self.asm.mov(R4, R2);
        self.asm.swap(R2, bits);
        self.asm.mov64(R3, !mask & (u64::MAX >> (64 - bits)));
        self.asm.alu(Alu::And, R2, R3);
        self.asm.alu(Alu::Or, R1, R2);
        self.asm.swap(R1, bits);
        self.asm.store(size, to, start, R1);
        // R1 is the new piece, and R4 the old one.
        if !in_header(field.kind) && !in_transport(field.kind) {
            return;
        }
        self.difference(bytes as usize);
        self.mend(field);
    }

    /// Leaves in R1 the change of the checksums for a piece whose old value is R4 and whose new one is R1.
    pub fn difference(&mut self, bytes: usize) {
        // The complement of the old value, plus the new one.
        self.asm.mov64(R3, if bytes == 2 { 0xffff } else { 0xffff_ffff });
        self.asm.alu(Alu::Xor, R4, R3);
        self.asm.alu(Alu::Add, R1, R4);
        if bytes == 4 {
            self.fold(R1);
        }
        self.fold(R1);
    }

    /// Adds the upper bits to the lowest 16.
    pub fn fold(&mut self, reg: Reg) {
        self.asm.mov(R3, reg);
        self.asm.alu(Alu::Shr, R3, 16);
        self.asm.alu(Alu::And, reg, 0xffff);
        self.asm.alu(Alu::Add, reg, R3);
    }

    fn write_address6(&mut self, field: Field, base: Base) {
        let offset = i16::from(field.spec().offset);
        let to = self.base(base, R5);
        self.asm.store(Size::Dw, R10, stack::SCRATCH, 0);
        for (word, at) in [(R1, offset), (R2, offset + 8)] {
            self.asm.swap(word, 64);
            self.asm.load(Size::Dw, R4, to, at);
            self.asm.store(Size::Dw, to, at, word);
            // The complement of the old value, plus the new one, in two halves.
            self.asm.alu(Alu::Xor, R4, -1);
            self.asm.load(Size::Dw, R0, R10, stack::SCRATCH);
            for of in [word, R4] {
                self.asm.mov(R3, of);
                self.asm.alu(Alu::Shr, R3, 32);
                self.asm.alu(Alu::Add, R0, R3);
                self.asm.alu32(Alu::Mov, of, of);
                self.asm.alu(Alu::Add, R0, of);
            }
            self.asm.store(Size::Dw, R10, stack::SCRATCH, R0);
        }
        self.asm.load(Size::Dw, R1, R10, stack::SCRATCH);
        // 36 bits, then 21, 17, 16.
        for _ in 0..4 {
            self.fold(R1);
        }
        self.mend(field);
    }

    /// Adds the change in R1 to the checksums that cover a field.
    pub fn mend(&mut self, field: Field) {
        let done = self.asm.label();
        if in_header(field.kind) {
            self.mend_at(R6, IPV4_CHECKSUM, false);
        }
        if in_transport(field.kind) {
            for (layer, at, zero_is_none) in [
                (Layer::Tcp, TCP_CHECKSUM, false),
                (Layer::Udp, UDP_CHECKSUM, true),
                (Layer::Icmpv6, ICMPV6_CHECKSUM, false),
            ] {
                let other = self.asm.label();
                self.asm.mov(R3, R9);
                self.asm.alu(Alu::And, R3, layer as i32);
                self.asm.jump_if(R3, Is::Eq, 0, other);
                self.asm.load(Size::Dw, R5, R10, stack::L4);
                self.mend_at(R5, at, zero_is_none);
                self.asm.jump(done);
                self.asm.bind(other);
            }
        }
        self.asm.bind(done);
    }

    /// Adds the change in R1 to one checksum and keeps R1.
    pub fn mend_at(&mut self, base: Reg, at: i16, zero_is_none: bool) {
        let done = self.asm.label();
        self.asm.load(Size::H, R2, base, at);
        if zero_is_none {
            self.asm.jump_if(R2, Is::Eq, 0, done);
        }
        self.asm.alu(Alu::Xor, R2, 0xffff);
        self.asm.alu(Alu::Add, R2, R1);
        self.fold(R2);
        self.fold(R2);
        self.asm.alu(Alu::Xor, R2, 0xffff);
        // 0 and all ones are the same number (RFC 1624); which of them is sent depends on the protocol.
        let (not, instead) = if zero_is_none { (0, 0xffff) } else { (0xffff, 0) };
        let fine = self.asm.label();
        self.asm.jump_if(R2, Is::Ne, not, fine);
        self.asm.mov(R2, instead);
        self.asm.bind(fine);
        self.asm.store(Size::H, base, at, R2);
        self.asm.bind(done);
    }

    /// The checksum of IPv4's header grows by what the TTL's word loses (RFC 1624).
    fn decrement_ttl(&mut self, absent: Label) {
        let (ipv6, done, folded) = (self.asm.label(), self.asm.label(), self.asm.label());
        let expired = self.dropped(DropReason::TtlExpired);
        self.asm.jump_if(R9, Is::Set, Layer::Ipv6 as i32, ipv6);
        if self.present(Field::Ipv4Ttl, absent) {
            self.decrement(Field::Ipv4Ttl, expired);
            self.asm.load(Size::H, R2, R6, IPV4_CHECKSUM);
            self.asm.alu(Alu::Add, R2, i32::from(u16::from_ne_bytes([1, 0])));
            self.asm.jump_if(R2, Is::Lt, 0xffff, folded);
            self.asm.alu(Alu::Add, R2, 1);
            self.asm.bind(folded);
            self.asm.store(Size::H, R6, IPV4_CHECKSUM, R2);
            self.asm.jump(done);
        }
        self.asm.bind(ipv6);
        if self.present(Field::Ipv6HopLimit, absent) {
            self.decrement(Field::Ipv6HopLimit, expired);
        }
        self.asm.bind(done);
    }

    /// Lowers a field of one byte in the IP header.
    fn decrement(&mut self, field: Field, expired: Label) {
        let at = i16::from(field.spec().offset);
        self.asm.load(Size::B, R1, R6, at);
        self.asm.jump_if(R1, Is::Le, 1, expired);
        self.asm.alu(Alu::Sub, R1, 1);
        self.asm.store(Size::B, R6, at, R1);
    }

    /// Moves the frame's start by `bytes` (forward if positive), or jumps to `failed`.
    pub fn adjust_head(&mut self, failed: Label) {
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.call(Helper::XdpAdjustHead);
        self.asm.jump_if(R0, Is::Ne, 0, failed);
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.load(Size::W, R7, R1, 0);
        self.asm.load(Size::W, R8, R1, 4);
    }

    /// Jumps to `short` if the frame has fewer than `bytes` bytes; the verifier requires the check.
    fn has(&mut self, bytes: usize, short: Label) {
        self.asm.mov(R2, R7);
        self.asm.alu(Alu::Add, R2, bytes as i32);
        self.asm.jump_if(R2, Is::Gt, R8, short);
    }

    fn pop_vlan(&mut self, absent: Label) {
        self.asm.mov(R3, R9);
        self.asm.alu(Alu::And, R3, Layer::Vlan as i32);
        self.asm.jump_if(R3, Is::Eq, 0, absent);
        // From the back, because the places overlap.
        self.asm.load(Size::Dw, R1, R7, 4);
        self.asm.load(Size::W, R2, R7, 0);
        self.asm.store(Size::Dw, R7, 8, R1);
        self.asm.store(Size::W, R7, 4, R2);
        self.asm.mov(R2, 4);
        self.adjust_head(absent);
    }

    /// IEEE 802.1Q: TPID, then PCP 3, DEI 1, VID 12.
    fn push_vlan(
        &mut self,
        tpid: u16,
        (vid, vid_at): (Value, Option<ValuePlace>),
        (pcp, pcp_at): (Value, Option<ValuePlace>),
    ) {
        let headroom = self.dropped(DropReason::NoHeadroom);
        self.value(vid, Field::VlanVid, vid_at);
        self.asm.alu(Alu::And, R1, 0xfff);
        self.asm.mov(R4, R1);
        self.value(pcp, Field::VlanPcp, pcp_at);
        self.asm.alu(Alu::And, R1, 7);
        self.asm.alu(Alu::Shl, R1, 13);
        self.asm.alu(Alu::Or, R1, R4);
        self.asm.swap(R1, 16);
        self.asm.alu(Alu::Shl, R1, 16);
        self.asm.alu(Alu::Or, R1, i32::from(tpid.swap_bytes()));
        self.asm.store(Size::Dw, R10, stack::CARRIED, R1);
        self.asm.mov(R2, -4);
        self.adjust_head(headroom);
        self.has(18, headroom);
        self.asm.load(Size::W, R1, R7, 4);
        self.asm.load(Size::Dw, R2, R7, 8);
        self.asm.store(Size::W, R7, 0, R1);
        self.asm.store(Size::Dw, R7, 4, R2);
        self.asm.load(Size::Dw, R1, R10, stack::CARRIED);
        self.asm.store(Size::W, R7, 12, R1);
    }

    /// Outer headers: copied from the record, then finished as [`weir_packet::tunnel`]'s `Finish` does.
    fn encap(&mut self, encap: &Encap, at: i16, absent: Label) {
        let shape = encap.shape();
        let headroom = self.dropped(DropReason::NoHeadroom);
        let oversize = self.dropped(DropReason::Oversize);
        if encap.ethernet {
            self.asm.mov(R1, R8);
            self.asm.alu(Alu::Sub, R1, R7);
        } else {
            self.asm.mov(R3, R9);
            self.asm.alu(Alu::And, R3, Layer::Ipv4 as i32 | Layer::Ipv6 as i32);
            self.asm.jump_if(R3, Is::Eq, 0, absent);
            self.asm.load(Size::Dw, R1, R10, stack::IP_LENGTH);
        }
        self.asm.store(Size::Dw, R10, stack::CARRIED, R1);
        self.asm.jump_if(R1, Is::Gt, shape.finish().length_max() as i32, oversize);
        self.traffic_class(encap);
        let growth = shape.length() as i32;
        if encap.ethernet {
            self.asm.mov(R2, -growth);
        } else {
            self.cut_padding(absent);
            self.asm.load(Size::Dw, R2, R10, stack::L3_OFFSET);
            self.asm.alu(Alu::Sub, R2, growth);
        }
        self.adjust_head(headroom);
        self.has(shape.length(), headroom);
        self.copy_headers(shape, encap.ethernet, at);
        self.spread_source(encap, at + layout::source_factor(encap) as i16);
        self.finish_outer(encap, shape);
    }

    /// Removes what lies behind the IP packet.
    fn cut_padding(&mut self, failed: Label) {
        let none = self.asm.label();
        self.asm.load(Size::Dw, R2, R10, stack::L3_OFFSET);
        self.asm.load(Size::Dw, R1, R10, stack::IP_LENGTH);
        self.asm.alu(Alu::Add, R2, R1);
        self.asm.mov(R1, R8);
        self.asm.alu(Alu::Sub, R1, R7);
        self.asm.alu(Alu::Sub, R2, R1);
        self.asm.jump_if(R2, Is::Eq, 0, none);
        self.asm.load(Size::Dw, R1, R10, stack::CONTEXT);
        self.asm.call(Helper::XdpAdjustTail);
        self.asm.jump_if(R0, Is::Ne, 0, failed);
        self.asm.bind(none);
    }

    /// Notes DSCP and ECN of the outer header: the DSCP given or copied, the packet's ECN (RFC 6040 §4.1).
    fn traffic_class(&mut self, encap: &Encap) {
        let (ipv6, done, none) = (self.asm.label(), self.asm.label(), self.asm.label());
        let keep = if encap.dscp.is_some() { 3 } else { 0xff };
        self.asm.jump_if(R9, Is::Set, Layer::Ipv6 as i32, ipv6);
        self.asm.mov(R3, R9);
        self.asm.alu(Alu::And, R3, Layer::Ipv4 as i32);
        self.asm.jump_if(R3, Is::Eq, 0, none);
        self.asm.load(Size::B, R1, R6, 1);
        self.asm.jump(done);
        self.asm.bind(ipv6);
        self.asm.load(Size::H, R1, R6, 0);
        self.asm.swap(R1, 16);
        self.asm.alu(Alu::Shr, R1, 4);
        self.asm.alu(Alu::And, R1, 0xff);
        self.asm.jump(done);
        self.asm.bind(none);
        self.asm.mov(R1, 0);
        self.asm.bind(done);
        self.asm.alu(Alu::And, R1, keep);
        self.asm.alu(Alu::Or, R1, i32::from(encap.dscp.unwrap_or(0)) << 2);
        self.asm.store(Size::Dw, R10, stack::CLASS, R1);
    }

    /// Copies the outer headers from the record: those for IPv6 inside come second.
    fn copy_headers(&mut self, shape: OuterShape, ethernet: bool, at: i16) {
        let second = layout::header_bytes(shape) as i32;
        self.asm.load(Size::Dw, R4, R10, stack::RECORD);
        if !ethernet {
            let ipv4 = self.asm.label();
            self.asm.jump_if(R9, Is::Set, Layer::Ipv4 as i32, ipv4);
            self.asm.alu(Alu::Add, R4, second);
            self.asm.bind(ipv4);
        }
        let mut done = 0;
        while done < shape.length() {
            let size = [8, 4, 2, 1].into_iter().find(|size| done + size <= shape.length()).unwrap_or(1);
            self.asm.load(Size::of(size), R1, R4, at + done as i16);
            self.asm.store(Size::of(size), R7, done as i16, R1);
            done += size;
        }
    }

    /// Writes the low bits of the outer source, which are 0 in the record: a number from 1 on below all ones,
    /// picked by the hash, whose halves are exchanged, as a fraction (docs/reference/pipes.md A23). An entry
    /// has the factor at a place of its own.
    fn spread_source(&mut self, encap: &Encap, factor: i16) {
        let none = self.asm.label();
        if layout::is_spread_by_entry(encap) {
            self.asm.load(Size::Dw, R3, R10, stack::RECORD);
            self.asm.load(Size::Dw, R3, R3, factor);
            self.asm.jump_if(R3, Is::Eq, 0, none);
        } else {
            let Some(bits @ 2..) = layout::source_bits(encap) else { return };
            self.asm.mov64(R3, (1 << bits) - 2);
        }
        self.asm.load(Size::Dw, R1, R10, stack::HASH);
        self.fraction();
        self.asm.alu(Alu::Add, R1, 1);
        if encap.ipv6 {
            self.asm.swap(R1, 64);
            self.asm.load(Size::Dw, R2, R7, 30);
            self.asm.alu(Alu::Or, R2, R1);
            self.asm.store(Size::Dw, R7, 30, R2);
        } else {
            self.asm.swap(R1, 32);
            self.asm.load(Size::W, R2, R7, 26);
            self.asm.alu(Alu::Or, R2, R1);
            self.asm.store(Size::W, R7, 26, R2);
            self.fold(R1);
            self.mend_at(R7, 24, false);
        }
        self.asm.bind(none);
    }

    /// Multiplies R1, whose halves are exchanged, by R3, and leaves the upper 64 bits of the product in R1.
    fn fraction(&mut self) {
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shr, R2, 32);
        self.asm.alu32(Alu::Mov, R1, R1);
        // R1 is the upper half and R2 the lower one; R4 and R3 are those of the factor.
        self.asm.mov(R4, R3);
        self.asm.alu(Alu::Shr, R4, 32);
        self.asm.alu32(Alu::Mov, R3, R3);
        self.asm.mov(R0, R2);
        self.asm.alu(Alu::Mul, R0, R3);
        self.asm.alu(Alu::Shr, R0, 32);
        self.asm.alu(Alu::Mul, R3, R1);
        self.asm.alu(Alu::Add, R3, R0);
        self.asm.alu(Alu::Mul, R2, R4);
        self.asm.alu32(Alu::Mov, R0, R3);
        self.asm.alu(Alu::Add, R2, R0);
        self.asm.alu(Alu::Shr, R3, 32);
        self.asm.alu(Alu::Shr, R2, 32);
        self.asm.alu(Alu::Mul, R1, R4);
        self.asm.alu(Alu::Add, R1, R3);
        self.asm.alu(Alu::Add, R1, R2);
    }

    fn finish_outer(&mut self, encap: &Encap, shape: OuterShape) {
        let behind_ip = (shape.length() - shape.transport()) as i32;
        let udp = shape.transport() as i16;
        self.asm.load(Size::Dw, R4, R10, stack::CARRIED);
        self.asm.alu(Alu::Add, R4, behind_ip);
        self.asm.load(Size::Dw, R5, R10, stack::CLASS);
        if encap.kind.is_udp() {
            self.asm.mov(R1, R4);
            self.asm.swap(R1, 16);
            self.asm.store(Size::H, R7, udp + 4, R1);
            if encap.sport.is_none() {
                self.asm.load(Size::Dw, R1, R10, stack::HASH);
                self.asm.alu(Alu::Shr, R1, 50);
                self.asm.alu(Alu::Add, R1, 49152);
                self.asm.swap(R1, 16);
                self.asm.store(Size::H, R7, udp, R1);
            }
        }
        if encap.ipv6 { self.finish_ipv6() } else { self.finish_ipv4() }
    }

    /// The first word and the length of an IPv6 header, whose flow label comes from the hash
    /// (docs/reference/pipes.md A24).
    fn finish_ipv6(&mut self) {
        let labelled = self.asm.label();
        self.asm.load(Size::Dw, R1, R10, stack::HASH);
        self.asm.alu(Alu::And, R1, 0xf_ffff);
        self.asm.jump_if(R1, Is::Ne, 0, labelled);
        self.asm.mov(R1, 1);
        self.asm.bind(labelled);
        self.asm.alu(Alu::Shl, R5, 20);
        self.asm.alu(Alu::Or, R1, R5);
        self.asm.alu(Alu::Or, R1, 0x6000_0000);
        self.asm.swap(R1, 32);
        self.asm.store(Size::W, R7, 14, R1);
        self.asm.swap(R4, 16);
        self.asm.store(Size::H, R7, 18, R4);
    }

    /// Class, length and checksum of an IPv4 header, which has the checksum for class and length 0.
    fn finish_ipv4(&mut self) {
        self.asm.store(Size::B, R7, 15, R5);
        self.asm.alu(Alu::Add, R4, 20);
        self.asm.swap(R4, 16);
        self.asm.store(Size::H, R7, 16, R4);
        self.asm.load(Size::H, R2, R7, 24);
        self.asm.alu(Alu::Xor, R2, 0xffff);
        self.asm.alu(Alu::Add, R2, R4);
        // The class is the second byte of its word.
        self.asm.alu(Alu::Shl, R5, 8);
        self.asm.alu(Alu::Add, R2, R5);
        self.fold(R2);
        self.fold(R2);
        self.asm.alu(Alu::Xor, R2, 0xffff);
        self.asm.store(Size::H, R7, 24, R2);
    }
}

/// Whether the checksum of IPv4's header covers a field.
fn in_header(kind: FieldKind) -> bool {
    matches!(
        kind,
        FieldKind::Ipv4Dscp
            | FieldKind::Ipv4Ecn
            | FieldKind::Ipv4Ttl
            | FieldKind::Ipv4Src
            | FieldKind::Ipv4Dst
    )
}

/// Whether the checksum of the protocol above IP covers a field.
fn in_transport(kind: FieldKind) -> bool {
    matches!(
        kind,
        FieldKind::Ipv4Src
            | FieldKind::Ipv4Dst
            | FieldKind::Ipv6Src
            | FieldKind::Ipv6Dst
            | FieldKind::L4Sport
            | FieldKind::L4Dport
            | FieldKind::TcpSport
            | FieldKind::TcpDport
            | FieldKind::UdpSport
            | FieldKind::UdpDport
    )
}
