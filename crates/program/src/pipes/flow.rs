//! FLOW: exact match on the flow key; packets write the entries, following the pipe's own entries.

use super::targets;
use super::{Timeouts, Type};
use crate::check::{Finding, FindingKind, nat};
use crate::{
    Entry, EntryMatch, Fill, GroupChoice, GroupId, KeyUse, Operation, OwnedBy, Pipe, PipeKind, Program,
};
use weir_packet::{Field, KeySource};

pub const TYPE: Type =
    Type { word: "flow", criteria: &[], matches: "a value; its key is the flow key", priorities: false };

pub const BLANK: PipeKind = PipeKind::Flow {
    key: KeySource::Outer,
    learn: Learn::Nothing,
    timeouts: Timeouts::NEVER,
    first: false,
    reverse: false,
};

/// Default capacity for flows.
pub const FLOWS: usize = 65_536;

/// The decision that the first packet of a flow writes into a FLOW pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learn {
    /// Nothing: only entries that were configured or added at run time hit.
    Nothing,
    /// A reference to the pipe's default entry ([`crate::EntryMatch::Default`]): flows are counted
    /// and tracked.
    Default,
    /// The target given by the group's buckets: the flow is pinned to it, whatever happens to the buckets.
    Pin(GroupChoice),
    /// The group: the flow follows its buckets. If metadata chooses the group, it does so for each packet.
    Follow(GroupChoice),
}

impl Learn {
    /// Returns the group from which flows are learnt.
    #[must_use]
    pub fn group(self) -> Option<GroupChoice> {
        match self {
            Learn::Pin(group) | Learn::Follow(group) => Some(group),
            Learn::Nothing | Learn::Default => None,
        }
    }

    /// Returns the same without the number of its group, which differs between programs.
    pub fn unnumbered(self) -> Learn {
        match self {
            Learn::Pin(group) => Learn::Pin(group.unnumbered()),
            Learn::Follow(group) => Learn::Follow(group.unnumbered()),
            Learn::Nothing | Learn::Default => self,
        }
    }

    /// Returns how the pipe's flow keys and hashes are used.
    pub(super) fn key_use(self, timeouts: Timeouts) -> KeyUse {
        let flags = timeouts.are_by_state();
        let (select, select_some) = (matches!(self, Learn::Follow(_)), matches!(self, Learn::Pin(_)));
        KeyUse { table: true, select, select_some, flags, ..KeyUse::default() }
    }
}

/// Checks that the groups to learn from exist, that their buckets do not move with time, and that the key of
/// answers can be derived from the action.
pub fn check(program: &Program, pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    let PipeKind::Flow { key, learn, reverse, .. } = pipe.kind else { return };
    if reverse {
        answers(pipe, key, learn, kinds);
    }
    if pipe.owner == OwnedBy::Client && !(reverse && matches!(learn, Learn::Pin(GroupChoice::ByMeta(_)))) {
        let why = "needs `learn: { pin: { by: meta.N }, reverse: true }`: a packet for which metadata \
            selects no group comes from the answering end";
        kinds.push(FindingKind::OwnerClient { why });
    }
    let Some(choice) = learn.group() else { return };
    targets::check(program, choice, kinds);
    let is_chosen = |id: &GroupId| choice.one().is_some() || targets::is_entered(pipe, *id);
    let given = targets::groups(program, choice)
        .filter(|id| program.groups[id.index()].fill == Fill::Given)
        .filter(is_chosen)
        .map(|id| &program.groups[id.index()]);
    kinds.extend(given.map(|group| FindingKind::LearnGiven { group: group.name.clone() }));
}

fn answers(pipe: &Pipe, key: KeySource, learn: Learn, kinds: &mut Vec<FindingKind>) {
    let mut refuse = |why| kinds.push(FindingKind::Reverse { why });
    if key != KeySource::Outer {
        refuse("needs `key: outer`");
    }
    if !matches!(learn, Learn::Pin(_)) {
        refuse("wants `pin`");
    }
    let operations = pipe.templates.iter().flat_map(|template| &template.operations);
    let computed = |one: &&Operation| matches!(one, Operation::Add(..) | Operation::Copy { .. });
    if operations.filter(computed).filter_map(Operation::writes).any(is_of_key) {
        refuse("needs addresses and ports to be `set`, not copied or added to");
    }
}

/// Whether the action of an entry sets the source address or the source port.
fn sets_source(pipe: &Pipe, entry: &Entry) -> bool {
    const SOURCES: [Field; 5] =
        [Field::Ipv4Src, Field::Ipv6Src, Field::L4Sport, Field::TcpSport, Field::UdpSport];
    let template = pipe.templates.get(usize::from(entry.template));
    let operations = template.into_iter().flat_map(|template| &template.operations);
    operations.filter_map(Operation::writes).any(|field| SOURCES.contains(&field))
}

/// Whether a field is part of the flow key.
fn is_of_key(field: Field) -> bool {
    const PARTS: [Field; 10] = [
        Field::Ipv4Src,
        Field::Ipv4Dst,
        Field::Ipv6Src,
        Field::Ipv6Dst,
        Field::L4Sport,
        Field::L4Dport,
        Field::TcpSport,
        Field::TcpDport,
        Field::UdpSport,
        Field::UdpDport,
    ];
    PARTS.contains(&field)
}

/// Checks that an entry is a flow, the default for new flows, or a target that they learn.
pub fn fit(program: &Program, learn: Learn, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    nat::fit(pipe, entry, kinds);
    if pipe.owner == OwnedBy::Client && entry.matches != [EntryMatch::Default] && sets_source(pipe, entry) {
        let why = "computes the worker from the end that opens flows: only the `default` entry, which \
            answers get, may set source address and port";
        kinds.push(FindingKind::OwnerClient { why });
    }
    if let [EntryMatch::Flow(_) | EntryMatch::Default] = entry.matches.as_slice() {
        return;
    }
    let group = learn.group();
    let wanted = if group.is_some() { "a flow, a target, or `default`" } else { "a flow, or `default`" };
    targets::fit(program, group, pipe, entry, ("the row of a FLOW pipe", wanted), kinds);
}

/// Checks that there is an entry for everything that flows may learn.
pub fn all_there(program: &Program, pipe: &Pipe, learn: Learn, findings: &mut Vec<Finding>) {
    match learn {
        Learn::Pin(group) | Learn::Follow(group) => {
            targets::all_there(program, pipe, group, findings);
            let reverse = matches!(pipe.kind, PipeKind::Flow { reverse: true, .. });
            if reverse && !pipe.entries.iter().any(|entry| entry.matches == [EntryMatch::Default]) {
                let why = "needs the entry that answers get: one with `match: default`";
                findings.push(Finding::new(pipe.origin, FindingKind::Reverse { why }));
            }
        }
        Learn::Default if !pipe.entries.iter().any(|entry| entry.matches == [EntryMatch::Default]) => {
            findings.push(Finding::new(pipe.origin, FindingKind::NoDefaultEntry));
        }
        Learn::Default | Learn::Nothing => {}
    }
}
