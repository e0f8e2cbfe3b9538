//! How flows come and go: marks, activation, removal, entries that are removed, full buckets, and memory.

use crate::may_load;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use weir_kernel::{Executor, FlowEntry, FlowTable, FrameOutcome, NotFollowed, Why};
use weir_packet::random::Random;
use weir_packet::{Field, FlowKey, craft};
use weir_program::change::EntryKey;
use weir_program::operation::{NatPart, Value};
use weir_program::replica::{FlowCounts, FlowLines, FlowMark, FlowSlot};
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, Learn, Operation, Pipe, PipeId,
    PortDeclaration, PortId, Program, Target, Timeouts, Verdict,
};

pub const PIPE: PipeId = PipeId(0);
pub const PORT: PortId = PortId(0);

/// Flows that are pinned to one of two targets: one sends back, the other to port 1.
fn program(capacity: u32) -> Program {
    let choice = GroupChoice::One(GroupId(0));
    let mut pipe = Pipe::flow("flows", Learn::Pin(choice)).timeouts(Timeouts::CONNTRACK);
    (pipe.capacity, pipe.forward) = (capacity, Forward::PerEntry);
    pipe.entries = [Forward::InputPort, Forward::Port(PortId(1))]
        .into_iter()
        .zip(0..)
        .map(|(forward, target)| entry(target, forward))
        .collect::<Vec<_>>()
        .into();
    let port = |name: &str| PortDeclaration { root: Some(PIPE), ..PortDeclaration::new(name.to_string()) };
    let targets = ["a", "b"].map(|name| Target::new(name, Forward::Drop));
    let groups = vec![Group { targets: targets.into(), ..Group::new("back", Fill::Maglev, 64) }];
    Program { ports: vec![port("a"), port("b")], pipes: vec![pipe], groups, ..Program::default() }
}

pub fn entry(target: u16, forward: Forward) -> Entry {
    Entry { matches: vec![EntryMatch::Target(target)], forward: Some(forward), ..Entry::default() }
}

fn load(program: &Program) -> (Executor, FlowTable, [FlowEntry; 2]) {
    let buckets: Vec<Vec<u16>> = program.groups.iter().map(|group| vec![0; group.size as usize]).collect();
    let mut executor = Executor::load(program, &buckets).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(executor.coverage().pipes, [None]);
    let flows = executor.take_flows().expect("a FLOW pipe compiles");
    let entries = [0, 1].map(|target| {
        executor.flow_entry(PIPE, &[EntryMatch::Target(target)]).expect("there is such an entry")
    });
    (executor, flows, entries)
}

pub fn udp(number: u32) -> (FlowKey, Vec<u8>) {
    let (src, dst) = (Ipv4Addr::from(0x0a00_0000 + number), Ipv4Addr::new(192, 0, 2, 1));
    let key = FlowKey::new(IpAddr::V4(src), IpAddr::V4(dst), 17, (1000, 53), None);
    (key, craft::frame(&format!("src={src} dst={dst} proto=udp sport=1000 dport=53")))
}

pub fn tcp(flags: &str) -> Vec<u8> {
    craft::frame(&format!("src=10.0.0.1 dst=192.0.2.1 proto=tcp sport=1000 dport=80 flags={flags}"))
}

fn mark(flows: &FlowTable, bytes: &[u8]) -> FlowMark {
    flows.read_mark(bytes[..16].try_into().expect("16 bytes")).expect("a flow that is there")
}

/// The flow that the mark in front of a frame names, and which of its packets the frame is.
fn marked(flows: &FlowTable, bytes: &[u8]) -> (FlowSlot, u32) {
    let mark = mark(flows, bytes);
    (mark.slot, mark.packets)
}

/// Follows a flow that was written into a new table and of which no packet has arrived.
pub fn activate_new(flows: &FlowTable, slot: FlowSlot) {
    assert!(flows.pending(slot).is_some_and(|mark| mark.packets == 0 && flows.try_activate(mark)));
}

#[test]
fn a_flow_is_followed_once_the_engine_has_sent_its_last_packet() {
    if !may_load() {
        return;
    }
    let (executor, mut flows, [back, _]) = load(&program(64));
    let (key, frame) = udp(1);
    let run = || executor.run(PORT, &frame).expect("a test run");
    assert_eq!(run(), (FrameOutcome::Left(Why::NewFlow), frame.clone()));
    let slot = flows.insert(PIPE, &key, back, &[]).expect("room");
    assert_eq!(flows.insert(PIPE, &key, back, &[]), Err(NotFollowed::Known));
    let mut marks = Vec::new();
    for number in 1..=3 {
        let (outcome, bytes) = run();
        assert_eq!((outcome, &bytes[16..]), (FrameOutcome::Left(Why::Pending), &frame[..]));
        marks.push(mark(&flows, &bytes));
        assert_eq!(marked(&flows, &bytes), (slot, number));
    }
    assert_eq!(flows.pending(slot), Some(marks[2]));
    assert!(!flows.try_activate(marks[1]), "the third is on its way");
    assert!(flows.try_activate(marks[2]));
    assert_eq!(flows.sweep(slot), FlowCounts::default());
    for _ in 0..2 {
        assert_eq!(run(), (FrameOutcome::Decided(Verdict::Transmit(PORT)), frame.clone()));
    }
    let counts = flows.sweep(slot);
    assert_eq!((counts.packets, counts.bytes, counts.seq), (2, 2 * frame.len() as u64, None));
    assert!(counts.last_ns > 0);
    assert_eq!(flows.sweep(slot).packets, 0);
    flows.deactivate(slot);
    let (outcome, bytes) = run();
    assert_eq!((outcome, marked(&flows, &bytes)), (FrameOutcome::Left(Why::Pending), (slot, 4)));
    flows.remove(slot);
    assert!(flows.read_mark(bytes[..16].try_into().expect("16 bytes")).is_none(), "the flow is gone");
    assert_eq!(run().0, FrameOutcome::Left(Why::NewFlow));
    wait_for_lines(&mut flows, |_, counts| assert_eq!(counts.packets, 0));
}

/// Waits until the lines of all removed flows are free.
fn wait_for_lines(flows: &mut FlowTable, mut gone: impl FnMut(FlowSlot, FlowCounts)) {
    while !flows.is_empty() {
        flows.take_removed(&mut gone);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_engine_names_the_entry_by_its_matches() {
    if !may_load() {
        return;
    }
    let program = program(64);
    let mut executor = Executor::load(&program, &[vec![0; 64]]).unwrap_or_else(|error| panic!("{error}"));
    let (key, frame) = udp(1);
    let mut flows = executor.replica().flows().expect("a FLOW pipe compiles");
    assert_eq!(flows.insert(PIPE, &key, Some(&[EntryMatch::Default]), &[]), None, "there is no such entry");
    let slot = flows.insert(PIPE, &key, Some(&[EntryMatch::Target(1)]), &[]).expect("room");
    let (outcome, bytes) = executor.run(PORT, &frame).expect("a test run");
    assert_eq!(outcome, FrameOutcome::Left(Why::Pending));
    let mark = flows.lines().read_mark(bytes[..16].try_into().expect("16 bytes")).expect("a mark");
    assert!(mark.slot == slot && flows.try_activate(mark));
    let (outcome, _) = executor.run(PORT, &frame).expect("a test run");
    assert_eq!(outcome, FrameOutcome::Decided(Verdict::Transmit(PortId(1))));
    flows.remove_flow(slot);
    let mut last = None;
    while last.is_none() {
        flows.take_removed(&mut |gone, counts| last = Some((gone, counts.packets)));
    }
    assert_eq!(last, Some((slot, 1)));
}

#[test]
fn what_may_change_a_connection_goes_to_the_engine_and_the_next_packets_follow_it() {
    if !may_load() {
        return;
    }
    let (executor, mut flows, [_, other]) = load(&program(64));
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
    let key = FlowKey::new(src, dst, 6, (1000, 80), None);
    let slot = flows.insert(PIPE, &key, other, &[]).expect("room");
    activate_new(&flows, slot);
    let run = |frame: &[u8]| executor.run(PORT, frame).expect("a test run");
    assert_eq!(run(&tcp("A")).0, FrameOutcome::Decided(Verdict::Transmit(PortId(1))));
    assert_eq!(flows.sweep(slot).seq, Some(0));
    for (number, flags) in (1..).zip(["FA", "R", "S"]) {
        let (outcome, bytes) = run(&tcp(flags));
        assert_eq!(
            (outcome, marked(&flows, &bytes)),
            (FrameOutcome::Left(Why::TcpFlags), (slot, 2 * number - 1))
        );
        let first = mark(&flows, &bytes);
        let (outcome, bytes) = run(&tcp("A"));
        assert_eq!((outcome, marked(&flows, &bytes)), (FrameOutcome::Left(Why::Pending), (slot, 2 * number)));
        assert!(!flows.try_activate(first), "{flags}: another packet follows");
        assert!(flows.try_activate(mark(&flows, &bytes)));
        assert_eq!(run(&tcp("A")).0, FrameOutcome::Decided(Verdict::Transmit(PortId(1))));
    }
    assert_eq!(flows.sweep(slot).packets, 3);
}

#[test]
fn flows_of_an_entry_that_is_removed_are_gone_even_if_it_comes_back() {
    if !may_load() {
        return;
    }
    let (mut executor, mut flows, [back, _]) = load(&program(64));
    let (key, frame) = udp(1);
    let slot = flows.insert(PIPE, &key, back, &[]).expect("room");
    activate_new(&flows, slot);
    let outcome = |executor: &Executor| executor.run(PORT, &frame).expect("a test run").0;
    assert_eq!(outcome(&executor), FrameOutcome::Decided(Verdict::Transmit(PORT)));
    // Another action takes effect for live flows.
    let changed = entry(0, Forward::Port(PortId(1)));
    executor.replica().put(PIPE, &changed);
    assert_eq!(outcome(&executor), FrameOutcome::Decided(Verdict::Transmit(PortId(1))));
    executor.replica().remove(PIPE, &EntryKey::of(&changed));
    assert_eq!(outcome(&executor), FrameOutcome::Left(Why::NewFlow));
    assert_eq!(executor.flow_entry(PIPE, &[EntryMatch::Target(0)]), None);
    executor.replica().put(PIPE, &changed);
    assert_eq!(outcome(&executor), FrameOutcome::Left(Why::NewFlow));
    flows.remove(slot);
    let now = executor.flow_entry(PIPE, &[EntryMatch::Target(0)]).expect("it is there again");
    let slot = flows.insert(PIPE, &key, now, &[]).expect("another line, while the first one is not free");
    activate_new(&flows, slot);
    assert_eq!(outcome(&executor), FrameOutcome::Decided(Verdict::Transmit(PortId(1))));
}

#[test]
fn a_full_bucket_refuses_and_memory_per_flow_is_within_its_limit() {
    if !may_load() {
        return;
    }
    const FLOWS: u32 = 50_000;
    let nat = [(Field::Ipv4Src, NatPart::Address), (Field::L4Sport, NatPart::Port)];
    let nat = nat.map(|(field, part)| Operation::Set(field, Value::Nat(part)));
    let values = [0x0a00_0001, 1024].map(Value::Const);
    let kept = [Field::Ipv4Src, Field::L4Sport].into_iter().zip(values);
    let kept: Vec<_> = kept.map(|(field, value)| Some(Operation::Set(field, value))).collect();
    let kept = weir_kernel::kept_bytes(&kept);
    for (ipv6, kept, limit) in [(false, &[][..], 128), (true, &[], 192), (false, &kept, 192)] {
        let mut program = program(FLOWS);
        if !kept.is_empty() {
            program.pipes[0].templates[0].operations.extend(nat);
        }
        let (_executor, mut flows, [back, _]) = load(&program);
        let key = |number: u32| {
            let (src, dst) = match ipv6 {
                true => (
                    IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number))),
                    IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96)),
                ),
                false => (IpAddr::V4(number.into()), IpAddr::from([192, 0, 2, 1])),
            };
            FlowKey::new(src, dst, 6, (number as u16, 80), None)
        };
        let fits = |flows: &mut FlowTable, number| match flows.insert(PIPE, &key(number), back, kept) {
            Ok(_) => true,
            Err(NotFollowed::Full) => false,
            Err(other) => panic!("{other:?}"),
        };
        let placed: Vec<u32> = (0..FLOWS).filter(|number| fits(&mut flows, *number)).collect();
        let bytes = flows.bytes() / placed.len();
        let keeps = kept.len();
        eprintln!("IPv6 {ipv6}, {keeps} kept: {} of {FLOWS} fit, {bytes} bytes each", placed.len());
        assert!(bytes <= limit, "{bytes} bytes");
        let least = if kept.is_empty() { FLOWS } else { FLOWS / 100 * 99 };
        assert!(ipv6 || placed.len() >= least as usize, "{} IPv4 flows", placed.len());
        // Until nothing fits any more.
        let more = (FLOWS..FLOWS * 4).filter(|number| fits(&mut flows, *number)).count();
        assert!(more < 3 * FLOWS as usize);
        assert_eq!(flows.len(), placed.len() + more, "a refusal evicts nothing");
        assert!(placed.iter().all(|number| flows.find(PIPE, &key(*number)).is_some()));
    }
}

/// Packets of a flow that were left to the engine, and those of them that it has sent.
#[derive(Default)]
struct Passage {
    entered: AtomicU64,
    sent: AtomicU64,
}

/// What the engine does with packets that are left to it, in order: it sends them, and writes, activates and
/// removes flows. Adds those that it removes to `removed`, and returns what each flow has counted.
fn engine<const N: usize>(
    frames: &Receiver<(usize, Vec<u8>)>,
    mut flows: FlowTable,
    entries: [FlowEntry; 2],
    ways: &[Passage; N],
    removed: &AtomicU64,
) -> [u64; N] {
    let mut random = Random::new(7);
    let (mut slots, mut counted) = ([None::<FlowSlot>; N], [0; N]);
    let mut owners = std::collections::HashMap::new();
    for (flow, bytes) in frames {
        for _ in 0..random.below(2000) {
            std::hint::spin_loop();
        }
        ways[flow].sent.fetch_add(1, Ordering::SeqCst);
        let marked = bytes.first_chunk().and_then(|bytes| flows.read_mark(bytes));
        marked.into_iter().for_each(|mark| _ = flows.try_activate(mark));
        flows.take_removed(|slot, counts| counted[owners.remove(&slot).expect("known")] += counts.packets);
        match slots[flow] {
            None => {
                if let Ok(slot) = flows.insert(PIPE, &udp(flow as u32).0, entries[flow % 2], &[]) {
                    slots[flow] = Some(slot);
                    assert_eq!(owners.insert(slot, flow), None, "a line has one owner");
                }
            }
            Some(slot) => counted[flow] += flows.sweep(slot).packets,
        }
        // Flows leave at any time.
        let other = random.below(N as u64) as usize;
        if random.below(4) == 0
            && let Some(slot) = slots[other].take()
        {
            flows.remove(slot);
            removed.fetch_add(1, Ordering::SeqCst);
        }
    }
    slots.into_iter().flatten().for_each(|slot| flows.remove(slot));
    wait_for_lines(&mut flows, |slot, counts| counted[owners[&slot]] += counts.packets);
    counted
}

#[test]
fn no_packet_overtakes_another_or_is_lost_while_flows_come_and_go() {
    if may_load() {
        come_and_go_at(1);
    }
}

#[test]
fn the_same_is_true_if_each_of_several_workers_has_flows_in_the_table() {
    if may_load() {
        come_and_go_at(3);
    }
}

/// Packets of flows, which belong to `workers` workers in turn. On a busy machine the workers may rarely run
/// beside the packets, so packets arrive until enough flows have been removed among them.
fn come_and_go_at(workers: usize) {
    const FLOWS: usize = 12;
    const PACKETS: usize = 60_000;
    const REMOVED: u64 = 100;
    // Two buckets.
    let (executor, flows, entries) = load(&program(8));
    let ways: [Passage; FLOWS] = Default::default();
    let frames: Vec<Vec<u8>> = (0..FLOWS).map(|flow| udp(flow as u32).1).collect();
    let mut decided = [0_u64; FLOWS];
    let (removed, mut packets) = (AtomicU64::new(0), 0);
    let counted = std::thread::scope(|scope| {
        let (mut to_engines, mut engines) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            let ((to_engine, from_kernel), own) = (sync_channel(16), flows.share());
            to_engines.push(to_engine);
            engines.push(scope.spawn(|| engine(&{ from_kernel }, own, entries, &ways, &removed)));
        }
        let mut random = Random::new(3);
        while packets < PACKETS || removed.load(Ordering::SeqCst) < REMOVED {
            let packet = packets;
            packets += 1;
            assert!(packet < 100 * PACKETS, "only {removed:?} flows were removed");
            let flow = random.below(FLOWS as u64) as usize;
            let entered = ways[flow].entered.load(Ordering::SeqCst);
            let (outcome, bytes) = executor.run(PORT, &frames[flow]).expect("a test run");
            match outcome {
                FrameOutcome::Decided(verdict) => {
                    assert_eq!(verdict, Verdict::Transmit(PortId((flow % 2) as u16)), "packet {packet}");
                    let sent = ways[flow].sent.load(Ordering::SeqCst);
                    assert_eq!(sent, entered, "packet {packet} of flow {flow} overtakes one");
                    decided[flow] += 1;
                }
                FrameOutcome::Left(why) => {
                    assert!(matches!(why, Why::NewFlow | Why::Pending), "{why:?}");
                    ways[flow].entered.fetch_add(1, Ordering::SeqCst);
                    let front = if why == Why::Pending { bytes[..16].to_vec() } else { Vec::new() };
                    to_engines[flow % workers].send((flow, front)).expect("the engine runs");
                }
            }
        }
        drop(to_engines);
        engines.into_iter().fold([0; FLOWS], |sums, engine| {
            let counted = engine.join().expect("the engine does not panic");
            std::array::from_fn(|flow| sums[flow] + counted[flow])
        })
    });
    assert_eq!(counted, decided);
    let followed: u64 = decided.iter().sum();
    let removed = removed.into_inner();
    eprintln!("{followed} of {packets} packets were followed while {removed} flows were removed");
    assert!(followed > 1000, "{followed} of {packets} packets were followed");
    let hits = [0, 1].map(|target| {
        let key = EntryKey::of(&entry(target, Forward::Drop));
        executor.hits(PIPE, &key).packets
    });
    assert_eq!(hits.iter().sum::<u64>(), followed);
}

/// Follows a flow, removes it while its packets are treated, and adds up what it has counted, again and
/// again.
fn come_and_go(mut flows: FlowTable, key: &FlowKey, decided: FlowEntry, is_over: &AtomicU64) -> u64 {
    let mut counted = 0;
    for _ in 0..100 {
        let slot = flows.insert(PIPE, key, decided, &[]).expect("room");
        let mut met = 0;
        while met < 10 {
            // XDP counts a packet that it leaves, and then makes the flow pending. If the flow is activated
            // in between, which an engine cannot do without the packet's mark, it is pending again.
            flows.pending(slot).map(|mark| flows.try_activate(mark));
            met += flows.sweep(slot).packets;
        }
        counted += met;
        flows.remove(slot);
        while !flows.is_empty() {
            flows.take_removed(|_, counts| counted += counts.packets);
            std::thread::yield_now();
        }
    }
    is_over.store(1, Ordering::SeqCst);
    counted
}

#[test]
fn a_removed_flow_has_counted_all_its_packets() {
    if !may_load() {
        return;
    }
    let (executor, flows, [back, _]) = load(&program(8));
    let (key, frame) = udp(1);
    let is_over = AtomicU64::new(0);
    let counted = std::thread::scope(|scope| {
        let flow = scope.spawn(|| come_and_go(flows, &key, back, &is_over));
        while is_over.load(Ordering::SeqCst) == 0 && !flow.is_finished() {
            executor.run(PORT, &frame).expect("a test run");
        }
        flow.join().expect("no panic")
    });
    let hits = executor.hits(PIPE, &EntryKey::of(&entry(0, Forward::Drop))).packets;
    assert!(counted >= 1000, "{counted} packets");
    assert_eq!(counted, hits);
}

#[test]
fn workers_that_write_flows_at_once_lose_none() {
    if !may_load() {
        return;
    }
    const WORKERS: u32 = 3;
    const FLOWS: u32 = 8;
    let (_executor, flows, [back, _]) = load(&program(32));
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let mut own = flows.share();
            scope.spawn(move || {
                let keys = (0..FLOWS).map(|flow| udp(worker * FLOWS + flow).0);
                let mut slots: Vec<_> = keys.map(|key| (key, None)).collect();
                let mut random = Random::new(u64::from(worker));
                for _ in 0..20_000 {
                    let at = random.below(u64::from(FLOWS)) as usize;
                    let (key, slot) = &mut slots[at];
                    match slot.take() {
                        Some(slot) => own.remove(slot),
                        // Full, or the former line is not free yet: another time.
                        None => *slot = own.insert(PIPE, key, back, &[]).ok(),
                    }
                    own.take_removed(|_, _| {});
                    for (key, slot) in &slots {
                        assert_eq!(own.find(PIPE, key), *slot, "worker {worker}, {key}");
                    }
                }
                slots.into_iter().filter_map(|(_, slot)| slot).for_each(|slot| own.remove(slot));
                wait_for_lines(&mut own, |_, _| {});
            });
        }
    });
    // All lines are free again.
    let mut flows = flows;
    let placed = (0..32).filter(|number| flows.insert(PIPE, &udp(*number).0, back, &[]).is_ok()).count();
    assert_eq!(placed, 32);
}

#[test]
fn a_worker_that_stops_leaves_all_packets_to_the_workers_until_they_are_sent() {
    if !may_load() {
        return;
    }
    let (executor, mut flows, [back, _]) = load(&program(64));
    let mut other = flows.share();
    let [(key, frame), (other_key, other_frame)] = [1, 2].map(udp);
    let slot = flows.insert(PIPE, &key, back, &[]).expect("room");
    let other_slot = other.insert(PIPE, &other_key, back, &[]).expect("room");
    assert_eq!((flows.len(), other.len()), (1, 1));
    assert_eq!(other.insert(PIPE, &key, back, &[]), Err(NotFollowed::Known), "it has an owner");
    activate_new(&flows, slot);
    activate_new(&other, other_slot);
    let run = |frame: &[u8]| executor.run(PORT, frame).expect("a test run");
    let decided = FrameOutcome::Decided(Verdict::Transmit(PORT));
    assert_eq!([run(&frame).0, run(&other_frame).0], [decided; 2]);
    other.begin_epoch();
    for (slot, key, frame) in [(slot, &key, &frame), (other_slot, &other_key, &other_frame)] {
        assert!(!flows.is_active(slot));
        let (outcome, bytes) = run(frame);
        assert_eq!(outcome, FrameOutcome::Left(Why::Pending), "{key}");
        assert_eq!(flows.sweep(slot).packets, 1);
        assert!(flows.try_activate(mark(&flows, &bytes)));
        assert_eq!(run(frame).0, decided);
    }
}
