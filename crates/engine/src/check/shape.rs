//! The graph formed by a program's forwards: its order, its loops, and what holds on every path to a pipe. It
//! is kept beside a running program, because an entry added at run time must not break any of it.

use super::check_entry;
use super::finding::{Finding, FindingKind};
use crate::change::ChangeError;
use crate::program::{
    Criterion, Entry, Forward, GroupId, Operation, Origin, Pipe, PipeId, PortId, Program, Template,
};
use packet::Field;
use std::collections::BTreeSet;

/// What a path has done before it reaches a pipe: bit N means that `meta.N` is written, [`METERED`] that a
/// meter was met.
type Facts = u8;
const METERED: Facts = 1 << 4;
const ALL: Facts = METERED | 0xf;

/// Properties of the graph.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Pipes in an order in which forwards only lead onward; those on a loop are missing.
    pub order: Vec<PipeId>,
    /// The position of each pipe in `order`.
    position: Vec<usize>,
    edges: Vec<Vec<Edge>>,
    /// What holds on every path to the pipe.
    facts: Vec<Facts>,
    /// A port without a kernel path whose frames reach the pipe.
    kernelless: Vec<Option<PortId>>,
    reachable: Vec<bool>,
    /// Whether a frame in the pipe may go to the kernel.
    to_kernel: Vec<bool>,
    /// The previous pipe on a shortest path.
    parent: Vec<Option<PipeId>>,
}

/// A way out of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    to: PipeId,
    writes: Facts,
}

impl Shape {
    /// Computes the shape of a program. Dangling forwards are ignored; they are reported separately.
    #[must_use]
    pub fn of(program: &Program) -> Shape {
        let count = program.pipes.len();
        let edges: Vec<Vec<Edge>> = program.pipes.iter().map(|pipe| edges(program, pipe)).collect();
        let order = order(&edges);
        let mut position = vec![usize::MAX; count];
        for (at, pipe) in order.iter().enumerate() {
            position[pipe.index()] = at;
        }
        let mut shape = Shape {
            order,
            position,
            edges,
            facts: vec![ALL; count],
            kernelless: vec![None; count],
            reachable: vec![false; count],
            to_kernel: program
                .pipes
                .iter()
                .map(|pipe| forwards(program, pipe).any(|to| to == Forward::Kernel))
                .collect(),
            parent: vec![None; count],
        };
        shape.start(program);
        shape.walk();
        shape
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
        for &from in &self.order {
            let at = from.index();
            if !self.reachable[at] {
                continue;
            }
            for edge in &self.edges[at] {
                let to = edge.to.index();
                if !self.reachable[to] {
                    self.parent[to] = Some(from);
                }
                self.reachable[to] = true;
                self.facts[to] &= self.facts[at] | edge.writes;
                self.kernelless[to] = self.kernelless[to].or(self.kernelless[at]);
            }
        }
        for &from in self.order.iter().rev() {
            let onwards = self.edges[from.index()].iter().any(|edge| self.to_kernel[edge.to.index()]);
            self.to_kernel[from.index()] |= onwards;
        }
    }

    /// Checks whether an entry may be added to a running pipe: it must fit the pipe, and what was proven
    /// about the program must remain true. The program may be given without its entries.
    ///
    /// # Errors
    /// Says what is wrong with it, or what it would break.
    pub fn admits(&self, program: &Program, pipe: PipeId, entry: &Entry) -> Result<(), ChangeError> {
        let unknown = || ChangeError::Unknown { what: "pipe".to_string() };
        let name = &program.pipes.get(pipe.index()).ok_or_else(unknown)?.name;
        let unfit = check_entry(program, pipe, entry).into_iter().next();
        let wrong = unfit.or_else(|| self.leads(program, pipe, entry).err());
        wrong.map_or(Ok(()), |why| Err(ChangeError::Unfit { pipe: name.clone(), why: why.to_string() }))
    }

    /// Checks that an entry leads onward, not to a pipe that reads what is not written, and not to a missing
    /// kernel path.
    fn leads(&self, program: &Program, pipe: PipeId, entry: &Entry) -> Result<(), FindingKind> {
        let from = &program.pipes[pipe.index()];
        let Some(forward) = entry.forward else { return Ok(()) };
        let Some(template) = from.templates.get(usize::from(entry.template)) else { return Ok(()) };
        let given = self.facts[pipe.index()] | writes(template) | metered(from);
        for to in ends(program, forward) {
            match to {
                Forward::Kernel => self.no_kernel(program, pipe, &from.name)?,
                Forward::Pipe(to) if to.index() < self.facts.len() => {
                    self.onwards(program, pipe, to, given)?
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn onwards(&self, program: &Program, from: PipeId, to: PipeId, given: Facts) -> Result<(), FindingKind> {
        let name = |pipe: PipeId| program.pipes[pipe.index()].name.clone();
        if self.position[to.index()] <= self.position[from.index()] {
            return Err(FindingKind::Loop { path: vec![name(from), name(to)] });
        }
        if self.reachable[to.index()] {
            let lacking = self.facts[to.index()] & !given & 0xf;
            if let Some(field) = META.get(lacking.trailing_zeros() as usize) {
                return Err(FindingKind::MetadataUnwritten {
                    field: *field,
                    path: vec![name(from), name(to)],
                });
            }
        }
        if self.to_kernel[to.index()] { self.no_kernel(program, from, &name(to)) } else { Ok(()) }
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

    /// Reports everything that is wrong with the graph.
    pub(super) fn findings(&self, program: &Program, findings: &mut Vec<Finding>) {
        self.loops(program, findings);
        if program.ports.iter().all(|port| port.root.is_none()) && !program.ports.is_empty() {
            findings.push(Finding::new(program.ports[0].origin, FindingKind::NoRoot));
        }
        for (at, pipe) in program.pipes.iter().enumerate() {
            if self.position[at] == usize::MAX {
                continue;
            }
            if !self.reachable[at] {
                let unreachable = FindingKind::Unreachable { pipe: pipe.name.clone() };
                findings.push(Finding::new(pipe.origin, unreachable));
                continue;
            }
            if forwards(program, pipe).any(|to| to == Forward::Kernel) {
                let refused = self.no_kernel(program, PipeId(at as u16), &pipe.name).err();
                findings.extend(refused.map(|kind| Finding::new(pipe.origin, kind)));
            }
            self.unwritten(program, PipeId(at as u16), findings);
        }
    }

    /// Reports metadata that the pipe reads although not every path has written it, and the colour of a meter
    /// that no path has met.
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
        let mut told = vec![false; self.edges.len()];
        for start in (0..self.edges.len()).filter(|&at| self.position[at] == usize::MAX) {
            if told[start] {
                continue;
            }
            let Some(path) = self.way_back(start) else { continue };
            for &at in &path {
                told[at] = true;
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

const META: [Field; 4] = [Field::Meta0, Field::Meta1, Field::Meta2, Field::Meta3];

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

/// Returns the ways out of a pipe, each once.
fn edges(program: &Program, pipe: &Pipe) -> Vec<Edge> {
    let every = pipe.templates.iter().map(writes).fold(ALL, |common, one| common & one) | metered(pipe);
    let mut list = BTreeSet::new();
    let mut add = |forward: Forward, writes: Facts| {
        for to in ends(program, forward) {
            if let Forward::Pipe(to) = to
                && to.index() < program.pipes.len()
            {
                list.insert(Edge { to, writes });
            }
        }
    };
    add(pipe.miss, 0);
    add(pipe.forward, every);
    for entry in &pipe.entries {
        if let (Some(forward), Some(template)) =
            (entry.forward, pipe.templates.get(usize::from(entry.template)))
        {
            add(forward, writes(template) | metered(pipe));
        }
    }
    list.into_iter().collect()
}

/// Iterates over everything that a pipe's forwards lead to, with groups resolved.
fn forwards<'a>(program: &'a Program, pipe: &'a Pipe) -> impl Iterator<Item = Forward> + 'a {
    let entries = pipe.entries.iter().filter_map(|entry| entry.forward);
    [pipe.miss, pipe.forward].into_iter().chain(entries).flat_map(|forward| ends(program, forward))
}

/// Returns what a forward leads to: itself, or what a group's targets lead to.
fn ends(program: &Program, forward: Forward) -> Vec<Forward> {
    match forward {
        Forward::Group(GroupId(group)) => {
            let targets = program.groups.get(usize::from(group)).map(|group| group.targets.as_slice());
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
    // A field that an ACL entry sets to `any` is not read by it, but run-time entries may read it.
    let criterion = |one: &crate::program::Match| !matches!(one.criterion, Criterion::Const { mask: 0, .. });
    let mut list: Vec<_> =
        pipe.matches.iter().filter(|one| criterion(one)).map(|one| (one.field, 0, one.origin)).collect();
    list.extend(pipe.kind.hashed().iter().map(|(field, _)| (*field, 0, pipe.origin)));
    for template in &pipe.templates {
        let mut known = metered(pipe);
        for operation in &template.operations {
            list.extend(operation.reads().map(|field| (field, known, pipe.origin)));
            known |= written(operation).map_or(0, |word| 1 << word);
        }
    }
    list
}
