//! The reference interpreter: defines what a program means, one packet at a time. It is written to be
//! obviously correct rather than fast.
//!
//! It is the oracle against which every other executor is fuzzed, and it drives `explain`. It therefore
//! shares no parsing, lookup, action or checksum code with the batch engine, and follows
//! docs/reference/pipes.md sentence by sentence. A walk is computed without changing any state; the changes
//! are a list of effects, and [`Interpreter::walk`] is [`Interpreter::explain`] with the effects applied. A
//! walk costs a copy of the frame and a scan of every entry of every pipe on its way.
//!
//! The path of a packet: [`packet`](self::packet) receives it (headers by `bytes`, fields by `fields`),
//! `lookup` finds an entry, the monitor counts and colours (`meter`), `action` rewrites (`checksum` updates
//! checksums), and this file forwards.

mod action;
mod answers;
mod apply;
#[cfg(any(test, feature = "arbitrary"))]
pub mod arbitrary;
mod bytes;
mod checksum;
mod effect;
mod fields;
mod flow_row;
mod fragments;
mod given;
mod icmp_error;
mod idle;
mod length;
mod lookup;
mod meter;
mod nat;
mod near;
mod new_flows;
mod observed;
mod packet;
mod quic;
mod reopen;
mod sift;
mod source;
mod state;
pub mod trace;
mod tunnel;
mod tunnel_headers;

pub use self::effect::{Effect, Newest, Why};
pub use self::fragments::Datagrams;
pub use self::meter::MeterState;
pub use self::observed::Ended;
pub use self::packet::Segment;
pub use self::source::{Arrival, EntrySource, FlowSource};

use self::action::act;
use self::given::GivenState;
use self::lookup::Found;
use self::nat::NatState;
use self::packet::Packet;
use self::state::{PipeState, Row};
use self::trace::{End, Forwarded, Hit, Lookup, Metered, Miss, Monitored, Rehashed, Step};
use std::collections::BTreeSet;
use weir_packet::{Depth, DropReason, KeySource};
use weir_program::change::EntryKey;
use weir_program::check::Shape;
use weir_program::snapshot::{Count, KeptOperations};
use weir_program::{Copied, Verdict};
use weir_program::{Entry, Forward, GroupId, MeterId, Pipe, PipeId, PortId, Program, SharedUse, Target};

/// A program and all its state.
#[derive(Clone, Debug)]
pub struct Interpreter {
    program: Program,
    depth: Depth,
    /// Whether fragments have the ports of their datagram.
    follows: bool,
    /// The properties that entries added at run time must preserve.
    shape: Shape,
    buckets: Vec<Vec<u16>>,
    /// The state of the buckets of given groups.
    given: Vec<GivenState>,
    pipes: Vec<PipeState>,
    counters: Vec<Count>,
    meters: Vec<MeterState>,
    /// The latest time passed to a walk or to `age`.
    clock_ns: u64,
}

/// The outcome of a packet, and the reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Walk {
    /// Where the packet ended.
    pub verdict: Verdict,
    /// The packet's bytes at that point; for a dropped packet, those at the time of the drop.
    pub bytes: Vec<u8>,
    /// Copies made on the way.
    pub copies: Vec<Copied>,
    /// The pipes that the packet passed through.
    pub trace: Vec<Step>,
    /// The changes of state that the packet causes.
    pub effects: Vec<Effect>,
    /// The packet's maximum length, if it goes to an app because it is too long.
    pub limit: Option<u16>,
}

impl Interpreter {
    /// Creates an interpreter for a checked program. `buckets` has the target of each bucket of each group;
    /// `u16::MAX` means none.
    #[must_use]
    pub fn new(program: &Program, buckets: Vec<Vec<u16>>) -> Interpreter {
        assert_eq!(buckets.len(), program.groups.len(), "every group has buckets");
        let mut program = program.clone();
        let (depth, follows, shape) = (program.depth(), program.follows(), Shape::of(&program));
        // From here on, the entries are part of the state.
        let nat: Vec<NatState> = program.pipes.iter().map(|pipe| NatState::new(&program, pipe)).collect();
        let state = |(pipe, nat): (&mut Pipe, NatState)| {
            PipeState::new(&pipe.templates, &std::mem::take(&mut pipe.entries), nat)
        };
        let pipes = program.pipes.iter_mut().zip(nat).map(state).collect();
        let counters = vec![Count::default(); program.counters.len()];
        let meters = program.meters.iter().map(|meter| MeterState::new(&meter.config)).collect();
        let given = vec![GivenState::default(); program.groups.len()];
        Interpreter { program, depth, follows, shape, buckets, given, pipes, counters, meters, clock_ns: 0 }
    }

    /// Replaces the buckets of a group that is filled by weights.
    pub fn set_buckets(&mut self, group: GroupId, slots: Vec<u16>) {
        self.buckets[group.index()] = slots;
    }

    /// Sets the position of a round-robin HASH pipe to that of another executor.
    pub fn set_turns(&mut self, pipe: PipeId, turns: u64) {
        self.pipes[pipe.index()].turns = turns;
    }

    /// Returns the program, whose entries are in [`Interpreter::snapshot`].
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs a packet through the program, with all effects: it is counted, flows are learnt, tokens are
    /// spent.
    pub fn walk(&mut self, input: PortId, frame: &[u8], headroom: usize, now_ns: u64) -> Walk {
        self.walk_arrival(&Arrival { input, bytes: frame, headroom, hash: 0, ports: None }, now_ns)
    }

    /// The same for a frame that may have a NIC hash.
    pub fn walk_arrival(&mut self, arrival: &Arrival<'_>, now_ns: u64) -> Walk {
        let walk = self.explain_arrival(arrival, now_ns, self);
        self.apply_effects(&walk.effects, now_ns);
        walk
    }

    /// Computes what [`Interpreter::walk`] would do, without changing anything.
    #[must_use]
    pub fn explain(&self, input: PortId, frame: &[u8], headroom: usize, now_ns: u64) -> Walk {
        self.explain_arrival(&Arrival { input, bytes: frame, headroom, hash: 0, ports: None }, now_ns, self)
    }

    /// Does the same as [`Interpreter::explain`] with flows, and perhaps entries, from another source. If the
    /// source has entries, rows in the effects are not positions in the pipe.
    #[must_use]
    pub fn explain_with(
        &mut self,
        input: PortId,
        frame: &[u8],
        headroom: usize,
        now_ns: u64,
        flows: &dyn FlowSource,
    ) -> Walk {
        // Entries kept for an earlier packet are not those that this one needs.
        self.pipes.iter_mut().for_each(|pipe| drop(pipe.sifted.take()));
        self.explain_arrival(&Arrival { input, bytes: frame, headroom, hash: 0, ports: None }, now_ns, flows)
    }

    /// The same for a frame that may have a NIC hash.
    #[must_use]
    pub fn explain_arrival(&self, arrival: &Arrival<'_>, now_ns: u64, flows: &dyn FlowSource) -> Walk {
        let dropped = |reason| Walk {
            verdict: Verdict::Drop(reason),
            bytes: arrival.bytes.to_vec(),
            copies: Vec::new(),
            trace: Vec::new(),
            effects: Vec::new(),
            limit: None,
        };
        let Some(root) = self.program.ports[arrival.input.index()].root else {
            return dropped(DropReason::Policy);
        };
        let received = Packet::receive(arrival, self.depth, self.program.tunnels, self.follows);
        let mut packet = match received {
            Ok(packet) => packet,
            Err(reason) => return dropped(reason),
        };
        let (trace, effects, copies) = (Vec::new(), Vec::new(), Vec::new());
        let mut visit = Visit { interpreter: self, now_ns, flows, trace, effects, copies };
        let verdict = visit.walk_from(root, &mut packet);
        Walk {
            verdict,
            bytes: packet.bytes,
            copies: visit.copies,
            trace: visit.trace,
            effects: visit.effects,
            limit: packet.limit.filter(|_| matches!(verdict, Verdict::App(_))),
        }
    }
}

/// The walk of one packet: the state that it reads and the results that it collects.
struct Visit<'a> {
    interpreter: &'a Interpreter,
    now_ns: u64,
    flows: &'a dyn FlowSource,
    trace: Vec<Step>,
    effects: Vec<Effect>,
    copies: Vec<Copied>,
}

impl Visit<'_> {
    fn walk_from(&mut self, root: PipeId, packet: &mut Packet) -> Verdict {
        let mut pipe = root;
        loop {
            if let Err(reason) = packet.find_headers() {
                return Verdict::Drop(reason);
            }
            match self.enter(pipe, packet) {
                End::Pipe(next) => pipe = next,
                End::Verdict(verdict) => return verdict,
            }
        }
    }

    /// Runs one pipe: the lookup, then the hit or the miss.
    fn enter(&mut self, id: PipeId, packet: &mut Packet) -> End {
        let interpreter = self.interpreter;
        let pipe = &interpreter.program.pipes[id.index()];
        let answer = interpreter.look_up(id, packet, self.flows, self.now_ns);
        self.effects.extend(answer.effects);
        self.meet(answer.pick.as_ref(), packet);
        let mut step = Step {
            pipe: id,
            name: pipe.name.clone(),
            bytes: packet.bytes.len(),
            key: answer.key,
            flow: answer.flow,
            pick: answer.pick,
            lookup: Lookup::NoTarget,
            monitor: Monitored::default(),
            operations: Vec::new(),
            rehash: None,
            forward: None,
            end: End::Verdict(Verdict::Drop(DropReason::NoTarget)),
        };
        step.end = match answer.found {
            Found::NoTarget => {
                let choice = pipe.kind.group();
                let group = choice.and_then(|choice| interpreter.group_for(packet, choice).ok());
                self.without_target(group)
            }
            Found::NoNatPort => drop_for(DropReason::NoNatPort),
            Found::AnswersTaken => drop_for(DropReason::AnswersTaken),
            Found::Miss(why) => self.miss(id, packet, why, &mut step),
            Found::Row(row) => match self.hit(id, (row, &answer.kept), packet, &mut step) {
                Ok(end) => end,
                Err(reason) => drop_for(reason),
            },
        };
        let end = step.end;
        self.trace.push(step);
        end
    }

    fn miss(&mut self, id: PipeId, packet: &Packet, why: Miss, step: &mut Step) -> End {
        self.effects.push(Effect::Miss { pipe: id, bytes: packet.bytes.len() });
        step.lookup = Lookup::Miss(why);
        let said = self.interpreter.program.pipes[id.index()].miss;
        let (pick, end) = self.forward(packet, said, DropReason::Miss);
        self.meet(pick.as_ref(), packet);
        step.forward = Some(Forwarded { miss: true, per_entry: false, said, pick });
        end
    }

    /// Runs monitor, action, rehash and forward of a hit.
    fn hit(
        &mut self,
        id: PipeId,
        (row, kept): (usize, &KeptOperations),
        packet: &mut Packet,
        step: &mut Step,
    ) -> Result<End, DropReason> {
        let interpreter = self.interpreter;
        let pipe = &interpreter.program.pipes[id.index()];
        let Row { entry, .. } = &interpreter.pipes[id.index()].rows()[row];
        let template = &pipe.templates[usize::from(entry.template)];
        self.effects.push(Effect::Hit { pipe: id, row, bytes: packet.bytes.len() });
        step.lookup = Lookup::Hit(Hit {
            entry: EntryKey::of(entry),
            origin: entry.origin,
            run_time: entry.run_time,
            template: template.name.clone(),
        });
        step.monitor = self.monitor(pipe, entry, packet);
        // It counts if the packet is sent on.
        let (counter, bytes) = (step.monitor.counter.take(), packet.bytes.len());
        if pipe.monitor.drop_red
            && step.monitor.meter.as_ref().is_some_and(|meter| meter.after == trace::Color::Red)
        {
            return Err(DropReason::Metered);
        }
        let hops = |packet: &Packet| interpreter.hops(pipe, packet);
        let acted = act(packet, (pipe, template), (&entry.values, kept), (&interpreter.program, &hops));
        step.operations = acted.operations;
        match (acted.failed, pipe.too_long) {
            (None, _) => {}
            (Some(DropReason::TooLong), Some(app)) => return Ok(End::Verdict(Verdict::App(app))),
            (Some(reason), _) => return Err(reason),
        }
        if pipe.rehash {
            packet.find_headers()?;
            packet.make_keys();
            step.rehash = Some(Rehashed { outer: packet.outer, inner: packet.inner });
        }
        self.effects.extend(counter.iter().map(|(counter, _)| Effect::Counter { counter: *counter, bytes }));
        step.monitor.counter = counter;
        let per_entry = pipe.forward == Forward::PerEntry;
        let said = if per_entry { entry.forward.unwrap_or_default() } else { pipe.forward };
        let (pick, end) = self.forward(packet, said, DropReason::Policy);
        self.meet(pick.as_ref(), packet);
        step.forward = Some(Forwarded { miss: false, per_entry, said, pick });
        Ok(end)
    }

    /// Counts the packet in the bucket that was picked.
    fn meet(&mut self, pick: Option<&trace::Pick>, packet: &Packet) {
        if let Some(pick) = pick.filter(|pick| self.interpreter.counts(pick)) {
            let (group, bucket) = (pick.group, pick.bucket);
            self.effects.push(Effect::Bucket { group, bucket, bytes: packet.bytes.len() });
        }
    }

    fn monitor(&mut self, pipe: &Pipe, entry: &Entry, packet: &mut Packet) -> Monitored {
        let program = &self.interpreter.program;
        let counter = match pipe.monitor.counter {
            Some(SharedUse::Pipe(counter)) => Some(counter),
            Some(SharedUse::PerEntry) => entry.counter,
            None => None,
        };
        let meter = match pipe.monitor.meter {
            Some(SharedUse::Pipe(meter)) => Some(meter),
            Some(SharedUse::PerEntry) => entry.meter,
            None => None,
        };
        Monitored {
            counter: counter.map(|counter| (counter, program.counters[counter.index()].clone())),
            meter: meter.map(|meter| self.colour(meter, packet)),
        }
    }

    fn colour(&mut self, meter: MeterId, packet: &mut Packet) -> Metered {
        let declaration = &self.interpreter.program.meters[meter.index()];
        let (before, state) = (packet.color, self.interpreter.meters[meter.index()]);
        let (after, left) = state.color(&declaration.config, self.now_ns, packet.bytes.len(), before);
        packet.color = after;
        self.effects.push(Effect::Meter { meter, left });
        Metered { meter, name: declaration.name.clone(), before, after }
    }

    /// Resolves a forward; `reason` applies if it is `drop`.
    fn forward(&mut self, packet: &Packet, said: Forward, reason: DropReason) -> (Option<trace::Pick>, End) {
        let verdict = match said {
            Forward::Port(port) => Verdict::Transmit(port),
            Forward::InputPort => Verdict::Transmit(packet.input),
            Forward::Pipe(pipe) => return (None, End::Pipe(pipe)),
            Forward::App(app) => Verdict::App(app),
            Forward::Tee { app, next } => {
                self.copies.push(Copied { to: Verdict::App(app), bytes: packet.bytes.clone() });
                return (None, End::Pipe(next));
            }
            Forward::Flood(group) => self.flood(packet, group),
            Forward::Kernel => Verdict::Kernel(packet.input),
            Forward::Drop => Verdict::Drop(reason),
            Forward::Group(group) => return self.forward_to_group(packet, group, reason),
            Forward::PerEntry => unreachable!("the check refuses `per_entry` here"),
        };
        (None, End::Verdict(verdict))
    }

    /// Sends a copy out of every port that a target with a bucket leads to, and the frame itself out of the
    /// last one.
    fn flood(&mut self, packet: &Packet, id: GroupId) -> Verdict {
        let group = &self.interpreter.program.groups[id.index()];
        self.effects.push(Effect::Flood { group: id });
        let mut ports = BTreeSet::new();
        for bucket in 0..self.interpreter.buckets[id.index()].len() {
            let target = self.interpreter.target_of(id, bucket, self.now_ns);
            if let Some(Target { forward: Forward::Port(port), .. }) = group.targets.get(usize::from(target))
            {
                ports.insert(*port);
            }
        }
        let Some(last) = ports.pop_last() else { return Verdict::Drop(DropReason::NoTarget) };
        let copy = |port| Copied { to: Verdict::Transmit(port), bytes: packet.bytes.clone() };
        self.copies.extend(ports.into_iter().map(copy));
        Verdict::Transmit(last)
    }

    /// Ends the walk of a packet for which a group has no target.
    fn without_target(&self, group: Option<GroupId>) -> End {
        let group = group.map(|group| &self.interpreter.program.groups[group.index()]);
        match group.and_then(|group| group.no_target) {
            Some(app) => End::Verdict(Verdict::App(app)),
            None => drop_for(DropReason::NoTarget),
        }
    }

    fn forward_to_group(
        &mut self,
        packet: &Packet,
        group: GroupId,
        reason: DropReason,
    ) -> (Option<trace::Pick>, End) {
        let hash = packet.select_hash(KeySource::Outer, self.interpreter.program.select_seed);
        let pick = self.interpreter.pick(group, hash, packet.key(KeySource::Outer), self.now_ns);
        let Some((target, _)) = pick.target else {
            let end = self.without_target(Some(group));
            return (Some(pick), end);
        };
        let said = self.interpreter.program.groups[group.index()].targets[usize::from(target)].forward;
        let end = match said {
            Forward::Group(_) => unreachable!("the check refuses a target that goes to a group"),
            said => self.forward(packet, said, reason).1,
        };
        (Some(pick), end)
    }
}

fn drop_for(reason: DropReason) -> End {
    End::Verdict(Verdict::Drop(reason))
}
