//! Reports what the engine has counted and what it holds.

use super::Engine;
use super::compile::CompiledPipe;
use crate::aggregate::Aggregate;
use crate::pipes::flow::Flows;
use crate::worker::PipeReport;
use std::ops::Range;
use weir_packet::FlowKey;
use weir_program::nat::Binding;
use weir_program::snapshot::{
    BucketReport, Count, EntrySnapshot, FlowAccount, FlowSnapshot, FlowsPage, KeptOperations, NewFlowTurns,
    Page, PipeSnapshot, Snapshot,
};
use weir_program::{CounterId, Entry, GroupId, PipeId};

impl Engine {
    /// Returns the totals of every pipe.
    #[must_use]
    pub fn pipe_reports(&self) -> Vec<PipeReport> {
        self.pipes.iter().map(CompiledPipe::report).collect()
    }

    /// Returns all counts.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            pipes: (0..self.pipes.len()).map(|at| self.pipe_snapshot(at)).collect(),
            counters: self.walk.counters.clone(),
            buckets: self.bucket_reports(),
        }
    }

    /// Returns the shared counters, at a cost independent of the tables' sizes.
    #[must_use]
    pub fn counters(&self) -> Vec<Count> {
        self.walk.counters.clone()
    }

    /// Returns a shared counter.
    #[must_use]
    pub fn counter(&self, id: CounterId) -> Count {
        self.walk.counters.get(id.index()).copied().unwrap_or_default()
    }

    /// Returns the entries in up to `most` places of a pipe, from `from` on. While counts are taken over from
    /// a previous program, the counts returned may be incomplete.
    #[must_use]
    pub fn page(&self, pipe: PipeId, from: u32, most: u32, now_ns: u64) -> Page {
        let pipe = self.pipes.get(pipe.index());
        pipe.map(|pipe| pipe.page(from, most, (now_ns / 1_000_000) as u32)).unwrap_or_default()
    }

    /// Returns the entries of a pipe with their counts, in a form in which they could be written again.
    #[must_use]
    pub fn entries(&self, pipe: PipeId) -> Vec<(Entry, Count)> {
        let Some(compiled) = self.pipes.get(pipe.index()) else { return Vec::new() };
        let mut all = compiled.entries();
        self.add_unsettled(pipe.index(), &mut all);
        all.into_iter()
            .map(|(entry, row)| (entry, Count { packets: row.packets, bytes: row.bytes }))
            .collect()
    }

    /// Returns one live flow of a FLOW pipe.
    #[must_use]
    pub fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        self.pipes.get(pipe.index())?.table.flows()?.snapshot(key)
    }

    /// Returns what a live flow of a FLOW pipe keeps of its entry's action; `None` if there is no such flow,
    /// or if the pipe's flows keep nothing.
    #[must_use]
    pub fn kept(&self, pipe: PipeId, key: &FlowKey) -> Option<KeptOperations> {
        let pipe = self.pipes.get(pipe.index())?;
        pipe.table.flows()?.kept_by(key)
    }

    /// Returns up to `limit` live flows of a FLOW pipe, and how many there are.
    #[must_use]
    pub fn flows(&self, pipe: PipeId, limit: usize) -> (Vec<FlowSnapshot>, usize) {
        let flows = self.pipes.get(pipe.index()).and_then(|pipe| pipe.table.flows());
        flows.map_or_else(Default::default, |flows| (flows.snapshots().take(limit).collect(), flows.live()))
    }

    /// Returns up to `most` live flows of a FLOW pipe from one page of rows, which begins at a row.
    #[must_use]
    pub fn flows_page(&self, pipe: PipeId, from: u32, most: usize) -> FlowsPage {
        let flows = self.pipes.get(pipe.index()).and_then(|pipe| pipe.table.flows());
        flows.map_or_else(FlowsPage::default, |flows| flows.page(from, most))
    }

    /// Returns where the packets that met FLOW pipes were counted, including those of previous programs.
    #[must_use]
    pub fn flow_account(&self) -> FlowAccount {
        let mut sum = self.past;
        let flows = self.pipes.iter().filter_map(|pipe| pipe.table.flows());
        flows.chain(self.leaving.iter().map(Box::as_ref)).for_each(|flows| sum.add(&flows.account));
        self.all_sums().for_each(|sums| sum.add(&sums.account));
        sum
    }

    /// Returns the packets in the counters of flows by adding up all flows; for tests.
    #[must_use]
    pub fn packets_in_flows(&self) -> u64 {
        let flows = self.pipes.iter().filter_map(|pipe| pipe.table.flows());
        flows.chain(self.leaving.iter().map(Box::as_ref)).map(Flows::packets).sum::<u64>()
            + self.all_sums().map(Aggregate::packets).sum::<u64>()
    }

    /// Returns the packets in deltas that wait to be taken by adding them up.
    #[must_use]
    pub fn packets_in_deltas(&self) -> u64 {
        let flows = self.pipes.iter().filter_map(|pipe| pipe.table.flows());
        flows.chain(self.leaving.iter().map(Box::as_ref)).map(Flows::packets_in_deltas).sum::<u64>()
            + self.all_sums().map(Aggregate::packets_in_deltas).sum::<u64>()
    }

    fn all_sums(&self) -> impl Iterator<Item = &Aggregate> {
        let own = self.pipes.iter().filter_map(|pipe| pipe.sums.as_deref());
        own.chain(self.left_sums.iter().map(Box::as_ref))
    }

    /// Returns the buckets of every group, with targets by position.
    #[must_use]
    pub fn buckets(&self) -> Vec<Vec<u16>> {
        self.walk.groups.iter().map(|group| group.slots().to_vec()).collect()
    }

    /// Returns how many packets each pipe has distributed in turn.
    #[must_use]
    pub fn turns(&self) -> Vec<u64> {
        self.pipes.iter().map(|pipe| pipe.table.turns()).collect()
    }

    /// Returns how each pipe currently chooses the targets of new flows.
    #[must_use]
    pub fn new_flows(&self) -> Vec<NewFlowTurns> {
        let flows = self.pipes.iter().map(|pipe| pipe.table.flows());
        let one = |flows: &Flows| NewFlowTurns { turns: flows.new_flow_turns(), full_ms: flows.full_ms() };
        flows.map(|flows| flows.map(one).unwrap_or_default()).collect()
    }

    /// Returns what the next new flow of each slice of each pipe's NAT pool gets; empty without a pool.
    #[must_use]
    pub fn next_bindings(&self) -> Vec<Vec<Option<Binding>>> {
        let flows = self.pipes.iter().map(|pipe| pipe.table.flows());
        flows.map(|flows| flows.map(Flows::next_bindings).unwrap_or_default()).collect()
    }

    /// Returns the buckets of every group, with the counts of given buckets.
    #[must_use]
    pub fn bucket_reports(&self) -> Vec<BucketReport> {
        self.walk.groups.iter().map(|group| group.report(0..usize::MAX)).collect()
    }

    /// Returns the existing buckets of a group in a range. Empty if there is no such group.
    #[must_use]
    pub fn bucket_report(&self, group: GroupId, range: Range<usize>) -> BucketReport {
        self.walk.groups.get(group.index()).map(|group| group.report(range)).unwrap_or_default()
    }

    /// Returns how many bucket tables this engine has filled since it was created.
    #[must_use]
    pub fn filled(&self) -> u64 {
        self.filled
    }

    fn pipe_snapshot(&self, at: usize) -> PipeSnapshot {
        let pipe = &self.pipes[at];
        let mut entries = pipe.entries();
        self.add_unsettled(at, &mut entries);
        let entries = entries.into_iter().map(|(entry, row)| EntrySnapshot {
            key: weir_program::change::EntryKey::of(&entry),
            run_time: row.is_run_time(),
            hits: Count { packets: row.packets, bytes: row.bytes },
            last_hit_ms: (row.packets > 0).then_some(u64::from(row.last)),
        });
        let flows = pipe.table.flows();
        PipeSnapshot {
            misses: pipe.misses,
            entries: entries.collect(),
            flows: flows.map(|flows| flows.snapshots().collect()).unwrap_or_default(),
            account: pipe.account(),
            turns: pipe.table.turns(),
        }
    }
}
