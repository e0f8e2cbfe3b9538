//! The check of a program: reports everything wrong with it at once, before it runs.
//!
//! The executors rely on it: indices are valid, entries fit their pipes, and forwards form no loop. Anything
//! merely suspicious (a pipe that nothing leads to, an ACL entry hidden by a wider one) is a warning. Entries
//! added at run time are checked by `Shape::admits`.
//!
//! Cost: linear in the number of entries, except for the pairwise comparison of up to [`SHADOW_MAX`] ACL
//! entries.

mod contradiction;
pub mod entries;
mod finding;
pub mod nat;
mod operations;
mod owner;
mod pipes;
mod sets;
mod shape;
mod uses;

pub use entries::found;
pub use finding::{Finding, FindingKind, Severity};
pub use owner::owners;
pub use owner::owners_of;
pub use pipes::{lost, too_large};
pub use shape::Shape;
pub use shape::all_fit;
pub use shape::next_pipes;
pub use uses::Uses;

use crate::{Entry, PipeId, Place, Program, Template};

/// Maximum number of pipes in a program. The engine keeps a list of packets for each.
pub const PIPES_MAX: usize = 256;
/// Maximum number of ports in a program. A worker polls each of them.
pub const PORTS_MAX: usize = 64;
/// Maximum number of groups. Numbers of groups have 16 bits, and a worker has 64 bytes for each group.
pub const GROUPS_MAX: usize = 16_384;
/// Maximum number of buckets of all groups together: 256 MiB, which all workers share. Given buckets take 34
/// bytes each in every worker.
pub const BUCKETS_MAX: u64 = 1 << 27;
/// Maximum number of shared counters, and of meters; their numbers have 16 bits.
pub const SHARED_MAX: usize = 65_536;
/// Maximum number of apps that take frames. Each has a punt ring per worker.
pub const APPS_MAX: usize = 64;
/// Maximum number of fields that a pipe can match.
pub const MATCHES_MAX: usize = 16;
/// Maximum number of action templates in a pipe.
pub const TEMPLATES_MAX: usize = 256;
/// Maximum number of operations in a template.
pub const OPERATIONS_MAX: usize = 32;
/// Maximum number of entries in a pipe (4 GiB at 64 bytes an entry).
pub const CAPACITY_MAX: u32 = 1 << 26;
/// Maximum number of buckets in a Maglev group.
pub const MAGLEV_MAX: u32 = 1 << 20;
/// Maximum number of buckets in a group that is filled by wants or given.
pub const WANTS_MAX: u32 = 1 << 16;
/// The largest weight of a target: the sum for 65535 targets fits in 32 bits.
pub const WEIGHT_MAX: u32 = 65_535;
/// The largest ACL pipe that is searched for hidden entries, since every pair is compared.
pub const SHADOW_MAX: usize = 4096;

/// Returns everything wrong with a program, in the order of the program's lists; the graph comes last.
#[must_use]
pub fn check(program: &Program) -> Vec<Finding> {
    let mut findings = Vec::new();
    limits(program, &mut findings);
    for port in &program.ports {
        let root = port.root.and_then(|root| pipes::lost("pipe", root.index(), program.pipes.len()));
        findings.extend(root.map(|kind| Finding::new(port.origin, kind)));
    }
    sets::check(program, &mut findings);
    nat::pools(program, &mut findings);
    for pipe in &program.pipes {
        pipes::check(program, pipe, &mut findings);
        entries::check(program, pipe, &mut findings);
    }
    Shape::of(program).findings(program, &mut findings);
    findings
}

/// Returns every reason why an entry, considered on its own, does not fit its pipe.
#[must_use]
pub fn check_entry(program: &Program, pipe: PipeId, entry: &Entry) -> Vec<FindingKind> {
    let template =
        program.pipes.get(pipe.index()).and_then(|pipe| pipe.templates.get(entry.template as usize));
    check_entry_with(program, pipe, entry, &template.map(Template::places).unwrap_or_default())
}

/// Does the same as [`check_entry`] for one of many entries: `places` are the numbers that the entry's action
/// requires.
fn check_entry_with(program: &Program, pipe: PipeId, entry: &Entry, places: &[Place]) -> Vec<FindingKind> {
    let mut kinds = Vec::new();
    match program.pipes.get(pipe.index()) {
        Some(pipe) => entries::fit(program, pipe, entry, places, &mut kinds),
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
