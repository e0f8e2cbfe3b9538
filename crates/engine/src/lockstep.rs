//! The interpreter, and batch engines of several batch sizes, driven by the same actions and compared after
//! each.

use crate::batch::{BatchOutcome, Engine};
use std::collections::{BTreeMap, HashMap};
use weir_oracle::arbitrary::{self, Choices, Coverage, Event, event};
use weir_oracle::{Arrival, FlowSource, Interpreter, Walk};
use weir_packet::{Batch, FlowKey, Frame, HEADROOM, Observed, Pools, TableHash};
use weir_program::buckets::GroupTables;
use weir_program::change::{Change, ChangeError, Changes, EntryKey};
use weir_program::operation::Slot;
use weir_program::snapshot::{
    Count, EntrySnapshot, FlowAccount, FlowSnapshot, KeptOperations, PipeSnapshot, Snapshot,
};
use weir_program::{AppId, Encap, Fill, Forward, GroupId, Operation, PipeId, PortId, Program, Value};
use weir_table::DeltaReason;

/// Maximum batch sizes of the engines.
pub const BATCH_SIZES: [usize; 3] = [1, 3, weir_packet::BATCH];

/// An action on all executors.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Frames arrive on one port at the same time.
    Frames {
        /// The port.
        input: PortId,
        /// The frames.
        frames: Vec<Arriving>,
    },
    /// An entry or a weight changes.
    Change(Change),
    /// A number of nanoseconds pass.
    Time(u64),
    /// Idle entries and flows are removed.
    Age,
}

/// An arriving frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arriving {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Bytes of headroom.
    pub headroom: usize,
    /// The hash delivered by its NIC; 0 means none.
    pub hash: u32,
    /// For a later fragment, the ports of its datagram, if known.
    pub ports: Option<[u16; 2]>,
}

impl Arriving {
    /// Returns this frame as it arrives on a port.
    #[must_use]
    pub fn at(&self, input: PortId) -> Arrival<'_> {
        Arrival { input, bytes: &self.bytes, headroom: self.headroom, hash: self.hash, ports: self.ports }
    }
}

/// All executors, in the same state.
#[derive(Debug)]
pub struct Lockstep {
    program: Program,
    interpreter: Interpreter,
    engines: Vec<Cutter>,
    now_ns: u64,
    /// When a worker would last have taken a breath.
    breath_ns: u64,
    /// Fills buckets for workers.
    tables: GroupTables,
}

/// An engine that gets batches of one size.
struct Cutter {
    engine: Engine,
    size: usize,
    pools: Pools,
    batch: Box<Batch>,
}

impl std::fmt::Debug for Cutter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "batches of {}", self.size)
    }
}

impl Lockstep {
    /// Starts all executors with a program.
    ///
    /// # Errors
    /// The program does not compile.
    pub fn new(program: &Program, secret: u64) -> Result<Lockstep, String> {
        let hash = TableHash::new([secret, !secret]);
        let cutter = |size| -> Result<Cutter, String> {
            let engine = Engine::new(program, hash).map_err(|error| error.to_string())?;
            Ok(Cutter {
                engine,
                size,
                pools: Pools::region(weir_packet::BATCH as u32 + 1),
                batch: Box::default(),
            })
        };
        let engines = BATCH_SIZES.into_iter().map(cutter).collect::<Result<Vec<_>, _>>()?;
        let interpreter = Interpreter::new(program, engines[0].engine.buckets());
        let tables = GroupTables::new(program);
        let program = program.clone();
        Ok(Lockstep { program, tables, interpreter, engines, now_ns: 0, breath_ns: 0 })
    }

    /// Picks a random action that suits the current state.
    pub fn choose(&self, random: &mut Choices) -> Act {
        match event(random, &self.program, &self.interpreter.snapshot()) {
            Event::Frame { input, bytes, headroom, hash } => {
                let ports = arbitrary::datagram_ports(random);
                let mut frames = vec![Arriving { bytes, headroom, hash, ports }];
                for _ in 0..random.pick(&[0, 0, 1, 2, 4, 9, 66]) {
                    let again = random.percent(50).then(|| frames[random.below(frames.len())].clone());
                    frames.push(again.unwrap_or_else(|| Arriving {
                        bytes: arbitrary::frame(random),
                        headroom: usize::from(HEADROOM),
                        hash: arbitrary::hash(random),
                        ports: arbitrary::datagram_ports(random),
                    }));
                }
                Act::Frames { input, frames }
            }
            Event::Change(change) if random.percent(15) => Act::Change(spoilt(random, &self.program, change)),
            Event::Change(change) => Act::Change(change),
            Event::Time { ns } => Act::Time(ns),
            Event::Age => Act::Age,
        }
    }

    /// Performs an action on all executors.
    ///
    /// # Errors
    /// The error describes where the executors disagree.
    pub fn act(&mut self, act: &Act, coverage: &mut Coverage) -> Result<(), String> {
        match act {
            Act::Frames { input, frames } => self.frames(*input, frames, coverage)?,
            Act::Change(change) => self.change(change, coverage)?,
            Act::Time(ns) => self.now_ns += ns,
            Act::Age => self.age(coverage)?,
        }
        let wanted = self.interpreter.snapshot();
        for cutter in &self.engines {
            let found = cutter.engine.snapshot();
            compare(&self.program, &wanted, &found).map_err(|what| format!("{cutter:?}: {what}"))?;
            self.compare_kept(&wanted, cutter).map_err(|what| format!("{cutter:?}: {what}"))?;
            same("packets in flows", &cutter.engine.flow_account().live, &cutter.engine.packets_in_flows())
                .map_err(|what| format!("{cutter:?}: {what}"))?;
            if cutter.engine.buckets() != self.engines[0].engine.buckets() {
                return Err(format!("{cutter:?}: other buckets"));
            }
        }
        Ok(())
    }

    /// Compares what live flows keep of their entries' actions.
    fn compare_kept(&self, snapshot: &Snapshot, cutter: &Cutter) -> Result<(), String> {
        for (at, pipe) in (0..).map(PipeId).zip(&snapshot.pipes) {
            for FlowSnapshot { key, .. } in &pipe.flows {
                let (wanted, found) = (self.interpreter.kept(at, key), cutter.engine.kept(at, key));
                same("what a flow keeps", &laid_out(wanted), &laid_out(found))?;
            }
        }
        Ok(())
    }

    fn frames(&mut self, input: PortId, frames: &[Arriving], coverage: &mut Coverage) -> Result<(), String> {
        let mut probed = Vec::new();
        if let [first, ..] = frames {
            let explained =
                self.interpreter.explain_arrival(&first.at(input), self.now_ns, &self.interpreter);
            for cutter in &mut self.engines {
                probed.push(cutter.probe(input, first, self.now_ns, &explained)?);
            }
        }
        self.breath_ns = self.now_ns;
        let walk = |frame: &Arriving| self.interpreter.walk_arrival(&frame.at(input), self.now_ns);
        let walks: Vec<Walk> = frames.iter().map(walk).collect();
        walks.iter().for_each(|walk| coverage.walk(&self.program, walk));
        self.engines.iter_mut().try_for_each(|cutter| cutter.frames(input, frames, &walks, self.now_ns))
    }

    fn change(&mut self, change: &Change, coverage: &mut Coverage) -> Result<(), String> {
        let wanted = self.interpreter.apply(change);
        coverage.change(change, &wanted);
        // One engine fills buckets itself; the others receive filled ones, as workers do.
        let published = self.tables.publish(change);
        for (at, cutter) in self.engines.iter_mut().enumerate() {
            let found = match &published {
                Ok(published) if at > 0 => cutter.engine.apply(published, self.breath_ns),
                _ => cutter.engine.apply(change, self.breath_ns),
            };
            if found.as_ref().map_err(kind) != wanted.as_ref().map_err(kind) {
                return Err(format!("{cutter:?}: {change:?}: {found:?}, not {wanted:?}"));
            }
        }
        for (at, slots) in self.engines[0].engine.buckets().into_iter().enumerate() {
            if self.program.groups[at].fill != Fill::Given {
                self.interpreter.set_buckets(GroupId(at as u16), slots);
            }
        }
        Ok(())
    }

    fn age(&mut self, coverage: &mut Coverage) -> Result<(), String> {
        let entries = |interpreter: &Interpreter| -> usize {
            interpreter.snapshot().pipes.iter().map(|pipe| pipe.entries.len()).sum()
        };
        self.breath_ns = self.now_ns;
        let pending = |interpreter: &Interpreter| -> usize {
            interpreter.snapshot().buckets.iter().map(|group| group.pending).sum()
        };
        let (before, waited) = (entries(&self.interpreter), pending(&self.interpreter));
        let aged = self.interpreter.age(self.now_ns).len();
        coverage.aged(aged, before - entries(&self.interpreter));
        coverage.settled(waited - pending(&self.interpreter));
        let mut idle = self.interpreter.take_idle();
        idle.sort_unstable();
        let ended = self.interpreter.take_ended();
        let program = &self.program;
        let ended =
            sums(program, ended.iter().map(|one| (one.pipe, one.key, one.hits, one.observed, one.reason)));
        self.engines.iter_mut().try_for_each(|cutter| {
            cutter.engine.age(self.now_ns);
            same("segments of idle flows", &idle, &cutter.idle())?;
            same("flows gone", &ended, &cutter.deltas(program)).map_err(|what| format!("{cutter:?}: {what}"))
        })
    }
}

impl Cutter {
    fn frame(&mut self, Arriving { bytes, headroom, hash, .. }: &Arriving) -> Frame {
        let mut frame = self.pools.first().take().expect("a batch of frames is returned before the next");
        frame.prepend(HEADROOM - *headroom as u16).expect("headroom is at most that of a pool");
        frame.fill(bytes).expect("random frames fit a chunk");
        frame.set_hash(*hash);
        frame
    }

    /// Fills the batch.
    fn load(&mut self, frames: &[Arriving]) {
        for frame in frames {
            let ports = frame.ports;
            let frame = self.frame(frame);
            self.batch.push(frame).expect("a part is no larger than a batch");
            let encoded =
                ports.map(|[sport, dport]| (u32::from(sport) << 16 | u32::from(dport)).to_be_bytes());
            encoded.into_iter().for_each(|ports| self.engine.set_datagram_ports(self.batch.len() - 1, ports));
        }
    }

    /// Returns what deltas have counted since the last call.
    fn deltas(&mut self, program: &Program) -> FlowSums {
        let mut all = Vec::new();
        self.engine.take_deltas(|delta| {
            let hits = Count { packets: delta.packets(), bytes: delta.bytes() };
            all.push((PipeId(delta.of().pipe), delta.key, hits, delta.observed, delta.reason()));
            true
        });
        sums(program, all.into_iter())
    }

    /// Returns the segments of connections that were found idle since the last call.
    fn idle(&mut self) -> Vec<(AppId, PortId, Vec<u8>)> {
        let mut all = Vec::new();
        self.engine.take_idle(|one| {
            all.push((one.app, one.input(), one.bytes().to_vec()));
            true
        });
        all.sort_unstable();
        all
    }

    fn unload(&mut self) {
        for slot in 0..self.batch.len() {
            self.pools.give(self.batch.take(slot));
        }
        self.batch.clear();
    }

    fn frames(
        &mut self,
        input: PortId,
        frames: &[Arriving],
        walks: &[Walk],
        now_ns: u64,
    ) -> Result<(), String> {
        for (frames, walks) in frames.chunks(self.size).zip(walks.chunks(self.size)) {
            self.load(frames);
            let list = self.batch.mask();
            let outcome = self.engine.process(&mut self.batch, list, input, now_ns);
            for (slot, walk) in walks.iter().enumerate() {
                same_end(walk, outcome, slot, input, self.batch.frame(slot).bytes()).map_err(|what| {
                    let frame = weir_packet::craft::describe(&frames[slot].bytes);
                    format!("batches of {}, slot {slot}: {what} of {frame}", self.size)
                })?;
            }
            self.unload();
        }
        Ok(())
    }

    /// Checks that a probe predicts what processing will do, and that it changes nothing.
    fn probe(
        &mut self,
        input: PortId,
        frame: &Arriving,
        now_ns: u64,
        explained: &Walk,
    ) -> Result<(), String> {
        let before = self.engine.snapshot();
        self.load(std::slice::from_ref(frame));
        let outcome = self.engine.probe(&mut self.batch, input, now_ns);
        same_end(explained, outcome, 0, input, self.batch.frame(0).bytes())
            .map_err(|what| format!("batches of {}: probe: {what}", self.size))?;
        self.unload();
        if self.engine.snapshot() == before {
            Ok(())
        } else {
            Err(format!("{self:?}: a probe changed something"))
        }
    }
}

/// Compares the outcomes. The bytes of a dropped packet do not matter.
fn same_end(
    walk: &Walk,
    outcome: &BatchOutcome,
    slot: usize,
    input: PortId,
    bytes: &[u8],
) -> Result<(), String> {
    let verdict = outcome.verdict(slot, input);
    same("copies", &walk.copies, &outcome.copies(slot, bytes))?;
    if verdict != walk.verdict {
        return Err(format!("{verdict:?}, not {:?}", walk.verdict));
    }
    same("limit", &walk.limit, &outcome.limit(slot))?;
    if matches!(verdict, weir_program::Verdict::Drop(_)) || bytes == walk.bytes {
        return Ok(());
    }
    Err(format!(
        "\n  {}\nnot\n  {}\n",
        weir_packet::craft::describe(bytes),
        weir_packet::craft::describe(&walk.bytes)
    ))
}

fn compare(program: &Program, wanted: &Snapshot, found: &Snapshot) -> Result<(), String> {
    for ((pipe, wanted), found) in program.pipes.iter().zip(&wanted.pipes).zip(&found.pipes) {
        compare_pipes(wanted, found).map_err(|what| format!("pipe `{}`: {what}", pipe.name))?;
    }
    same("buckets", &wanted.buckets, &found.buckets)?;
    same("counters", &wanted.counters, &found.counters)
}

fn compare_pipes(wanted: &PipeSnapshot, found: &PipeSnapshot) -> Result<(), String> {
    same("misses", &wanted.misses, &found.misses)?;
    compare_accounts(&wanted.account, &found.account)?;
    same("turns", &wanted.turns, &found.turns)?;
    let by_key = |pipe: &PipeSnapshot| -> HashMap<EntryKey, EntrySnapshot> {
        pipe.entries.iter().map(|entry| (entry.key.clone(), entry.clone())).collect()
    };
    same("number of entries", &wanted.entries.len(), &found.entries.len())?;
    same("entries", &by_key(wanted), &by_key(found))?;
    let flows = |pipe: &PipeSnapshot| -> Vec<FlowSnapshot> {
        let mut flows = pipe.flows.clone();
        flows.sort_by_key(|flow| flow.key);
        flows
    };
    same("flows", &flows(wanted), &flows(found))
}

/// Returns the operations whose numbers a flow keeps, by position, with the bits of these numbers that their
/// places have room for.
fn laid_out(kept: Option<KeptOperations>) -> Vec<(usize, Operation)> {
    let fit = |mut operation: Operation| {
        for argument in operation.arguments() {
            if let Slot::Number(value, like)
            | Slot::Optional(Some(value), like)
            | Slot::Hashed(Some(value), like) = argument.slot
                && let Value::Const(number) = value
            {
                *number &= like.max();
            }
        }
        if let Operation::Encap(Encap { src: Value::Const(src), src_bits: Some(bits), ipv6, .. }) =
            &mut operation
            && let Value::Const(bits) = bits
        {
            // These bits come from the hash; from a single one, there is no choice.
            *bits = (*bits).min(if *ipv6 { 64 } else { 24 });
            *bits = if *bits == 1 { 0 } else { *bits };
            *src &= u128::MAX << *bits;
        }
        operation
    };
    let kept = kept.unwrap_or_default().into_iter().enumerate();
    kept.filter_map(|(at, operation)| Some((at, fit(operation?)))).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, wanted: &T, found: &T) -> Result<(), String> {
    if wanted == found { Ok(()) } else { Err(format!("{what}:\n{found:#?}\nnot\n{wanted:#?}")) }
}

/// The counts of flows, by pipe, key and the reason for their end.
type FlowSums = BTreeMap<(PipeId, FlowKey, &'static str), (u64, u64, Option<Observed>)>;

/// Adds up flows that have ended; those without packets contribute nothing.
fn sums(
    program: &Program,
    ended: impl Iterator<Item = (PipeId, FlowKey, Count, Observed, DeltaReason)>,
) -> FlowSums {
    let mut sums = FlowSums::new();
    for (pipe, key, hits, observed, reason) in ended.filter(|(_, _, hits, _, _)| hits.packets != 0) {
        // Which sums make room for others is unspecified, and the interpreter has room for all.
        let pipe_of = &program.pipes[pipe.index()];
        let reason = if pipe_of.sums_up().is_some() { DeltaReason::Interval } else { reason };
        let sum = sums.entry((pipe, key, reason.word())).or_default();
        // The interpreter has only one program, whose generation has no number.
        let observed = pipe_of.monitor.measured.map(|_| Observed { generation: 0, ..observed });
        match (&mut sum.2, observed) {
            (Some(sum), Some(observed)) => sum.join(&observed),
            (sum, observed) => *sum = observed,
        }
        (sum.0, sum.1) = (sum.0 + hits.packets, sum.1 + hits.bytes);
    }
    for ((pipe, ..), (packets, _, observed)) in &mut sums {
        // The order in which several sums of a flow are emitted is unspecified too, so none of them has its
        // first packet.
        if let Some(Observed { octets, flags, .. }) = *observed
            && program.pipes[pipe.index()].sums_up().is_some()
            && *packets > 1
        {
            *observed = Some(Observed { octets, flags, ..Observed::default() });
        }
    }
    sums
}

/// Compares where packets were counted; a removed flow's packets stay in the table until its delta is
/// accepted.
fn compare_accounts(wanted: &FlowAccount, found: &FlowAccount) -> Result<(), String> {
    let parts = |one: &FlowAccount| (one.met, one.unflowed, one.live + one.given, one.balances());
    same("counted for flows", &parts(wanted), &parts(found))
}

/// Returns the kind of an error, and the position in the batch of the change that caused it.
fn kind(error: &ChangeError) -> (Option<usize>, std::mem::Discriminant<ChangeError>) {
    let at = if let ChangeError::At { index, .. } = error { Some(*index) } else { None };
    (at, std::mem::discriminant(error.cause()))
}

/// Makes a change invalid in some way.
fn spoilt(random: &mut Choices, program: &Program, mut change: Change) -> Change {
    if let Change::Batch(changes) = &change {
        let mut changes = changes.to_vec();
        let at = random.below(changes.len());
        changes[at] = spoilt(random, program, changes[at].clone());
        return Changes::new(changes).map_or(change, Change::Batch);
    }
    let (Change::Add { pipe, entry } | Change::Update { pipe, entry }) = &mut change else { return change };
    match random.below(6) {
        0 => entry.values.push(0),
        1 => entry.template = 99,
        2 => entry.forward = Some(Forward::Pipe(PipeId(random.below(program.pipes.len()) as u16))),
        3 => entry.priority += 1,
        4 => drop(entry.matches.pop()),
        _ => *pipe = PipeId(random.below(program.pipes.len() + 1) as u16),
    }
    change
}
