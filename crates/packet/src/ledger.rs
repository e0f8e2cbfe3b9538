//! The ledger: one equation that accounts for every frame, asserted by tests, fuzzers and labs.

use crate::DropReason;

/// Frame counts (not bytes) of one worker, or summed over all workers.
///
/// The promise: `received + originated + copied = transmitted + to_kernel + to_app + dropped + held`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Frames received from ports.
    pub received: u64,
    /// Frames created by weir itself (injected by an app).
    pub originated: u64,
    /// Frames created by copying another one (flooding, mirroring).
    pub copied: u64,
    /// Frames whose transmission has completed.
    pub transmitted: u64,
    /// Frames passed to the host's stack.
    pub to_kernel: u64,
    /// Frames passed to an app.
    pub to_app: u64,
    /// Frames dropped, by reason (index: `DropReason as usize`).
    pub dropped: [u64; DropReason::COUNT],
    /// Frames currently in rings, batches and hand-over rings, counted there.
    pub held: u64,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            received: 0,
            originated: 0,
            copied: 0,
            transmitted: 0,
            to_kernel: 0,
            to_app: 0,
            dropped: [0; DropReason::COUNT],
            held: 0,
        }
    }
}

impl Ledger {
    /// Counts one dropped frame.
    #[inline]
    pub fn drop_one(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Counts `frames` dropped frames.
    pub fn drop_many(&mut self, reason: DropReason, frames: usize) {
        self.dropped[reason as usize] += frames as u64;
    }

    /// Returns the number of frames dropped for any reason.
    #[must_use]
    pub fn dropped_sum(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Iterates over the reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.dropped[reason as usize]))
            .filter(|&(_, count)| count > 0)
    }

    /// Returns the two sides of the promise: frames that entered, and frames that left or are held.
    #[must_use]
    pub fn sides(&self) -> (u64, u64) {
        let came = self.received + self.originated + self.copied;
        let went = self.transmitted + self.to_kernel + self.to_app + self.dropped_sum() + self.held;
        (came, went)
    }

    /// Returns true if every frame is accounted for.
    #[must_use]
    pub fn balances(&self) -> bool {
        let (came, went) = self.sides();
        came == went
    }

    /// Adds another worker's counts.
    pub fn add(&mut self, other: &Ledger) {
        self.received += other.received;
        self.originated += other.originated;
        self.copied += other.copied;
        self.transmitted += other.transmitted;
        self.to_kernel += other.to_kernel;
        self.to_app += other.to_app;
        self.held += other.held;
        for (sum, count) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += count;
        }
    }
}
