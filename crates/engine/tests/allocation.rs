//! A worker in steady state allocates no memory.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use support::{SECRET, targets};
use weir_engine::batch::Engine;
use weir_engine::ring::carriers;
use weir_engine::worker::Worker;
use weir_packet::{Field, KeySource, Pools, Port, TunnelKind};
use weir_port::{Generator, Stream};
use weir_program::builder::ProgramBuilder;
use weir_program::change::Change;
use weir_program::{
    Criterion, Encap, Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, MeterConfig,
    MeterDeclaration, MeterSecond, MeterUnit, Operation, Pipe, PipeId, Program, Target, Value,
};

/// The system allocator, with a count of this thread's requests.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ASKED.set(ASKED.get() + 1);
}

// SAFETY: every call is passed unchanged to the system allocator; counting touches a thread-local number
// only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, and the memory came from the system
        // allocator.
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

/// A chain with a pipe of every type, with counters, meters, ageing and every kind of rewrite: a FLOW pipe,
/// then an ACL, a prefix match, a hash, and an exact match whose misses go to an app.
fn everything() -> Program {
    let mut program = ProgramBuilder::new();
    let [a, b] = program.ports(["a", "b"]);
    let pipes = ["flow", "acl", "lpm", "hash", "exact", "deal"].map(|name| program.pipe(Pipe::basic(name)));
    let [flow, acl, lpm, hash, exact, deal] = pipes;
    let g = program.group(Group::new("g", Fill::Wants, 12).targets(targets(&["x", "y"])));
    let given = program.group(Group::new("given", Fill::Given, 4).seed(1).targets(targets(&["x", "y"])));
    let both = [Target::new("x", a), Target::new("y", b)];
    let both = program.group(Group::new("both", Fill::Wants, 12).targets(both));
    let (app, counter) = (program.app("app"), program.counter("counter"));
    let meter = program.meter(MeterDeclaration::new("meter", meter()));
    let rows = [EntryMatch::Target(0), EntryMatch::Target(1)];
    let learns =
        Pipe::flow("flow", Learn::Pin(g.into())).entries(rows).capacity(4096).idle_timeout_ns(5_000_000);
    program.define(flow, learns.forward(acl).miss(acl));
    let any = Pipe::acl("acl").matching(Field::L4Dport, Criterion::Range).entry(EntryMatch::Any);
    program.define(acl, any.forward(lpm));
    let routed = Pipe::lpm("lpm", Field::Ipv4Src).entry(EntryMatch::Prefix { value: 0x0a00_0000, length: 8 });
    program.define(lpm, routed.meter(meter).counter(counter).act(rewrites()).rehash(true).forward(hash));
    let spread = Pipe::hash("hash", HashInput::Select(KeySource::Outer), g).entries(rows);
    program
        .define(hash, spread.act([Operation::Decap(TunnelKind::Vxlan), Operation::PopVlan]).forward(exact));
    let known = Pipe::basic("exact").per_entry(Field::L4Sport).entries(0..1000).capacity(2000);
    let known = known.idle_timeout_ns(1_000_000_000_000).forward(a);
    program.define(exact, known.miss(Forward::Tee { app, next: deal }));
    let dealt = [Entry::on(rows[0]).to(app), Entry::on(rows[1]).to(Forward::Flood(both))];
    program.define(
        deal,
        Pipe::hash("deal", HashInput::RoundRobin, given).entries(dealt).forward(Forward::PerEntry),
    );
    program.root_of_all(flow);
    program.build()
}

fn rewrites() -> [Operation; 5] {
    [
        Operation::Set(Field::Ipv4Dst, Value::Const(0x0a01_0101)),
        Operation::Set(Field::L4Dport, Value::Const(80)),
        Operation::DecrementTtl,
        Operation::PushVlan { tpid: 0x8100, vid: Value::Const(7), pcp: Value::Const(0) },
        Operation::Encap(encap()),
    ]
}

fn meter() -> MeterConfig {
    let second = MeterSecond::Excess { ebs: 100_000 };
    MeterConfig { unit: MeterUnit::Bytes, cir: 1_000_000, cbs: 100_000, second, colour_aware: false }
}

fn encap() -> Encap {
    Encap {
        eth_dst: Value::Const(1),
        eth_src: Value::Const(2),
        src: Value::Const(3),
        dst: Value::Const(4),
        id: Some(Value::Const(5)),
        ..Encap::new(TunnelKind::Vxlan)
    }
}

#[test]
fn breathing_allocates_nothing() {
    let program = everything();
    let mut engine = Engine::new(&program, SECRET).unwrap();
    // Run-time entries that are checked for their age and stay.
    for value in 1000..1500 {
        engine.apply(&Change::Add { pipe: PipeId(4), entry: Entry::on(value).run_time() }, 0).unwrap();
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
    let (deltas, collector) = weir_engine::ring::deltas(0, 1024);
    let mut worker = Worker::new(engine, ports, pools).with_punts(vec![punts]).with_deltas(deltas);
    let mut now_ns = 0;
    let mut breathe = |worker: &mut Worker| {
        now_ns += 100_000;
        worker.breathe(now_ns);
        // Half of the punted frames are taken, so the ring is full now and then.
        for _ in 0..20 {
            let Some(carrier) = app.receive() else { break };
            app.done(carrier);
        }
        collector.try_iter().count()
    };
    let mut taken = 0;
    let give = |worker: &mut Worker, moves: [(u32, u16); 4], wait_max_ns| {
        let moves = moves.into();
        let change =
            Change::MoveBuckets { group: GroupId(1), moves, idle_gap_ns: 1_000_000_000, wait_max_ns };
        worker.engine_mut().apply(&change, 200_000_000).unwrap();
    };
    give(&mut worker, [(0, 0), (1, 1), (2, 0), (3, 1)], 0);
    (0..2_000).for_each(|_| taken += breathe(&mut worker));
    // These wait until allocations are counted.
    give(&mut worker, [(0, 1), (1, 0), (2, 1), (3, 0)], 100_000_000);
    let before = ASKED.get();
    (0..5_000).for_each(|_| taken += breathe(&mut worker));
    assert_eq!(ASKED.get() - before, 0, "allocations in 5000 breaths");
    let report = worker.report();
    assert!(report.ledger.balances() && report.ledger.to_app > 0, "{report:?}");
    assert!(report.pipes[0].account.unflowed.full > 0 && taken > 0, "{report:?}");
    assert!(report.ledger.dropped[weir_packet::DropReason::AppFull as usize] > 0, "{report:?}");
    assert!(report.ledger.copied > 0 && report.tee_missed > 0, "{report:?}");
    let given = worker.engine().bucket_report(GroupId(1), 0..1);
    assert_eq!((given.moved_busy, given.pending), (4, 0));
    assert!(report.pipes.iter().all(|pipe| pipe.hits > 0), "{:?}", report.pipes);
}
