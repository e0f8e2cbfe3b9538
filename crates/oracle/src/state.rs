//! State that outlives a packet: the entries of a pipe with their counts, and its flows.

use super::action::keep;
use super::flow_row::{FlowRow, pair_of};
use super::nat::NatState;
use super::observed::FlowSum;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::OnceLock;
use weir_packet::FlowKey;
use weir_program::change::EntryKey;
use weir_program::snapshot::{
    Count, EntrySnapshot, FlowAccount, FlowDecision, FlowSnapshot, KeptOperations, PipeSnapshot, Unflowed,
};
use weir_program::{
    AppId, Entry, EntryList, EntryMatch, GroupId, Operation, Pipe, PipeKind, PortId, Template,
};
use weir_table::DeltaReason;

/// State of a pipe.
#[derive(Clone, Debug, Default)]
pub(super) struct PipeState {
    templates: Vec<Template>,
    /// Entries in the order of insertion.
    pub rows: Vec<Row>,
    /// See [`PipeState::rows`].
    pub sifted: OnceLock<Vec<Row>>,
    pub misses: Count,
    /// Live flows, including those with an entry of their own.
    pub flows: BTreeMap<FlowKey, FlowRow>,
    /// The sums of packets by flow, where they are measured without a flow table.
    pub sums: BTreeMap<FlowKey, FlowSum>,
    pub met: u64,
    pub unflowed: Unflowed,
    /// The counts of flows that have ended since the last call.
    pub ended: Vec<(FlowKey, FlowSum, DeltaReason)>,
    /// Packets in all flows that ever ended.
    pub given: u64,
    /// Packets that a HASH pipe has distributed in turn.
    pub turns: u64,
    /// The next turn of each group whose new flows are assigned in turn.
    pub new_flow_turns: BTreeMap<GroupId, u64>,
    /// Where sources went last, and when.
    pub sources: BTreeMap<(GroupId, IpAddr), (u16, u64)>,
    /// When the table last had no room for a flow.
    pub full_ms: Option<u64>,
    pub nat: NatState,
    /// Idle connections that must be reported to apps.
    pub idle: Vec<(AppId, PortId, Vec<u8>)>,
}

/// An entry and its counts.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub entry: Entry,
    pub hits: Count,
    pub last_hit_ms: Option<u64>,
    pub added_ms: u64,
}

impl PipeState {
    pub fn new(templates: &[Template], entries: &EntryList, nat: NatState) -> PipeState {
        let mut state = PipeState { templates: templates.to_vec(), nat, ..PipeState::default() };
        entries.iter().for_each(|entry| state.put(entry, 0));
        state
    }

    /// Appends an entry. A flow's own entry adopts the flow, or starts one.
    pub fn put(&mut self, entry: Entry, now_ms: u64) {
        let row = Row { entry, hits: Count::default(), last_hit_ms: None, added_ms: now_ms };
        if let Some(key) = own_flow(&row) {
            let kept = self.keep_bare(&row.entry);
            let flow = self.flows.entry(key).or_insert(FlowRow::new(FlowDecision::Own, now_ms));
            (flow.decision, flow.kept, flow.pair) = (FlowDecision::Own, kept, None);
            let binding = flow.binding.take();
            self.unbind(binding);
        }
        self.rows.push(row);
    }

    /// Returns what the flow of such an own entry keeps.
    pub fn keep_bare(&self, entry: &Entry) -> KeptOperations {
        keep(&self.templates[usize::from(entry.template)], &entry.values, None, None)
    }

    /// Whether flows keep values of the pipe's actions.
    pub fn keeps(&self) -> bool {
        self.templates.iter().flat_map(|template| &template.operations).any(Operation::is_kept)
    }

    pub fn learn(&mut self, key: FlowKey, flow: FlowRow) {
        if let Some(begun) = flow.pair.and_then(|begun| self.flows.get_mut(&begun)) {
            begun.pair = Some(key);
        }
        // The answers share what their flow has taken.
        if let Some(binding) = flow.binding.filter(|_| flow.decision != FlowDecision::Default) {
            self.nat.take(binding);
        }
        self.flows.insert(key, flow);
    }

    pub fn row_at(&self, key: &EntryKey) -> Option<usize> {
        self.rows.iter().position(|row| EntryKey::of(&row.entry) == *key)
    }

    /// Returns true if there is no room for `entry`.
    pub fn is_full_for(&self, pipe: &Pipe, entry: &Entry) -> bool {
        let capacity = pipe.capacity as usize;
        match (&pipe.kind, entry.matches.first()) {
            (PipeKind::Flow { .. }, Some(EntryMatch::Flow(key))) => {
                !self.flows.contains_key(key) && self.flows.len() >= capacity
            }
            // A row for each target, and the default.
            (PipeKind::Flow { .. } | PipeKind::Hash { .. }, _) => false,
            _ => self.rows.len() >= capacity,
        }
    }

    /// Removes an entry, and the flows that were decided for it.
    pub fn take(&mut self, at: usize) {
        let row = self.rows.remove(at);
        let Some(&wanted) = row.entry.matches.first() else { return };
        self.end_flows(DeltaReason::Removed, |key, flow| match flow.decision {
            FlowDecision::Default => wanted == EntryMatch::Default,
            FlowDecision::Pinned(target) => wanted == EntryMatch::Target(target),
            FlowDecision::Own => wanted == EntryMatch::Flow(*key),
            FlowDecision::PinnedIn(group, target) => wanted == EntryMatch::Member { group, target },
            FlowDecision::Follow(_) | FlowDecision::FollowChosen => false,
        });
    }

    /// Ends flows. Returns their keys.
    pub(super) fn end_flows(
        &mut self,
        reason: DeltaReason,
        which: impl Fn(&FlowKey, &FlowRow) -> bool,
    ) -> Vec<FlowKey> {
        let gone: Vec<_> = self.flows.extract_if(.., |key, flow| which(key, flow)).collect();
        self.given += gone.iter().map(|(_, flow)| flow.hits.packets).sum::<u64>();
        self.ended.extend(gone.iter().map(|(key, flow)| (*key, flow.sum(), reason)));
        gone.iter().for_each(|(_, flow)| self.unbind(flow.binding));
        gone.into_iter().map(|(key, _)| key).collect()
    }

    /// Handles the expiry of a flow. If it has an entry of its own, the entry is removed if it was added at
    /// run time; a configured entry starts a new flow.
    pub fn after_flow(&mut self, key: FlowKey, now_ms: u64) {
        match self.row_of(&EntryMatch::Flow(key)) {
            Some(at) if self.rows[at].entry.run_time => {
                self.rows.remove(at);
            }
            Some(at) => {
                let kept = self.keep_bare(&self.rows[at].entry);
                self.flows.insert(key, FlowRow { kept, ..FlowRow::new(FlowDecision::Own, now_ms) });
            }
            None => {}
        }
    }

    pub(super) fn seen(&self, key: &FlowKey, flow: &FlowRow, by_state: bool) -> FlowSnapshot {
        flow.snapshot(*key, by_state, pair_of(&self.flows, key, flow))
    }

    pub fn snapshot(&self, by_state: bool) -> PipeSnapshot {
        let entry = |row: &Row| EntrySnapshot {
            key: EntryKey::of(&row.entry),
            run_time: row.entry.run_time,
            hits: row.hits,
            last_hit_ms: row.last_hit_ms,
        };
        PipeSnapshot {
            misses: self.misses,
            entries: self.rows.iter().map(entry).collect(),
            flows: self.flows.iter().map(|(key, flow)| self.seen(key, flow, by_state)).collect(),
            account: FlowAccount {
                met: self.met,
                live: {
                    let sums = self.sums.values().map(|sum| &sum.hits);
                    let hits = self.flows.values().map(|flow| &flow.hits).chain(sums);
                    hits.map(|hits| hits.packets).sum()
                },
                given: self.given,
                unflowed: self.unflowed,
            },
            turns: self.turns,
        }
    }
}

/// Returns the flow of an own entry.
fn own_flow(row: &Row) -> Option<FlowKey> {
    match row.entry.matches.first() {
        Some(EntryMatch::Flow(key)) => Some(*key),
        _ => None,
    }
}

/// Ages are kept in milliseconds.
pub(super) const NS_PER_MS: u64 = 1_000_000;

/// Returns true if an age exceeds a timeout. A timeout of 0 means none; any other is at least a millisecond.
pub(super) fn is_over(age_ms: u64, timeout_ns: u64) -> bool {
    timeout_ns != 0 && age_ms > (timeout_ns / NS_PER_MS).max(1)
}
