//! Counters and meters: sentences C1 to C6 of `docs/reference/pipes.md`.

use crate::setup::*;
use weir_oracle::Interpreter;
use weir_oracle::trace::Color;
use weir_packet::{DropReason, Field, FlowKey};
use weir_program::change::Change;
use weir_program::check::{FindingKind, check};
use weir_program::snapshot::Count;
use weir_program::{
    CounterId, Entry, EntryMatch, Learn, MeterConfig, MeterId, MeterSecond, MeterUnit, Operation, Pipe,
    PipeId, PipeKind, PortId, Program, SharedUse,
};

const TCP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=80";

/// Committed and excess burst of one packet each, refilled at ten a second.
fn two_packets() -> MeterConfig {
    let second = MeterSecond::Excess { ebs: 1 };
    MeterConfig { unit: MeterUnit::Packets, cir: 10, cbs: 1, second, colour_aware: false }
}

fn metered(drop_red: bool) -> Pipe {
    all().meter(MeterId(0)).drop_red(drop_red)
}

/// The colours of packets that arrive at these times.
fn colors(program: &Program, times_ns: &[u64]) -> Vec<Color> {
    let mut interpreter = start(program);
    let mut color = |now_ns: &u64| {
        let walk = interpreter.walk(PortId(0), &frame(TCP), 128, *now_ns);
        walk.trace.last().and_then(|step| step.monitor.meter.as_ref()).expect("a meter").after
    };
    times_ns.iter().map(&mut color).collect()
}

#[test]
fn c1_entries_count_bytes_as_they_were_before_their_action_and_pipes_their_misses() {
    let push = Operation::PushVlan {
        tpid: 0x8100,
        vid: weir_program::Value::Const(5),
        pcp: weir_program::Value::Const(0),
    };
    let pipes = vec![act(vec![push]).forward(PipeId(1)), only(Field::VlanVid, 6, 0xfff)];
    let mut interpreter = start(&program(pipes));
    let bytes = frame(TCP);
    interpreter.walk(PortId(0), &bytes, 128, 0);
    let length = bytes.len() as u64;
    assert_eq!(hits(&interpreter, 0, 0), Count { packets: 1, bytes: length });
    assert_eq!(interpreter.snapshot().pipes[1].misses, Count { packets: 1, bytes: length + 4 });
}

#[test]
fn c2_entries_of_any_pipes_share_a_counter() {
    let first = all().counter(CounterId(0)).forward(PipeId(1));
    let each = Entry::default().counter(CounterId(0));
    let second = pipe(PipeKind::Basic).counter(SharedUse::PerEntry).entry(each);
    let mut interpreter = start(&program(vec![first, second]));
    let bytes = frame(TCP);
    interpreter.walk(PortId(0), &bytes, 128, 0);
    let twice = Count { packets: 2, bytes: 2 * bytes.len() as u64 };
    assert_eq!(interpreter.snapshot().counters, [twice]);
}

#[test]
fn c2_a_shared_counter_does_not_count_what_the_action_drops() {
    let one = act(vec![Operation::DecrementTtl]).counter(CounterId(0));
    let mut interpreter = start(&program(vec![one]));
    let walk = |interpreter: &mut BesideKernel, ttl: u8| {
        let bytes = frame(&format!("src=10.0.0.1 dst=10.0.0.2 proto=udp ttl={ttl}"));
        (interpreter.walk(PortId(0), &bytes, 128, 0), bytes.len() as u64)
    };
    let (lost, _) = walk(&mut interpreter, 1);
    assert_eq!(lost.verdict, dropped(DropReason::TtlExpired));
    assert!(lost.trace[0].monitor.counter.is_none(), "explain does not report the count");
    let (_, bytes) = walk(&mut interpreter, 2);
    assert_eq!(interpreter.snapshot().counters, [Count { packets: 1, bytes }]);
    assert_eq!(hits(&interpreter, 0, 0).packets, 2, "the entry was hit twice");
}

#[test]
fn c3_a_single_rate_meter_runs_over_into_its_excess_bucket() {
    use Color::{Green, Red, Yellow};
    let program = with_meter(program(vec![metered(false)]), two_packets());
    assert_eq!(colors(&program, &[0, 0, 0]), [Green, Yellow, Red]);
    // A token takes 100 ms: a nanosecond less does not earn it, but that time is not lost either.
    assert_eq!(
        colors(&program, &[0, 0, 99_999_999, 100_000_000, 100_000_000]),
        [Green, Yellow, Red, Green, Red]
    );
    assert_eq!(colors(&program, &[0, 0, 50 * MS, 100 * MS, 200 * MS]), [Green, Yellow, Red, Green, Green]);
    // After a second both buckets are full again, but not overfull.
    assert_eq!(
        colors(&program, &[0, 0, 1000 * MS, 1000 * MS, 1000 * MS]),
        [Green, Yellow, Green, Yellow, Red]
    );
}

#[test]
fn c3_a_two_rate_meter_is_red_above_the_peak() {
    use Color::{Green, Red, Yellow};
    let length = frame(TCP).len() as u64;
    let second = MeterSecond::Peak { pir: 10 * length, pbs: 2 * length };
    let config =
        MeterConfig { unit: MeterUnit::Bytes, cir: length, cbs: length, second, colour_aware: false };
    let program = with_meter(program(vec![metered(false)]), config);
    assert_eq!(colors(&program, &[0, 0, 0, 100 * MS, 100 * MS]), [Green, Yellow, Red, Yellow, Red]);
    assert_eq!(colors(&program, &[0, 0, 1000 * MS]), [Green, Yellow, Green]);
}

#[test]
fn c3_an_aware_meter_never_makes_a_packet_better() {
    use Color::{Red, Yellow};
    let plenty =
        MeterConfig { cbs: 100, second: MeterSecond::Excess { ebs: 1 }, colour_aware: true, ..two_packets() };
    let first = MeterConfig { cbs: 1, second: MeterSecond::Excess { ebs: 5 }, ..two_packets() };
    let both = with_meter(
        with_meter(program(vec![metered(false).forward(PipeId(1)), all().meter(MeterId(1))]), first),
        plenty,
    );
    assert_eq!(
        colors(&both, &[0, 0, 0]),
        [Color::Green, Yellow, Red],
        "yellow draws only on the excess bucket"
    );
}

#[test]
fn c3_the_color_can_be_matched_and_is_green_before_any_meter() {
    assert_eq!(meets(only(Field::MeterColor, 0, 3), &frame(TCP)), HIT);
    let pipes = vec![metered(false).forward(PipeId(1)), only(Field::MeterColor, 2, 3)];
    let mut interpreter = start(&with_meter(program(pipes), two_packets()));
    let verdicts: Vec<_> = (0..3).map(|_| interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict).collect();
    assert_eq!(verdicts, [MISS, MISS, HIT]);
}

#[test]
fn c3_red_drop_drops_after_counting() {
    let config = MeterConfig { second: MeterSecond::Excess { ebs: 0 }, ..two_packets() };
    let mut interpreter = start(&with_meter(program(vec![metered(true)]), config));
    let verdicts: Vec<_> = (0..2).map(|_| interpreter.walk(PortId(0), &frame(TCP), 128, 0).verdict).collect();
    assert_eq!(verdicts, [HIT, dropped(DropReason::Metered)]);
    assert_eq!(hits(&interpreter, 0, 0).packets, 2);
}

#[test]
fn c4_the_check_refuses_a_meter_of_two_pipes() {
    let program = with_meter(program(vec![metered(false).forward(PipeId(1)), metered(false)]), two_packets());
    assert!(check(&program).iter().any(|one| matches!(one.kind, FindingKind::MeterTwice { .. })));
}

fn live(interpreter: &Interpreter) -> usize {
    interpreter.snapshot().pipes[0].entries.len()
}

#[test]
fn c6_run_time_entries_go_when_idle_for_longer_and_configured_ones_stay() {
    let mut interpreter = start(&program(vec![exact(Field::L4Dport, &[443]).idle_timeout_ns(10 * MS)]));
    let entry = Entry::on(80).run_time();
    interpreter.apply(&Change::Add { pipe: PipeId(0), entry }).expect("there is room");
    interpreter.age(10 * MS);
    assert_eq!(live(&interpreter), 2, "10 ms is not longer than 10 ms");
    interpreter.walk(PortId(0), &frame(TCP), 128, 10 * MS);
    interpreter.age(20 * MS + 999_999);
    assert_eq!(live(&interpreter), 2, "ages are stored in milliseconds");
    interpreter.age(21 * MS);
    assert_eq!(live(&interpreter), 1);
}

#[test]
fn c6_an_entry_is_as_old_as_its_last_hit_or_its_coming() {
    let mut interpreter = start(&program(vec![exact(Field::L4Dport, &[443]).idle_timeout_ns(10 * MS)]));
    interpreter.walk(PortId(0), &frame(TCP), 128, 100 * MS);
    let entry = Entry::on(81).run_time();
    interpreter.apply(&Change::Add { pipe: PipeId(0), entry }).expect("there is room");
    interpreter.age(110 * MS);
    assert_eq!(live(&interpreter), 2);
    interpreter.age(111 * MS);
    assert_eq!(live(&interpreter), 1);
}

#[test]
fn c6_a_timeout_below_a_millisecond_is_one() {
    let mut interpreter = start(&program(vec![exact(Field::L4Dport, &[]).idle_timeout_ns(1)]));
    let entry = Entry::on(81).run_time();
    interpreter.apply(&Change::Add { pipe: PipeId(0), entry }).expect("there is room");
    interpreter.age(MS);
    assert_eq!(live(&interpreter), 1);
    interpreter.age(2 * MS);
    assert_eq!(live(&interpreter), 0);
}

#[test]
fn c6_idle_flows_go_with_their_counts() {
    let mut interpreter = start(&program(vec![flow(Learn::Default, 4).idle_timeout_ns(5 * MS)]));
    let bytes = frame(TCP);
    interpreter.walk(PortId(0), &bytes, 128, MS);
    interpreter.walk(PortId(0), &bytes, 128, 2 * MS);
    assert_eq!(interpreter.age(7 * MS), []);
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (7, 80), None);
    assert_eq!(interpreter.age(8 * MS), [(key, Count { packets: 2, bytes: 2 * bytes.len() as u64 })]);
    assert_eq!(interpreter.snapshot().pipes[0].flows, []);
}

#[test]
fn c6_a_configured_entry_of_an_idle_flow_begins_anew_and_a_run_time_one_goes() {
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (7, 80), None);
    for run_time in [false, true] {
        let own = Entry { run_time, ..Entry::on(EntryMatch::Flow(key)) };
        let idle = flow(Learn::Nothing, 4).idle_timeout_ns(5 * MS).entry(own);
        let mut interpreter = start(&program(vec![idle]));
        interpreter.walk(PortId(0), &frame(TCP), 128, 0);
        assert_eq!(interpreter.age(6 * MS).len(), 1);
        let pipe = &interpreter.snapshot().pipes[0];
        let stays = usize::from(!run_time);
        assert_eq!((pipe.entries.len(), pipe.flows.len()), (stays, stays));
        assert!(pipe.flows.iter().all(|flow| flow.hits == Count::default() && flow.first_ms == 6));
    }
}
