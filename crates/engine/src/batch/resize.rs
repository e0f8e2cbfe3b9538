//! Engines when the number of workers changes. While all workers pause, flows move to the worker that they
//! belong to from then on, and the counts of removed workers' engines go to the first engine.
//!
//! All engines run the same program with the same entries: a new worker's engine was made a replica
//! beforehand ([`Engine::replicate`]). Afterwards the first engine takes over the counts of entries, of which
//! there may be many, in slices, as it does from a previous program ([`Engine::settle`]).

#![allow(clippy::vec_box, reason = "engines are moved between threads in their boxes")]

use super::Engine;
use super::group::BucketFilling;
use crate::batch::compile::CompiledPipe;
use crate::pipes::flow::{Flows, Migrants};
use crate::pipes::lookup::NO_ROW;
use crate::ring::DELTAS_MAX;
use std::sync::Arc;
use weir_packet::{FlowKey, TableHash};
use weir_program::change::EntryKey;
use weir_program::owner::{Side, Spread, Steering, worker};
use weir_program::snapshot::FlowAccount;
use weir_program::{NatPool, Program};

/// The number of a decision that has not yet been looked up on another worker.
const UNKNOWN: u32 = u32::MAX;
/// A number that leads nowhere on the other worker.
const NOWHERE: u32 = u32::MAX - 1;

/// The effect of a change of the number of workers on flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Flows that moved to another worker.
    pub moved: usize,
    /// Flows that found no room on the other worker and ended with a delta.
    pub ended: usize,
}

impl Engine {
    /// Returns an engine without a program, which a worker holds while its own engine is lent.
    #[must_use]
    pub fn stand_in(hash: TableHash) -> Engine {
        Engine::new(&Program::default(), hash)
            .unwrap_or_else(|error| unreachable!("nothing to compile: {error}"))
    }

    /// Sets the generation of an engine that will become a replica.
    pub fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
        for pipe in &mut self.pipes {
            if let Some(sums) = &mut pipe.sums {
                sums.set_generation(generation as u8);
            }
            let Some(flows) = pipe.table.flows_mut() else { continue };
            flows.set_generation(generation as u8);
            (0..).take_while(|&number| flows.date(number, generation as u8)).for_each(drop);
        }
    }

    /// Becomes a replica of a running engine, whose run-time entries were [staged](Engine::stage) here. No
    /// entry may change there until the number of workers has changed.
    pub fn replicate(&mut self, of: &Engine) {
        self.staging = None;
        self.inherit_buckets(of);
        for (at, (group, other)) in self.walk.groups.iter_mut().zip(&of.walk.groups).enumerate() {
            // Weights may have changed.
            if let BucketFilling::Filled(table) = &other.held {
                group.publish(table);
                self.program.groups[at].targets = Arc::clone(&of.program.groups[at].targets);
                self.walk.targets[at] = Arc::clone(&of.walk.targets[at]);
            }
        }
        for group in &mut self.walk.groups {
            if let BucketFilling::Given(given) = &mut group.held {
                given.forget_counts();
            }
        }
        self.find_owners();
    }

    /// Moves every flow to the engine that it belongs to, one of the first `workers` engines, and removes the
    /// other engines, whose counts the first one takes over. Returns what happened to the flows.
    pub fn redistribute(engines: &mut Vec<Box<Engine>>, workers: usize, steering: Steering) -> Moved {
        let mut moved = Moved::default();
        for engine in engines.iter_mut() {
            // Their part of a NAT pool stays with its slice, so flows that have ended leave first.
            engine.clear_removed();
            engine.each_flows(|flows| flows.set_room(usize::MAX));
        }
        let pipes = engines.first().map_or(0, |engine| engine.pipes.len());
        for pipe in 0..pipes {
            move_flows(engines, pipe, Spread { steering: &steering, workers }, &mut moved);
        }
        for removed in engines.split_off(workers.min(engines.len())) {
            engines[0].absorb(removed);
        }
        for engine in engines.iter_mut() {
            engine.each_flows(|flows| flows.set_room(DELTAS_MAX));
            engine.steering = steering;
            engine.still = false;
            engine.share_entries(workers > 1);
        }
        moved
    }

    /// Takes over the counts of a removed worker's engine: small counts at once, those of entries in slices.
    fn absorb(&mut self, mut old: Box<Engine>) {
        self.past.add(&old.past);
        self.leaving.append(&mut old.leaving);
        self.left_sums.append(&mut old.left_sums);
        self.filled += old.filled;
        for (sum, count) in self.walk.counters.iter_mut().zip(&old.walk.counters) {
            sum.add(*count);
        }
        for (group, other) in self.walk.groups.iter_mut().zip(&old.walk.groups) {
            if let (BucketFilling::Given(group), BucketFilling::Given(other)) = (&mut group.held, &other.held)
            {
                group.add_counts(other);
            }
        }
        let Engine { pipes, leaving, left_sums, .. } = self;
        for (heir, from) in pipes.iter_mut().zip(&mut old.pipes) {
            heir.hits += from.hits;
            heir.misses.add(from.misses);
            left_sums.extend(from.sums.take().filter(|sums| !sums.account.is_empty()));
            if let (Some(flows), Some(mut rest)) = (heir.table.flows_mut(), from.table.take_flows()) {
                // The remaining flows are those of entries, and ended flows that await their delta.
                let live = rest.account.live;
                flows.account.add(&rest.account.without(live));
                rest.account = FlowAccount { met: live, live, ..FlowAccount::default() };
                if !rest.is_drained() {
                    leaving.push(rest);
                }
            }
        }
        self.estates.push(old);
        self.settle_next_estate();
    }
}

/// Moves the flows of one pipe.
fn move_flows(engines: &mut [Box<Engine>], pipe: usize, spread: Spread<'_>, moved: &mut Moved) {
    let by = engines[0].pipes[pipe].shape.owner;
    let nat = engines[0].pipes[pipe].shape.nat;
    let pool = nat.and_then(|id| engines[0].program.nat_pools.get(id.index())).cloned();
    let owner = |key: &FlowKey, side: Side| match &pool {
        Some(pool) => NatPool::worker(pool.slice(key), spread.workers),
        None => worker(by, key, side, spread),
    };
    let mut all: Vec<Migrants> = Vec::new();
    for (here, engine) in engines.iter_mut().enumerate() {
        let flows = engine.pipes[pipe].table.flows_mut();
        all.extend(flows.map(|flows| flows.take_out(here, owner)));
    }
    if pool.is_some() {
        exchange_slices(engines, pipe, spread.workers);
    }
    for (from, migrants) in all.iter().enumerate() {
        let mut numbers: Vec<Vec<u32>> = vec![Vec::new(); spread.workers];
        for (at, migrant) in migrants.flows.iter().enumerate() {
            let to = migrant.to;
            let number = migrant.number().map(|number| {
                let known = &mut numbers[to];
                if known.len() <= number as usize {
                    known.resize(number as usize + 1, UNKNOWN);
                }
                if known[number as usize] == UNKNOWN {
                    let there = number_there(&engines[from].pipes[pipe], &engines[to].pipes[pipe], number);
                    known[number as usize] = there.unwrap_or(NOWHERE);
                }
                known[number as usize]
            });
            let Some(flows) = engines[to].pipes[pipe].table.flows_mut() else { continue };
            let taken = flows.take_in(migrants, at, number.filter(|&number| number != NOWHERE));
            moved.moved += usize::from(taken);
            moved.ended += usize::from(!taken);
        }
    }
    for engine in engines.iter_mut() {
        engine.pipes[pipe].table.flows_mut().into_iter().for_each(|flows| flows.all_taken_in());
    }
}

/// Gives what remains in the slices of a NAT pool to the workers that the slices belong to.
fn exchange_slices(engines: &mut [Box<Engine>], pipe: usize, workers: usize) {
    for to in 0..workers.min(engines.len()) {
        for from in (0..engines.len()).filter(|&from| from != to) {
            let Ok([new, old]) = engines.get_disjoint_mut([to, from]) else { continue };
            if let (Some(new), Some(old)) =
                (new.pipes[pipe].table.flows_mut(), old.pipes[pipe].table.flows_mut())
            {
                new.take_slices(old, |slice| NatPool::worker(slice, workers) == to);
            }
        }
    }
}

/// Returns the number that leads to the same entry in another worker's replica of a pipe.
fn number_there(here: &CompiledPipe, there: &CompiledPipe, number: u32) -> Option<u32> {
    let flows = |pipe: &CompiledPipe, of: &dyn Fn(&Flows) -> Option<u32>| pipe.table.flows().and_then(of);
    let row = flows(here, &|flows| Some(flows.row_of_number(number)).filter(|&row| row != NO_ROW))?;
    let key: EntryKey = here.slab.key(row)?;
    let row = there.table.find(&key)?;
    flows(there, &|flows| flows.number_of_row(row))
}
