//! Flows move to the worker that they belong to when the number of workers changes: all flows are taken out
//! of the tables first and entered again afterwards, so that it does not matter how full the tables are in
//! between.
//!
//! Guarantees: a flow arrives with its counts, times, state and values, or its counts are in a delta. The
//! flow of an entry of its own is on every worker; its counts and its state move, and the flow stays.

use super::Flows;
use super::nat::Place;
use super::observations::{Known, known};
use super::segments::SegmentRow;
use super::table::depart;
use weir_packet::FlowKey;
use weir_program::nat::SLICES;
use weir_program::owner::Side;
use weir_table::{Belonging, Decision, DeltaReason, Flow};

/// A flow in transit.
#[derive(Clone, Copy, Debug)]
pub struct Migrant {
    /// The worker that the flow belongs to.
    pub to: usize,
    flow: Flow,
    known: Known,
    /// Whether the flow has an entry of its own.
    own: bool,
    /// The flow's place in the NAT pool.
    place: Option<Place>,
    /// The name that the flow and that of the other direction share.
    pair: Option<u64>,
}

/// The flows that leave a worker.
#[derive(Debug, Default)]
pub struct Migrants {
    pub flows: Vec<Migrant>,
    /// The values that the flows keep, in the order of the flows.
    kept: Vec<u8>,
    /// The newest segments of the flows, in the same order, if segments are kept.
    segments: Vec<Option<SegmentRow>>,
}

impl Migrant {
    /// Returns the number of the flow's decision, if it may lead elsewhere on another worker.
    pub fn number(&self) -> Option<u32> {
        match self.flow.decision() {
            Decision::Pinned(number) if !self.own => Some(number),
            _ => None,
        }
    }
}

impl Flows {
    /// Takes out the flows that belong to a worker other than `here`; `owner` returns which one.
    pub fn take_out(&mut self, here: usize, owner: impl Fn(&FlowKey, Side) -> usize) -> Migrants {
        let mut migrants = Migrants::default();
        let mut rows = Vec::new();
        for (at, flow) in self.table.iter().filter(|(_, flow)| self.is_alive(flow)) {
            let to = owner(flow.key(), self.side_of(flow));
            if to != here {
                rows.push((at, to, self.own.contains_key(flow.key()), self.pair_name(at)));
            }
        }
        let hash = self.hash;
        for (at, to, own, pair) in rows {
            let mut taken = None;
            let was = self.table.flow(at).map(|flow| known(&self.observed, at, flow)).unwrap_or_default();
            if own {
                taken = self.table.hand_on(at).filter(|flow| flow.packets() > 0);
            } else {
                self.table.remove(
                    at,
                    |key| hash.hash(&key.0),
                    |flow| {
                        taken = Some(*flow);
                        true
                    },
                );
            }
            let Some(flow) = taken else { continue };
            if !own {
                depart(&mut self.decided, &flow);
            }
            self.account = self.account.without(flow.packets());
            if let Some(values) = &self.values {
                migrants.kept.extend_from_slice(values.of_row(at));
            }
            migrants.segments.push(self.segments.as_ref().and_then(|all| all.row(at)));
            let place = self.nat.as_mut().and_then(|nat| nat.detach(at));
            if let Some(pairs) = &mut self.pairs {
                pairs.part(at);
            }
            migrants.flows.push(Migrant { to, flow, known: was, own, place, pair });
        }
        migrants
    }

    /// Takes over what another worker's flows left in the NAT pool for the flows that belong here.
    pub fn take_slices(&mut self, other: &mut Flows, belongs: impl Fn(u32) -> bool) {
        if let (Some(new), Some(old)) = (&mut self.nat, &mut other.nat) {
            (0..SLICES).filter(|&slice| belongs(slice)).for_each(|slice| new.take_slice(old, slice));
        }
    }

    /// Called when all flows that belong here have arrived.
    pub fn all_taken_in(&mut self) {
        self.nat.iter_mut().for_each(|nat| nat.arrived());
        self.pairs.iter_mut().for_each(|pairs| pairs.arrived());
    }

    /// Takes in the flow at this position; `number` is that of its decision here. Returns false if it had to
    /// end, with a delta, because there is no room or no such entry.
    pub fn take_in(&mut self, all: &Migrants, at: usize, number: Option<u32>) -> bool {
        let row = self.enter(all, at, number);
        if let (Some(nat), Some(place)) = (&mut self.nat, all.flows[at].place) {
            match row {
                Some(row) => nat.attach(row, place),
                None => nat.lose(place),
            }
        }
        row.is_some()
    }

    /// Takes in the flow at this position; returns the row of the flow.
    fn enter(&mut self, all: &Migrants, at: usize, number: Option<u32>) -> Option<u32> {
        let Migrant { flow, known: was, .. } = all.flows[at];
        let (packets, key) = (flow.packets(), *flow.key());
        self.account.met += packets;
        self.account.live += packets;
        let hash = self.hash(&key);
        if let Some(present) = self.table.get(hash, &key) {
            let living = self.table.flow(present).filter(|flow| self.is_alive(flow));
            if let Some(packets) = living.map(Flow::packets) {
                if self.table.merge(present, &flow) {
                    self.observed.iter_mut().for_each(|all| all.take(present, packets, &was));
                    return Some(present);
                }
                return self.end_one((&flow, was), number, DeltaReason::Overflow);
            }
            self.clear(present, DeltaReason::Removed);
        }
        let decision = match flow.decision() {
            Decision::Pinned(_) => number.map(Decision::Pinned),
            other => Some(other),
        };
        let Some(decision) = decision else {
            return self.end_one((&flow, was), number, DeltaReason::Removed);
        };
        if self.table.len() == self.table.capacity() && !self.reclaim(1) {
            return self.end_one((&flow, was), number, DeltaReason::Evicted);
        }
        let Ok(row) = self.table.adopt(hash, &flow) else {
            return self.end_one((&flow, was), number, DeltaReason::Evicted);
        };
        self.table.pin(row, decision);
        self.observed.iter_mut().for_each(|all| all.take(row, 0, &was));
        if let Decision::Pinned(number) = decision {
            self.decided.joined(number);
        }
        if let Some(values) = &mut self.values {
            values.set_row(row, &all.kept, at);
        }
        if let Some(segments) = &mut self.segments {
            segments.set(row, all.segments.get(at).copied().flatten());
        }
        self.rejoin(row, all.flows[at].pair);
        Some(row)
    }

    /// Emits the counts of a flow that cannot be taken in.
    fn end_one(
        &mut self,
        (flow, was): (&Flow, Known),
        number: Option<u32>,
        reason: DeltaReason,
    ) -> Option<u32> {
        let of: Option<Belonging> = number.and_then(|number| self.decided.belonging(number));
        let delta = flow.delta(of.unwrap_or(self.of), reason).observing(was.observed);
        self.account.give(&delta);
        self.deltas.push_back(delta);
        None
    }

    /// Returns the row of the entry that a number leads to.
    pub fn row_of_number(&self, number: u32) -> u32 {
        self.decided.row(number)
    }

    /// Returns the number that leads to the entry of a row.
    pub fn number_of_row(&self, row: u32) -> Option<u32> {
        self.decided.of_row(row)
    }
}
