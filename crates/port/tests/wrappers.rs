//! The ports that wrap another port account for every frame, whatever they do to frames.

mod sink;

use proptest::prelude::*;
use sink::Sink;
use weir_packet::{BATCH, Batch, Bits, Pools, Port, PortStatistics};
use weir_port::pcap::{Reader, Record};
use weir_port::{
    Delay, FaultPort, Faults, MemPort, MemWire, Rates, Recording, Retrace, Taps, TracePort, rewrap,
};

const ALWAYS: u32 = 1_000_000;

fn open(chunks: u32, faults: Faults) -> (Pools, FaultPort, MemWire) {
    let mut pools = Pools::region(chunks);
    let (port, wire) = MemPort::new("p", pools.first().id());
    (pools, FaultPort::new(Box::new(port), faults), wire)
}

fn receive(pools: &mut Pools, port: &mut dyn Port) -> Vec<Vec<u8>> {
    let mut batch = Batch::new();
    port.receive(pools, &mut batch);
    let bytes = batch.frames().iter().map(|frame| frame.bytes().to_vec()).collect();
    Bits(batch.mask()).for_each(|slot| pools.give(batch.take(slot)));
    bytes
}

/// Transmits the frames in one batch, frees refused ones and returns the mask of accepted ones.
fn transmit(pools: &mut Pools, port: &mut dyn Port, frames: &[&[u8]]) -> u64 {
    let mut batch = Batch::new();
    for bytes in frames {
        let mut frame = pools.first().take().unwrap();
        frame.fill(bytes).unwrap();
        batch.push(frame).unwrap();
    }
    let all = batch.mask();
    let accepted = port.transmit(pools, &mut batch, all);
    Bits(all & !accepted).for_each(|slot| pools.give(batch.take(slot)));
    batch.clear();
    port.flush(pools);
    all & !accepted
}

fn popped(wire: &MemWire) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| wire.pop()).collect()
}

fn count(port: &dyn Port, name: &str) -> u64 {
    port.extra_statistics().iter().find(|(there, _)| *there == name).unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn without_faults_nothing_changes() {
    let (mut pools, mut port, wire) = open(64, Faults::default());
    wire.push(b"in");
    assert_eq!(receive(&mut pools, &mut port), [b"in"]);
    assert_eq!(transmit(&mut pools, &mut port, &[b"a", b"b"]), 0);
    assert_eq!(popped(&wire), [b"a", b"b"]);
    assert!(port.has_kernel_path() && port.name() == "p" && port.mode() == "mem");
    wire.end();
    assert!(port.exhausted());
}

#[test]
fn lost_frames_are_lost_before_or_transmitted() {
    let rates = Rates { loss_ppm: ALWAYS, duplication_ppm: ALWAYS, ..Rates::default() };
    let (mut pools, mut port, wire) = open(8, Faults { seed: 1, receive: rates, transmit: rates });
    wire.push(b"in");
    assert!(receive(&mut pools, &mut port).is_empty());
    assert_eq!(transmit(&mut pools, &mut port, &[b"out"]), 0);
    assert!(popped(&wire).is_empty());
    let PortStatistics { received, lost_before, transmitted, held, .. } = port.statistics();
    assert_eq!((received, lost_before, transmitted, held), (0, 1, 1, 0));
    assert_eq!((count(&port, "receive_lost"), count(&port, "transmit_lost")), (1, 1));
    assert_eq!(pools.first().available(), 8);
}

#[test]
fn a_duplicate_follows_its_frame_and_is_not_weirs() {
    let rates = Rates { duplication_ppm: ALWAYS, ..Rates::default() };
    let (mut pools, mut port, wire) = open(3, Faults { seed: 1, receive: rates, transmit: rates });
    wire.push(b"in");
    assert_eq!(receive(&mut pools, &mut port), [b"in", b"in"]);
    // Three chunks: there is one for a duplicate of the first frame only.
    assert_eq!(transmit(&mut pools, &mut port, &[b"a", b"b"]), 0);
    assert_eq!(popped(&wire), [b"a", b"a", b"b"]);
    assert_eq!((port.statistics().received, port.statistics().transmitted), (2, 2));
    assert_eq!((count(&port, "transmit_duplicated"), count(&port, "transmit_unduplicated")), (1, 1));
}

#[test]
fn a_whole_batch_can_be_doubled() {
    let rates = Rates { duplication_ppm: ALWAYS, ..Rates::default() };
    let (mut pools, mut port, wire) = open(256, Faults { seed: 1, receive: rates, transmit: rates });
    let frames: Vec<[u8; 1]> = (0..BATCH as u8).map(|byte| [byte]).collect();
    let frames: Vec<&[u8]> = frames.iter().map(<[u8; 1]>::as_slice).collect();
    frames.iter().for_each(|bytes| wire.push(bytes));
    assert_eq!(transmit(&mut pools, &mut port, &frames), 0);
    let twice: Vec<u8> = (0..BATCH as u8).flat_map(|byte| [byte, byte]).collect();
    assert_eq!(popped(&wire).concat(), twice);
    let arrived = [receive(&mut pools, &mut port), receive(&mut pools, &mut port)].concat();
    assert_eq!(arrived.concat(), twice);
}

#[test]
fn a_delayed_frame_is_held_until_its_time() {
    let rates = Rates { delay_ppm: ALWAYS, delay: Delay::Ns(100), ..Rates::default() };
    let (mut pools, mut port, wire) = open(8, Faults { seed: 1, receive: rates, transmit: rates });
    port.set_time(1000);
    wire.push(b"in");
    wire.end();
    assert!(receive(&mut pools, &mut port).is_empty());
    assert_eq!(transmit(&mut pools, &mut port, &[b"out"]), 0);
    assert_eq!((port.statistics().held, port.statistics().transmitted), (1, 0));
    assert_eq!((port.next_arrival_ns(), port.exhausted()), (Some(1100), false));
    port.set_time(1099);
    port.flush(&mut pools);
    assert!(receive(&mut pools, &mut port).is_empty() && wire.pop().is_none());
    port.set_time(1100);
    port.flush(&mut pools);
    assert_eq!(receive(&mut pools, &mut port), [b"in"]);
    assert_eq!(popped(&wire), [b"out"]);
    assert_eq!((port.statistics().held, port.statistics().transmitted), (0, 1));
    assert_eq!((port.next_arrival_ns(), port.exhausted()), (None, true));
}

#[test]
fn a_reordered_frame_is_overtaken_by_one_whichever_way_batches_are_cut() {
    let rates = Rates { reordering_ppm: 300_000, ..Rates::default() };
    let frames: Vec<[u8; 1]> = (0..40).map(|byte| [byte]).collect();
    let run = |cut: usize| {
        let (mut pools, mut port, wire) = open(128, Faults { seed: 5, receive: rates, transmit: rates });
        for part in frames.chunks(cut) {
            transmit(&mut pools, &mut port, &part.iter().map(<[u8; 1]>::as_slice).collect::<Vec<_>>());
        }
        port.set_time(weir_port::PATIENCE_NS);
        port.flush(&mut pools);
        popped(&wire).concat()
    };
    let order = run(1);
    assert_eq!([run(3), run(40)], [order.clone(), order.clone()]);
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, frames.concat());
    assert_ne!(order, sorted);
}

#[test]
fn damage_is_counted_and_the_seed_decides_it() {
    let rates = Rates { truncation_ppm: 500_000, corruption_ppm: 500_000, ..Rates::default() };
    let run = |seed, transmit_loss_ppm| {
        let transmit = Rates { loss_ppm: transmit_loss_ppm, ..rates };
        let (mut pools, mut port, wire) = open(128, Faults { seed, receive: rates, transmit });
        (0..50u8).for_each(|byte| wire.push(&[byte; 20]));
        transmit_some(&mut pools, &mut port);
        (receive(&mut pools, &mut port), count(&port, "receive_truncated"), count(&port, "receive_corrupted"))
    };
    let (frames, truncated, corrupted) = run(9, 0);
    assert_eq!(frames.iter().filter(|bytes| bytes.len() < 20).count() as u64, truncated);
    assert!((15..35).contains(&truncated) && (15..35).contains(&corrupted));
    assert_eq!(run(9, ALWAYS).0, frames, "each direction and kind of fault draws its own random numbers");
    assert_ne!(run(10, 0).0, frames);
}

fn transmit_some(pools: &mut Pools, port: &mut dyn Port) {
    assert_eq!(transmit(pools, port, &[b"some", b"more"]), 0);
}

#[test]
fn late_frames_that_the_port_refuses_stay_late_and_in_order() {
    let rates = Rates { delay_ppm: ALWAYS, delay: Delay::Ns(5), ..Rates::default() };
    let (mut pools, mut port, wire) = open(8, Faults { seed: 1, transmit: rates, ..Faults::default() });
    wire.limit_transmit(1);
    assert_eq!(transmit(&mut pools, &mut port, &[b"a", b"b", b"c"]), 0);
    port.set_time(5);
    for expected in [b"a", b"b", b"c"] {
        port.flush(&mut pools);
        assert_eq!(popped(&wire), [expected]);
    }
    assert_eq!((port.statistics().held, port.statistics().transmitted), (0, 3));
}

#[test]
fn closing_returns_what_is_held() {
    let rates = Rates { delay_ppm: ALWAYS, delay: Delay::Frames(9), ..Rates::default() };
    let (mut pools, mut port, wire) = open(8, Faults { seed: 1, receive: rates, transmit: rates });
    wire.push(b"in");
    receive(&mut pools, &mut port);
    transmit(&mut pools, &mut port, &[b"a", b"b"]);
    assert_eq!(port.close(&mut pools), 2);
    assert_eq!((port.statistics().held, port.statistics().lost_before), (0, 1));
    assert_eq!(pools.first().available(), 8);
}

/// Everything that a run did.
#[derive(Debug, PartialEq)]
struct WrapperRun {
    left: Vec<Vec<u8>>,
    kernel: Vec<Vec<u8>>,
    statistics: PortStatistics,
    extra: Vec<(&'static str, u64)>,
    refused: u64,
}

/// Pushes, forwards and pops according to `steps`; checks the ledger and the pool after every breath.
fn run(faults: Faults, chunks: u32, steps: &[(u8, u8, u16)]) -> WrapperRun {
    let (mut pools, mut port, wire) = open(chunks, faults);
    let (mut batch, mut refused, mut pushed, mut oversize) = (Batch::new(), 0, 0, 0);
    let mut left = Vec::new();
    wire.limit_transmit(40);
    let mut now_ns = 0;
    for &(push, pop, length) in steps {
        for i in 0..push {
            let length = usize::from(length) + usize::from(i) * 7;
            wire.push(&vec![i; length]);
            oversize += u64::from(length > 1920);
            pushed += 1;
        }
        now_ns += u64::from(pop) * 10;
        port.set_time(now_ns);
        port.receive(&mut pools, &mut batch);
        let all = batch.mask();
        let kernel = all & 0x1111_1111_1111_1111;
        let mut accepted = port.to_kernel(&mut pools, &mut batch, kernel);
        accepted |= port.transmit(&mut pools, &mut batch, all & !kernel);
        Bits(all & !accepted).for_each(|slot| pools.give(batch.take(slot)));
        refused += u64::from((all & !accepted).count_ones());
        batch.clear();
        port.flush(&mut pools);
        check(&port, &pools, &wire, refused, pushed, chunks);
        left.extend((0..pop).filter_map(|_| wire.pop()));
    }
    let held = port.statistics().held;
    assert_eq!(port.close(&mut pools), held);
    assert_eq!(pools.first().available(), chunks as usize, "every frame is back in its pool");
    assert!(port.statistics().oversize <= oversize);
    left.extend(popped(&wire));
    let duplicated = count(&port, "transmit_duplicated");
    let lost = count(&port, "transmit_lost");
    assert_eq!(
        left.len() as u64,
        port.statistics().transmitted + duplicated - lost,
        "the frames on the wire confirm it"
    );
    let kernel = std::iter::from_fn(|| wire.pop_kernel()).collect();
    WrapperRun { left, kernel, statistics: port.statistics(), extra: port.extra_statistics(), refused }
}

fn check(port: &FaultPort, pools: &Pools, wire: &MemWire, refused: u64, pushed: u64, chunks: u32) {
    let statistics = port.statistics();
    let went =
        statistics.transmitted + statistics.to_kernel + statistics.oversize + refused + statistics.held;
    assert_eq!(statistics.received, went, "every frame is accounted for");
    let came = pushed - wire.waiting() as u64 + count(port, "receive_duplicated");
    assert_eq!(came, statistics.received + statistics.lost_before + count(port, "receive_late"));
    let out = u64::from(chunks) - pools.iter().map(|pool| pool.available() as u64).sum::<u64>();
    assert_eq!(out, statistics.held + count(port, "receive_late"), "held frames are counted where they are");
}

fn rates() -> impl Strategy<Value = Rates> {
    let ppm = || prop_oneof![Just(0), Just(100_000), Just(700_000), Just(ALWAYS)];
    let delay = prop_oneof![(0..500u64).prop_map(Delay::Ns), (0..20u32).prop_map(Delay::Frames)];
    (ppm(), ppm(), ppm(), ppm(), ppm(), ppm(), delay).prop_map(
        |(loss, duplication, cut, corrupt, late, reorder, delay)| Rates {
            loss_ppm: loss,
            duplication_ppm: duplication,
            truncation_ppm: cut,
            corruption_ppm: corrupt,
            delay_ppm: late,
            delay,
            reordering_ppm: reorder,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_frame_is_accounted_for_and_equal_seeds_give_equal_runs(
        seed: u64,
        receive in rates(),
        transmit in rates(),
        chunks in 1..200u32,
        steps in prop::collection::vec((0..80u8, 0..60u8, 0..1900u16), 0..12),
    ) {
        let faults = Faults { seed, receive, transmit };
        prop_assert_eq!(run(faults, chunks, &steps), run(faults, chunks, &steps));
    }
}

fn traced(limit_bytes: u64, output: &Sink) -> (Pools, TracePort, MemWire) {
    let mut pools = Pools::region(8);
    let (port, wire) = MemPort::new("p", pools.first().id());
    let taps =
        Taps { received: output.boxed(), transmitted: None, to_kernel: None, limit_bytes, base_ns: 1000 };
    (pools, TracePort::new(Box::new(port), taps).unwrap(), wire)
}

fn recorded(output: &Sink) -> Vec<Record> {
    Reader::open(output.bytes().as_slice()).unwrap().map(Result::unwrap).collect()
}

fn record(time_ns: u64, bytes: &[u8]) -> Record {
    Record { time_ns, length: bytes.len() as u32, bytes: bytes.to_vec() }
}

#[test]
fn what_passed_is_recorded_each_way_and_what_was_refused_is_not() {
    let mut pools = Pools::region(8);
    let (port, wire) = MemPort::new("p", pools.first().id());
    let outputs = [Sink::default(), Sink::default(), Sink::default()];
    let [received, transmitted, to_kernel] = outputs.each_ref().map(Sink::boxed);
    let taps = Taps { received, transmitted, to_kernel, limit_bytes: 10_000, base_ns: 1000 };
    let mut port = TracePort::new(Box::new(port), taps).unwrap();
    wire.limit_transmit(1);
    [b"aa", b"bb", b"cc"].into_iter().for_each(|bytes| wire.push(bytes));
    port.set_time(7);
    let mut batch = Batch::new();
    port.receive(&mut pools, &mut batch);
    assert_eq!(port.to_kernel(&mut pools, &mut batch, 0b010), 0b010);
    assert_eq!(port.transmit(&mut pools, &mut batch, 0b101), 0b001);
    pools.give(batch.take(2));
    assert_eq!((port.close(&mut pools), port.mode().as_str()), (0, "mem with trace"));
    assert_eq!(recorded(&outputs[0]), [record(1007, b"aa"), record(1007, b"bb"), record(1007, b"cc")]);
    assert_eq!(recorded(&outputs[1]), [record(1007, b"aa")]);
    assert_eq!(recorded(&outputs[2]), [record(1007, b"bb")]);
    assert_eq!((count(&port, "trace_received"), count(&port, "trace_errors")), (3, 0));
}

#[test]
fn a_recording_ends_at_its_limit_and_counts_the_rest() {
    let output = Sink::default();
    let (mut pools, mut port, wire) = traced(24 + 2 * (16 + 10), &output);
    [10, 10, 10, 0].into_iter().for_each(|length| wire.push(&vec![1; length]));
    assert_eq!(receive(&mut pools, &mut port).len(), 4);
    assert_eq!(recorded(&output).len(), 2);
    assert_eq!((count(&port, "trace_received"), count(&port, "trace_received_left_out")), (2, 2));
}

#[test]
fn a_failing_output_does_not_disturb_the_traffic() {
    let (mut pools, mut port, wire) = traced(u64::MAX, &Sink::failing(10_000));
    for _ in 0..50 {
        wire.push(&[1; 1500]);
        assert_eq!(receive(&mut pools, &mut port).len(), 1);
    }
    assert_eq!((count(&port, "trace_errors"), port.remarks().len()), (1, 1));
    assert_eq!(count(&port, "trace_received"), 6, "what is complete in the file");
    assert_eq!(count(&port, "trace_received") + count(&port, "trace_received_left_out"), 50);
}

/// Counts continue and nothing is recorded twice, whichever wrappers are added to and removed from a running
/// port.
#[test]
fn wrappers_change_around_a_running_port() {
    let mut pools = Pools::region(64);
    let (port, wire) = MemPort::new("p", pools.first().id());
    let mut port: Box<dyn Port> = Box::new(port);
    let arrive = |port: &mut Box<dyn Port>, pools: &mut Pools| {
        wire.push(b"frame");
        receive(pools, port.as_mut()).len()
    };
    let loses = |loss_ppm| Faults { receive: Rates { loss_ppm, ..Rates::default() }, ..Faults::default() };
    let begin = |sink: &Sink| {
        let taps = Taps { received: sink.boxed(), limit_bytes: 1 << 20, ..Taps::default() };
        Retrace::Change(Some(Box::new(Recording::begin(taps).unwrap())))
    };
    assert_eq!(arrive(&mut port, &mut pools), 1);
    port = rewrap(port, Some(loses(ALWAYS)), Retrace::Keep);
    assert_eq!((arrive(&mut port, &mut pools), port.mode().as_str()), (0, "mem with faults"));
    let (first, second) = (Sink::default(), Sink::default());
    port = rewrap(port, Some(loses(ALWAYS)), begin(&first));
    assert_eq!((arrive(&mut port, &mut pools), port.mode().as_str()), (0, "mem with faults with trace"));
    port = rewrap(port, None, Retrace::Keep);
    assert_eq!((arrive(&mut port, &mut pools), port.mode().as_str()), (1, "mem with trace"));
    port = rewrap(port, None, begin(&second));
    assert_eq!((arrive(&mut port, &mut pools), arrive(&mut port, &mut pools)), (1, 1));
    port = rewrap(port, None, Retrace::Change(None));
    assert_eq!((arrive(&mut port, &mut pools), port.mode().as_str()), (1, "mem"));
    let statistics = port.statistics();
    assert_eq!((statistics.received, statistics.received_bytes, statistics.lost_before), (5, 25, 2));
    let records = |sink: &Sink| Reader::open(&sink.bytes()[..]).unwrap().count();
    assert_eq!((records(&first), records(&second)), (1, 2));
}
