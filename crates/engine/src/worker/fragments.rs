//! Frames are handed to their workers as they arrive, and fragments get the ports of their datagram.
//!
//! All fragments between two hosts belong to one worker, wherever they arrive. It learns their ports and
//! hands each fragment to the worker of its flow, which is known by then (changes.md O6). If other fragments
//! of a datagram arrive before the first, they wait, and are processed after the batch in which the first one
//! arrives.

use super::Worker;
use crate::batch::Share;
use crate::parcel::Arrived;
use weir_packet::fragment::FragmentPart;
use weir_packet::{BATCH, Bits, DropReason};
use weir_program::PortId;

impl Worker {
    /// Prepares for the program's fragments.
    pub(super) fn mind_program(&mut self) {
        if self.engine.follows() {
            self.fragments.allocate();
        }
    }

    /// Hands over frames of the batch that belong to other workers, and holds back fragments with unknown
    /// ports. Returns the mask of the frames to be processed now. A program without flow state and fragments
    /// leaves every frame where it arrived, and so does a worker that is about to stop.
    pub(super) fn admit(&mut self, input: PortId, now_ns: u64) -> u64 {
        let all = self.batch.mask();
        let share = self.hand_over.share().filter(|_| !self.quiet);
        let share = match share {
            None if !self.engine.follows() => return all,
            share => share.unwrap_or(Share::ALONE),
        };
        let mut owners = [0; BATCH];
        let (others, fragments) =
            self.engine.of_others(&mut self.batch, all, input, share, |slot, worker| owners[slot] = worker);
        self.give(others, &owners, input);
        all & !others & !self.set_datagram_ports(fragments, input, now_ns)
    }

    /// Holds back fragments with unknown ports that another worker has handed over. Returns the mask of the
    /// frames to be processed now.
    pub(super) fn admit_handed_over(&mut self, input: PortId, now_ns: u64) -> u64 {
        let all = self.batch.mask();
        if !self.engine.follows() {
            return all;
        }
        let fragments = self.engine.fragments(&mut self.batch, all, input);
        all & !self.set_datagram_ports(fragments, input, now_ns)
    }

    fn give(&mut self, others: u64, owners: &[usize; BATCH], input: PortId) {
        let (engine, number) = (&self.engine, self.numbers.of(input));
        let ports = |slot| engine.told_ports(slot);
        self.hand_over.give(&mut self.batch, others, owners, &mut self.outbox, number, ports);
    }

    /// Sets the ports of fragments in the engine. Returns the mask of the fragments that are no longer in the
    /// batch.
    fn set_datagram_ports(&mut self, fragments: u64, input: PortId, now_ns: u64) -> u64 {
        let share = self.hand_over.share();
        let mut gone = 0;
        for slot in Bits(fragments) {
            let Some((id, part)) = self.engine.piece(&self.batch, slot) else { continue };
            let ports = match part {
                // While the number of workers changes, the owner is unknown.
                _ if self.quiet => None,
                FragmentPart::First(ports) => {
                    self.fragments.first(&id, ports, now_ns);
                    Some(ports)
                }
                FragmentPart::Later => self.fragments.later(&id, now_ns),
            };
            let Some(ports) = ports else {
                gone |= 1 << slot;
                let frame = self.batch.take(slot);
                let (bytes, hash, input) = (frame.bytes(), frame.hash(), self.numbers.of(input));
                let arrived = Arrived { bytes, hash, input, ports: None, front: None };
                let lost = self.fragments.wait(&id, arrived, now_ns);
                self.outbox.pools.give(frame);
                self.outbox.ledger.drop_many(DropReason::FragmentsFull, lost.unwrap_or(1));
                continue;
            };
            self.engine.set_datagram_ports(slot, ports);
            let Some(Share { own, workers }) = share else { continue };
            let owner = self.engine.owner_of_told(&mut self.batch, slot, input, workers);
            if let Some(owner) = owner.filter(|owner| *owner != own) {
                gone |= 1 << slot;
                self.give(1 << slot, &[owner; BATCH], input);
            }
        }
        gone
    }

    /// Processes waiting fragments of datagrams whose first fragment has arrived since.
    pub(super) fn release_fragments(&mut self, now_ns: u64) {
        while self.fragments.has_due() && !self.quiet {
            let (mut from, mut input) = (0, None);
            while let Some(at) = self.fragments.next_due(from) {
                let frame = self.fragments.frame(at);
                if input.is_some_and(|number| number != frame.input) || self.batch.len() == BATCH {
                    break;
                }
                input = Some(frame.input);
                match self.outbox.originate(&mut self.batch, frame.bytes, None) {
                    Ok(()) => {
                        let slot = self.batch.len() - 1;
                        self.batch.frame_mut(slot).set_hash(frame.hash);
                        frame.ports.into_iter().for_each(|ports| self.engine.set_datagram_ports(slot, ports));
                    }
                    Err(reason) => self.outbox.ledger.drop_one(reason),
                }
                self.fragments.take(at);
                from = at + 1;
            }
            match input.and_then(|number| self.numbers.port(number)) {
                Some(input) => {
                    let list = self.admit(input, now_ns);
                    self.walk(input, list, now_ns);
                }
                None => {
                    self.engine.forget_ports();
                    self.outbox.drop_all(&mut self.batch, DropReason::PortRemoved);
                }
            }
        }
    }

    /// Drops fragments that have waited too long.
    pub(super) fn expire_fragments(&mut self, now_ns: u64) {
        let expired = self.fragments.expire(now_ns);
        self.outbox.ledger.drop_many(DropReason::FirstFragmentMissing, expired);
    }
}
