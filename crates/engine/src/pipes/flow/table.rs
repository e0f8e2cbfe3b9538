//! The flow table, and the rows that its decisions refer to.

use super::NewFlowState;
use super::decided::Decided;
use super::followed::Followed;
use super::kept::FlowValues;
use super::nat::Bindings;
use super::observations::{Observations, known};
use super::pairs::Pairs;
use super::period::Period;
use super::reopen::Ending;
use super::segments::Segments;
use crate::batch::compile_error::{CompileError, fields, milliseconds};
use crate::batch::packets::Packets;
use crate::batch::steps::Kept;
use crate::pipes::lookup::{NO_ROW, Refusal};
use crate::pipes::targets::Targets;
use crate::ring::DELTAS_MAX;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use weir_packet::{FlowKey, KeySource, TableHash};
use weir_program::census::Census;
use weir_program::change::EntryKey;
use weir_program::nat::{Binding, SLICES};
use weir_program::owner::Side;
use weir_program::snapshot::{Count, FlowAccount, FlowDecision, FlowSnapshot, FlowsPage, KeptOperations};
use weir_program::{Entry, EntryMatch, GroupChoice, GroupId, Learn, Pipe, Program, Timeouts};
use weir_table::delta::TARGET_MAX;
use weir_table::{Belonging, Decision, DeltaReason, Flow, FlowDelta, FlowState, FlowTable, NO_DELTA_TARGET};

/// Rows that are examined for a page of flows, between two breaths.
const ROWS_AT_ONCE: u32 = 1 << 13;

/// The flows of a pipe.
#[derive(Debug)]
pub struct Flows {
    pub source: KeySource,
    pub(super) learn: Learn,
    /// The timeout of each state; 0 means never.
    pub(super) timeouts_ms: [u32; FlowState::ALL.len()],
    /// Whether states are tracked.
    pub(super) by_state: bool,
    /// Whether first packets are reported.
    pub(super) first: bool,
    /// The current period of measurement, if the pipe is measured.
    pub(super) period: Option<Period>,
    pub(super) table: FlowTable,
    pub(super) hash: TableHash,
    /// The packets of the batch whose likely flows are known before the packets get here, and those flows.
    pub(super) likely: (u64, [u32; 64]),
    pub(super) default_row: u32,
    pub(super) targets: Targets,
    /// The group of each packet in the list that is being looked up, by position.
    pub(super) chosen: [u16; 64],
    /// The packets that have a group.
    pub(super) grouped: u64,
    /// The rows that flows were decided for.
    pub(super) decided: Decided,
    /// How the targets of new flows are chosen.
    pub(super) new_flows: NewFlowState,
    /// Rows of the flows that were configured or added at run time.
    pub(super) own: HashMap<FlowKey, u32>,
    /// While a packet is probed, the flows that it would end.
    pub(super) ending: Ending,
    /// Places held for the flows of entries that will be inserted later.
    pub(super) held: usize,
    /// Whether the flow of an entry found no room in the table when the entry was added.
    pub(super) own_missing: bool,
    /// The target to which a flow is attributed if it was not decided for one.
    pub(super) of: Belonging,
    /// The number of the first target of each group, by its position.
    pub(super) first_targets: Vec<u32>,
    pub account: FlowAccount,
    /// The values that flows keep, if the pipe's actions have such values or answers are learnt.
    pub(super) values: Option<Box<FlowValues>>,
    /// Whether answers are learnt.
    pub(super) reverse: bool,
    /// The places that flows have taken from the NAT pool.
    pub(super) nat: Option<Box<Bindings>>,
    /// Which flows age as a unit, where answers are learnt and there is no pool.
    pub(super) pairs: Option<Box<Pairs>>,
    /// Observations about flows, if the pipe is measured.
    pub(super) observed: Option<Box<Observations>>,
    /// The newest segments of flows, if apps reset flows that have been idle too long.
    pub(super) segments: Option<Box<Segments>>,
    /// Which flows a program in the kernel follows, if it follows any.
    pub(super) followed: Option<Box<Followed>>,
    pub(super) deltas: VecDeque<FlowDelta>,
    /// How many deltas may wait.
    pub(super) room: usize,
}

/// Numbers the targets of all groups, in order: returns the number of each group's first target.
#[must_use]
pub fn first_targets(program: &Program) -> Vec<u32> {
    let first = |next: &mut u32, group: &weir_program::Group| {
        let first = *next;
        *next += group.targets.len() as u32;
        Some(first)
    };
    program.groups.iter().scan(0, first).collect()
}

impl Flows {
    /// Creates a table without flows.
    ///
    /// # Errors
    /// The pipe has per-entry matches.
    pub fn new(
        pipe: &Pipe,
        program: &Program,
        (source, learn, timeouts): (KeySource, Learn, Timeouts),
        hash: TableHash,
    ) -> Result<Flows, CompileError> {
        fields(pipe, |_| None)?;
        let number = program.pipe_named(&pipe.name).unwrap_or_default();
        Ok(Flows {
            source,
            learn,
            timeouts_ms: timeouts.each_ns().map(milliseconds),
            by_state: timeouts.are_by_state(),
            first: false,
            period: pipe.monitor.measured.map(Period::new),
            table: FlowTable::with_capacity(pipe.capacity as usize),
            hash,
            likely: (0, [0; 64]),
            default_row: NO_ROW,
            targets: Targets::new(program, learn.group()),
            chosen: [0; 64],
            grouped: 0,
            decided: Decided::default(),
            new_flows: NewFlowState::new(program, learn),
            own: HashMap::new(),
            ending: Ending::default(),
            held: 0,
            own_missing: false,
            of: Belonging { generation: 1, pipe: number.0, target: NO_DELTA_TARGET },
            first_targets: first_targets(program),
            account: FlowAccount::default(),
            values: None,
            reverse: false,
            nat: pipe
                .nat
                .and_then(|id| program.nat_pools.get(id.index()))
                .map(|pool| Box::new(Bindings::new(pool, pipe.capacity))),
            pairs: None,
            observed: pipe.monitor.measured.map(|_| Box::new(Observations::new(pipe.capacity))),
            segments: match (source, learn) {
                (KeySource::Outer, Learn::Pin(_)) if timeouts.are_by_state() => {
                    Segments::new(program, pipe.capacity)
                }
                _ => None,
            },
            followed: None,
            deltas: VecDeque::with_capacity(DELTAS_MAX),
            room: DELTAS_MAX,
        })
    }

    /// Returns a table for the same pipe that has no flows, no entries and no room.
    #[must_use]
    pub fn without_flows(&self) -> Flows {
        Flows {
            table: FlowTable::with_capacity(0),
            decided: Decided::default(),
            new_flows: NewFlowState::default(),
            own: HashMap::new(),
            targets: Targets::default(),
            first_targets: Vec::new(),
            deltas: VecDeque::new(),
            values: None,
            nat: None,
            pairs: None,
            observed: None,
            segments: None,
            followed: None,
            ..*self
        }
    }

    /// Counts flows in this census, which all workers share, from now on. There must be no flows yet.
    pub fn count_in(&mut self, census: &Arc<Census>) {
        self.decided.count_in(census);
    }

    /// Returns the next turn of each group whose new flows are assigned in turn, by position; `None` where
    /// none was taken yet.
    #[must_use]
    pub fn new_flow_turns(&self) -> Vec<Option<u64>> {
        self.new_flows.turns()
    }

    /// Returns when the table last had no room for a flow.
    #[must_use]
    pub fn full_ms(&self) -> Option<u32> {
        self.new_flows.full_ms
    }

    /// Makes flows keep those values of the pipe's actions that are theirs, and learns answers with them.
    pub fn keep_values(&mut self, pipe: &Pipe, program: &Program, reverse: bool) {
        self.values = FlowValues::new(pipe, program, reverse);
        self.reverse = reverse;
        let has_pairs = reverse && self.nat.is_none();
        self.pairs = has_pairs.then(|| Box::new(Pairs::new(pipe.capacity)));
    }

    /// Returns what the flows of the packets of a batch keep.
    #[inline]
    #[must_use]
    pub fn kept(&self) -> Option<Kept<'_>> {
        self.values.as_ref()?.kept()
    }

    /// Returns true if an entry with this template may replace the entry of a row.
    #[must_use]
    pub fn admits_template(&self, row: u32, template: u16) -> bool {
        self.values.as_ref().is_none_or(|values| values.template(row) == Some(template))
    }

    /// Records the values that an entry provides from now on.
    pub fn set_entry(&mut self, row: u32, entry: &Entry) {
        if let Some(values) = &mut self.values {
            values.set_entry(row, entry);
        }
    }

    /// Returns the metadata field that chooses the group from which flows pick their targets, if there is
    /// one.
    #[must_use]
    pub fn chosen_by(&self) -> Option<u8> {
        match self.learn.group() {
            Some(GroupChoice::ByMeta(word)) => Some(word),
            Some(GroupChoice::One(_)) | None => None,
        }
    }

    /// Returns where the packets of a flow come from: answers are decided for the `default` entry.
    pub(super) fn side_of(&self, flow: &Flow) -> Side {
        let is_answer = |number| self.reverse && self.decided.row(number) == self.default_row;
        match flow.decision() {
            Decision::Pinned(number) if is_answer(number) => Side::Server,
            _ => Side::Client,
        }
    }

    /// Returns the number of flows that fit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.table.capacity() as u32
    }

    /// Returns the hash of a flow.
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        self.hash.hash(&key.0)
    }

    /// Prefetches the cache line where the look-up of a hash begins.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        self.table.prefetch_bucket(hash);
    }

    /// Finds and prefetches the likely flows of packets that get here by way of other pipes.
    #[inline]
    pub fn look_ahead(&mut self, packets: &Packets, list: u64) {
        let keys = packets.keys(self.source);
        let (list, rows) = (list & keys.known, &mut self.likely.1);
        self.likely.0 = self.table.guess_batch(&keys.table, list, rows);
    }

    /// Inserts an entry whose row is `row`.
    pub fn insert(&mut self, entry: &Entry, row: u32, now_ms: u32) -> Result<(), Refusal> {
        self.set_entry(row, entry);
        match entry.matches[0] {
            EntryMatch::Default if self.default_row != NO_ROW => return Err(Refusal::Exists),
            EntryMatch::Flow(key) if self.own.contains_key(&key) => return Err(Refusal::Exists),
            EntryMatch::Default => self.default_row = row,
            EntryMatch::Flow(key) => {
                self.make_room(&key);
                let known = self.table.get(self.hash(&key), &key).is_some();
                if !known {
                    // Uses the place that may have been held for it.
                    self.held = self.held.saturating_sub(1);
                    if self.live() >= self.table.capacity() {
                        return Err(Refusal::Full);
                    }
                }
                self.decided.add(row, self.of);
                self.begin_own(&key, row, now_ms);
                self.own.insert(key, row);
                return Ok(());
            }
            _ => self.targets.insert(&entry.matches, row)?,
        }
        self.decided.add(row, self.belonging(&entry.matches));
        Ok(())
    }

    /// Holds a place for the flow of an entry that will be inserted later. A live flow already has a place,
    /// unless it is removed before that (`beside`).
    pub fn hold(&mut self, entry: &Entry, beside: bool) -> Result<(), Refusal> {
        let EntryMatch::Flow(key) = entry.matches[0] else { return Ok(()) };
        let at = self.table.get(self.hash(&key), &key);
        let lives = at.and_then(|at| self.table.flow(at)).is_some_and(|flow| self.is_alive(flow));
        if lives && !beside {
            return Ok(());
        }
        if !self.has_places(1) {
            return Err(Refusal::Full);
        }
        self.held += 1;
        Ok(())
    }

    /// Releases all held places.
    pub fn let_go(&mut self) {
        self.held = 0;
    }

    /// Whether there are places for `wanted` additional flows, besides the live ones and those for which
    /// places are held.
    pub(super) fn has_places(&self, wanted: usize) -> bool {
        self.live() - self.ending.flows() + self.held + wanted <= self.table.capacity()
    }

    /// Starts the flow of an entry. A flow learnt earlier continues with its counts. If the table is full of
    /// flows that await their deltas, the flow starts with its first packet.
    pub(super) fn begin_own(&mut self, key: &FlowKey, row: u32, now_ms: u32) {
        let Some(number) = self.decided.of_row(row) else { return };
        let hash = self.hash(key);
        if let Some(at) = self.table.get(hash, key) {
            self.follow_not(at);
            self.leave(at);
            self.leave_pool(at);
            self.table.pin(at, Decision::Pinned(number));
            self.keep_bare(at, row);
        } else if let Ok(at) = self.table.learn(hash, key, Decision::Pinned(number), now_ms) {
            self.keep_bare(at, row);
        } else {
            self.own_missing = true;
            return;
        }
        self.decided.joined(number);
    }

    /// Writes what a flow with its own entry keeps.
    pub(super) fn keep_bare(&mut self, at: u32, row: u32) {
        if let Some(values) = &mut self.values {
            values.begin_bare(at, row);
        }
    }

    /// The target to which the flows of an entry are attributed.
    fn belonging(&self, matches: &[EntryMatch]) -> Belonging {
        let named = match (matches.first(), self.learn.group()) {
            (Some(&EntryMatch::Target(target)), Some(GroupChoice::One(group))) => Some((group, target)),
            (Some(&EntryMatch::Member { group, target }), _) => Some((group, target)),
            _ => None,
        };
        let number = |(group, target): (GroupId, u16)| {
            self.first_targets.get(group.index()).map(|first| first + u32::from(target))
        };
        let target = named.and_then(number).unwrap_or(NO_DELTA_TARGET);
        Belonging { target: if target <= TARGET_MAX { target } else { NO_DELTA_TARGET }, ..self.of }
    }

    /// Returns the group and the target that have a number.
    pub(super) fn target_numbered(&self, number: u32) -> (GroupId, u16) {
        // The last group that begins at or before it: a group without targets begins where the next one does.
        let group = self.first_targets.partition_point(|&first| first <= number).saturating_sub(1);
        let first = self.first_targets.get(group).copied().unwrap_or_default();
        (GroupId(group as u16), (number - first) as u16)
    }

    /// Remembers the source of a flow that another process has learnt, as if this process had learnt it.
    pub(super) fn recollect(&self, key: &FlowKey, number: u32, last_ms: u32) {
        let of = self.decided.belonging(number).filter(|of| of.target != NO_DELTA_TARGET);
        if let (Some(sources), Some(of)) = (self.decided.census().sources(), of) {
            let (group, _) = self.target_numbered(of.target);
            sources.remember(group.index(), key.src(), of.target, last_ms);
        }
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

    /// Removes an entry. The flows that were decided for it are gone from now on, and leave the table as
    /// their deltas are accepted. Returns its row.
    pub fn remove(&mut self, key: &EntryKey) -> Option<u32> {
        let row = self.find(key)?;
        match key.matches.first()? {
            EntryMatch::Default => self.default_row = NO_ROW,
            EntryMatch::Flow(flow) => drop(self.own.remove(flow)),
            _ => drop(self.targets.remove(&key.matches)),
        }
        self.decided.remove(row);
        Some(row)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.len() + self.own.len() + usize::from(self.default_row != NO_ROW)
    }

    /// Returns the number of live flows, excluding removed ones that await their deltas.
    #[must_use]
    pub fn live(&self) -> usize {
        self.table.len() - self.decided.removed()
    }

    /// Returns true if no counts and no deltas are left.
    pub fn is_drained(&self) -> bool {
        self.account.live == 0 && self.deltas.is_empty()
    }

    /// Returns true if a flow is live and not removed.
    #[inline]
    pub(super) fn is_alive(&self, flow: &Flow) -> bool {
        self.decided.is_alive(flow)
    }

    /// Called when the flow of a row no longer has a place in the NAT pool, and belongs to no pair.
    pub(super) fn leave_pool(&mut self, at: u32) {
        if let Some(nat) = &mut self.nat {
            nat.leave(at);
        }
        if let Some(pairs) = &mut self.pairs {
            pairs.part(at);
        }
    }

    /// Returns the name of both flows of a pair while they move to another table: the hash of the flow that
    /// packets began.
    pub(super) fn pair_name(&self, at: u32) -> Option<u64> {
        let other = self.pairs.as_ref()?.other(at)?;
        let (flow, other) = (self.table.flow(at)?, self.table.flow(other)?);
        let begun = if self.side_of(flow) == Side::Client { flow } else { other };
        Some(self.hash(begun.key()))
    }

    /// Called when a flow of a pair with this name has arrived in a row.
    pub(super) fn rejoin(&mut self, at: u32, name: Option<u64>) {
        if let (Some(pairs), Some(name)) = (&mut self.pairs, name) {
            pairs.attach(at, name);
        }
    }

    /// Returns how many addresses and ports of the NAT pool are taken, if there is one.
    #[must_use]
    pub fn nat_used(&self) -> Option<usize> {
        self.nat.as_ref().map(|nat| nat.used())
    }

    /// Returns what the next new flow of each slice of the NAT pool gets; empty without a pool.
    #[must_use]
    pub fn next_bindings(&self) -> Vec<Option<Binding>> {
        let Some(nat) = &self.nat else { return Vec::new() };
        (0..SLICES).map(|slice| nat.binding(nat.next(slice)?)).collect()
    }

    /// Removes a flow if there is room for its delta.
    pub(super) fn clear(&mut self, at: u32, reason: DeltaReason) -> bool {
        self.sweep_row(at);
        let Flows { table, hash, decided, deltas, room, of, account, observed: all, followed, .. } = self;
        let cleared = table.remove(
            at,
            |key| hash.hash(&key.0),
            |flow| {
                let accepted = deltas.len() < *room;
                if accepted {
                    let of = belonging_of(decided, flow, *of);
                    let delta = flow.delta(of, reason).observing(known(all, at, flow).observed);
                    account.give(&delta);
                    deltas.push_back(delta);
                    followed.iter_mut().for_each(|all| all.leave(at, flow.key(), of, reason));
                    depart(decided, flow);
                }
                accepted
            },
        );
        if cleared {
            self.leave_pool(at);
        }
        cleared
    }

    /// Emits the counts of a flow whose counters are getting full, if there is room for its delta.
    #[cold]
    pub(super) fn relieve(&mut self, at: u32, now_ms: u32) {
        self.give(at, now_ms, DeltaReason::Overflow);
    }

    /// Emits the counts of a flow that lives on, if there is room for its delta.
    pub(super) fn give(&mut self, at: u32, now_ms: u32, reason: DeltaReason) {
        let Flows { table, decided, deltas, room, of, account, observed: all, .. } = self;
        table.give(at, now_ms, |flow| {
            let accepted = deltas.len() < *room;
            if accepted {
                let delta = flow.delta(belonging_of(decided, flow, *of), reason);
                let delta = delta.observing(known(all, at, flow).observed);
                all.iter_mut().for_each(|all| all.give(at, flow));
                account.give(&delta);
                deltas.push_back(delta);
            }
            accepted
        });
    }

    /// Records that a flow no longer belongs to the entry that it was decided for.
    fn leave(&mut self, at: u32) {
        if let Some(flow) = self.table.flow(at) {
            depart(&mut self.decided, flow);
        }
    }

    /// Makes room for a flow with this key: if a removed flow has this key, or a full table holds removed
    /// flows, one of these leaves.
    fn make_room(&mut self, key: &FlowKey) {
        match self.table.get(self.hash(key), key) {
            Some(at) if self.table.flow(at).is_some_and(|flow| !self.is_alive(flow)) => {
                self.clear(at, DeltaReason::Removed);
            }
            None if self.table.len() == self.table.capacity() => _ = self.reclaim(1),
            _ => {}
        }
    }

    /// Passes the waiting deltas to `sink`, as long as it accepts them.
    pub fn take_deltas(&mut self, mut sink: impl FnMut(FlowDelta) -> bool) {
        while self.deltas.front().is_some_and(|delta| sink(*delta)) {
            self.deltas.pop_front();
        }
    }

    /// Returns true while deltas wait.
    pub fn has_deltas(&self) -> bool {
        !self.deltas.is_empty()
    }

    /// Returns the packets in the deltas that wait.
    pub fn packets_in_deltas(&self) -> u64 {
        self.deltas.iter().map(FlowDelta::packets).sum()
    }

    /// Sets whether first packets are reported.
    pub fn report_first(&mut self, first: bool) {
        self.first = first;
    }

    /// Emits a delta for the first packet of a flow, or for a later one if there was no room before.
    #[inline]
    pub(super) fn emit_first(&mut self, at: u32) {
        let Flows { table, decided, deltas, room, of, .. } = self;
        table.report_first(at, |flow| {
            let accepted = deltas.len() < *room;
            if accepted {
                deltas.push_back(flow.first_delta(belonging_of(decided, flow, *of)));
            }
            accepted
        });
    }

    /// Sets how many deltas may wait; more may require memory.
    pub fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// Makes room for `more` more deltas, up to [`DELTAS_MAX`] in total.
    pub fn set_room_for(&mut self, more: usize) {
        self.room = DELTAS_MAX.min(self.deltas.len() + more);
    }

    /// Sets the generation of the program, except for what was decided.
    pub fn set_generation(&mut self, generation: u8) {
        self.of.generation = generation;
    }

    /// Sets the generation of the program for the flows that were decided for a number. Returns false if
    /// there is no such number.
    pub fn date(&mut self, number: u32, generation: u8) -> bool {
        self.decided.set_generation(number, generation)
    }

    /// Returns one live flow.
    #[must_use]
    pub fn snapshot(&self, key: &FlowKey) -> Option<FlowSnapshot> {
        let at = self.table.get(self.hash(key), key)?;
        self.table.flow(at).filter(|flow| self.is_alive(flow)).map(|flow| self.seen(at, flow))
    }

    /// Returns what a live flow keeps of the action of its entry; `None` if flows keep nothing.
    #[must_use]
    pub fn kept_by(&self, key: &FlowKey) -> Option<KeptOperations> {
        self.kept_in(self.table.get(self.hash(key), key)?)
    }

    /// Returns what the flow in a row keeps of the action of its entry.
    pub(super) fn kept_in(&self, at: u32) -> Option<KeptOperations> {
        let values = self.values.as_ref()?;
        let flow = self.table.flow(at).filter(|flow| self.is_alive(flow))?;
        let row = match (self.own.get(flow.key()), flow.decision()) {
            (Some(row), _) => *row,
            (None, Decision::Pinned(number)) => self.decided.row(number),
            (None, Decision::Group(_) | Decision::Cached(_)) => return None,
        };
        values.operations_of_row(at, row)
    }

    /// Iterates over all live flows.
    pub fn snapshots(&self) -> impl Iterator<Item = FlowSnapshot> {
        let alive = self.table.iter().filter(|(_, flow)| self.is_alive(flow));
        alive.map(|(at, flow)| self.seen(at, flow))
    }

    /// Returns up to `most` live flows of the next [`ROWS_AT_ONCE`] rows from `from` on.
    pub fn page(&self, from: u32, most: usize) -> FlowsPage {
        let end = from.saturating_add(ROWS_AT_ONCE).min(self.capacity());
        let mut page = FlowsPage { flows: Vec::new(), next: (end < self.capacity()).then_some(end) };
        for at in from..end {
            if page.flows.len() >= most {
                page.next = Some(at);
                break;
            }
            let flow = self.table.flow(at).filter(|flow| self.is_alive(flow));
            page.flows.extend(flow.map(|flow| self.seen(at, flow)));
        }
        page
    }

    fn seen(&self, at: u32, flow: &Flow) -> FlowSnapshot {
        let flow = &self.present(at, flow);
        let decision = match flow.decision() {
            _ if self.own.contains_key(flow.key()) => FlowDecision::Own,
            Decision::Pinned(number) if self.decided.row(number) == self.default_row => FlowDecision::Default,
            Decision::Pinned(number) => {
                let of = self.decided.belonging(number).filter(|of| of.target != NO_DELTA_TARGET);
                match (of.map(|of| self.target_numbered(of.target)), self.learn.group()) {
                    (Some((_, target)), Some(GroupChoice::One(_))) => FlowDecision::Pinned(target),
                    (Some((group, target)), _) => FlowDecision::PinnedIn(group, target),
                    (None, _) => FlowDecision::Own,
                }
            }
            Decision::Group(_) | Decision::Cached(_) => match self.learn.group() {
                Some(GroupChoice::One(group)) => FlowDecision::Follow(group),
                _ => FlowDecision::FollowChosen,
            },
        };
        let other = self.present_other(at);
        FlowSnapshot {
            key: *flow.key(),
            decision,
            hits: Count { packets: flow.packets(), bytes: flow.bytes() },
            given: known(&self.observed, at, flow).given,
            first_ms: flow.first(),
            last_ms: flow.last(),
            state: self.by_state.then(|| flow.state().together(other.as_ref().map(Flow::state))),
            binding: self.nat.as_ref().and_then(|nat| nat.binding(nat.of_row(at)?)),
            pair: other.as_ref().map(|other| *other.key()),
            in_kernel: self.is_in_kernel(at),
        }
    }

    /// Returns the packets in the counters of the table by adding them up; for tests.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.table.iter().map(|(_, flow)| flow.packets()).sum()
    }
}

/// Returns what a flow is attributed to; `of` if it was not decided for an entry.
pub(super) fn belonging_of(decided: &Decided, flow: &Flow, of: Belonging) -> Belonging {
    match flow.decision() {
        Decision::Pinned(number) => decided.belonging(number).unwrap_or(of),
        Decision::Group(_) | Decision::Cached(_) => of,
    }
}

/// Counts the departure of a flow from the table, if it was decided for an entry.
pub(super) fn depart(decided: &mut Decided, flow: &Flow) {
    if let Decision::Pinned(number) = flow.decision() {
        decided.left(number);
    }
}
