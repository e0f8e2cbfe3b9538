//! Flows survive a swap of the program if their target does. A swap does not touch them: it points the
//! numbers of their decisions to the new rows ([`super::decided`]).

use super::Flows;
use super::decided::Renumbering;
use super::nat::Place;
use super::table::depart;
use crate::unflowed::UnflowedReport;
use std::collections::HashMap;
use weir_packet::FlowKey;
use weir_program::nat::SLICES;
use weir_program::snapshot::FlowAccount;
use weir_table::{Decision, DeltaReason, Flow};

impl Flows {
    /// Begins to resolve where the numbers of the predecessor's decisions lead here.
    pub fn renumbering(&self, old: &Flows) -> Renumbering {
        Renumbering::new(&old.decided, &self.decided)
    }

    /// Resolves one more number; `row_now` maps the predecessor's rows to rows of this pipe. Returns false if
    /// nothing was left to do.
    pub fn renumber(
        &self,
        old: &Flows,
        now: &mut Renumbering,
        generation: u8,
        row_now: impl FnOnce(u32) -> Option<u32>,
    ) -> bool {
        // The values that flows keep were laid out for the action of their entry.
        let template = |of: &Flows, row| of.values.as_ref().and_then(|values| values.template(row));
        let row_now = |row| row_now(row).filter(|&now| template(old, row) == template(self, now));
        now.step((&old.decided, &self.decided), generation, row_now)
    }

    /// Takes over the flows of the predecessor, whose decisions lead to rows of this pipe as resolved before.
    /// Flows that find no room stay in the predecessor, which must be drained. Returns how many flows were
    /// lost.
    pub fn inherit(&mut self, old: &mut Flows, now: Renumbering, now_ms: u32) -> usize {
        let mut gone = 0;
        if old.table.capacity() == self.table.capacity() && self.has_pool_of(old) {
            std::mem::swap(&mut self.table, &mut old.table);
            if let (Some(new), Some(old)) = (&mut self.values, &mut old.values) {
                new.take_slab(old);
            }
            std::mem::swap(&mut self.nat, &mut old.nat);
            std::mem::swap(&mut self.pairs, &mut old.pairs);
            if let (Some(new), Some(old)) = (&mut self.observed, &mut old.observed) {
                std::mem::swap(new, old);
            }
            if let (Some(new), Some(old)) = (&mut self.segments, &mut old.segments) {
                new.take_rows(old);
            }
            gone += self.decided.follow(&mut old.decided, now);
            self.account = std::mem::take(&mut old.account);
        } else {
            gone += self.move_flows(old, now);
        }
        if let Some(period) = &mut self.period {
            let before = old.period.map(|old| old.unflowed);
            period.unflowed = before.unwrap_or_else(|| UnflowedReport::after(&self.account.unflowed));
        }
        std::mem::swap(&mut self.deltas, &mut old.deltas);
        self.new_flows.full_ms = old.new_flows.full_ms;
        gone + self.enter_own(now_ms)
    }

    /// Whether both pipes have the same NAT pool, or neither has one.
    fn has_pool_of(&self, old: &Flows) -> bool {
        match (&self.nat, &old.nat) {
            (Some(new), Some(old)) => new.is_alike(old),
            (new, old) => new.is_none() && old.is_none(),
        }
    }

    /// Returns the place in this NAT pool that corresponds to a place of the predecessor's pool, for the flow
    /// with this key; `None` if it does not exist, or if the flow goes to an address that the pool now has:
    /// its packets would be taken for answers and belong to the worker of another slice.
    fn place_now(&self, old: &Flows, place: Option<Place>, key: &FlowKey) -> Option<Place> {
        let nat = self.nat.as_ref()?;
        nat.place_of(old.nat.as_deref()?, place?).filter(|(slice, _)| nat.pool().slice(key) == *slice)
    }

    /// Moves flows one by one into a table of another capacity or with another NAT pool. Returns how many
    /// were lost.
    fn move_flows(&mut self, old: &mut Flows, now: Renumbering) -> usize {
        let (before, hash) = (old.live(), self.hash);
        // So far there are only flows of entries, which have not counted anything.
        for key in self.own.keys() {
            if let Some(at) = self.table.get(self.hash(key), key) {
                self.table.remove(at, |key| hash.hash(&key.0), |_| true);
            }
        }
        self.decided.follow_without_flows(now);
        let all: Vec<(u32, Flow)> = old.table.iter().map(|(at, flow)| (at, *flow)).collect();
        // By names that are known while both are present.
        let named = |(at, _): &(u32, Flow)| Some((*at, old.pair_name(*at)?));
        let pairs: HashMap<u32, u64> = all.iter().filter_map(named).collect();
        let mut moved = 0;
        if self.has_pool_of(old)
            && let (Some(new), Some(old)) = (&mut self.nat, &mut old.nat)
        {
            (0..SLICES).for_each(|slice| new.take_slice(old, slice));
        }
        for (at, flow) in all {
            let pair = pairs.get(&at).copied();
            let place = old.nat.as_mut().and_then(|nat| nat.detach(at));
            let now = self.place_now(old, place, flow.key());
            let stays = old.is_alive(&flow) && self.is_alive(&flow) && now.is_some() == place.is_some();
            let to = stays.then(|| self.table.adopt(self.hash(flow.key()), &flow).ok()).flatten();
            if let (Some(nat), Some(place)) = (&mut self.nat, now) {
                match to {
                    Some(to) => nat.attach(to, place),
                    None => nat.lose(place),
                }
            }
            let Some(to) = to else { continue };
            self.take_beside(to, old, (at, &flow));
            self.rejoin(to, pair);
            moved += flow.packets();
            if let Some(pairs) = &mut old.pairs {
                pairs.part(at);
            }
            old.table.remove(at, |key| hash.hash(&key.0), |_| true);
            depart(&mut old.decided, &flow);
            if let Decision::Pinned(number) = flow.decision() {
                self.decided.joined(number);
            }
        }
        self.nat.iter_mut().for_each(|nat| nat.arrived());
        self.pairs.iter_mut().for_each(|pairs| pairs.arrived());
        self.account = old.account.without(old.account.live - moved);
        old.account = FlowAccount {
            met: old.account.live - moved,
            live: old.account.live - moved,
            ..FlowAccount::default()
        };
        before - self.live()
    }

    /// Takes over the state of a flow of the predecessor that is kept beside its row.
    fn take_beside(&mut self, to: u32, old: &Flows, (at, flow): (u32, &Flow)) {
        if let (Some(new), Some(old)) = (&mut self.values, &old.values) {
            new.copy_from(to, old, at);
        }
        if let (Some(new), Some(old)) = (&mut self.observed, &old.observed) {
            new.take(to, 0, &old.of(at, flow));
        }
        if let (Some(new), Some(old)) = (&mut self.segments, &old.segments) {
            new.set(to, old.row(at));
        }
    }

    /// Returns true if the flow of an entry is in the table.
    fn is_own(&self, key: &FlowKey, row: u32) -> bool {
        let flow = self.table.get(self.hash(key), key).and_then(|at| self.table.flow(at));
        let number = self.decided.of_row(row);
        flow.is_some_and(|flow| number.is_some_and(|number| flow.decision() == Decision::Pinned(number)))
    }

    /// Inserts flows of entries that had no flows before. Returns how many other flows were removed to make
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
