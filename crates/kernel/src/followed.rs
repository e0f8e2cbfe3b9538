//! The flows of one worker in the table that all workers share.

use crate::flows::{FlowEntry, FlowTable};
use crate::kept::kept_bytes;
use crate::layout;
use crate::sys::Memory;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_packet::FlowKey;
use weir_program::replica::{FlowCounts, FlowLines, FlowMark, FlowReplica, FlowSlot};
use weir_program::{EntryMatch, Operation, PipeId, Program};

/// The entries of FLOW pipes, which are read while another thread changes them.
#[derive(Debug)]
pub struct FollowedEntries {
    program: Program,
    /// The records of each pipe whose flows are followed.
    records: Vec<Option<Arc<Memory>>>,
}

impl FollowedEntries {
    /// Reads the entries of those pipes that have records.
    pub fn new(program: Program, records: Vec<Option<Arc<Memory>>>) -> FollowedEntries {
        FollowedEntries { program, records }
    }

    /// Whether flows of a pipe are followed.
    fn has(&self, pipe: PipeId) -> bool {
        self.records.get(pipe.index()).is_some_and(Option::is_some)
    }

    /// Returns how flows refer to an entry that they are decided for; `None` if there is no such entry here.
    pub fn of(&self, pipe: PipeId, matches: &[EntryMatch]) -> Option<FlowEntry> {
        let (of, records) = (&self.program.pipes[pipe.index()], self.records[pipe.index()].as_ref()?);
        let number = layout::target_number(&self.program, of, matches)?;
        let in_use = records.word(number * 8);
        let slot = in_use.load(Ordering::Acquire);
        let room = layout::targets(&self.program, of);
        let record = layout::target_record(of, room, number, slot as usize & 1);
        let template = records.half(record + layout::TEMPLATE as usize).load(Ordering::Acquire);
        // If the entry has changed meanwhile, the template may be that of another life.
        let is_same = in_use.load(Ordering::Acquire) == slot;
        (is_same && template != layout::ABSENT)
            .then_some(FlowEntry { number: number as u32, stamp: (slot >> 1) as u32 })
    }
}

/// The flows that one worker has learnt and the kernel follows.
#[derive(Debug)]
pub struct FollowedFlows {
    table: FlowTable,
    entries: Arc<FollowedEntries>,
}

impl FollowedFlows {
    /// An owner of flows in a table, which has none yet.
    pub fn new(table: FlowTable, entries: Arc<FollowedEntries>) -> FollowedFlows {
        FollowedFlows { table, entries }
    }
}

impl FlowReplica for FollowedFlows {
    fn lines(&self) -> Arc<dyn FlowLines> {
        self.table.lines()
    }

    fn follows(&self, pipe: PipeId) -> bool {
        self.entries.has(pipe)
    }

    fn insert(
        &mut self,
        pipe: PipeId,
        key: &FlowKey,
        decided: Option<&[EntryMatch]>,
        kept: &[Option<Operation>],
    ) -> Option<FlowSlot> {
        let entry = match decided {
            Some(matches) => self.entries.of(pipe, matches)?,
            None => FlowEntry::FOLLOWS,
        };
        self.table.insert(pipe, key, entry, &kept_bytes(kept)).ok()
    }

    fn try_activate(&mut self, mark: FlowMark) -> bool {
        self.table.try_activate(mark)
    }

    fn pause(&mut self) {
        self.table.begin_epoch();
    }

    fn remove_flow(&mut self, slot: FlowSlot) {
        self.table.remove(slot);
    }

    fn take_removed(&mut self, gone: &mut dyn FnMut(FlowSlot, FlowCounts)) {
        self.table.take_removed(gone);
    }
}
