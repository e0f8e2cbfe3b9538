//! The event queue: a calendar of short days, and a heap for events far in the future.
//!
//! Nearly all events are packets that arrive within some microseconds. They are added to the list of their
//! day without any comparison, and a day is sorted when it becomes current. An event is 8 bytes: its time
//! within the day, a sequence number that keeps events of the same nanosecond in insertion order, and a
//! payload. The busiest days determine memory use; once they have passed, no event allocates.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds of a day: 2^5. A fabric of 1024 hosts has about a hundred events per day.
const DAY_BITS: u32 = 5;

/// Days of the calendar: 2^13, so 262 us, more than the queue of a switch port.
const DAYS: usize = 1 << 13;

/// Bits of the sequence number that preserves the order within a day.
const ORDER_BITS: u32 = 27;

/// Events ordered by time; those of the same time in insertion order.
pub struct Calendar {
    days: Vec<Vec<u64>>,
    /// The current day, and how many of its events have been taken.
    today: u64,
    taken: usize,
    sorted: bool,
    far: BinaryHeap<Reverse<(u64, u64, u32)>>,
    added: u64,
    near: usize,
    now: u64,
}

impl Calendar {
    /// An empty calendar at time 0.
    #[must_use]
    pub fn new() -> Calendar {
        Calendar {
            days: vec![Vec::new(); DAYS],
            today: 0,
            taken: 0,
            sorted: true,
            far: BinaryHeap::new(),
            added: 0,
            near: 0,
            now: 0,
        }
    }

    /// Adds an event. A time before that of the last event taken is clamped to it.
    #[inline]
    pub fn add(&mut self, time: u64, payload: u32) {
        let time = time.max(self.now);
        let day = time >> DAY_BITS;
        if day >= self.today + DAYS as u64 {
            self.added += 1;
            self.far.push(Reverse((time, self.added, payload)));
        } else {
            self.note(day, time, payload);
        }
    }

    #[inline]
    fn note(&mut self, day: u64, time: u64, payload: u32) {
        self.near += 1;
        let list = &mut self.days[day as usize % DAYS];
        let within = time & ((1 << DAY_BITS) - 1);
        let event = (within << ORDER_BITS | list.len() as u64) << 32 | u64::from(payload);
        list.push(event);
        if day == self.today {
            // The event may be due before other events of today, but not before those already taken.
            self.sorted = false;
        }
    }

    /// Takes the next event: its time and its payload.
    #[inline]
    pub fn take(&mut self) -> Option<(u64, u32)> {
        loop {
            let list = &mut self.days[self.today as usize % DAYS];
            if let Some(left) = list.get_mut(self.taken..).filter(|left| !left.is_empty()) {
                if !self.sorted {
                    left.sort_unstable();
                    self.sorted = true;
                }
                let event = left[0];
                self.taken += 1;
                self.near -= 1;
                self.now = self.today << DAY_BITS | event >> (32 + ORDER_BITS);
                return Some((self.now, event as u32));
            }
            list.clear();
            self.turn_the_page()?;
        }
    }

    /// Advances to the next day, or to the next day with an event if all events are far in the future.
    fn turn_the_page(&mut self) -> Option<()> {
        self.today += 1;
        if self.near == 0 {
            self.today = self.far.peek()?.0.0 >> DAY_BITS;
        }
        self.taken = 0;
        self.sorted = false;
        while self.far.peek().is_some_and(|Reverse((time, ..))| time >> DAY_BITS <= self.today) {
            let Some(Reverse((time, _, payload))) = self.far.pop() else { break };
            self.note(self.today, time, payload);
        }
        Some(())
    }
}

impl Default for Calendar {
    fn default() -> Calendar {
        Calendar::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::random::Random;

    #[test]
    fn events_come_in_the_order_of_a_stable_sort() {
        let (mut calendar, mut random, mut now) = (Calendar::new(), Random::new(1), 0);
        let (mut waiting, mut number) = (Vec::new(), 0_u32);
        for _ in 0..20_000 {
            for _ in 0..random.below(4) {
                let range = [3, 40, 5000, 3_000_000][random.below(4) as usize];
                let time = now + random.below(range);
                calendar.add(time, number);
                waiting.push((time, number));
                number += 1;
            }
            if random.below(3) > 0 {
                let taken = calendar.take();
                let least = waiting.iter().copied().min_by_key(|event| event.0);
                assert_eq!(taken.map(|event| event.0), least.map(|event| event.0));
                if let Some(event) = taken {
                    now = event.0;
                    let at = waiting.iter().position(|waits| *waits == event).expect("it was added");
                    waiting.swap_remove(at);
                }
            }
        }
        while let Some(event) = calendar.take() {
            let at = waiting.iter().position(|waits| *waits == event).expect("it was added");
            waiting.swap_remove(at);
        }
        assert_eq!(waiting, []);
    }

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut calendar = Calendar::new();
        (0..100).for_each(|number| calendar.add(77, number));
        assert!((0..100).all(|number| calendar.take() == Some((77, number))));
        assert_eq!(calendar.take(), None);
    }
}
