//! Workers on in-memory ports, with helpers to drive them.

use crate::support::{SECRET, start};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use weir_engine::batch::Engine;
use weir_engine::worker::{Command, Inject, Injected, Worker};
use weir_packet::{Batch, DropReason, Field, Ledger, PoolId, Pools, Port, PortStatistics};
use weir_port::{MemPort, MemWire};
use weir_program::{EntryMatch, Forward, Learn, Pipe, PortId, Program};

/// An in-memory port with requirements of its own.
pub struct Strict {
    pub inner: MemPort,
    /// If set, frames it sends must be from this pool.
    pub pool: Option<PoolId>,
    pub kernel_path: bool,
    /// The shortest and the longest frame that it sends.
    pub lengths: std::ops::RangeInclusive<usize>,
    /// The hash it delivers with every frame; 0 means none.
    pub hash: u32,
    /// How often it was asked to transmit.
    pub transmissions: Arc<AtomicUsize>,
}

impl Strict {
    /// A port without requirements.
    pub fn new(inner: MemPort) -> Strict {
        Strict {
            inner,
            pool: None,
            kernel_path: false,
            lengths: 0..=usize::MAX,
            hash: 0,
            transmissions: Arc::default(),
        }
    }
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
        self.transmissions.fetch_add(1, Ordering::Relaxed);
        let own = |slot: &usize| self.pool.is_none_or(|pool| batch.frame(*slot).pool() == pool);
        assert!(weir_packet::Bits(list).all(|slot| own(&slot)), "a frame of another pool");
        let fits = |slot: &usize| self.lengths.contains(&batch.frame(*slot).len());
        let list = weir_packet::Bits(list).filter(fits).fold(0, |list, slot| list | 1 << slot);
        self.inner.transmit(pools, batch, list)
    }

    fn refuses(&self, length: usize) -> Option<DropReason> {
        match length {
            _ if length < *self.lengths.start() => Some(DropReason::MalformedEthernet),
            _ if length > *self.lengths.end() => Some(DropReason::Oversize),
            _ => None,
        }
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

/// In-memory ports for a program, and their wires.
pub fn ports(program: &Program, pool: PoolId) -> (Vec<Box<dyn Port>>, Vec<MemWire>) {
    let one = |name: &str| -> (Box<dyn Port>, MemWire) {
        let (port, wire) = MemPort::new(name, pool);
        (Box::new(port), wire)
    };
    program.ports.iter().map(|port| one(&port.name)).unzip()
}

/// A worker on a pool of `chunks` chunks.
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

/// A program with one pipe that applies this forward to everything.
pub fn all_to(forward: Forward) -> Program {
    let mut program = start(&["a", "b"], [Pipe::basic("p").per_entry(Field::L4Dport).miss(forward)]);
    program.app("app");
    program.build()
}

/// A FLOW pipe that learns up to `flows` flows and sends them out of the first port.
pub fn learning(flows: u32) -> Pipe {
    Pipe::flow("f", Learn::Default).entry(EntryMatch::Default).capacity(flows).forward(PortId(0))
}

/// Sends a worker a command, runs one iteration of its loop, and returns the answer.
pub fn ask<T>(
    worker: &mut Worker,
    commands: &SyncSender<Command>,
    ask: impl FnOnce(SyncSender<T>) -> Command,
) -> T {
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

/// Injects a frame and runs one iteration. Returns the answer, if there is one yet, and the channel for a
/// later one.
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
