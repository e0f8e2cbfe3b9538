//! What a measured pipe reports about packets in no flow: how many there were in each period, by reason.

use weir_program::snapshot::Unflowed;
use weir_table::UNFLOWED;

/// What was reported, and what is to be reported with the end of the current period.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnflowedReport {
    ended: [u64; UNFLOWED],
    reported: [u64; UNFLOWED],
}

impl UnflowedReport {
    /// Creates a report on the packets that follow these.
    pub fn after(counts: &Unflowed) -> UnflowedReport {
        let counts = counts.by_reason().map(|(_, count)| count);
        UnflowedReport { ended: counts, reported: counts }
    }

    /// Called when a period ends.
    pub fn end(&mut self, counts: &Unflowed) {
        self.ended = counts.by_reason().map(|(_, count)| count);
    }

    /// Returns what is to be reported. Counts that exceed the range of a delta are continued in the next one.
    pub fn take(&mut self) -> [u32; UNFLOWED] {
        let mut counts = [0; UNFLOWED];
        for ((count, ended), reported) in counts.iter_mut().zip(self.ended).zip(&mut self.reported) {
            *count = u32::try_from(ended - *reported).unwrap_or(u32::MAX);
            *reported += u64::from(*count);
        }
        counts
    }
}
