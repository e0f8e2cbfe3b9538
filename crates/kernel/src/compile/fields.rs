//! Reads fields of the headers and of the packet.

use super::parse::hash_keys;
use super::{Compiler, stack};
use crate::asm::{Alu, Is, Label, Reg, Size};
use weir_packet::{Base, Field, FieldKind, Layer, Layers, LevelId, Source, TunnelKind};

use Reg::{R1, R2, R3, R6, R7, R9, R10};

/// How many words a field's value takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// One, in R1.
    One,
    /// Two: the upper one in R1, the lower one in R2.
    Two,
}

impl Words {
    pub fn of(field: Field) -> Words {
        if field.spec().bits > 64 { Words::Two } else { Words::One }
    }

    /// The register of the lower word.
    pub fn low(self) -> Reg {
        match self {
            Words::One => R1,
            Words::Two => R2,
        }
    }
}

/// The outer layers that belong to tunnels.
const TUNNEL_LAYERS: i32 = {
    let (mut layers, mut at) = (Layer::TunnelId as u32, 0);
    while at < TunnelKind::ALL.len() {
        layers |= Layers::of_tunnel(TunnelKind::ALL[at]).0;
        at += 1;
    }
    layers.cast_signed()
};

impl Compiler<'_> {
    /// Reads a field under a mask, or jumps if the packet lacks it. Returns false if no packet here has it.
    pub fn read(&mut self, field: Field, mask: u128, absent: Label) -> bool {
        if !self.present(field, absent) {
            return false;
        }
        self.load_field(field);
        let words = Words::of(field);
        if words == Words::Two && (mask >> 64) as u64 != u64::MAX {
            self.asm.mov64(R3, (mask >> 64) as u64);
            self.asm.alu(Alu::And, R1, R3);
        }
        let all = if words == Words::Two { u64::MAX } else { field.max() as u64 };
        if mask as u64 != all {
            self.asm.mov64(R3, mask as u64);
            self.asm.alu(Alu::And, words.low(), R3);
        }
        true
    }

    /// Jumps if the packet lacks a field. Returns false, with a jump, if no packet here can have the field:
    /// ICMP errors are left to the engine.
    pub fn present(&mut self, field: Field, absent: Label) -> bool {
        if field.spec().needs.0 & (Layer::IcmpError as u32 | Layer::ErrorPorts as u32) != 0 {
            self.asm.jump(absent);
            return false;
        }
        let [outer, inner] = field.needs().0.map(|layers| layers.0.cast_signed());
        let tunnel = outer & TUNNEL_LAYERS;
        if outer != tunnel {
            self.asm.mov(R3, R9);
            self.needs(outer - tunnel, absent);
        }
        for (place, layers) in [(stack::TUNNEL_LAYERS, tunnel), (stack::INNER_LAYERS, inner)] {
            if layers != 0 {
                self.asm.load(Size::W, R3, R10, place);
                self.needs(layers, absent);
            }
        }
        true
    }

    /// Jumps unless R3 has all of `layers`.
    pub fn needs(&mut self, layers: i32, absent: Label) {
        self.asm.alu(Alu::And, R3, layers);
        self.asm.jump_if(R3, Is::Ne, layers, absent);
    }

    /// Loads a field that the packet has.
    pub fn load_field(&mut self, field: Field) {
        let spec = field.spec();
        match spec.source {
            Source::Frame(Base::TunnelId) => self.asm.load(Size::W, R1, R10, stack::TUNNEL_ID),
            Source::Frame(base) => {
                let from = match field.level {
                    LevelId::Outer => self.base(base, R3),
                    LevelId::Inner => self.inner_header(field, base),
                };
                self.load_from_frame(field, from);
            }
            Source::Found => self.load_found(field),
            Source::Packet => self.load_from_packet(field),
        }
    }

    /// Leaves the address of a header in a register and returns it.
    pub fn base(&mut self, base: Base, scratch: Reg) -> Reg {
        match base {
            Base::L2 => R7,
            Base::L3 => R6,
            Base::L4 => {
                self.asm.load(Size::Dw, scratch, R10, stack::L4);
                scratch
            }
            Base::ErrorL4 | Base::TunnelId => unreachable!("left to the engine"),
        }
    }

    /// Leaves the address of a header inside in R3 and returns R3.
    fn inner_header(&mut self, field: Field, base: Base) -> Reg {
        let spec = field.spec();
        let place = match base {
            Base::L2 => stack::INNER_START,
            Base::L3 => stack::INNER_L3,
            Base::L4 => stack::INNER_L4,
            Base::ErrorL4 | Base::TunnelId => unreachable!("not inside"),
        };
        self.inner_base(place, i32::from(spec.offset) + i32::from(spec.bytes));
        R3
    }

    fn load_from_frame(&mut self, field: Field, from: Reg) {
        let spec = field.spec();
        let offset = i16::from(spec.offset);
        match spec.bytes {
            6 => {
                self.asm.load(Size::H, R1, from, offset);
                self.asm.swap(R1, 16);
                self.asm.alu(Alu::Shl, R1, 32);
                self.asm.load(Size::W, R2, from, offset + 2);
                self.asm.swap(R2, 32);
                self.asm.alu(Alu::Or, R1, R2);
            }
            16 => {
                self.asm.load(Size::Dw, R1, from, offset);
                self.asm.swap(R1, 64);
                self.asm.load(Size::Dw, R2, from, offset + 8);
                self.asm.swap(R2, 64);
            }
            3 => {
                // The byte in front belongs to the header, too.
                self.asm.load(Size::W, R1, from, offset - 1);
                self.asm.swap(R1, 32);
                self.shift_and_mask(field);
            }
            bytes => {
                self.asm.load(Size::of(usize::from(bytes)), R1, from, offset);
                if bytes > 1 {
                    self.asm.swap(R1, i32::from(bytes) * 8);
                }
                self.shift_and_mask(field);
            }
        }
    }

    fn shift_and_mask(&mut self, field: Field) {
        let spec = field.spec();
        if spec.shift > 0 {
            self.asm.alu(Alu::Shr, R1, i32::from(spec.shift));
        }
        if spec.bits < spec.bytes * 8 - spec.shift || spec.bytes == 3 {
            self.asm.alu(Alu::And, R1, field.max() as i32);
        }
    }

    fn load_found(&mut self, field: Field) {
        let (ether_type, protocol) = match field.level {
            LevelId::Outer => (stack::ETHER_TYPE, stack::PROTOCOL),
            LevelId::Inner => (stack::INNER_ETHER_TYPE, stack::INNER_PROTOCOL),
        };
        match field.kind {
            FieldKind::EthType => self.asm.load(Size::W, R1, R10, ether_type),
            FieldKind::IpProtocol => self.asm.load(Size::W, R1, R10, protocol),
            // Fragments are left to the engine.
            FieldKind::IpFragment => self.asm.mov(R1, 0),
            FieldKind::IpVersion => {
                let done = self.asm.label();
                let layers = match field.level {
                    LevelId::Outer => R9,
                    LevelId::Inner => R2,
                };
                if layers == R2 {
                    self.asm.load(Size::W, R2, R10, stack::INNER_LAYERS);
                }
                for (version, layer) in [(4, Layer::Ipv4), (6, Layer::Ipv6)] {
                    self.asm.mov(R1, version);
                    self.asm.jump_if(layers, Is::Set, layer as i32, done);
                }
                self.asm.mov(R1, 0);
                self.asm.bind(done);
            }
            other => unreachable!("{other:?} is not found by parsing"),
        }
    }

    fn load_from_packet(&mut self, field: Field) {
        match (field.meta_word(), field.kind) {
            (Some(word), _) => self.asm.load(Size::W, R1, R10, stack::META + 4 * word as i16),
            (None, FieldKind::TunnelId) => self.asm.load(Size::W, R1, R10, stack::TUNNEL_ID),
            (None, FieldKind::InputPort) => self.asm.mov(R1, i32::from(self.input.port.0)),
            // Pipes with meters are left to the engine, so nothing has coloured the packet.
            (None, FieldKind::MeterColor) => self.asm.mov(R1, 0),
            (None, other) => unreachable!("{other:?} is not a property of the packet"),
        }
    }

    /// Hashes fields under their masks and leaves the hash in R1.
    pub fn hash_fields(&mut self, fields: &[(Field, u128)], miss: Label) {
        let (first, key) = hash_keys(self.input.program.select_seed);
        self.asm.mov64(R1, first);
        self.asm.store(Size::Dw, R10, stack::SCRATCH, R1);
        let mut word = 0;
        for (field, mask) in fields {
            if !self.read(*field, *mask, miss) {
                return;
            }
            let words = Words::of(*field);
            if words == Words::Two {
                self.asm.store(Size::Dw, R10, stack::CARRIED, R2);
            }
            self.asm.mov(R2, R1);
            self.sum_word(key(word));
            word += 1;
            if words == Words::Two {
                self.asm.load(Size::Dw, R2, R10, stack::CARRIED);
                self.sum_word(key(word));
                word += 1;
            }
        }
        self.asm.load(Size::Dw, R1, R10, stack::SCRATCH);
        self.finish_hash();
    }

    fn sum_word(&mut self, key: u64) {
        self.asm.load(Size::Dw, R1, R10, stack::SCRATCH);
        self.add_product(key);
        self.asm.store(Size::Dw, R10, stack::SCRATCH, R1);
    }
}
