//! A worker keeps a copy of its tables elsewhere, and passes it on when another program takes over.

use crate::rig::*;
use crate::support::{SECRET, start};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use weir_engine::batch::Engine;
use weir_engine::worker::{Command, NextCopy, Rewire, Rewiring, Swapped, Worker};
use weir_packet::Field;
use weir_program::change::{Change, Changes, EntryKey};
use weir_program::replica::{ReplicaReport, Swept, TableReplica};
use weir_program::snapshot::Count;
use weir_program::{Entry, GroupId, Pipe, PipeId, PortId, Program, Verdict};

/// What happened to the copies, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// A copy that notes what it is asked to do. It has counted packets whenever it is swept.
#[derive(Debug)]
struct Noted {
    name: &'static str,
    log: Log,
    active: bool,
    /// Packets counted between two sweeps.
    counts: u64,
    entries: Vec<EntryKey>,
}

impl Noted {
    fn new(name: &'static str, counts: u64, log: &Log) -> Box<Noted> {
        Box::new(Noted { name, log: log.clone(), active: false, counts, entries: Vec::new() })
    }

    fn note(&self, what: &str) {
        self.log.lock().unwrap().push(format!("{} {what}", self.name));
    }
}

impl TableReplica for Noted {
    fn put(&mut self, _: PipeId, entry: &Entry) {
        self.entries.push(EntryKey::of(entry));
    }

    fn remove(&mut self, _: PipeId, key: &EntryKey) {
        self.entries.retain(|one| one != key);
    }

    fn publish(&mut self, _: GroupId, _: &[u16]) {}

    fn start(&mut self) {
        self.note(&format!("starts with {} entries", self.entries.len()));
        self.active = true;
    }

    fn pause(&mut self) {
        self.note("pauses");
        self.active = false;
    }

    fn wait_for_packets(&mut self) {
        self.note("waits");
    }

    fn sweep(&mut self, _: bool, found: &mut dyn FnMut(Swept<'_>)) {
        let count = Count { packets: self.counts, bytes: 60 * self.counts };
        found(Swept::Decided(PortId(0), Verdict::Transmit(PortId(0)), count));
        found(Swept::Entry(PipeId(0), &self.entries[0], count));
    }

    fn report(&self) -> ReplicaReport {
        ReplicaReport { active: self.active, decided: vec![0], ..ReplicaReport::default() }
    }
}

fn program() -> Program {
    let pipe = Pipe::basic("by_port").per_entry(Field::L4Dport).capacity(4).forward(PortId(0));
    start(&["a"], [pipe.entry(53_u16).entry(80_u16)]).build()
}

/// A worker whose program has a copy that packets meet.
fn copied(log: &Log) -> (Worker, SyncSender<Command>) {
    let (mut worker, _wires, commands) = commanded(&program(), 4);
    commands.send(Command::RunInKernel(1, Some(Noted::new("old", 1, log)))).unwrap();
    while worker.breathe(1) > 0 {}
    assert_eq!(taken(log), ["old starts with 2 entries"]);
    (worker, commands)
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

/// Makes the worker swap to the same program, with a copy for it.
fn swap(worker: &mut Worker, commands: &SyncSender<Command>, copy: NextCopy) -> Receiver<Swapped> {
    let engine = Box::new(Engine::new(&program(), SECRET).unwrap());
    let copy = Some(Box::new(copy));
    let rewiring = Rewiring { generation: 2, ports: vec![Rewire::Keep(0)], copy, ..Rewiring::default() };
    let (answer, swapped) = sync_channel(1);
    commands.send(Command::Swap(engine, rewiring, answer)).unwrap();
    worker.breathe(1);
    swapped
}

fn add_at_run_time(worker: &mut Worker, commands: &SyncSender<Command>, entry: Entry) {
    let change = Box::new(Change::Add { pipe: PipeId(0), entry: entry.run_time() });
    ask(worker, commands, |answer| Command::Change(change, answer)).unwrap();
}

#[test]
fn packets_meet_the_old_copy_until_that_of_the_next_program_is_complete() {
    let log = Log::default();
    let (mut worker, commands) = copied(&log);
    add_at_run_time(&mut worker, &commands, Entry::on(443_u16));
    let (asker, uses) = sync_channel(1);
    let (copy, loaded) = sync_channel(1);
    let swapped = swap(&mut worker, &commands, NextCopy::new(asker, loaded));
    while worker.breathe(1) > 0 {}
    assert_eq!(uses.try_recv().unwrap().generation, 2);
    // Nothing has changed while the copy is being compiled, and the worker may sleep a little.
    assert!(worker.is_waiting() && swapped.try_recv().is_err());
    assert_eq!(taken(&log), [""; 0]);
    copy.send(Noted::new("new", 10, &log)).unwrap();
    while worker.breathe(1) > 0 {}
    assert!(!worker.is_waiting());
    assert_eq!(taken(&log), ["new starts with 3 entries", "old pauses"]);
    assert_eq!(swapped.try_recv().unwrap().report.entries_kept, 3);
    // The last count of the old copy belongs to the entry of either program. Listing sweeps the new copy.
    assert_eq!(hits(&mut worker, &commands), 11);
    assert_eq!(balanced(&worker).transmitted, 11);
    // From now on, changes reach the new copy.
    add_at_run_time(&mut worker, &commands, Entry::on(8080_u16));
    commands.send(Command::RunInKernel(2, None)).unwrap();
    worker.breathe(2);
    assert_eq!(taken(&log), ["new pauses"]);
    assert_eq!(hits(&mut worker, &commands), 21);
}

#[test]
fn packets_meet_a_copy_until_another_one_of_the_same_program_is_complete() {
    let log = Log::default();
    let (mut worker, commands) = copied(&log);
    commands.send(Command::RunInKernel(1, Some(Noted::new("new", 10, &log)))).unwrap();
    worker.breathe(1);
    assert_eq!(taken(&log), [""; 0], "the new one has no entries yet");
    assert!(worker.report().kernel.unwrap().active);
    add_at_run_time(&mut worker, &commands, Entry::on(443_u16));
    while worker.breathe(1) > 0 {}
    assert_eq!(taken(&log), ["new starts with 3 entries", "old pauses"]);
    assert_eq!(hits(&mut worker, &commands), 11);
    assert_eq!(balanced(&worker).transmitted, 11);
}

#[test]
fn changes_that_belong_together_are_made_when_no_packet_uses_the_copy() {
    let log = Log::default();
    let (mut worker, commands) = copied(&log);
    let add = |port: u16| Change::Add { pipe: PipeId(0), entry: Entry::on(port).run_time() };
    let batch = Box::new(Change::Batch(Changes::new(vec![add(443), add(8080)]).unwrap()));
    ask(&mut worker, &commands, |answer| Command::Change(batch, answer)).unwrap();
    assert_eq!(taken(&log), ["old pauses", "old waits", "old starts with 4 entries"]);
}

#[test]
fn the_copy_counts_until_the_end_while_the_ports_are_closed() {
    let log = Log::default();
    let (mut worker, commands) = copied(&log);
    ask(&mut worker, &commands, Command::ClosePorts);
    assert_eq!(taken(&log), [""; 0]);
    // The report and the end have swept it.
    assert_eq!(ask(&mut worker, &commands, Command::Report).ledger.transmitted, 1);
    let last = ask(&mut worker, &commands, Command::Stop).ledger;
    assert_eq!(taken(&log), ["old pauses"]);
    assert!(last.balances() && last.transmitted == 2, "{last:?}");
}

#[test]
fn a_program_that_gets_no_copy_takes_over_without_one() {
    let log = Log::default();
    let (mut worker, commands) = copied(&log);
    let (asker, uses) = sync_channel(1);
    let (copy, loaded) = sync_channel(1);
    let swapped = swap(&mut worker, &commands, NextCopy::new(asker, loaded));
    while worker.breathe(1) > 0 {}
    assert!(uses.try_recv().is_ok() && swapped.try_recv().is_err());
    drop(copy);
    while worker.breathe(1) > 0 {}
    assert_eq!(taken(&log), ["old pauses"]);
    assert!(swapped.try_recv().is_ok());
    assert_eq!(hits(&mut worker, &commands), 1);
}

/// Returns the hits of the first entry.
fn hits(worker: &mut Worker, commands: &SyncSender<Command>) -> u64 {
    let page = ask(worker, commands, |answer| Command::Page(PipeId(0), 0, 8, answer));
    page.entries[0].1.count.packets
}
