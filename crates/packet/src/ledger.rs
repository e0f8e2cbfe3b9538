//! The ledger: every frame is accounted for, in one equation that tests, fuzzers and labs assert.

use crate::DropReason;

/// Counts of frames, of one worker or summed over all. Frames, not bytes.
///
/// The promise: `received + originated + copied = transmitted + to_kernel + to_app + dropped + held`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Frames taken from ports.
    pub received: u64,
    /// Frames made by weir itself (packet-out of an app).
    pub originated: u64,
    /// Frames made by duplicating another (flooding, mirroring).
    pub copied: u64,
    /// Frames that ports have sent and are done with.
    pub transmitted: u64,
    /// Frames given to the host's stack.
    pub to_kernel: u64,
    /// Frames given to an app.
    pub to_app: u64,
    /// Frames dropped, by reason (index: `DropReason as usize`).
    pub dropped: [u64; DropReason::COUNT],
    /// Frames lying in rings, batches and hand-over rings at this moment, counted there.
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

    /// Frames dropped for any reason.
    #[must_use]
    pub fn dropped_sum(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Reasons that were met, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped[reason as usize])).filter(|&(_, count)| count > 0)
    }

    /// The two sides of the promise: frames that came into being, frames that ended or lie somewhere.
    #[must_use]
    pub fn sides(&self) -> (u64, u64) {
        let came = self.received + self.originated + self.copied;
        let went = self.transmitted + self.to_kernel + self.to_app + self.dropped_sum() + self.held;
        (came, went)
    }

    /// True when every frame is accounted for.
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
