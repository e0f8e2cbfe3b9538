//! The program in the kernel: a worker keeps its tables equal to those of the engine, and adds its counts to
//! the engine's.
//!
//! The tables are filled with the engine's entries a few per breath. Until they are complete, all packets go
//! to the engine. From then on, every change is made in both places between two breaths. Several changes that
//! belong together are made while all packets go to the engine, so no packet sees only part of them.

use super::Worker;
use std::time::Duration;
use weir_packet::DropReason;
use weir_program::change::Change;
use weir_program::replica::{ReplicaReport, Swept, TableReplica};
use weir_program::{GroupId, PipeId, Verdict};

/// How many entries are copied in a breath that has handled frames, and in one that has not. Each is a system
/// call of about a microsecond.
const ENTRIES: [u32; 2] = [32, 512];

/// How often counts are added to the engine's if nothing asks for them. An entry may seem younger than it is
/// by this time.
const SWEEP_NS: u64 = 100_000_000;

/// How long the program may still be running for a packet, and count it, after it was detached.
const LAST_PACKET: Duration = Duration::from_millis(1);

/// The program in the kernel, as its worker sees it.
pub(super) struct Kernel {
    replica: Box<dyn TableReplica>,
    /// The next entries to copy: their pipe and place; `None` once all are copied.
    next: Option<(PipeId, u32)>,
    /// How often entries of that pipe had been renumbered when its first ones were copied.
    renumbered: u32,
    swept_ns: u64,
}

impl Worker {
    /// Begins to use a program in the kernel, in place of the one before.
    pub(super) fn run_in_kernel(&mut self, replica: Option<Box<dyn TableReplica>>, now_ns: u64) {
        self.leave_kernel(now_ns);
        let Some(replica) = replica else { return };
        self.engine.set_copied(true);
        self.past_ports.resize_with(self.outbox.ports.len(), Default::default);
        self.kernel = Some(Kernel { replica, next: Some((PipeId(0), 0)), renumbered: 0, swept_ns: now_ns });
    }

    /// Stops using the program in the kernel. From then on, all packets go to the engine; the program's
    /// counts are kept.
    pub(super) fn leave_kernel(&mut self, now_ns: u64) {
        let Some(kernel) = &mut self.kernel else { return };
        let was_active = kernel.replica.report().active;
        kernel.replica.pause();
        if was_active {
            std::thread::sleep(LAST_PACKET);
        }
        self.sweep_kernel(true, now_ns);
        self.engine.set_copied(false);
        let former = self.kernel.take().map(|kernel| kernel.replica);
        self.leaving.dispose(Box::new(former));
    }

    /// Makes changes that the engine has made.
    pub(super) fn copy_changes(&mut self, changes: &[Change]) {
        let Some(kernel) = &mut self.kernel else { return };
        let together = changes.iter().map(|change| change.singles().len()).sum::<usize>() > 1;
        let is_active = kernel.replica.report().active;
        if together && is_active {
            kernel.replica.pause();
        }
        let engine = &self.engine;
        kernel.replica.apply(changes, |group| engine.slots(group));
        if together && is_active {
            kernel.replica.start();
        }
    }

    /// Copies entries, removes expired ones, and adds counts now and then. Returns true while there are
    /// entries to copy. `idle` says that the breath has handled no frame.
    pub(super) fn follow_kernel(&mut self, idle: bool, now_ns: u64) -> bool {
        let Some(kernel) = &mut self.kernel else { return false };
        for (pipe, key) in self.engine.take_expired() {
            kernel.replica.remove(pipe, &key);
        }
        if now_ns.saturating_sub(kernel.swept_ns) >= SWEEP_NS {
            self.sweep_kernel(false, now_ns);
        }
        self.copy_entries(ENTRIES[usize::from(idle)], now_ns)
    }

    fn copy_entries(&mut self, most: u32, now_ns: u64) -> bool {
        let (engine, Some(kernel)) = (&self.engine, &mut self.kernel) else { return false };
        // The engine's counts of a previous program are not complete yet, but its entries are.
        let Some((pipe, from)) = kernel.next else { return false };
        if pipe.index() >= engine.pipe_count() {
            for group in (0..engine.program().groups.len()).map(|at| GroupId(at as u16)) {
                kernel.replica.publish(group, engine.slots(group));
            }
            kernel.next = None;
            kernel.replica.start();
            return false;
        }
        let page = engine.page(pipe, from, most, now_ns);
        if from > 0 && page.renumbered != kernel.renumbered {
            kernel.next = Some((pipe, 0));
            return true;
        }
        kernel.renumbered = page.renumbered;
        page.entries.iter().for_each(|(entry, _)| kernel.replica.put(pipe, entry));
        kernel.next = Some(page.next.map_or((PipeId(pipe.0 + 1), 0), |next| (pipe, next)));
        true
    }

    /// Adds what the program in the kernel has counted since the last time.
    pub(super) fn sweep_kernel(&mut self, all: bool, now_ns: u64) {
        let Some(kernel) = &mut self.kernel else { return };
        kernel.swept_ns = now_ns;
        let (engine, ledger, ports) = (&mut self.engine, &mut self.outbox.ledger, &mut self.past_ports);
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
                Swept::Entry(..) | Swept::Misses(..) | Swept::Counter(..) => {}
            }
        });
    }

    /// Returns the state of the program in the kernel, if there is one.
    pub(super) fn kernel_report(&self) -> Option<ReplicaReport> {
        self.kernel.as_ref().map(|kernel| kernel.replica.report())
    }
}
