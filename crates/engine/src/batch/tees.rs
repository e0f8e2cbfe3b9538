//! Copies of packets for apps, as the packets were when their pipe forwarded them.
//!
//! A later pipe may rewrite the packet, and batches may be cut anywhere. Therefore the bytes are stored here,
//! and the worker passes them to the apps at the end of the batch, in the order in which the packets arrived.

use crate::ring::CARRIER_BYTES;
use weir_program::{AppId, Forward, Program};

/// The copies of one batch.
#[derive(Debug)]
pub struct Tees {
    list: Vec<Tee>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Tee {
    slot: usize,
    app: AppId,
    start: usize,
    length: usize,
}

impl Tees {
    /// Allocates room for all copies that a program's pipes can make of a batch. A frame longer than a
    /// carrier enlarges the carrier once.
    pub(super) fn new(program: &Program) -> Tees {
        let copies = |forward: Forward| matches!(forward, Forward::Tee { .. });
        let pipes = program.pipes.iter().filter(|pipe| copies(pipe.forward) || copies(pipe.miss)).count();
        let room = weir_packet::BATCH * pipes;
        Tees { list: Vec::with_capacity(room), bytes: Vec::with_capacity(room * CARRIER_BYTES) }
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
    }

    /// Stores a copy.
    pub(super) fn push(&mut self, slot: usize, app: AppId, bytes: &[u8]) {
        self.list.push(Tee { slot, app, start: self.bytes.len(), length: bytes.len() });
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns true if no packet of the batch was copied.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Sorts the copies by arrival; those of one packet keep their order.
    pub fn sort(&mut self) {
        self.list.sort_unstable_by_key(|tee| (tee.slot, tee.start));
    }

    /// Returns the mask of packets that were copied.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.list.iter().fold(0, |all, tee| all | 1 << tee.slot)
    }

    /// Iterates over the copies of one packet.
    pub fn of(&self, slot: usize) -> impl Iterator<Item = (AppId, &[u8])> {
        let own = self.list.iter().filter(move |tee| tee.slot == slot);
        own.map(|tee| (tee.app, &self.bytes[tee.start..tee.start + tee.length]))
    }
}
