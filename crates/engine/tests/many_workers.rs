//! One, two and four workers behave the same, whatever the NIC does: random programs that keep flows, with
//! frames that arrive at workers they do not belong to, changes, time, aging, and swaps in between. One crew
//! also changes the number of its workers while frames are in flight between them.
//!
//! After each action, the frames that left, and the flows and counts of all workers together, must be those
//! of a single worker. Features that are per-worker by definition are excluded: meters, packets and new flows
//! dealt out in turn or to the target with the fewest, buckets that must be idle, and run-time entries that
//! age (changes.md O1). Where answers are learnt with a flow (`reverse`), or a flow keeps fields of its
//! first packet, frames arrive one at a time: which of two packets is handled first depends on the order in
//! which workers take turns, which a NIC's queues do not preserve either. Where the pipes in front of FLOW
//! pipes are looked through, no change opens other paths.
//!
//! A case ends with changes proposed to all workers while frames are in flight between them. When each change
//! is carried out is then left open, so the requirement is that all workers have the same entries and
//! buckets, that no frame is lost, and that no flow is on two workers.
//!
//! `WEIR_SEED=n` runs one case; `WEIR_CASES=n` runs that many cases.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use support::{SECRET, balancer};
use weir_engine::batch::Engine;
use weir_engine::lockstep::Arriving;
use weir_engine::worker::{Assembly, Command, HandOver, Outcome, Part, Proposer, Rewire, Rewiring, Worker};
use weir_oracle::arbitrary::{Choices, Event, event, program};
use weir_packet::{BATCH, Depth, FlowKey, KeySource, Layer, Ledger, Level, Pools, Port, parse};
use weir_port::{MemPort, MemWire};
use weir_program::change::{Change, Changes, EntryKey};
use weir_program::check::owners;
use weir_program::nat::Binding;
use weir_program::operation::Value;
use weir_program::owner::Owning;
use weir_program::snapshot::{Count, FlowDecision};
use weir_program::{
    EntryMatch, Fill, HashInput, NewFlows, OwnedBy, PipeId, PipeKind, PortId, Program, SharedUse, Timeouts,
};

/// Number of cases in a default run; most random programs keep no flows.
const CASES: u64 = 600;
/// Number of actions in a case.
const ACTS: usize = 40;
/// Number of changes proposed at the end of a case.
const PROPOSALS: usize = 12;
/// Out of eight seeds, the one that runs the balancer's program.
const BALANCER: u64 = 6;
/// Chunks of a worker: more than the frames of an action.
const CHUNKS: u32 = 1024;

/// A worker, the far ends of its ports, and the way to give it commands.
type Hand = (Worker, Vec<MemWire>, SyncSender<Command>);

/// Workers that hand over to each other.
struct PassingWorkers {
    workers: Vec<Hand>,
    now_ns: u64,
    /// The number of the program.
    generation: u64,
    /// The wires of workers that no longer exist, with the frames that they sent.
    gone: Vec<MemWire>,
    moved: usize,
}

/// The observable state of a crew.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    /// Frames that left, by port, sorted.
    left: Vec<(usize, Vec<u8>)>,
    ledger: Ledger,
    counters: Vec<Count>,
    /// By pipe.
    hits: Vec<(u64, Count)>,
    /// Packets that met FLOW pipes.
    met: u64,
    flows: Vec<BTreeMap<FlowKey, TestFlow>>,
}

#[derive(Debug, PartialEq)]
struct TestFlow {
    decision: FlowDecision,
    binding: Option<Binding>,
    hits: Count,
    /// `None` for a flow with an entry of its own, because every worker has a replica of it.
    seen_ms: Option<(u32, u32)>,
}

impl PassingWorkers {
    fn new(program: &Program, count: usize) -> PassingWorkers {
        let one = |rings: HandOver| {
            let (worker, wires, commands) = hand(program, Engine::new(program, SECRET).expect("compiles"));
            (worker.with_hand_over(rings), wires, commands)
        };
        let workers = HandOver::of_capacity(count, 16).into_iter().map(one).collect();
        PassingWorkers { workers, now_ns: 0, generation: 1, gone: Vec::new(), moved: 0 }
    }

    /// Changes the number of workers. The program was swapped before, so that the entries are those that a
    /// new engine has.
    fn resize(&mut self, program: &Program, after: usize) {
        let before = self.workers.len();
        let new = before..after;
        let engine = |_| {
            let mut engine = Box::new(Engine::new(program, SECRET).expect("compiles"));
            engine.set_generation(self.generation);
            engine
        };
        let (answer, replicas) = sync_channel(1);
        self.send(0, Command::Replicate(new.clone().map(engine).collect(), answer));
        let replicas = loop {
            self.workers[0].0.breathe(self.now_ns);
            if let Ok(replicas) = replicas.try_recv() {
                break replicas;
            }
        };
        let steering = SECRET.into();
        let assembly = Arc::new(Assembly::new((before, after), replicas, steering));
        for _ in new {
            let (worker, wires, commands) = hand(program, Engine::stand_in(SECRET));
            self.workers.push((worker.dormant(), wires, commands));
        }
        let rings = HandOver::of_capacity(after, 16).into_iter().map(Some);
        let mut rings = rings.chain(std::iter::repeat_with(|| None));
        let (mut resumed, mut estates) = (Vec::new(), Vec::new());
        for own in 0..self.workers.len() {
            let ((send, goes_on), (leave, estate)) = (sync_channel(1), sync_channel(1));
            let part = Part {
                assembly: assembly.clone(),
                own,
                hand_over: rings.next().flatten().unwrap_or_default(),
                stand_in: (own < before).then(|| Box::new(Engine::stand_in(SECRET))),
                generation: self.generation,
                resumed: send,
                estate: leave,
            };
            self.send(own, Command::Resize(Box::new(part)));
            resumed.push(goes_on);
            estates.push(estate);
        }
        while !resumed.is_empty() {
            self.turn();
            resumed.retain(|one| one.try_recv().is_err());
        }
        self.moved += assembly.moved().moved;
        assert_eq!(assembly.moved().ended, 0, "there is room for all");
        for estate in estates.drain(after.min(before)..before) {
            let estate = loop {
                self.turn();
                if let Ok(estate) = estate.try_recv() {
                    break estate;
                }
            };
            self.send(0, Command::Inherit(estate));
        }
        for (worker, wires, _) in self.workers.drain(after.min(before)..before) {
            assert!(worker.is_stopped());
            self.gone.extend(wires);
        }
    }

    fn send(&self, worker: usize, command: Command) {
        self.workers[worker].2.try_send(command).expect("room");
    }

    /// Lets each worker breathe once.
    fn turn(&mut self) {
        self.workers.iter_mut().for_each(|(worker, ..)| _ = worker.breathe(self.now_ns));
    }

    /// Delivers frames to workers that the NIC chooses by their bytes, and lets all workers breathe until
    /// everything is done.
    fn arrive(&mut self, input: PortId, frames: &[Arriving]) {
        self.push(input, frames);
        self.breathe();
    }

    /// Delivers frames, and lets the workers start on them but not finish: some frames are then between two
    /// workers.
    fn arrive_in_part(&mut self, input: PortId, frames: &[Arriving]) {
        for some in frames.chunks(BATCH) {
            self.push(input, some);
            self.turn();
        }
    }

    fn push(&mut self, input: PortId, frames: &[Arriving]) {
        let count = self.workers.len();
        for frame in frames {
            // The same bytes take the same queue, as with RSS, but the two directions of a flow need not.
            let sum = frame.bytes.iter().fold(7_usize, |sum, byte| sum * 31 % 65_537 + usize::from(*byte));
            self.workers[sum % count].1[input.index()].push(&frame.bytes);
        }
    }

    fn breathe(&mut self) {
        let now_ns = self.now_ns;
        let one = |(worker, ..): &mut Hand| worker.breathe(now_ns) + usize::from(worker.is_waiting());
        while self.workers.iter_mut().map(one).sum::<usize>() > 0 {}
    }

    /// Proposes a change to all workers, which breathe in turn until it is made or refused.
    fn carry_out(&mut self, proposer: &mut Proposer, change: &Change) -> Outcome {
        let (now_ns, mut proposal) = (self.now_ns, None);
        loop {
            let workers = &self.workers;
            let mut send = |worker: usize, command| {
                let sent = workers[worker].2.try_send(command);
                sent.err().map(|(TrySendError::Full(back) | TrySendError::Disconnected(back))| back)
            };
            let proposal = proposal
                .get_or_insert_with(|| proposer.propose(Changes::of(change.clone()), now_ns, &mut send));
            if let Some(outcome) = proposer.look(proposal, now_ns, &mut send) {
                return outcome;
            }
            self.turn();
        }
    }

    /// Checks that all workers have the same entries and buckets.
    fn are_replicas(&self, program: &Program) -> Result<(), String> {
        let state = |at: usize| {
            let engine = self.workers[at].0.engine();
            let entries = |at: usize| {
                let all = engine.entries(PipeId(at as u16)).into_iter();
                let mut all: Vec<String> =
                    all.map(|(entry, _)| format!("{:?} {:?}", entry, EntryKey::of(&entry))).collect();
                all.sort();
                all
            };
            let slots: Vec<Vec<u16>> = engine.snapshot().buckets.into_iter().map(|one| one.slots).collect();
            ((0..program.pipes.len()).map(entries).collect::<Vec<_>>(), slots)
        };
        let first = state(0);
        match (1..self.workers.len()).find(|&at| state(at) != first) {
            Some(other) => Err(format!("worker {other}: {:#?}\nworker 0: {first:#?}", state(other))),
            None => Ok(()),
        }
    }

    fn change(&mut self, change: &Change) -> Vec<bool> {
        let now_ns = self.now_ns;
        let one = |(worker, ..): &mut Hand| {
            let engine = worker.engine_mut();
            let done = engine.apply(change, now_ns).is_ok();
            // A removed flow keeps its place in a NAT pool until it leaves; when it does so varies by worker.
            if !engine.program().nat_pools.is_empty() {
                engine.clear_removed();
            }
            done
        };
        self.workers.iter_mut().map(one).collect()
    }

    fn age(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        for (worker, ..) in &mut self.workers {
            worker.engine_mut().age(now_ns);
            worker.engine_mut().take_deltas(|_| true);
        }
    }

    /// Swaps worker by worker; in between, the others continue with the old program. `rings` says whether new
    /// rings come with it.
    fn swap(&mut self, program: &Program, rings: bool) {
        let count = self.workers.len();
        self.generation += 1;
        let mut all = rings.then(|| HandOver::of_capacity(count, 16));
        for at in (0..count).rev() {
            let engine = Box::new(Engine::new(program, SECRET).expect("compiles"));
            let ports = (0..program.ports.len()).map(Rewire::Keep).collect();
            let hand_over = all.as_mut().and_then(Vec::pop);
            let (answer, answers) = sync_channel(1);
            let (worker, _, commands) = &mut self.workers[at];
            let generation = self.generation;
            let rewiring = Rewiring { generation, ports, hand_over, ..Rewiring::default() };
            commands.try_send(Command::Swap(engine, rewiring, answer)).expect("room");
            worker.breathe(self.now_ns);
            answers.try_recv().expect("swapped");
        }
    }

    fn shown(&self, program: &Program) -> Shown {
        let mut shown = Shown {
            counters: vec![Count::default(); program.counters.len()],
            hits: vec![Default::default(); program.pipes.len()],
            flows: program.pipes.iter().map(|_| BTreeMap::new()).collect(),
            ..Shown::default()
        };
        for (worker, wires, _) in &self.workers {
            let report = worker.report();
            shown.ledger.add(&report.ledger);
            assert!(report.flows.balances(), "{:?}", report.flows);
            assert_eq!(report.flows.live, worker.engine().packets_in_flows());
            shown.met += report.flows.met;
            for (at, wire) in wires.iter().enumerate() {
                shown.left.extend(std::iter::from_fn(|| wire.pop()).map(|frame| (at, frame)));
            }
            shown.counters.iter_mut().zip(&report.counters).for_each(|(sum, count)| sum.add(*count));
            for (at, pipe) in report.pipes.iter().enumerate() {
                shown.hits[at].0 += pipe.hits;
                shown.hits[at].1.add(pipe.misses);
                for flow in worker.engine().flows(PipeId(at as u16), usize::MAX).0 {
                    let own = flow.decision == FlowDecision::Own;
                    let seen_ms = (!own).then_some((flow.first_ms, flow.last_ms));
                    let before = shown.flows[at].get_mut(&flow.key);
                    match before {
                        Some(before) => {
                            assert!(own, "{} exists on two workers: {flow:?}, {before:?}", flow.key);
                            before.hits.add(flow.hits);
                        }
                        None => {
                            let new = TestFlow {
                                decision: flow.decision,
                                binding: flow.binding,
                                hits: flow.hits,
                                seen_ms,
                            };
                            shown.flows[at].insert(flow.key, new);
                        }
                    }
                }
            }
        }
        for (at, wire) in self.gone.iter().enumerate() {
            let port = at % program.ports.len();
            shown.left.extend(std::iter::from_fn(|| wire.pop()).map(|frame| (port, frame)));
        }
        shown.left.sort();
        shown
    }
}

/// A worker with memory ports.
fn hand(program: &Program, engine: Engine) -> Hand {
    let mut pools = Pools::region(CHUNKS);
    let id = pools.first().id();
    let port = |name: &str| -> (Box<dyn Port>, MemWire) {
        let (port, wire) = MemPort::new(name, id);
        (Box::new(port), wire)
    };
    let (ports, wires) = program.ports.iter().map(|port_of| port(&port_of.name)).unzip();
    let (commands, receiver) = sync_channel(4);
    (Worker::new(engine, ports, pools).with_commands(receiver), wires, commands)
}

/// Turns a random program into one whose meaning does not depend on the number of workers; `None` if that is
/// impossible.
fn shared(mut program: Program, random: &mut Choices) -> Option<Program> {
    if !program.keeps_flows() || program.groups.iter().any(|group| group.fill == Fill::Given) {
        return None;
    }
    // So do turns, and which target has the fewest flows when a flow begins.
    program.groups.iter_mut().for_each(|group| group.new_flows = NewFlows::Hash);
    const BY: [OwnedBy; 5] = [OwnedBy::Both, OwnedBy::Both, OwnedBy::Addresses, OwnedBy::Src, OwnedBy::Dst];
    let (by, each) = (random.pick(&BY), random.percent(30));
    for pipe in &mut program.pipes {
        if let Some(SharedUse::Pipe(_) | SharedUse::PerEntry) = pipe.monitor.meter.take() {
            pipe.entries.edit(|all| all.iter_mut().for_each(|entry| entry.meter = None));
        }
        pipe.monitor.drop_red = false;
        // When flows without packets report their counts depends on how often workers breathe.
        pipe.monitor.measured = None;
        pipe.monitor.idle_timeout_ns = 0;
        match &mut pipe.kind {
            PipeKind::Hash { input: input @ HashInput::RoundRobin, .. } => {
                *input = HashInput::Select(KeySource::Outer);
            }
            PipeKind::Flow { timeouts, .. } => {
                // The state of a flow depends on the order in which flags arrive.
                *timeouts = Timeouts::all(random.pick(&[0, 1_000_000, 50_000_000, 1_000_000_000]));
                pipe.capacity = 4096;
                let by = if each { random.pick(&BY) } else { by };
                pipe.owner = if pipe.nat.is_some() { OwnedBy::Both } else { by };
            }
            _ => {}
        }
    }
    // Other FLOW pipes on the way to a pipe whose flows take from a NAT pool would require other workers.
    let nat = (0..).map(PipeId).zip(&program.pipes).find(|(_, pipe)| pipe.nat.is_some());
    if let Some((nat, _)) = nat.filter(|_| random.percent(80)) {
        program.ports.iter_mut().for_each(|port| port.root = Some(nat));
    }
    if !owners(&program).1.is_empty() {
        let others = program.pipes.iter_mut().filter(|pipe| pipe.nat.is_none());
        others.for_each(|pipe| pipe.owner = by);
    }
    if !owners(&program).1.is_empty() {
        // Answers may belong to another worker.
        for pipe in &mut program.pipes {
            if let PipeKind::Flow { reverse, .. } = &mut pipe.kind {
                *reverse = false;
                pipe.nat = None;
            }
        }
    }
    owners(&program).1.is_empty().then_some(program)
}

/// Whether workers look through pipes to find the owner of a frame.
fn looks_ahead(program: &Program) -> bool {
    owners(program).0.iter().flatten().any(|one| matches!(one, Owning::Ahead(_)))
}

fn learns_answers(program: &Program) -> bool {
    program.pipes.iter().any(|pipe| matches!(pipe.kind, PipeKind::Flow { reverse: true, .. }))
}

/// Whether it matters which packet of a flow, of its answers, or of a datagram is handled first.
fn is_ordered(program: &Program) -> bool {
    let operations = program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations);
    let mut numbers = operations.flat_map(|one| one.numbers());
    program.follow_fragments
        || learns_answers(program)
        || numbers.any(|(_, value, _)| matches!(value, Value::Learnt(_)))
}

/// Whether a frame is an ICMP error, for which it matters whether its flow is known.
fn reports(frame: &Arriving) -> bool {
    let is_error = |level: &Level| level.layers.has(Layer::IcmpError);
    parse(&frame.bytes, Depth::Inner).is_ok_and(|all| is_error(all.outer()) || is_error(all.inner()))
}

/// Whether the change means the same for every number of workers: an entry of a flow belongs to its worker
/// alone.
fn is_shared(program: &Program, change: &Change) -> bool {
    if let Change::Add { entry, .. } | Change::Update { entry, .. } = change
        && entry.forward.is_some()
        && looks_ahead(program)
    {
        return false;
    }
    let of_flow = |matches: &[EntryMatch]| matches.iter().any(|one| matches!(one, EntryMatch::Flow(_)));
    match change {
        Change::Add { entry, .. } | Change::Update { entry, .. } => !of_flow(&entry.matches),
        Change::Remove { key, .. } => !of_flow(&key.matches),
        Change::SetWeight { .. } | Change::SetWeights { .. } => true,
        _ => false,
    }
}

/// What a run has exercised.
#[derive(Debug, Default)]
struct Met {
    cases: u64,
    handed_over: u64,
    flows: usize,
    changes: usize,
    swaps: usize,
    moved: usize,
    inner: u64,
    /// Programs whose pipes are looked through.
    ahead: u64,
    aged: usize,
    /// Flows of answers that were learnt together with another flow.
    answers: usize,
    /// Flows with an address and a port from a NAT pool.
    bound: usize,
    /// Proposals made by all workers, and refused by all.
    proposals: [usize; 2],
    /// Workers with frames in flight to others when a change was proposed.
    between: usize,
}

/// Swaps the program of all crews. The last crew also changes its number of workers, with frames in flight
/// between them. Returns the number.
fn swap(crews: &mut [PassingWorkers], program: &Program, random: &mut Choices) -> usize {
    let (rings, mut after) = (random.percent(50), random.pick(&[1, 2, 4]));
    if program.follow_fragments {
        // A worker's state about datagrams does not move with flows.
        after = crews[crews.len() - 1].workers.len();
    }
    crews.iter_mut().for_each(|crew| crew.swap(program, rings));
    let frame =
        |_| Arriving { bytes: weir_oracle::arbitrary::frame(random), headroom: 0, hash: 0, ports: None };
    let frames: Vec<Arriving> = (0..if is_ordered(program) { 1 } else { 100 }).map(frame).collect();
    if let [others @ .., last] = crews {
        others.iter_mut().for_each(|crew| crew.arrive(PortId(0), &frames));
        last.arrive_in_part(PortId(0), &frames);
        last.resize(program, after);
    }
    after
}

/// Compares what all crews show with what the first one shows, and returns that.
fn compare(crews: &[PassingWorkers], program: &Program, met: &mut Met) -> Result<Shown, String> {
    let wanted = crews[0].shown(program);
    for crew in &crews[1..] {
        let found = crew.shown(program);
        if found != wanted {
            return Err(format!("{} workers: {found:#?}\none: {wanted:#?}", crew.workers.len()));
        }
        met.handed_over += crew.workers.iter().map(|(worker, ..)| worker.handed().given).sum::<u64>();
    }
    Ok(wanted)
}

/// Returns the program of a seed, if its meaning does not depend on the number of workers.
fn program_of(seed: u64, random: &mut Choices) -> Option<Program> {
    match seed % 8 {
        0 | 4 => {
            Some(support::source_nat((1024, 1024 + random.pick(&[63, 127, 191])), random.pick(&[32, 31])))
        }
        BALANCER => Some(balancer::program()),
        _ => Some(program(random)).and_then(|program| shared(program, random)),
    }
}

/// Returns a frame for the program of a seed.
fn frame_for(seed: u64, random: &mut Choices) -> Vec<u8> {
    match seed % 8 == BALANCER && random.percent(90) {
        true => balancer::frame(random),
        false => weir_oracle::arbitrary::frame(random),
    }
}

fn run(seed: u64, met: &mut Met) -> Result<(), String> {
    let mut random = Choices::from_seed(seed);
    let Some(program) = program_of(seed, &mut random) else { return Ok(()) };
    met.cases += 1;
    let is_inner = |one: &Owning| matches!(one, Owning::Same(owner) if owner.source == KeySource::Inner);
    met.inner += u64::from(owners(&program).0.iter().flatten().any(is_inner));
    met.ahead += u64::from(looks_ahead(&program));
    // The last crew changes its number of workers.
    let mut crews = [1, 2, 4, 2].map(|count| PassingWorkers::new(&program, count));
    let mut now_ns = 0;
    for act in 0..ACTS {
        let state = crews[0].workers[0].0.engine().snapshot();
        let what = match event(&mut random, &program, &state) {
            Event::Frame { input, bytes, headroom, hash } => {
                let mut frames = vec![Arriving { bytes, headroom, hash, ports: None }];
                let ordered = is_ordered(&program);
                for _ in 0..random.pick(if ordered { &[1, 5, 20, 40] } else { &[1, 5, 40, 150] }) {
                    let bytes = frame_for(seed, &mut random);
                    frames.push(Arriving { bytes, headroom, hash: 0, ports: None });
                }
                let together = |one: &Arriving, next: &Arriving| !ordered && !reports(one) && !reports(next);
                for some in frames.chunk_by(together) {
                    crews.iter_mut().for_each(|crew| crew.arrive(input, some));
                }
                format!("{} frames at port {}", frames.len(), input.0)
            }
            Event::Change(change) if is_shared(&program, &change) => {
                let done: Vec<bool> = crews.iter_mut().flat_map(|crew| crew.change(&change)).collect();
                if done.iter().any(|one| *one != done[0]) {
                    return Err(format!("act {act}: {change:?} is refused by some: {done:?}"));
                }
                met.changes += usize::from(done[0]);
                format!("{change:?}")
            }
            Event::Change(_) => {
                let after = swap(&mut crews, &program, &mut random);
                met.swaps += 1;
                format!("a swap, {after} workers")
            }
            Event::Time { ns } => {
                now_ns += ns;
                let live = |crew: &PassingWorkers| {
                    crew.shown(&program).flows.iter().map(BTreeMap::len).sum::<usize>()
                };
                let before = live(&crews[2]);
                crews.iter_mut().for_each(|crew| crew.age(now_ns));
                met.aged += before - live(&crews[2]).min(before);
                format!("{ns} ns later")
            }
            Event::Age => continue,
        };
        crews.iter_mut().for_each(PassingWorkers::breathe);
        let wanted = compare(&crews, &program, met).map_err(|why| format!("act {act}, {what}: {why}"))?;
        met.moved += std::mem::take(&mut crews[3].moved);
        met.flows += wanted.flows.iter().map(BTreeMap::len).sum::<usize>();
        met.answers += answers(&program, &wanted);
        met.bound += unique_bindings(&wanted)?;
    }
    propose_under_way(&mut crews[2], &program, &mut random, met)
}

/// Returns how many flows were learnt together with another.
fn answers(program: &Program, shown: &Shown) -> usize {
    let reverse = |at: usize| matches!(program.pipes[at].kind, PipeKind::Flow { reverse: true, .. });
    let pipes = shown.flows.iter().enumerate().filter(|(at, _)| reverse(*at));
    let flows = pipes.flat_map(|(_, flows)| flows.values());
    flows.filter(|flow| flow.decision == FlowDecision::Default).count()
}

/// Checks that no two flows have the same address and port, except a flow and that of its answers, where they
/// are the source of one and the destination of the other. Returns how many flows have some.
fn unique_bindings(shown: &Shown) -> Result<usize, String> {
    let mut bound = 0;
    for flows in &shown.flows {
        let mut seen = std::collections::BTreeSet::new();
        for (key, flow) in flows {
            let Some(binding) = flow.binding else { continue };
            let answers = (key.dst(), key.dport()) == binding;
            if !seen.insert((binding, answers)) {
                return Err(format!("two flows have {binding:?}: {flows:#?}"));
            }
            bound += 1;
        }
    }
    Ok(bound)
}

/// Proposes changes while frames are in flight between workers.
fn propose_under_way(
    crew: &mut PassingWorkers,
    program: &Program,
    random: &mut Choices,
    met: &mut Met,
) -> Result<(), String> {
    let mut proposer = Proposer::new(crew.workers.len());
    let mut arrived = crew.shown(program).ledger.received;
    for _ in 0..PROPOSALS {
        let state = crew.workers[0].0.engine().snapshot();
        let Event::Change(change) = event(random, program, &state) else { continue };
        if matches!(change, Change::MoveBuckets { .. })
            || looks_ahead(program) && !is_shared(program, &change)
        {
            continue;
        }
        let frames: Vec<Arriving> = (0..100)
            .map(|_| Arriving {
                bytes: weir_oracle::arbitrary::frame(random),
                headroom: 0,
                hash: 0,
                ports: None,
            })
            .collect();
        crew.arrive_in_part(PortId(0), &frames);
        arrived += frames.len() as u64;
        met.between += crew.workers.iter().filter(|(worker, ..)| worker.report().ledger.held > 0).count();
        let outcome = crew.carry_out(&mut proposer, &change);
        match outcome {
            Outcome::Done { .. } => met.proposals[0] += 1,
            Outcome::Refused(_) => met.proposals[1] += 1,
            Outcome::Silent { .. } => return Err(format!("{change:?}: a worker does not answer")),
        }
        crew.breathe();
        crew.are_replicas(program).map_err(|why| format!("{change:?} with frames under way: {why}"))?;
        let ledger = crew.shown(program).ledger;
        if ledger.received != arrived || !ledger.balances() {
            return Err(format!("{change:?}: {arrived} frames arrived, {ledger:?}"));
        }
    }
    Ok(())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn many_workers_do_what_one_does() {
    let seeds = match number("WEIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WEIR_CASES").unwrap_or(CASES),
    };
    let whole = seeds.end - seeds.start >= CASES;
    let mut met = Met::default();
    for seed in seeds {
        if let Err(what) = run(seed, &mut met) {
            panic!("{what}\nWEIR_SEED={seed} cargo test -p weir-engine --test many_workers");
        }
    }
    let Met {
        cases,
        handed_over,
        flows,
        changes,
        swaps,
        moved,
        inner,
        ahead,
        aged,
        answers,
        bound,
        proposals,
        between,
    } = met;
    if whole {
        let enough = [
            cases,
            handed_over,
            flows as u64,
            changes as u64,
            swaps as u64,
            moved as u64,
            inner,
            ahead,
            aged as u64,
            answers as u64,
            bound as u64,
            proposals[0] as u64,
            proposals[1] as u64,
            between as u64,
        ];
        assert!(enough.iter().all(|count| *count >= 10), "{enough:?}");
    }
}
