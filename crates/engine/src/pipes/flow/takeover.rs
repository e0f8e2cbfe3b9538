//! Flows pass to another process, which continues with the same or a newer program: what a flow was decided
//! for, when it began and was last seen, its state, what it keeps, and its address and port from a NAT pool.
//! Counts stay: the process that ends sends them to its collector.
//!
//! Guarantees: all input is validated, regardless of its writer; a flow that cannot continue is not entered.

use super::Flows;
use crate::pipes::lookup::NO_ROW;
use std::net::{IpAddr, Ipv6Addr};
use weir_packet::FlowKey;
use weir_program::nat::Binding;
use weir_table::{Decision, Flow, FlowState, Resumed};

/// Bytes of a record before what the flow keeps.
const HEAD: usize = 40 + 4 + 4 + 4 + 4 + 16 + 4;

/// The entry number in a record of a flow that follows a group.
const FOLLOWS: u32 = u32::MAX;

/// The format of an address in a record.
const UNBOUND: u8 = 0;
const BOUND_V4: u8 = 4;
const BOUND_V6: u8 = 6;

/// A flow in transit to another process, as stored in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub key: FlowKey,
    /// The entry that the flow was decided for, as an index in the list of entries; `None` if the flow
    /// follows its group.
    pub entry: Option<u32>,
    pub from: Resumed,
    /// The flow's address and port from the NAT pool.
    pub binding: Option<Binding>,
    /// The values that the flow keeps, in the form that the pipe's actions need.
    pub kept: &'a [u8],
}

impl<'a> Record<'a> {
    /// Appends the record to `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        self.key.0.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        let Resumed { first, last, state, seq, heard } = self.from;
        let numbers = [self.entry.unwrap_or(FOLLOWS), first, last];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        let (family, address, port) = match self.binding {
            None => (UNBOUND, 0, 0),
            Some((IpAddr::V4(address), port)) => (BOUND_V4, address.to_ipv6_mapped().to_bits(), port),
            Some((IpAddr::V6(address), port)) => (BOUND_V6, address.to_bits(), port),
        };
        bytes.extend([state as u8, family, seq, heard]);
        bytes.extend(address.to_le_bytes());
        bytes.extend(port.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.kept);
    }

    /// Reads a record that spans all of `bytes`; `None` if its content is impossible for a flow.
    pub fn read(bytes: &'a [u8]) -> Option<Record<'a>> {
        let (head, kept) = bytes.split_at_checked(HEAD)?;
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let key = FlowKey([word(0)?, word(8)?, word(16)?, word(24)?, word(32)?]);
        let state = FlowState::ALL.into_iter().find(|state| *state as u8 == head[52])?;
        let address = Ipv6Addr::from_bits(u128::from_le_bytes(head.get(56..72)?.try_into().ok()?));
        let port = u16::from_le_bytes([head[72], head[73]]);
        let binding = match head[53] {
            UNBOUND => None,
            BOUND_V4 => Some((IpAddr::V4(address.to_ipv4_mapped()?), port)),
            BOUND_V6 => Some((IpAddr::V6(address), port)),
            _ => return None,
        };
        let from = Resumed { first: number(44)?, last: number(48)?, state, seq: head[54], heard: head[55] };
        let entry = Some(number(40)?).filter(|&entry| entry != FOLLOWS);
        Some(Record { key, entry, from, binding, kept })
    }
}

impl Flows {
    /// Returns how many bytes a flow keeps.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.values.as_ref().map_or(0, |values| values.stride())
    }

    /// Returns the length of a record in bytes.
    #[must_use]
    pub fn record_length(&self) -> usize {
        HEAD + self.kept_bytes()
    }

    /// Writes the flows in the `rows` rows that begin at `from`, if they were hit or decided since `since`
    /// (all of them if it is `None`) and have no entry of their own. `entry` returns the index of an entry's
    /// row in the list of entries. Returns the next row.
    pub fn write_records(
        &self,
        (from, rows): (u32, u32),
        since: Option<u32>,
        mut entry: impl FnMut(u32) -> Option<u32>,
        bytes: &mut Vec<u8>,
    ) -> Option<u32> {
        let end = from.saturating_add(rows).min(self.capacity());
        for at in from..end {
            let Some(flow) = self.table.flow(at).filter(|flow| self.is_alive(flow)) else { continue };
            let flow = &self.present(at, flow);
            // Times wrap; more than half of their range ahead means in the past.
            let is_older = since.is_some_and(|since| flow.first().wrapping_sub(since) >= 1 << 31);
            if is_older || self.own.contains_key(flow.key()) {
                continue;
            }
            let entry = match flow.decision() {
                Decision::Pinned(number) => match entry(self.decided.row(number)) {
                    Some(place) => Some(place),
                    None => continue,
                },
                Decision::Group(_) | Decision::Cached(_) => None,
            };
            let record = Record {
                key: *flow.key(),
                entry,
                from: self.resumed(at, flow),
                binding: self.nat.as_ref().and_then(|nat| nat.binding(nat.of_row(at)?)),
                kept: self.values.as_ref().map_or(&[], |values| values.of_row(at)),
            };
            record.write(bytes);
        }
        (end < self.capacity()).then_some(end)
    }

    /// Returns what another process needs to know about a flow's past. There, each direction may be alone, so
    /// each records whether both have closed.
    fn resumed(&self, at: u32, flow: &Flow) -> Resumed {
        let state = match flow.state().together(self.present_other(at).as_ref().map(Flow::state)) {
            FlowState::TcpFin => FlowState::TcpFin,
            _ => flow.state(),
        };
        Resumed { first: flow.first(), last: flow.last(), state, seq: flow.seq(), heard: flow.heard() }
    }

    /// Continues a flow of another process, decided for the entry of `row`. Returns false if it cannot
    /// continue: the table is full, the entry is gone, or its address and port are not in the NAT pool.
    pub fn resume(&mut self, record: &Record<'_>, row: Option<u32>) -> bool {
        let hash = self.hash(&record.key);
        let decision = match (record.entry, row, self.learn.group()) {
            (Some(_), Some(row), _) if row != NO_ROW => self.decided.of_row(row).map(Decision::Pinned),
            (None, _, Some(_)) => Some(Decision::Group(0)),
            _ => None,
        };
        let Some(decision) = decision else { return false };
        if let Some(present) = self.table.get(hash, &record.key) {
            if self.own.contains_key(&record.key) {
                return true;
            }
            // It may have ended since an earlier page, and another connection may have begun (C15).
            let same = self.table.flow(present).is_some_and(|flow| flow.decision() == decision);
            let bound = self.nat.as_ref().and_then(|nat| nat.binding(nat.of_row(present)?));
            if same && bound == record.binding {
                if self.table.refresh(present, record.from)
                    && let Some(values) = &mut self.values
                {
                    values.set_row(present, record.kept, 0);
                }
                return true;
            }
            self.clear(present, weir_table::DeltaReason::Removed);
        }
        let place = match (&self.nat, record.binding) {
            (Some(nat), Some(binding)) => {
                let pool = nat.pool();
                match pool.place(binding).filter(|(slice, _)| pool.slice(&record.key) == *slice) {
                    Some(place) => Some(place),
                    None => return false,
                }
            }
            (_, None) => None,
            (None, Some(_)) => return false,
        };
        if self.live() + self.held >= self.table.capacity() {
            return false;
        }
        let Ok(at) = self.table.resume(hash, &record.key, decision, record.from) else { return false };
        if let Decision::Pinned(number) = decision {
            self.decided.joined(number);
            self.recollect(&record.key, number, record.from.last);
        }
        if let Some(values) = &mut self.values {
            values.set_row(at, record.kept, 0);
        }
        if let (Some(nat), Some(place)) = (&mut self.nat, place) {
            nat.attach(at, place);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::FlowKey;

    fn record(binding: Option<Binding>, entry: Option<u32>) -> Record<'static> {
        let state = FlowState::TcpHalfClosed;
        let from = Resumed { first: 5, last: 0xffff_fff0, state, seq: 0xfe, heard: 4 };
        Record { key: FlowKey([1, 2, 3, 4, u64::MAX]), entry, from, binding, kept: &[7, 8, 9] }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let v4 = Some(("192.0.2.1".parse().unwrap(), 65_535));
        let v6 = Some(("2001:db8::1".parse().unwrap(), 1));
        for record in [record(None, None), record(v4, Some(0)), record(v6, Some(u32::MAX - 1))] {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            assert_eq!(bytes.len(), HEAD + 3);
            assert_eq!(Record::read(&bytes), Some(record));
        }
    }

    #[test]
    fn a_record_with_an_unknown_state_or_family_or_cut_short_is_none() {
        let mut bytes = Vec::new();
        record(Some(("192.0.2.1".parse().unwrap(), 9)), Some(1)).write(&mut bytes);
        assert!(Record::read(&bytes[..HEAD - 1]).is_none());
        // Offset, value: a state, a family, and an address that is not IPv4.
        for (at, wrong) in [(52, 7), (53, 5), (60, 0)] {
            let mut wrongly = bytes.clone();
            wrongly[at] = wrong;
            assert!(Record::read(&wrongly).is_none(), "byte {at}");
        }
    }
}
