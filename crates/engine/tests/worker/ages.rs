//! Entries of several workers expire when they are idle on all of them.

use crate::rig::commanded;
use crate::support::{start, udp};
use std::sync::mpsc::SyncSender;
use weir_engine::worker::{Aging, CHANGES_PER_BREATH, Command, Outcome, Proposer, Worker};
use weir_packet::{Field, FlowKey};
use weir_port::MemWire;
use weir_program::change::{Change, Changes};
use weir_program::{Entry, EntryMatch, FlowState, Learn, Pipe, PipeId, PortId, Program, Timeouts};

const MS: u64 = 1_000_000;

/// The idle timeout of every pipe here.
const TIMEOUT: u64 = 100 * MS;

/// Two workers, and what removes their idle entries.
struct AgingWorkers {
    workers: Vec<(Worker, Vec<MemWire>, SyncSender<Command>)>,
    proposer: Proposer,
    aging: Aging,
    now_ns: u64,
}

impl AgingWorkers {
    fn new(program: &Program) -> AgingWorkers {
        let worker = |_| {
            let mut one = commanded(program, 80);
            one.0.engine_mut().share_entries(true);
            one
        };
        let workers = (0..2).map(worker).collect();
        AgingWorkers { workers, proposer: Proposer::new(2), aging: Aging::default(), now_ns: 0 }
    }

    /// Lets a millisecond pass.
    fn turn(&mut self) {
        self.now_ns += MS;
        for (worker, ..) in &mut self.workers {
            worker.breathe(self.now_ns);
        }
        let workers = &self.workers;
        let mut send = |worker: usize, command| send_to(workers, worker, command);
        self.aging.look(&mut self.proposer, self.now_ns, &mut send);
    }

    fn turns(&mut self, count: u64) {
        (0..count).for_each(|_| self.turn());
    }

    fn add(&mut self, entries: Vec<Entry>) {
        let changes = entries.into_iter().map(|entry| Change::Add { pipe: PipeId(0), entry });
        let changes = Changes::new(changes.collect()).expect("different entries");
        let workers = &self.workers;
        let mut send = |worker: usize, command| send_to(workers, worker, command);
        let mut proposal = self.proposer.propose(changes, self.now_ns, &mut send);
        for _ in 0..1000 {
            self.turn();
            let workers = &self.workers;
            let mut send = |worker: usize, command| send_to(workers, worker, command);
            if let Some(outcome) = self.proposer.look(&mut proposal, self.now_ns, &mut send) {
                return assert_eq!(outcome, Outcome::Done { late: Vec::new() });
            }
        }
        panic!("the entries are not added");
    }

    /// The number of entries on each worker.
    fn entries(&self) -> [usize; 2] {
        [0, 1].map(|at| self.workers[at].0.engine().entries(PipeId(0)).len())
    }
}

fn send_to(
    workers: &[(Worker, Vec<MemWire>, SyncSender<Command>)],
    worker: usize,
    command: Command,
) -> Option<Command> {
    use std::sync::mpsc::TrySendError::{Disconnected, Full};
    workers[worker].2.try_send(command).err().map(|(Full(command) | Disconnected(command))| command)
}

#[test]
fn e4_an_entry_is_as_old_as_its_youngest_replica() {
    let by_port = |pipe: Pipe| start(&["a", "b"], [pipe.miss(PortId(1)).idle_timeout_ns(TIMEOUT)]).build();
    let own = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (9, 53), None);
    let prefix = EntryMatch::Prefix { value: 0x0a00_0000, length: 8 };
    let flow = Pipe::flow("f", Learn::Nothing).capacity(8).miss(PortId(1)).idle_timeout_ns(TIMEOUT);
    let flow = start(&["a", "b"], [flow]);
    for (program, entry) in [
        (by_port(Pipe::basic("basic").per_entry(Field::L4Dport)), Entry::on(53)),
        (by_port(Pipe::lpm("lpm", Field::Ipv4Src)), Entry::on(prefix)),
        (flow.build(), Entry::on(EntryMatch::Flow(own))),
    ] {
        for busy in [0, 1] {
            let name = program.pipes[0].name.clone();
            let mut bench = AgingWorkers::new(&program);
            bench.add(vec![entry.clone().run_time()]);
            // Only one worker gets its packets, for ten times as long as it may be idle.
            for _ in 0..20 {
                bench.workers[busy].1[0].push(&udp(9, 53));
                bench.turns(50);
                assert_eq!(bench.entries(), [1, 1], "{name}: worker {busy} has its packets");
            }
            bench.turns(40);
            assert_eq!(bench.entries(), [1, 1], "{name}: not longer than its timeout");
            bench.turns(200);
            assert_eq!(bench.entries(), [0, 0], "{name}");
            assert_eq!(bench.aging.removed(), 1, "{name}");
        }
    }
}

#[test]
fn e4_an_entry_of_a_flow_goes_by_the_timeout_of_the_state_that_its_worker_sees() {
    // A stream may be idle for long, and the worker that does not get its packets sees none.
    let timeouts = Timeouts::all(TIMEOUT).with(FlowState::Stream, 5 * TIMEOUT);
    let pipe = Pipe::flow("f", Learn::Nothing).capacity(8).miss(PortId(1)).timeouts(timeouts);
    let own = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (9, 53), None);
    for busy in [0, 1] {
        let mut bench = AgingWorkers::new(&start(&["a", "b"], [pipe.clone()]).build());
        bench.add(vec![Entry::on(EntryMatch::Flow(own)).run_time()]);
        (0..2).for_each(|_| bench.workers[busy].1[0].push(&udp(9, 53)));
        bench.turns(490);
        assert_eq!(bench.entries(), [1, 1], "worker {busy} has its packets");
        bench.turns(700);
        assert_eq!(bench.entries(), [0, 0], "worker {busy} has its packets");
    }
}

#[test]
fn many_idle_entries_go_a_few_at_a_time() {
    let pipe = Pipe::basic("basic").per_entry(Field::L4Dport).miss(PortId(1)).idle_timeout_ns(TIMEOUT);
    let count = 5 * CHANGES_PER_BREATH;
    let mut bench = AgingWorkers::new(&start(&["a", "b"], [pipe.capacity(count as u32)]).build());
    bench.add((0..count as u16).map(|port| Entry::on(port).run_time()).collect());
    let mut left = count;
    for _ in 0..2000 {
        bench.turn();
        let now = bench.entries()[1];
        assert!(left - now <= CHANGES_PER_BREATH, "{left} {now}");
        left = now;
    }
    assert_eq!(bench.entries(), [0, 0]);
}

#[test]
fn a_worker_that_is_alone_removes_a_few_idle_entries_a_breath() {
    let pipe = Pipe::basic("basic").per_entry(Field::L4Dport).miss(PortId(1)).idle_timeout_ns(TIMEOUT);
    let program = start(&["a", "b"], [pipe.capacity(1000)]).build();
    let (mut worker, ..) = commanded(&program, 8);
    for port in 0..1000u16 {
        let change = Change::Add { pipe: PipeId(0), entry: Entry::on(port).run_time() };
        worker.engine_mut().apply(&change, 0).expect("there is room");
    }
    let (mut left, mut now_ns) = (1000, TIMEOUT + 2000 * MS);
    while left > 0 {
        worker.breathe(now_ns);
        let now = worker.engine().entries(PipeId(0)).len();
        assert!(now < left && left - now <= 64, "{left} {now}");
        (left, now_ns) = (now, now_ns + 2000 * MS);
    }
}
