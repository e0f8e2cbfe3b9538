//! An engine and the interpreter side by side, which must agree.

use super::Bench;
use weir_oracle::Interpreter;
use weir_program::Verdict;
use weir_program::{PortId, Program};

/// Both executors of a program.
pub struct Both {
    pub bench: Bench,
    pub twin: Interpreter,
}

impl Both {
    pub fn new(program: &Program) -> Both {
        let bench = Bench::new(program);
        let twin = Interpreter::new(program, bench.engine.buckets());
        Both { bench, twin }
    }

    /// Returns what happens to a frame that arrives at a port.
    pub fn verdict(&mut self, input: PortId, bytes: &[u8]) -> Verdict {
        let wanted = self.twin.walk(input, bytes, 128, self.bench.now_ns).verdict;
        assert_eq!(self.bench.frame(input, bytes), wanted, "the twin disagrees");
        wanted
    }

    /// Returns the port that a frame leaves through.
    pub fn leaves_by(&mut self, input: PortId, bytes: &[u8]) -> u16 {
        match self.verdict(input, bytes) {
            Verdict::Transmit(port) => port.0,
            other => panic!("{other:?}"),
        }
    }
}
