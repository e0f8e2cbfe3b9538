//! A proof that no packet hits an entry, for programs in which headers alone determine where packets go.
//!
//! The proof follows the packets of every shape through every entry that they may hit, without looking for
//! values first and without leaving out paths that look alike. Where the search would have to guess, all
//! answers are taken to be possible. So entries that the proof does not reach are unreachable; other entries
//! may be unreachable as well.

use crate::domain::Condition;
use crate::record::RowId;
use crate::rows::{HitBy, PipeRow, Rows};
use crate::search::{Resolved, resolve};
use crate::shape::default;
use crate::shapes::every_shape;
use crate::solve::{Box, Conjunction, Solution, solve};
use crate::symbols::{Effect, Symbols, Term};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Instant;
use weir_packet::Field;
use weir_program::operation::Headers;
use weir_program::{Forward, Pipe, PipeId, PipeKind, PortId, Program};

/// How many entries and misses may be visited.
const VISITS: u32 = 200_000;

/// The maximum number of steps of one search for values. An entry that needs more is taken to be reachable.
const STEPS: u32 = 2_000;

/// The packets that arrive at a pipe.
#[derive(Clone)]
struct PacketSet {
    symbols: Symbols,
    within: Box,
    forbidden: Vec<Rc<Vec<Conjunction>>>,
}

struct Proof<'a> {
    program: &'a Program,
    rows: &'a [Rc<Rows>],
    /// Entries that no packet has hit yet.
    open: BTreeSet<RowId>,
    visits: u32,
    deadline: Instant,
}

/// Returns which of the given entries certainly no packet hits; none if this is not known when the limits are
/// reached.
pub(crate) fn unreachable(
    program: &Program,
    rows: &[Rc<Rows>],
    unhit: BTreeSet<RowId>,
    deadline: Instant,
) -> BTreeSet<RowId> {
    if unhit.is_empty() || !headers_decide(program) {
        return BTreeSet::new();
    }
    let mut proof = Proof { program, rows, open: unhit, visits: VISITS, deadline };
    for shape in every_shape(program) {
        let excluded = Rc::new(shape.excluded(program));
        for (port, declared) in (0..).map(PortId).zip(&program.ports) {
            let Some(root) = declared.root else { continue };
            let symbols = Symbols::arrived(&shape, port, program);
            let set = PacketSet { symbols, within: Box::default(), forbidden: vec![Rc::clone(&excluded)] };
            if proof.visit(root, &set).is_none() {
                return BTreeSet::new();
            }
        }
    }
    proof.open
}

/// Whether only headers determine where packets go, rather than a flow, target, meter, earlier fragment or
/// length. Headers that move are parsed again, so that an action may bring to light what was not parsed
/// before.
fn headers_decide(program: &Program) -> bool {
    let of_pipe = |pipe: &Pipe| {
        let compares = match pipe.kind {
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => true,
            PipeKind::Hash { .. } | PipeKind::Flow { .. } => false,
        };
        let mut operations = pipe.templates.iter().flat_map(|one| &one.operations);
        compares
            && pipe.nat.is_none()
            && pipe.monitor.meter.is_none()
            && operations.all(|one| one.headers() == Headers::Stay)
    };
    program.groups.is_empty()
        && program.meters.is_empty()
        && !program.follows()
        && program.pipes.iter().all(of_pipe)
}

impl Proof<'_> {
    /// Follows packets from a pipe. `None` means that a limit is reached.
    fn visit(&mut self, id: PipeId, set: &PacketSet) -> Option<()> {
        let rows = Rc::clone(&self.rows[id.index()]);
        let Some(constants) = resolve(&rows.constants, &set.symbols) else {
            return self.miss(id, set, Vec::new());
        };
        if let Some(within) = set.within.with_all(&constants.conditions) {
            self.look_up(id, &rows, &PacketSet { within, ..set.clone() })?;
        }
        for condition in &constants.conditions {
            self.miss(id, set, vec![vec![*condition]])?;
        }
        if constants.is_guess { self.miss(id, set, Vec::new()) } else { Some(()) }
    }

    fn look_up(&mut self, id: PipeId, rows: &Rows, set: &PacketSet) -> Option<()> {
        let mut none = Vec::new();
        for (at, row) in rows.rows.iter().enumerate() {
            let Some(met) = self.met(row, set) else { continue };
            if let Some(within) = set.within.with_all(&met.conditions)
                && self.matters((id, at), row)
            {
                let before = rows.before(at).filter_map(|other| self.met(&rows.rows[other], set));
                let before = before.filter(|met| !met.is_guess).map(|met| met.conditions).collect();
                let mut hit = PacketSet { within, ..set.clone() };
                hit.forbidden.push(Rc::new(before));
                self.hit(id, (at, row), hit)?;
            }
            if !met.is_guess {
                none.push(met.conditions);
            }
        }
        self.miss(id, set, none)
    }

    /// Returns what a row requires of packets as they arrived; `None` if no packet of the set hits the row.
    fn met(&self, row: &PipeRow, set: &PacketSet) -> Option<Resolved> {
        let HitBy::Fields(wanted) = &row.hit_by else { return None };
        let wanted = wanted.iter().filter_map(|(field, condition)| Some((*field, (*condition)?)));
        resolve(&wanted.collect::<Vec<_>>(), &set.symbols)
    }

    /// Whether it makes a difference that a row is hit.
    fn matters(&self, row: RowId, content: &PipeRow) -> bool {
        let next = content.entry.forward.unwrap_or(self.program.pipes[row.0.index()].forward);
        self.open.contains(&row) || next_pipe(next).is_some()
    }

    fn hit(&mut self, id: PipeId, (at, row): (usize, &PipeRow), mut set: PacketSet) -> Option<()> {
        if !self.may_be(&set)? {
            return Some(());
        }
        self.open.remove(&(id, at));
        let pipe = &self.program.pipes[id.index()];
        let mut values = row.entry.values.iter().copied();
        let mut next = || values.next().unwrap_or_default();
        let mut ttls = Vec::new();
        for operation in &pipe.templates[usize::from(row.entry.template)].operations {
            let effect = set.symbols.perform(operation, self.program, &mut next, &mut ttls);
            if effect == Effect::DoesNotApply {
                return Some(());
            }
        }
        for ttl in ttls {
            let alive = Condition::Range { first: 2, last: u128::MAX };
            match ttl {
                Term::Arrived(field) => match set.within.with(field, alive) {
                    Some(within) => set.within = within,
                    None => return Some(()),
                },
                Term::Number(number) if number < 2 => return Some(()),
                Term::Number(_) | Term::Unknown => {}
            }
        }
        self.follow(row.entry.forward.unwrap_or(pipe.forward), &set)
    }

    fn miss(&mut self, id: PipeId, set: &PacketSet, none: Vec<Conjunction>) -> Option<()> {
        let forward = self.program.pipes[id.index()].miss;
        let mut missed = set.clone();
        missed.forbidden.push(Rc::new(none));
        if next_pipe(forward).is_none() || !self.may_be(&missed)? {
            return Some(());
        }
        self.follow(forward, &missed)
    }

    fn follow(&mut self, forward: Forward, set: &PacketSet) -> Option<()> {
        next_pipe(forward).map_or(Some(()), |next| self.visit(next, set))
    }

    /// Whether the set may have packets.
    fn may_be(&mut self, set: &PacketSet) -> Option<bool> {
        self.visits = self.visits.checked_sub(1)?;
        if Instant::now() >= self.deadline {
            return None;
        }
        let forbidden: Vec<&[(Field, Condition)]> =
            set.forbidden.iter().flat_map(|portion| portion.iter().map(Vec::as_slice)).collect();
        Some(match solve(&set.within, &forbidden, default, &mut { STEPS }) {
            Solution::Found(_) | Solution::Unknown => true,
            Solution::Impossible(_) => false,
        })
    }
}

/// Returns the pipe to which a forward leads.
fn next_pipe(forward: Forward) -> Option<PipeId> {
    match forward {
        Forward::Pipe(next) | Forward::Tee { next, .. } => Some(next),
        Forward::Port(_)
        | Forward::InputPort
        | Forward::App(_)
        | Forward::Kernel
        | Forward::Drop
        | Forward::Group(_)
        | Forward::Flood(_)
        | Forward::PerEntry => None,
    }
}
