//! Counts the packets of a list in the rows of their entries.

use crate::batch::rows::{ActionOf, ActionRow, Actions, NEAR_MAX, Rows};
use weir_packet::{Batch, Bits};
use weir_program::snapshot::Count;

/// The packets of a list, and the rows that they hit.
pub struct Counting<'a, N> {
    pub batch: &'a Batch,
    pub list: u64,
    pub rows: &'a N,
    pub now_ms: u32,
    /// The shared counters of entries, if the pipe has any: packets count there as well.
    pub shared: Option<Shared<'a>>,
}

/// The shared counters, and the actions that may name one.
pub struct Shared<'a> {
    pub actions: &'a [ActionRow],
    pub counters: &'a mut [Count],
}

impl<N: Numbers> Counting<'_, N> {
    /// Counts the packets in `all` rows of the pipe. Returns their actions.
    #[inline(always)]
    pub fn run(self, all: &mut impl Rows) -> N {
        let Counting { batch, list, rows, now_ms, shared } = self;
        rows.prefetch_rows(list, all);
        let Some(Shared { actions, counters }) = shared else {
            return rows.tally(batch, list, |row, count| all.at_mut(row).hit(count, now_ms));
        };
        rows.tally(batch, list, |row, count| {
            let action = all.at_mut(row).hit(count, now_ms);
            if let Some(counter) = all.counter(row).or_else(|| actions[action as usize].counter) {
                counters[counter.index()].add(count);
            }
            action
        })
    }
}

/// Row or action numbers of the packets in a list.
pub trait Numbers: ActionOf {
    /// Returns the number that all packets share, if there is one.
    fn same(&self) -> Option<u32>;

    /// Prefetches the rows with these numbers, if they may be far away.
    #[inline(always)]
    fn prefetch_rows(&self, _list: u64, _all: &impl Rows) {}

    /// Prefetches the actions with these numbers, if they may be far away.
    #[inline(always)]
    fn prefetch(&self, _list: u64, _all: &Actions) {}

    /// Calls `each` with every number and the counts of its packets. Returns the results.
    fn tally(&self, batch: &Batch, list: u64, each: impl FnMut(u32, Count) -> u32) -> Self;
}

/// One number for all packets.
impl Numbers for u32 {
    #[inline(always)]
    fn same(&self) -> Option<u32> {
        Some(*self)
    }

    #[inline(always)]
    fn tally(&self, batch: &Batch, list: u64, mut each: impl FnMut(u32, Count) -> u32) -> u32 {
        let bytes = Bits(list).map(|slot| batch.frame(slot).len() as u64).sum();
        each(*self, Count { packets: u64::from(list.count_ones()), bytes })
    }
}

/// A number for each packet.
impl Numbers for [u32; 64] {
    #[inline(always)]
    fn prefetch_rows(&self, list: u64, all: &impl Rows) {
        if all.used() > NEAR_MAX {
            Bits(list).for_each(|slot| all.prefetch(self[slot]));
        }
    }

    #[inline(always)]
    fn prefetch(&self, list: u64, all: &Actions) {
        all.prefetch(list, self);
    }

    #[inline(always)]
    fn same(&self) -> Option<u32> {
        None
    }

    #[inline(always)]
    fn tally(&self, batch: &Batch, list: u64, mut each: impl FnMut(u32, Count) -> u32) -> [u32; 64] {
        let mut answers = [0; 64];
        for slot in Bits(list) {
            answers[slot] = each(self[slot], Count { packets: 1, bytes: batch.frame(slot).len() as u64 });
        }
        answers
    }
}
