//! Observations about the packets of flows, besides the counts in their rows, if a pipe is measured.
//!
//! Costs: 40 bytes for each flow of the table, resident as used, and a cache line for each packet.

use weir_packet::Observed;
use weir_program::snapshot::Count;
use weir_table::Flow;

/// Bytes of an Ethernet header.
const ETHERNET: u64 = 14;

/// Observations since a flow last reported its counts, and the counts that it has reported, by row. Stored as
/// words, because zeroed memory is not touched before it is used.
#[derive(Debug)]
pub struct Observations(Vec<ReportedWords>);

/// [`Observed::words`], and the packets and bytes that were reported.
type ReportedWords = [u64; 5];

/// The record of a flow, besides the counts in its row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Observations about the packets that are counted in the flow's row.
    pub observed: Observed,
    /// The counts that the flow has reported to the measurement.
    pub given: Count,
}

impl Known {
    fn words(&self) -> ReportedWords {
        let [first, second, third] = self.observed.words();
        [first, second, third, self.given.packets, self.given.bytes]
    }
}

impl Observations {
    /// Creates observations that contain nothing. `rows` is the number of flows that fit in the table.
    #[must_use]
    pub fn new(rows: u32) -> Observations {
        Observations(vec![[0; 5]; rows as usize])
    }

    /// Adds what was observed about a packet of `bytes` bytes, which the flow in this row has just counted.
    #[inline]
    pub fn add(&mut self, row: u32, flow: &Flow, bytes: u64, one: &Observed) {
        let Some(words) = self.0.get_mut(row as usize) else { return };
        let [first, second, third, packets, given] = *words;
        let mut sum = *one;
        let mut given = [packets, given];
        if flow.packets() > 1 {
            sum = so_far([first, second, third], flow.packets() - 1, flow.bytes() - bytes);
            sum.join(one);
        } else if !flow.has_given() {
            given = [0; 2];
        }
        let [first, second, third] = sum.words();
        *words = [first, second, third, given[0], given[1]];
    }

    /// Returns what is known about the flow in this row.
    #[must_use]
    pub fn of(&self, row: u32, flow: &Flow) -> Known {
        let [first, second, third, packets, bytes] = self.0.get(row as usize).copied().unwrap_or_default();
        let observed = match flow.packets() {
            0 => Observed::default(),
            packets => so_far([first, second, third], packets, flow.bytes()),
        };
        let given = if flow.has_given() { Count { packets, bytes } } else { Count::default() };
        Known { observed, given }
    }

    /// Called when the flow in this row reports its counts and lives on.
    pub fn give(&mut self, row: u32, flow: &Flow) {
        let mut known = self.of(row, flow);
        known.given.add(Count { packets: flow.packets(), bytes: flow.bytes() });
        if let Some(words) = self.0.get_mut(row as usize) {
            *words = known.words();
        }
    }

    /// Called when another table's flow arrives in this row, or when its counts are added to those of the
    /// flow in this row, which has `packets` packets of its own.
    pub fn take(&mut self, row: u32, packets: u64, from: &Known) {
        let Some(words) = self.0.get_mut(row as usize) else { return };
        let [first, second, third, ..] = *words;
        let mut now = *from;
        if packets != 0 {
            now.observed = Observed::from_words([first, second, third]);
            now.observed.join(&from.observed);
        }
        *words = now.words();
    }
}

/// The observations about a flow's packets so far. Packets counted before the pipe was measured were not
/// observed: for them, octets are computed as the bytes without Ethernet headers.
#[inline]
fn so_far(words: [u64; 3], packets: u64, bytes: u64) -> Observed {
    match words {
        [0, 0, 0] => Observed { octets: bytes.saturating_sub(ETHERNET * packets), ..Observed::default() },
        words => Observed::from_words(words),
    }
}

/// The record of a flow, where records are kept.
#[must_use]
pub fn known(all: &Option<Box<Observations>>, row: u32, flow: &Flow) -> Known {
    all.as_deref().map_or_else(Known::default, |all| all.of(row, flow))
}
