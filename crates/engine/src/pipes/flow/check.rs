//! Checks of FLOW pipes.

use super::Learn;
use crate::check::{Finding, FindingKind, nat};
use crate::pipes::targets;
use crate::program::{Entry, EntryMatch, Fill, GroupChoice, Operation, OwnedBy, Pipe, PipeKind, Program};
use packet::{Field, KeySource};

/// Checks that the groups to learn from exist, that their buckets do not move with time, and that the key of
/// answers can be told from the action.
pub fn check(program: &Program, pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    let PipeKind::Flow { key, learn, reverse, .. } = pipe.kind else { return };
    if reverse {
        answers(pipe, key, learn, kinds);
    }
    if pipe.owner == OwnedBy::Client && !(reverse && matches!(learn, Learn::Pin(GroupChoice::ByMeta(_)))) {
        let why = "wants `learn: { pin: { by: meta.N }, reverse: true }`: a packet for which metadata \
                   chooses no group comes from the end that answers";
        kinds.push(FindingKind::OwnerClient { why });
    }
    let Some(choice) = learn.group() else { return };
    targets::check(program, choice, kinds);
    let groups = targets::groups(program, choice).map(|id| &program.groups[id.index()]);
    let given = groups.filter(|group| group.fill == Fill::Given);
    kinds.extend(given.map(|group| FindingKind::LearnGiven { group: group.name.clone() }));
}

fn answers(pipe: &Pipe, key: KeySource, learn: Learn, kinds: &mut Vec<FindingKind>) {
    let mut refuse = |why| kinds.push(FindingKind::Reverse { why });
    if key != KeySource::Outer {
        refuse("wants `key: outer`");
    }
    if !matches!(learn, Learn::Pin(_)) {
        refuse("wants `pin`");
    }
    let operations = pipe.templates.iter().flat_map(|template| &template.operations);
    let computed = |one: &&Operation| matches!(one, Operation::Add(..) | Operation::Copy { .. });
    if operations.filter(computed).filter_map(Operation::writes).any(is_of_key) {
        refuse("wants addresses and ports to be `set`, not copied or added to");
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
        let why = "computes the worker from the end that flows begin at: only the `default` entry, which \
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

/// Checks that there are entries for everything that flows learn.
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
