//! When the frames of a recording arrive: at their recorded times, as far as these are plausible.
//!
//! A recording may have odd times: a bit was flipped, the clock of the machine was set, files were joined in
//! the wrong order. A frame that is clearly out of order, while the frames around it are not, arrives
//! together with the one before it. If the recording's time jumps back and continues from there, the
//! intervals between frames are kept. A single odd time thus neither delays the frames after it nor makes
//! them arrive all at once.

/// The time, in nanoseconds, by which frames may be out of order, because every queue of a NIC has its own
/// buffer.
const DISORDER_NS: u64 = 1_000_000_000;

/// A silence longer than this is worth a remark: it may be real, or the first frame may have an odd time.
const SILENCE_NS: u64 = 24 * 3_600 * 1_000_000_000;

/// The latest virtual time, 146 years, so that timers set from any time can be reached.
const END_NS: u64 = 1 << 62;

/// The clock of one recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// The recording's time at virtual time 0.
    base_ns: u64,
    /// The offset added to the recording's times since it went back.
    shift_ns: u64,
    /// The recording's time at the latest frame that was not odd.
    last_ns: Option<u64>,
    arrival_ns: u64,
    odd: u64,
    back: u64,
    silences: u64,
    silent_ns: u64,
}

/// Returns true if `time` is clearly before `other`.
fn before(time: u64, other: u64) -> bool {
    time.saturating_add(DISORDER_NS) < other
}

/// Returns the recording's time at the first frame. If the next frame is clearly earlier, either the clock
/// was set or the first time is odd.
pub(super) fn first_ns(time_ns: u64, next_ns: Option<u64>) -> u64 {
    next_ns.filter(|next_ns| before(*next_ns, time_ns)).unwrap_or(time_ns)
}

impl Clock {
    pub(super) fn new(base_ns: u64) -> Clock {
        Clock { base_ns, ..Clock::default() }
    }

    /// Returns when the frame recorded at `time_ns` arrives, given the time of the next frame. Never before
    /// the previous frame.
    pub(super) fn arrival_ns(&mut self, time_ns: u64, next_ns: Option<u64>) -> u64 {
        let first = first_ns(time_ns, next_ns);
        let last = *self.last_ns.get_or_insert(first);
        let is_peak = |next| before(last, time_ns) && before(next, time_ns);
        let is_dip = before(time_ns, last);
        if next_ns.is_some_and(|next| !before(next, last) && (is_peak(next) || is_dip)) {
            self.odd += 1;
            return self.arrival_ns;
        }
        if before(time_ns, last) {
            self.back += 1;
            self.shift_ns = self.shift_ns.saturating_add(last - time_ns);
        }
        let gap_ns = time_ns.saturating_sub(last);
        if gap_ns > SILENCE_NS {
            self.silences += 1;
            self.silent_ns = self.silent_ns.saturating_add(gap_ns);
        }
        self.last_ns = Some(time_ns);
        let arrival_ns = time_ns.saturating_add(self.shift_ns).saturating_sub(self.base_ns).min(END_NS);
        self.arrival_ns = self.arrival_ns.max(arrival_ns);
        self.arrival_ns
    }

    /// Returns remarks about the odd times.
    pub(super) fn remarks(&self) -> Vec<String> {
        let Clock { odd, back, silences, .. } = self;
        let days = self.silent_ns / SILENCE_NS;
        let all = [
            (
                self.odd,
                format!(
                    "frames with implausible timestamps, delivered together with the frame \
                before: {odd}"
                ),
            ),
            (self.back, format!("times that its clock went backwards, and continued from there: {back}")),
            (self.silences, format!("gaps of more than a day: {silences}, {days} days in total")),
        ];
        all.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const YEAR: u64 = 365 * SILENCE_NS;

    /// Returns when frames recorded at these times arrive, and the remarks.
    fn arrivals(times: &[u64]) -> (Vec<u64>, Vec<String>) {
        let next = |at: usize| times.get(at + 1).copied();
        let mut clock = Clock::new(first_ns(times[0], next(0)));
        let all = times.iter().enumerate().map(|(at, time)| clock.arrival_ns(*time, next(at))).collect();
        (all, clock.remarks())
    }

    #[test]
    fn plain_times_are_kept_and_disorder_of_queues_waits() {
        let start = 50 * YEAR;
        let (all, remarks) = arrivals(&[start, start + 5, start + 3, start + 3 * S, start + 4 * S]);
        assert_eq!((all, remarks), (vec![0, 5, 5, 3 * S, 4 * S], vec![]));
    }

    #[test]
    fn one_odd_time_changes_no_other() {
        let start = 50 * YEAR;
        for odd in [0, start - 60 * S, start + 60 * S, 88 * YEAR, u64::MAX] {
            let times = [start, start + S, odd, start + 3 * S, start + 4 * S];
            let (all, remarks) = arrivals(&times);
            assert_eq!(all, [0, S, S, 3 * S, 4 * S], "{odd}");
            assert_eq!(
                remarks,
                ["frames with implausible timestamps, delivered together with the frame \
                before: 1"]
            );
        }
    }

    #[test]
    fn a_first_time_far_ahead_is_not_believed() {
        let (all, _) = arrivals(&[88 * YEAR, 50 * YEAR, 50 * YEAR + 2 * S]);
        assert_eq!(all, [0, 0, 2 * S]);
    }

    #[test]
    fn time_that_went_back_is_counted_on() {
        let (all, remarks) = arrivals(&[100 * S, 103 * S, 10 * S, 12 * S, 13 * S]);
        assert_eq!(all, [0, 3 * S, 3 * S, 5 * S, 6 * S]);
        assert_eq!(remarks, ["times that its clock went backwards, and continued from there: 1"]);
    }

    #[test]
    fn a_silence_is_believed_and_remarked() {
        let (all, remarks) = arrivals(&[S, 54 * YEAR + S]);
        assert_eq!((all, remarks.len()), (vec![0, 54 * YEAR], 1));
    }

    #[test]
    fn times_end_before_timers_overflow() {
        let mut clock = Clock::new(0);
        let times = (0..4000).map(|n: u64| if n.is_multiple_of(3) { n } else { u64::MAX / 2 + n });
        assert!(times.map(|time| clock.arrival_ns(time, None)).is_sorted());
        assert_eq!(clock.arrival_ns(u64::MAX, None), END_NS);
    }
}
