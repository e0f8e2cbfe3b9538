//! The measurement of a recording: its frames in the order in which they were recorded, interval by interval.
//!
//! Time is the recorded time of the frames. A frame from before the current interval counts in the current
//! one, because an interval that was reported does not change. Memory is bounded however long a recording
//! lasts: the series has at most [`STEPS`] steps, which become longer, and if there are many intervals, the
//! later ones are reported without lists ([`DETAILED`]), and then not at all ([`INTERVALS`]).

use crate::export::Given;
use crate::export::flows::UnreportedFlows;
use crate::frames::Frames;
use crate::link::Link;
use crate::record::FlowRecord;
use crate::report::Report;
use crate::settings::Settings;
use crate::summary::Summary;
use serde::Serialize;
use weir_sketch::Seed;

/// The number of intervals that are reported with lists.
pub const DETAILED: usize = 1000;

/// The number of intervals that are reported at all.
pub const INTERVALS: usize = 50_000;

/// The maximum number of steps in the series.
pub const STEPS: usize = 600;

/// The initial length of a step: a millisecond.
const FIRST_STEP_NS: u64 = 1_000_000;

/// Packets and bytes over time, exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Series {
    /// When the first step begins, in ns.
    pub start_ns: u64,
    /// How long a step is, in ns.
    pub step_ns: u64,
    /// Packets and bytes in each step.
    pub steps: Vec<[u64; 2]>,
    /// The step of the last packet: its number, and when it begins and ends.
    #[serde(skip)]
    current: (usize, [u64; 2]),
}

impl Default for Series {
    fn default() -> Series {
        Series { start_ns: 0, step_ns: FIRST_STEP_NS, steps: Vec::new(), current: (0, [0; 2]) }
    }
}

impl Series {
    /// Counts a packet. A packet from before the first step counts in that step.
    #[inline]
    fn add(&mut self, time_ns: u64, bytes: u64) {
        let (_, [from_ns, to_ns]) = self.current;
        if !(from_ns..to_ns).contains(&time_ns) {
            self.turn(time_ns);
        }
        let step = &mut self.steps[self.current.0];
        step[0] += 1;
        step[1] += bytes;
    }

    /// Finds the step that contains a time.
    fn turn(&mut self, time_ns: u64) {
        if self.steps.is_empty() {
            self.start_ns = time_ns;
        }
        let since_ns = time_ns.saturating_sub(self.start_ns);
        while since_ns / self.step_ns >= STEPS as u64 {
            self.double();
        }
        let step = since_ns / self.step_ns;
        let from_ns = self.start_ns.saturating_add(step.saturating_mul(self.step_ns));
        self.current = (step as usize, [from_ns, from_ns.saturating_add(self.step_ns)]);
        if step as usize >= self.steps.len() {
            self.steps.resize(step as usize + 1, [0; 2]);
        }
    }

    #[cold]
    fn double(&mut self) {
        let pair = |pair: &[[u64; 2]]| {
            pair.iter().fold([0; 2], |sum: [u64; 2], one| [sum[0] + one[0], sum[1] + one[1]])
        };
        self.steps = self.steps.chunks(2).map(pair).collect();
        self.step_ns = self.step_ns.saturating_mul(2);
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// The report on the whole recording.
    #[serde(flatten)]
    pub all: Report,
    /// The reports of the intervals.
    pub intervals: Vec<Report>,
    /// Intervals that are missing from the list because there were too many.
    pub intervals_left_out: u64,
    /// Packets and bytes over time; `None` for merged sketches, which do not contain it.
    pub series: Option<Series>,
}

impl Measured {
    /// Limits each list to `rows` rows.
    pub fn truncate(&mut self, rows: usize) {
        let all = &mut self.all;
        all.top.truncate(rows);
        all.answers.0.iter_mut().flatten().for_each(|answer| answer.truncate(rows));
    }
}

/// The measurement of a recording, or of several consecutive ones.
pub struct Recording<'a> {
    summary: Summary,
    frames: Frames,
    /// Flows, and the callback they are reported to.
    flows: Option<(UnreportedFlows, &'a mut dyn FnMut(Given))>,
    interval_ns: Option<u64>,
    /// The current interval.
    start_ns: Option<u64>,
    end_ns: u64,
    intervals: Vec<Report>,
    left_out: u64,
    series: Series,
}

impl<'a> Recording<'a> {
    /// Begins a measurement. Without an interval length, there are no intervals.
    #[must_use]
    pub fn new(settings: &Settings, seed: Seed, interval_ns: Option<u64>) -> Recording<'a> {
        Recording {
            summary: Summary::new(settings, seed),
            frames: Frames::through(settings.inside),
            flows: None,
            interval_ns: interval_ns.map(|ns| ns.max(1)),
            start_ns: None,
            end_ns: u64::MAX,
            intervals: Vec::new(),
            left_out: 0,
            series: Series::default(),
        }
    }

    /// Also reports every flow to `give`, with all its packets; [`UnreportedFlows`] says when.
    #[must_use]
    pub fn giving(self, give: &'a mut dyn FnMut(Given)) -> Recording<'a> {
        Recording { flows: Some((UnreportedFlows::default(), give)), ..self }
    }

    /// Counts a frame: when it was recorded, on which link type, the recorded part, and its bytes on the
    /// wire.
    #[inline]
    pub fn add(&mut self, time_ns: u64, link: Link, bytes: &[u8], length: u32) {
        if time_ns >= self.end_ns || self.start_ns.is_none() {
            self.turn(time_ns);
        }
        let length_u64 = u64::from(length);
        self.series.add(time_ns, length_u64);
        match self.frames.flow_on(link, bytes, length) {
            Ok((key, observed)) => {
                let (first_ns, last_ns) = (time_ns, time_ns);
                let record = FlowRecord { key, packets: 1, bytes: length_u64, first_ns, last_ns, observed };
                if let Some((flows, give)) = &mut self.flows {
                    flows.add(&record, give);
                }
                self.summary.add(&record);
            }
            Err(reason) => self.summary.add_unflowed(reason.word(), 1, length_u64, time_ns),
        }
    }

    /// Counts packets that a reader has skipped, of which only the number and bytes are known.
    pub fn add_skipped(&mut self, reason: String, packets: u64, bytes: u64) {
        self.summary.add_skipped(reason, packets, bytes);
    }

    /// Ends the interval before a time, and begins the one that contains it: empty intervals in between are
    /// left out.
    #[cold]
    fn turn(&mut self, time_ns: u64) {
        let Some(interval_ns) = self.interval_ns else {
            self.start_ns = Some(time_ns);
            return;
        };
        let start_ns = match self.start_ns {
            Some(start_ns) => {
                self.close(start_ns);
                start_ns + (time_ns - start_ns) / interval_ns * interval_ns
            }
            None => time_ns,
        };
        self.start_ns = Some(start_ns);
        self.end_ns = start_ns.saturating_add(interval_ns);
    }

    fn close(&mut self, start_ns: u64) {
        let mut report = self.summary.close(start_ns, self.end_ns);
        match self.intervals.len() {
            0..DETAILED => (),
            DETAILED..INTERVALS => report = report.in_short(),
            _ => {
                self.left_out += 1;
                return;
            }
        }
        self.intervals.push(report);
    }

    /// Ends the measurement: returns the report, and the state that can be saved and merged.
    #[must_use]
    pub fn end(mut self) -> (Measured, Summary) {
        if let (Some(_), Some(start_ns)) = (self.interval_ns, self.start_ns) {
            self.close(start_ns);
        }
        if let Some((flows, give)) = self.flows {
            flows.end(give);
        }
        let measured = Measured {
            all: self.summary.report(),
            intervals: self.intervals,
            intervals_left_out: self.left_out,
            series: Some(self.series),
        };
        (measured, self.summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::craft::Recipe;

    fn frame(sport: u16) -> Vec<u8> {
        format!("src=10.0.0.1 proto=udp sport={sport}").parse::<Recipe>().unwrap().build()
    }

    fn measured(interval_ns: u64, times_ns: &[u64]) -> Measured {
        let mut recording = Recording::new(&Settings::default(), Seed::new([1, 2]), Some(interval_ns));
        for time_ns in times_ns {
            let frame = frame(1000);
            recording.add(*time_ns, Link::Ethernet, &frame, frame.len() as u32);
        }
        recording.end().0
    }

    fn spans(measured: &Measured) -> Vec<(u64, u64, u64)> {
        measured.intervals.iter().map(|one| (one.start_ns, one.end_ns, one.packets)).collect()
    }

    #[test]
    fn intervals_begin_with_the_first_frame_and_empty_ones_are_left_out() {
        let measured = measured(10, &[105, 106, 114, 115, 199, 150, 200]);
        assert_eq!(spans(&measured), [(105, 115, 3), (115, 125, 1), (195, 205, 3)]);
        assert_eq!((measured.all.packets, measured.all.backwards), (7, 1));
        assert_eq!((measured.all.start_ns, measured.all.end_ns), (105, 200));
        let steps = measured.series.unwrap().steps;
        assert_eq!(steps.iter().map(|[packets, _]| packets).sum::<u64>(), 7);
    }

    #[test]
    fn nothing_has_no_interval() {
        let nothing = measured(10, &[]);
        assert_eq!((nothing.all.packets, nothing.intervals.len(), nothing.all.start_ns), (0, 0, 0));
    }

    #[test]
    fn a_jump_of_centuries_costs_nothing() {
        let measured = measured(1, &[5, u64::MAX - 3, 7, u64::MAX]);
        assert_eq!(measured.all.packets, 4);
        assert!(measured.intervals.len() <= 3 && measured.series.unwrap().steps.len() <= STEPS);
    }

    #[test]
    fn a_series_keeps_every_packet_when_its_steps_double() {
        let mut series = Series::default();
        for number in 0..5000_u64 {
            series.add(number * number * 10_000, number);
        }
        assert!(series.steps.len() <= STEPS && series.step_ns > FIRST_STEP_NS);
        let sum = series.steps.iter().fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        assert_eq!(sum, [5000, 4999 * 2500]);
    }

    #[test]
    fn of_many_intervals_later_ones_are_told_in_short() {
        let times: Vec<u64> = (0..DETAILED as u64 + 5).map(|number| number * 10).collect();
        let measured = measured(10, &times);
        assert_eq!(measured.intervals.len(), DETAILED + 5);
        assert!(!measured.intervals[DETAILED - 1].top.is_empty());
        let short = &measured.intervals[DETAILED];
        assert!(short.top.is_empty() && short.answers.list("top_flows").is_none() && short.packets == 1);
    }
}
