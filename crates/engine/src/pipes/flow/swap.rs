//! Flows survive a swap of the program if their target does. A swap does not touch them: it leads the numbers
//! of their decisions to the new rows ([`super::decided`]).

use super::Flows;
use super::table::depart;
use crate::pipes::table::{NO_ROW, TargetNow};
use crate::program::GroupId;
use crate::snapshot::FlowAccount;
use packet::FlowKey;
use std::collections::HashMap;
use table::{Decision, DeltaReason, Flow};

impl Flows {
    /// Takes over the flows of the predecessor and leads their decisions to rows of this pipe. What finds no
    /// room stays in the predecessor, which must be drained. Returns how many flows are gone.
    pub fn inherit(&mut self, old: &mut Flows, target: &TargetNow<'_>, now_ms: u32) -> usize {
        let row_now = self.rows_now(old, target);
        let mut gone = 0;
        if old.table.capacity() == self.table.capacity() {
            std::mem::swap(&mut self.table, &mut old.table);
            if let (Some(new), Some(old)) = (&mut self.values, &mut old.values) {
                new.take_slab(old);
            }
            gone += self.decided.inherit(std::mem::take(&mut old.decided), |row| row_now.get(&row).copied());
            self.account = std::mem::take(&mut old.account);
        } else {
            gone += self.move_flows(old, &row_now);
        }
        std::mem::swap(&mut self.deltas, &mut old.deltas);
        gone + self.enter_own(now_ms)
    }

    /// Maps the rows of the predecessor to present rows, as far as they exist.
    fn rows_now(&self, old: &Flows, target: &TargetNow<'_>) -> HashMap<u32, u32> {
        let now = |(group, at, row): (GroupId, u16, u32)| {
            let (group, at) = target(group, at)?;
            Some((row, self.targets.row(group.index(), at)))
        };
        let targets = old.targets.iter().filter_map(now);
        let own = old.own.iter().filter_map(|(key, &row)| Some((row, *self.own.get(key)?)));
        let all = targets.chain(own).chain([(old.default_row, self.default_row)]);
        // What flows keep was laid out for their entry's action.
        let template = |of: &Flows, row| of.values.as_ref().and_then(|values| values.template(row));
        let same = |before, now| template(old, before) == template(self, now);
        all.filter(|&(before, now)| before != NO_ROW && now != NO_ROW && same(before, now)).collect()
    }

    /// Moves flows, one by one, into a table of another capacity. Returns how many are gone.
    fn move_flows(&mut self, old: &mut Flows, row_now: &HashMap<u32, u32>) -> usize {
        let (before, hash) = (old.live(), self.hash);
        // So far there are only flows of entries, which have counted nothing.
        for key in self.own.keys() {
            if let Some(at) = self.table.get(self.hash(key), key) {
                self.table.remove(at, |key| hash.hash(&key.0), |_| true);
            }
        }
        self.decided.inherit(old.decided.without_flows(), |row| row_now.get(&row).copied());
        let all: Vec<(u32, Flow)> = old.table.iter().map(|(at, flow)| (at, *flow)).collect();
        let mut moved = 0;
        for (at, flow) in all {
            if !old.is_alive(&flow) || !self.is_alive(&flow) {
                continue;
            }
            if let Ok(to) = self.table.adopt(self.hash(flow.key()), &flow) {
                if let (Some(new), Some(old)) = (&mut self.values, &old.values) {
                    new.copy_from(to, old, at);
                }
                moved += flow.packets();
                old.table.remove(at, |key| hash.hash(&key.0), |_| true);
                depart(&mut old.decided, &flow);
                if let Decision::Pinned(number) = flow.decision() {
                    self.decided.joined(number);
                }
            }
        }
        self.account = old.account.without(old.account.live - moved);
        old.account = FlowAccount {
            met: old.account.live - moved,
            live: old.account.live - moved,
            ..FlowAccount::default()
        };
        before - self.live()
    }

    /// Returns true if the flow of an entry is in the table.
    fn is_own(&self, key: &FlowKey, row: u32) -> bool {
        let flow = self.table.get(self.hash(key), key).and_then(|at| self.table.flow(at));
        let number = self.decided.of_row(row);
        flow.is_some_and(|flow| number.is_some_and(|number| flow.decision() == Decision::Pinned(number)))
    }

    /// Inserts flows of entries that were not flows before. Returns how many others were removed to make
    /// room.
    fn enter_own(&mut self, now_ms: u32) -> usize {
        let own: Vec<(FlowKey, u32)> = self.own.iter().map(|(key, row)| (*key, *row)).collect();
        let mut gone = 0;
        for (key, row) in own {
            if self.table.get(self.hash(&key), &key).is_none() && self.table.len() == self.table.capacity() {
                let other =
                    self.table.iter().find(|(_, flow)| !self.own.contains_key(flow.key())).map(|(at, _)| at);
                gone += usize::from(other.is_some_and(|at| self.clear(at, DeltaReason::Evicted)));
            }
            if !self.is_own(&key, row) {
                self.begin_own(&key, row, now_ms);
            }
        }
        gone
    }
}
