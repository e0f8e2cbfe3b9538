//! Measurements: deltas in, intervals out.

use super::names::Named;
use super::*;
use crate::{MeasurePublisher, Settings};
use weir_engine::delta::{Belonging, DeltaReason};
use weir_packet::FlowKey;

/// A measurement of pipe `f` in intervals of 100 ms.
fn wanted(board: &MeasurePublisher) -> Measurement {
    Measurement {
        name: "m".into(),
        pipes: vec!["f".into()],
        overlay: None,
        interval_ms: 100,
        settings: Settings { memory: 8 << 20, keys: 1024, ..Settings::default() },
        seed: None,
        solution: None,
        ipfix: None,
        parquet: None,
        board: board.clone(),
    }
}

fn key(n: u16) -> FlowKey {
    FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (n, 53), None)
}

/// Times, with 1970 at the workers' start.
fn at(now_ms: u64) -> Times {
    Times { now_ms, epoch_ms: 0 }
}

struct Rig {
    measuring: Measuring,
    board: MeasurePublisher,
    pipe: Arc<str>,
}

impl Rig {
    fn new(workers: usize) -> Rig {
        let board = MeasurePublisher::default();
        Rig { measuring: Measuring::new(wanted(&board), workers), board, pipe: "f".into() }
    }

    fn give(&mut self, worker: u8, flow: u16, packets: u64, times: (u32, u32)) {
        let of = Belonging { generation: 1, pipe: 0, target: 0 };
        let counts = (packets, 100 * packets);
        let mut delta = FlowDelta::new(key(flow), counts, times, of, DeltaReason::Interval);
        delta.source = worker;
        let named = Named { pipe: &self.pipe, target: None, ingress: None };
        self.measuring.take(&delta, &named, &at(u64::from(times.1)));
    }

    fn swept(&mut self, worker: u8, start_ms: u32) {
        let of = Belonging { generation: 1, pipe: 0, target: 0 };
        let mut delta = FlowDelta::swept(start_ms, of);
        delta.source = worker;
        let named = Named { pipe: &self.pipe, target: None, ingress: None };
        self.measuring.take(&delta, &named, &at(u64::from(start_ms)));
    }

    fn swept_with(&mut self, worker: u8, start_ms: u32, unflowed: [u32; 9]) {
        let of = Belonging { generation: 1, pipe: 0, target: 0 };
        let mut delta = FlowDelta::swept(start_ms, of).with_unflowed(unflowed);
        delta.source = worker;
        let named = Named { pipe: &self.pipe, target: None, ingress: None };
        self.measuring.take(&delta, &named, &at(u64::from(start_ms)));
    }

    fn intervals(&mut self) -> Vec<(u64, u64)> {
        self.measuring.turn(&at(0));
        intervals(&self.board)
    }
}

/// The start and the packets of each completed interval.
fn intervals(board: &MeasurePublisher) -> Vec<(u64, u64)> {
    board.look().history.iter().map(|sum| (sum.start_ns / 1_000_000, sum.packets)).collect()
}

#[test]
fn an_interval_ends_when_all_workers_have_ended_it() {
    let mut rig = Rig::new(2);
    rig.give(0, 1, 5, (10, 90));
    rig.swept(0, 100);
    // The first worker moves on; its deltas wait.
    rig.give(0, 1, 7, (110, 120));
    rig.give(1, 2, 3, (20, 99));
    assert_eq!(rig.intervals(), []);
    rig.swept(1, 100);
    assert_eq!(rig.intervals(), [(0, 8)]);
    rig.swept(0, 200);
    rig.swept(1, 200);
    assert_eq!(rig.intervals(), [(0, 8), (100, 7)]);
    let snapshot = rig.board.look().clone();
    assert_eq!(
        (snapshot.records, snapshot.late, snapshot.early, snapshot.spanning),
        ([3, 15, 1500], 0, 0, 0)
    );
    assert_eq!(snapshot.interval.unwrap().top[0].packets, 7);
}

#[test]
fn packets_in_no_flow_are_in_their_interval_by_reason() {
    let mut rig = Rig::new(2);
    rig.give(0, 1, 5, (10, 90));
    rig.swept_with(0, 100, [3, 0, 0, 0, 0, 2, 0, 0, 0]);
    // The first worker is ahead.
    rig.swept_with(0, 200, [7, 0, 0, 0, 0, 0, 0, 0, 0]);
    rig.swept_with(1, 100, [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.intervals(), [(0, 11)]);
    let report = rig.board.look().interval.clone().unwrap();
    let unflowed: Vec<_> = report.unflowed.iter().map(|one| (one.reason.as_str(), one.packets)).collect();
    assert_eq!(unflowed, [("full", 2), ("no_key", 4)]);
    rig.swept(1, 200);
    assert_eq!(rig.intervals(), [(0, 11), (100, 7)]);
    let snapshot = rig.board.look().clone();
    assert_eq!((snapshot.late, snapshot.early), (0, 0));
}

#[test]
fn what_comes_late_or_is_of_two_intervals_is_counted_and_said() {
    let mut rig = Rig::new(1);
    rig.give(0, 1, 1, (10, 10));
    rig.swept(0, 100);
    rig.give(0, 2, 4, (50, 60));
    rig.give(0, 3, 6, (90, 110));
    rig.swept(0, 200);
    assert_eq!(rig.intervals(), [(0, 1), (100, 10)]);
    let snapshot = rig.board.look().clone();
    assert_eq!((snapshot.late, snapshot.spanning), (4, 6));
}

#[test]
fn intervals_without_packets_are_left_out() {
    let mut rig = Rig::new(1);
    rig.give(0, 1, 1, (10, 10));
    rig.swept(0, 100_000);
    rig.give(0, 1, 2, (100_050, 100_050));
    rig.swept(0, 100_100);
    assert_eq!(rig.intervals(), [(0, 1), (100_000, 2)]);
}

#[test]
fn what_is_left_at_the_end_is_the_last_interval() {
    let mut rig = Rig::new(2);
    rig.give(0, 1, 1, (10, 10));
    rig.give(0, 1, 2, (210, 210));
    let Rig { measuring, board, .. } = rig;
    drop(measuring.finish(&at(220)));
    assert_eq!(intervals(&board), [(0, 1), (200, 2)]);
}

#[test]
fn times_that_wrapped_are_of_the_last_weeks() {
    let now_ms = (1 << 32) + 50;
    assert_eq!(at(now_ms).full_ms(40), now_ms - 10);
    assert_eq!(at(now_ms).full_ms(u32::MAX), now_ms - 51);
    assert_eq!(at(now_ms).full_ms(60), now_ms + 10);
    assert_eq!(at(5).full_ms(3), 3);
}

#[test]
fn a_reload_goes_on_with_the_same_measurement_and_begins_another_with_the_same_totals() {
    let mut rig = Rig::new(1);
    rig.give(0, 1, 5, (10, 10));
    let board = MeasurePublisher::default();
    let Rig { measuring, pipe, .. } = rig;
    let mut rig = Rig { measuring: measuring.succeed(wanted(&board), 1), board: board.clone(), pipe };
    rig.swept(0, 100);
    assert_eq!(rig.intervals(), [(0, 5)]);
    let Rig { measuring, pipe, .. } = rig;
    let other = Measurement { interval_ms: 1_000, ..wanted(&board) };
    let mut rig = Rig { measuring: measuring.succeed(other, 1), board, pipe };
    rig.give(0, 1, 2, (110, 110));
    assert_eq!(rig.intervals(), [(0, 5)]);
    assert_eq!(rig.board.look().records, [2, 7, 700]);
}

#[test]
fn complete_intervals_are_kept_for_other_nodes_if_there_is_a_seed() {
    let seed = Some(crate::Seed::new([1, 2]));
    let mut rig = Rig::new(1);
    rig.measuring = Measuring::new(Measurement { seed, ..wanted(&rig.board) }, 1);
    let interval = |rig: &mut Rig, at_ms: u32| {
        rig.give(0, 1, 5, (at_ms + 10, at_ms + 20));
        rig.swept(0, at_ms + 100);
    };
    (0..2 + crate::KEPT as u32).for_each(|n| interval(&mut rig, 100 * n));
    rig.give(0, 2, 4, (50, 60));
    interval(&mut rig, 500);
    rig.measuring.turn(&at(0));
    let kept: Vec<_> = rig.board.look().kept.iter().cloned().collect();
    let states: Vec<_> = kept.iter().map(|one| (one.state.start_ns / 1_000_000, one.state.packets)).collect();
    assert_eq!(states, [(300, 5), (400, 5), (500, 9)]);
    assert_eq!((kept[1].state.late_packets, kept[2].state.late_packets), (0, 4));
    let mut read = crate::Summary::read(&kept[2].file[..]).unwrap();
    assert_eq!(read.report().packets, 9);
    // A measurement with another seed does not offer what was counted with this one.
    let board = MeasurePublisher::default();
    let other = Measurement { seed: Some(crate::Seed::new([1, 3])), ..wanted(&board) };
    let Rig { measuring, pipe, .. } = rig;
    let mut rig = Rig { measuring: measuring.succeed(other, 1), board: board.clone(), pipe };
    rig.measuring.turn(&at(0));
    assert!(board.look().kept.is_empty());
    let mut rig = Rig::new(1);
    interval(&mut rig, 0);
    rig.measuring.turn(&at(0));
    assert!(rig.board.look().kept.is_empty(), "without a seed");
}

#[test]
fn the_clock_began_at_a_full_hour_unless_it_was_set_since() {
    let hour = std::time::Duration::from_secs(3600);
    let wall = |ms: u64| std::time::UNIX_EPOCH + 5 * hour + std::time::Duration::from_millis(ms);
    // The clocks are read one after the other.
    let times = Times::default().at(70_000_000_000, wall(70_003));
    assert_eq!((times.now_ms, times.epoch_ms), (70_000, 5 * 3_600_000));
    assert_eq!(times.at(71_000_000_000, wall(71_060)).epoch_ms, 5 * 3_600_000);
    assert_eq!(times.at(71_000_000_000, wall(73_500)).epoch_ms, 5 * 3_600_000 + 2_500);
}

#[test]
fn parts_are_given_up_in_the_stated_order_and_every_answer_says_so() {
    let mut rig = Rig::new(1);
    rig.give(0, 1, 5, (10, 10));
    let (fits, does_not_fit) = wanted(&rig.board).settings.fit();
    assert_eq!(rig.measuring.shed().unwrap().1, fits[0].word());
    assert_eq!(rig.measuring.shed().unwrap().1, fits[1].word());
    rig.swept(0, 100);
    rig.measuring.turn(&at(0));
    let snapshot = rig.board.look().clone();
    let given_up = [&does_not_fit[..], &fits[..2]].concat();
    assert_eq!(snapshot.shed, given_up);
    assert_eq!(snapshot.interval.unwrap().shed, given_up);
}
