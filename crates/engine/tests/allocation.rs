//! A worker that breathes in steady state allocates nothing.

mod support;

use engine::batch::Engine;
use engine::change::Change;
use engine::program::{
    AppId, CounterId, Criterion, Encap, Entry, EntryMatch, Fill, Forward, Group, GroupId, Learn, Match, MeterConfig,
    MeterDeclaration, MeterId, MeterSecond, MeterUnit, Operation, Origin, Pipe, PipeId, PipeKind, PortId, Program,
    SharedUse, Template, Value,
};
use engine::ring::carriers;
use engine::worker::Worker;
use packet::{Field, Pools, Port};
use port::{Generator, Stream};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::{SECRET, exact_pipe, flow_pipe, hash_group, pipe, port, start};

/// The system's allocator, counting what this thread asks of it.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ASKED.set(ASKED.get() + 1);
}

// SAFETY: everything is passed on to the system's allocator as it came; counting touches a thread's own number only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`, and the place came from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A pipe of every kind, one behind the other, with counters, meters, ages and every way of rewriting: learnt flows,
/// then an ACL, a prefix, a hash, and an exact match whose misses go to an app.
fn everything() -> Program {
    let mut flow = flow_pipe("flow", Learn::Pin(GroupId(0)), 2, 4096);
    flow.kind = PipeKind::Flow { key: Default::default(), learn: Learn::Pin(GroupId(0)), idle_timeout_ns: 5_000_000 };
    flow.forward = Forward::Pipe(PipeId(1));
    flow.miss = Forward::Pipe(PipeId(1));
    let any = Entry { matches: vec![EntryMatch::Any], ..Entry::default() };
    let acl = Pipe {
        matches: vec![Match { field: Field::L4Dport, criterion: Criterion::Range, origin: Origin::default() }],
        entries: vec![any],
        forward: Forward::Pipe(PipeId(2)),
        ..pipe("acl", PipeKind::Acl)
    };
    let prefix = Entry { matches: vec![EntryMatch::Prefix { value: 0x0a00_0000, length: 8 }], ..Entry::default() };
    let mut lpm = Pipe {
        matches: vec![Match { field: Field::Ipv4Src, criterion: Criterion::Prefix, origin: Origin::default() }],
        entries: vec![prefix],
        forward: Forward::Pipe(PipeId(3)),
        ..pipe("lpm", PipeKind::Lpm)
    };
    lpm.monitor.meter = Some(SharedUse::Pipe(MeterId(0)));
    lpm.monitor.counter = Some(SharedUse::Pipe(CounterId(0)));
    lpm.templates[0].operations = vec![
        Operation::Set(Field::Ipv4Dst, Value::Const(0x0a01_0101)),
        Operation::Set(Field::L4Dport, Value::Const(80)),
        Operation::DecrementTtl,
        Operation::PushVlan { tpid: 0x8100, vid: Value::Const(7), pcp: Value::Const(0) },
        Operation::EncapVxlan(encap()),
    ];
    lpm.rehash = true;
    let target = |at| Entry { matches: vec![EntryMatch::Target(at)], ..Entry::default() };
    let input = engine::program::HashInput::Select(Default::default());
    let mut hash = Pipe {
        entries: vec![target(0), target(1)],
        forward: Forward::Pipe(PipeId(4)),
        ..pipe("hash", PipeKind::Hash { input, group: GroupId(0) })
    };
    hash.templates =
        vec![Template { name: "decap".into(), operations: vec![Operation::DecapVxlan, Operation::PopVlan] }];
    let mut exact = exact_pipe("exact", Field::L4Sport, &(0..1000).collect::<Vec<u128>>());
    exact.capacity = 2000;
    exact.monitor.idle_timeout_ns = 1_000_000_000_000;
    exact.miss = Forward::Tee { app: AppId(0), next: PipeId(5) };
    let input = engine::program::HashInput::RoundRobin;
    let leads = |at, forward| Entry { forward: Some(forward), ..target(at) };
    let deal = Pipe {
        entries: vec![leads(0, Forward::App(AppId(0))), leads(1, Forward::Flood(GroupId(2)))],
        forward: Forward::PerEntry,
        ..pipe("deal", PipeKind::Hash { input, group: GroupId(1) })
    };
    let mut program = start(vec![port("a"), port("b")], vec![flow, acl, lpm, hash, exact, deal]);
    let mut both = hash_group("both", &["x", "y"]);
    both.targets[1].forward = Forward::Port(PortId(1));
    let given = Group { fill: Fill::Given, size: 4, seed: Some(1), ..hash_group("given", &["x", "y"]) };
    program.groups = vec![hash_group("g", &["x", "y"]), given, both];
    program.apps = vec!["app".into()];
    program.counters = vec!["counter".into()];
    program.meters = vec![MeterDeclaration { name: "meter".into(), config: meter(), origin: Origin::default() }];
    program
}

fn meter() -> MeterConfig {
    let second = MeterSecond::Excess { ebs: 100_000 };
    MeterConfig { unit: MeterUnit::Bytes, cir: 1_000_000, cbs: 100_000, second, colour_aware: false }
}

fn encap() -> Encap {
    Encap {
        eth_dst: Value::Const(1),
        eth_src: Value::Const(2),
        ipv6: false,
        src: Value::Const(3),
        dst: Value::Const(4),
        vni: Value::Const(5),
        ttl: Value::Const(64),
        sport: None,
    }
}

#[test]
fn breathing_allocates_nothing() {
    let program = everything();
    let mut engine = Engine::new(&program, SECRET).unwrap();
    // Run-time entries that are looked at for their age and stay.
    for value in 1000..1500 {
        let entry = Entry { matches: vec![EntryMatch::Value(value)], run_time: true, ..Entry::default() };
        engine.apply(&Change::Add { pipe: PipeId(4), entry }, 0).unwrap();
    }
    let mut pools = Pools::region(256);
    let pool = pools.first().id();
    // More flows than the table holds, so that flows are learnt, aged and refused all the time.
    let flows = (0..6000u16).map(|at| ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), at, 53));
    let stream = Stream::udp(100, flows);
    let ports: Vec<Box<dyn Port>> = vec![
        Box::new(Generator::new("a", &mut pools, pool, stream.clone(), u64::MAX)),
        Box::new(Generator::new("b", &mut pools, pool, stream, u64::MAX)),
    ];
    let (punts, mut app) = carriers(64);
    let (deltas, collector) = std::sync::mpsc::sync_channel(1024);
    let mut worker = Worker::new(engine, ports, pools).with_punts(vec![punts]).with_deltas(deltas);
    let mut now_ns = 0;
    let mut breathe = |worker: &mut Worker| {
        now_ns += 100_000;
        worker.breathe(now_ns);
        // Half of what is punted is taken; the ring is full now and then.
        for _ in 0..20 {
            let Some(carrier) = app.receive() else { break };
            app.done(carrier);
        }
        collector.try_iter().count()
    };
    let mut taken = 0;
    let give = |worker: &mut Worker, moves: [(u32, u16); 4], wait_max_ns| {
        let moves = moves.into();
        let change = Change::MoveBuckets { group: GroupId(1), moves, idle_gap_ns: 1_000_000_000, wait_max_ns };
        worker.engine_mut().apply(&change, 200_000_000).unwrap();
    };
    give(&mut worker, [(0, 0), (1, 1), (2, 0), (3, 1)], 0);
    (0..2_000).for_each(|_| taken += breathe(&mut worker));
    // These wait until breaths that are watched.
    give(&mut worker, [(0, 1), (1, 0), (2, 1), (3, 0)], 100_000_000);
    let before = ASKED.get();
    (0..5_000).for_each(|_| taken += breathe(&mut worker));
    assert_eq!(ASKED.get() - before, 0, "allocations in 5000 breaths");
    let report = worker.report();
    assert!(report.ledger.balances() && report.ledger.to_app > 0, "{report:?}");
    assert!(report.pipes[0].unflowed_full > 0 && taken > 0, "{report:?}");
    assert!(report.ledger.dropped[packet::DropReason::AppFull as usize] > 0, "{report:?}");
    assert!(report.ledger.copied > 0 && report.tee_missed > 0, "{report:?}");
    assert_eq!((report.buckets[1].moved_busy, report.buckets[1].pending), (4, 0));
    assert!(report.pipes.iter().all(|pipe| pipe.hits > 0), "{:?}", report.pipes);
}
