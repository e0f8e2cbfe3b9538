//! The look-up of a BASIC pipe, in a table as [`crate::keyed`] lays it out.

use super::{Compiler, stack};
use crate::asm::{Alu, Is, Label, Reg, Size};
use crate::keyed::{FACTOR, KeyPart, KeyShape, PROBES, TAG};
use crate::layout;
use weir_program::{Pipe, PipeId};

use Reg::{R0, R1, R2, R3, R4, R5, R10};

impl Compiler<'_> {
    /// Leaves in R0 the address of the record of the entry with the packet's key.
    pub fn look_up_key(&mut self, id: PipeId, pipe: &Pipe, miss: Label) {
        let shape = &KeyShape::new(pipe, layout::room(self.input.program, pipe) as usize);
        let map = self.input.maps.pipes[id.index()];
        if !self.pack_key(shape, miss) {
            return;
        }
        if shape.is_direct {
            self.asm.alu(Alu::And, R5, shape.slots as i32 - 1);
            self.asm.alu(Alu::Shl, R5, 3);
            self.asm.map_value(R4, map, 0);
            self.asm.alu(Alu::Add, R4, R5);
            self.asm.load(Size::Dw, R2, R4, 0);
            self.asm.jump_if(R2, Is::Eq, 0, miss);
            self.asm.jump_if(R2, Is::Gt, shape.last_record() as i32, miss);
            self.asm.map_value(R0, map, 0);
            return self.asm.alu(Alu::Add, R0, R2);
        }
        self.hash_key(shape);
        self.asm.mov(R2, R1);
        self.asm.alu(Alu::And, R2, shape.slots as i32 - 1);
        self.asm.alu(Alu::Shl, R2, 3);
        self.asm.map_value(R4, map, 0);
        self.asm.alu(Alu::Add, R4, R2);
        self.asm.alu(Alu::Shr, R1, 32);
        self.asm.alu(Alu::Or, R1, TAG as i32);
        let found = self.asm.label();
        for probe in 0..PROBES {
            let next = self.asm.label();
            self.asm.load(Size::Dw, R2, R4, 8 * probe as i16);
            self.asm.mov(R3, R2);
            self.asm.alu(Alu::Shr, R3, 32);
            self.asm.jump_if(R3, Is::Ne, R1, next);
            self.asm.alu32(Alu::Mov, R2, R2);
            self.asm.jump_if(R2, Is::Gt, shape.last_record() as i32, next);
            self.asm.map_value(R0, map, 0);
            self.asm.alu(Alu::Add, R0, R2);
            self.compare_key(shape, next);
            self.asm.jump(found);
            self.asm.bind(next);
        }
        self.asm.jump(miss);
        self.asm.bind(found);
    }

    /// Leaves the packet's key at the bottom of the stack if it has several words, and the last one in R5.
    /// Returns false if no packet can have all fields here.
    fn pack_key(&mut self, shape: &KeyShape, miss: Label) -> bool {
        self.asm.mov(R5, 0);
        let mut present = 0;
        for part in &shape.parts {
            if part.word != present {
                self.asm.store(Size::Dw, R10, stack::BOTTOM + 8 * present as i16, R5);
                self.asm.mov(R5, 0);
                present = part.word;
            }
            if !self.read(part.field, part.mask, miss) {
                return false;
            }
            self.pack_part(part);
            present += usize::from(part.is_wide());
        }
        if shape.words > 1 {
            self.asm.store(Size::Dw, R10, stack::BOTTOM + 8 * present as i16, R5);
        }
        true
    }

    /// Adds a field's value to the word in R5. A wide value fills that word, which is stored, and the next.
    fn pack_part(&mut self, part: &KeyPart) {
        if part.is_wide() {
            self.asm.store(Size::Dw, R10, stack::BOTTOM + 8 * part.word as i16, R1);
            return self.asm.mov(R5, R2);
        }
        for (alu, by) in [(Alu::Shr, part.low), (Alu::Shl, part.shift)] {
            if by > 0 {
                self.asm.alu(alu, R1, by as i32);
            }
        }
        self.asm.alu(Alu::Or, R5, R1);
    }

    /// Leaves the key's hash in R1, as [`KeyShape`] computes it.
    fn hash_key(&mut self, shape: &KeyShape) {
        self.asm.mov(R1, 0);
        self.asm.mov64(R3, FACTOR);
        for word in 0..shape.words {
            if word + 1 < shape.words {
                self.asm.load(Size::Dw, R2, R10, stack::BOTTOM + 8 * word as i16);
                self.asm.alu(Alu::Xor, R1, R2);
            } else {
                self.asm.alu(Alu::Xor, R1, R5);
            }
            self.asm.alu(Alu::Mul, R1, R3);
            self.asm.mov(R2, R1);
            self.asm.alu(Alu::Shr, R2, 32);
            self.asm.alu(Alu::Xor, R1, R2);
        }
    }

    /// Jumps unless the record at R0 has the packet's key.
    fn compare_key(&mut self, shape: &KeyShape, other: Label) {
        for word in 0..shape.words {
            self.asm.load(Size::Dw, R3, R0, (shape.key_offset() + 8 * word) as i16);
            if word + 1 < shape.words {
                self.asm.load(Size::Dw, R2, R10, stack::BOTTOM + 8 * word as i16);
                self.asm.jump_if(R3, Is::Ne, R2, other);
            } else {
                self.asm.jump_if(R3, Is::Ne, R5, other);
            }
        }
    }
}
