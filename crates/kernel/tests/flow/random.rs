//! Random programs and packets: the interpreter learns the flows.

use crate::may_load;
use crate::tamed::tamed;
use crate::uncompiled::{forward, simplify};
use std::collections::BTreeMap;
use weir_kernel::{
    Coverage, Executor, FlowEntry, FlowTable, FrameOutcome, NotFollowed, Why, kept_bytes, leads_of,
};
use weir_oracle::FlowSource;
use weir_oracle::arbitrary::{self, Choices, dealt_buckets, frame, program};
use weir_oracle::{Interpreter, Walk};
use weir_packet::{FlowKey, KeySource, craft};
use weir_program::operation::{Slot, Value};
use weir_program::replica::{FlowLines, FlowSlot, Swept};
use weir_program::snapshot::{Count, FlowDecision, Snapshot};
use weir_program::{
    Entry, EntryMatch, Forward, Learn, Operation, Pipe, PipeId, PipeKind, PortId, Program, Verdict,
};

const PROGRAMS: u64 = 700;
const FRAMES: usize = 40;
const PACKETS: usize = 200;

/// Workers that have flows in the table.
pub const OWNERS: usize = 3;

/// What a run has seen.
#[derive(Debug, Default)]
pub struct FollowTally {
    programs: u64,
    flows: u64,
    of_owners: [u64; OWNERS],
    of_ipv6: u64,
    of_tcp: u64,
    tracked: u64,
    following: u64,
    /// Flows whose group metadata chose: pinned, and following.
    by_meta: [u64; 2],
    /// Flows that were learnt in pairs.
    answers: u64,
    /// In how many programs the decided packets have met a feature.
    met: BTreeMap<String, u64>,
    /// Packets that flows have counted in the kernel.
    followed: u64,
    decided: u64,
    refused: u64,
    /// New flows to the kernel: packets without a key, and those that are new to a second pipe only.
    no_key: u64,
    second: u64,
    left: BTreeMap<String, u64>,
    instructions: usize,
}

#[test]
fn flows_that_the_interpreter_has_learnt_are_followed_as_it_follows_them() {
    if !may_load() {
        return;
    }
    let mut seen = FollowTally::default();
    // Fewer on slow machines, and others in `make explore`, as in the equality test.
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let programs = number("KERNEL_PROGRAMS").unwrap_or(PROGRAMS);
    let first = number("PROPTEST_RNG_SEED").unwrap_or_default() << 24;
    let has_pool = |seed: &u64| !program(&mut Choices::from_seed(*seed)).nat_pools.is_empty();
    let with_pools = (first + programs..).filter(has_pool).take(programs as usize / 8);
    (first..first + programs).chain(with_pools).for_each(|seed| compare(seed, &mut seen));
    eprintln!("{seen:#?}");
    if programs < PROGRAMS {
        return assert!(seen.decided > 0, "{seen:?}");
    }
    assert!(seen.programs > 200 && seen.followed > 2000, "{seen:?}");
    assert!(seen.of_ipv6 > 200 && seen.of_tcp > 200 && seen.tracked > 200, "{seen:?}");
    assert!(seen.following > 50 && seen.answers > 50, "{seen:?}");
    assert!(seen.of_owners.iter().all(|flows| *flows > 200), "{seen:?}");
    assert!(seen.by_meta.iter().all(|flows| *flows > 20), "{seen:?}");
    assert!(seen.left.contains_key("TcpFlags"), "{seen:?}");
    // Programs of another seed may have fewer of a feature.
    let least = if first == 0 { 20 } else { 8 };
    for feature in ["flow:nat:answers", "kept:nat", "kept:per_flow", "kept:learnt"] {
        assert!(seen.met.get(feature).is_some_and(|programs| *programs >= least), "{feature}: {seen:#?}");
    }
}

/// A random program whose FLOW pipes mostly compile.
pub fn flow_program(random: &mut Choices) -> Program {
    let original = program(random);
    let mut now = tamed(original.clone(), random);
    for (at, pipe) in now.pipes.iter_mut().enumerate() {
        if matches!(original.pipes[at].kind, PipeKind::Flow { .. }) {
            *pipe = plain_flows(&original.pipes[at], pipe);
            if pipe.nat.is_some() {
                focus_on_nat(pipe);
            }
            if pipe.nat.is_some() || random.percent(60) {
                pipe.matches.clear();
                now.ports[0].root = Some(PipeId(at as u16));
            }
        }
    }
    // Nothing has written metadata when a packet meets its first pipe.
    if now.groups.iter().all(|group| group.number != Some(0)) {
        let chosen = now.groups.iter_mut().find(|group| group.number.is_some());
        chosen.into_iter().for_each(|group| group.number = Some(0));
    }
    now
}

/// A FLOW pipe without what the kernel leaves to the engine; the rest is as it was tamed.
fn plain_flows(original: &Pipe, tamed: &Pipe) -> Pipe {
    let templates = original.templates.clone();
    let mut pipe = Pipe { kind: original.kind.clone(), nat: original.nat, templates, ..tamed.clone() };
    if let PipeKind::Flow { key, learn, .. } = &mut pipe.kind {
        *key = KeySource::Outer;
        *learn = match *learn {
            Learn::Nothing => Learn::Default,
            other => other,
        };
    }
    pipe.capacity = pipe.capacity.max(64);
    for operation in pipe.templates.iter_mut().flat_map(|template| &mut template.operations) {
        // Other operations may use values that a flow keeps.
        let is_encap = matches!(operation, Operation::Encap(_));
        for argument in operation.arguments().into_iter().filter(|_| is_encap) {
            let (Slot::Number(value, _) | Slot::Optional(Some(value), _) | Slot::Hashed(Some(value), _)) =
                argument.slot
            else {
                continue;
            };
            *value = match *value {
                Value::PerFlow => Value::PerEntry,
                Value::Learnt(_) | Value::Nat(_) => Value::Const(77),
                other => other,
            };
        }
    }
    let mut entries: Vec<Entry> = original.entries.iter().collect();
    for entry in &mut entries {
        entry.meter = None;
        entry.forward = entry.forward.map(forward);
    }
    pipe.entries = entries.into();
    pipe
}

/// Removes what keeps packets of a NAT pipe from being handled in the kernel.
fn focus_on_nat(pipe: &mut Pipe) {
    simplify(pipe, true);
    pipe.forward = outward(pipe.forward);
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    entries.iter_mut().for_each(|entry| entry.forward = entry.forward.map(outward));
    pipe.entries = entries.into();
}

fn outward(forward: Forward) -> Forward {
    match forward {
        Forward::Pipe(_) | Forward::Group(_) => Forward::InputPort,
        other => other,
    }
}

/// A flow of a pipe that the kernel follows.
pub struct Followed {
    pipe: usize,
    key: FlowKey,
    pub slot: FlowSlot,
}

fn compare(seed: u64, seen: &mut FollowTally) {
    let mut random = Choices::from_seed(seed);
    let program = flow_program(&mut random);
    let coverage = Coverage::of(&program, &leads_of(&program), &vec![true; program.ports.len()]);
    let is_followed =
        |(pipe, why): (&Pipe, &Option<Why>)| matches!(pipe.kind, PipeKind::Flow { .. }) && why.is_none();
    if !program.pipes.iter().zip(&coverage.pipes).any(is_followed) {
        return;
    }
    let buckets: Vec<Vec<u16>> = program.groups.iter().map(dealt_buckets).collect();
    let mut oracle = Interpreter::new(&program, buckets.clone());
    let mut executor =
        Executor::load(&program, &buckets).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let flows = executor.take_flows().expect("a FLOW pipe compiles");
    let mut owners = [(); OWNERS].map(|()| flows.share());
    seen.programs += 1;
    seen.instructions = seen.instructions.max(*executor.instructions().iter().max().unwrap_or(&0));
    let mut packets = packets(&program, &mut random);
    for (now_ms, (port, bytes)) in (0..).zip(packets.iter().cycle().take(3 * FRAMES)) {
        oracle.walk(*port, bytes, 256, now_ms * 1_000_000);
    }
    packets.extend(answers(&mut oracle, &mut random));
    let before = oracle.snapshot();
    let followed = follow(&program, (&oracle, &before), (&executor, &mut owners), seen);
    let mut met = arbitrary::Coverage::default();
    for packet in 0..PACKETS {
        let (port, bytes) = &packets[random.below(packets.len())];
        let at = format!("seed {seed}, packet {packet}");
        let (outcome, after) = executor.run(*port, bytes).expect("a test run");
        match outcome {
            FrameOutcome::Left(why) => {
                *seen.left.entry(format!("{why:?}")).or_default() += 1;
                let now_ns = 3 * FRAMES as u64 * 1_000_000;
                let explain = || oracle.explain(*port, bytes, 256, now_ns);
                match why {
                    Why::NewFlow => is_new(&explain(), &followed, seen),
                    // The engine does not see the packet here, so the flow's state stays as it was.
                    Why::TcpFlags | Why::Pending => activate_again(&flows, &after, bytes),
                    _ => assert_eq!(&after, bytes, "{at}: {why:?}"),
                }
            }
            FrameOutcome::Decided(verdict) => {
                let walk = oracle.walk(*port, bytes, 256, 3 * FRAMES as u64 * 1_000_000);
                assert_eq!(walk.verdict, verdict, "{at}: {:#?}", walk.trace);
                if !matches!(verdict, Verdict::Drop(_)) {
                    assert_eq!(walk.bytes, after, "{at}: {:#?}", walk.trace);
                }
                seen.decided += 1;
                met.walk(&program, &walk);
            }
        }
    }
    met.met().keys().for_each(|feature| *seen.met.entry(feature.clone()).or_default() += 1);
    let now = oracle.snapshot();
    counts_are_equal(seed, (&before, &now), &mut executor);
    seen.followed += flows_are_equal(seed, (&before, &now), &followed, &flows);
}

/// The flow of a packet of which the kernel says that it is new is not followed.
fn is_new(walk: &Walk, followed: &[Followed], seen: &mut FollowTally) {
    let met: Vec<_> =
        walk.trace.iter().filter_map(|step| Some((step.pipe, step.flow.as_ref()?.key?))).collect();
    let is_followed = |(pipe, key): &(PipeId, FlowKey)| {
        followed.iter().any(|one| one.pipe == pipe.index() && one.key == *key)
    };
    let is_known = met.first().is_some_and(is_followed);
    assert!(!is_known || met.len() > 1, "{:#?}", walk.trace);
    seen.no_key += u64::from(met.is_empty());
    seen.second += u64::from(is_known);
}

/// The frame has a mark in front, which says that no other packet of its flow is on its way.
fn activate_again(flows: &FlowTable, after: &[u8], frame: &[u8]) {
    let (mark, rest) = after.split_first_chunk().expect("16 bytes");
    assert_eq!(rest, frame);
    let mark = flows.read_mark(mark).expect("a flow that is there");
    assert!(flows.try_activate(mark));
}

/// Frames with the ports that they arrive at.
fn packets(program: &Program, random: &mut Choices) -> Vec<(PortId, Vec<u8>)> {
    let mut all = Vec::new();
    while all.len() < FRAMES {
        let bytes = frame(random);
        let port = if random.percent(70) { 0 } else { random.below(program.ports.len()) };
        if bytes.len() >= 14 && bytes.len() <= 3000 {
            all.push((PortId(port as u16), bytes));
        }
    }
    all
}

/// Packets of flows that were learnt as answers. The interpreter has had each of them twice.
fn answers(oracle: &mut Interpreter, random: &mut Choices) -> Vec<(PortId, Vec<u8>)> {
    let learnt = oracle.snapshot();
    let flows = learnt.pipes.iter().flat_map(|pipe| &pipe.flows).filter(|flow| flow.pair.is_some());
    let mut all = Vec::new();
    for flow in flows.filter(|flow| flow.decision == FlowDecision::Default) {
        let protocol = match flow.key.protocol() {
            6 => "tcp flags=A",
            17 => "udp",
            _ => continue,
        };
        let (src, dst) = (flow.key.src(), flow.key.dst());
        let (sport, dport) = (flow.key.sport(), flow.key.dport());
        if random.percent(50) && all.len() < FRAMES {
            let text = format!("src={src} dst={dst} sport={sport} dport={dport} proto={protocol}");
            all.push((PortId(0), craft::frame(&text)));
        }
    }
    for (port, bytes) in all.iter().cycle().take(2 * all.len()) {
        oracle.walk(*port, bytes, 256, 3 * FRAMES as u64 * 1_000_000);
    }
    all
}

/// Lets the kernel follow all flows that it can.
pub fn follow(
    program: &Program,
    (oracle, learnt): (&Interpreter, &Snapshot),
    (executor, owners): (&Executor, &mut [FlowTable; OWNERS]),
    seen: &mut FollowTally,
) -> Vec<Followed> {
    let mut followed = Vec::new();
    for (pipe, state) in learnt.pipes.iter().enumerate() {
        let is_flow = matches!(program.pipes[pipe].kind, PipeKind::Flow { .. });
        if !is_flow || executor.coverage().pipes[pipe].is_some() {
            continue;
        }
        for flow in &state.flows {
            let matches = match flow.decision {
                FlowDecision::Default => Some(EntryMatch::Default),
                FlowDecision::Pinned(target) => Some(EntryMatch::Target(target)),
                FlowDecision::PinnedIn(group, target) => Some(EntryMatch::Member { group, target }),
                FlowDecision::Follow(_) | FlowDecision::FollowChosen => None,
                FlowDecision::Own => continue,
            };
            if flow.state.is_some_and(|state| state.after_plain_packets().is_none()) {
                continue;
            }
            let id = PipeId(pipe as u16);
            let entry = match matches {
                Some(one) => executor.flow_entry(id, &[one]).expect("the entry of a live flow"),
                None => FlowEntry::FOLLOWS,
            };
            let owner = followed.len() % OWNERS;
            let flows = &mut owners[owner];
            let kept = kept_bytes(&oracle.kept(id, &flow.key).expect("a live flow"));
            let slot = match flows.insert(id, &flow.key, entry, &kept) {
                Ok(slot) => slot,
                Err(NotFollowed::Full) => {
                    seen.refused += 1;
                    continue;
                }
                // The answers to a multicast address, which no packet has as its source.
                Err(NotFollowed::Tunnel) => continue,
                Err(other) => panic!("{other:?}: {}", flow.key),
            };
            assert_eq!(flows.find(id, &flow.key), Some(slot));
            assert!(flows.pending(slot).is_some_and(|mark| mark.packets == 0 && flows.try_activate(mark)));
            seen.flows += 1;
            seen.of_owners[owner] += 1;
            seen.of_ipv6 += u64::from(flow.key.src().is_ipv6());
            seen.of_tcp += u64::from(flow.key.protocol() == 6);
            seen.following += u64::from(matches.is_none());
            let by_meta = matches!(flow.decision, FlowDecision::FollowChosen | FlowDecision::PinnedIn(..));
            seen.by_meta[usize::from(matches.is_none())] += u64::from(by_meta);
            seen.answers += u64::from(flow.pair.is_some());
            seen.tracked += u64::from(flow.state.is_some());
            followed.push(Followed { pipe, key: flow.key, slot });
        }
    }
    followed
}

fn less(now: Count, before: Count) -> Count {
    Count { packets: now.packets - before.packets, bytes: now.bytes - before.bytes }
}

/// The packets that the kernel decided are all that the interpreter has walked since.
fn counts_are_equal(seed: u64, (before, now): (&Snapshot, &Snapshot), executor: &mut Executor) {
    let (mut misses, mut counters) = (BTreeMap::new(), BTreeMap::new());
    executor.replica().sweep(true, &mut |swept| match swept {
        Swept::Misses(pipe, count) => misses.entry(pipe.index()).or_insert_with(Count::default).add(count),
        Swept::Counter(id, count) => counters.entry(id.index()).or_insert_with(Count::default).add(count),
        Swept::Entry(..) | Swept::Decided(..) | Swept::Dropped(..) => {}
        Swept::Sent(..) | Swept::Unsent(..) => {}
    });
    for (at, (before, now)) in before.pipes.iter().zip(&now.pipes).enumerate() {
        let missed = misses.remove(&at).unwrap_or_default();
        assert_eq!(missed, less(now.misses, before.misses), "seed {seed}, misses of pipe {at}");
        for (before, now) in before.entries.iter().zip(&now.entries) {
            let hits = less(now.hits, before.hits);
            let id = PipeId(at as u16);
            assert_eq!(executor.hits(id, &now.key), hits, "seed {seed}, pipe {at}, {:?}", now.key);
        }
    }
    for (at, (before, now)) in before.counters.iter().zip(&now.counters).enumerate() {
        let counted = counters.remove(&at).unwrap_or_default();
        assert_eq!(counted, less(*now, *before), "seed {seed}, counter {at}");
    }
}

/// Returns the packets that the flows have counted.
fn flows_are_equal(
    seed: u64,
    (before, now): (&Snapshot, &Snapshot),
    followed: &[Followed],
    flows: &FlowTable,
) -> u64 {
    let mut packets = 0;
    for Followed { pipe, key, slot } in followed {
        let of = |snapshot: &Snapshot| {
            let flow = snapshot.pipes[*pipe].flows.iter().find(|flow| flow.key == *key);
            flow.cloned().unwrap_or_else(|| panic!("seed {seed}: {key} is gone"))
        };
        let (before, now, swept) = (of(before), of(now), flows.sweep(*slot));
        let hits = less(now.hits, before.hits);
        assert_eq!((swept.packets, swept.bytes), (hits.packets, hits.bytes), "seed {seed}, {key}");
        assert_eq!(swept.last_ns != 0, swept.packets != 0, "seed {seed}, {key}");
        let after = match before.state {
            Some(state) if swept.packets != 0 => state.after_plain_packets(),
            other => other,
        };
        // Of flows in pairs, the state is that of both directions.
        assert!(
            before.pair.is_some() || now.state == after,
            "seed {seed}, {key}: {:?}, not {after:?}",
            now.state
        );
        packets += swept.packets;
    }
    packets
}
