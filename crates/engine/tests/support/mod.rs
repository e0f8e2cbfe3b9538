//! Small programs, and a bench to run an engine on, for the tests of the engine.
#![allow(dead_code, reason = "each test uses only a part")]

pub mod balancer;
pub mod both;

use std::collections::BTreeMap;
use weir_engine::batch::{Engine, SwapReport};
use weir_engine::single::Processed;
use weir_packet::{Field, FlowKey, TableHash};
use weir_program::Verdict;
use weir_program::buckets::GroupTables;
use weir_program::builder::ProgramBuilder;
use weir_program::change::{Change, ChangeError};
use weir_program::snapshot::Count;
use weir_program::{
    Entry, EntryMatch, Fill, Group, GroupId, Learn, NatPart, NatPool, NatPoolId, NatPrefix, Operation,
    Origin, Pipe, PipeId, PipeKind, PortId, Program, Target, Template, Timeouts, Value,
};
use weir_table::FlowDelta;

/// The hash secret of every engine here.
pub const SECRET: TableHash = TableHash::new([1, 2]);

/// An engine, its program with all entries, and its flow deltas.
pub struct Bench {
    pub program: Program,
    pub engine: Engine,
    pub now_ns: u64,
    pub deltas: Vec<FlowDelta>,
    done: Vec<Done>,
    first: Program,
    /// The bucket tables, which a daemon keeps.
    tables: GroupTables,
}

/// Something done to a bench, recorded so that it can be repeated.
enum Done {
    Frame(u64, PortId, Vec<u8>),
    Change(u64, Change),
}

impl Bench {
    pub fn new(program: &Program) -> Bench {
        Bench::with_tables(program, GroupTables::new(program))
    }

    /// A bench for a program that follows this one, with buckets filled the way a daemon does it.
    pub fn successor(&self, program: &Program) -> Bench {
        Bench::with_tables(program, self.tables.succeed(program))
    }

    fn with_tables(program: &Program, tables: GroupTables) -> Bench {
        Bench {
            program: program.clone(),
            engine: Engine::with_tables(program, SECRET, &tables).expect("a program that compiles"),
            now_ns: 0,
            deltas: Vec::new(),
            done: Vec::new(),
            first: program.clone(),
            tables,
        }
    }

    /// The bucket tables and the flow counts of targets, which a daemon keeps.
    pub fn tables(&self) -> &GroupTables {
        &self.tables
    }

    /// Runs one frame through the engine.
    pub fn frame(&mut self, input: PortId, bytes: &[u8]) -> Verdict {
        self.frame_and_copies(input, bytes).0
    }

    /// Runs one frame and also returns where its copies went.
    pub fn frame_and_copies(&mut self, input: PortId, bytes: &[u8]) -> (Verdict, Vec<Verdict>) {
        let Processed { verdict, copies, .. } = self.walk(input, bytes);
        (verdict, copies.into_iter().map(|copy| copy.to).collect())
    }

    /// Runs one frame and returns its resulting bytes.
    pub fn bytes(&mut self, input: PortId, bytes: &[u8]) -> Vec<u8> {
        self.walk(input, bytes).bytes
    }

    fn walk(&mut self, input: PortId, bytes: &[u8]) -> Processed {
        self.done.push(Done::Frame(self.now_ns, input, bytes.to_vec()));
        self.engine.process_one(input, bytes, self.now_ns)
    }

    /// Runs a frame of each of `flows` flows through the first port.
    pub fn learn(&mut self, flows: u16) {
        for sport in 0..flows {
            self.frame(PortId(0), &udp(sport, 53));
        }
    }

    pub fn apply(&mut self, change: Change) -> Result<(), ChangeError> {
        let published = self.tables.publish(&change);
        let result = published.and_then(|change| self.engine.apply(&change, self.now_ns));
        self.done.push(Done::Change(self.now_ns, change));
        result
    }

    /// Another engine, to which the same has been done.
    pub fn replay(&self) -> Engine {
        let mut engine = Engine::new(&self.first, SECRET).expect("it compiled before");
        for done in &self.done {
            match done {
                Done::Frame(at, input, bytes) => drop(engine.process_one(*input, bytes, *at)),
                Done::Change(at, change) => drop(engine.apply(change, *at)),
            }
        }
        engine
    }

    /// Replaces the program.
    pub fn swap(&mut self, program: &Program) -> SwapReport {
        let tables = self.tables.succeed(program);
        let mut heir = Engine::with_tables(program, SECRET, &tables).expect("a program that compiles");
        self.tables = tables;
        self.take_deltas();
        let report = heir.inherit(&mut self.engine, self.now_ns);
        self.engine = heir;
        self.program = program.clone();
        self.take_deltas();
        report
    }

    /// Makes removed flows leave, and collects the deltas.
    pub fn take_deltas(&mut self) {
        let Bench { deltas, engine, .. } = self;
        engine.clear_removed();
        engine.take_deltas(|delta| {
            deltas.push(delta);
            true
        });
        let account = engine.flow_account();
        assert!(account.balances() && account.live == engine.packets_in_flows(), "{account:?}");
        let given: u64 = deltas.iter().map(FlowDelta::packets).sum();
        assert_eq!(account.given, given, "{account:?}");
    }

    /// The counts of live flows.
    pub fn live(&self) -> BTreeMap<FlowKey, Count> {
        let mut sums = BTreeMap::new();
        for at in 0..self.program.pipes.len() {
            for flow in self.engine.flows(PipeId(at as u16), usize::MAX).0 {
                sums.entry(flow.key).or_insert_with(Count::default).add(flow.hits);
            }
        }
        sums.retain(|_, count| *count != Count::default());
        sums
    }

    /// The counts of all flows, live and ended.
    pub fn flow_ledger(&mut self) -> BTreeMap<FlowKey, Count> {
        self.take_deltas();
        let mut sums = self.live();
        for delta in &self.deltas {
            let count = Count { packets: delta.packets(), bytes: delta.bytes() };
            sums.entry(delta.key).or_default().add(count);
        }
        sums.retain(|_, count| *count != Count::default());
        sums
    }
}

/// A program whose ports all lead to its first pipe.
pub fn start(ports: &[&str], pipes: impl IntoIterator<Item = Pipe>) -> ProgramBuilder {
    let mut program = ProgramBuilder::new();
    ports.iter().for_each(|port| _ = program.port(*port));
    pipes.into_iter().for_each(|pipe| _ = program.pipe(pipe));
    program.root_of_all(PipeId(0));
    program
}

/// Targets of equal weight that forward to the first port.
pub fn targets<'a>(names: &'a [&str]) -> impl Iterator<Item = Target> + 'a {
    names.iter().map(|name| Target::new(*name, PortId(0)))
}

/// A UDP frame from 10.0.0.1 to 10.0.0.2.
pub fn udp(sport: u16, dport: u16) -> Vec<u8> {
    weir_packet::craft::frame(&format!("src=10.0.0.1 dst=10.0.0.2 proto=udp sport={sport} dport={dport}"))
}

/// A program that gives clients addresses starting at 192.0.2.8, from a prefix of this length, and ports in
/// this range, and leads everything out through its first port. Flows expire after 50 ms.
pub fn source_nat((first, last): (u16, u16), length: u8) -> Program {
    let set = Operation::Set;
    let out =
        [set(Field::Ipv4Src, Value::Nat(NatPart::Address)), set(Field::L4Sport, Value::Nat(NatPart::Port))];
    let back = [
        set(Field::Ipv4Dst, Value::Learnt(Field::Ipv4Src)),
        set(Field::L4Dport, Value::Learnt(Field::L4Sport)),
    ];
    let mut pipe = Pipe::flow("nat", Learn::Pin(GroupId(0).into())).reverse(true).capacity(4096);
    pipe.templates = [("out", out), ("back", back)]
        .map(|(name, all)| Template { name: name.into(), operations: all.into() })
        .into();
    if let PipeKind::Flow { timeouts, .. } = &mut pipe.kind {
        *timeouts = Timeouts::all(50_000_000);
    }
    let answers = Entry { template: 1, ..Entry::on(EntryMatch::Default) };
    pipe.entries = vec![Entry::on(EntryMatch::Target(0)), answers].into();
    let pipe = pipe.nat(NatPoolId(0)).forward(PortId(0));
    let mut program = start(&["a", "b"], [pipe]);
    program.group(Group::new("way", Fill::Wants, 4).targets(targets(&["out"])));
    let prefixes = vec![NatPrefix { first: [192, 0, 2, 8].into(), length }];
    program.nat_pool(NatPool { name: "out".into(), prefixes, first, last, origin: Origin::default() });
    program.build()
}
