//! Finds the flow of each packet, learns new flows, and finds the row of each flow's decision.

use super::Flows;
use super::age::RECLAIM_ROWS;
use super::nat::Place;
use super::reopen::Ending;
use crate::batch::group::GroupTable;
use crate::batch::packets::Packets;
use crate::batch::rows::{NEAR_MAX, Rows, Slab};
use crate::pipes::lookup::{Hits, Lookup, NO_ROW};
use weir_packet::{Bits, DropReason, FlowKey, Layer, Observed};
use weir_program::Learn;
use weir_table::{Counted, Decision, DeltaReason, Flow, NO_TARGET, StateEvent};

/// Why a flow was not learnt.
#[derive(Clone, Copy, Debug)]
enum Unlearnt {
    /// A delta must be emitted first, and there is no room for it.
    Delta,
    /// The table is full.
    Full,
    /// There is no free port in the NAT pool.
    NoPort,
    /// Another flow already has the same answers.
    Taken,
}

/// What is learnt with a flow.
#[derive(Clone, Copy, Debug)]
enum Answers {
    /// Nothing.
    None,
    /// The flow with this key, decided for the entry with this number.
    New(FlowKey, u32),
    /// Another flow has learnt it.
    Taken,
}

impl Flows {
    /// Returns the packets of known flows and of flows learnt now, and counts them in their flows.
    #[inline(never)]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        let able = look.list & look.packets.keys(self.source).known;
        // A pinned flow goes to its target, whatever its group is now.
        let chooses = !look.live || !matches!(self.learn, Learn::Pin(_));
        self.choose(if chooses { able } else { 0 }, look);
        if !look.live {
            return self.peek(able, look);
        }
        if let Some(period) = &mut self.period {
            period.reach(look.now_ms, &self.account.unflowed);
        }
        let packets = look.packets;
        let keys = packets.keys(self.source);
        self.account.met += u64::from(look.list.count_ones());
        self.account.unflowed.no_key += u64::from((look.list & !able).count_ones());
        let (likely, mut flows) = (std::mem::take(&mut self.likely.0), self.likely.1);
        if look.slab.used() > NEAR_MAX {
            self.prefetch_entries(able & likely, &flows, look.slab);
        }
        let known = self.table.lookup_batch(&keys.key, &keys.table, (able, likely), &mut flows);
        self.sweep_flows(known, &flows);
        if self.may_reopen((able, known), &flows, look) {
            self.choose(able, look);
            return Hits::Each(self.one_by_one(able, look, &mut flows));
        }
        let (mut hits, gone) = self.rows_of_flows(known, &flows, look);
        let strange = able & !known | gone;
        if !chooses {
            self.choose(strange, look);
        }
        if self.learn != Learn::Nothing || self.own_missing {
            // In order of arrival, so that the next packet finds what one packet learns.
            for slot in Bits(strange) {
                hits |= u64::from(self.learn_one(slot, look, &mut flows)) << slot;
            }
        } else {
            self.account.unflowed.unknown += u64::from(strange.count_ones());
        }
        self.meet(hits, &flows, look);
        Hits::Each(hits)
    }

    /// Counts packets that have a row, and notes where the values that their flows keep are.
    #[inline(always)]
    pub(super) fn meet(&mut self, hits: u64, flows: &[u32; 64], look: &Lookup<'_>) {
        let errors = self.about_pinned(hits, look);
        self.account.unflowed.icmp_error += u64::from(errors.count_ones());
        self.count(hits & !errors, flows, look);
        if let Some(values) = &mut self.values {
            Bits(hits).for_each(|slot| values.meet(slot, Some(flows[slot]).filter(|&flow| flow != NO_ROW)));
        }
    }

    /// Prefetches the rows of the entries that likely flows were decided for, as long as their numbers equal
    /// their rows. The flows are cached by now, and the rows will be by the time they are counted.
    #[inline(always)]
    fn prefetch_entries(&self, list: u64, flows: &[u32; 64], slab: &Slab) {
        for slot in Bits(list) {
            if let Some(Decision::Pinned(number)) = self.table.flow(flows[slot]).map(Flow::decision) {
                slab.prefetch(number);
            }
        }
    }

    /// Finds the group that each packet of `list` picks from.
    #[inline]
    fn choose(&mut self, list: u64, look: &Lookup<'_>) {
        self.grouped = match list {
            0 => 0,
            _ => look.choose(self.learn.group(), list, &mut self.chosen),
        };
    }

    /// Finds the rows of the packets whose flows were found. Returns those that have a row, and those whose
    /// flows have ended.
    #[inline(always)]
    fn rows_of_flows(&mut self, known: u64, flows: &[u32; 64], look: &mut Lookup<'_>) -> (u64, u64) {
        let (mut hits, mut gone) = (0, 0);
        if self.decided.is_far() {
            for slot in Bits(known) {
                if let Some(Decision::Pinned(number)) = self.table.flow(flows[slot]).map(Flow::decision) {
                    self.decided.prefetch(number);
                }
            }
        }
        for slot in Bits(known) {
            let row = self.row_of_flow(flows[slot], slot, look);
            gone |= u64::from(row.is_none()) << slot;
            look.rows[slot] = row.unwrap_or(NO_ROW);
            hits |= u64::from(look.rows[slot] != NO_ROW) << slot;
        }
        let without = known & !hits & !gone;
        if without != 0 {
            self.without_target(without, look);
        }
        (hits, gone)
    }

    /// Returns the row for a packet of a flow, or [`NO_ROW`] if there is no target for it. `None` if the flow
    /// has ended.
    #[inline(always)]
    fn row_of_flow(&self, at: u32, slot: usize, look: &Lookup<'_>) -> Option<u32> {
        match self.table.flow(at).map(Flow::decision) {
            Some(Decision::Pinned(number)) => Some(self.decided.row(number)).filter(|&row| row != NO_ROW),
            // The group that the packet picks from is known, whatever its number was in another program.
            Some(Decision::Group(_)) => Some(self.pick(slot, look)),
            Some(Decision::Cached(_)) | None => Some(NO_ROW),
        }
    }

    /// Counts packets in their flows.
    #[inline(always)]
    fn count(&mut self, hits: u64, flows: &[u32; 64], look: &Lookup<'_>) {
        let (batch, now_ms) = (look.batch, look.now_ms);
        for slot in Bits(hits) {
            if flows[slot] == NO_ROW {
                continue;
            }
            if self.by_state {
                match self.table.see(flows[slot], look.packets.keys(self.source).seen[slot]) {
                    StateEvent::None => {}
                    StateEvent::Repeated => self.repeats(flows[slot]),
                    StateEvent::Reset => self.reset_other(flows[slot]),
                }
            }
            if self.first || self.period.is_some() {
                self.report_first_and_due(flows[slot], look.now_ms);
            }
            self.account.live += 1;
            let counted = self.table.count(flows[slot], batch.frame(slot).len() as u32, now_ms);
            if self.observed.is_some() && counted != Counted::No {
                self.observe(flows[slot], slot, look);
            }
            if self.segments.is_some() {
                self.keep_segment(flows[slot], slot, look);
            }
            if self.followed.is_some() {
                self.offer(flows[slot], slot, look);
            }
            match counted {
                Counted::Yes => {}
                Counted::High => self.relieve(flows[slot], now_ms),
                Counted::No => {
                    self.account.live -= 1;
                    self.account.unflowed.delta += 1;
                }
            }
        }
    }

    /// Adds what a measurement needs to know about a packet that its flow has just counted.
    #[inline(never)]
    fn observe(&mut self, at: u32, slot: usize, look: &Lookup<'_>) {
        let (Some(all), Some(flow)) = (&mut self.observed, self.table.flow(at)) else { return };
        let one = look.packets.observed(look.batch, slot, self.source);
        let one = Observed { generation: self.of.generation, ..one };
        all.add(at, flow, look.batch.frame(slot).len() as u64, &one);
    }

    /// Counts a retransmitted SYN for the target of its flow, and the flow if its second packet is the first
    /// retransmission.
    #[cold]
    fn repeats(&self, at: u32) {
        let Some(flow) = self.table.flow(at) else { return };
        if let Decision::Pinned(number) = flow.decision() {
            self.decided.repeated(number);
            if flow.heard() == 2 {
                self.decided.unanswered(number);
            }
        }
    }

    /// Reports the first packet of a flow, and makes the flow report the counts that a measurement waits for.
    #[inline(never)]
    fn report_first_and_due(&mut self, at: u32, now_ms: u32) {
        if self.first {
            self.emit_first(at);
        }
        if self.period.is_some() {
            self.report_due(at, now_ms);
        }
    }

    /// Like `lookup`, but without learning or counting.
    fn peek(&mut self, able: u64, look: &mut Lookup<'_>) -> Hits {
        let (packets, mut hits) = (look.packets, 0);
        let keys = packets.keys(self.source);
        for slot in Bits(able) {
            let at = self.table.get(keys.table[slot], &keys.key[slot]);
            at.into_iter().for_each(|at| self.sweep_both(at));
            let ends = keys.opens >> slot & 1 == 1 && self.learn != Learn::Nothing && self.by_state;
            let ended = at.filter(|&at| ends && self.has_ended(at));
            self.ending = ended.map(|at| self.ending_with(at)).unwrap_or_default();
            let at = at.filter(|_| ended.is_none());
            let known = at.and_then(|at| Some((at, self.row_of_flow(at, slot, look)?)));
            let mut row = match known {
                Some((_, row)) => row,
                None if self.learns_nothing_for(slot, look) => continue,
                None => self.decide(slot, look).map_or(NO_ROW, |(_, row)| row),
            };
            if known.is_none()
                && row != NO_ROW
                && self.new_flows.chooses
                && !self.binds(slot, look)
                && !self.has_room_for(slot, row, look)
            {
                row = self.row_without_flow(row, slot, look);
            }
            if known.is_none()
                && row != NO_ROW
                && let Some(reason) = self.what_forbids(slot, row, look)
            {
                look.untranslated(1 << slot, reason);
                continue;
            }
            if let Some(values) = &mut self.values {
                values.meet(slot, known.map(|(at, _)| at));
                if known.is_none() {
                    values.begin(None, row, slot, look);
                }
            }
            if row == NO_ROW {
                look.without_target(1 << slot & self.grouped, self.groups_of_packets());
            } else {
                look.rows[slot] = row;
                hits |= 1 << slot;
            }
        }
        self.ending = Ending::default();
        Hits::Each(hits)
    }

    /// Returns the row of the target to which the buckets of a packet's group currently assign it; [`NO_ROW`]
    /// if there is none, or if metadata chooses no group.
    #[inline]
    pub(super) fn pick(&self, slot: usize, look: &Lookup<'_>) -> u32 {
        if self.grouped >> slot & 1 == 0 {
            return NO_ROW;
        }
        let (keys, group) = (look.packets.keys(self.source), usize::from(self.chosen[slot]));
        let pick = |group: &GroupTable| group.pick(keys.select(slot, look.reading), (keys, slot));
        self.targets.row(group, look.groups.get(group).map_or(NO_TARGET, pick))
    }

    /// Returns the decision for a packet of a new flow, and the row it currently selects.
    fn decide(&self, slot: usize, look: &Lookup<'_>) -> Option<(Decision, u32)> {
        let own = if self.own_missing { self.own_row(slot, look.packets) } else { None };
        let row = match (own, self.learn) {
            (Some(row), _) => row,
            (None, Learn::Nothing) => return None,
            (None, Learn::Default) => self.default_row,
            (None, Learn::Pin(_)) => self.pick_new(slot, look),
            (None, Learn::Follow(_)) => {
                let row = self.pick(slot, look);
                return (row != NO_ROW).then_some((Decision::Group(0), row));
            }
        };
        Some((Decision::Pinned(self.decided.of_row(row)?), row))
    }

    /// Returns the row of the packet's flow's own entry.
    fn own_row(&self, slot: usize, packets: &Packets) -> Option<u32> {
        self.own.get(&packets.keys(self.source).key[slot]).copied()
    }

    /// The ICMP errors among packets of pinned flows. Anyone can send one, so none refreshes a flow or
    /// changes its state; a flow with its own entry, however, counts everything.
    #[inline(always)]
    fn about_pinned(&self, list: u64, look: &Lookup<'_>) -> u64 {
        let keys = look.packets.keys(self.source);
        let errors = list & keys.errors;
        if errors == 0 || !matches!(self.learn, Learn::Pin(_)) {
            return 0;
        }
        let own = Bits(errors).filter(|&slot| self.own.contains_key(&keys.key[slot]));
        own.fold(errors, |errors, slot| errors & !(1 << slot))
    }

    /// Where flows are pinned, an ICMP error begins none: its sender need not have seen the flow, and the
    /// values kept for it would differ from those of the flow's packets.
    fn learns_nothing_for(&self, slot: usize, look: &Lookup<'_>) -> bool {
        let is_error = || {
            let errors = look.packets.keys(self.source).errors;
            errors >> slot & 1 == 1 && matches!(self.learn, Learn::Pin(_))
        };
        (self.learn == Learn::Nothing || is_error() || self.cannot_be_bound(slot, look))
            && !(self.own_missing && self.own_row(slot, look.packets).is_some())
    }

    /// Handles a packet whose flow was unknown or had ended when its batch arrived. Returns true if the
    /// packet now has a row.
    pub(super) fn learn_one(&mut self, slot: usize, look: &mut Lookup<'_>, flows: &mut [u32; 64]) -> bool {
        let packets = look.packets;
        let keys = packets.keys(self.source);
        let (hash, key) = (keys.table[slot], &keys.key[slot]);
        let mut refused = false;
        if let Some(at) = self.table.get(hash, key) {
            if let Some(row) = self.row_of_flow(at, slot, look) {
                (look.rows[slot], flows[slot]) = (row, at);
                if row == NO_ROW {
                    self.without_target(1 << slot, look);
                }
                return row != NO_ROW;
            }
            refused = !self.clear(at, DeltaReason::Removed);
        }
        if self.learns_nothing_for(slot, look) {
            self.account.unflowed.unknown += 1;
            return false;
        }
        let Some((decision, mut row)) = self.decide(slot, look) else {
            self.without_target(1 << slot, look);
            return false;
        };
        look.rows[slot] = row;
        flows[slot] = NO_ROW;
        let learnt = if refused { Err(Unlearnt::Delta) } else { self.learn(slot, decision, row, look) };
        if learnt.is_err() && self.new_flows.chooses && !self.binds(slot, look) {
            row = self.row_without_flow(row, slot, look);
            look.rows[slot] = row;
            if row == NO_ROW {
                self.without_target(1 << slot, look);
                return false;
            }
        }
        match learnt {
            Ok(at) => flows[slot] = at,
            Err(Unlearnt::Delta) => self.account.unflowed.delta += 1,
            Err(Unlearnt::Full) => {
                self.account.unflowed.full += 1;
                self.new_flows.full_ms = Some(look.now_ms);
            }
            Err(Unlearnt::NoPort) => self.account.unflowed.no_nat_port += 1,
            Err(Unlearnt::Taken) => self.account.unflowed.answers_taken += 1,
        }
        let reason = match learnt {
            Err(Unlearnt::Taken) => Some(DropReason::AnswersTaken),
            Err(_) if self.binds(slot, look) => Some(DropReason::NoNatPort),
            Ok(_) | Err(_) => None,
        };
        if let Some(reason) = reason {
            self.refuse(1 << slot & self.grouped);
            look.untranslated(1 << slot, reason);
            return false;
        }
        if let Some(values) = &mut self.values {
            values.begin(Some(flows[slot]).filter(|&flow| flow != NO_ROW), row, slot, look);
        }
        true
    }

    /// Writes a flow, and the flow of its answers, if there is room, including an address and a port of the
    /// NAT pool.
    fn learn(
        &mut self,
        slot: usize,
        decision: Decision,
        row: u32,
        look: &Lookup<'_>,
    ) -> Result<u32, Unlearnt> {
        let keys = look.packets.keys(self.source);
        let (hash, key) = (keys.table[slot], &keys.key[slot]);
        let place = if self.binds(slot, look) { Some(self.choose_place(key)?) } else { None };
        let answers = match self.new_answers(slot, row, look) {
            Answers::None => None,
            Answers::New(key, number) => Some((key, number)),
            Answers::Taken => return Err(Unlearnt::Taken),
        };
        let wanted = 1 + usize::from(answers.is_some());
        if self.held > 0 && !self.has_places(wanted) {
            return Err(Unlearnt::Full);
        }
        if self.table.len() + wanted > self.table.capacity() && !self.reclaim(wanted) {
            return Err(Unlearnt::Full);
        }
        let learnt = self.table.learn(hash, key, decision, look.now_ms).map_err(|_| Unlearnt::Full)?;
        if let (Some(nat), Some(place)) = (&mut self.nat, place) {
            nat.take(learnt, place);
        }
        if let Decision::Pinned(number) = decision {
            self.decided.joined(number);
            self.decided.begun(number);
            if !(self.own_missing && self.own_row(slot, look.packets).is_some()) {
                self.took_turn(slot, look);
                self.remember(slot, number, look);
            }
        }
        if let Some((answers, number)) = answers {
            let hash = self.hash(&answers);
            let at = self.table.learn(hash, &answers, Decision::Pinned(number), look.now_ms);
            if let (Ok(at), Some(values)) = (at, &mut self.values) {
                self.decided.joined(number);
                values.begin(Some(at), self.default_row, slot, look);
                self.nat.iter_mut().for_each(|nat| nat.join(learnt, at));
                self.pairs.iter_mut().for_each(|pairs| pairs.join(learnt, at));
            }
        }
        Ok(learnt)
    }

    /// Returns the row for a packet of an unknown flow that was not learnt: that of the target that the hash
    /// picks, unless the flow has an entry of its own.
    fn row_without_flow(&self, row: u32, slot: usize, look: &Lookup<'_>) -> u32 {
        let has_own = self.own_missing && self.own_row(slot, look.packets).is_some();
        if has_own { row } else { self.recall(slot, look).unwrap_or_else(|| self.pick(slot, look)) }
    }

    /// Whether the flow that a packet begins takes from a NAT pool; it does not if it has its own entry.
    fn binds(&self, slot: usize, look: &Lookup<'_>) -> bool {
        self.nat.is_some() && !(self.own_missing && self.own_row(slot, look.packets).is_some())
    }

    /// Whether the pipe's flows take from a NAT pool, but a flow begun by the packet in a slot could not: the
    /// packet has no ports, is of the other address family, or is for an address of the pool.
    fn cannot_be_bound(&self, slot: usize, look: &Lookup<'_>) -> bool {
        self.nat.as_ref().is_some_and(|nat| {
            let layers = look.packets.headers[slot].outer().layers;
            let ip = if nat.pool().is_ipv4() { Layer::Ipv4 } else { Layer::Ipv6 };
            let key = &look.packets.keys(self.source).key[slot];
            !layers.has(Layer::Ports) || !layers.has(ip) || nat.pool().has(key.dst())
        })
    }

    /// Chooses the address and the port for a new flow with this key. Places of removed flows are freed
    /// before others are handed out a second time.
    fn choose_place(&mut self, key: &FlowKey) -> Result<Place, Unlearnt> {
        let slice = self.nat.as_ref().map(|nat| nat.pool().slice(key)).unwrap_or_default();
        if self.nat.as_ref().is_some_and(|nat| nat.is_round_over(slice)) && self.decided.removed() != 0 {
            self.leave_removed(RECLAIM_ROWS);
            self.leave_removed(RECLAIM_ROWS);
        }
        self.propose_place(slice).ok_or(Unlearnt::NoPort)
    }

    /// Records what the next flow of a slice gets.
    fn propose_place(&mut self, slice: u32) -> Option<Place> {
        let nat = self.nat.as_ref()?;
        let freed = self.ending.row().and_then(|row| nat.of_row(row));
        let place = nat.next_beside(slice, freed)?;
        self.values.as_mut()?.bound = nat.binding(place);
        Some(place)
    }

    /// For a probe: why the flow that a packet would begin could not be learnt, where it needs an address and
    /// a port of a NAT pool, or answers that no other flow has.
    fn what_forbids(&mut self, slot: usize, row: u32, look: &Lookup<'_>) -> Option<DropReason> {
        let binds = self.binds(slot, look);
        if binds {
            let key = &look.packets.keys(self.source).key[slot];
            let slice = self.nat.as_ref().map(|nat| nat.pool().slice(key)).unwrap_or_default();
            if self.propose_place(slice).is_none() {
                return Some(DropReason::NoNatPort);
            }
        }
        if self.has_others_answers(slot, row, look) {
            return Some(DropReason::AnswersTaken);
        }
        (binds && !self.has_room_for(slot, row, look)).then_some(DropReason::NoNatPort)
    }

    /// For a probe: whether there is room for the flow that a packet would begin and for that of its answers.
    fn has_room_for(&self, slot: usize, row: u32, look: &Lookup<'_>) -> bool {
        let key = &look.packets.keys(self.source).key[slot];
        let values = self.values.as_ref().filter(|_| self.reverse);
        let answers = values.map(|values| values.answers(key, row, slot, look));
        let has_default = self.decided.of_row(self.default_row).is_some();
        let is_new = |answers: FlowKey| {
            let at = self.table.get(self.hash(&answers), &answers);
            answers != *key && !at.is_some_and(|at| self.stays(at))
        };
        self.has_places(1 + usize::from(has_default && answers.is_some_and(is_new)))
    }

    /// Returns the key of the answers to the packet in a slot, and the number of their entry, if answers are
    /// learnt with its flow.
    fn answers(&self, slot: usize, row: u32, look: &Lookup<'_>) -> Option<(FlowKey, u32)> {
        let key = &look.packets.keys(self.source).key[slot];
        if !self.reverse || self.own_missing && self.own.contains_key(key) {
            return None;
        }
        let number = self.decided.of_row(self.default_row)?;
        let answers = self.values.as_ref()?.answers(key, row, slot, look);
        (answers != *key).then_some((answers, number))
    }

    /// Returns what is learnt with the flow of the packet in a slot.
    fn new_answers(&mut self, slot: usize, row: u32, look: &Lookup<'_>) -> Answers {
        let Some((answers, number)) = self.answers(slot, row, look) else { return Answers::None };
        match self.table.get(self.hash(&answers), &answers) {
            None => Answers::New(answers, number),
            Some(at) if self.table.flow(at).is_some_and(|flow| self.is_alive(flow)) => {
                if self.is_paired(at) {
                    Answers::Taken
                } else {
                    Answers::None
                }
            }
            Some(at) if self.clear(at, DeltaReason::Removed) => Answers::New(answers, number),
            Some(_) => Answers::None,
        }
    }

    /// Whether the answers to the packet in a slot are those of another flow.
    fn has_others_answers(&self, slot: usize, row: u32, look: &Lookup<'_>) -> bool {
        let Some((answers, _)) = self.answers(slot, row, look) else { return false };
        let at = self.table.get(self.hash(&answers), &answers);
        at.is_some_and(|at| self.stays(at) && self.is_paired(at))
    }

    /// Drops packets for which there is no target. Packets whose metadata chooses no group are misses.
    #[cold]
    fn without_target(&mut self, list: u64, look: &mut Lookup<'_>) {
        let lost = list & self.grouped;
        self.account.unflowed.no_target += u64::from(lost.count_ones());
        self.account.unflowed.no_group += u64::from((list & !self.grouped).count_ones());
        self.refuse(lost);
        look.without_target(lost, self.groups_of_packets());
    }

    /// Returns the group that each packet picks from, if flows pick their targets from groups.
    fn groups_of_packets(&self) -> Option<&[u16; 64]> {
        self.learn.group().map(|_| &self.chosen)
    }

    /// Counts packets for the groups that have refused them.
    fn refuse(&self, list: u64) {
        Bits(list).for_each(|slot| self.decided.census().refuse(self.chosen[slot]));
    }
}
