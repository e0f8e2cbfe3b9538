//! Picks from groups: buckets by hash, by another system's hash of the flow, or by the source's prefix; and
//! groups that metadata chooses.
//!
//! Packets pick by their headers as received, so all numbers for this other than the select hash are computed
//! right after parsing and kept on the stack.

use super::parse::hash_keys;
use super::{Compiler, stack};
use crate::asm::{Alu, Is, Label, Reg, Size};
use crate::coverage::Picker;
use crate::layout;
use weir_packet::Layer;
use weir_program::{GlbHash, GroupId, KatranHash, Pipe, PipeId};

use Reg::{R0, R1, R2, R3, R4, R5, R6, R9, R10};

/// The seeds of Katran's hash: the number of its virtual addresses, and that times the ring's size.
const KATRAN_SEED_IPV6: u32 = 512;
const KATRAN_SEED: u32 = KATRAN_SEED_IPV6 * 65_537;

/// The first value of the kernel's jhash.
const JHASH_BEGIN: u32 = 0xdead_beef;

impl Compiler<'_> {
    /// Computes the numbers with which the program's groups pick targets, besides the select hash.
    pub fn pickers(&mut self) {
        for (at, picker) in self.input.coverage.pickers.clone().into_iter().enumerate() {
            let [ipv4, ipv6, done] = [(); 3].map(|()| self.asm.label());
            self.asm.jump_if(R9, Is::Set, Layer::Ipv4 as i32, ipv4);
            self.asm.jump_if(R9, Is::Set, Layer::Ipv6 as i32, ipv6);
            self.asm.load(Size::Dw, R1, R10, stack::HASH);
            if let Some(size) = picker.size() {
                self.scale(size);
            }
            self.asm.jump(done);
            self.asm.bind(ipv4);
            self.pick_by(picker, false);
            self.asm.jump(done);
            self.asm.bind(ipv6);
            self.pick_by(picker, true);
            self.asm.bind(done);
            self.asm.store(Size::Dw, R10, stack::PICKERS - 8 * at as i16, R1);
        }
    }

    /// Leaves in R1 the number with which a packet with a flow key picks a target: a hash, or another
    /// system's bucket.
    fn pick_by(&mut self, picker: Picker, ipv6: bool) {
        match picker {
            Picker::Source(affinity) => {
                self.hash_source(if ipv6 { affinity.ipv6 } else { affinity.ipv4 }, ipv6)
            }
            Picker::Katran(hash) => self.katran_hash(hash, ipv6),
            Picker::Glb(hash) => self.glb_hash(hash, ipv6),
        }
        if let Some(size) = picker.size() {
            self.asm.alu(Alu::Mod, R1, size as i32);
        }
    }

    /// Multiplies the upper half of R1 by a number of buckets, as a fraction.
    fn scale(&mut self, size: u32) {
        self.asm.alu(Alu::Shr, R1, 32);
        self.asm.alu(Alu::Mul, R1, size as i32);
        self.asm.alu(Alu::Shr, R1, 32);
    }

    /// Picks a target by the hash in R1, or by the group's own picker, and leaves its number in R1. Jumps to
    /// `none` if there is no target.
    pub fn pick(&mut self, id: GroupId, none: Label) {
        let group = &self.input.program.groups[id.index()];
        self.pick_slot(id, none);
        self.asm.jump_if(R1, Is::Ge, group.targets.len() as i32, none);
    }

    /// Leaves in R1 the target of a group's bucket.
    fn pick_slot(&mut self, id: GroupId, none: Label) {
        let group = &self.input.program.groups[id.index()];
        let picker = Picker::of(group);
        if let Some(picker) = picker {
            let at = self.input.coverage.pickers.iter().position(|one| *one == picker);
            let at = at.expect("the coverage has all pickers of what compiles");
            self.asm.load(Size::Dw, R1, R10, stack::PICKERS - 8 * at as i16);
        }
        if picker.and_then(Picker::size).is_none() {
            if let Some(seed) = group.seed {
                self.mix(seed);
            }
            self.scale(group.size);
        } else {
            // The verifier no longer knows that it is a remainder.
            self.asm.jump_if(R1, Is::Ge, group.size as i32, none);
        }
        self.asm.alu(Alu::Shl, R1, 1);
        self.asm.map_value(R2, self.input.maps.groups[id.index()], 0);
        self.asm.alu(Alu::Add, R2, R1);
        self.asm.load(Size::H, R1, R2, 0);
    }

    /// Leaves in R0 the address of the record of the target that a group picks by the hash in R1. Jumps to
    /// `none` if there is no target, or no record for it.
    pub fn look_up_target(&mut self, of: (PipeId, &Pipe), group: GroupId, none: Label) {
        self.pick(group, none);
        self.record_of(of, none);
    }

    /// The same for the group whose number is a word of metadata. Jumps to `miss` if there is no group.
    pub fn look_up_member(&mut self, of: (PipeId, &Pipe), word: u8, (miss, none): (Label, Label)) {
        let program = self.input.program;
        let found = self.asm.label();
        self.asm.store(Size::Dw, R10, stack::SCRATCH, R1);
        let mut base = 0;
        let mut seen: Vec<u16> = Vec::new();
        for (at, group) in program.groups.iter().enumerate() {
            if let Some(number) = group.number.filter(|number| !seen.contains(number)) {
                seen.push(number);
                let other = self.asm.label();
                self.asm.load(Size::W, R2, R10, stack::META + 4 * i16::from(word));
                self.asm.jump_if(R2, Is::Ne, i32::from(number), other);
                self.asm.load(Size::Dw, R1, R10, stack::SCRATCH);
                self.pick_slot(GroupId(at as u16), none);
                self.asm.jump_if(R1, Is::Eq, i32::from(u16::MAX), none);
                self.asm.alu(Alu::Add, R1, base);
                self.asm.jump(found);
                self.asm.bind(other);
            }
            base += group.targets.len() as i32;
        }
        self.asm.jump(miss);
        self.asm.bind(found);
        // One comparison for all groups: with one for each, the verifier would examine the rest for each
        // group separately.
        self.asm.jump_if(R1, Is::Ge, base, none);
        self.record_of(of, none);
    }

    /// Leaves in R0 the address of the present record of the target whose number is in R1.
    fn record_of(&mut self, (id, pipe): (PipeId, &Pipe), none: Label) {
        self.asm.map_value(R0, self.input.maps.pipes[id.index()], 0);
        // Which of the target's two records is the present one.
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shl, R2, 3);
        self.asm.alu(Alu::Add, R2, R0);
        self.asm.load(Size::Dw, R2, R2, 0);
        self.record_in_use(pipe, none);
    }

    /// Leaves in R0 the address of the present record of the target whose number is in R1. R0 is the address
    /// of the pipe's table, and the lowest bit of R2 says which of the target's records is the present one.
    pub fn record_in_use(&mut self, pipe: &Pipe, none: Label) {
        let targets = layout::targets(self.input.program, pipe);
        self.asm.alu(Alu::And, R2, 1);
        self.asm.alu(Alu::Shl, R1, 1);
        // The verifier derives a tighter bound for a sum than for a bitwise OR.
        self.asm.alu(Alu::Add, R1, R2);
        self.asm.alu(Alu::Mul, R1, layout::record_bytes(pipe) as i32);
        self.asm.alu(Alu::Add, R1, layout::target_record(pipe, targets, 0, 0) as i32);
        self.asm.alu(Alu::Add, R0, R1);
        self.asm.load(Size::W, R1, R0, layout::TEMPLATE);
        self.asm.mov64(R2, u64::from(layout::ABSENT));
        self.asm.jump_if(R1, Is::Eq, R2, none);
    }

    /// The select hash of the first bits of the source address, in two words.
    fn hash_source(&mut self, bits: u8, ipv6: bool) {
        let (first, key) = hash_keys(self.input.program.select_seed);
        self.asm.mov64(R1, first);
        let (bytes, address) = if ipv6 { (8, 8) } else { (4, 12) };
        let unused = (if ipv6 { 128 } else { 32 }) - u32::from(bits);
        let mask = u128::MAX.checked_shl(unused).unwrap_or(0);
        if ipv6 {
            self.source_word(address, bytes, (mask >> 64) as u64);
        } else {
            self.asm.mov(R2, 0);
        }
        self.add_product(key(0));
        self.source_word(if ipv6 { address + 8 } else { address }, bytes, mask as u64);
        self.add_product(key(1));
        self.finish_hash();
    }

    fn source_word(&mut self, at: i16, bytes: usize, mask: u64) {
        self.asm.load(Size::of(bytes), R2, R6, at);
        self.asm.swap(R2, 8 * bytes as i32);
        self.asm.mov64(R3, mask);
        self.asm.alu(Alu::And, R2, R3);
    }

    /// Loads both ports as they lie in the packet into a register: 0 without any.
    pub fn ports(&mut self, to: Reg) {
        let none = self.asm.label();
        self.asm.mov(to, 0);
        self.asm.mov(R5, R9);
        self.asm.alu(Alu::And, R5, Layer::Ports as i32);
        self.asm.jump_if(R5, Is::Eq, 0, none);
        self.asm.load(Size::Dw, R5, R10, stack::L4);
        self.asm.load(Size::W, to, R5, 0);
        self.asm.bind(none);
    }

    /// [`KatranHash::hash`]: the kernel's jhash of source and ports, as a little-endian processor loads them.
    fn katran_hash(&mut self, hash: KatranHash, ipv6: bool) {
        if ipv6 {
            self.jhash_source6(hash.dport_only);
        } else if hash.dport_only {
            self.asm.mov(R1, 0);
        } else {
            self.asm.load(Size::W, R1, R6, 12);
        }
        self.ports(R2);
        if hash.dport_only {
            self.asm.alu32(Alu::Shr, R2, 16);
            self.asm.mov(R3, R2);
            self.asm.alu32(Alu::Shl, R3, 16);
            self.asm.alu32(Alu::Or, R2, R3);
        } else {
            let kept = [(hash.no_sport, 0xffff_0000_u32), (hash.any_port, 0xffff)];
            for (_, kept) in kept.into_iter().filter(|(without, _)| *without) {
                self.asm.alu32(Alu::And, R2, kept.cast_signed());
            }
        }
        let begin = KATRAN_SEED.wrapping_add(JHASH_BEGIN).wrapping_add(2 << 2).cast_signed();
        self.asm.alu32(Alu::Add, R1, begin);
        self.asm.alu32(Alu::Add, R2, begin);
        self.asm.alu32(Alu::Mov, R3, begin);
        self.jhash_finish();
    }

    /// The jhash of an IPv6 source, in R1.
    fn jhash_source6(&mut self, zero: bool) {
        let begin = KATRAN_SEED_IPV6.wrapping_add(JHASH_BEGIN).wrapping_add(16).cast_signed();
        let word = |compiler: &mut Self, to: Reg, number: i16| match zero {
            true => compiler.asm.mov(to, 0),
            false => compiler.asm.load(Size::W, to, R6, 8 + 4 * number),
        };
        for (to, number) in [(R1, 0), (R2, 1), (R3, 2)] {
            word(self, to, number);
            self.asm.alu32(Alu::Add, to, begin);
        }
        for (changed, by, rotation, added) in [
            (R1, R3, 4, R2),
            (R2, R1, 6, R3),
            (R3, R2, 8, R1),
            (R1, R3, 16, R2),
            (R2, R1, 19, R3),
            (R3, R2, 4, R1),
        ] {
            self.rotated(by, rotation);
            self.asm.alu32(Alu::Sub, changed, by);
            self.asm.alu32(Alu::Xor, changed, R4);
            self.asm.alu32(Alu::Add, by, added);
        }
        word(self, R4, 3);
        self.asm.alu32(Alu::Add, R1, R4);
        self.jhash_finish();
    }

    /// The last part of jhash on R1, R2 and R3, with the result in R1.
    fn jhash_finish(&mut self) {
        for (changed, by, rotation) in
            [(R3, R2, 14), (R1, R3, 11), (R2, R1, 25), (R3, R2, 16), (R1, R3, 4), (R2, R1, 14), (R3, R2, 24)]
        {
            self.rotated(by, rotation);
            self.asm.alu32(Alu::Xor, changed, by);
            self.asm.alu32(Alu::Sub, changed, R4);
        }
        self.asm.mov(R1, R3);
    }

    /// Leaves 32 bits of a register, rotated to the left, in R4.
    fn rotated(&mut self, of: Reg, by: i32) {
        self.asm.alu32(Alu::Mov, R4, of);
        self.asm.alu32(Alu::Shl, R4, by);
        self.asm.alu32(Alu::Mov, R5, of);
        self.asm.alu32(Alu::Shr, R5, 32 - by);
        self.asm.alu32(Alu::Or, R4, R5);
    }

    /// [`GlbHash::hash`]: SipHash of the fields, one behind the other, which are put together at the bottom
    /// of the stack.
    fn glb_hash(&mut self, hash: GlbHash, ipv6: bool) {
        for word in 0..5 {
            self.asm.store(Size::Dw, R10, stack::BOTTOM + 8 * word, 0);
        }
        let (first, bytes) = if ipv6 { (8, 16) } else { (12, 4) };
        let mut length = 0;
        for (field, from) in [(GlbHash::SOURCE, first), (GlbHash::DESTINATION, first + bytes)] {
            if hash.fields & field != 0 {
                for at in (0..bytes).step_by(4) {
                    self.asm.load(Size::W, R1, R6, from + at);
                    self.asm.store(Size::W, R10, stack::BOTTOM + length + at, R1);
                }
                length += bytes;
            }
        }
        self.ports(R1);
        for (field, shift) in [(GlbHash::SOURCE_PORT, 0), (GlbHash::DESTINATION_PORT, 16)] {
            if hash.fields & field != 0 {
                self.asm.mov(R2, R1);
                self.asm.alu(Alu::Shr, R2, shift);
                self.asm.store(Size::H, R10, stack::BOTTOM + length, R2);
                length += 2;
            }
        }
        self.asm.store(Size::B, R10, stack::BOTTOM + length / 8 * 8 + 7, i32::from(length));
        self.siphash(hash.key, length / 8 + 1);
    }

    /// SipHash-2-4 of words at the bottom of the stack, in R1.
    fn siphash(&mut self, key: [u8; 16], words: i16) {
        let key = u128::from_le_bytes(key);
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        let begin = [
            (R1, k0 ^ 0x736f_6d65_7073_6575),
            (R2, k1 ^ 0x646f_7261_6e64_6f6d),
            (R3, k0 ^ 0x6c79_6765_6e65_7261),
            (R4, k1 ^ 0x7465_6462_7974_6573),
        ];
        for (reg, value) in begin {
            self.asm.mov64(reg, value);
        }
        for word in 0..words {
            let at = stack::BOTTOM + 8 * word;
            self.asm.load(Size::Dw, R0, R10, at);
            self.asm.alu(Alu::Xor, R4, R0);
            self.sip_rounds(2);
            self.asm.load(Size::Dw, R0, R10, at);
            self.asm.alu(Alu::Xor, R1, R0);
        }
        self.asm.alu(Alu::Xor, R3, 0xff);
        self.sip_rounds(4);
        for other in [R2, R3, R4] {
            self.asm.alu(Alu::Xor, R1, other);
        }
    }

    fn sip_rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.asm.alu(Alu::Add, R1, R2);
            self.asm.alu(Alu::Add, R3, R4);
            self.turn(R2, 13, Some(R1));
            self.turn(R4, 16, Some(R3));
            self.turn(R1, 32, None);
            self.asm.alu(Alu::Add, R1, R4);
            self.asm.alu(Alu::Add, R3, R2);
            self.turn(R4, 21, Some(R1));
            self.turn(R2, 17, Some(R3));
            self.turn(R3, 32, None);
        }
    }

    /// Rotates a register to the left in place, and mixes another into it.
    fn turn(&mut self, reg: Reg, by: i32, with: Option<Reg>) {
        self.asm.mov(R5, reg);
        self.asm.alu(Alu::Shl, R5, by);
        self.asm.alu(Alu::Shr, reg, 64 - by);
        self.asm.alu(Alu::Or, reg, R5);
        if let Some(other) = with {
            self.asm.alu(Alu::Xor, reg, other);
        }
    }
}
