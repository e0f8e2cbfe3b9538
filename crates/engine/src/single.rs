//! Frames that are processed one at a time, for tests.

use crate::batch::Engine;
use weir_packet::{Batch, Pools};
use weir_program::{Copied, PortId, Verdict};

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processed {
    /// Where the frame went.
    pub verdict: Verdict,
    /// Its copies.
    pub copies: Vec<Copied>,
    /// The bytes of the frame afterwards.
    pub bytes: Vec<u8>,
}

impl Engine {
    /// Processes a frame that arrives alone.
    ///
    /// # Panics
    /// Panics if the frame does not fit a chunk.
    pub fn process_one(&mut self, input: PortId, bytes: &[u8], now_ns: u64) -> Processed {
        let (mut pools, mut batch) = (Pools::region(1), Batch::new());
        let mut frame = pools.first().take().expect("a pool of one frame");
        frame.fill(bytes).expect("a frame that fits a chunk");
        batch.push(frame).expect("a batch without frames");
        let outcome = self.process(&mut batch, 1, input, now_ns);
        let bytes = batch.frame(0).bytes().to_vec();
        let (verdict, copies) = (outcome.verdict(0, input), outcome.copies(0, &bytes));
        pools.give(batch.take(0));
        Processed { verdict, copies, bytes }
    }
}
