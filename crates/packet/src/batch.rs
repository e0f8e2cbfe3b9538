//! A batch: up to 64 frames, addressed by the bits of a `u64`.
//!
//! A mask is the list of a pipe, of a port, of the dropped: joining two lists is an OR, walking one meets the frames in
//! arrival order whichever way they came, and that order is what makes batches invisible to the program.

use crate::Frame;

/// Frames in a batch at most: the bits of a mask.
pub const BATCH: usize = 64;

/// Frames that are handled together. Slots below `len()` hold a frame until somebody takes it.
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
    /// An empty batch.
    #[must_use]
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Slots in use, taken ones included.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// True when nothing was pushed.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Slots that can still be pushed to.
    #[inline]
    #[must_use]
    pub fn space(&self) -> usize {
        BATCH - self.length
    }

    /// The mask of all slots in use.
    #[inline]
    #[must_use]
    pub fn mask(&self) -> u64 {
        if self.length == BATCH { u64::MAX } else { (1 << self.length) - 1 }
    }

    /// Appends a frame; a full batch hands it back.
    ///
    /// # Errors
    /// The frame itself, when there are [`BATCH`] already.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.length == BATCH {
            return Err(frame);
        }
        self.frames[self.length] = frame;
        self.length += 1;
        Ok(())
    }

    /// The free slots, for a driver that fills several at once; [`Batch::extend`] then says how many.
    #[inline]
    pub fn free_slots(&mut self) -> &mut [Frame] {
        &mut self.frames[self.length..]
    }

    /// Counts `count` free slots as filled.
    #[inline]
    pub fn extend(&mut self, count: usize) {
        assert!(count <= self.space(), "a batch has {BATCH} slots");
        self.length += count;
    }

    /// The frame in a slot.
    #[inline]
    pub fn frame(&self, slot: usize) -> &Frame {
        &self.frames[slot & (BATCH - 1)]
    }

    /// The frame in a slot, to be rewritten.
    #[inline]
    pub fn frame_mut(&mut self, slot: usize) -> &mut Frame {
        &mut self.frames[slot & (BATCH - 1)]
    }

    /// All slots in use.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.length]
    }

    /// Takes the frame out of a slot.
    #[inline]
    pub fn take(&mut self, slot: usize) -> Frame {
        self.frames[slot & (BATCH - 1)].take()
    }

    /// Forgets the slots; every frame must have been taken.
    #[inline]
    pub fn clear(&mut self) {
        debug_assert!(self.frames().iter().all(Frame::is_absent), "a frame was left in the batch");
        self.length = 0;
    }
}

/// Walks the set bits of a mask from low to high: the frames of a list in arrival order.
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
