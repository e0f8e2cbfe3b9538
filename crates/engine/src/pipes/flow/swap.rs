//! Flows survive a swap of the program if their target does.

use super::Flows;
use crate::pipes::table::NO_ROW;
use packet::FlowKey;
use std::collections::HashMap;
use table::{Decision, DeltaReason, Flow};

impl Flows {
    /// Takes over the flows of the predecessor and maps their decisions to rows of this pipe. Flows whose
    /// target is gone are removed; returns how many.
    pub fn inherit(&mut self, old: &mut Flows, target: &dyn Fn(u16) -> Option<u16>, now_ms: u32) -> usize {
        self.unflowed_full = old.unflowed_full;
        let mut gone = self.move_flows(old);
        let row_now = self.rows_now(old, target);
        let all: Vec<(u32, Decision)> = self.table.iter().map(|(at, flow)| (at, flow.decision())).collect();
        for (at, decision) in all {
            let Decision::Pinned(row) = decision else { continue };
            match row_now.get(&row) {
                Some(&now) => {
                    self.table.pin(at, Decision::Pinned(now));
                }
                None => {
                    self.forget(at, DeltaReason::Removed);
                    gone += 1;
                }
            }
        }
        gone + self.enter_own(now_ms)
    }

    /// Maps the rows of the predecessor to present rows, as far as they exist.
    fn rows_now(&self, old: &Flows, target: &dyn Fn(u16) -> Option<u16>) -> HashMap<u32, u32> {
        let targets = old.targets.iter().filter_map(|(at, row)| Some((row, self.targets.row(target(at)?))));
        let own = old.own.iter().filter_map(|(key, &row)| Some((row, *self.own.get(key)?)));
        let all = targets.chain(own).chain([(old.default_row, self.default_row)]);
        all.filter(|&(before, now)| before != NO_ROW && now != NO_ROW).collect()
    }

    /// Moves the flow table as a whole or, into one of another capacity, flow by flow. Returns how many found
    /// no room.
    fn move_flows(&mut self, old: &mut Flows) -> usize {
        if old.table.capacity() == self.table.capacity() {
            std::mem::swap(&mut self.table, &mut old.table);
            return 0;
        }
        let hash = self.hash;
        // The new table has only flows of its own entries, which have counted nothing yet.
        self.table.flush(DeltaReason::Removed, |key| hash.hash(&key.0), |_| true);
        let all: Vec<(u32, Flow)> = old.table.iter().map(|(at, flow)| (at, *flow)).collect();
        for (at, flow) in all {
            if self.table.adopt(self.hash(flow.key()), &flow).is_ok() {
                let _moved = old.table.remove(at, DeltaReason::Removed, |key| hash.hash(&key.0));
            }
        }
        old.forget_all()
    }

    /// Inserts own flows that were not flows before. Returns how many others were removed to make room.
    fn enter_own(&mut self, now_ms: u32) -> usize {
        let own: Vec<(FlowKey, u32)> = self.own.iter().map(|(key, row)| (*key, *row)).collect();
        let mut gone = 0;
        for (key, row) in own {
            loop {
                if let Ok(at) = self.table.learn(self.hash(&key), &key, Decision::Pinned(row), now_ms) {
                    self.table.pin(at, Decision::Pinned(row));
                    break;
                }
                let other =
                    self.table.iter().find(|(_, flow)| !self.own.contains_key(flow.key())).map(|(at, _)| at);
                let Some(other) = other else { break };
                self.forget(other, DeltaReason::Evicted);
                gone += 1;
            }
        }
        gone
    }

    /// Removes every flow, leaving its delta. Returns how many there were.
    pub fn forget_all(&mut self) -> usize {
        let (hash, count, deltas) = (self.hash, self.table.len(), &mut self.deltas);
        let keep = |delta| {
            deltas.push(delta);
            true
        };
        self.table.flush(DeltaReason::Removed, |key| hash.hash(&key.0), keep);
        count
    }
}
