//! The check of a program: everything wrong with it, at once, before anything runs.
//!
//! The executors trust a checked program: indices lead somewhere, entries fit their pipes, forwards make no loop. What
//! only looks odd (a pipe that nothing leads to, an ACL entry behind a wider one) is a warning. An entry that comes at
//! run time is admitted by [`Shape::admits`].
//!
//! Costs: linear in entries, but for the pairs of ACL entries up to [`SHADOW_MAX`].

mod contradiction;
pub(crate) mod entries;
mod finding;
mod operations;
mod pipes;
mod sets;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use entries::found;
pub use finding::{Finding, FindingKind, Severity};
pub(crate) use pipes::{lost, too_large};
pub use shape::Shape;

use crate::program::{Entry, PipeId, Program};

/// Pipes of a program at most: a walk of more cannot be meant, and the engine keeps a list of packets per pipe.
pub const PIPES_MAX: usize = 256;
/// Ports of a program at most: a worker polls each.
pub const PORTS_MAX: usize = 64;
/// Groups at most: each has a bucket table of up to 2 MiB.
pub const GROUPS_MAX: usize = 1024;
/// Shared counters, and meters, at most: their numbers are 16 bits wide.
pub const SHARED_MAX: usize = 65_536;
/// Apps that take frames at most: each has a punt ring per worker.
pub const APPS_MAX: usize = 64;
/// Fields that a pipe matches at most.
pub const MATCHES_MAX: usize = 16;
/// Action templates of a pipe at most.
pub const TEMPLATES_MAX: usize = 256;
/// Operations of a template at most.
pub const OPERATIONS_MAX: usize = 32;
/// Entries of a pipe at most (4 GiB at 64 B an entry).
pub const CAPACITY_MAX: u32 = 1 << 26;
/// Buckets of a Maglev group at most.
pub const MAGLEV_MAX: u32 = 1 << 20;
/// Buckets of a group filled by wants, or given, at most.
pub const WANTS_MAX: u32 = 1 << 16;
/// ACL pipes with more entries are not searched for shadowed ones: every pair is compared.
pub const SHADOW_MAX: usize = 4096;

/// Everything wrong with a program; in the order of its lists, the graph last.
#[must_use]
pub fn check(program: &Program) -> Vec<Finding> {
    let mut findings = Vec::new();
    limits(program, &mut findings);
    for port in &program.ports {
        let root = port.root.and_then(|root| pipes::lost("pipe", root.index(), program.pipes.len()));
        findings.extend(root.map(|kind| Finding::new(port.origin, kind)));
    }
    sets::check(program, &mut findings);
    for pipe in &program.pipes {
        pipes::check(program, pipe, &mut findings);
        entries::check(program, pipe, &mut findings);
    }
    Shape::of(program).findings(program, &mut findings);
    findings
}

/// Everything that makes an entry unfit for its pipe, looked at alone.
#[must_use]
pub fn check_entry(program: &Program, pipe: PipeId, entry: &Entry) -> Vec<FindingKind> {
    let mut kinds = Vec::new();
    match program.pipes.get(pipe.index()) {
        Some(pipe) => entries::fit(program, pipe, entry, &mut kinds),
        None => kinds.push(FindingKind::Dangling { what: "pipe", index: pipe.index() }),
    }
    kinds.retain(|kind| kind.severity() == Severity::Error);
    kinds
}

fn limits(program: &Program, findings: &mut Vec<Finding>) {
    let mut kinds = Vec::new();
    too_many("ports", program.ports.len(), PORTS_MAX, &mut kinds);
    too_many("pipes", program.pipes.len(), PIPES_MAX, &mut kinds);
    too_many("groups", program.groups.len(), GROUPS_MAX, &mut kinds);
    too_many("counters", program.counters.len(), SHARED_MAX, &mut kinds);
    too_many("meters", program.meters.len(), SHARED_MAX, &mut kinds);
    too_many("apps", program.apps.len(), APPS_MAX, &mut kinds);
    findings.extend(kinds.into_iter().map(|kind| Finding::new(Default::default(), kind)));
}

fn too_many(what: &'static str, count: usize, max: usize, kinds: &mut Vec<FindingKind>) {
    if count > max {
        kinds.push(FindingKind::TooMany { what, count, max });
    }
}
