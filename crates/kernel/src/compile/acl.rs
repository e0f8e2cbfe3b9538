//! The look-up of an ACL pipe: rows of bits, as [`crate::acl`] lays them out.

use super::fields::Words;
use super::{Compiler, stack};
use crate::acl::{self, AclShape, DE_BRUIJN};
use crate::asm::{Alu, Is, Label, Reg, Size};
use crate::layout;
use std::os::fd::RawFd;
use weir_packet::Field;
use weir_program::{Pipe, PipeId};

use Reg::{R0, R1, R2, R3, R4, R5, R10};

impl Compiler<'_> {
    /// Leaves the address of the winning rule's record in R0.
    pub fn look_up_rule(&mut self, id: PipeId, pipe: &Pipe, miss: Label) {
        let shape = AclShape::of(pipe).expect("the coverage has looked at the shape");
        let map = self.input.maps.pipes[id.index()];
        self.rule_key(&shape);
        if shape.words == 1 {
            self.asm.map_value(R5, map, shape.rows() as u32);
            self.and_rows(&shape, R4, 0);
            self.asm.jump_if(R4, Is::Eq, 0, miss);
            self.asm.mov(R2, 0);
        } else {
            self.find_word(&shape, map, miss);
        }
        self.find_record(&shape, map, layout::record_bytes(pipe), miss);
    }

    /// Writes the packet's key to the bottom of the stack.
    fn rule_key(&mut self, shape: &AclShape) {
        let bottom = stack::BOTTOM;
        self.asm.store(Size::Dw, R10, bottom, 0);
        let mut at = bottom + 8;
        for (number, field) in shape.fields.iter().enumerate() {
            let absent = self.asm.label();
            let bytes = layout::value_bytes(*field) as i16;
            (0..bytes / 8).for_each(|word| self.asm.store(Size::Dw, R10, at + 8 * word, 0));
            if self.present(*field, absent) {
                self.field_bytes(*field, at);
                self.asm.load(Size::B, R1, R10, bottom);
                self.asm.alu(Alu::Or, R1, 1 << number);
                self.asm.store(Size::B, R10, bottom, R1);
            }
            self.asm.bind(absent);
            at += bytes;
        }
    }

    /// Stores a field that the packet has as bytes in network order.
    fn field_bytes(&mut self, field: Field, at: i16) {
        self.load_field(field);
        let words = Words::of(field);
        let unused = 64 - 8 * acl::bytes_of(field) as i32;
        if words == Words::One && unused > 0 {
            self.asm.alu(Alu::Shl, R1, unused);
        }
        self.asm.swap(R1, 64);
        self.asm.store(Size::Dw, R10, at, R1);
        if words == Words::Two {
            self.asm.swap(R2, 64);
            self.asm.store(Size::Dw, R10, at + 8, R2);
        }
    }

    /// Leaves in a register the AND of a word over the rows of all bytes of the key; R5 is the address of the
    /// word in the first row.
    fn and_rows(&mut self, shape: &AclShape, all: Reg, word: i16) {
        for (number, place) in shape.places().into_iter().enumerate() {
            if number > 0 {
                self.asm.alu(Alu::Add, R5, shape.rows_of_a_byte() as i32);
            }
            self.asm.load(Size::B, R1, R10, stack::BOTTOM + place as i16);
            self.asm.alu(Alu::Mul, R1, shape.row() as i32);
            self.asm.alu(Alu::Add, R1, R5);
            if number == 0 {
                self.asm.load(Size::Dw, all, R1, word);
            } else {
                self.asm.load(Size::Dw, R1, R1, word);
                self.asm.alu(Alu::And, all, R1);
            }
        }
    }

    /// Leaves in R4 the first word with a bit that all rows have, and in R2 its distance in the row.
    fn find_word(&mut self, shape: &AclShape, map: RawFd, miss: Label) {
        let (next, found) = (self.asm.label(), self.asm.label());
        self.asm.map_value(R5, map, shape.rows() as u32);
        self.and_rows(shape, R3, 0);
        // The verifier must see that the loop over candidates ends.
        self.asm.mov(R0, shape.words as i32);
        self.asm.bind(next);
        self.asm.jump_if(R3, Is::Eq, 0, miss);
        self.lowest_bit(R3, map);
        self.asm.alu(Alu::Xor, R3, R4);
        self.asm.alu(Alu::And, R2, shape.words as i32 - 1);
        self.asm.alu(Alu::Shl, R2, 3);
        self.asm.map_value(R5, map, shape.rows() as u32 + 8);
        self.asm.alu(Alu::Add, R5, R2);
        self.and_rows(shape, R4, 0);
        self.asm.jump_if(R4, Is::Ne, 0, found);
        self.asm.alu(Alu::Sub, R0, 1);
        self.asm.jump_if(R0, Is::Ne, 0, next);
        self.asm.jump(miss);
        self.asm.bind(found);
        self.asm.alu(Alu::Shl, R2, 3);
    }

    /// Leaves the lowest bit of a register in R4, and its position in R2.
    fn lowest_bit(&mut self, of: Reg, map: RawFd) {
        self.asm.mov(R4, 0);
        self.asm.alu(Alu::Sub, R4, of);
        self.asm.alu(Alu::And, R4, of);
        self.asm.mov64(R1, DE_BRUIJN);
        self.asm.alu(Alu::Mul, R1, R4);
        self.asm.alu(Alu::Shr, R1, 58);
        self.asm.map_value(R2, map, 0);
        self.asm.alu(Alu::Add, R2, R1);
        self.asm.load(Size::B, R2, R2, 0);
    }

    /// Leaves in R0 the address of the record of the first bit of R4; R2 is the number of the word's first
    /// piece.
    fn find_record(&mut self, shape: &AclShape, map: RawFd, record: usize, miss: Label) {
        self.asm.mov(R5, R2);
        self.asm.mov(R3, R4);
        self.lowest_bit(R3, map);
        self.asm.alu(Alu::And, R2, 63);
        self.asm.alu(Alu::Add, R2, R5);
        self.asm.alu(Alu::Shl, R2, 1);
        self.asm.map_value(R0, map, shape.owners() as u32);
        self.asm.alu(Alu::Add, R0, R2);
        self.asm.load(Size::H, R1, R0, 0);
        self.asm.jump_if(R1, Is::Ge, shape.records as i32, miss);
        self.asm.alu(Alu::Mul, R1, record as i32);
        self.asm.map_value(R0, map, shape.all_records() as u32);
        self.asm.alu(Alu::Add, R0, R1);
    }
}
