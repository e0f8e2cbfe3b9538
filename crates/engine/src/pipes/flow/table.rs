//! The flow table, and the rows that its decisions refer to.

use super::Learn;
use crate::batch::DELTAS_MAX;
use crate::batch::compile::{self, CompileError, milliseconds};
use crate::change::EntryKey;
use crate::pipes::table::{NO_ROW, Refusal};
use crate::pipes::targets::Targets;
use crate::program::{Entry, EntryMatch, Pipe, Program};
use crate::snapshot::{Count, FlowDecision, FlowSnapshot};
use packet::{FlowKey, KeySource, TableHash};
use std::collections::HashMap;
use table::{Decision, DeltaReason, Flow, FlowDelta, FlowTable};

/// The flows of a pipe.
#[derive(Debug)]
pub struct Flows {
    pub source: KeySource,
    pub(super) learn: Learn,
    pub(super) timeout_ms: u32,
    pub table: FlowTable,
    pub(super) hash: TableHash,
    pub(super) default_row: u32,
    pub(super) targets: Targets,
    /// Rows of the flows that were configured or added at run time.
    pub(super) own: HashMap<FlowKey, u32>,
    pub unflowed_full: u64,
    pub deltas: Vec<FlowDelta>,
}

impl Flows {
    /// Creates a table without flows.
    ///
    /// # Errors
    /// The pipe has per-entry matches.
    pub fn new(
        pipe: &Pipe,
        program: &Program,
        (source, learn, idle_timeout_ns): (KeySource, Learn, u64),
        hash: TableHash,
    ) -> Result<Flows, CompileError> {
        compile::fields(pipe, |_| None)?;
        let targets = learn.group().map_or(0, |group| program.groups[group.index()].targets.len());
        Ok(Flows {
            source,
            learn,
            timeout_ms: milliseconds(idle_timeout_ns),
            table: FlowTable::with_capacity(pipe.capacity as usize),
            hash,
            default_row: NO_ROW,
            targets: Targets::new(targets),
            own: HashMap::new(),
            unflowed_full: 0,
            deltas: Vec::with_capacity(DELTAS_MAX),
        })
    }

    /// Returns the hash of a flow.
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        self.hash.hash(&key.0)
    }

    /// Inserts an entry whose row is `row`.
    pub fn insert(&mut self, entry: &Entry, row: u32, now_ms: u32) -> Result<(), Refusal> {
        match entry.matches[0] {
            EntryMatch::Default if self.default_row == NO_ROW => self.default_row = row,
            EntryMatch::Default => return Err(Refusal::Exists),
            EntryMatch::Flow(key) if self.own.contains_key(&key) => return Err(Refusal::Exists),
            EntryMatch::Flow(key) => {
                let learnt = self.table.learn(self.hash(&key), &key, Decision::Pinned(row), now_ms);
                let flow = learnt.map_err(|table::Full| Refusal::Full)?;
                // A flow learnt earlier is taken over with its counts.
                self.table.pin(flow, Decision::Pinned(row));
                self.own.insert(key, row);
            }
            _ => return self.targets.insert(&entry.matches, row),
        }
        Ok(())
    }

    /// Returns the row of an entry.
    #[must_use]
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        match key.matches.first()? {
            EntryMatch::Default => Some(self.default_row).filter(|&row| row != NO_ROW),
            EntryMatch::Flow(flow) => self.own.get(flow).copied(),
            _ => self.targets.find(&key.matches),
        }
    }

    /// Removes an entry, and the flows whose decision refers to it. Returns its row.
    pub fn remove(&mut self, key: &EntryKey) -> Option<u32> {
        let row = self.find(key)?;
        match key.matches.first()? {
            EntryMatch::Default => {
                self.forget_flows_of(row);
                self.default_row = NO_ROW;
            }
            EntryMatch::Flow(flow) => {
                self.own.remove(flow);
                if let Some(at) = self.table.get(self.hash(flow), flow) {
                    self.forget(at, DeltaReason::Removed);
                }
            }
            _ => {
                self.forget_flows_of(row);
                self.targets.remove(&key.matches);
            }
        }
        Some(row)
    }

    /// Returns all entries and their rows.
    #[must_use]
    pub fn keys(&self) -> Vec<(EntryKey, u32)> {
        let mut all = self.targets.keys();
        if self.default_row != NO_ROW {
            all.push((EntryKey::one(EntryMatch::Default), self.default_row));
        }
        all.extend(self.own.iter().map(|(&key, &row)| (EntryKey::one(EntryMatch::Flow(key)), row)));
        all
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.iter().count() + self.own.len() + usize::from(self.default_row != NO_ROW)
    }

    /// Removes the flows whose decision refers to a row that is about to be removed.
    fn forget_flows_of(&mut self, row: u32) {
        let named = |flow: &Flow| flow.decision() == Decision::Pinned(row);
        let gone: Vec<u32> = self.table.iter().filter(|(_, flow)| named(flow)).map(|(at, _)| at).collect();
        gone.into_iter().for_each(|at| self.forget(at, DeltaReason::Removed));
    }

    /// Removes a flow, leaving its delta.
    pub(super) fn forget(&mut self, at: u32, reason: DeltaReason) {
        let hash = self.hash;
        self.deltas.extend(self.table.remove(at, reason, |key| hash.hash(&key.0)));
    }

    /// Returns one live flow.
    #[must_use]
    pub fn snapshot(&self, key: &FlowKey) -> Option<FlowSnapshot> {
        let at = self.table.get(self.hash(key), key)?;
        self.table.flow(at).map(|flow| self.seen(flow))
    }

    /// Iterates over all live flows.
    pub fn snapshots(&self) -> impl Iterator<Item = FlowSnapshot> {
        self.table.iter().map(|(_, flow)| self.seen(flow))
    }

    fn seen(&self, flow: &Flow) -> FlowSnapshot {
        let decision = match flow.decision() {
            _ if self.own.contains_key(flow.key()) => FlowDecision::Own,
            Decision::Pinned(row) if row == self.default_row => FlowDecision::Default,
            Decision::Pinned(row) => self.targets.target(row).map_or(FlowDecision::Own, FlowDecision::Pinned),
            Decision::Group(_) | Decision::Cached(_) => {
                FlowDecision::Follow(self.learn.group().unwrap_or_default())
            }
        };
        FlowSnapshot {
            key: *flow.key(),
            decision,
            hits: Count { packets: flow.packets(), bytes: flow.bytes() },
            first_ms: flow.first(),
            last_ms: flow.last(),
        }
    }
}
