//! Pipes: the flows of their entries and of their miss.

use crate::actions;
use crate::flow_match::{FlowMatch, Matches, with_field, with_ip, with_layers_of};
use crate::groups::{Hashed, weights};
use crate::{Compiler, Part, PipeTable, RefusedPart, Why};
use weir_packet::{Field, Layer};
use weir_program::{
    Criterion, Entry, EntryMatch, Forward, Group, GroupChoice, HashInput, Operation, Pipe, PipeId, PipeKind,
};

/// The most flows of one entry.
const FLOWS_MAX: usize = 4096;

/// The most priorities of a table: from 1 to 65534.
const PRIORITIES_MAX: usize = 65_534;

/// A flow before its priority is known: of the highest rank first, and within a rank of the highest level.
struct Draft {
    rank: usize,
    level: u8,
    matches: FlowMatch,
    actions: String,
}

/// Of a rank's packets, those to which the action applies, and of these the ones with IP, come first.
const APPLICABLE: u8 = 2;
const IP: u8 = 1;

/// How a packet leaves an action: as an action, or as an instruction that ends the flow.
enum Leave {
    Actions(Vec<String>),
    Drop,
    /// By a group, which hashes IP and other packets differently.
    Select {
        ip: u32,
        other: Option<u32>,
    },
}

impl Compiler<'_> {
    /// Compiles a pipe that frames can reach.
    pub(crate) fn pipe(&mut self, id: PipeId) {
        let (program, before) = (self.program, self.compiled.flows.len());
        let pipe = &program.pipes[id.index()];
        let table = self.table(id);
        if let Some(why) = why_not(pipe, self.tags[id.index()]) {
            self.refuse(Part::Pipe(id), pipe.origin, why);
            return;
        }
        let mut drafts = Vec::new();
        match &pipe.kind {
            PipeKind::Hash { input, group } => match self.hash(id, input, *group) {
                Ok(made) => drafts.extend(made),
                Err(refused) => self.compiled.refusals.push(refused),
            },
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl | PipeKind::Flow { .. } => {
                let entries: Vec<Entry> = pipe.entries.iter().collect();
                let ranks = ranks(pipe, &entries);
                for (at, (entry, rank)) in entries.iter().zip(ranks).enumerate() {
                    match self.entry(id, entry, rank) {
                        Ok(made) => drafts.extend(made),
                        Err(why) => self.refuse(Part::Entry(id, at), entry.origin, why),
                    }
                }
            }
        }
        let mut ranks: Vec<(usize, u8)> = drafts.iter().map(|draft| (draft.rank, draft.level)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        if ranks.len() + usize::from(APPLICABLE) > PRIORITIES_MAX {
            self.refuse(Part::Pipe(id), pipe.origin, Why::Priorities);
            return;
        }
        // A miss that picks from a group by other fields for IP has priority 1, too.
        let first = usize::from(APPLICABLE);
        drafts.sort_by_key(|draft| std::cmp::Reverse((draft.rank, draft.level)));
        for Draft { rank, level, matches, actions } in drafts {
            let at = ranks.binary_search(&(rank, level)).unwrap_or_default();
            self.flow(table, (first + at) as u16, &matches, actions);
        }
        match self.flows(id, vec![FlowMatch::default()], (&[], &[]), pipe.miss, 0) {
            Ok(misses) => {
                for Draft { level, matches, actions, .. } in misses {
                    self.flow(table, u16::from(level & IP), &matches, actions);
                }
            }
            Err(why) => self.refuse(Part::Miss(id), pipe.origin, why),
        }
        let flows = self.compiled.flows.len() - before;
        self.compiled.tables.push(PipeTable { pipe: id, table, flows });
    }

    /// The flows of an entry.
    fn entry(&mut self, id: PipeId, entry: &Entry, rank: usize) -> Result<Vec<Draft>, Why> {
        let pipe = &self.program.pipes[id.index()];
        let matches = entry_matches(pipe, entry)?;
        let template = &pipe.templates[usize::from(entry.template)];
        let forward = forward_of(pipe, entry);
        self.flows(id, matches, (&template.operations, &entry.values), forward, rank)
    }

    /// The flows that apply operations, with an entry's values, to packets and forward them; packets to which
    /// the operations do not apply are dropped.
    fn flows(
        &mut self,
        id: PipeId,
        matches: Matches,
        (operations, values): (&[Operation], &[u128]),
        forward: Forward,
        rank: usize,
    ) -> Result<Vec<Draft>, Why> {
        let applicable = actions::applicable(matches.clone(), operations, self.tags[id.index()])?;
        let way = self.way(id, forward)?;
        let mut drafts = Vec::new();
        if applicable != matches {
            let drop = |matches| Draft { rank, level: 0, matches, actions: "drop".into() };
            drafts.extend(matches.into_iter().map(drop));
        }
        for one in applicable {
            let written = actions::text(operations, values, one.protocol())?;
            match &way {
                Leave::Drop => {
                    drafts.push(Draft { rank, level: APPLICABLE, matches: one, actions: "drop".into() });
                }
                Leave::Actions(last) => {
                    let actions = [&written[..], last].concat().join(",");
                    drafts.push(Draft { rank, level: APPLICABLE, matches: one, actions });
                }
                Leave::Select { ip, other } => {
                    for (level, matches, is_ip) in hashed_alike(one, other.is_some()) {
                        let group = if is_ip { *ip } else { other.unwrap_or(*ip) };
                        let actions = [&written[..], &[format!("group:{group}")]].concat().join(",");
                        drafts.push(Draft { rank, level, matches, actions });
                    }
                }
            }
        }
        Ok(drafts)
    }

    /// Where packets of a pipe go.
    fn way(&mut self, id: PipeId, forward: Forward) -> Result<Leave, Why> {
        match forward {
            Forward::Pipe(next) => Ok(Leave::Actions(vec![format!("goto_table:{}", self.table(next))])),
            Forward::Group(group) => {
                let group = &self.program.groups[group.index()];
                let weights = weights(group)?;
                let mut buckets = Vec::new();
                for (target, weight) in group.targets.iter().zip(weights) {
                    if weight > 0 {
                        buckets.push((
                            weight,
                            self.bucket(id, &FlowMatch::default(), Vec::new(), target.forward)?,
                        ));
                    }
                }
                if buckets.is_empty() {
                    return Ok(Leave::Drop);
                }
                let hashed = Hashed::select(group);
                let ip = self.group(&hashed.ip, &buckets);
                Ok(Leave::Select { ip, other: hashed.other.map(|fields| self.group(&fields, &buckets)) })
            }
            other => match self.outputs(id, other)? {
                none if none.is_empty() => Ok(Leave::Drop),
                outputs => Ok(Leave::Actions(outputs)),
            },
        }
    }

    /// The actions of a bucket.
    fn bucket(
        &mut self,
        id: PipeId,
        packets: &FlowMatch,
        operations: Vec<String>,
        forward: Forward,
    ) -> Result<String, Why> {
        let last = match forward {
            // A bucket has no instructions.
            Forward::Pipe(next) => vec![format!("resubmit(,{})", self.table(next))],
            other => self.outputs(id, other)?,
        };
        if last.is_empty() {
            return Ok("drop".into());
        }
        Ok(self.bucket_of(packets, &[operations, last].concat()))
    }

    /// The actions that send packets out; none drop them.
    fn outputs(&self, id: PipeId, forward: Forward) -> Result<Vec<String>, Why> {
        let program = self.program;
        let inputs = &self.inputs[id.index()];
        let mut ports = Vec::new();
        match forward {
            Forward::Port(port) => ports.push(port),
            Forward::Flood(group) => {
                let targets = program.groups[group.index()].targets.iter().filter(|target| target.weight > 0);
                weights(&program.groups[group.index()])?;
                for target in targets {
                    if let Forward::Port(port) = target.forward {
                        ports.push(port);
                    }
                }
                ports.sort_unstable();
                ports.dedup();
            }
            Forward::InputPort => return Ok(vec!["IN_PORT".into()]),
            Forward::Kernel if self.options.kernel_is_normal => return Ok(vec!["NORMAL".into()]),
            Forward::Kernel => return Err(Why::Kernel),
            Forward::App(_) | Forward::Tee { .. } => return Err(Why::App),
            Forward::Drop => {}
            // Resolved by the callers.
            Forward::PerEntry | Forward::Pipe(_) | Forward::Group(_) => return Err(Why::Fill),
        }
        let mut actions = Vec::new();
        if ports.iter().any(|port| inputs.contains(port)) {
            // Open vSwitch does not send a packet out of the port that it believes to be the input.
            actions.push("load:0->NXM_OF_IN_PORT[]".to_string());
        }
        actions.extend(ports.iter().map(|port| format!("output:\"{}\"", self.options.ports[port.index()])));
        Ok(actions)
    }

    /// The flows of a HASH pipe: they lead to a group whose buckets have the actions of targets.
    fn hash(
        &mut self,
        id: PipeId,
        input: &HashInput,
        choice: GroupChoice,
    ) -> Result<Vec<Draft>, RefusedPart> {
        let pipe = &self.program.pipes[id.index()];
        let whole = |why| RefusedPart { part: Part::Pipe(id), origin: pipe.origin, why };
        let GroupChoice::One(group) = choice else { return Err(whole(Why::Chosen)) };
        let group: &Group = &self.program.groups[group.index()];
        let hashed = Hashed::of(input, group).map_err(whole)?;
        let matches = hashed_matches(pipe, input).map_err(whole)?;
        let entries: Vec<Entry> = pipe.entries.iter().collect();
        let rows = rows(group, &entries).map_err(whole)?;
        let drop = |matches| Draft { rank: 0, level: 0, matches, actions: "drop".to_string() };
        let tags = self.tags[id.index()];
        let Some(applicable) = applicable_to_all((id, tags), pipe, &entries, &rows, &matches)? else {
            return Ok(matches.into_iter().map(drop).collect());
        };
        let mut drafts = Vec::new();
        if applicable != matches {
            drafts.extend(matches.into_iter().map(drop));
        }
        for one in applicable {
            let buckets = self.buckets(id, &entries, &rows, &one)?;
            for (level, matches, is_ip) in hashed_alike(one, hashed.other.is_some()) {
                let fields = hashed.other.as_ref().filter(|_| !is_ip).unwrap_or(&hashed.ip);
                let actions = format!("group:{}", self.group(fields, &buckets));
                drafts.push(Draft { rank: 0, level, matches, actions });
            }
        }
        Ok(drafts)
    }

    /// The buckets of a HASH pipe, for packets with the headers that their actions need.
    fn buckets(
        &mut self,
        id: PipeId,
        entries: &[Entry],
        rows: &[TargetRow],
        packets: &FlowMatch,
    ) -> Result<Vec<(u32, String)>, RefusedPart> {
        let pipe = &self.program.pipes[id.index()];
        let mut buckets = Vec::new();
        for TargetRow { weight, entry } in rows {
            let actions = match entry {
                None => "drop".into(),
                Some(at) => {
                    let entry = &entries[*at];
                    let operations = &pipe.templates[usize::from(entry.template)].operations;
                    actions::text(operations, &entry.values, packets.protocol())
                        .and_then(|written| self.target(id, packets, written, forward_of(pipe, entry)))
                        .map_err(|why| of_entry(id, *at, entry, why))?
                }
            };
            buckets.push((*weight, actions));
        }
        Ok(buckets)
    }

    /// The actions of a target's bucket, whose entry may forward by another group.
    fn target(
        &mut self,
        id: PipeId,
        packets: &FlowMatch,
        operations: Vec<String>,
        forward: Forward,
    ) -> Result<String, Why> {
        if matches!(forward, Forward::Group(_)) {
            return Err(Why::TargetsDiffer);
        }
        self.bucket(id, packets, operations, forward)
    }
}

/// A target of a HASH pipe: its weight, and its entry, if there is one.
struct TargetRow {
    weight: u32,
    entry: Option<usize>,
}

/// The targets that get packets.
fn rows(group: &Group, entries: &[Entry]) -> Result<Vec<TargetRow>, Why> {
    let mut rows = Vec::new();
    for (number, weight) in (0..).zip(weights(group)?).filter(|(_, weight)| *weight > 0) {
        let entry = entries.iter().position(|one| one.matches == [EntryMatch::Target(number)]);
        if entry.is_none() && group.no_target.is_some() {
            return Err(Why::NoTarget);
        }
        rows.push(TargetRow { weight, entry });
    }
    Ok(rows)
}

/// The packets of a HASH pipe that have all that it hashes.
fn hashed_matches(pipe: &Pipe, input: &HashInput) -> Result<Matches, Why> {
    let mut matches = matches_of(pipe, &[])?;
    if let HashInput::Fields(fields) = input {
        for (field, _) in fields {
            matches = with_layers_of(matches, *field)?;
        }
    }
    Ok(matches)
}

/// The packets to which the operations of every target apply; `None` if no target has an entry. A group
/// cannot drop packets to which those of only some targets apply.
fn applicable_to_all(
    (id, tags): (PipeId, i32),
    pipe: &Pipe,
    entries: &[Entry],
    rows: &[TargetRow],
    matches: &Matches,
) -> Result<Option<Matches>, RefusedPart> {
    let mut common: Option<Matches> = None;
    for at in rows.iter().filter_map(|row| row.entry) {
        let operations = &pipe.templates[usize::from(entries[at].template)].operations;
        let refused = |why| of_entry(id, at, &entries[at], why);
        let applicable = actions::applicable(matches.clone(), operations, tags).map_err(refused)?;
        match &common {
            Some(common) if *common != applicable => return Err(refused(Why::TargetsDiffer)),
            Some(_) => {}
            None => common = Some(applicable),
        }
    }
    Ok(common)
}

fn of_entry(id: PipeId, at: usize, entry: &Entry, why: Why) -> RefusedPart {
    RefusedPart { part: Part::Entry(id, at), origin: entry.origin, why }
}

/// Divides packets by what a group hashes, which may differ for IP: level, packets, and whether they are
/// hashed as IP.
fn hashed_alike(packets: FlowMatch, differs: bool) -> Vec<(u8, FlowMatch, bool)> {
    match (packets.is_ip(), differs) {
        (Some(true), _) | (_, false) => vec![(APPLICABLE, packets, true)],
        (Some(false), true) => vec![(APPLICABLE, packets, false)],
        (None, true) => {
            let ip = with_ip(vec![packets.clone()]).into_iter().map(|one| (APPLICABLE | IP, one, true));
            ip.chain([(APPLICABLE, packets, false)]).collect()
        }
    }
}

/// Where an entry's packets go.
fn forward_of(pipe: &Pipe, entry: &Entry) -> Forward {
    if pipe.forward == Forward::PerEntry { entry.forward.unwrap_or_default() } else { pipe.forward }
}

/// Why a pipe cannot be expressed, whatever its entries. `tags` is how many were pushed, less those popped,
/// in front of it.
fn why_not(pipe: &Pipe, tags: i32) -> Option<Why> {
    if tags < 0 && pipe.matches.iter().any(|one| one.field.spec().needs.has(Layer::Vlan)) {
        return Some(Why::SecondTag);
    }
    match pipe.kind {
        PipeKind::Flow { .. } => return Some(Why::Flows),
        PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl | PipeKind::Hash { .. } => {}
    }
    if pipe.monitor.meter.is_some() {
        return Some(Why::Meter);
    }
    pipe.monitor.measured.map(|_| Why::Measured)
}

/// The rank of each entry; the highest wins.
fn ranks(pipe: &Pipe, entries: &[Entry]) -> Vec<usize> {
    match pipe.kind {
        PipeKind::Acl => {
            let mut order: Vec<usize> = (0..entries.len()).collect();
            order.sort_by_key(|at| entries[*at].priority);
            let mut ranks = vec![0; entries.len()];
            order.into_iter().rev().enumerate().for_each(|(rank, at)| ranks[at] = rank);
            ranks
        }
        PipeKind::Lpm => {
            let length = |one: &EntryMatch| match one {
                EntryMatch::Prefix { length, .. } => usize::from(*length),
                _ => 0,
            };
            entries.iter().map(|entry| entry.matches.iter().map(length).sum()).collect()
        }
        // No packet matches two entries.
        PipeKind::Basic | PipeKind::Hash { .. } | PipeKind::Flow { .. } => vec![0; entries.len()],
    }
}

/// The packets that an entry matches.
fn entry_matches(pipe: &Pipe, entry: &Entry) -> Result<Matches, Why> {
    matches_of(pipe, &entry.matches)
}

/// The packets that match a pipe's constants and these matches of an entry.
fn matches_of(pipe: &Pipe, own: &[EntryMatch]) -> Result<Matches, Why> {
    let mut own = own.iter();
    let mut parts: Vec<(Field, Vec<(u128, u128)>)> = Vec::new();
    for one in &pipe.matches {
        let field = one.field;
        let wanted = match one.criterion {
            Criterion::Const { value, mask } => vec![(value, mask)],
            Criterion::PerEntry { .. } | Criterion::Prefix | Criterion::Masked | Criterion::Range => {
                match (one.criterion, own.next()) {
                    (Criterion::PerEntry { mask }, Some(EntryMatch::Value(value))) => vec![(*value, mask)],
                    (_, Some(EntryMatch::Prefix { value, length })) => {
                        vec![(*value, leading(field, *length))]
                    }
                    (_, Some(EntryMatch::Masked { value, mask })) => vec![(*value, *mask)],
                    (_, Some(EntryMatch::Range { first, last })) => ranges(*first, *last),
                    (_, Some(EntryMatch::Any)) => continue,
                    _ => return Err(Why::Match(field)),
                }
            }
        };
        parts.push((field, wanted));
    }
    // Whether a packet is a fragment can be said once it is known to be IP.
    parts.sort_by_key(|(field, _)| *field == Field::IpFragment);
    let mut matches = vec![FlowMatch::default()];
    for (field, wanted) in parts {
        let mut narrower = Vec::new();
        for (value, mask) in wanted {
            narrower.extend(with_field(matches.clone(), field, value, mask)?);
            if narrower.len() > FLOWS_MAX {
                return Err(Why::TooManyFlows);
            }
        }
        matches = narrower;
    }
    crate::flow_match::understood(matches)
}

/// The mask of the first bits of a field.
fn leading(field: Field, length: u8) -> u128 {
    let rest = u32::from(field.spec().bits) - u32::from(length).min(u32::from(field.spec().bits));
    field.max() & u128::MAX.checked_shl(rest).unwrap_or_default()
}

/// The fewest masked values that make up a range.
fn ranges(first: u16, last: u16) -> Vec<(u128, u128)> {
    let (mut at, last) = (u32::from(first), u32::from(last));
    let mut parts = Vec::new();
    while at <= last {
        let mut size = if at == 0 { 1 << 16 } else { 1_u32 << at.trailing_zeros() };
        while at + size - 1 > last {
            size >>= 1;
        }
        parts.push((u128::from(at), u128::from(0xffff & !(size - 1))));
        at += size;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn a_range_is_made_of_masked_values_that_hold_each_of_its_ports_once() {
        for (first, last) in [(0, 65_535), (1, 65_534), (80, 80), (1000, 1999), (0, 1), (65_535, 65_535)] {
            let parts = ranges(first, last);
            assert!(parts.len() <= 30, "{first}-{last}");
            for port in 0..=65_535 {
                let hits = parts.iter().filter(|(value, mask)| u128::from(port) & mask == *value).count();
                assert_eq!(hits, usize::from((first..=last).contains(&port)), "{first}-{last}: {port}");
            }
        }
    }
}
