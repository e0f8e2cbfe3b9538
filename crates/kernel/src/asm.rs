//! An assembler for eBPF: instructions, labels and references to maps, encoded as the kernel takes them
//! (RFC 9669).
//!
//! The assembler knows nothing about packets. Jumps name labels that may be bound later;
//! [`Assembler::finish`] resolves them. Misuse (a label that is never bound, a jump that is too far) is a bug
//! in the compiler and panics.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::panic::Location;

/// A register. R0 holds results, R1 to R5 are arguments and are lost in calls, R6 to R9 are kept, and R10 is
/// the read-only frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "their names say everything")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The size of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// 4 bytes.
    W = 0x00,
    /// 2 bytes.
    H = 0x08,
    /// 1 byte.
    B = 0x10,
    /// 8 bytes.
    Dw = 0x18,
}

impl Size {
    /// Returns the size of a load or store of `bytes` bytes: 1, 2, 4 or 8.
    pub fn of(bytes: usize) -> Size {
        match bytes {
            1 => Size::B,
            2 => Size::H,
            4 => Size::W,
            8 => Size::Dw,
            _ => panic!("no load has {bytes} bytes"),
        }
    }
}

/// An arithmetic operation, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "their names say everything")]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Or = 0x40,
    And = 0x50,
    Shl = 0x60,
    Shr = 0x70,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// A condition of a jump; comparisons are unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Is {
    /// Equal.
    Eq = 0x10,
    /// Greater.
    Gt = 0x20,
    /// Greater or equal.
    Ge = 0x30,
    /// Has one of these bits.
    Set = 0x40,
    /// Not equal.
    Ne = 0x50,
    /// Less.
    Lt = 0xa0,
    /// Less or equal.
    Le = 0xb0,
}

/// The right-hand side of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Src {
    /// A register.
    Reg(Reg),
    /// A number, extended with its sign to 64 bits.
    Imm(i32),
}

impl From<Reg> for Src {
    fn from(reg: Reg) -> Src {
        Src::Reg(reg)
    }
}

impl From<i32> for Src {
    fn from(number: i32) -> Src {
        Src::Imm(number)
    }
}

/// An operation on eight bytes of memory that no other processor sees half done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Atomic {
    /// `*to += src`.
    Add = 0x00,
    /// `*to &= src`.
    And = 0x50,
    /// `src = *to; *to += src`, as one.
    FetchAdd = 0x01,
}

/// A helper function of the kernel, by its number in linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs, reason = "they are described in bpf-helpers(7)")]
pub enum Helper {
    MapLookup = 1,
    GetSmpProcessorId = 8,
    XdpAdjustHead = 44,
    RedirectMap = 51,
    XdpAdjustMeta = 54,
    XdpAdjustTail = 65,
    KtimeGetCoarseNs = 160,
    XdpGetBuffLen = 188,
    XdpLoadBytes = 189,
}

/// A place in the program that jumps can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label(usize);

/// Classes of instructions.
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const ALU32: u8 = 0x04;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
/// The mode of loads and stores relative to a register.
const MEM: u8 = 0x60;
/// The mode of stores that are atomic operations.
const ATOMIC: u8 = 0xc0;
/// The right-hand side is a register.
const X: u8 = 0x08;
/// The operation of a jump that returns.
const EXIT: u8 = 0x90;

/// The meanings of the source register in a 64-bit immediate load.
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

/// A place in the compiler that emits an instruction.
pub type Site = &'static Location<'static>;

/// Instructions, and where each of them was emitted.
#[derive(Clone, Debug)]
pub struct Code {
    /// As the kernel takes them.
    pub instructions: Vec<u64>,
    /// One for each.
    pub sites: Vec<Site>,
}

/// Collects the instructions of an eBPF program, with jumps to labels that are resolved at the end.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    /// Where each of them was emitted.
    sites: Vec<Site>,
    /// Where each label is.
    labels: Vec<Option<usize>>,
    /// The jumps, with the labels that they name.
    jumps: Vec<(usize, Label)>,
}

fn encode(op: u8, dst: Reg, src: u8, offset: i16, imm: i32) -> u64 {
    u64::from(op)
        | (dst as u64) << 8
        | u64::from(src) << 12
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(imm.cast_unsigned()) << 32
}

impl Assembler {
    /// Returns a label that is not bound yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label to the next instruction.
    pub fn bind(&mut self, label: Label) {
        assert!(self.labels[label.0].replace(self.code.len()).is_none(), "a label is bound once");
    }

    #[track_caller]
    fn push(&mut self, op: u8, dst: Reg, src: u8, offset: i16, imm: i32) {
        self.push_code(encode(op, dst, src, offset, imm));
    }

    #[track_caller]
    fn push_code(&mut self, code: u64) {
        self.code.push(code);
        self.sites.push(Location::caller());
    }

    #[track_caller]
    fn with_src(&mut self, op: u8, dst: Reg, src: Src, offset: i16) {
        match src {
            Src::Reg(reg) => self.push(op | X, dst, reg as u8, offset, 0),
            Src::Imm(imm) => self.push(op, dst, 0, offset, imm),
        }
    }

    /// `dst = dst op src`, in 64 bits.
    #[track_caller]
    pub fn alu(&mut self, alu: Alu, dst: Reg, src: impl Into<Src>) {
        self.with_src(ALU64 | alu as u8, dst, src.into(), 0);
    }

    /// `dst = dst op src`, in 32 bits; the upper half becomes 0.
    #[track_caller]
    pub fn alu32(&mut self, alu: Alu, dst: Reg, src: impl Into<Src>) {
        self.with_src(ALU32 | alu as u8, dst, src.into(), 0);
    }

    /// `dst = src`.
    #[track_caller]
    pub fn mov(&mut self, dst: Reg, src: impl Into<Src>) {
        self.alu(Alu::Mov, dst, src);
    }

    /// Loads a number of any size.
    #[track_caller]
    pub fn mov64(&mut self, dst: Reg, number: u64) {
        match i32::try_from(number.cast_signed()) {
            Ok(small) => self.mov(dst, small),
            Err(_) => self.wide(dst, 0, [number as u32, (number >> 32) as u32]),
        }
    }

    /// A load of 64 bits, which takes two instructions.
    #[track_caller]
    fn wide(&mut self, dst: Reg, src: u8, [low, high]: [u32; 2]) {
        self.push(0x18, dst, src, 0, low.cast_signed());
        self.push_code(u64::from(high) << 32);
    }

    /// Loads a map, as an argument of helpers.
    #[track_caller]
    pub fn map(&mut self, dst: Reg, map: RawFd) {
        self.wide(dst, PSEUDO_MAP_FD, [map.cast_unsigned(), 0]);
    }

    /// Loads the address of a byte of the only value of an array.
    #[track_caller]
    pub fn map_value(&mut self, dst: Reg, map: RawFd, offset: u32) {
        self.wide(dst, PSEUDO_MAP_VALUE, [map.cast_unsigned(), offset]);
    }

    /// `dst = *(base + offset)`.
    #[track_caller]
    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, offset: i16) {
        self.push(LDX | MEM | size as u8, dst, base as u8, offset, 0);
    }

    /// `*(base + offset) = src`.
    #[track_caller]
    pub fn store(&mut self, size: Size, base: Reg, offset: i16, src: impl Into<Src>) {
        match src.into() {
            Src::Reg(reg) => self.push(STX | MEM | size as u8, base, reg as u8, offset, 0),
            Src::Imm(imm) => self.push(ST | MEM | size as u8, base, 0, offset, imm),
        }
    }

    /// Performs an atomic operation on the eight bytes at `base + offset`.
    pub fn atomic(&mut self, atomic: Atomic, base: Reg, offset: i16, src: Reg) {
        self.push(STX | ATOMIC | Size::Dw as u8, base, src as u8, offset, atomic as i32);
    }

    /// Converts between network order and the processor's: the upper bits become 0.
    #[track_caller]
    pub fn swap(&mut self, dst: Reg, bits: i32) {
        self.push(ALU32 | 0xd0 | X, dst, 0, 0, bits);
    }

    /// Jumps if `left is right`, in 64 bits.
    #[track_caller]
    pub fn jump_if(&mut self, left: Reg, is: Is, right: impl Into<Src>, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.with_src(JMP | is as u8, left, right.into(), 0);
    }

    /// Emits an unconditional jump.
    #[track_caller]
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(JMP, Reg::R0, 0, 0, 0);
    }

    /// Calls a helper.
    #[track_caller]
    pub fn call(&mut self, helper: Helper) {
        self.push(JMP | 0x80, Reg::R0, 0, 0, helper as i32);
    }

    /// Emits the end of the program, whose result is R0.
    #[track_caller]
    pub fn exit(&mut self) {
        self.push(JMP | EXIT, Reg::R0, 0, 0, 0);
    }

    /// Resolves the jumps and returns the instructions. Unreachable ones are left out, because the verifier
    /// refuses programs that contain any.
    pub fn finish(mut self) -> Code {
        let targets: HashMap<usize, usize> = std::mem::take(&mut self.jumps)
            .into_iter()
            .map(|(at, label)| (at, self.labels[label.0].expect("every label that a jump names is bound")))
            .collect();
        let reached = self.reached(&targets);
        // The position of each instruction after the unreachable ones are removed.
        let mut places = Vec::with_capacity(reached.len() + 1);
        let mut place = 0_usize;
        for is_reached in &reached {
            places.push(place);
            place += usize::from(*is_reached);
        }
        for (&at, &to) in targets.iter().filter(|(at, _)| reached[**at]) {
            let distance = places[to] as i64 - places[at] as i64 - 1;
            let offset = i16::try_from(distance).expect("a jump is shorter than 32768 instructions");
            self.code[at] |= u64::from(offset.cast_unsigned()) << 16;
        }
        let emitted = self.code.into_iter().zip(self.sites).zip(reached);
        let (instructions, sites) =
            emitted.filter_map(|(code, is_reached)| is_reached.then_some(code)).unzip();
        Code { instructions, sites }
    }

    /// For each instruction, whether it can be reached.
    fn reached(&self, targets: &HashMap<usize, usize>) -> Vec<bool> {
        let mut reached = vec![false; self.code.len()];
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            open.extend(targets.get(&at));
            let (op, is_jump) = (self.code[at] as u8, targets.contains_key(&at));
            let ends = op == JMP | EXIT || is_jump && op == JMP;
            if !ends {
                open.push(at + 1);
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_encoded_as_in_rfc_9669() {
        let mut asm = Assembler::default();
        asm.mov(Reg::R0, 2);
        asm.load(Size::W, Reg::R7, Reg::R1, 4);
        asm.store(Size::Dw, Reg::R10, -8, Reg::R1);
        asm.alu32(Alu::Add, Reg::R2, Reg::R3);
        asm.swap(Reg::R4, 16);
        asm.atomic(Atomic::FetchAdd, Reg::R0, 8, Reg::R1);
        asm.exit();
        assert_eq!(
            asm.finish().instructions,
            [
                0x0000_0002_0000_00b7,
                0x0000_0000_0004_1761,
                0x0000_0000_fff8_1a7b,
                0x0000_0000_0000_320c,
                0x0000_0010_0000_04dc,
                0x0000_0001_0008_10db,
                0x0000_0000_0000_0095,
            ]
        );
    }

    #[test]
    fn jumps_lead_to_their_labels_in_both_directions() {
        let mut asm = Assembler::default();
        let (back, ahead) = (asm.label(), asm.label());
        asm.bind(back);
        asm.jump_if(Reg::R1, Is::Eq, 7, ahead);
        asm.jump(back);
        asm.bind(ahead);
        asm.exit();
        assert_eq!(asm.finish().instructions[..2], [0x0000_0007_0001_0115, 0x0000_0000_fffe_0005]);
    }
}
