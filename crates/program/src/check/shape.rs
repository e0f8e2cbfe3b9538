//! The graph formed by a program's forwards: its order, its loops, and what holds on every path to a pipe.
//! The graph is kept alongside a running program, because an entry added at run time must not violate any of
//! these properties.

use super::entries::places_of;
use super::finding::{Finding, FindingKind, Severity};
use super::uses::Uses;
use super::{check_entry, check_entry_with};
use crate::change::ChangeError;
use crate::{
    Criterion, Entry, Forward, GroupChoice, GroupId, Operation, Origin, Pipe, PipeId, PortId, Program,
    SharedUse, Template,
};
use std::collections::BTreeSet;
use weir_packet::Field;

/// Properties of a path in front of a pipe: bit N means that `meta.N` is written, [`METERED`] that a meter
/// was passed.
type Facts = u8;
const METERED: Facts = 1 << 4;
const ALL: Facts = METERED | 0xf;

/// The graph of pipes, and what holds on its paths.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Pipes in an order in which forwards only lead onward; those on a loop are missing.
    pub order: Vec<PipeId>,
    /// The position of each pipe in `order`.
    position: Vec<usize>,
    edges: Vec<Vec<Edge>>,
    /// Whether a pipe itself forwards to the kernel.
    to_kernel: Vec<bool>,
    /// The properties that every path to the pipe has.
    facts: Vec<Facts>,
    /// A port without a kernel path whose frames reach the pipe.
    kernelless: Vec<Option<PortId>>,
    reachable: Vec<bool>,
    /// The previous pipe on a shortest path.
    parent: Vec<Option<PipeId>>,
}

/// An edge of the graph: where packets may leave a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    to: PipeId,
    writes: Facts,
}

impl Shape {
    /// Computes the shape of a program. Dangling forwards are ignored; they are reported separately.
    #[must_use]
    pub fn of(program: &Program) -> Shape {
        let uses: Vec<Uses> = program.pipes.iter().map(|pipe| Uses::of(&pipe.entries)).collect();
        let uses: Vec<&Uses> = uses.iter().collect();
        let (edges, to_kernel) = ways(program, &uses);
        let order = order(&edges);
        let mut position = vec![usize::MAX; edges.len()];
        for (at, pipe) in order.iter().enumerate() {
            position[pipe.index()] = at;
        }
        let (facts, kernelless, reachable, parent) = Default::default();
        let mut shape = Shape { order, position, edges, to_kernel, facts, kernelless, reachable, parent };
        shape.begin();
        shape.start(program);
        shape.walk();
        shape
    }

    /// Returns the same shape and order with other entries.
    fn with(&self, program: &Program, uses: &[&Uses]) -> Shape {
        let (edges, to_kernel) = ways(program, uses);
        let mut shape = Shape { edges, to_kernel, ..self.clone() };
        shape.begin();
        shape.start(program);
        shape.walk();
        shape
    }

    /// Forgets all paths.
    fn begin(&mut self) {
        let count = self.edges.len();
        self.facts = vec![ALL; count];
        self.kernelless = vec![None; count];
        self.reachable = vec![false; count];
        self.parent = vec![None; count];
    }

    fn start(&mut self, program: &Program) {
        for (at, port) in program.ports.iter().enumerate() {
            let Some(root) = port.root.filter(|root| root.index() < self.facts.len()) else { continue };
            self.reachable[root.index()] = true;
            self.facts[root.index()] = 0;
            if !port.kernel_path {
                self.kernelless[root.index()].get_or_insert(PortId(at as u16));
            }
        }
    }

    fn walk(&mut self) {
        for at in 0..self.order.len() {
            let from = self.order[at];
            if self.reachable[from.index()] {
                for edge in self.edges[from.index()].clone() {
                    self.step(from, edge);
                }
            }
        }
    }

    fn step(&mut self, from: PipeId, edge: Edge) {
        let (at, to) = (from.index(), edge.to.index());
        if !self.reachable[to] {
            self.parent[to] = Some(from);
        }
        self.reachable[to] = true;
        self.facts[to] &= self.facts[at] | edge.writes;
        self.kernelless[to] = self.kernelless[to].or(self.kernelless[at]);
    }

    /// Checks whether an entry may be added to a running pipe, with the same rules as for configured entries:
    /// it must fit the pipe, and the paths that it opens must be allowed. `uses` are those of the current
    /// entries of each pipe; the program itself may come without entries.
    ///
    /// # Errors
    /// The error says what is wrong with the entry, or what it would break.
    pub fn admits(
        &self,
        program: &Program,
        uses: &[&Uses],
        pipe: PipeId,
        entry: &Entry,
    ) -> Result<(), ChangeError> {
        fits(program, pipe, entry)?;
        let wrong = second_user(program, uses, pipe, entry);
        let wrong = wrong.or_else(|| self.opens(program, uses, pipe, entry));
        wrong.map_or(Ok(()), |why| Err(refusal(program, pipe, &why)))
    }

    /// Returns what is wrong with the paths that an entry opens: from all ports to its pipe, on to where it
    /// leads, and from there through all current entries.
    fn opens(&self, program: &Program, uses: &[&Uses], pipe: PipeId, entry: &Entry) -> Option<FindingKind> {
        let from = &program.pipes[pipe.index()];
        let forward = entry.forward?;
        if uses[pipe.index()].has_lead((forward, entry.template)) {
            return None;
        }
        let edge =
            |to| Edge { to, writes: writes(&from.templates[usize::from(entry.template)]) | metered(from) };
        let ends = ends(program, forward);
        let to: Vec<PipeId> = ends.iter().filter_map(|to| leads_to(program, *to)).collect();
        let name = |pipe: PipeId| program.pipes[pipe.index()].name.clone();
        if let Some(back) = to.iter().find(|to| self.position[to.index()] <= self.position[pipe.index()]) {
            return Some(FindingKind::Loop { path: vec![name(pipe), name(*back)] });
        }
        let now = self.with(program, uses);
        if !now.reachable[pipe.index()] {
            return None;
        }
        if let Some(refused) = now.no_kernel(program, pipe, &from.name).err()
            && ends.contains(&Forward::Kernel)
        {
            return Some(refused);
        }
        // Only the new paths, which begin with what holds on all paths to the pipe.
        let mut new = now.clone();
        new.begin();
        (new.facts[pipe.index()], new.kernelless[pipe.index()]) =
            (now.facts[pipe.index()], now.kernelless[pipe.index()]);
        to.into_iter().for_each(|to| new.step(pipe, edge(to)));
        new.walk();
        (0..new.parent.len()).for_each(|at| new.parent[at] = new.parent[at].or(now.parent[at]));
        let mut findings = Vec::new();
        new.ways_findings(program, &mut findings);
        findings.into_iter().map(|finding| finding.kind).find(|kind| kind.severity() == Severity::Error)
    }

    fn no_kernel(&self, program: &Program, pipe: PipeId, place: &str) -> Result<(), FindingKind> {
        match self.kernelless[pipe.index()] {
            Some(port) => Err(FindingKind::KernelUnavailable {
                place: place.to_string(),
                port: program.ports[port.index()].name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Reports everything wrong with the graph.
    pub(super) fn findings(&self, program: &Program, findings: &mut Vec<Finding>) {
        self.loops(program, findings);
        if program.ports.iter().all(|port| port.root.is_none()) && !program.ports.is_empty() {
            findings.push(Finding::new(program.ports[0].origin, FindingKind::NoRoot));
        }
        self.ways_findings(program, findings);
    }

    /// Reports everything wrong with the paths from the ports, and pipes that no path reaches.
    fn ways_findings(&self, program: &Program, findings: &mut Vec<Finding>) {
        for (at, pipe) in program.pipes.iter().enumerate() {
            if self.position[at] == usize::MAX {
                continue;
            }
            if !self.reachable[at] {
                let unreachable = FindingKind::Unreachable { pipe: pipe.name.clone() };
                findings.push(Finding::new(pipe.origin, unreachable));
                continue;
            }
            if self.to_kernel[at] {
                let refused = self.no_kernel(program, PipeId(at as u16), &pipe.name).err();
                findings.extend(refused.map(|kind| Finding::new(pipe.origin, kind)));
            }
            self.unwritten(program, PipeId(at as u16), findings);
        }
    }

    /// Reports metadata that the pipe reads although not every path has written it, and the colour of a meter
    /// where no path has passed one.
    fn unwritten(&self, program: &Program, id: PipeId, findings: &mut Vec<Finding>) {
        let pipe = &program.pipes[id.index()];
        let mut seen = BTreeSet::new();
        for (field, known, origin) in reads(pipe) {
            let known = known | self.facts[id.index()];
            let path = || self.path(program, id);
            let kind = match field.meta_word() {
                Some(word) if known & (1 << word) == 0 => {
                    FindingKind::MetadataUnwritten { field, path: path() }
                }
                None if field == Field::MeterColor && known & METERED == 0 => {
                    FindingKind::ColorUnmetered { path: path() }
                }
                _ => continue,
            };
            if seen.insert((field, origin.0)) {
                findings.push(Finding::new(origin, kind));
            }
        }
    }

    fn path(&self, program: &Program, pipe: PipeId) -> Vec<String> {
        let mut path = vec![program.pipes[pipe.index()].name.clone()];
        let mut at = pipe;
        while let Some(before) = self.parent[at.index()] {
            path.push(program.pipes[before.index()].name.clone());
            at = before;
        }
        path.reverse();
        path
    }

    /// Reports one finding for each loop, found by following forwards from each pipe without a position in
    /// the order.
    fn loops(&self, program: &Program, findings: &mut Vec<Finding>) {
        let mut visited = vec![false; self.edges.len()];
        for start in (0..self.edges.len()).filter(|&at| self.position[at] == usize::MAX) {
            if visited[start] {
                continue;
            }
            let Some(path) = self.way_back(start) else { continue };
            for &at in &path {
                visited[at] = true;
            }
            let mut names: Vec<String> = path.iter().map(|&at| program.pipes[at].name.clone()).collect();
            names.push(names[0].clone());
            findings.push(Finding::new(program.pipes[start].origin, FindingKind::Loop { path: names }));
        }
    }

    /// Finds a shortest path from a pipe back to itself, breadth first.
    fn way_back(&self, start: usize) -> Option<Vec<usize>> {
        let mut before = vec![usize::MAX; self.edges.len()];
        let mut queue = std::collections::VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for edge in &self.edges[at] {
                let to = edge.to.index();
                if to == start {
                    return Some(trail(&before, start, at));
                }
                if before[to] == usize::MAX {
                    before[to] = at;
                    queue.push_back(to);
                }
            }
        }
        None
    }
}

fn trail(before: &[usize], start: usize, end: usize) -> Vec<usize> {
    let mut path = vec![end];
    let mut at = end;
    while at != start {
        at = before[at];
        path.push(at);
    }
    path.reverse();
    path
}

/// Kahn's algorithm; of several possible orders, the one closest to how the pipes were written.
fn order(edges: &[Vec<Edge>]) -> Vec<PipeId> {
    let mut incoming = vec![0_usize; edges.len()];
    for edge in edges.iter().flatten() {
        incoming[edge.to.index()] += 1;
    }
    let mut ready: BTreeSet<usize> = (0..edges.len()).filter(|&at| incoming[at] == 0).collect();
    let mut order = Vec::new();
    while let Some(at) = ready.pop_first() {
        order.push(PipeId(at as u16));
        for edge in &edges[at] {
            incoming[edge.to.index()] -= 1;
            if incoming[edge.to.index()] == 0 {
                ready.insert(edge.to.index());
            }
        }
    }
    order
}

/// Checks that an entry fits its pipe, regardless of the graph.
///
/// # Errors
/// The error says what is wrong with the entry.
fn fits(program: &Program, pipe: PipeId, entry: &Entry) -> Result<(), ChangeError> {
    if pipe.index() >= program.pipes.len() {
        return Err(ChangeError::Unknown { what: "pipe".to_string() });
    }
    let wrong = check_entry(program, pipe, entry).into_iter().next();
    wrong.map_or(Ok(()), |why| Err(refusal(program, pipe, &why)))
}

/// Calls `enter` with each entry of a pipe that fits it on its own, until one does not fit or is refused.
///
/// # Errors
/// The error has the number of that entry, counted from 0, and the reason.
pub fn all_fit(
    program: &Program,
    pipe: PipeId,
    mut enter: impl FnMut(&Entry) -> Result<(), ChangeError>,
) -> Result<(), (usize, ChangeError)> {
    let written = &program.pipes[pipe.index()];
    let places: Vec<_> = written.templates.iter().map(Template::places).collect();
    let (mut entries, mut number) = (written.entries.cursor(), 0);
    while let Some(entry) = entries.next() {
        let wrong = check_entry_with(program, pipe, entry, places_of(&places, entry)).into_iter().next();
        let entered = wrong.map_or_else(|| enter(entry), |why| Err(refusal(program, pipe, &why)));
        entered.map_err(|why| (number, why))?;
        number += 1;
    }
    Ok(())
}

fn refusal(program: &Program, pipe: PipeId, why: &FindingKind) -> ChangeError {
    ChangeError::Unfit { pipe: program.pipes[pipe.index()].name.clone(), why: why.to_string() }
}

/// Returns a meter's second user (C4): a meter belongs to one pipe.
fn second_user(program: &Program, uses: &[&Uses], pipe: PipeId, entry: &Entry) -> Option<FindingKind> {
    let meter = entry.meter?;
    let users = program.pipes.iter().zip(uses).enumerate().filter(|(at, _)| *at != pipe.index());
    let first = users
        .map(|(_, user)| user)
        .find(|(user, uses)| user.monitor.meter == Some(SharedUse::Pipe(meter)) || uses.has_meter(meter));
    let (meter, first) = (program.meters[meter.index()].name.clone(), first?.0.name.clone());
    Some(FindingKind::MeterTwice { meter, first })
}

/// Returns the edges out of each pipe, and whether it forwards to the kernel.
fn ways(program: &Program, uses: &[&Uses]) -> (Vec<Vec<Edge>>, Vec<bool>) {
    program.pipes.iter().zip(uses).map(|(pipe, uses)| ways_out(program, pipe, uses)).unzip()
}

/// Returns the edges from a pipe to others, each once, and whether it forwards to the kernel.
fn ways_out(program: &Program, pipe: &Pipe, uses: &Uses) -> (Vec<Edge>, bool) {
    let every = pipe.templates.iter().map(writes).fold(ALL, |common, one| common & one) | metered(pipe);
    let own = [(pipe.miss, 0), (pipe.forward, every)];
    let entries = uses.leads().filter_map(|(forward, template)| {
        Some((forward, writes(pipe.templates.get(usize::from(template))?) | metered(pipe)))
    });
    let (mut list, mut to_kernel) = (BTreeSet::new(), false);
    for (forward, writes) in own.into_iter().chain(entries) {
        for to in ends(program, forward) {
            to_kernel |= to == Forward::Kernel;
            list.extend(leads_to(program, to).map(|to| Edge { to, writes }));
        }
    }
    (list.into_iter().collect(), to_kernel)
}

/// Returns the pipes that packets may enter by a forward: several for a group, if its targets are pipes.
/// Forwards that dangle lead nowhere.
#[must_use]
pub fn next_pipes(program: &Program, forward: Forward) -> Vec<PipeId> {
    ends(program, forward).into_iter().filter_map(|end| leads_to(program, end)).collect()
}

/// Returns the pipe that a forward itself leads to.
fn leads_to(program: &Program, forward: Forward) -> Option<PipeId> {
    match forward {
        Forward::Pipe(to) if to.index() < program.pipes.len() => Some(to),
        _ => None,
    }
}

/// Returns what a forward leads to: itself, or the destinations of a group's targets.
fn ends(program: &Program, forward: Forward) -> Vec<Forward> {
    match forward {
        Forward::Group(GroupId(group)) => {
            let targets = program.groups.get(usize::from(group)).map(|group| &*group.targets);
            targets.unwrap_or_default().iter().map(|target| target.forward).collect()
        }
        Forward::Tee { next, .. } => vec![Forward::Pipe(next)],
        other => vec![other],
    }
}

fn metered(pipe: &Pipe) -> Facts {
    if pipe.monitor.meter.is_some() { METERED } else { 0 }
}

fn writes(template: &Template) -> Facts {
    template.operations.iter().filter_map(written).fold(0, |facts, word| facts | 1 << word)
}

fn written(operation: &Operation) -> Option<usize> {
    operation.writes()?.meta_word()
}

/// Returns what a pipe reads: the field, what its own action has done before, and the place in the
/// configuration.
fn reads(pipe: &Pipe) -> Vec<(Field, Facts, Origin)> {
    // An ACL entry with `any` does not read the field, but run-time entries may.
    let criterion = |one: &crate::Match| !matches!(one.criterion, Criterion::Const { mask: 0, .. });
    let mut list: Vec<_> =
        pipe.matches.iter().filter(|one| criterion(one)).map(|one| (one.field, 0, one.origin)).collect();
    list.extend(pipe.kind.hashed().iter().map(|(field, _)| (*field, 0, pipe.origin)));
    list.extend(pipe.kind.group().and_then(GroupChoice::field).map(|field| (field, 0, pipe.origin)));
    for template in &pipe.templates {
        let mut known = metered(pipe);
        for operation in &template.operations {
            list.extend(operation.reads().map(|field| (field, known, pipe.origin)));
            known |= written(operation).map_or(0, |word| 1 << word);
        }
    }
    list
}
