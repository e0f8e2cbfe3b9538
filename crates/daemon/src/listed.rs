//! Potentially long lists, a page at a time: entries and flows. An answer has a bounded number of rows, and
//! where the next page begins, so that no query makes the daemon's memory grow with the length of a list.
//!
//! An entry or flow that exists from the first page to the last is listed exactly once, regardless of what is
//! added and removed meanwhile. Where that cannot be guaranteed, because the program was replaced, the next
//! page is an error.

use super::load::PAGE_MAX;
use super::observer::Snapshot;
use crate::config;
use crate::explain::decision;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use weir_app::names::AddressNames;
use weir_control::answer::{EntryRow, FlowRow, Lines};
use weir_control::{Entries, Show};
use weir_engine::worker::Command;
use weir_program::change::EntryKey;
use weir_program::nat::Binding;
use weir_program::snapshot::{FlowSnapshot, FlowsPage, Page, Seen};
use weir_program::{Entry, PipeId, PipeKind};

/// The maximum number of rows of an answer. As JSON values in memory they take a few megabytes.
const ROWS_MAX: usize = 2048;

/// The default number of flows shown.
const FLOWS: usize = 100;

/// Sets of a flow table outside of pipes that are read at once.
const SETS: u32 = 1024;

/// Where a page begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    generation: u64,
    /// The number of a pipe; after the last pipe, flow tables outside of pipes follow.
    list: u32,
    /// For flows, the worker that has them.
    worker: u32,
    place: u32,
    /// The earlier value of [`Page::renumbered`].
    renumbered: u32,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cursor { generation, list, worker, place, renumbered } = self;
        write!(f, "{generation}.{list}.{worker}.{place}.{renumbered}")
    }
}

impl Cursor {
    fn parse(text: &str) -> Option<Cursor> {
        let (generation, rest) = text.split_once('.')?;
        let numbers = rest.split('.').map(|number| number.parse().ok()).collect::<Option<Vec<u32>>>()?;
        let [list, worker, place, renumbered] = numbers[..] else { return None };
        Some(Cursor { generation: generation.parse().ok()?, list, worker, place, renumbered })
    }

    /// Moves past a page: to its next place, or to the next list.
    fn follow(&mut self, next: Option<u32>) {
        match next {
            Some(place) => self.place = place,
            None => *self = Cursor { generation: self.generation, list: self.list + 1, ..Cursor::default() },
        }
    }
}

impl Snapshot {
    /// Returns where the requested page begins.
    fn cursor(&self, request: &Show) -> Result<Cursor> {
        let Some(from) = &request.from else {
            return Ok(Cursor { generation: self.generation, ..Cursor::default() });
        };
        let cursor = Cursor::parse(from).context("`from` must be the `next` of the previous page")?;
        if cursor.generation != self.generation {
            bail!("the program was replaced while its lists were read: try again");
        }
        Ok(cursor)
    }

    /// Returns a page of the entries of a pipe from a place on, with the counts of all workers. Workers
    /// collect a few entries at a time, so that none stops forwarding for long.
    fn page(&self, pipe: PipeId, from: u32) -> Result<Page> {
        let mut page = self.ask_one(0, |answer| Command::Page(pipe, from, PAGE_MAX, answer))?;
        let keys: Vec<_> = page.entries.iter().map(|(entry, _)| (pipe, EntryKey::of(entry))).collect();
        let others = self.ask_others(&Arc::new(keys))?;
        for (at, (_, seen)) in page.entries.iter_mut().enumerate() {
            let known = others.iter().filter_map(|other| other.get(at).copied().flatten());
            known.for_each(|one| seen.add(one));
        }
        Ok(page)
    }

    /// Returns what the workers other than the first have counted for entries.
    fn ask_others(&self, keys: &Arc<Vec<(PipeId, EntryKey)>>) -> Result<Vec<Vec<Option<Seen>>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let ask = |worker| self.ask_one(worker, |answer| Command::Seen(keys.clone(), answer));
        (1..self.reports.len()).map(ask).collect()
    }

    /// Calls `each` with every entry of a pipe.
    pub fn each_entry(&self, pipe: PipeId, mut each: impl FnMut(Entry)) -> Result<()> {
        let mut next = Some(0);
        while let Some(from) = next {
            let page = self.ask_one(0, |answer| Command::Page(pipe, from, PAGE_MAX, answer))?;
            page.entries.into_iter().for_each(|(entry, _)| each(entry));
            next = page.next;
        }
        Ok(())
    }

    /// Returns a page of entries: of one pipe, or of all.
    pub fn show_entries(&self, request: &Show) -> Result<Value> {
        let only = request.pipe.as_deref().map(|name| self.pipe_named(name)).transpose()?;
        let only = only.map(|id| id.index() as u32);
        let mut at = self.cursor(request)?;
        at.list = only.unwrap_or(0).max(at.list);
        let end = only.map_or(self.plan.program.pipes.len() as u32, |only| only + 1);
        let mut rows = Vec::new();
        self.settle()?;
        while at.list < end && rows.len() + PAGE_MAX as usize <= ROWS_MAX {
            let pipe = PipeId(at.list as u16);
            let page = self.page(pipe, at.place)?;
            if at.place > 0 && page.renumbered != at.renumbered {
                let name = &self.plan.program.pipes[pipe.index()].name;
                bail!("the rules of `{name}` were renumbered while they were read: try again");
            }
            rows.extend(page.entries.iter().map(|one| self.entry_row(pipe, one)));
            at.renumbered = page.renumbered;
            at.follow(page.next);
        }
        Ok(json!({ "entries": rows, "next": (at.list < end).then(|| at.to_string()) }))
    }

    fn entry_row(&self, pipe: PipeId, (entry, seen): &(Entry, Seen)) -> EntryRow {
        let pipe = &self.plan.program.pipes[pipe.index()];
        EntryRow {
            pipe: pipe.name.clone(),
            entry: config::write_entry(&self.plan.program, pipe, entry),
            run_time: entry.run_time,
            packets: seen.count.packets,
            bytes: seen.count.bytes,
            last_ms: seen.last_ms.into(),
        }
    }

    /// Returns a page of flows, and on the first page the number of flows.
    pub fn show_flows(&self, request: &Show) -> Result<Value> {
        let limit = request.limit.map_or(FLOWS, |limit| limit as usize).min(ROWS_MAX);
        let mut at = self.cursor(request)?;
        let mut answer = json!({});
        if request.from.is_none() {
            answer["live"] = json!(self.live_flows());
        }
        let pipes = self.plan.program.pipes.len();
        let end = pipes + self.flow_tables.len();
        let mut rows = Vec::new();
        let names = self.names.names();
        while (at.list as usize) < end && rows.len() < limit {
            let room = limit - rows.len();
            match self.plan.program.pipes.get(at.list as usize).map(|pipe| &pipe.kind) {
                Some(PipeKind::Flow { .. }) => self.flows_of_pipe(&mut at, (room, &names), &mut rows)?,
                Some(PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl | PipeKind::Hash { .. }) => {
                    at.follow(None);
                }
                None => {
                    let table = &self.flow_tables[at.list as usize - pipes];
                    let sets = if room < ROWS_MAX { 1 } else { SETS };
                    let (mut some, next) = table.page(at.place, sets, &names);
                    rows.append(&mut some);
                    at.follow(next);
                }
            }
        }
        // A set of a flow table has a few more than there was room for.
        answer["flows"] = json!(rows);
        answer["next"] = json!(((at.list as usize) < end).then(|| at.to_string()));
        Ok(answer)
    }

    fn flows_of_pipe(
        &self,
        at: &mut Cursor,
        (room, names): (usize, &AddressNames),
        rows: &mut Vec<Value>,
    ) -> Result<()> {
        let (pipe, from) = (PipeId(at.list as u16), at.place);
        let worker = at.worker as usize;
        if worker >= self.reports.len() {
            at.follow(None);
            return Ok(());
        }
        let FlowsPage { flows, next } =
            self.ask_one(worker, |answer| Command::Flows(pipe, from, room, answer))?;
        rows.extend(flows.iter().map(|flow| self.flow_row(pipe, flow, names)));
        match next {
            Some(_) => at.follow(next),
            None => (at.worker, at.place) = (at.worker + 1, 0),
        }
        Ok(())
    }

    fn flow_row(&self, pipe: PipeId, flow: &FlowSnapshot, names: &AddressNames) -> Value {
        let name = &self.plan.program.pipes[pipe.index()].name;
        // Including those that a measurement has collected.
        let mut count = flow.hits;
        count.add(flow.given);
        let [source_name, destination_name] =
            names.of_flow(&flow.key).map(|name| name.map(|name| name.answer()));
        json!(FlowRow {
            pipe: name.clone(),
            flow: flow.key.to_string(),
            decision: decision(&self.plan.program, pipe, flow.decision),
            packets: count.packets,
            bytes: count.bytes,
            first_ms: flow.first_ms.into(),
            last_ms: flow.last_ms.into(),
            state: flow.state.map(|state| state.word().to_string()),
            nat: flow.binding.map(binding),
            in_kernel: flow.in_kernel,
            source_name,
            destination_name,
        })
    }

    fn live_flows(&self) -> usize {
        let pipes = self.reports.iter().flat_map(|report| &report.pipes).map(|pipe| pipe.flows);
        let outside = self.flow_tables.iter().map(|table| table.count());
        pipes.sum::<usize>() + outside.sum::<usize>()
    }
}

/// Writes an address and a port.
fn binding((address, port): Binding) -> String {
    SocketAddr::new(address, port).to_string()
}

impl Snapshot {
    /// Returns a page of a pipe's entries as changes that add them: those from place `from` on, and where the
    /// next page begins. Configured entries are left out, unless `all` are requested.
    pub fn list_entries(&self, request: &Entries) -> Result<Value> {
        let id = self.pipe_named(&request.pipe)?;
        let pipe = &self.plan.program.pipes[id.index()];
        let page = self.ask_one(0, |answer| Command::Page(id, request.from, PAGE_MAX, answer))?;
        let wanted = page.entries.iter().filter(|(entry, _)| request.all || entry.run_time);
        let line = |(entry, _): &(weir_program::Entry, _)| {
            format!("add {} {}", pipe.name, config::write_entry(&self.plan.program, pipe, entry))
        };
        Ok(json!(Lines { entries: wanted.map(line).collect(), next: page.next }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = Cursor { generation: u64::MAX, list: 3, worker: 1, place: u32::MAX, renumbered: 7 };
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        for wrong in ["", "1", "1.2.3.4", "1.2.3.4.5.6", "1.2.3.4.-5", "1.2.3.4.4294967296", "a.1.1.1.1"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
