//! Workers on ports in memory, and what the tests ask of them.

use crate::support::{SECRET, start};
use engine::batch::Engine;
use engine::program::{EntryMatch, Forward, Learn, Pipe, PortId, Program};
use engine::worker::{Command, Inject, Injected, Worker};
use packet::{Batch, DropReason, Field, Ledger, PoolId, Pools, Port, PortStatistics};
use port::{MemPort, MemWire};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// A port in memory with a mind of its own.
pub struct Strict {
    pub inner: MemPort,
    /// Frames it sends must be of this pool.
    pub pool: Option<PoolId>,
    pub kernel_path: bool,
    /// The hash that it delivers with every frame; 0: none.
    pub hash: u32,
}

impl Port for Strict {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn pool(&self) -> Option<PoolId> {
        self.pool
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        self.inner.receive(pools, batch);
        (0..batch.len()).for_each(|slot| batch.frame_mut(slot).set_hash(self.hash));
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let own = |slot: &usize| self.pool.is_none_or(|pool| batch.frame(*slot).pool() == pool);
        assert!(packet::Bits(list).all(|slot| own(&slot)), "a frame of another pool");
        self.inner.transmit(pools, batch, list)
    }

    fn flush(&mut self, pools: &mut Pools) {
        self.inner.flush(pools);
    }

    fn statistics(&self) -> PortStatistics {
        self.inner.statistics()
    }

    fn mode(&self) -> String {
        self.inner.mode()
    }

    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        if self.kernel_path { self.inner.to_kernel(pools, batch, list) } else { 0 }
    }
}

/// Ports in memory for a program, and their wires.
pub fn ports(program: &Program, pool: PoolId) -> (Vec<Box<dyn Port>>, Vec<MemWire>) {
    let one = |name: &str| -> (Box<dyn Port>, MemWire) {
        let (port, wire) = MemPort::new(name, pool);
        (Box::new(port), wire)
    };
    program.ports.iter().map(|port| one(&port.name)).unzip()
}

/// A worker on a pool of so many chunks.
pub fn worker(program: &Program, chunks: u32) -> (Worker, Vec<MemWire>) {
    let mut pools = Pools::region(chunks);
    let (ports, wires) = ports(program, pools.first().id());
    (Worker::new(Engine::new(program, SECRET).unwrap(), ports, pools), wires)
}

pub fn balanced(worker: &Worker) -> Ledger {
    let report = worker.report();
    assert!(report.ledger.balances(), "{:?} {:?}", report.ledger.sides(), report.ledger);
    report.ledger
}

pub fn dropped(ledger: &Ledger, reason: DropReason) -> u64 {
    ledger.dropped[reason as usize]
}

/// A program whose one pipe sends what it gets there.
pub fn all_to(forward: Forward) -> Program {
    let mut program = start(&["a", "b"], [Pipe::basic("p").per_entry(Field::L4Dport).miss(forward)]);
    program.app("app");
    program.build()
}

/// Learns so many flows and sends them out of the first port.
pub fn learning(flows: u32) -> Pipe {
    Pipe::flow("f", Learn::Default).entry(EntryMatch::Default).capacity(flows).forward(PortId(0))
}

/// Asks a worker and breathes once so that it answers.
pub fn ask<T>(worker: &mut Worker, commands: &SyncSender<Command>, ask: impl FnOnce(SyncSender<T>) -> Command) -> T {
    let (answer, answers) = sync_channel(1);
    commands.try_send(ask(answer)).expect("room for a command");
    worker.breathe(0);
    answers.try_recv().expect("an answer in the same breath")
}

pub fn commanded(program: &Program, chunks: u32) -> (Worker, Vec<MemWire>, SyncSender<Command>) {
    let (worker, wires) = worker(program, chunks);
    let (commands, receiver): (SyncSender<Command>, Receiver<Command>) = sync_channel(8);
    (worker.with_commands(receiver), wires, commands)
}

/// Sends an injected frame and breathes once; the answer, if there is one yet, and where it will come.
pub fn inject(
    worker: &mut Worker,
    commands: &SyncSender<Command>,
    bytes: Vec<u8>,
    output: Option<PortId>,
) -> (Option<Injected>, Receiver<Injected>) {
    let (answer, answers) = sync_channel(1);
    let inject = Inject { bytes, output, input: PortId(1) };
    commands.try_send(Command::Inject(inject, answer)).expect("room for a command");
    worker.breathe(0);
    (answers.try_recv().ok(), answers)
}
