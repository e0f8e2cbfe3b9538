//! The last frames that the program in the kernel has dropped, so that `show drops` can name their flows.
//!
//! Each processor has a ring of its own, in one array that is mapped into memory. The program writes a slot
//! and then the number of frames that it has dropped. A sweep reads the slots that were written since the
//! last one. If more frames were dropped than the ring has slots, each sample represents several of them.

use crate::sys::{Map, MapKind, Memory};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use weir_packet::DropReason;

/// Slots of a ring: a power of two.
pub const SLOTS: usize = 32;

/// Bytes of a frame's beginning in a slot. A shorter frame has only [`SHORT_BYTES`] there.
pub const LONG_BYTES: usize = 64;

/// Ethernet, IPv4 and the ports and length of UDP.
pub const SHORT_BYTES: usize = 40;

/// Offsets in a slot: the reason and the length, two words of 32 bits, and the bytes.
pub const LENGTH: usize = 4;
pub const BYTES: usize = 8;
pub const SLOT_BYTES: usize = BYTES + LONG_BYTES;

/// Offset of the first slot in a ring, behind the number of frames.
pub const FIRST_SLOT: usize = 8;

/// Bytes of a ring: rings share no cache line.
pub const RING_BYTES: usize = (FIRST_SLOT + SLOTS * SLOT_BYTES).next_multiple_of(64);

/// No interface has longer frames.
const FRAME_MAX: usize = 1 << 16;

/// The rings of all processors.
#[derive(Debug)]
pub struct DropSamples {
    map: Map,
    memory: Memory,
    /// The number of frames at the last sweep, by processor.
    swept: Vec<u64>,
}

impl DropSamples {
    /// Creates empty rings.
    ///
    /// # Errors
    /// Returns the number of bytes and the kernel's error.
    pub fn new(processors: usize) -> Result<DropSamples, (usize, io::Error)> {
        let bytes = RING_BYTES * processors;
        let map = Map::create(MapKind::Array, 4, bytes, 1).map_err(|error| (bytes, error))?;
        let memory = map.memory().map_err(|error| (bytes, error))?;
        Ok(DropSamples { map, memory, swept: vec![0; processors] })
    }

    /// Returns the map's descriptor.
    pub fn fd(&self) -> RawFd {
        self.map.fd()
    }

    /// Calls `found` with frames dropped since the last sweep, cut off or padded with zeros after their first
    /// headers, and with the number of dropped frames that each represents.
    pub fn sweep(&mut self, mut found: impl FnMut(DropReason, &[u8], u64)) {
        let word = |at: usize| self.memory.word(at).load(Ordering::Acquire);
        for (processor, swept) in self.swept.iter_mut().enumerate() {
            let ring = processor * RING_BYTES;
            let now = word(ring);
            let dropped = now.wrapping_sub(*swept);
            // The program may be writing one slot.
            let sampled = dropped.min(SLOTS as u64 - 1);
            *swept = now;
            for (at, number) in (now.wrapping_sub(sampled)..now).enumerate() {
                let represents = dropped / sampled + u64::from((at as u64) < dropped % sampled);
                let slot = ring + FIRST_SLOT + number as usize % SLOTS * SLOT_BYTES;
                let head = word(slot);
                let mut bytes = [0; LONG_BYTES];
                for (at, piece) in bytes.chunks_exact_mut(8).enumerate() {
                    piece.copy_from_slice(&word(slot + BYTES + at * 8).to_ne_bytes());
                }
                // A slot that was written meanwhile may have parts of two frames.
                if word(ring).wrapping_sub(number) >= SLOTS as u64 {
                    continue;
                }
                let (reason, length) = (head as u32 as usize, (head >> 32) as usize);
                let Some(reason) = DropReason::ALL.get(reason) else { continue };
                let known = if length < LONG_BYTES { SHORT_BYTES } else { LONG_BYTES };
                let mut frame = vec![0; length.clamp(known, FRAME_MAX)];
                frame[..known].copy_from_slice(&bytes[..known]);
                found(*reason, &frame, represents);
            }
        }
    }
}
