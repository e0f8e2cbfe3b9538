//! Which probes of a path are lost: by sequence number, and how many of the last few hundred.
//!
//! A probe without an answer may have been lost on the way there or on the way back, and only the former
//! counts against the path. Each answer reports how many probes of the path had arrived by then, so the
//! number lost between two answers is the number sent in between minus the number that arrived. Consecutive
//! missing answers are counted anyway, because it is unknown where they were lost.

use std::collections::VecDeque;

/// The maximum number of probes in flight per path; older ones count as lost. At 10 ms they cover 640 ms.
const PENDING_MAX: usize = 64;

/// The minimum number of probes over which loss is computed; the maximum is twice this number. With fewer
/// probes, three chance losses would exceed 1 %.
pub const JUDGED_OVER: u32 = 200;

/// A path that loses more than this is grey (Hermes: 1 % random loss halves TCP's throughput).
pub const GREY_PERCENT: u32 = 1;

/// The weight of a probe in the moving average of losses: after a loss, it takes 11 arrivals until it counts
/// for a quarter.
const RECENT_SHARE: u32 = 8;

/// The number of probes after which earlier probes no longer affect the average.
const RECENT_MAX: u32 = 64;

/// The probes of one path.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    next: u32,
    /// Sequence numbers and times of unanswered probes, oldest first.
    pending: VecDeque<(u32, u64)>,
    misses: u32,
    answers: u32,
    /// The sequence number of the latest answered probe, and how many had arrived by then.
    reported: Option<(u32, u32)>,
    /// The number of consecutive probes before the latest answer that are known to have arrived, if those
    /// since the previous answer have.
    whole: u32,
    /// The share of recent probes that were lost, in 1/1024.
    recent: u32,
    /// Probes and losses of the previous period and of the current one.
    periods: [ProbeCounts; 2],
}

/// Probes, and how many of them were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// The number of probes that were sent, including those that were lost.
    pub probes: u32,
    /// Probes that did not arrive.
    pub lost: u32,
}

impl ProbeCounts {
    fn add(&mut self, more: ProbeCounts) {
        self.probes = self.probes.saturating_add(more.probes);
        self.lost = self.lost.saturating_add(more.lost);
    }
}

impl Loss {
    /// Counts a probe that leaves now. Returns its sequence number, and how many older probes are given up
    /// because of it.
    pub fn sent(&mut self, now: u64) -> (u32, u32) {
        let sequence = self.next;
        self.next = self.next.wrapping_add(1);
        let mut given_up = 0;
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_front();
            self.miss();
            given_up = 1;
        }
        self.pending.push_back((sequence, now));
        (sequence, given_up)
    }

    /// Counts an answer. `arrived` is the number of probes of the path that have reached the node, whose
    /// count may restart. Returns false, and counts nothing, if no such probe is in flight: it was already
    /// answered, given up, or forged.
    pub fn answered(&mut self, sequence: u32, arrived: u32) -> bool {
        let Some(at) = self.pending.iter().position(|probe| probe.0 == sequence) else { return false };
        self.pending.remove(at);
        self.misses = 0;
        self.answers = self.answers.saturating_add(1);
        self.judge(sequence, arrived);
        true
    }

    fn judge(&mut self, sequence: u32, arrived: u32) {
        let (before, had_arrived) =
            self.reported.unwrap_or((sequence.wrapping_sub(1), arrived.wrapping_sub(1)));
        let sent = sequence.wrapping_sub(before).cast_signed();
        if sent <= 0 {
            // A later probe has overtaken it, and its answer has counted this one as lost or as arrived.
            return;
        }
        self.reported = Some((sequence, arrived));
        let came = arrived.wrapping_sub(had_arrived).cast_signed();
        if came < 0 || came > sent.saturating_add(PENDING_MAX as i32) {
            // The node's count has restarted.
            self.whole = 0;
            return;
        }
        let (sent, missing) = (sent.cast_unsigned(), sent - came);
        self.whole = if missing <= 0 { sent } else { 0 };
        for probe in 0..sent.min(RECENT_MAX) {
            self.recent = averaged(self.recent, i64::from(probe) < i64::from(missing));
        }
        let [_, current] = &mut self.periods;
        current.probes = current.probes.saturating_add(sent);
        current.lost = current.lost.saturating_add_signed(missing);
        if current.probes >= JUDGED_OVER {
            self.periods = [*current, ProbeCounts::default()];
        }
    }

    /// Counts TCP segments instead of probes: how many were sent, and how many of them were retransmitted.
    /// `is_heard` says whether any was acknowledged meanwhile, and `is_short` whether they met no queue. Only
    /// then is a loss the path's fault; a full queue drops segments of senders that probe for the available
    /// rate.
    pub fn observed(&mut self, seen: ProbeCounts, is_heard: bool, is_short: bool) {
        let sent = seen.probes.min(RECENT_MAX);
        let lost = seen.lost.min(sent);
        for at in 0..sent {
            self.recent = averaged(self.recent, (at + 1) * lost / sent > at * lost / sent);
        }
        self.misses = if is_heard { 0 } else { self.misses.saturating_add(lost) };
        if is_short {
            let [_, current] = &mut self.periods;
            current.add(ProbeCounts { lost: seen.lost.min(seen.probes), ..seen });
            if current.probes >= JUDGED_OVER {
                self.periods = [*current, ProbeCounts::default()];
            }
        }
    }

    /// Halves the share of recent losses, because it is out of date.
    pub fn fade(&mut self) {
        self.recent /= 2;
        self.misses /= 2;
    }

    /// Returns true if a probe was ever answered.
    #[must_use]
    pub fn was_answered(&self) -> bool {
        self.reported.is_some()
    }

    /// Gives up the probes sent before `before`; returns how many.
    pub fn give_up(&mut self, before: u64) -> u32 {
        let mut lost = 0;
        while self.pending.front().is_some_and(|probe| probe.1 <= before) {
            self.pending.pop_front();
            self.miss();
            lost += 1;
        }
        lost
    }

    fn miss(&mut self) {
        self.misses = self.misses.saturating_add(1);
        self.answers = 0;
    }

    /// Forgets the loss statistics.
    pub fn forget(&mut self) {
        self.periods = Default::default();
        self.recent = 0;
    }

    /// The number of unanswered probes since the last answer.
    #[must_use]
    pub fn misses(&self) -> u32 {
        self.misses
    }

    /// The number of answers since the last unanswered probe.
    #[must_use]
    pub fn answers(&self) -> u32 {
        self.answers
    }

    /// The number of consecutive probes up to the latest answer that are known to have arrived.
    #[must_use]
    pub fn whole(&self) -> u32 {
        self.whole
    }

    /// The share of recent probes that were lost, as far as answers show, in 1/1024.
    #[must_use]
    pub fn recent(&self) -> u32 {
        self.recent
    }

    /// The share of recent probes that were lost, counting unanswered ones as lost, in 1/1024.
    #[inline]
    #[must_use]
    pub fn risk(&self) -> u32 {
        (0..self.misses.min(RECENT_MAX)).fold(self.recent, |recent, _| averaged(recent, true))
    }

    /// How many probes had arrived by the latest answer.
    #[cfg(test)]
    pub fn arrived(&self) -> u32 {
        self.reported.map_or(0, |reported| reported.1)
    }

    /// Returns true if a probe sent before `before` is still in flight.
    #[must_use]
    pub fn waits_since(&self, before: u64) -> bool {
        self.pending.front().is_some_and(|probe| probe.1 <= before)
    }

    /// Probes and losses over the time for which loss is computed; probes since the last answer, whose fate
    /// is unknown, count as lost.
    #[must_use]
    pub fn judged(&self) -> ProbeCounts {
        let mut all = self.known();
        all.add(ProbeCounts { probes: self.misses, lost: self.misses });
        all
    }

    fn known(&self) -> ProbeCounts {
        let [mut all, current] = self.periods;
        all.add(current);
        all
    }

    /// The share of these probes that was lost, in 1/10,000; `None` if nothing is known.
    #[must_use]
    pub fn share(&self) -> Option<u32> {
        let ProbeCounts { probes, lost } = self.known();
        (u64::from(lost) * 10_000).checked_div(u64::from(probes)).map(|share| share.min(10_000) as u32)
    }

    /// Returns true if there were enough probes, and too many of them were lost beyond `common`, the share
    /// that cannot be avoided by choosing a path, in 1/10,000.
    #[must_use]
    pub fn is_grey(&self, common: u32) -> bool {
        let limit = common + 100 * GREY_PERCENT;
        self.known().probes >= JUDGED_OVER && self.share().is_some_and(|share| share > limit)
    }

    /// Returns true if there were enough probes, and the loss was less than half of what makes a path grey.
    #[must_use]
    pub fn is_clean(&self, common: u32) -> bool {
        let limit = common + 100 * GREY_PERCENT / 2;
        self.known().probes >= JUDGED_OVER && self.share().is_some_and(|share| share <= limit)
    }
}

#[inline]
fn averaged(recent: u32, is_lost: bool) -> u32 {
    recent - recent.div_ceil(RECENT_SHARE) + if is_lost { 1024 / RECENT_SHARE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_once() {
        let mut loss = Loss::default();
        let (sequence, _) = loss.sent(0);
        assert!(!loss.answered(sequence + 1, 1), "made up");
        assert!(loss.answered(sequence, 1));
        assert!(!loss.answered(sequence, 1), "replayed");
        assert_eq!(loss.judged(), ProbeCounts { probes: 1, lost: 0 });
    }

    #[test]
    fn misses_are_in_a_row() {
        let mut loss = Loss::default();
        for at in 0..2 {
            loss.sent(at);
        }
        assert_eq!((loss.give_up(1), loss.misses()), (2, 2));
        let (sequence, _) = loss.sent(2);
        assert!(loss.answered(sequence, 1));
        assert_eq!((loss.misses(), loss.answers()), (0, 1));
    }

    /// Sends a probe per time unit. Probes for which `there` is false do not arrive, nor do the answers to
    /// those for which `back` is false.
    fn reported(
        probes: u32,
        there: impl Fn(u32) -> bool,
        back: impl Fn(u32) -> bool,
        mut see: impl FnMut(u32, &Loss),
    ) -> Loss {
        let (mut loss, mut arrived) = (Loss::default(), 0);
        for at in 0..probes {
            let (sequence, _) = loss.sent(u64::from(at));
            arrived += u32::from(there(at));
            if there(at) && back(at) {
                assert!(loss.answered(sequence, arrived));
            } else {
                loss.give_up(u64::from(at));
            }
            see(at, &loss);
        }
        loss
    }

    #[test]
    fn one_percent_is_judged_over_hundreds() {
        let lossy = |at| at % 50 != 49;
        reported(JUDGED_OVER + 1, lossy, |_| true, |at, loss| assert_eq!(loss.is_grey(0), at == JUDGED_OVER));
        let lossy = |at: u32| at % 50 != 49 || at >= JUDGED_OVER;
        assert!(reported(4 * JUDGED_OVER, lossy, |_| true, |_, _| ()).is_clean(0));
    }

    #[test]
    fn what_is_lost_on_the_way_back_is_not_lost_on_the_path() {
        let loss = reported(1000, |_| true, |at| at % 4 != 3, |_, loss| assert!(!loss.is_grey(0)));
        assert_eq!(
            (loss.judged().lost, loss.misses(), loss.recent()),
            (1, 1, 0),
            "the last one is still unknown"
        );
        assert!(loss.is_clean(0) && loss.risk() > 0);
        assert!(reported(1000, |at| at % 50 != 0, |at| at % 4 != 3, |_, _| ()).is_grey(0));
    }

    #[test]
    fn a_node_that_counts_anew_and_answers_that_overtake_are_no_losses() {
        let mut loss = Loss::default();
        let mut arrived = 0;
        for at in 0..1000 {
            let (one, _) = loss.sent(at);
            let (other, _) = loss.sent(at);
            arrived = if at == 500 { 2 } else { arrived + 2 };
            assert!(loss.answered(other, arrived) && loss.answered(one, arrived - 1));
        }
        assert!(loss.is_clean(0), "{:?}", loss.judged());
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
