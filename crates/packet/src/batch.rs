//! A batch: up to 64 frames, selected by the bits of a `u64`.
//!
//! A mask can select the packets of a pipe, the packets for a port, or dropped packets. Merging two lists is
//! an OR, and iterating over a mask visits frames in arrival order, however they got into it. That order is
//! what makes batches invisible to the program.

use crate::Frame;

/// The largest number of frames in a batch: the number of bits in a mask.
pub const BATCH: usize = 64;

/// Frames that are processed together. Each slot below `len()` holds a frame until it is taken.
#[derive(Debug)]
pub struct Batch {
    frames: [Frame; BATCH],
    length: usize,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { frames: [const { Frame::absent() }; BATCH], length: 0 }
    }
}

impl Batch {
    /// Creates an empty batch.
    #[must_use]
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Returns the number of slots in use, including those whose frame was taken.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if nothing was pushed.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of free slots.
    #[inline]
    #[must_use]
    pub fn space(&self) -> usize {
        BATCH - self.length
    }

    /// Returns the mask of all slots in use.
    #[inline]
    #[must_use]
    pub fn mask(&self) -> u64 {
        if self.length == BATCH { u64::MAX } else { (1 << self.length) - 1 }
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// Returns the frame if the batch already has [`BATCH`] frames.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.length == BATCH {
            return Err(frame);
        }
        self.frames[self.length] = frame;
        self.length += 1;
        Ok(())
    }

    /// Returns the free slots, for a driver that fills several at once and then calls [`Batch::extend`].
    #[inline]
    pub fn free_slots(&mut self) -> &mut [Frame] {
        &mut self.frames[self.length..]
    }

    /// Counts the first `count` free slots as filled.
    #[inline]
    pub fn extend(&mut self, count: usize) {
        assert!(count <= self.space(), "a batch has {BATCH} slots");
        debug_assert!(!self.frames[self.length..][..count].iter().any(Frame::is_absent));
        self.length += count;
    }

    /// Returns the frame in a slot.
    #[inline]
    pub fn frame(&self, slot: usize) -> &Frame {
        &self.frames[slot & (BATCH - 1)]
    }

    /// Returns the frame in a slot for modification.
    #[inline]
    pub fn frame_mut(&mut self, slot: usize) -> &mut Frame {
        &mut self.frames[slot & (BATCH - 1)]
    }

    /// Returns all slots in use.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.length]
    }

    /// Takes the frame out of a slot.
    #[inline]
    pub fn take(&mut self, slot: usize) -> Frame {
        self.frames[slot & (BATCH - 1)].take()
    }

    /// Removes all slots; every frame must have been taken.
    #[inline]
    pub fn clear(&mut self) {
        debug_assert!(self.frames().iter().all(Frame::is_absent), "a frame was left in the batch");
        self.length = 0;
    }
}

/// Iterates over the set bits of a mask from low to high: the frames of a list in arrival order.
#[derive(Clone, Copy, Debug)]
pub struct Bits(pub u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}
