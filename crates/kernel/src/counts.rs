//! The counts of a program in the kernel: one array, mapped into memory, with a slice for each processor.
//!
//! A slice begins with a mark for each block of 64 places, which the program sets when it counts there. A
//! sweep clears marks and reads the blocks that they mark, so that its cost depends on the number of entries
//! with packets, not on the number of all entries.

use crate::layout::{CountPlaces, CountedAt, MARK_SHIFT};
use crate::sys::{Map, MapKind, Memory};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use weir_program::snapshot::Count;

/// Bytes of a count: packets, bytes.
pub const COUNT_BYTES: usize = 16;

/// The maximum number of bytes of all counts: the verifier accepts no larger offset into a map's value.
const BYTES_MAX: usize = 1 << 29;

/// The counts, and their values at the last sweep.
#[derive(Debug)]
pub struct CountTable {
    map: Map,
    memory: Memory,
    places: CountPlaces,
    processors: usize,
    /// The sums of all processors at the last sweep.
    swept: Vec<Count>,
}

impl CountTable {
    /// Creates counts of 0.
    ///
    /// # Errors
    /// The kernel has no memory, or there are too many counts; the error contains the number of bytes.
    pub fn new(places: CountPlaces, processors: usize) -> Result<CountTable, (usize, io::Error)> {
        let total = places.total() as usize;
        let bytes = slice_bytes(total) * processors;
        if bytes > BYTES_MAX {
            return Err((bytes, io::Error::other("more counts than an array can have")));
        }
        let map = Map::create(MapKind::Array, 4, bytes, 1).map_err(|error| (bytes, error))?;
        let memory = map.memory().map_err(|error| (bytes, error))?;
        Ok(CountTable { map, memory, places, processors, swept: vec![Count::default(); total] })
    }

    /// Returns the map's descriptor.
    pub fn fd(&self) -> RawFd {
        self.map.fd()
    }

    /// Returns where each count is.
    pub fn places(&self) -> &CountPlaces {
        &self.places
    }

    /// Returns the number of processors.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Returns the number of bytes in a processor's slice, and how many of these are for marks.
    pub fn slice_bytes(&self) -> (usize, usize) {
        let total = self.swept.len();
        (slice_bytes(total), mark_bytes(total))
    }

    /// Returns the present count at a place.
    pub fn read(&self, place: u32) -> Count {
        let (slice, marks) = self.slice_bytes();
        let mut sum = Count::default();
        for processor in 0..self.processors {
            let at = processor * slice + marks + place as usize * COUNT_BYTES;
            let word = |at| self.memory.word(at).load(Ordering::Acquire);
            sum.add(Count { packets: word(at), bytes: word(at + 8) });
        }
        sum
    }

    /// Calls `found` with everything that was counted since the last sweep; `all` looks at every place.
    pub fn sweep(&mut self, all: bool, mut found: impl FnMut(CountedAt, Count)) {
        for block in 0..self.swept.len().div_ceil(1 << MARK_SHIFT) {
            if !self.take_marks(block) && !all {
                continue;
            }
            let first = block << MARK_SHIFT;
            for place in first..(first + (1 << MARK_SHIFT)).min(self.swept.len()) {
                let now = self.read(place as u32);
                let before = std::mem::replace(&mut self.swept[place], now);
                if now != before
                    && let Some(counted) = self.places.at(place as u32)
                {
                    let packets = now.packets.wrapping_sub(before.packets);
                    found(counted, Count { packets, bytes: now.bytes.wrapping_sub(before.bytes) });
                }
            }
        }
    }

    /// Discards the counts of a place since the last sweep: they belong to an entry that is gone.
    pub fn forget(&mut self, place: u32) {
        self.swept[place as usize] = self.read(place);
    }

    /// Clears the marks of a block on all processors. Returns true if one was set.
    fn take_marks(&self, block: usize) -> bool {
        let slice = self.slice_bytes().0;
        let mut marked = false;
        for processor in 0..self.processors {
            let mark = self.memory.byte(processor * slice + block);
            // The exchange comes before the counts are read, so packets that are counted later mark the block
            // again.
            marked |= mark.load(Ordering::Relaxed) != 0 && mark.swap(0, Ordering::SeqCst) != 0;
        }
        marked
    }
}

/// The number of bytes for the marks of `total` places.
fn mark_bytes(total: usize) -> usize {
    total.div_ceil(1 << MARK_SHIFT).next_multiple_of(64)
}

/// Bytes of a processor's slice. Slices share no cache line.
fn slice_bytes(total: usize) -> usize {
    (mark_bytes(total) + total * COUNT_BYTES).next_multiple_of(64)
}
