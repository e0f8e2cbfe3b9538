//! Measured flows: no delta has packets of two periods, the pipe announces when all flows have reported
//! theirs, and no packet is lost or counted twice, whatever is reloaded, removed or stalled meanwhile.

mod support;

use std::collections::HashMap;
use support::{Bench, SECRET, start, targets, udp};
use weir_engine::batch::Engine;
use weir_engine::delta::{DeltaReason, FlowDelta};
use weir_packet::random::Random;
use weir_packet::{FlowKey, KeySource};
use weir_program::change::{Change, EntryKey};
use weir_program::{
    Entry, EntryMatch, Fill, FlowState, Group, GroupId, HashInput, Learn, Measured, Pipe, PipeId, PipeKind,
    PortId, Program, Timeouts,
};

const MS: u64 = 1_000_000;

/// Periods of 100 ms.
const PERIOD: Measured = Measured::every(100);

/// A program with a FLOW pipe of this name, measured or not, that pins flows to `x` and `y`.
fn pinning(name: &str, capacity: u32, measured: Option<Measured>) -> Program {
    let rows = (0..2).map(EntryMatch::Target);
    let flow =
        Pipe::flow(name, Learn::Pin(GroupId(0).into())).entries(rows).capacity(capacity).forward(PortId(0));
    let flow = measured.into_iter().fold(flow.idle_timeout_ns(700 * MS), Pipe::measured);
    let mut program = start(&["a"], [flow]);
    program.group(Group::new("g", Fill::Wants, 12).targets(targets(&["x", "y"])));
    program.build()
}

/// A program with a pipe of this name that keeps no flows and is measured.
fn summing(name: &str, measured: Measured) -> Program {
    let mut pipe = Pipe::basic(name).forward(PortId(0)).miss(PortId(0));
    pipe.monitor.measured = Some(measured);
    start(&["a"], [pipe]).build()
}

fn key(sport: u16) -> FlowKey {
    FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (sport, 53), None)
}

/// Takes what waits, and checks the accounting.
fn taken(bench: &mut Bench) -> Vec<FlowDelta> {
    let before = bench.deltas.len();
    bench.take_deltas();
    bench.deltas[before..].to_vec()
}

#[test]
fn c11_no_delta_has_packets_of_two_periods() {
    let mut bench = Bench::new(&pinning("f", 64, Some(PERIOD)));
    for now_ms in [10, 20, 99, 100, 150, 350, 351] {
        bench.now_ns = now_ms * MS;
        bench.frame(PortId(0), &udp(7, 53));
    }
    let given: Vec<_> = taken(&mut bench).iter().map(|one| (one.packets(), one.first, one.last)).collect();
    assert_eq!(given, [(3, 10, 99), (2, 100, 150)]);
    assert!(bench.deltas.iter().all(|one| one.reason() == DeltaReason::Interval));
    let live = bench.engine.flow(PipeId(0), &bench.deltas[0].key).unwrap();
    assert_eq!((live.hits.packets, live.first_ms), (2, 350));
    // The flow shows all seven.
    let bytes: u64 = bench.deltas.iter().map(FlowDelta::bytes).sum();
    assert_eq!((live.given.packets, live.given.bytes), (5, bytes));
}

#[test]
fn c11_a_flow_gives_as_many_packets_as_may_wait() {
    let mut bench = Bench::new(&pinning("f", 64, Some(Measured { packets: 4, ..PERIOD })));
    (0..10).for_each(|_| _ = bench.frame(PortId(0), &udp(7, 53)));
    assert_eq!(taken(&mut bench).iter().map(FlowDelta::packets).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn c11_flows_without_packets_give_theirs_before_the_pipe_says_that_all_have() {
    let mut bench = Bench::new(&pinning("f", 1000, Some(PERIOD)));
    bench.now_ns = MS;
    bench.learn(600);
    // Packets of the next period are not included.
    bench.now_ns = 101 * MS;
    (0..10).for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    (101..180).for_each(|ms| bench.engine.tick(ms * MS));
    let all = taken(&mut bench);
    let (last, others) = all.split_last().unwrap();
    assert_eq!((last.reason(), last.first, last.packets()), (DeltaReason::Swept, 100, 0));
    assert_eq!((others.len(), others.iter().map(FlowDelta::packets).sum::<u64>()), (600, 600));
    assert!(others.iter().all(|one| one.reason() == DeltaReason::Interval && one.last == 1));
    assert_eq!(bench.engine.flow_account().live, 10);
}

#[test]
fn c11_packets_in_no_flow_are_said_with_the_end_of_their_period() {
    for program in [pinning("f", 2, Some(PERIOD)), summing("f", PERIOD)] {
        let mut bench = Bench::new(&program);
        bench.now_ns = MS;
        bench.engine.tick(MS);
        let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
        let frames = |bench: &mut Bench, ms: u64, arps: usize| {
            bench.now_ns = ms * MS;
            (0..arps).for_each(|_| _ = bench.frame(PortId(0), &arp));
            (0..9).for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
        };
        frames(&mut bench, 10, 3);
        // Before anything was reported about the previous period.
        frames(&mut bench, 101, 5);
        (101..180).for_each(|ms| bench.engine.tick(ms * MS));
        frames(&mut bench, 210, 1);
        (210..280).for_each(|ms| bench.engine.tick(ms * MS));
        let all = taken(&mut bench);
        let swept = all.iter().filter(|one| one.reason() == DeltaReason::Swept);
        let swept: Vec<(u32, [u32; 9])> = swept.map(|one| (one.first, one.unflowed())).collect();
        let sum = |at: usize| swept.iter().map(|(_, counts)| u64::from(counts[at])).sum::<u64>();
        let of = |first: u32| swept.iter().find(|(start, _)| *start == first).unwrap().1;
        assert_eq!((of(100)[0], of(200)[0], sum(0)), (3, 5, 8), "{swept:?}");
        // The last period has not ended.
        let account = bench.engine.flow_account();
        assert_eq!((account.unflowed.no_key, account.balances()), (9, true));
        assert!(sum(5) <= account.unflowed.full, "{account:?}");
    }
}

#[test]
fn c11_while_nobody_reads_a_flow_goes_on_counting_and_the_pipe_says_nothing() {
    let mut bench = Bench::new(&pinning("f", 10_000, Some(PERIOD)));
    bench.learn(9_000);
    (100..1_000).for_each(|ms| bench.engine.tick(ms * MS));
    // Flows without room for their deltas stay; the first of them expire once there is room.
    let account = bench.engine.flow_account();
    assert_eq!((account.given, account.live, account.balances()), (4096, 9_000 - 4096, true));
    bench.now_ns = 1_000 * MS;
    bench.frame(PortId(0), &udp(8_999, 53));
    assert_eq!(bench.engine.flow_account().live, 9_001 - 4096);
    let mut swept = 0;
    for ms in 1_000..1_090 {
        bench.engine.take_deltas(|one| {
            swept += usize::from(one.reason() == DeltaReason::Swept);
            true
        });
        bench.engine.tick(ms * MS);
    }
    assert_eq!(
        (swept, bench.engine.flow_account().live),
        (1, 2),
        "the flow that did not fit has both packets"
    );
}

/// Octets, flags, class, VLAN, ICMP.
type ObservedFields = (u64, u8, u8, u16, u16);

/// Frames of one flow, and what records report about them in total.
fn described() -> Vec<(Vec<Vec<u8>>, ObservedFields)> {
    let frame = |text: &str, length: usize| {
        let mut frame = weir_packet::craft::frame(text);
        frame.resize(frame.len().max(length), 0);
        frame
    };
    let tcp = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=80";
    let udp = "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=80";
    let ipv6 = "src=2001:db8::1 dst=2001:db8::2 proto=icmpv6 icmp_type=129 icmp_code=3 dscp=10 len=90";
    vec![
        // 40 bytes of IP, padded; the second packet has other values.
        (
            vec![
                frame(&format!("{tcp} flags=S dscp=46 len=54"), 60),
                frame(&format!("{tcp} flags=A len=54"), 60),
            ],
            (80, 0x12, 46 << 2, 0, 0),
        ),
        (vec![frame(&format!("{tcp} flags=FA vlan=5 len=58"), 60)], (40, 0x11, 0, 5, 0)),
        (vec![frame(&format!("{udp} vlan=9 second_vlan=5 len=1022"), 0); 10], (10_000, 0, 0, 9, 0)),
        (vec![frame(&format!("{udp} len=1014"), 0); 10], (10_000, 0, 0, 0, 0)),
        (vec![frame(ipv6, 0)], (76, 0, 10 << 2, 0, 129 << 8 | 3)),
    ]
}

#[test]
fn c14_records_have_octets_of_ip_and_what_the_first_packet_says() {
    let programs = [pinning("f", 64, Some(PERIOD)), summing("s", PERIOD)];
    for (frames, wanted) in described() {
        for program in &programs {
            let mut bench = Bench::new(program);
            frames.iter().for_each(|frame| _ = bench.frame(PortId(0), frame));
            bench.engine.age(200 * MS);
            let all = taken(&mut bench);
            let counted: Vec<_> = all.iter().filter(|one| one.packets() > 0).collect();
            let [delta] = counted[..] else { panic!("{all:?}") };
            let bytes: usize = frames.iter().map(Vec::len).sum();
            assert_eq!((delta.packets(), delta.bytes()), (frames.len() as u64, bytes as u64));
            let one = delta.observed;
            assert_eq!((one.octets, one.flags, one.class, one.vlan, one.icmp), wanted);
        }
    }
}

#[test]
fn c14_octets_survive_a_swap_into_a_table_of_another_size() {
    let tcp = weir_packet::craft::frame("src=10.0.0.1 dst=10.0.0.2 proto=tcp vlan=7 len=118");
    for sizes in [[64, 64], [64, 200]] {
        for before in [None, Some(PERIOD)] {
            let mut bench = Bench::new(&pinning("f", sizes[0], before));
            bench.frame(PortId(0), &tcp);
            bench.swap(&pinning("f", sizes[1], Some(PERIOD)));
            bench.frame(PortId(0), &tcp);
            bench.engine.age(200 * MS);
            let all = taken(&mut bench);
            let delta = all.iter().find(|one| one.packets() > 0).unwrap();
            // A tag from before the pipe was measured is unknown.
            let wanted = if before.is_some() { 200 } else { 204 };
            assert_eq!((delta.packets(), delta.observed.octets), (2, wanted), "{sizes:?}");
        }
    }
}

#[test]
fn c14_sums_of_a_hash_pipe_name_the_target_that_it_chose() {
    let rows = (0..2).map(EntryMatch::Target).map(Entry::on);
    let mut pipe = Pipe::hash("h", HashInput::Select(KeySource::Outer), GroupId(1));
    pipe = pipe.entries(rows).forward(PortId(0));
    pipe.monitor.measured = Some(PERIOD);
    let mut program = start(&["a"], [pipe]);
    program.group(Group::new("others", Fill::Wants, 12).targets(targets(&["z"])));
    program.group(Group::new("g", Fill::Wants, 12).targets(targets(&["x", "y"])));
    let mut bench = Bench::new(&program.build());
    (0..50).for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    let hits: Vec<u64> = bench.engine.entries(PipeId(0)).iter().map(|(_, hits)| hits.packets).collect();
    bench.engine.age(200 * MS);
    let of = |target: u32, all: &[FlowDelta]| {
        all.iter().filter(|one| one.observed.target == target).map(FlowDelta::packets).sum::<u64>()
    };
    let all = taken(&mut bench);
    assert_eq!([1, 2].map(|target| of(target, &all)), hits[..]);
    assert!(hits.iter().all(|packets| *packets > 5), "{hits:?}");
}

#[test]
fn c12_no_sum_has_packets_of_two_periods() {
    let mut bench = Bench::new(&summing("s", PERIOD));
    bench.engine.tick(MS);
    for now_ms in [10, 20, 99, 100, 150, 350, 351] {
        bench.now_ns = now_ms * MS;
        bench.frame(PortId(0), &udp(7, 53));
        (now_ms..now_ms + 26).take_while(|ms| *ms < 100 || now_ms > 99).for_each(|ms| {
            bench.engine.tick(ms * MS);
        });
    }
    let all = taken(&mut bench);
    let reported: Vec<_> = all.iter().map(|one| (one.reason(), one.packets(), one.first, one.last)).collect();
    let (interval, swept) = (DeltaReason::Interval, DeltaReason::Swept);
    assert_eq!(
        reported,
        [
            (swept, 0, 0, 0),
            (interval, 3, 10, 99),
            (swept, 0, 100, 100),
            (interval, 2, 100, 150),
            (swept, 0, 300, 300),
        ]
    );
    assert!(all.iter().filter(|one| one.packets() > 0).all(|one| one.key == key(7)));
    assert_eq!(bench.engine.flow_account().live, 2);
}

#[test]
fn c12_sums_make_room_for_others_and_of_a_stalled_collector_nothing_is_lost() {
    let mut bench = Bench::new(&summing("s", Measured { keys: 16, ..PERIOD }));
    (0..40).for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    let all = taken(&mut bench);
    assert_eq!((all.len(), bench.engine.flow_account().live), (24, 16));
    assert!(all.iter().all(|one| one.reason() == DeltaReason::Evicted && one.packets() == 1));
    (0..6000).for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    (100..400).for_each(|ms| bench.engine.tick(ms * MS));
    let account = bench.engine.flow_account();
    assert!(account.balances() && account.met == 6040 && account.unflowed.delta > 0, "{account:?}");
    assert_eq!(account.live + account.given + account.unflowed.delta, 6040);
    let mut swept = 0;
    for ms in 400..460 {
        let taken = taken(&mut bench);
        swept += taken.iter().filter(|one| one.reason() == DeltaReason::Swept).count();
        bench.engine.tick(ms * MS);
    }
    let account = bench.engine.flow_account();
    assert!(swept > 0 && account.live == 0, "{account:?}");
}

#[test]
fn c9_a_flow_that_has_given_its_counts_has_had_its_first_packet() {
    let timeouts = Timeouts::all(700 * MS).with(FlowState::Single, 700 * MS);
    let mut program = pinning("f", 64, Some(PERIOD));
    if let PipeKind::Flow { timeouts: of_pipe, .. } = &mut program.pipes[0].kind {
        *of_pipe = timeouts;
    }
    let mut bench = Bench::new(&program);
    bench.frame(PortId(0), &udp(7, 53));
    (100..200).for_each(|ms| bench.engine.tick(ms * MS));
    assert_eq!(bench.engine.flow_account().live, 0);
    bench.now_ns = 200 * MS;
    bench.frame(PortId(0), &udp(7, 53));
    let state = bench.engine.flow(PipeId(0), &key(7)).and_then(|flow| flow.state);
    assert_eq!(state, Some(FlowState::Stream));
}

/// Successive programs: the pipe keeps its name or not, has another capacity, is measured with other periods
/// or not at all.
fn any_program(numbers: &mut Random) -> Program {
    if numbers.below(3) == 0 {
        let measured = Measured::every([1, 10, 100][numbers.below(3) as usize]);
        let name = ["f", "s", "s"][numbers.below(3) as usize];
        return summing(name, Measured { keys: [1, 40][numbers.below(2) as usize], ..measured });
    }
    let name = ["f", "f", "f", "other"][numbers.below(4) as usize];
    let capacity = [40, 40, 64, 7][numbers.below(4) as usize];
    let measured = match numbers.below(4) {
        0 => None,
        n => Some(Measured {
            period_ms: [1, 10, 100][n as usize - 1],
            packets: [1, 3, u32::MAX][n as usize - 1],
            ..PERIOD
        }),
    };
    pinning(name, capacity, measured)
}

/// A run of frames, reloads, removals and pauses of the collector. Returns the deltas, and checks after every
/// step that each frame is accounted for.
fn run(seed: u64, steps: usize) -> (HashMap<FlowKey, u64>, HashMap<FlowKey, u64>, usize) {
    let mut numbers = Random::new(seed);
    let mut bench = Bench::new(&any_program(&mut numbers));
    let (mut met, mut reloads, mut stalled) = (HashMap::new(), 0, false);
    let mut deltas: Vec<FlowDelta> = Vec::new();
    let mut unflowed = 0;
    for _ in 0..steps {
        bench.now_ns += numbers.below(30) * MS / 4;
        match numbers.below(20) {
            0 => {
                let program = any_program(&mut numbers);
                let mut heir = Engine::new(&program, SECRET).unwrap();
                heir.inherit(&mut bench.engine, bench.now_ns);
                bench.engine = heir;
                reloads += 1;
            }
            1 => stalled = !stalled,
            2 => {
                let target = numbers.below(2) as u16;
                let key = EntryKey::one(EntryMatch::Target(target));
                let _ = bench.engine.apply(&Change::Remove { pipe: PipeId(0), key }, bench.now_ns);
                let entry = Entry::on(EntryMatch::Target(target));
                let _ = bench.engine.apply(&Change::Add { pipe: PipeId(0), entry }, bench.now_ns);
            }
            3..=5 => bench.engine.tick(bench.now_ns),
            _ => {
                let sport = numbers.below(50).min(numbers.below(50)) as u16;
                bench.frame(PortId(0), &udp(sport, 53));
                let now = bench.engine.flow_account().unflowed.sum();
                if now == unflowed {
                    *met.entry(key(sport)).or_insert(0) += 1;
                }
                unflowed = now;
            }
        }
        if !stalled {
            bench.engine.take_deltas(|one| {
                deltas.push(one);
                true
            });
        }
        let account = bench.engine.flow_account();
        assert!(account.balances(), "seed {seed}: {account:?}");
    }
    while !bench.engine.end_flows() || bench.engine.has_deltas() {
        bench.engine.take_deltas(|one| {
            deltas.push(one);
            true
        });
    }
    let account = bench.engine.flow_account();
    assert!(account.balances() && account.live == 0, "seed {seed}: {account:?}");
    let mut given = HashMap::new();
    for one in &deltas {
        *given.entry(one.key).or_insert(0) += one.packets();
        assert!(one.packets() == 0 || one.last.wrapping_sub(one.first) < 1 << 31, "seed {seed}: {one:?}");
    }
    given.retain(|_, packets| *packets != 0);
    (met, given, reloads)
}

#[test]
fn every_frame_is_in_a_delta_after_a_thousand_random_reloads() {
    let (mut reloads, mut seed) = (0, 0);
    while reloads < 1_000 {
        let (mut met, mut given, some) = run(seed, 2_000);
        met.remove(&FlowKey::default());
        given.remove(&FlowKey::default());
        assert_eq!(met, given, "seed {seed}");
        (reloads, seed) = (reloads + some, seed + 1);
    }
    assert!(seed > 5);
}
