//! Which key of a full row makes room.

use super::row::{Compare, Line, SLOTS};

/// A replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Global round robin: one counter for the whole aggregator selects the slot, whichever row needs one. It
    /// evicts one in sixteen of the heaviest keys of every full row.
    Grr,
    /// The least recently seen key.
    Lru,
    /// The next key, in turn, that has not been seen since its last turn (Corbató, 1968): nearly the choice
    /// of [`Policy::Lru`] at the cost of [`Policy::Grr`].
    SecondChance,
    /// The key with the fewest packets; heavy keys stay until the interval ends.
    MinCount,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] = [Policy::Grr, Policy::Lru, Policy::SecondChance, Policy::MinCount];

    /// Returns the policy's name in tables and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Policy::Grr => "grr",
            Policy::Lru => "lru",
            Policy::SecondChance => "second_chance",
            Policy::MinCount => "min_count",
        }
    }
}

/// A policy with its state. The meaning of a key's mark depends on the policy, in the order of [`Policy`]:
/// nothing; the row's clock when the key was last seen; 1 if the key was seen since its last turn; the key's
/// packets, up to 65,535.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    policy: Policy,
    /// Whether marks are stamps; otherwise they are packets, up to `most`.
    stamps: bool,
    most: u64,
    /// The slot of [`Policy::Grr`].
    hand: u32,
    /// For each row, its clock ([`Policy::Lru`]) or its hand.
    rows: Vec<u16>,
}

impl Replacement {
    pub(super) const BYTES_PER_ROW: usize = size_of::<u16>();

    pub(super) fn new(policy: Policy, rows: usize) -> Replacement {
        let most = match policy {
            Policy::Grr | Policy::Lru => 0,
            Policy::SecondChance => 1,
            Policy::MinCount => u64::from(u16::MAX),
        };
        Replacement { policy, stamps: policy == Policy::Lru, most, hand: 0, rows: vec![0; rows] }
    }

    /// Records that a key of the row was seen and now has `packets` packets.
    #[inline(always)]
    pub(super) fn touch(&mut self, line: &mut Line, row: u32, slot: u16, packets: u64) {
        if self.stamps {
            tick(line, &mut self.rows[row as usize], slot);
        } else {
            line.marks[usize::from(slot) % SLOTS] = packets.min(self.most) as u16;
        }
    }

    /// Records that a key was written into a slot.
    #[inline(always)]
    pub(super) fn inserted(&mut self, line: &mut Line, row: u32, slot: u16, packets: u64) {
        line.marks[usize::from(slot)] = 0;
        if self.policy != Policy::SecondChance {
            self.touch(line, row, slot, packets);
        }
    }

    /// Records that a row was emptied.
    pub(super) fn emptied(&mut self, number: usize) {
        self.rows[number] = 0;
    }

    /// Returns the slot of a full row that makes room next.
    #[inline(always)]
    fn next<M: Compare>(&self, line: &Line, number: usize) -> u32 {
        match self.policy {
            Policy::Grr => (self.hand + 1) % SLOTS as u32,
            Policy::Lru => line.marked::<M>(least(&line.marks)).trailing_zeros(),
            Policy::SecondChance => match line.marked::<M>(0) {
                0 => u32::from(self.rows[number]),
                unseen => next_from(unseen, u32::from(self.rows[number])),
            },
            Policy::MinCount => next_from(line.marked::<M>(least(&line.marks)), u32::from(self.rows[number])),
        }
    }

    /// Returns the slot of a full row that makes room, and records that it does.
    #[inline(always)]
    pub(super) fn victim<M: Compare>(&mut self, line: &mut Line, number: usize) -> u32 {
        let slot = self.next::<M>(line, number);
        match self.policy {
            Policy::Grr => self.hand = slot,
            Policy::Lru => (),
            Policy::SecondChance => pass(line, &mut self.rows[number], slot),
            Policy::MinCount => self.rows[number] = (slot as u16 + 1) % SLOTS as u16,
        }
        slot
    }
}

#[inline(always)]
fn least(marks: &[u16; SLOTS]) -> u16 {
    marks.iter().fold(u16::MAX, |least, mark| least.min(*mark))
}

/// Returns the first of `slots` at or after `hand`, in a circle; there is at least one.
#[inline(always)]
fn next_from(slots: u32, hand: u32) -> u32 {
    let turned = (slots >> hand | slots << (SLOTS as u32 - hand)) & 0xffff;
    (hand + turned.trailing_zeros()) % SLOTS as u32
}

/// Advances the row's clock and stamps a slot. Before the clock overflows, stamps become ranks.
#[inline(always)]
fn tick(line: &mut Line, clock: &mut u16, slot: u16) {
    if *clock == u16::MAX {
        *clock = rank(&mut line.marks);
    }
    *clock += 1;
    line.marks[usize::from(slot)] = *clock;
}

/// Replaces stamps by their ranks, and returns the largest rank.
#[cold]
#[inline(never)]
fn rank(marks: &mut [u16; SLOTS]) -> u16 {
    let before = *marks;
    for mark in marks.iter_mut() {
        *mark = before.iter().filter(|other| **other < *mark).count() as u16;
    }
    SLOTS as u16
}

/// Clears the marks of the keys from the hand to the first one that was not seen, or all marks if all keys
/// were seen.
#[inline(always)]
fn pass(line: &mut Line, hand: &mut u16, slot: u32) {
    let from = u32::from(*hand);
    let is_unseen = line.marks[slot as usize] == 0;
    let passed = if is_unseen { (slot + SLOTS as u32 - from) % SLOTS as u32 } else { SLOTS as u32 };
    for step in 0..passed {
        line.marks[((from + step) % SLOTS as u32) as usize] = 0;
    }
    *hand = ((slot + 1) % SLOTS as u32) as u16;
}

#[cfg(test)]
mod tests {
    use super::super::row::Vectors;
    use super::*;

    /// The victims of a row of sixteen, after its keys were seen in a given order.
    fn victims(policy: Policy, seen: &[u16], packets: &[u64], count: usize) -> Vec<u32> {
        let (mut line, mut replacement) = (Line::EMPTY, Replacement::new(policy, 1));
        for slot in 0..SLOTS as u16 {
            replacement.inserted(&mut line, 0, slot, packets.get(usize::from(slot)).copied().unwrap_or(1));
        }
        for &slot in seen {
            replacement.touch(&mut line, 0, slot, 1);
        }
        (0..count)
            .map(|_| {
                let slot = replacement.victim::<Vectors>(&mut line, 0);
                replacement.inserted(&mut line, 0, slot as u16, 1);
                slot
            })
            .collect()
    }

    #[test]
    fn grr_takes_turns() {
        assert_eq!(victims(Policy::Grr, &[3, 4], &[], 3), [1, 2, 3]);
    }

    #[test]
    fn lru_takes_the_least_recent_also_when_the_clock_is_full() {
        assert_eq!(victims(Policy::Lru, &[0, 1, 3], &[], 4), [2, 4, 5, 6]);
        let seen: Vec<u16> = (0..200_000_u32).map(|n| (n % 15) as u16).chain([0, 1]).collect();
        assert_eq!(victims(Policy::Lru, &seen, &[], 3), [15, 5, 6]);
    }

    #[test]
    fn a_second_chance_is_given_once() {
        assert_eq!(victims(Policy::SecondChance, &[0, 1, 3], &[], 3), [2, 4, 5]);
        let all: Vec<u16> = (0..16).collect();
        assert_eq!(victims(Policy::SecondChance, &all, &[], 3), [0, 1, 2]);
    }

    #[test]
    fn min_count_takes_the_lightest_in_turn() {
        let packets: Vec<u64> = (0..16).map(|slot| if slot % 8 == 5 { 2 } else { 70_000 }).collect();
        assert_eq!(victims(Policy::MinCount, &[], &packets, 3), [5, 5, 5]);
        assert_eq!(victims(Policy::MinCount, &[], &[], 3), [0, 1, 2]);
    }
}
