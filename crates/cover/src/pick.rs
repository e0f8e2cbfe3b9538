//! Pipes and forwards that pick a target by a hash: the search tries the values of a free field until every
//! target has been picked.

use crate::domain::Condition;
use crate::record::{PathStep, Taken, rows_of};
use crate::rows::{HitBy, Rows};
use crate::search::{Extent, PathSearch, PathState};
use crate::shape::{HeaderSet, Layer4, Network, default};
use crate::shapes::KEY;
use crate::solve::{Conjunction, Point, meets};
use crate::symbols::{Term, canonical};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use weir_packet::{DropReason, Field, FlowKey, KeySource, select_hash};
use weir_program::{
    Fill, Group, GroupChoice, GroupId, HashInput, Learn, NewFlows, Pipe, PipeId, PipeKind, Verdict,
};
use weir_table::bucket::seeded;

/// How many values are tried for each target.
const TRIES: usize = 64;

/// Multiples of this number, the golden ratio in 128 bits, differ in all bits.
const SCATTER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// How a pipe decides on a packet.
enum Decision {
    /// A group picks a target.
    Group(GroupId),
    /// Every flow gets the default entry.
    Default,
    /// Packets miss.
    Miss,
    /// Metadata of unknown value chooses the group.
    Unknown,
}

impl PathSearch<'_> {
    /// Explores the entries and the misses of a pipe that picks targets or keeps flows.
    pub fn pick(&mut self, id: PipeId, rows: &Rc<Rows>, state: &PathState, extent: Extent) -> bool {
        let pipe = &self.program.pipes[id.index()];
        let is_flow = matches!(pipe.kind, PipeKind::Flow { .. });
        if is_flow && !Self::has_ip(state) {
            return self.miss(id, state, Vec::new(), extent);
        }
        let mut reached = false;
        let mut flows: Vec<Conjunction> = Vec::new();
        for (at, row) in rows.rows.iter().enumerate() {
            let HitBy::Flow(key) = &row.hit_by else { continue };
            let Some(wanted) = self.of_flow(key, pipe.kind.key_source()) else { continue };
            if let Some(within) = state.within.with_all(&wanted) {
                reached |= self.hit(id, (at, row), PathState { within, ..state.clone() }, extent);
            }
            flows.push(wanted);
        }
        let mut state = state.clone();
        // Where flows are pinned, an ICMP error begins none.
        state.is_guess |= is_flow && matches!(self.shape().outer.transport, Layer4::IcmpError(_));
        if !flows.is_empty() {
            state.forbidden.push(Rc::new(flows));
        }
        reached |= match self.decision(pipe, &state) {
            Decision::Group(group) => self.targets(id, group, rows, &state, extent),
            Decision::Default => {
                let default =
                    rows.rows.iter().enumerate().find(|(_, row)| matches!(row.hit_by, HitBy::Default));
                default.is_some_and(|found| self.hit(id, found, state.clone(), extent))
            }
            Decision::Miss => self.miss(id, &state, Vec::new(), extent),
            Decision::Unknown => {
                self.unexplored.insert(format!("the groups that metadata chooses in pipe `{}`", pipe.name));
                false
            }
        };
        reached
    }

    fn decision(&self, pipe: &Pipe, state: &PathState) -> Decision {
        let choice = match &pipe.kind {
            PipeKind::Hash { group, .. } => *group,
            PipeKind::Flow { learn: Learn::Pin(group) | Learn::Follow(group), .. } => *group,
            PipeKind::Flow { learn: Learn::Default, .. } => return Decision::Default,
            PipeKind::Flow { learn: Learn::Nothing, .. }
            | PipeKind::Basic
            | PipeKind::Lpm
            | PipeKind::Acl => {
                return Decision::Miss;
            }
        };
        let field = match choice {
            GroupChoice::One(group) => return Decision::Group(group),
            GroupChoice::ByMeta(_) => choice.field(),
        };
        match field.and_then(|field| state.symbols.term(field)) {
            Some(Term::Number(number)) => {
                let groups = (0..).map(GroupId).zip(&self.program.groups);
                let chosen =
                    groups.into_iter().find(|(_, group)| group.number.map(u128::from) == Some(number));
                chosen.map_or(Decision::Miss, |(group, _)| Decision::Group(group))
            }
            Some(Term::Arrived(_) | Term::Unknown) | None => Decision::Unknown,
        }
    }

    /// Returns what a packet of a flow had in its fields as it arrived; `None` if this shape has no such
    /// packet.
    fn of_flow(&self, key: &FlowKey, source: KeySource) -> Option<Conjunction> {
        let shape = self.shape();
        let is_ip = |level: HeaderSet| matches!(level.network, Network::Ipv4 | Network::Ipv6);
        let inside = shape.tunnel.is_some_and(|(.., inner)| is_ip(inner)) && source == KeySource::Inner;
        let mut wanted = Vec::new();
        match key.vni() {
            Some(id) if inside => wanted.push((Field::TunnelId, u128::from(id))),
            None if !inside => {}
            Some(_) | None => return None,
        }
        let at = |field: Field| if inside { field.inner() } else { field };
        let addresses = match (key.src(), key.dst()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                [(Field::Ipv4Src, u128::from(src.to_bits())), (Field::Ipv4Dst, u128::from(dst.to_bits()))]
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                [(Field::Ipv6Src, src.to_bits()), (Field::Ipv6Dst, dst.to_bits())]
            }
            _ => return None,
        };
        let ports = [(Field::L4Sport, u128::from(key.sport())), (Field::L4Dport, u128::from(key.dport()))];
        let has_ports = shape.has(at(Field::L4Sport));
        let fields = addresses.into_iter().chain([(Field::IpProtocol, u128::from(key.protocol()))]);
        wanted.extend(
            fields.chain(ports.into_iter().filter(|_| has_ports)).map(|(field, value)| (at(field), value)),
        );
        if !has_ports && ports.iter().any(|(_, port)| *port != 0) {
            return None;
        }
        let mut conditions = Vec::new();
        for (field, value) in wanted {
            match shape.fixed(field, self.program) {
                Some(fixed) if fixed == value => {}
                Some(_) => return None,
                None if shape.has(field) => conditions.push((field, Condition::equal(value))),
                None => return None,
            }
        }
        Some(conditions)
    }

    /// Tries packets until each target of a group has been picked, and follows each packet that picks a new
    /// one.
    fn targets(
        &mut self,
        id: PipeId,
        group: GroupId,
        rows: &Rc<Rows>,
        state: &PathState,
        extent: Extent,
    ) -> bool {
        let own: BTreeMap<u16, usize> = rows
            .rows
            .iter()
            .enumerate()
            .filter_map(|(at, row)| match row.hit_by {
                HitBy::Target(of, target) if of == group => Some((target, at)),
                _ => None,
            })
            .collect();
        let missing: Vec<usize> =
            own.values().copied().filter(|at| !self.record.rows.contains(&(id, *at))).collect();
        let live = self.live(group);
        let wanted = match extent {
            Extent::All => own.len().min(live.max(1)),
            Extent::Any if missing.is_empty() => 1,
            Extent::Any => own.len().min(live.max(1)),
        };
        let Some(base) = self.point(state) else { return false };
        let direct = self.direct(id, group, state);
        let (mut found, mut reached) = (BTreeMap::new(), false);
        for point in self.variations(state, base, TRIES * wanted.max(1)) {
            let (row, is_miss) = match direct {
                Some(seed) => {
                    let target = self.bucket(group, seed, &point);
                    (own.get(&target).copied(), false)
                }
                None => self.walked(id, state, &point),
            };
            if let std::collections::btree_map::Entry::Vacant(place) = found.entry((row, is_miss)) {
                place.insert(());
                let fixed = self.fixed(state, &point);
                reached |= match row {
                    Some(at) => self.hit(id, (at, &rows.rows[at]), fixed, extent),
                    None if is_miss => self.miss(id, &fixed, Vec::new(), extent),
                    None => {
                        let mut fixed = fixed;
                        fixed.steps.push(PathStep { pipe: id, taken: Taken::NoTarget });
                        let verdict = match self.program.groups[group.index()].no_target {
                            Some(app) => Verdict::App(app),
                            None => Verdict::Drop(DropReason::NoTarget),
                        };
                        self.end(&fixed, Some(verdict))
                    }
                };
            }
            if found.len() >= wanted || self.is_over() {
                break;
            }
        }
        reached
    }

    /// Follows a packet to the targets of the group that it is forwarded to.
    pub fn group(&mut self, group: GroupId, state: &PathState, extent: Extent) -> bool {
        let wanted = if extent == Extent::All { self.live(group).max(1) } else { 1 };
        let Some(base) = self.point(state) else { return false };
        let (mut ends, mut reached) = (std::collections::BTreeSet::new(), false);
        for point in self.variations(state, base, TRIES * wanted) {
            let walk = self.record.explain(state.symbols.input(), &self.frame(&point));
            if ends.insert((walk.verdict, walk.trace.len())) {
                let fixed = self.fixed(state, &point);
                reached |= self.end(&fixed, None);
            }
            if ends.len() >= wanted || self.is_over() {
                break;
            }
        }
        reached
    }

    /// The number of targets that have buckets.
    fn live(&self, group: GroupId) -> usize {
        let of = &self.program.groups[group.index()];
        if of.fill == Fill::Given {
            return of.targets.len();
        }
        let mut targets = self.buckets[group.index()].clone();
        targets.sort_unstable();
        targets.dedup();
        targets.len()
    }

    /// Returns the seed of the hash from which a pipe's bucket can be computed here, without a walk.
    fn direct(&self, id: PipeId, group: GroupId, state: &PathState) -> Option<u64> {
        let pipe = &self.program.pipes[id.index()];
        let by_key = match &pipe.kind {
            PipeKind::Hash { input, .. } => *input == HashInput::Select(KeySource::Outer),
            PipeKind::Flow { key, .. } => *key == KeySource::Outer,
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => false,
        };
        let Group { fill, affinity, quic, new_flows, .. } = &self.program.groups[group.index()];
        let plain = affinity.is_none()
            && quic.is_none()
            && *new_flows == NewFlows::Hash
            && matches!(fill, Fill::Maglev | Fill::Wants)
            && !self.buckets[group.index()].is_empty();
        (by_key && plain && state.symbols.keys_as_received && Self::has_ip(state) && self.has_key(state))
            .then_some(self.program.select_seed)
    }

    /// Whether the flow key consists of fields of the packet as it arrived.
    fn has_key(&self, state: &PathState) -> bool {
        let shape = self.shape();
        let at_arrival = |field: &Field| shape.has(*field);
        KEY.iter().filter(|field| at_arrival(field)).count() >= 2 && Self::has_ip(state)
    }

    /// Returns the target that a packet's bucket has.
    fn bucket(&self, group: GroupId, seed: u64, point: &Point) -> u16 {
        let shape = self.shape();
        let get = |field: Field| point.get(&field).copied().unwrap_or_else(|| default(field));
        let number = |field: Field| shape.fixed(field, self.program).unwrap_or_else(|| get(field));
        let (src, dst): (IpAddr, IpAddr) = if number(Field::IpVersion) == 4 {
            let address = |field| Ipv4Addr::from_bits(get(field) as u32).into();
            (address(Field::Ipv4Src), address(Field::Ipv4Dst))
        } else {
            let address = |field| Ipv6Addr::from_bits(get(field)).into();
            (address(Field::Ipv6Src), address(Field::Ipv6Dst))
        };
        let port = |field: Field| if shape.has(field) { number(field) as u16 } else { 0 };
        let ports = (port(Field::L4Sport), port(Field::L4Dport));
        let key = FlowKey::new(src, dst, number(Field::IpProtocol) as u8, ports, None);
        let hash = select_hash(seed, &key.0);
        let hash = match self.program.groups[group.index()].seed {
            Some(seed) => seeded(hash, seed),
            None => hash,
        };
        let slots = &self.buckets[group.index()];
        let bucket = (((hash >> 32) * slots.len() as u64) >> 32) as usize;
        slots.get(bucket).copied().unwrap_or(u16::MAX)
    }

    /// Returns the entry that a packet hits in a pipe, and whether it misses the pipe.
    fn walked(&self, id: PipeId, state: &PathState, point: &Point) -> (Option<usize>, bool) {
        let walk = self.record.explain(state.symbols.input(), &self.frame(point));
        let row = rows_of(&walk).find(|(pipe, _)| *pipe == id).map(|(_, row)| row);
        let step = walk.trace.iter().find(|step| step.pipe == id);
        let is_miss = step.is_some_and(|step| matches!(step.lookup, weir_oracle::trace::Lookup::Miss(_)));
        (row, is_miss)
    }

    /// Returns packets in the same state that differ in a field that is hashed.
    fn variations(&self, state: &PathState, base: Point, count: usize) -> Vec<Point> {
        let shape = self.shape();
        let hashed = self.program.pipes.iter().flat_map(|pipe| pipe.kind.hashed()).map(|(field, _)| *field);
        let fields = KEY.into_iter().chain(hashed).map(canonical).filter(|field| shape.has(*field));
        let fields: Vec<Field> = fields.filter(|field| shape.fixed(*field, self.program).is_none()).collect();
        let is_allowed = |point: &Point| {
            state.within.has(point)
                && !state
                    .forbidden
                    .iter()
                    .flat_map(|portion| portion.iter())
                    .any(|one| meets(point, one, default))
        };
        let mut points = vec![base.clone()];
        for (field, left) in fields.iter().copied().zip((1..=fields.len()).rev()) {
            // Each field gets its share: a hash may leave out some of them.
            let share = count.saturating_sub(points.len()).div_ceil(left) as u128;
            let domain = state.within.domain(field);
            let mut at = base.get(&field).copied().unwrap_or_else(|| domain.near(default(field)));
            for turn in 0..share {
                at = at.checked_add(1).and_then(|next| domain.least_from(next)).unwrap_or(domain.least());
                // Every other value differs in high bits, too: a hash may leave out the low ones.
                let value = if turn % 2 == 0 { at } else { domain.near(turn.wrapping_mul(SCATTER)) };
                let mut point = base.clone();
                point.insert(field, value);
                if is_allowed(&point) {
                    points.push(point);
                }
            }
        }
        points
    }

    /// Returns the state of the packets that have these values in all fields that are hashed.
    fn fixed(&self, state: &PathState, point: &Point) -> PathState {
        let mut fixed = state.clone();
        for (field, value) in point {
            if let Some(within) = fixed.within.with(*field, Condition::equal(*value)) {
                fixed.within = within;
            }
        }
        for field in KEY {
            if !point.contains_key(&field)
                && self.shape().has(field)
                && let Some(within) = fixed.within.with(field, Condition::equal(default(field)))
            {
                fixed.within = within;
            }
        }
        fixed
    }
}
