//! Which part of a received frame determines the worker it belongs to.
//!
//! Every FLOW pipe names the part of its key that assigns a flow to a worker (`owner`). A frame is handed to
//! that worker on reception, so that part of the key must reach the pipe unchanged: on the way to the pipe, a
//! `rehash` may have computed the key from other bytes. This analysis follows the paths of the program,
//! tracks what is known about the two levels of headers, and asks each FLOW pipe for its part. All FLOW pipes
//! that a frame can meet must agree, because otherwise one frame belongs to two workers.

use super::finding::{Finding, FindingKind};
use super::shape::{Shape, next_pipes};
use super::uses::Uses;
use crate::owner::{Ahead, OwnedBy, Owner, Owning};
use crate::{Forward, Operation, Pipe, PipeId, PipeKind, Program, Template};
use std::collections::BTreeSet;
use weir_packet::{FieldKind, KeySource, LevelId};

/// Maximum number of distinct states of knowledge tracked per pipe; with more, nothing is assumed to be known
/// there.
const KNOWN_MAX: usize = 256;

/// Parts of a key that actions change.
const SRC: u8 = 1;
const DST: u8 = 2;
const PORTS: u8 = 4;

/// The origin of the headers at a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LevelHeader {
    /// The headers that were received at this level, apart from the parts that were changed.
    Received(KeySource, u8),
    Other,
}

/// The knowledge on a path about the current bytes, and about the flow keys, which are older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PathState {
    bytes: [LevelHeader; 2],
    keys: [LevelHeader; 2],
}

impl LevelHeader {
    fn changed(self, parts: u8) -> LevelHeader {
        match self {
            LevelHeader::Received(source, before) => LevelHeader::Received(source, before | parts),
            LevelHeader::Other => LevelHeader::Other,
        }
    }
}

impl PathState {
    const RECEIVED: PathState = {
        let received =
            [LevelHeader::Received(KeySource::Outer, 0), LevelHeader::Received(KeySource::Inner, 0)];
        PathState { bytes: received, keys: received }
    };
    const NOTHING: PathState = PathState { bytes: [LevelHeader::Other; 2], keys: [LevelHeader::Other; 2] };

    fn after(mut self, operation: &Operation) -> PathState {
        match operation {
            Operation::Decap(_) => self.bytes = [self.bytes[1], LevelHeader::Other],
            // A frame that was not an IP packet may be one now.
            Operation::Encap(_) | Operation::PopVlan => self.bytes = [LevelHeader::Other; 2],
            other => {
                let Some((level, parts)) = changed(other) else { return self };
                self.bytes[level] = self.bytes[level].changed(parts);
                // Without a tunnel, the inner key is that of the outer headers; and a changed port may denote
                // a tunnel.
                if level == 0 {
                    self.bytes[1] =
                        if parts == PORTS { LevelHeader::Other } else { self.bytes[1].changed(parts) };
                }
            }
        }
        self
    }

    fn through(self, template: &Template, rehash: bool) -> PathState {
        let known = template.operations.iter().fold(self, PathState::after);
        if rehash { PathState { keys: known.bytes, ..known } } else { known }
    }
}

/// The parts of a key that the worker is computed from.
fn parts(by: OwnedBy) -> u8 {
    match by {
        OwnedBy::Both | OwnedBy::Client => SRC | DST | PORTS,
        OwnedBy::Addresses => SRC | DST,
        OwnedBy::Src => SRC,
        OwnedBy::Dst => DST,
    }
}

/// Returns, for each port, how the workers of arriving frames are found, or `None` where frames meet no FLOW
/// pipe; and the findings that make this impossible, which matter only with several workers.
#[must_use]
pub fn owners(program: &Program) -> (Vec<Option<Owning>>, Vec<Finding>) {
    let uses: Vec<Uses> = program.pipes.iter().map(|pipe| Uses::of(&pipe.entries)).collect();
    owners_of(program, &Shape::of(program), &uses.iter().collect::<Vec<_>>())
}

/// The same for a program whose entries are given as uses.
pub fn owners_of(program: &Program, shape: &Shape, uses: &[&Uses]) -> (Vec<Option<Owning>>, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut known: Vec<(PipeId, Option<Owning>)> = Vec::new();
    let owners = program.ports.iter().map(|port| {
        let root = port.root.filter(|root| root.index() < program.pipes.len())?;
        if let Some((_, owner)) = known.iter().find(|(one, _)| *one == root) {
            return owner.clone();
        }
        let met = flows_from(program, shape, uses, root, &mut findings);
        let owner = owning(program, shape, uses, (root, &met), &mut findings);
        known.push((root, owner.clone()));
        owner
    });
    (owners.collect(), findings)
}

/// Returns how to find the worker that a frame belongs to, for frames that begin at a pipe and can meet the
/// given FLOW pipes.
fn owning(
    program: &Program,
    shape: &Shape,
    uses: &[&Uses],
    (root, met): (PipeId, &[(PipeId, Owner)]),
    findings: &mut Vec<Finding>,
) -> Option<Owning> {
    let &(other, first) = met.first()?;
    let name = |id: PipeId| program.pipes[id.index()].name.clone();
    let agree = met.iter().all(|(_, owner)| *owner == first);
    if agree && first.by != OwnedBy::Client {
        return Some(Owning::Same(first));
    }
    let hidden = match ahead(program, shape, uses, (root, met)) {
        Ok(pipes) => return Some(Owning::Ahead(pipes)),
        Err(hidden) => hidden,
    };
    for &(pipe, owner) in met {
        let kind = match owner.by {
            OwnedBy::Client => FindingKind::OwnerHidden { pipe: name(pipe), by: name(hidden) },
            _ if owner == first => continue,
            _ => FindingKind::TwoOwners {
                pipe: name(pipe),
                by: said(owner),
                other: name(other),
                other_by: said(first),
            },
        };
        findings.push(Finding::new(program.pipes[pipe.index()].origin, kind));
    }
    Some(Owning::Same(first))
}

/// Returns the pipes that a worker looks through to find which FLOW pipe a frame meets first, and the FLOW
/// pipes with what they require, in order; or the pipe that makes it impossible to know this in advance.
fn ahead(
    program: &Program,
    shape: &Shape,
    uses: &[&Uses],
    (root, met): (PipeId, &[(PipeId, Owner)]),
) -> Result<Ahead, PipeId> {
    let is_flow = |id: PipeId| matches!(program.pipes[id.index()].kind, PipeKind::Flow { .. });
    let received = BTreeSet::from([PathState::RECEIVED]);
    let next = |id: PipeId| onward(program, &program.pipes[id.index()], uses[id.index()], &received);
    let mut leads = vec![false; program.pipes.len()];
    for &at in shape.order.iter().rev() {
        leads[at.index()] = is_flow(at) || next(at).iter().any(|(to, _)| leads[to.index()]);
    }
    let mut reached = vec![false; program.pipes.len()];
    reached[root.index()] = true;
    let mut pipes = Vec::new();
    for &at in shape.order.iter().filter(|at| leads[at.index()]) {
        if !reached[at.index()] {
            continue;
        }
        let mut all = met.iter().filter(|(pipe, _)| *pipe == at).map(|(_, owner)| *owner);
        let (owner, other) = (all.next(), all.next());
        if other.is_some() {
            return Err(at);
        }
        for (to, _) in next(at) {
            // For a frame that meets two, only the first one would determine the worker.
            if owner.is_some() && leads[to.index()] {
                return Err(at);
            }
            reached[to.index()] = true;
        }
        if owner.is_none() && !leaves_alone(&program.pipes[at.index()], uses[at.index()]) {
            return Err(at);
        }
        pipes.push((at, owner));
    }
    Ok(pipes.into())
}

/// Whether a pipe treats a packet the same way each time and changes nothing but its metadata. Buckets move,
/// and the hashes that pick from them are not computed yet.
fn leaves_alone(pipe: &Pipe, uses: &Uses) -> bool {
    let is_meta = |operation: &Operation| {
        let written = operation.writes().is_some_and(|field| field.meta_word().is_some());
        written && matches!(operation, Operation::Set(..) | Operation::Add(..) | Operation::Copy { .. })
    };
    let mut ways = uses.leads().map(|(forward, _)| forward).chain([pipe.forward, pipe.miss]);
    matches!(pipe.kind, PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl)
        && !ways.any(|forward| matches!(forward, Forward::Group(_)))
        && pipe.monitor.meter.is_none()
        && !pipe.rehash
        && pipe.templates.iter().flat_map(|template| &template.operations).all(is_meta)
}

/// Returns the FLOW pipes that frames beginning at a pipe can meet, with what each requires.
fn flows_from(
    program: &Program,
    shape: &Shape,
    uses: &[&Uses],
    root: PipeId,
    findings: &mut Vec<Finding>,
) -> Vec<(PipeId, Owner)> {
    let mut known = vec![BTreeSet::new(); program.pipes.len()];
    known[root.index()].insert(PathState::RECEIVED);
    let mut met = Vec::new();
    for &at in &shape.order {
        let pipe = &program.pipes[at.index()];
        let states = std::mem::take(&mut known[at.index()]);
        if let PipeKind::Flow { key, .. } = pipe.kind {
            findings.extend(answers_elsewhere(pipe));
            met.extend(wanted(pipe, key, &states, findings).into_iter().map(|owner| (at, owner)));
        }
        for (to, state) in onward(program, pipe, uses[at.index()], &states) {
            let there = &mut known[to.index()];
            if there.len() < KNOWN_MAX {
                there.insert(state);
            } else {
                *there = BTreeSet::from([PathState::NOTHING]);
            }
        }
    }
    met
}

/// Returns what a FLOW pipe requires the worker to be computed from, if all frames agree.
fn wanted(
    pipe: &Pipe,
    key: KeySource,
    states: &BTreeSet<PathState>,
    findings: &mut Vec<Finding>,
) -> BTreeSet<Owner> {
    let mut owners = BTreeSet::new();
    let mut lost = None;
    for state in states {
        match state.keys[usize::from(key == KeySource::Inner)] {
            LevelHeader::Received(source, changed) if changed & parts(pipe.owner) == 0 => {
                owners.insert(Owner { source, by: pipe.owner, nat: pipe.nat });
            }
            LevelHeader::Received(_, changed) => lost = lost.max(Some(changed)),
            LevelHeader::Other => lost = lost.max(Some(u8::MAX)),
        }
    }
    if let Some(changed) = lost {
        let by = OwnedBy::WORDS.into_iter().rev().find(|(_, by)| changed & parts(*by) == 0);
        let instead = match by {
            Some((word, _)) => format!(
                "write `owner: {word}`, whose fields stay as received, or use one \
                worker"
            ),
            None => "use one worker".to_string(),
        };
        let kind = FindingKind::OwnerChanged { pipe: pipe.name.clone(), by: pipe.owner.word(), instead };
        findings.push(Finding::new(pipe.origin, kind));
    }
    owners
}

/// Reports that the answers to a flow may belong to another worker than the flow with which they are learnt:
/// this happens if the worker is computed from one direction, or from what the pipe's actions set.
fn answers_elsewhere(pipe: &Pipe) -> Option<Finding> {
    let PipeKind::Flow { reverse: true, .. } = pipe.kind else { return None };
    // Then the owner follows from their destination, or from the end that the actions leave alone.
    if pipe.nat.is_some() || pipe.owner == OwnedBy::Client {
        return None;
    }
    let operations = pipe.templates.iter().flat_map(|template| &template.operations);
    let rewritten = operations.filter_map(changed).filter(|(level, _)| *level == 0);
    let rewritten = rewritten.fold(0, |all, (_, parts)| all | parts);
    let one_way = matches!(pipe.owner, OwnedBy::Src | OwnedBy::Dst);
    let elsewhere = one_way || rewritten & parts(pipe.owner) != 0;
    elsewhere.then(|| {
        let kind = FindingKind::AnswersElsewhere { pipe: pipe.name.clone(), by: pipe.owner.word() };
        Finding::new(pipe.origin, kind)
    })
}

/// Returns the level and the part of a key that an operation changes.
fn changed(operation: &Operation) -> Option<(usize, u8)> {
    let field = operation.writes()?;
    let parts = match field.kind {
        FieldKind::Ipv4Src | FieldKind::Ipv6Src => SRC,
        FieldKind::Ipv4Dst | FieldKind::Ipv6Dst => DST,
        FieldKind::L4Sport
        | FieldKind::L4Dport
        | FieldKind::TcpSport
        | FieldKind::TcpDport
        | FieldKind::UdpSport
        | FieldKind::UdpDport => PORTS,
        _ => return None,
    };
    Some((usize::from(field.level == LevelId::Inner), parts))
}

fn said(owner: Owner) -> String {
    let level = if owner.source == KeySource::Inner { "inside a tunnel" } else { "outside" };
    let pool = if owner.nat.is_some() { ", with a NAT pool" } else { "" };
    format!("`{}` of the headers {level}{pool}", owner.by.word())
}

/// Returns where packets go from a pipe, with what is known about them there.
fn onward(
    program: &Program,
    pipe: &Pipe,
    uses: &Uses,
    states: &BTreeSet<PathState>,
) -> BTreeSet<(PipeId, PathState)> {
    let mut all = BTreeSet::new();
    let mut lead = |forward: Forward, template: Option<&Template>| {
        for to in next_pipes(program, forward) {
            for state in states {
                let after = template.map_or(*state, |template| state.through(template, pipe.rehash));
                all.insert((to, after));
            }
        }
    };
    lead(pipe.miss, None);
    if pipe.forward == Forward::PerEntry {
        for (forward, template) in uses.leads() {
            if let Some(template) = pipe.templates.get(usize::from(template)) {
                lead(forward, Some(template));
            }
        }
    } else {
        pipe.templates.iter().for_each(|template| lead(pipe.forward, Some(template)));
    }
    all
}
