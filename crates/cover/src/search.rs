//! The search for paths: a depth-first walk through the pipes with a packet whose shape is known.

use crate::domain::Condition;
use crate::proof::unreachable;
use crate::record::{CaseRecord, Origin, Path, PathStep, RowId, Taken};
use crate::rows::{HitBy, PipeRow, Rows};
use crate::sequences::sequence;
use crate::shape::{Layer4, Network, PacketShape, default};
use crate::shapes::{is_outer, reads_of, shapes};
use crate::solve::{Box, Conjunction, Point, Solution, solve};
use crate::symbols::{Effect, Symbols, Term};
use crate::variants::{VariantLimits, variants};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weir_oracle::Walk;
use weir_packet::{DropReason, Field};
use weir_program::operation::Headers;
use weir_program::{Forward, Operation, Pipe, PipeId, PipeKind, PortId, Program, Verdict};

/// The limits of a search. What the search leaves out because of them is in [`Exploration::unexplored`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest number of packets.
    pub packets: usize,
    /// The largest number of steps of one search for values.
    pub steps: u32,
    /// The longest time.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { packets: 1_000_000, steps: 20_000, time: Duration::from_secs(60) }
    }
}

/// The result of a search.
#[derive(Debug)]
pub struct Exploration {
    /// The packets, and what the interpreter does with them.
    pub record: CaseRecord,
    /// The paths that the search found to be possible but that no packet took, each with a packet that should
    /// have taken it.
    pub missed: BTreeMap<Path, Vec<u8>>,
    /// Entries that no packet of the search hits.
    pub unhit: Vec<UnhitRow>,
    /// What was not explored, and why.
    pub unexplored: BTreeSet<String>,
}

/// An entry that no packet of a search hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnhitRow {
    /// The entry.
    pub row: RowId,
    /// Whether it is proved that no packet hits the entry. Otherwise, the search has just found none.
    pub proved: bool,
}

/// Searches for packets that take every path. `buckets` has the targets of the buckets of each group.
#[must_use]
pub fn explore(program: &Program, buckets: Vec<Vec<u16>>, limits: Limits) -> Exploration {
    let mut search = PathSearch::new(program, buckets, limits);
    for shape in shapes(program) {
        for (port, declared) in (0..).map(PortId).zip(&program.ports) {
            if let Some(root) = declared.root {
                search.start_at(&shape, port, root);
            }
        }
    }
    search.finish()
}

/// For how many entries the limits of their conditions are tried.
const BOUNDED: usize = 256;

/// How much of the rest of a path to explore.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Every path.
    All,
    /// Any one path to an end.
    Any,
}

/// A packet at the entry of a pipe, and the conditions under which it gets there.
#[derive(Clone)]
pub(crate) struct PathState {
    pub symbols: Symbols,
    pub within: Box,
    /// Conditions that the packet must not meet, in portions.
    pub forbidden: Vec<Rc<Vec<Conjunction>>>,
    pub steps: Vec<PathStep>,
    pub rows: Vec<RowId>,
    /// Whether a condition was left out because the search does not compute a value.
    pub is_guess: bool,
}

pub(crate) struct PathSearch<'a> {
    pub program: &'a Program,
    pub record: CaseRecord,
    pub rows: Vec<Rc<Rows>>,
    pub buckets: Vec<Vec<u16>>,
    reads: Vec<BTreeSet<Field>>,
    visited: HashMap<(PipeId, u64), bool>,
    limits: Limits,
    deadline: Instant,
    shape: PacketShape,
    excluded: Rc<Vec<Conjunction>>,
    missed: BTreeMap<Path, Vec<u8>>,
    /// A TCP packet of each path on which the segment size is clamped.
    clamped: BTreeMap<Path, usize>,
    /// Entries whose limits were tried.
    bounded: BTreeSet<RowId>,
    pub unexplored: BTreeSet<String>,
}

impl<'a> PathSearch<'a> {
    fn new(program: &'a Program, buckets: Vec<Vec<u16>>, limits: Limits) -> PathSearch<'a> {
        PathSearch {
            program,
            record: CaseRecord::new(program, buckets.clone()),
            rows: program.pipes.iter().map(|pipe| Rc::new(Rows::of(pipe))).collect(),
            buckets,
            reads: reads_below(program),
            visited: HashMap::new(),
            limits,
            deadline: Instant::now() + limits.time,
            shape: shapes(program)[0],
            excluded: Rc::default(),
            missed: BTreeMap::new(),
            clamped: BTreeMap::new(),
            bounded: BTreeSet::new(),
            unexplored: BTreeSet::new(),
        }
    }

    fn start_at(&mut self, shape: &PacketShape, port: PortId, root: PipeId) {
        self.shape = *shape;
        self.excluded = Rc::new(shape.excluded(self.program));
        let state = PathState {
            symbols: Symbols::arrived(shape, port, self.program),
            within: Box::default(),
            forbidden: vec![Rc::clone(&self.excluded)],
            steps: Vec::new(),
            rows: Vec::new(),
            is_guess: false,
        };
        self.visit(root, &state, Extent::All);
    }

    fn finish(mut self) -> Exploration {
        self.vary();
        self.follow_flows();
        let rows = (0..).map(PipeId).zip(&self.rows);
        let all = rows.flat_map(|(pipe, rows)| (0..rows.rows.len()).map(move |at| (pipe, at)));
        let unhit: BTreeSet<RowId> = all.filter(|row| !self.record.rows.contains(row)).collect();
        let proved = unreachable(self.program, &self.rows, unhit.clone(), self.deadline);
        let unhit = unhit.into_iter().map(|row| UnhitRow { row, proved: proved.contains(&row) }).collect();
        let taken = &self.record.paths;
        let missed = self.missed.into_iter().filter(|(path, _)| !taken.contains_key(path)).collect();
        Exploration { missed, unhit, unexplored: self.unexplored, record: self.record }
    }

    /// Whether a limit has been reached.
    pub fn is_over(&mut self) -> bool {
        if self.record.cases.len() >= self.limits.packets {
            self.unexplored.insert(format!("more than {} packets (--packets)", self.limits.packets));
            return true;
        }
        if Instant::now() >= self.deadline {
            let seconds = self.limits.time.as_secs();
            self.unexplored.insert(format!("what takes longer than {seconds} seconds (--seconds)"));
            return true;
        }
        false
    }

    /// Explores what packets in this state can do from a pipe. Returns whether an end was reached.
    pub fn visit(&mut self, id: PipeId, state: &PathState, extent: Extent) -> bool {
        if self.is_over() {
            return false;
        }
        let key = (id, self.signature(id, state));
        let extent = match self.visited.get(&key) {
            Some(_) => Extent::Any,
            None => extent,
        };
        if extent == Extent::All {
            self.visited.insert(key, false);
        }
        let pipe = &self.program.pipes[id.index()];
        let rows = Rc::clone(&self.rows[id.index()]);
        let mut reached = false;
        let Some(constants) = resolve(&rows.constants, &state.symbols) else {
            // A constant that the packet's headers rule out.
            return self.miss(id, state, Vec::new(), extent);
        };
        if let Some(inside) = state.within.with_all(&constants.conditions) {
            let mut inside = PathState { within: inside, ..state.clone() };
            inside.is_guess |= constants.is_guess;
            reached |= match &pipe.kind {
                PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => self.look_up(id, &rows, &inside, extent),
                PipeKind::Hash { .. } | PipeKind::Flow { .. } => self.pick(id, &rows, &inside, extent),
            };
            if reached && extent == Extent::Any {
                return true;
            }
        }
        // Misses because of one constant each.
        for condition in &constants.conditions {
            let portion = vec![vec![*condition]];
            reached |= self.miss(id, state, portion, extent);
            if reached && extent == Extent::Any {
                return true;
            }
        }
        reached
    }

    /// Explores the entries of a pipe that compares fields, and its miss.
    fn look_up(&mut self, id: PipeId, rows: &Rc<Rows>, state: &PathState, extent: Extent) -> bool {
        let mut reached = false;
        let mut none: Vec<Conjunction> = Vec::new();
        let mut misses = true;
        // Whether the packet may hit a row without the search knowing it.
        let mut may_hit = false;
        for (at, row) in rows.rows.iter().enumerate() {
            let HitBy::Fields(wanted) = &row.hit_by else { continue };
            let wanted = wanted.iter().filter_map(|(field, condition)| Some((*field, (*condition)?)));
            let wanted: Vec<(Field, Condition)> = wanted.collect();
            let Some(met) = resolve(&wanted, &state.symbols) else { continue };
            if !state.within.allows(&met.conditions) {
                continue;
            }
            misses &= !met.conditions.is_empty() || met.is_guess;
            let Some(within) = state.within.with_all(&met.conditions) else { continue };
            let is_wanted = !self.record.rows.contains(&(id, at))
                || extent == Extent::Any
                || self.leads_on(id, row, state);
            if is_wanted {
                let (before, may_hit) = self.before(rows, at, state);
                let mut hit = PathState { within, ..state.clone() };
                hit.is_guess |= met.is_guess || may_hit;
                if !before.is_empty() {
                    hit.forbidden.push(Rc::new(before));
                }
                reached |= self.hit(id, (at, row), hit, extent);
                if reached && extent == Extent::Any {
                    return true;
                }
                if self.is_over() {
                    return reached;
                }
            }
            may_hit |= met.is_guess;
            if !met.is_guess {
                none.push(met.conditions);
            }
        }
        if misses {
            let mut missed = state.clone();
            missed.is_guess |= may_hit;
            reached |= self.miss(id, &missed, none, extent);
        }
        reached
    }

    /// Returns what a packet that hits a row must not be, because rows before it would be hit, and whether
    /// the search cannot tell this for some row.
    fn before(&self, rows: &Rows, at: usize, state: &PathState) -> (Vec<Conjunction>, bool) {
        let (mut before, mut may_hit) = (Vec::new(), false);
        for other in rows.before(at) {
            let HitBy::Fields(wanted) = &rows.rows[other].hit_by else { continue };
            let wanted = wanted.iter().filter_map(|(field, condition)| Some((*field, (*condition)?)));
            let Some(met) = resolve(&wanted.collect::<Vec<_>>(), &state.symbols) else {
                continue;
            };
            may_hit |= met.is_guess;
            before.extend((!met.is_guess).then_some(met.conditions));
        }
        (before, may_hit)
    }

    /// Whether what follows a row may depend on the row.
    fn leads_on(&self, id: PipeId, row: &PipeRow, state: &PathState) -> bool {
        let pipe = &self.program.pipes[id.index()];
        let next = row.entry.forward.unwrap_or(pipe.forward);
        let is_first = !self.visited.contains_key(&(id, class(row, pipe, state)));
        is_first
            || matches!(next, Forward::Pipe(_) | Forward::Tee { .. } | Forward::Group(_) | Forward::PerEntry)
    }

    /// Performs the action of a row, and follows the packet.
    pub fn hit(
        &mut self,
        id: PipeId,
        (at, row): (usize, &PipeRow),
        mut state: PathState,
        extent: Extent,
    ) -> bool {
        let pipe = &self.program.pipes[id.index()];
        self.visited.insert((id, class(row, pipe, &state)), true);
        state.steps.push(PathStep { pipe: id, taken: Taken::Hit(row.entry.template) });
        state.rows.push((id, at));
        let mut values = row.entry.values.iter().copied();
        let mut next = || values.next().unwrap_or_default();
        let template = &pipe.templates[usize::from(row.entry.template)];
        let mut ttls = Vec::new();
        // Lengths and colours are not computed.
        let limited = template.operations.iter().any(|one| matches!(one, Operation::LimitLength { .. }));
        state.is_guess |=
            limited || pipe.nat.is_some() || pipe.monitor.meter.is_some() || row.entry.meter.is_some();
        for operation in &template.operations {
            let symbols = &mut state.symbols;
            if symbols.perform(operation, self.program, &mut next, &mut ttls) == Effect::DoesNotApply {
                return self.end(&state, Some(Verdict::Drop(DropReason::NotApplicable)));
            }
        }
        // Headers that have moved are parsed again, and a source that was written may be malformed.
        let moves = template.operations.iter().any(|one| one.headers() != Headers::Stay);
        state.is_guess |= moves && state.symbols.has_written_source();
        for ttl in ttls {
            match ttl {
                Term::Arrived(field) => {
                    let dead = Condition::Range { first: 0, last: 1 };
                    if let Some(within) = state.within.with(field, dead) {
                        let expired = PathState { within, ..state.clone() };
                        self.end(&expired, Some(Verdict::Drop(DropReason::TtlExpired)));
                    }
                    let alive = Condition::Range { first: 2, last: u128::MAX };
                    let Some(within) = state.within.with(field, alive) else { return false };
                    state.within = within;
                }
                Term::Number(number) if number < 2 => {
                    return self.end(&state, Some(Verdict::Drop(DropReason::TtlExpired)));
                }
                Term::Number(_) => {}
                Term::Unknown => state.is_guess = true,
            }
        }
        if pipe.rehash {
            state.symbols.keys_as_received = false;
        }
        self.follow(row.entry.forward.unwrap_or(pipe.forward), &state, extent)
    }

    /// Follows a packet that misses a pipe because it meets none of the given conditions.
    pub fn miss(&mut self, id: PipeId, state: &PathState, none: Vec<Conjunction>, extent: Extent) -> bool {
        let pipe = &self.program.pipes[id.index()];
        let mut missed = state.clone();
        missed.steps.push(PathStep { pipe: id, taken: Taken::Miss });
        if !none.is_empty() {
            missed.forbidden.push(Rc::new(none));
        }
        match pipe.miss {
            Forward::Drop => self.end(&missed, Some(Verdict::Drop(DropReason::Miss))),
            forward => self.follow(forward, &missed, extent),
        }
    }

    fn follow(&mut self, forward: Forward, state: &PathState, extent: Extent) -> bool {
        let input = state.symbols.input();
        match forward {
            Forward::Pipe(next) | Forward::Tee { next, .. } => self.visit(next, state, extent),
            Forward::Port(port) => self.end(state, Some(Verdict::Transmit(port))),
            Forward::InputPort => self.end(state, Some(Verdict::Transmit(input))),
            Forward::App(app) => self.end(state, Some(Verdict::App(app))),
            Forward::Kernel => self.end(state, Some(Verdict::Kernel(input))),
            Forward::Drop => self.end(state, Some(Verdict::Drop(DropReason::Policy))),
            Forward::Group(group) => self.group(group, state, extent),
            Forward::Flood(_) | Forward::PerEntry => self.end(state, None),
        }
    }

    /// Searches for a packet in this state, and records the packet. `verdict` is where the packet should end.
    pub fn end(&mut self, state: &PathState, verdict: Option<Verdict>) -> bool {
        let path = verdict.map(|verdict| Path {
            input: state.symbols.input(),
            steps: state.steps.clone(),
            end: verdict,
        });
        let clamped =
            path.as_ref().filter(|path| self.clamps(state) && !self.clamped.contains_key(path)).cloned();
        let is_new =
            clamped.is_some() || path.as_ref().is_none_or(|path| !self.record.paths.contains_key(path));
        if !is_new && state.rows.iter().all(|row| self.record.rows.contains(row)) {
            return true;
        }
        let Some(point) = self.point(state) else { return false };
        let frame = self.frame(&point);
        self.clamped.extend(clamped.map(|path| (path, self.record.cases.len())));
        let walk = self.keep(state, point.clone(), frame.clone(), &purpose(self.program, state));
        let is_first = state.rows.iter().any(|row| self.bounded.insert(*row));
        if is_first && self.bounded.len() <= BOUNDED {
            self.boundaries(state, &point);
        }
        match path {
            Some(path) if !state.is_guess && self.record.path_of(path.input, &walk) != path => {
                self.missed.insert(path, frame);
            }
            _ => {}
        }
        true
    }

    /// Whether the packet is TCP and an action on its path clamps the segment size.
    fn clamps(&self, state: &PathState) -> bool {
        self.shape.outer.transport == Layer4::Tcp
            && state.steps.iter().any(|step| {
                let Taken::Hit(template) = step.taken else { return false };
                let template = &self.program.pipes[step.pipe.index()].templates[usize::from(template)];
                template.operations.iter().any(|one| matches!(one, Operation::ClampMss { .. }))
            })
    }

    /// Records a packet with the values from which it was made.
    fn keep(&mut self, state: &PathState, point: Point, frame: Vec<u8>, purpose: &str) -> Walk {
        self.record.origins.insert(self.record.cases.len(), Origin { shape: self.shape, point });
        self.record.add(state.symbols.input(), frame, || purpose.into())
    }

    /// Adds packets with the least and the greatest values that this state allows, and with their neighbours.
    fn boundaries(&mut self, state: &PathState, point: &Point) {
        let purpose = purpose(self.program, state);
        for (field, domain) in state.within.fields() {
            let (least, greatest) = (domain.least(), domain.greatest());
            let below = least.checked_sub(1);
            for value in [Some(least), Some(greatest), below, greatest.checked_add(1)].into_iter().flatten() {
                if value <= field.max() {
                    let mut other = point.clone();
                    other.insert(field, value);
                    let frame = self.frame(&other);
                    self.keep(state, other, frame, &format!("{field} at a limit: {purpose}"));
                }
            }
        }
    }

    /// Adds variants of one packet of each path.
    fn vary(&mut self) {
        let limits = VariantLimits::of(self.program);
        let cases: BTreeSet<usize> =
            self.record.paths.values().chain(self.clamped.values()).copied().collect();
        for at in cases {
            let Some(Origin { shape, point }) = self.record.origins.get(&at).cloned() else { continue };
            let (input, purpose) = (self.record.cases[at].input, self.record.cases[at].purpose.clone());
            for (variant, frame) in variants(&shape, self.program, &point, &limits) {
                if self.is_over() {
                    return;
                }
                self.record.add(input, frame, || format!("{purpose}, {variant}"));
            }
        }
    }

    /// Adds the packets of a flow in order, for each path that meets a flow table.
    fn follow_flows(&mut self) {
        let keeps_flows = self.program.pipes.iter().any(|pipe| matches!(pipe.kind, PipeKind::Flow { .. }));
        let cases: BTreeSet<usize> = self.record.paths.values().copied().collect();
        for at in cases.into_iter().filter(|_| keeps_flows) {
            if self.is_over() {
                return;
            }
            let Some(origin) = self.record.origins.get(&at).cloned() else { continue };
            let (input, purpose) = (self.record.cases[at].input, self.record.cases[at].purpose.clone());
            let packets = sequence(&self.record, self.program, input, &origin).into_iter();
            let packets = packets.map(|(port, frame, what)| (port, frame, format!("{purpose}: {what}")));
            self.record.add_sequence(packets.collect());
        }
    }

    /// Returns values for a packet in this state.
    pub fn point(&mut self, state: &PathState) -> Option<Point> {
        let forbidden: Vec<&[(Field, Condition)]> =
            state.forbidden.iter().flat_map(|portion| portion.iter().map(Vec::as_slice)).collect();
        let mut steps = self.limits.steps;
        match solve(&state.within, &forbidden, default, &mut steps) {
            Solution::Found(point) => Some(point),
            Solution::Impossible(_) => None,
            Solution::Unknown => {
                let pipe = state.steps.last().map_or("", |step| &self.program.pipes[step.pipe.index()].name);
                self.unexplored
                    .insert(format!("packets behind pipe `{pipe}` that take too many steps to find"));
                None
            }
        }
    }

    /// Returns a frame of the current shape.
    pub fn frame(&self, point: &Point) -> Vec<u8> {
        self.shape.frame(self.program, point)
    }

    /// The shape of the packets as they arrive.
    pub fn shape(&self) -> &PacketShape {
        &self.shape
    }

    /// Whether the packet has IP at its outer level.
    pub fn has_ip(state: &PathState) -> bool {
        matches!(state.symbols.shape().outer.network, Network::Ipv4 | Network::Ipv6)
    }

    /// Returns a number for everything in a state on which the way from a pipe may depend.
    fn signature(&self, id: PipeId, state: &PathState) -> u64 {
        let mut hasher = DefaultHasher::new();
        let shape = state.symbols.shape();
        (shape, state.symbols.input(), state.symbols.keys_as_received).hash(&mut hasher);
        for field in &self.reads[id.index()] {
            let term = state.symbols.term(*field);
            (field, term).hash(&mut hasher);
            if let Some(Term::Arrived(field)) = term {
                state.within.domain(field).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// Conditions on the packet as it arrived.
pub(crate) struct Resolved {
    pub conditions: Conjunction,
    pub is_guess: bool,
}

/// Returns what conditions on a packet require of the packet as it arrived; `None` if it cannot meet them.
pub(crate) fn resolve(wanted: &[(Field, Condition)], symbols: &Symbols) -> Option<Resolved> {
    let mut resolved = Resolved { conditions: Vec::with_capacity(wanted.len()), is_guess: false };
    for (field, condition) in wanted {
        match symbols.term(*field)? {
            Term::Number(number) if condition.holds(number) => {}
            Term::Number(_) => return None,
            Term::Arrived(field) => resolved.conditions.push((field, *condition)),
            Term::Unknown => resolved.is_guess = true,
        }
    }
    Some(resolved)
}

/// Returns a number for the entries of a pipe that have the same action and lead to the same place, and the
/// packet's shape: an action may apply to some shapes only.
fn class(row: &PipeRow, pipe: &Pipe, state: &PathState) -> u64 {
    let mut hasher = DefaultHasher::new();
    let next = row.entry.forward.unwrap_or(pipe.forward);
    ("class", row.entry.template, next, state.symbols.shape()).hash(&mut hasher);
    hasher.finish()
}

/// Returns, for each pipe, the fields on which a packet's way from the pipe may depend.
fn reads_below(program: &Program) -> Vec<BTreeSet<Field>> {
    let mut reads: Vec<BTreeSet<Field>> = program.pipes.iter().map(|pipe| reads_of(program, pipe)).collect();
    // Inner fields become outer ones by decapsulation, and the other way round.
    let moves =
        program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations).any(|one| {
            matches!(
                one,
                Operation::Decap(_) | Operation::Encap(_) | Operation::PopVlan | Operation::PushVlan { .. }
            )
        });
    if moves {
        for fields in &mut reads {
            let outer: Vec<Field> = fields.iter().copied().filter(|field| is_outer(*field)).collect();
            let both = outer.into_iter().filter(|field| field.kind.has_inner());
            fields.extend(both.map(Field::inner).collect::<Vec<_>>());
            let inner: Vec<Field> = fields.iter().copied().filter(|field| !is_outer(*field)).collect();
            fields
                .extend(inner.into_iter().map(|field| Field { level: weir_packet::LevelId::Outer, ..field }));
        }
    }
    loop {
        let before: usize = reads.iter().map(BTreeSet::len).sum();
        for (at, pipe) in program.pipes.iter().enumerate() {
            let entries = pipe.entries.forwards().map(|(forward, _)| forward);
            let forwards: Vec<Forward> = entries.chain([pipe.forward, pipe.miss]).collect();
            for forward in forwards {
                if let Forward::Pipe(next) | Forward::Tee { next, .. } = forward {
                    let below = reads[next.index()].clone();
                    reads[at].extend(below);
                }
            }
            for target in program.groups.iter().flat_map(|group| &*group.targets) {
                if let Forward::Pipe(next) = target.forward {
                    let below = reads[next.index()].clone();
                    reads[at].extend(below);
                }
            }
        }
        if before == reads.iter().map(BTreeSet::len).sum::<usize>() {
            return reads;
        }
    }
}

/// Returns what a packet in this state shows.
fn purpose(program: &Program, state: &PathState) -> String {
    let mut text = program.ports[state.symbols.input().index()].name.clone();
    let mut rows = state.rows.iter();
    for step in &state.steps {
        let pipe = &program.pipes[step.pipe.index()].name;
        match step.taken {
            Taken::Hit(_) => {
                let at = rows.next().map_or(0, |(_, at)| at + 1);
                text.push_str(&format!(" > {pipe}: entry {at}"));
            }
            Taken::Miss => text.push_str(&format!(" > {pipe}: miss")),
            Taken::NoTarget => text.push_str(&format!(" > {pipe}: no target")),
        }
    }
    text
}
