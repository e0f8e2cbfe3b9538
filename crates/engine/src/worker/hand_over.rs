//! Hand-over between workers: frames of a flow that belongs to another worker go there, in carriers.

use super::outbox::{Outbox, not_sent};
use crate::program::{AppId, PortId};
use crate::ring::{Carrier, CarrierReceiver, CarrierSender, carriers};
use packet::{Batch, Bits, Depth, DropReason, FlowKey, KeySource, parse, select_hash};

/// Rings to and from the other workers, by worker number; the worker's own is empty.
#[derive(Debug, Default)]
pub struct HandOver {
    /// This worker's number.
    own: usize,
    to: Vec<Option<CarrierSender>>,
    from: Vec<CarrierReceiver>,
    /// Frames handed to others.
    pub(super) given: u64,
    /// Frames taken from others.
    pub(super) taken: u64,
}

impl HandOver {
    /// Creates rings of `capacity` frames between all pairs of workers; none if there is only one worker.
    #[must_use]
    pub fn between(workers: usize, capacity: usize) -> Vec<HandOver> {
        let alone = |own| HandOver { own, to: (0..workers).map(|_| None).collect(), ..HandOver::default() };
        let mut all: Vec<HandOver> = (0..workers).map(alone).collect();
        for from in 0..workers {
            for to in (0..workers).filter(|&to| to != from) {
                let (sender, receiver) = carriers(capacity);
                all[from].to[to] = Some(sender);
                all[to].from.push(receiver);
            }
        }
        all
    }

    /// Returns the number of workers that hand frames to this one.
    pub(super) fn others(&self) -> usize {
        self.from.len()
    }

    /// Hands over frames whose flows belong to another worker. Returns the mask of those that stay.
    pub(super) fn give_others(&mut self, batch: &mut Batch, outbox: &mut Outbox, input: PortId) -> u64 {
        let workers = self.to.len();
        let mut own = batch.mask();
        if workers < 2 {
            return own;
        }
        for slot in Bits(own) {
            let owner = owner(batch.frame(slot).bytes(), workers).unwrap_or(self.own);
            let Some(Some(ring)) = self.to.get_mut(owner) else { continue };
            own &= !(1 << slot);
            let frame = batch.take(slot);
            if ring.send_hashed(frame.bytes(), frame.hash(), input, AppId(0)) {
                self.given += 1;
            } else {
                outbox.ledger.drop_one(not_sent(&frame, DropReason::HandOverFull));
            }
            outbox.pools.give(frame);
        }
        own
    }

    /// Takes the next frame from one of the others; its carrier is returned by [`HandOver::done`].
    pub(super) fn take(&mut self, from: usize) -> Option<Carrier> {
        let carrier = self.from[from].receive()?;
        self.taken += 1;
        Some(carrier)
    }

    pub(super) fn done(&mut self, from: usize, carrier: Carrier) {
        self.from[from].done(carrier);
    }

    /// Returns the number of frames handed to others and not yet taken.
    pub(super) fn held(&self) -> u64 {
        self.to.iter().flatten().map(CarrierSender::held).sum()
    }

    /// Discards what the others handed over. Returns the number of frames.
    pub(super) fn drain(&mut self) -> u64 {
        let before = self.taken;
        for from in 0..self.from.len() {
            while let Some(carrier) = self.take(from) {
                self.done(from, carrier);
            }
        }
        self.taken - before
    }
}

/// Returns the worker that a flow belongs to, the same for both directions and for all fragments of a
/// datagram. `None` without IP.
fn owner(bytes: &[u8], workers: usize) -> Option<usize> {
    let headers = parse(bytes, Depth::L4).ok()?;
    let FlowKey([src_hi, src_lo, dst_hi, dst_lo, rest]) = FlowKey::of(bytes, &headers, KeySource::Outer)?;
    let (sport, dport, protocol) = (rest >> 48, rest >> 32 & 0xffff, rest >> 24 & 0xff);
    // An IPv4 source carries the mark; remove it so that both ends look alike.
    let source = [if src_hi == packet::IPV4_MARK { 0 } else { src_hi }, src_lo, sport];
    let target = [dst_hi, dst_lo, dport];
    let (low, high) = if source <= target { (source, target) } else { (target, source) };
    let words = [low[0], low[1], low[2], high[0], high[1], high[2], protocol];
    Some(((select_hash(0, &words) >> 32) as usize * workers) >> 32)
}
