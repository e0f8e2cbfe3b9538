//! The engine's interface for a copy of its tables in the kernel.

use super::Engine;
use super::compile::CompiledPipe;
use crate::pipes::flow::Flows;
use crate::pipes::table::Table;
use weir_program::change::EntryKey;
use weir_program::replica::{EntryUses, FlowMark, FlowReplica, Swept};
use weir_program::{GroupId, PipeId};

impl Engine {
    /// Returns where the entries of each pipe lead, and the rules of ACL pipes.
    #[must_use]
    pub fn entry_uses(&self, generation: u64) -> EntryUses {
        let rules = |pipe: &CompiledPipe| match pipe.table {
            Table::Acl(_) => pipe.entries().into_iter().map(|(entry, _)| entry).collect(),
            Table::Basic(_) | Table::Hash(_) | Table::Flow(_) | Table::Lpm(_) => Vec::new(),
        };
        EntryUses {
            generation,
            leads: self.pipes.iter().map(|pipe| pipe.actions.uses.leads().collect()).collect(),
            rules: self.pipes.iter().map(rules).collect(),
        }
    }

    /// Returns the number of pipes.
    #[must_use]
    pub fn pipe_count(&self) -> usize {
        self.pipes.len()
    }

    /// Sets whether a program in the kernel has a copy of the entries: those that expire are then noted.
    pub fn set_copied(&mut self, is_copied: bool) {
        self.is_copied = is_copied;
        self.expired.clear();
    }

    /// Takes the entries that have expired since the last call.
    pub fn take_expired(&mut self) -> Vec<(PipeId, EntryKey)> {
        std::mem::take(&mut self.expired)
    }

    /// Lets the program in the kernel follow the flows that it can follow.
    pub fn follow_flows(&mut self, replica: &dyn FlowReplica, now_ns: u64) {
        for (pipe, compiled) in (0..).map(PipeId).zip(&mut self.pipes) {
            if let Some(flows) = compiled.table.flows_mut().filter(|_| replica.follows(pipe)) {
                flows.follow(pipe, replica.lines(), now_ns);
            }
        }
    }

    /// Called when the program in the kernel has stopped, and no longer follows any flow.
    pub fn follow_no_flows(&mut self) {
        self.each_flows(Flows::follow_no_longer);
    }

    /// Informs the program in the kernel of flows that have begun or ended, and takes the last counts of
    /// ended flows. Adds to `marks` the packets after which the kernel may handle the later packets of their
    /// flows.
    pub fn tell_kernel(&mut self, replica: &mut dyn FlowReplica, marks: &mut Vec<FlowMark>) {
        replica.take_removed(&mut |slot, counts| {
            let mut flows = self.pipes.iter_mut().filter_map(|pipe| pipe.table.flows_mut());
            flows.any(|flows| flows.take_last(slot, &counts));
        });
        self.each_flows(|flows| flows.tell_kernel(replica, marks));
    }

    /// Returns the buckets of a group.
    #[must_use]
    pub fn slots(&self, group: GroupId) -> &[u16] {
        self.walk.groups.get(group.index()).map_or(&[], |group| group.slots())
    }

    /// Adds what the program in the kernel has counted for entries, pipes and shared counters. An entry that
    /// was removed in the meantime is counted in the totals of its pipe only.
    pub fn add_swept(&mut self, swept: Swept<'_>, now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) as u32;
        match swept {
            Swept::Entry(pipe, key, count) => self.pipes[pipe.index()].add_hits(key, count, now_ms),
            Swept::Misses(pipe, count) => self.pipes[pipe.index()].misses.add(count),
            Swept::Counter(counter, count) => self.walk.counters[counter.index()].add(count),
            Swept::Decided(..) | Swept::Sent(..) | Swept::Unsent(..) | Swept::Dropped(..) => {}
        }
    }
}
