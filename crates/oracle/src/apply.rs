//! Changes of state: the effects of a walk are applied, entries and weights change, and what is idle expires.

use super::Interpreter;
use super::effect::Effect;
use super::flow_row::{FlowRow, as_one, follow, hurried_ns, reset_other};
use super::observed::Ended;
use super::state::{NS_PER_MS, Row, is_over};
use weir_packet::FlowKey;
use weir_program::change::{Change, ChangeError, EntryKey};
use weir_program::check::{Uses, WEIGHT_MAX};
use weir_program::snapshot::{Count, FlowDecision, Snapshot};
use weir_program::{Entry, EntryMatch, Fill, GroupId, Pipe, PipeId, PipeKind};
use weir_table::DeltaReason;
impl Interpreter {
    /// Applies the effects of a walk.
    pub(super) fn apply_effects(&mut self, effects: &[Effect], now_ns: u64) {
        self.clock_ns = self.clock_ns.max(now_ns);
        let now_ms = now_ns / NS_PER_MS;
        for effect in effects {
            match *effect {
                Effect::Hit { pipe, row, bytes } => {
                    let row = &mut self.pipes[pipe.index()].rows[row];
                    row.hits.one(bytes);
                    row.last_hit_ms = Some(now_ms);
                }
                Effect::Miss { pipe, bytes } => self.pipes[pipe.index()].misses.one(bytes),
                Effect::Counter { counter, bytes } => self.counters[counter.index()].one(bytes),
                Effect::Meter { meter, left } => self.meters[meter.index()] = left,
                Effect::Flood { group } => self.settle_group(group, now_ns),
                Effect::Turn { pipe } => self.pipes[pipe.index()].turns += 1,
                Effect::TurnOfFlow { pipe, group, turn } => {
                    self.pipes[pipe.index()].new_flow_turns.insert(group, turn + 1);
                }
                Effect::Bucket { group, bucket, bytes } => self.meet(group, bucket, bytes, now_ns),
                Effect::Learn { pipe, key, decision, ref kept, binding, answers: pair } => {
                    let kept = kept.clone();
                    let flow = FlowRow { kept, binding, pair, ..FlowRow::new(decision, now_ms) };
                    self.pipes[pipe.index()].learn(key, flow);
                }
                Effect::Flow { pipe, key, bytes, segment, ref observed, ref newest } => {
                    let (by_state, measured) =
                        (self.by_state(pipe), self.program.pipes[pipe.index()].monitor.measured);
                    let state = &mut self.pipes[pipe.index()];
                    // Absent if the flow belongs to another flow source.
                    let Some(flow) = state.flows.get_mut(&key) else { continue };
                    let is_reset = by_state && follow(flow, segment);
                    if let Some(sum) = flow.report_due(measured, now_ms) {
                        state.given += sum.hits.packets;
                        state.ended.push((key, sum, DeltaReason::Interval));
                    }
                    flow.count(bytes, observed, now_ms);
                    flow.keep_newest(newest);
                    let pair = flow.pair.filter(|_| is_reset);
                    reset_other(&mut state.flows, &key, pair);
                }
                Effect::Sum { pipe, key, bytes, ref observed } => {
                    self.pipes[pipe.index()].sums.entry(key).or_default().one(bytes, observed);
                }
                Effect::Remember { pipe, group, source, target } => {
                    self.pipes[pipe.index()].sources.insert((group, source), (target, now_ms));
                }
                Effect::Reopened { pipe, key } => self.pipes[pipe.index()].reopen(&key),
                Effect::Met { pipe } => self.pipes[pipe.index()].met += 1,
                Effect::Unflowed { pipe, why } => self.pipes[pipe.index()].leave_out(why, now_ms),
            }
        }
    }

    /// Whether a pipe tracks the state of its flows.
    pub(super) fn by_state(&self, pipe: PipeId) -> bool {
        let kind = &self.program.pipes[pipe.index()].kind;
        matches!(kind, PipeKind::Flow { timeouts, .. } if timeouts.are_by_state())
    }

    /// Changes entries or weights.
    ///
    /// # Errors
    /// The error says why the change was refused; a refused change has no effect.
    pub fn apply(&mut self, change: &Change) -> Result<(), ChangeError> {
        match change {
            Change::Add { pipe, entry } => self.add(*pipe, entry),
            Change::Update { pipe, entry } => self.update(*pipe, entry),
            Change::Remove { pipe, key } => {
                let at = self.find(*pipe, key)?;
                self.pipes[pipe.index()].take(at);
                Ok(())
            }
            Change::SetWeight { group, target, weight } => self.set_weight(*group, *target, *weight),
            Change::SetWeights { group, weights } => {
                for (target, weight) in weights.iter() {
                    self.check_weight(*group, *target, *weight)?;
                }
                weights.iter().try_for_each(|(target, weight)| self.set_weight(*group, *target, *weight))
            }
            Change::Publish { group, targets, table } => {
                let declared = self.program.groups.get_mut(group.index());
                let unknown = || ChangeError::Unknown { what: "group".to_string() };
                let declared = declared.ok_or_else(unknown)?;
                declared.targets = targets.clone();
                declared.size = table.buckets().slots().len() as u32;
                self.set_buckets(*group, table.buckets().slots().to_vec());
                Ok(())
            }
            Change::NameCounters(names) => {
                if names.iter().any(|(id, _)| id.index() >= self.counters.len()) {
                    return Err(ChangeError::Unknown { what: "counter".to_string() });
                }
                for (id, name) in names.iter() {
                    self.program.counters[id.index()].clone_from(name);
                    self.counters[id.index()] = Count::default();
                }
                Ok(())
            }
            Change::MoveBuckets { group, moves, idle_gap_ns, wait_max_ns } => {
                self.check_moves(*group, moves)?;
                self.move_buckets(*group, moves, *idle_gap_ns, *wait_max_ns);
                Ok(())
            }
            Change::Batch(changes) => self.batch(changes),
        }
    }

    fn add(&mut self, id: PipeId, entry: &Entry) -> Result<(), ChangeError> {
        self.admits(id, entry, &[])?;
        let (pipe, state) = (&self.program.pipes[id.index()], &self.pipes[id.index()]);
        self.is_new(id, entry)?;
        if state.is_full_for(pipe, entry) {
            return Err(ChangeError::Full { pipe: pipe.name.clone(), capacity: pipe.capacity });
        }
        self.put(id, entry);
        Ok(())
    }

    fn is_new(&self, id: PipeId, entry: &Entry) -> Result<(), ChangeError> {
        match self.pipes[id.index()].row_at(&EntryKey::of(entry)) {
            Some(_) => Err(ChangeError::Exists { pipe: self.program.pipes[id.index()].name.clone() }),
            None => Ok(()),
        }
    }

    fn put(&mut self, id: PipeId, entry: &Entry) {
        self.pipes[id.index()].put(entry.clone(), self.clock_ns / NS_PER_MS);
    }

    /// Checks that an entry may be added to the current entries and those that `earlier` changes add.
    fn admits(&self, id: PipeId, entry: &Entry, earlier: &[Change]) -> Result<(), ChangeError> {
        let given = |at: usize| {
            earlier.iter().filter_map(move |change| match change {
                Change::Add { pipe, entry } | Change::Update { pipe, entry } => {
                    (pipe.index() == at).then_some(entry)
                }
                _ => None,
            })
        };
        let present = |at: usize| self.pipes[at].rows.iter().map(|row| &row.entry);
        let uses = |at: usize| {
            let mut uses = Uses::default();
            present(at).chain(given(at)).for_each(|entry| uses.add_entry(entry));
            uses
        };
        let uses: Vec<Uses> = (0..self.pipes.len()).map(uses).collect();
        self.shape.admits(&self.program, &uses.iter().collect::<Vec<_>>(), id, entry)
    }

    fn update(&mut self, id: PipeId, entry: &Entry) -> Result<(), ChangeError> {
        self.admits(id, entry, &[])?;
        let at = self.find(id, &EntryKey::of(entry))?;
        self.keeps_action(id, at, entry)?;
        self.replace(id, at, entry);
        Ok(())
    }

    /// Checks that an entry has the action whose values flows keep.
    fn keeps_action(&self, id: PipeId, at: usize, entry: &Entry) -> Result<(), ChangeError> {
        let reverse = matches!(self.program.pipes[id.index()].kind, PipeKind::Flow { reverse: true, .. });
        let state = &self.pipes[id.index()];
        if (state.keeps() || reverse) && state.rows[at].entry.template != entry.template {
            let pipe = self.program.pipes[id.index()].name.clone();
            return Err(ChangeError::Unfit { pipe, why: "flows keep values of its action".into() });
        }
        Ok(())
    }

    fn replace(&mut self, id: PipeId, at: usize, entry: &Entry) {
        let row = &mut self.pipes[id.index()].rows[at];
        row.entry = Entry { run_time: row.entry.run_time, ..entry.clone() };
    }

    /// Validates every change against what the earlier changes add, and then carries out all of them.
    fn batch(&mut self, changes: &[Change]) -> Result<(), ChangeError> {
        for (index, change) in changes.iter().enumerate() {
            self.judge(&changes[..index], change)
                .map_err(|why| ChangeError::At { index, why: Box::new(why) })?;
        }
        for change in changes {
            match change {
                Change::Add { pipe, entry } => self.put(*pipe, entry),
                Change::Update { pipe, entry } => {
                    let at = self.find(*pipe, &EntryKey::of(entry))?;
                    self.replace(*pipe, at, entry);
                }
                other => self.apply(other)?,
            }
        }
        Ok(())
    }

    fn judge(&self, earlier: &[Change], change: &Change) -> Result<(), ChangeError> {
        match change {
            Change::Add { pipe, entry } => {
                self.admits(*pipe, entry, earlier)?;
                self.is_new(*pipe, entry)?;
                self.has_room(*pipe, entry, earlier)
            }
            Change::Update { pipe, entry } => {
                self.admits(*pipe, entry, earlier)?;
                let at = self.find(*pipe, &EntryKey::of(entry))?;
                self.keeps_action(*pipe, at, entry)
            }
            Change::Remove { pipe, key } => self.find(*pipe, key).map(|_| ()),
            Change::MoveBuckets { group, moves, .. } => self.check_moves(*group, moves),
            Change::SetWeight { .. }
            | Change::SetWeights { .. }
            | Change::Publish { .. }
            | Change::NameCounters(_)
            | Change::Batch(_) => Err(ChangeError::Alone),
        }
    }

    /// Checks that there is room for an entry in addition to the current entries and to those that `earlier`
    /// changes of its batch add. Entries that `earlier` changes remove still count.
    fn has_room(&self, id: PipeId, entry: &Entry, earlier: &[Change]) -> Result<(), ChangeError> {
        let (pipe, state) = (&self.program.pipes[id.index()], &self.pipes[id.index()]);
        let is_flow = matches!(pipe.kind, PipeKind::Flow { .. });
        if matches!(pipe.kind, PipeKind::Hash { .. }) {
            return Ok(());
        }
        let (mut used, mut removed) = (if is_flow { state.flows.len() } else { state.rows.len() }, false);
        // An existing flow has its place, unless the batch may have taken it away.
        let takes_one = |entry: &Entry, removed: bool| match entry.matches.first() {
            Some(EntryMatch::Flow(key)) => removed || !state.flows.contains_key(key),
            _ => !is_flow,
        };
        for change in earlier {
            match change {
                Change::Add { pipe, entry } if *pipe == id => used += usize::from(takes_one(entry, removed)),
                Change::Remove { pipe, .. } if *pipe == id => removed = true,
                _ => {}
            }
        }
        if takes_one(entry, removed) && used >= pipe.capacity as usize {
            return Err(ChangeError::Full { pipe: pipe.name.clone(), capacity: pipe.capacity });
        }
        Ok(())
    }

    fn check_weight(&self, group: GroupId, target: u16, weight: u32) -> Result<(), ChangeError> {
        let unknown = |what: &str| ChangeError::Unknown { what: what.to_string() };
        let group = self.program.groups.get(group.index()).ok_or_else(|| unknown("group"))?;
        let name = group.name.clone();
        if group.fill == Fill::Given {
            return Err(ChangeError::Filled { group: name, why: "have no weights" });
        }
        if usize::from(target) >= group.targets.len() {
            return Err(unknown("target"));
        }
        if weight > WEIGHT_MAX {
            return Err(ChangeError::Weight { group: name, weight, max: WEIGHT_MAX });
        }
        Ok(())
    }

    fn set_weight(&mut self, group: GroupId, target: u16, weight: u32) -> Result<(), ChangeError> {
        self.check_weight(group, target, weight)?;
        self.program.groups[group.index()].set_weight(usize::from(target), weight);
        Ok(())
    }

    fn check_moves(&self, id: GroupId, moves: &[(u32, u16)]) -> Result<(), ChangeError> {
        let unknown = |what: &str| Err(ChangeError::Unknown { what: what.to_string() });
        let Some(group) = self.program.groups.get(id.index()) else { return unknown("group") };
        if group.fill != Fill::Given {
            return Err(ChangeError::Filled { group: group.name.clone(), why: "go by weights" });
        }
        for (bucket, target) in moves {
            if *bucket >= group.size {
                return unknown("bucket");
            }
            if *target != u16::MAX && usize::from(*target) >= group.targets.len() {
                return unknown("target");
            }
        }
        Ok(())
    }

    fn find(&self, id: PipeId, key: &EntryKey) -> Result<usize, ChangeError> {
        let pipe = self.pipe(id)?;
        let not_found = || ChangeError::NotFound { pipe: pipe.name.clone() };
        self.pipes[id.index()].row_at(key).ok_or_else(not_found)
    }

    fn pipe(&self, id: PipeId) -> Result<&Pipe, ChangeError> {
        self.program.pipes.get(id.index()).ok_or_else(|| ChangeError::Unknown { what: "pipe".to_string() })
    }

    /// Removes everything that has been idle for longer than its pipe's timeout, and returns the flows among
    /// it, with their counts. Carries out moves of buckets that are due.
    pub fn age(&mut self, now_ns: u64) -> Vec<(FlowKey, Count)> {
        let now_ms = now_ns / NS_PER_MS;
        self.clock_ns = self.clock_ns.max(now_ns);
        self.settle_all(now_ns);
        let mut gone = Vec::new();
        for (pipe, state) in self.program.pipes.iter().zip(&mut self.pipes) {
            let idle = |since: u64, timeout_ns| is_over(now_ms.saturating_sub(since), timeout_ns);
            let entry_timeout = pipe.monitor.idle_timeout_ns;
            let before = state.ended.len();
            let is_old = |row: &Row| {
                row.entry.run_time && idle(row.last_hit_ms.unwrap_or(row.added_ms), entry_timeout)
            };
            if let PipeKind::Flow { timeouts, .. } = pipe.kind {
                state.announce(pipe, &self.program.groups, now_ms);
                let all = state.flows.clone();
                let room = (pipe.capacity as usize).saturating_sub(all.len());
                let old = state.end_flows(DeltaReason::Aged, |key, flow| {
                    let (last_ms, state, proof) = as_one(&all, key, flow);
                    let is_own = flow.decision == FlowDecision::Own;
                    let room = if timeouts.are_by_state() && !is_own { room } else { pipe.capacity as usize };
                    idle(last_ms, hurried_ns(&timeouts, (state, proof), (room, pipe.capacity)))
                });
                old.into_iter().for_each(|key| state.after_flow(key, now_ms));
            }
            while let Some(at) = state.rows.iter().position(is_old) {
                state.take(at);
            }
            for (key, sum) in std::mem::take(&mut state.sums) {
                state.given += sum.hits.packets;
                state.ended.push((key, sum, DeltaReason::Interval));
            }
            if let Some(measured) = pipe.monitor.measured {
                for (key, flow) in state.flows.iter_mut().filter(|(_, flow)| flow.is_due(measured, now_ms)) {
                    state.given += flow.hits.packets;
                    state.ended.push((*key, flow.give(now_ms), DeltaReason::Interval));
                }
            }
            let ended = state.ended[before..].iter().filter(|(_, _, reason)| *reason == DeltaReason::Aged);
            gone.extend(ended.map(|(key, sum, _)| (*key, sum.hits)));
        }
        gone
    }

    /// Returns the flows that have ended since this was last called.
    pub fn take_ended(&mut self) -> Vec<Ended> {
        let mut all = Vec::new();
        for (pipe, state) in (0..).map(PipeId).zip(&mut self.pipes) {
            let ended = state.ended.drain(..);
            all.extend(ended.map(|one| Ended::of(pipe, one)));
        }
        all
    }

    /// Returns all counts.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            pipes: (0..)
                .map(PipeId)
                .zip(&self.pipes)
                .map(|(pipe, state)| state.snapshot(self.by_state(pipe)))
                .collect(),
            counters: self.counters.clone(),
            buckets: self.bucket_reports(),
        }
    }
}
