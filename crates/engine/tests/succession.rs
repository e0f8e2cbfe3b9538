//! A swap in slices: at every moment it is equivalent to a swap in one go, and no slice grows with the
//! program.

mod support;

use support::{Bench, SECRET, start, udp};
use weir_engine::batch::Engine;
use weir_oracle::arbitrary::{Choices, Event, event, program};
use weir_packet::Field;
use weir_program::change::{Change, EntryKey};
use weir_program::snapshot::Snapshot;
use weir_program::{Entry, Operation, Pipe, PipeId, PipeKind, PortId, Program, Timeouts, Value};

/// A random program, with some random frames and changes applied. Nothing expires.
fn grown(random: &mut Choices) -> Bench {
    let mut program = program(random);
    for pipe in &mut program.pipes {
        pipe.monitor.idle_timeout_ns = 0;
        if let PipeKind::Flow { timeouts, .. } = &mut pipe.kind {
            *timeouts = Timeouts::NEVER;
        }
    }
    let mut bench = Bench::new(&program);
    for _ in 0..60 {
        one_event(random, &mut bench, None);
    }
    bench
}

/// Runs a random frame or makes a random change; with a twin, there too.
fn one_event(random: &mut Choices, bench: &mut Bench, twin: Option<&mut Bench>) {
    let state = bench.engine.snapshot();
    match event(random, bench.engine.program(), &state) {
        Event::Frame { input, bytes, .. } => {
            let wanted = bench.frame_and_copies(input, &bytes);
            twin.into_iter().for_each(|twin| assert_eq!(twin.frame_and_copies(input, &bytes), wanted));
        }
        Event::Change(mut change) => {
            if let Change::Add { entry, .. } = &mut change {
                entry.run_time = true;
            }
            let wanted = bench.apply(change.clone());
            twin.into_iter().for_each(|twin| assert_eq!(twin.apply(change.clone()), wanted));
        }
        Event::Time { ns } => {
            bench.now_ns += ns;
            twin.into_iter().for_each(|twin| twin.now_ns += ns);
        }
        Event::Age => {}
    }
}

/// The same program with a few entries removed and others moved.
fn changed(random: &mut Choices, program: &Program) -> Program {
    let mut new = program.clone();
    for pipe in &mut new.pipes {
        if !pipe.entries.is_empty() && random.percent(50) {
            pipe.entries.edit(|all| {
                let at = random.below(all.len());
                let entry = all.remove(at);
                if random.percent(50) {
                    all.push(entry);
                }
            });
        }
        if random.percent(10) {
            pipe.name.push('\'');
        }
    }
    new
}

fn sorted(engine: &Engine) -> Snapshot {
    let mut snapshot = engine.snapshot();
    for pipe in &mut snapshot.pipes {
        pipe.entries.sort_by_cached_key(|entry| format!("{:?}", entry.key));
        pipe.flows.sort_by_key(|flow| flow.key);
    }
    snapshot
}

#[test]
fn s6_a_swap_in_slices_is_at_every_moment_a_swap_at_once() {
    let (mut swaps, mut settled) = (0, 0);
    for seed in 0..200 {
        let mut random = Choices::from_seed(seed);
        let mut old = grown(&mut random);
        let new = changed(&mut random, &old.program);
        let Ok(placeholder) = Engine::new(&new, SECRET) else { continue };
        let mut heir = old.successor(&new);
        while !heir.engine.stage(&mut old.engine, 1 + random.below(3) as u32, old.now_ns) {
            // The old program continues meanwhile.
            let bytes = weir_oracle::arbitrary::frame(&mut random);
            old.frame(PortId(random.below(new.ports.len()) as u16), &bytes);
        }
        let mut twin = old.successor(&new);
        let wanted = twin.engine.inherit(&mut old.replay(), old.now_ns);
        let former = std::mem::replace(&mut old.engine, placeholder);
        heir.engine.take_over(Box::new(former), old.now_ns);
        (heir.now_ns, twin.now_ns) = (old.now_ns, old.now_ns);
        swaps += 1;
        loop {
            assert_eq!(sorted(&heir.engine), sorted(&twin.engine), "seed {seed}");
            assert_eq!(heir.engine.bucket_reports(), twin.engine.bucket_reports(), "seed {seed}");
            if let Some((report, _)) = heir.engine.settle(1 + random.below(3) as u32) {
                assert_eq!(report, wanted, "seed {seed}");
                break;
            }
            settled += 1;
            one_event(&mut random, &mut twin, Some(&mut heir));
        }
        assert_eq!(sorted(&heir.engine), sorted(&twin.engine), "seed {seed}");
    }
    assert!(swaps > 150 && settled > 300, "{swaps} swaps, {settled} slices");
}

/// A pipe with configured and run-time entries, each with an action of its own.
fn many(configured: u16) -> Program {
    let set = Operation::Set(Field::EthDst, Value::PerEntry);
    let pipe = Pipe::basic("p").per_entry(Field::UdpDport).act([set]).entries((0..configured).map(entry));
    start(&["a"], [pipe.forward(PortId(0)).capacity(10_000)]).build()
}

fn entry(at: u16) -> Entry {
    Entry::on(u32::from(at)).value(u32::from(at))
}

fn hits(engine: &Engine) -> u64 {
    engine.entries(PipeId(0)).iter().map(|(_, count)| count.packets).sum()
}

#[test]
fn a_slice_of_a_swap_handles_no_more_entries_than_it_may() {
    const ENTRIES: u16 = 1000;
    const SLICE: u32 = 10;
    let mut bench = Bench::new(&many(ENTRIES));
    for at in ENTRIES..2 * ENTRIES {
        let change = Change::Add { pipe: PipeId(0), entry: entry(at).run_time() };
        bench.engine.apply(&change, 0).unwrap();
    }
    for port in 0..2 * ENTRIES {
        bench.frame(PortId(0), &udp(1, port));
    }
    let mut heir = Box::new(Engine::new(&many(ENTRIES), SECRET).unwrap());
    let (mut staged, mut slices) = (ENTRIES.into(), 0);
    while !heir.stage(&mut bench.engine, SLICE, 0) {
        let now = heir.entries(PipeId(0)).len();
        assert!(now <= staged + SLICE as usize, "{staged}, then {now}");
        (staged, slices) = (now, slices + 1);
    }
    assert_eq!(heir.entries(PipeId(0)).len(), usize::from(2 * ENTRIES));
    assert!(slices >= u32::from(ENTRIES) / SLICE, "{slices} slices");

    std::mem::swap(&mut bench.engine, &mut *heir);
    bench.engine.take_over(heir, 0);
    let mut slices = 0;
    let (report, former) = loop {
        slices += 1;
        assert_eq!(hits(&bench.engine), u64::from(2 * ENTRIES), "nothing is missing in the meantime");
        if let Some(done) = bench.engine.settle(SLICE) {
            break done;
        }
    };
    assert_eq!((report.entries_kept, report.removed), (usize::from(2 * ENTRIES), Vec::new()));
    assert!(slices >= 2 * u32::from(ENTRIES) / SLICE, "{slices} slices");
    assert_eq!((hits(&bench.engine), hits(&former)), (u64::from(2 * ENTRIES), u64::from(2 * ENTRIES)));
}

#[test]
fn an_entry_that_is_removed_and_added_again_while_counts_are_taken_over_begins_anew() {
    let mut bench = Bench::new(&many(3));
    (0..3).for_each(|port| _ = bench.frame(PortId(0), &udp(1, port)));
    let mut heir = Box::new(Engine::new(&many(3), SECRET).unwrap());
    assert!(heir.stage(&mut bench.engine, 1, 0));
    std::mem::swap(&mut bench.engine, &mut *heir);
    bench.engine.take_over(heir, 0);
    let again = entry(2);
    bench.apply(Change::Remove { pipe: PipeId(0), key: EntryKey::of(&again) }).unwrap();
    bench.apply(Change::Add { pipe: PipeId(0), entry: again.run_time() }).unwrap();
    bench.frame(PortId(0), &udp(1, 1));
    let counts = |bench: &Bench| -> Vec<u64> {
        bench.engine.entries(PipeId(0)).iter().map(|(_, count)| count.packets).collect()
    };
    assert_eq!(counts(&bench), [1, 2, 0]);
    assert_eq!(bench.engine.settle(100).map(|(report, _)| report.entries_kept), Some(3));
    assert_eq!(counts(&bench), [1, 2, 0]);
}
