//! A worker switches to a new program: in one breath if the program is small, otherwise in slices between
//! breaths.

use super::kernel::CopyState;
use super::leaving::Leaver;
use super::{Rewire, Rewiring, Swapped, Worker};
use crate::batch::Engine;
use std::sync::mpsc::{SyncSender, TrySendError};
use weir_packet::DropReason;

/// Entries handled in a breath that has nothing else to do, at up to half a microsecond each.
const ENTRIES_IDLE: u32 = 256;

/// Maximum number of entries handled in a busy breath.
const ENTRIES_BUSY: u32 = 64;

/// The time allotted to each entry at a busy worker, in nanoseconds: handling it takes a tenth of that.
const NS_PER_ENTRY: u64 = 2_000;

/// The swap in progress.
#[derive(Debug, Default)]
pub(super) struct Swaps {
    /// The engine that will replace the present one. Until then, no other command is executed.
    next: Option<(Box<Engine>, Rewiring, SyncSender<Swapped>)>,
    /// Whether the swap only waits until the next program's copy in the kernel has been compiled.
    awaits_copy: bool,
    /// Notified when everything has been taken over.
    asker: Option<SyncSender<Swapped>>,
    /// The time of the last slice.
    last_ns: u64,
    /// Engines that were not taken back.
    #[allow(clippy::vec_box, reason = "they were boxed earlier, and are moved between two breaths")]
    kept: Vec<Box<Engine>>,
}

impl Swaps {
    /// Whether commands must wait because they are meant for a program that does not run yet.
    pub fn hold_commands(&self) -> bool {
        self.next.is_some()
    }

    fn is_idle(&self) -> bool {
        self.next.is_none() && self.asker.is_none()
    }

    /// Whether the next step is done by a thread that does not wake the worker.
    pub fn awaits_copy(&self) -> bool {
        self.awaits_copy
    }
}

impl Worker {
    /// Begins a swap, and proceeds as far as one slice allows.
    pub(super) fn begin_swap(
        &mut self,
        engine: Box<Engine>,
        rewiring: Rewiring,
        asker: SyncSender<Swapped>,
        now_ns: u64,
    ) {
        self.give_up_reservations();
        self.swaps.next = Some((engine, rewiring, asker));
        self.swaps.last_ns = now_ns;
        self.swap_slice(ENTRIES_BUSY, now_ns);
    }

    /// Continues a swap, one slice per breath. Returns true while one is in progress. `idle` says that the
    /// breath has handled no frame.
    pub(super) fn continue_swap(&mut self, idle: bool, now_ns: u64) -> bool {
        // Counts of removed workers are taken over in the same way.
        if self.swaps.is_idle() && !self.engine.is_settling() {
            return false;
        }
        let due = now_ns.saturating_sub(self.swaps.last_ns) / NS_PER_ENTRY;
        let entries = if idle { ENTRIES_IDLE } else { due.min(u64::from(ENTRIES_BUSY)) as u32 };
        if entries > 0 {
            self.swaps.last_ns = now_ns;
            self.swap_slice(entries, now_ns);
        }
        (!self.swaps.is_idle() && !self.swaps.awaits_copy) || self.engine.is_settling()
    }

    fn swap_slice(&mut self, entries: u32, now_ns: u64) {
        if self.engine.is_settling() {
            return self.settle(entries);
        }
        if !self.pending.is_empty() {
            // They use the running engine, and end within a few breaths.
            return;
        }
        let Some((mut engine, mut rewiring, asker)) = self.swaps.next.take() else { return };
        let mut state = CopyState::Filling;
        if engine.stage(&mut self.engine, entries, now_ns) {
            let next = rewiring.copy.as_mut();
            let generation = rewiring.generation;
            state = next.map_or(CopyState::Done, |next| next.prepare(&engine, generation, entries, now_ns));
        }
        self.swaps.awaits_copy = state == CopyState::Loading;
        if state != CopyState::Done {
            self.swaps.next = Some((engine, rewiring, asker));
            return;
        }
        let copy = self.switch_copies(rewiring.copy.take(), now_ns);
        std::mem::swap(&mut self.engine, &mut *engine);
        self.engine.take_over(engine, now_ns);
        self.rewire(rewiring);
        self.keep_copy(copy, now_ns);
        self.mind_program();
        self.swaps.asker = Some(asker);
        self.settle(entries);
    }

    /// Takes over counts, and notifies the asker when that is done.
    fn settle(&mut self, entries: u32) {
        let Some((report, former)) = self.engine.settle(entries) else { return };
        let Some(asker) = self.swaps.asker.take() else {
            return self.leaving.dispose(Box::new(former));
        };
        let answer = asker.try_send(Swapped { report, former });
        if let Err(TrySendError::Full(lost) | TrySendError::Disconnected(lost)) = answer {
            self.swaps.kept.push(lost.former);
        }
        // The thread that waits for the answer must be woken.
        self.outbox.signal = true;
    }

    fn rewire(&mut self, rewiring: Rewiring) {
        let Rewiring { generation, ports, punts, hand_over, copy: _ } = rewiring;
        self.generation = generation;
        self.outbox.punts = punts;
        if let Some(mut rings) = hand_over {
            rings.succeed(std::mem::take(&mut self.hand_over));
            self.hand_over = rings;
        }
        self.numbers.follow(ports.iter().map(Rewire::index));
        let kept: Vec<Option<usize>> = ports.iter().map(Rewire::index).collect();
        self.reorder_past_ports(&kept);
        self.waiting
            .renumber(&kept)
            .into_iter()
            .for_each(|waiter| self.answer(waiter, Err(DropReason::PortRemoved)));
        let outbox = &mut self.outbox;
        let old = std::mem::take(&mut outbox.ports).into_iter().zip(std::mem::take(&mut outbox.own_pools));
        let mut old: Vec<_> = old.map(|(port, pool)| Some(Leaver { port, pool })).collect();
        for rewire in ports {
            let present = rewire.index().and_then(|at| old.get_mut(at)?.take());
            let (port, pool) = match (rewire, present) {
                (Rewire::Keep(_), Some(Leaver { port, pool })) => (port, pool),
                (Rewire::Change(_, change), Some(Leaver { port, pool })) => (change(port), pool),
                (Rewire::New(port, pool), _) => (port, pool.map(|pool| outbox.pools.add(pool))),
                (_, None) => continue,
            };
            outbox.ports.push(port);
            outbox.own_pools.push(pool);
        }
        old.into_iter().flatten().for_each(|port| self.leaving.add(port));
    }
}
