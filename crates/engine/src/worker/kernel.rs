//! The program in the kernel: a worker keeps its tables equal to those of the engine, and adds its counts to
//! the engine's.
//!
//! The tables are filled with the engine's entries a few per breath. Until they are complete, all packets go
//! to the engine. From then on, every change is made in both places between two breaths. Several changes that
//! belong together are made while all packets go to the engine, so no packet sees only part of them.
//!
//! When the worker switches to another program, that program's copy is filled first, with the entries of the
//! next engine. So every packet is handled by one program or the other, and no packet waits for the exchange.
//! The same goes for a program that is compiled again.

use super::Worker;
use super::followed::FollowedFlows;
use super::outbox::Outbox;
use crate::batch::Engine;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Duration;
use weir_packet::DropReason;
use weir_program::change::Change;
use weir_program::replica::{EntryUses, FlowReplica, ReplicaReport, Swept, TableReplica};
use weir_program::{GroupId, PipeId, Verdict};

/// How many entries are copied in a breath that has handled frames, and in one that has not. Each is a system
/// call of about a microsecond.
const ENTRIES: [u32; 2] = [32, 512];

/// How often counts are added to the engine's if nothing requests them. An entry may seem younger than it is
/// by up to this time.
const SWEEP_NS: u64 = 100_000_000;

/// How long the program may still be running for a packet, and count that packet, after it was detached.
const LAST_PACKET: Duration = Duration::from_millis(1);

/// The program in the kernel, as its worker sees it.
#[derive(Debug)]
pub(super) struct Kernel {
    replica: Box<dyn TableReplica>,
    /// The next entries to copy: their pipe and place; `None` once all are copied.
    next: Option<(PipeId, u32)>,
    /// How many times entries of that pipe had been renumbered when the first ones were copied.
    renumbered: u32,
    swept_ns: u64,
}

impl Kernel {
    fn new(replica: Box<dyn TableReplica>, now_ns: u64) -> Kernel {
        let next = Some((PipeId(0), 0));
        Kernel { replica, next, renumbered: 0, swept_ns: now_ns }
    }

    /// Copies up to `most` entries of the engine. Returns true once the tables are complete.
    fn copy_entries(&mut self, engine: &Engine, most: u32, now_ns: u64) -> bool {
        // The engine's counts of a previous program are not complete yet, but its entries are.
        let Some((pipe, from)) = self.next else { return true };
        if pipe.index() >= engine.pipe_count() {
            for group in (0..engine.program().groups.len()).map(|at| GroupId(at as u16)) {
                self.replica.publish(group, engine.slots(group));
            }
            self.next = None;
            return true;
        }
        let page = engine.page(pipe, from, most, now_ns);
        if from > 0 && page.renumbered != self.renumbered {
            self.next = Some((pipe, 0));
            return false;
        }
        self.renumbered = page.renumbered;
        page.entries.iter().for_each(|(entry, _)| self.replica.put(pipe, entry));
        self.next = Some(page.next.map_or((PipeId(pipe.0 + 1), 0), |next| (pipe, next)));
        false
    }
}

/// The copy of the next program, which is made while the present program and its copy continue to run, so
/// that a reload does not send the kernel's packets to the engine.
#[derive(Debug)]
pub struct NextCopy {
    /// Receives where the entries lead, once that is known.
    uses: Option<SyncSender<EntryUses>>,
    /// Delivers the copy, or is closed if there will be none.
    loaded: Receiver<Box<dyn TableReplica>>,
    kernel: Option<Kernel>,
}

impl NextCopy {
    /// A copy that will be compiled and loaded elsewhere as soon as it is known where the entries lead.
    #[must_use]
    pub fn new(uses: SyncSender<EntryUses>, loaded: Receiver<Box<dyn TableReplica>>) -> NextCopy {
        NextCopy { uses: Some(uses), loaded, kernel: None }
    }

    /// Takes a step towards a complete copy of the next engine, which is complete itself.
    pub(super) fn prepare(&mut self, next: &Engine, generation: u64, most: u32, now_ns: u64) -> CopyState {
        if let Some(uses) = self.uses.take() {
            let _ = uses.try_send(next.entry_uses(generation));
        }
        if self.kernel.is_none() {
            match self.loaded.try_recv() {
                Ok(replica) => self.kernel = Some(Kernel::new(replica, now_ns)),
                Err(TryRecvError::Empty) => return CopyState::Loading,
                Err(TryRecvError::Disconnected) => return CopyState::Done,
            }
        }
        let done = self.kernel.as_mut().is_none_or(|kernel| kernel.copy_entries(next, most, now_ns));
        if done { CopyState::Done } else { CopyState::Filling }
    }
}

/// How far the copy of the next program is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyState {
    /// Another thread compiles and loads it.
    Loading,
    /// Entries are being copied.
    Filling,
    /// The copy is complete, or there is none.
    Done,
}

impl Worker {
    /// Begins to use a program in the kernel, in place of the previous one. Packets meet the previous program
    /// until the tables of the new one are complete.
    pub(super) fn run_in_kernel(&mut self, replica: Option<Box<dyn TableReplica>>, now_ns: u64) {
        let next = replica.map(|replica| Kernel::new(replica, now_ns));
        let is_active = self.kernel.as_ref().is_some_and(|kernel| kernel.replica.report().active);
        if next.is_none() || !is_active {
            self.leave_kernel(now_ns);
            return self.keep_copy(next, now_ns);
        }
        let former = std::mem::replace(&mut self.next_kernel, next);
        self.leaving.dispose(Box::new(former.map(|kernel| kernel.replica)));
    }

    /// Lets a program in the kernel, whose tables another worker keeps, follow flows of this worker, if it is
    /// a copy of the program with this number.
    pub(super) fn follow_in_kernel(
        &mut self,
        generation: u64,
        flows: Option<Box<dyn FlowReplica>>,
        now_ns: u64,
    ) {
        if generation == self.generation {
            self.leave_kernel(now_ns);
            self.followed = flows.map(|flows| FollowedFlows::new(flows, &mut self.engine, now_ns));
        }
    }

    /// Keeps the tables of this program in the kernel equal to those of the engine from now on.
    pub(super) fn keep_copy(&mut self, kernel: Option<Kernel>, now_ns: u64) {
        self.kernel = kernel;
        if let Some(kernel) = &self.kernel {
            let flows = kernel.replica.flows();
            self.engine.set_copied(true);
            self.followed = flows.map(|flows| FollowedFlows::new(flows, &mut self.engine, now_ns));
            self.past_ports.resize_with(self.outbox.ports.len(), Default::default);
        }
    }

    /// Lets packets meet the copy of the next program instead of the present one, whose last counts still
    /// belong to the present engine.
    pub(super) fn switch_copies(&mut self, next: Option<Box<NextCopy>>, now_ns: u64) -> Option<Kernel> {
        let mut kernel = next.and_then(|next| next.kernel);
        if let Some(next) = &mut kernel {
            next.replica.start();
        }
        self.leave_kernel(now_ns);
        kernel
    }

    /// Stops using the program in the kernel. From then on, all packets go to the engine, or at least those
    /// of this worker's flows, if another worker keeps the tables; what was counted is kept.
    pub(super) fn leave_kernel(&mut self, now_ns: u64) {
        let mut may_count = false;
        if let Some(kernel) = &mut self.kernel {
            may_count = kernel.replica.report().active;
            kernel.replica.pause();
        }
        if let Some(followed) = &mut self.followed {
            may_count = true;
            followed.pause();
        }
        if may_count {
            std::thread::sleep(LAST_PACKET);
        }
        self.sweep_kernel(true, now_ns);
        let former = (self.kernel.take(), self.followed.take());
        if let (None, None) = former {
            return;
        }
        self.engine.follow_no_flows();
        self.engine.set_copied(false);
        let tables = [former.0, self.next_kernel.take()].map(|kernel| kernel.map(|kernel| kernel.replica));
        self.leaving.dispose(Box::new((tables, former.1.map(FollowedFlows::into_replica))));
    }

    /// Makes changes that the engine has made. They are some or all of `all` changes that belong together.
    pub(super) fn copy_changes(&mut self, changes: &[Change], all: usize) {
        let Some(kernel) = &mut self.kernel else {
            let followed = self.followed.as_mut();
            return followed.into_iter().for_each(|followed| followed.pause_if_replaced(changes, all));
        };
        let together = changes.iter().map(|change| change.singles().len()).sum::<usize>() > 1;
        let is_active = kernel.replica.report().active;
        if together && is_active {
            kernel.replica.pause();
            kernel.replica.wait_for_packets();
        }
        let engine = &self.engine;
        kernel.replica.apply(changes, |group| engine.slots(group));
        if together && is_active {
            kernel.replica.start();
        }
        if let Some(next) = &mut self.next_kernel {
            next.replica.apply(changes, |group| engine.slots(group));
        }
    }

    /// Copies entries, removes expired ones, and adds counts now and then. Returns true while there are
    /// entries to copy, or flows to activate in a moment. `idle` says that the breath has handled no frame.
    pub(super) fn follow_kernel(&mut self, idle: bool, now_ns: u64) -> bool {
        let sends = self.followed.as_ref().is_some_and(|followed| followed.is_sending(now_ns));
        let Some(kernel) = &mut self.kernel else { return sends };
        for (pipe, key) in self.engine.take_expired() {
            kernel.replica.remove(pipe, &key);
            self.next_kernel.iter_mut().for_each(|next| next.replica.remove(pipe, &key));
        }
        if now_ns.saturating_sub(kernel.swept_ns) >= SWEEP_NS {
            self.sweep_kernel(false, now_ns);
        }
        self.copy_entries(idle, now_ns) || sends
    }

    /// Copies some entries. Returns true while there are more.
    fn copy_entries(&mut self, idle: bool, now_ns: u64) -> bool {
        let engine = &self.engine;
        let Some(kernel) = self.next_kernel.as_mut().or(self.kernel.as_mut()) else { return false };
        if kernel.next.is_none() {
            return false;
        }
        let done = kernel.copy_entries(engine, ENTRIES[usize::from(idle)], now_ns);
        if done {
            kernel.replica.start();
            if let Some(next) = self.next_kernel.take() {
                self.leave_kernel(now_ns);
                self.keep_copy(Some(next), now_ns);
            }
        }
        !done
    }

    /// Adds what the program in the kernel has counted since the last time.
    pub(super) fn sweep_kernel(&mut self, all: bool, now_ns: u64) {
        let Some(kernel) = &mut self.kernel else { return };
        kernel.swept_ns = now_ns;
        let (engine, ports) = (&mut self.engine, &mut self.past_ports);
        let Outbox { ledger, dropped_flows, .. } = &mut self.outbox;
        kernel.replica.sweep(all, &mut |swept| {
            engine.add_swept(swept, now_ns);
            match swept {
                Swept::Decided(input, verdict, count) => {
                    let packets = count.packets;
                    let arrival = ports[input.index()].statistics_mut();
                    arrival.received += packets;
                    arrival.received_bytes += count.bytes;
                    ledger.received += packets;
                    match verdict {
                        Verdict::Transmit(port) => {
                            ports[port.index()].statistics_mut().transmitted += packets;
                            ledger.transmitted += packets;
                        }
                        Verdict::Kernel(port) => {
                            ports[port.index()].statistics_mut().to_kernel += packets;
                            ledger.to_kernel += packets;
                        }
                        Verdict::Drop(reason) => ledger.dropped[reason as usize] += packets,
                        Verdict::App(_) => unreachable!("packets for apps are left to the engine"),
                    }
                }
                Swept::Sent(port, bytes) => ports[port.index()].statistics_mut().transmitted_bytes += bytes,
                Swept::Unsent(port, frames) => {
                    ports[port.index()].statistics_mut().transmitted -= frames;
                    ledger.transmitted -= frames;
                    ledger.dropped[DropReason::TransmitFull as usize] += frames;
                }
                Swept::Dropped(reason, frame, frames) => dropped_flows.add(reason, frame, frames),
                Swept::Entry(..) | Swept::Misses(..) | Swept::Counter(..) => {}
            }
        });
    }

    /// Returns the state of the program in the kernel, if there is one.
    pub(super) fn kernel_report(&self) -> Option<ReplicaReport> {
        let mut report = self.kernel.as_ref()?.replica.report();
        if let Some(next) = &self.next_kernel {
            // The present program has been compiled again.
            let next = next.replica.report();
            (report.stale, report.obstacle) = (next.stale, next.obstacle);
        }
        Some(report)
    }
}
