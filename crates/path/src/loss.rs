//! Which probes of a path are lost: by sequence number, and how many of the last hundreds.

use std::collections::VecDeque;

/// Probes of a path on their way; more count as lost. At 10 ms they cover 640 ms.
const PENDING_MAX: usize = 64;

/// Loss is judged over at least so many probes, and at most twice as many: with fewer, three losses by chance
/// would be more than 1 %.
pub const JUDGED_OVER: u32 = 200;

/// A path that loses more is grey (Hermes: 1 % random loss halves what TCP gets).
pub const GREY_PERCENT: u32 = 1;

/// The probes of one path.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    next: u32,
    /// Sequence numbers and times of the probes without answer, oldest first.
    pending: VecDeque<(u32, u64)>,
    misses: u32,
    answers: u32,
    /// Probes and losses of the period before this one, and of this one.
    periods: [(u32, u32); 2],
}

impl Loss {
    /// Counts a probe that leaves now, and returns its sequence number and how many older ones this gives up.
    pub fn sent(&mut self, now: u64) -> (u32, u32) {
        let sequence = self.next;
        self.next = self.next.wrapping_add(1);
        let mut given_up = 0;
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_front();
            self.lose();
            given_up = 1;
        }
        self.pending.push_back((sequence, now));
        (sequence, given_up)
    }

    /// Counts an answer. Returns false, and counts nothing, if no such probe is on its way: answered already,
    /// given up, or made up.
    pub fn answered(&mut self, sequence: u32) -> bool {
        let Some(at) = self.pending.iter().position(|probe| probe.0 == sequence) else { return false };
        self.pending.remove(at);
        self.misses = 0;
        self.answers = self.answers.saturating_add(1);
        self.count(0);
        true
    }

    /// Gives up the probes sent before `before`; returns how many.
    pub fn give_up(&mut self, before: u64) -> u32 {
        let mut lost = 0;
        while self.pending.front().is_some_and(|probe| probe.1 <= before) {
            self.pending.pop_front();
            self.lose();
            lost += 1;
        }
        lost
    }

    fn lose(&mut self) {
        self.misses = self.misses.saturating_add(1);
        self.answers = 0;
        self.count(1);
    }

    fn count(&mut self, lost: u32) {
        self.periods[1].0 += 1;
        self.periods[1].1 += lost;
        if self.periods[1].0 == JUDGED_OVER {
            self.periods = [self.periods[1], (0, 0)];
        }
    }

    /// Probes lost since the last answer.
    #[must_use]
    pub fn misses(&self) -> u32 {
        self.misses
    }

    /// Answers since the last loss.
    #[must_use]
    pub fn answers(&self) -> u32 {
        self.answers
    }

    /// Returns true if a probe is on its way since before `before`.
    #[must_use]
    pub fn waits_since(&self, before: u64) -> bool {
        self.pending.front().is_some_and(|probe| probe.1 <= before)
    }

    /// Probes and losses of the time over which loss is judged.
    #[must_use]
    pub fn judged(&self) -> (u32, u32) {
        let [before, current] = self.periods;
        (before.0 + current.0, before.1 + current.1)
    }

    /// Returns true if there were enough probes, and too many of them were lost.
    #[must_use]
    pub fn is_grey(&self) -> bool {
        let (probes, lost) = self.judged();
        probes >= JUDGED_OVER && lost * 100 > probes * GREY_PERCENT
    }

    /// Returns true if there were enough probes, and less than half of what makes a path grey was lost.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let (probes, lost) = self.judged();
        probes >= JUDGED_OVER && lost * 200 <= probes * GREY_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once() {
        let mut loss = Loss::default();
        let (sequence, _) = loss.sent(0);
        assert!(!loss.answered(sequence + 1), "made up");
        assert!(loss.answered(sequence));
        assert!(!loss.answered(sequence), "replayed");
        assert_eq!(loss.judged(), (1, 0));
    }

    #[test]
    fn misses_are_in_a_row() {
        let mut loss = Loss::default();
        for at in 0..2 {
            loss.sent(at);
        }
        assert_eq!((loss.give_up(1), loss.misses()), (2, 2));
        let (sequence, _) = loss.sent(2);
        assert!(loss.answered(sequence));
        assert_eq!((loss.misses(), loss.answers()), (0, 1));
    }

    #[test]
    fn one_percent_is_judged_over_hundreds() {
        let mut loss = Loss::default();
        for at in 0..JUDGED_OVER {
            let (sequence, _) = loss.sent(u64::from(at));
            if at % 50 == 0 {
                loss.give_up(u64::from(at));
            } else {
                assert!(loss.answered(sequence));
            }
            assert_eq!(loss.is_grey(), at + 1 == JUDGED_OVER, "after {at}");
        }
        for _ in 0..2 * JUDGED_OVER {
            let (sequence, _) = loss.sent(0);
            loss.answered(sequence);
        }
        assert!(loss.is_clean());
    }

    #[test]
    fn what_is_on_its_way_is_bounded() {
        let mut loss = Loss::default();
        for _ in 0..1000 {
            loss.sent(0);
        }
        assert_eq!(loss.pending.len(), PENDING_MAX);
        assert_eq!(loss.misses(), 1000 - PENDING_MAX as u32);
    }
}
