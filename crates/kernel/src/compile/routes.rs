//! The look-up of an LPM pipe, in a table as [`crate::routes`] lays it out, or in the kernel's trie.

use super::fields::Words;
use super::{Compiler, stack};
use crate::asm::{Alu, Helper, Is, Label, Reg, Size};
use crate::layout;
use crate::routes::{BLOCK, RouteShape, SLOT};
use weir_packet::Field;
use weir_program::{Pipe, PipeId};

use Reg::{R0, R1, R2, R3, R4, R10};

impl Compiler<'_> {
    /// Leaves in R0 the address of the record of the entry with the longest prefix of the packet's field.
    pub fn look_up_prefix(&mut self, id: PipeId, pipe: &Pipe, miss: Label) {
        let Some(one) = pipe.varying().next() else { return self.asm.jump(miss) };
        if !self.read(one.field, one.field.max(), miss) {
            return;
        }
        match RouteShape::new(pipe, layout::room(self.input.program, pipe)) {
            Some(shape) => self.look_up_route(id, &shape, miss),
            None => self.look_up_in_trie(id, one.field, miss),
        }
    }

    /// The same for the value in R1.
    fn look_up_route(&mut self, id: PipeId, shape: &RouteShape, miss: Label) {
        let map = self.input.maps.pipes[id.index()];
        let found = self.asm.label();
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::Shr, R2, 16);
        // The verifier of Linux 6.1 does not know that a word whose bytes were swapped has 32 bits.
        self.asm.alu(Alu::And, R2, 0xffff);
        self.asm.alu(Alu::Mul, R2, SLOT as i32);
        self.asm.map_value(R4, map, 0);
        self.asm.alu(Alu::Add, R2, R4);
        self.asm.load(Size::W, R2, R2, 0);
        for shift in [8, 0] {
            let block = self.asm.label();
            self.asm.jump_if(R2, Is::Set, BLOCK as i32, block);
            self.asm.jump(found);
            self.asm.bind(block);
            self.asm.jump_if(R2, Is::Gt, shape.last_block() as i32 + BLOCK as i32, miss);
            self.asm.mov(R3, R1);
            self.asm.alu(Alu::Shr, R3, shift);
            self.asm.alu(Alu::And, R3, 0xff);
            self.asm.alu(Alu::Mul, R3, SLOT as i32);
            self.asm.alu(Alu::And, R2, !(BLOCK as i32));
            self.asm.map_value(R4, map, 0);
            self.asm.alu(Alu::Add, R4, R2);
            self.asm.alu(Alu::Add, R4, R3);
            self.asm.load(Size::W, R2, R4, 0);
        }
        self.asm.bind(found);
        self.asm.jump_if(R2, Is::Eq, 0, miss);
        self.asm.jump_if(R2, Is::Gt, shape.last_record() as i32, miss);
        self.asm.map_value(R0, map, 0);
        self.asm.alu(Alu::Add, R0, R2);
    }

    /// A trie's key: the number of bits, then the field from its first bit, in network order. The field is in
    /// R1, or in R1 and R2.
    fn look_up_in_trie(&mut self, id: PipeId, field: Field, miss: Label) {
        let (bits, words) = (i32::from(field.spec().bits), Words::of(field));
        let first = stack::BOTTOM + 8;
        self.asm.store(Size::W, R10, first - 4, bits);
        if words == Words::One && bits < 64 {
            self.asm.alu(Alu::Shl, R1, 64 - bits);
        }
        for (at, word) in [R1, R2].into_iter().take(if words == Words::Two { 2 } else { 1 }).enumerate() {
            self.asm.swap(word, 64);
            self.asm.store(Size::Dw, R10, first + 8 * at as i16, word);
        }
        self.asm.map(R1, self.input.maps.pipes[id.index()]);
        self.asm.mov(R2, R10);
        self.asm.alu(Alu::Add, R2, i32::from(first - 4));
        self.asm.call(Helper::MapLookup);
        self.asm.jump_if(R0, Is::Eq, 0, miss);
    }
}
