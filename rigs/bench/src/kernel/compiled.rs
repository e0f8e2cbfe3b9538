//! The bench's use of the eBPF compiler: a scenario's program, loaded.

use crate::engine::assign_buckets;
use anyhow::Result;
use std::io;
use std::os::fd::BorrowedFd;
use weir_engine::batch::Engine;
use weir_kernel::{Executor, FrameOutcome};
use weir_packet::TableHash;
use weir_program::{PortId, Program};

/// The port on which frames arrive.
const IN: PortId = PortId(0);

/// A program that the kernel runs.
pub struct Compiled(Executor);

impl Compiled {
    /// Compiles and loads a program.
    pub fn load(program: &Program) -> Result<Compiled> {
        Ok(Compiled(Executor::load(program, &buckets(program))?))
    }

    /// Returns why a frame is left to the batch engine, if it is.
    pub fn left(&self, frame: &[u8]) -> Result<Option<&'static str>> {
        Ok(match self.0.run(IN, frame)?.0 {
            FrameOutcome::Left(why) => Some(why.explanation()),
            FrameOutcome::Decided(_) => None,
        })
    }

    /// Puts the program of the port on which frames arrive in the first place of an array.
    pub fn put_into(&self, array: BorrowedFd<'_>) -> io::Result<()> {
        self.0.put_into(IN, array)
    }
}

/// Returns the target of each bucket of each group, as the engine fills them.
pub fn buckets(program: &Program) -> Vec<Vec<u16>> {
    let mut engine = Engine::new(program, TableHash::new([3, 5])).expect("the scenarios' programs are sound");
    assign_buckets(program, &mut engine);
    engine.buckets()
}
