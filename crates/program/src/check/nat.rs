//! Checks NAT pools and the pipes whose flows take from them.

use super::finding::{Finding, FindingKind};
use crate::nat::{PLACES_MAX, PREFIXES_MAX, SLICES};
use crate::{
    Entry, EntryMatch, Forward, NatPart, NatPool, Operation, OwnedBy, Pipe, PipeKind, Program, Template,
    Value,
};
use weir_packet::{Field, FieldKind, LevelId};

/// Checks pools on their own and against each other, and checks that each belongs to a single pipe.
pub(super) fn pools(program: &Program, findings: &mut Vec<Finding>) {
    for (at, pool) in program.nat_pools.iter().enumerate() {
        let mut refuse = |why: String| {
            let pool = pool.name.clone();
            findings.push(Finding::new(program.nat_pools[at].origin, FindingKind::NatPool { pool, why }));
        };
        pool_alone(pool).into_iter().for_each(&mut refuse);
        for other in &program.nat_pools[..at] {
            let mut pairs =
                other.prefixes.iter().flat_map(|one| pool.prefixes.iter().map(move |own| (one, own)));
            if let Some((_, own)) = pairs.find(|(one, own)| one.overlaps(**own)) {
                refuse(format!("shares {own} with NAT pool `{}`", other.name));
            }
        }
        let mut users = program.pipes.iter().filter(|pipe| pipe.nat.is_some_and(|id| id.index() == at));
        if let (Some(first), Some(second)) = (users.next(), users.next()) {
            let (pool, first) = (pool.name.clone(), first.name.clone());
            findings.push(Finding::new(second.origin, FindingKind::NatPoolTwice { pool, first }));
        }
    }
}

fn pool_alone(pool: &NatPool) -> Option<String> {
    let prefixes = &pool.prefixes;
    if prefixes.is_empty() {
        return Some("has no addresses".into());
    }
    if prefixes.len() > PREFIXES_MAX {
        return Some(format!("has {} prefixes, the limit is {PREFIXES_MAX}", prefixes.len()));
    }
    if prefixes.iter().any(|one| one.first.is_ipv4() != pool.is_ipv4()) {
        return Some("has both IPv4 and IPv6 addresses: split it into two pools, for two pipes".into());
    }
    for (at, one) in prefixes.iter().enumerate() {
        if prefixes[..at].iter().any(|other| other.overlaps(*one)) {
            return Some(format!("contains addresses of {one} twice"));
        }
    }
    if pool.first > pool.last {
        return Some(format!("has no ports: the first, {}, is above the last, {}", pool.first, pool.last));
    }
    let ports = u32::from(pool.last - pool.first) + 1;
    if ports < SLICES {
        let why = format!("has {ports} ports but needs at least {SLICES}, one for each slice");
        return Some(why);
    }
    if pool.first == 0 {
        return Some("includes port 0, which cannot be a source port: begin with at least 1".into());
    }
    // Ports are kept in rounds of one port per slice; the first and the last round count in full.
    let held = u64::from(pool.bound()) * u64::from(SLICES);
    (held > PLACES_MAX).then(|| {
        format!(
            "has {held} pairs of address and port (ports rounded to multiples of {SLICES}), the limit \
            is {PLACES_MAX}"
        )
    })
}

/// Checks that a pipe's flows can take from the pool that it names, and that its actions use the pool
/// correctly.
pub(super) fn pipe(program: &Program, pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    let Some(id) = pipe.nat else {
        let uses = |template: &Template| template.operations.iter().any(takes);
        kinds.extend(pipe.templates.iter().any(uses).then_some(FindingKind::NatNowhere));
        return;
    };
    let Some(pool) = program.nat_pools.get(id.index()) else {
        kinds.push(FindingKind::Dangling { what: "NAT pool", index: id.index() });
        return;
    };
    if !matches!(pipe.kind, PipeKind::Flow { reverse: true, .. }) {
        kinds.push(FindingKind::Nat { why: "needs `reverse: true`" });
    }
    if pipe.owner != OwnedBy::Both {
        kinds.push(FindingKind::Nat {
            why: "needs `owner: both`: the pool's ports determine which worker \
                owns the answers",
        });
    }
    let used = pipe.templates.iter().filter(|template| template.operations.iter().any(takes));
    kinds.extend(used.flat_map(|template| action(pool, template)).map(|why| FindingKind::Nat { why }));
}

/// Whether an operation uses a number from the pool.
fn takes(operation: &Operation) -> bool {
    operation.numbers().any(|(_, value, _)| matches!(value, Value::Nat(_)))
}

/// Checks an action that uses the pool: it must set the source address and the source port from it, each
/// once, and neither set them otherwise nor use the pool elsewhere.
fn action(pool: &NatPool, template: &Template) -> Option<&'static str> {
    let address = if pool.is_ipv4() { Field::Ipv4Src } else { Field::Ipv6Src };
    let wanted = |field: Field, part| Operation::Set(field, Value::Nat(part));
    let (address, port) = (wanted(address, NatPart::Address), wanted(Field::L4Sport, NatPart::Port));
    let sources = |operation: &&Operation| takes(operation) || operation.writes().is_some_and(is_source);
    let mut written: Vec<&Operation> = template.operations.iter().filter(sources).collect();
    written.retain(|operation| **operation != address && **operation != port);
    let once =
        |one: &Operation| template.operations.iter().filter(|operation| *operation == one).count() == 1;
    match (written.is_empty(), once(&address) && once(&port), pool.is_ipv4()) {
        (true, true, _) => None,
        (false, _, true) => {
            Some("is for `set: { ipv4.src: { per_flow: nat_pool }, l4.sport: { per_flow: nat_pool } }` alone")
        }
        (false, _, false) => {
            Some("is for `set: { ipv6.src: { per_flow: nat_pool }, l4.sport: { per_flow: nat_pool } }` alone")
        }
        (true, false, _) => Some("needs both the address and the port to be set, each once"),
    }
}

fn is_source(field: Field) -> bool {
    use FieldKind::{Ipv4Src, Ipv6Src, L4Sport, TcpSport, UdpSport};
    field.level == LevelId::Outer && matches!(field.kind, Ipv4Src | Ipv6Src | L4Sport | TcpSport | UdpSport)
}

/// Checks that the entry with which flows are learnt uses the pool, and that no other entry does. Packets of
/// flows that end at an app need no translation, because the answers do not pass through the pipe.
pub fn fit(pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    let Some(template) = pipe.templates.get(usize::from(entry.template)).filter(|_| pipe.nat.is_some())
    else {
        return;
    };
    let is_target = matches!(entry.matches.first(), Some(EntryMatch::Target(_) | EntryMatch::Member { .. }));
    let ends_here = matches!(entry.forward, Some(Forward::App(_)));
    match (is_target, template.operations.iter().any(takes)) {
        (true, false) if ends_here => {}
        (true, false) => {
            kinds.push(FindingKind::Nat { why: "needs an action that uses it for every target" })
        }
        (false, true) => kinds.push(FindingKind::Nat {
            why: "is for learnt flows: `default` and a flow's own entry need an action without it",
        }),
        _ => {}
    }
}
