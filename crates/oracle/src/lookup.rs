//! Look-up, entry by entry: every type of pipe tests each entry and then picks among the matching ones.

use super::Interpreter;
use super::answers::Taken;
use super::effect::{Effect, Why};
use super::fields::{ones, width};
use super::near::{absent, difference, nearest, nearest_flow};
use super::observed::target_of;
use super::packet::Packet;
use super::quic;
use super::reopen::Without;
use super::source::{FlowSource, FlowsAt};
use super::state::{PipeState, Row};
use super::trace::{Asked, Difference, FlowMet, KeyField, Known, Miss, Pick, Rss};
use std::net::IpAddr;
use weir_packet::{Field, FlowKey, KeySource, NO_TARGET_OBSERVED, Observed, select_hash, write_hex};
use weir_program::director::hops_of;
use weir_program::snapshot::{FlowDecision, FlowSnapshot, KeptOperations};
use weir_program::{
    Affinity, Criterion, EntryMatch, Fill, Group, GroupChoice, GroupId, HashInput, Learn, Pipe, PipeId,
    PipeKind, Target,
};

/// The comparisons of a look-up, and its result.
pub(super) struct Lookup {
    pub key: Vec<KeyField>,
    pub flow: Option<FlowMet>,
    pub pick: Option<Pick>,
    pub found: Found,
    pub effects: Vec<Effect>,
    /// The values of the entry's action that the packet's flow keeps.
    pub kept: KeptOperations,
}

/// Result of a look-up.
pub(super) enum Found {
    /// The entry at this position.
    Row(usize),
    Miss(Miss),
    NoTarget,
    /// No address and port of the NAT pool is available for the packet's flow.
    NoNatPort,
    /// The packet's flow would have the same answers as another flow.
    AnswersTaken,
}

impl Lookup {
    fn new(key: Vec<KeyField>, found: Found) -> Lookup {
        Lookup { key, flow: None, pick: None, found, effects: Vec::new(), kept: Vec::new() }
    }

    /// Handles a packet of a new flow in this pipe that gets no address and port.
    fn without_port(&mut self, pipe: PipeId, key: FlowKey) {
        self.effects.push(Effect::Unflowed { pipe, why: Why::NoNatPort });
        self.flow = Some(FlowMet::new(Some(key), Known::NoNatPort));
        self.found = Found::NoNatPort;
    }

    /// Handles a packet of a new flow in this pipe whose answers would be those of another flow.
    fn without_answers(&mut self, pipe: PipeId, key: FlowKey) {
        self.effects.push(Effect::Unflowed { pipe, why: Why::AnswersTaken });
        self.flow = Some(FlowMet::new(Some(key), Known::AnswersTaken));
        self.found = Found::AnswersTaken;
    }
}

/// Returns true if a field satisfies a criterion. `wanted` is the entry's match if the criterion is per
/// entry.
pub(super) fn satisfies(field: &KeyField, criterion: Criterion, wanted: Option<&EntryMatch>) -> bool {
    if wanted == Some(&EntryMatch::Any) {
        return true;
    }
    let Some(actual) = field.actual else { return false };
    match (criterion, wanted) {
        (Criterion::Const { value, mask }, _) => actual & mask == value,
        (Criterion::PerEntry { mask }, Some(EntryMatch::Value(value))) => actual & mask == *value,
        (Criterion::Prefix, Some(EntryMatch::Prefix { value, length })) => {
            let mask = prefix_mask(width(field.field), *length);
            actual & mask == *value
        }
        (Criterion::Masked, Some(EntryMatch::Masked { value, mask })) => actual & mask == *value,
        (Criterion::Range, Some(EntryMatch::Range { first, last })) => {
            u128::from(*first) <= actual && actual <= u128::from(*last)
        }
        _ => false,
    }
}

/// Returns the mask of the first `length` of `width` bits.
pub(super) fn prefix_mask(width: usize, length: u8) -> u128 {
    ones(width) & !ones(width - usize::from(length))
}

/// Iterates over the per-entry fields of a pipe, in order; entries' matches correspond to them.
pub(super) fn per_entry(key: &[KeyField]) -> impl Iterator<Item = (&KeyField, Criterion)> {
    key.iter().filter_map(|field| match field.asked {
        Asked::Match(Criterion::Const { .. }) | Asked::Hashed(_) => None,
        Asked::Match(criterion) => Some((field, criterion)),
    })
}

/// A packet of an unknown flow in a FLOW pipe.
#[derive(Clone, Copy)]
struct NewFlow<'a> {
    pipe: PipeId,
    packet: &'a Packet,
    key: FlowKey,
    learn: Learn,
    /// The group that the packet picks from.
    group: Option<(GroupChoice, GroupId)>,
}

impl Interpreter {
    /// Looks a packet up in a pipe.
    pub(super) fn look_up(&self, id: PipeId, packet: &Packet, flows: &dyn FlowSource, now_ns: u64) -> Lookup {
        let (pipe, state) = (&self.program.pipes[id.index()], &self.pipes[id.index()]);
        let key = key_fields(pipe, packet);
        if let Some(entries) = flows.entries() {
            self.sift(id, packet, &key, entries);
        }
        let failed: Vec<_> = key.iter().filter_map(failed_constant).collect();
        if !failed.is_empty() {
            let nearest = nearest(&key, state.rows()).map(|near| near.shown);
            return Lookup::new(key, Found::Miss(Miss { failed, nearest }));
        }
        let mut answer = match &pipe.kind {
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => by_entries(pipe, state, key),
            PipeKind::Hash { input, group } => self.by_hash(id, packet, key, (input, *group), now_ns),
            PipeKind::Flow { key: source, .. } => {
                let mut answer = Lookup::new(key, Found::NoTarget);
                self.by_flow(id, *source, packet, FlowsAt { flows, now_ns }, &mut answer);
                answer
            }
        };
        if let Some(measured) = pipe.sums_up() {
            answer.effects.push(Effect::Met { pipe: id });
            answer.effects.push(match packet.key(measured.key) {
                Some(key) => {
                    let target = match &answer.found {
                        Found::Row(row) => {
                            target_of(&self.program, &pipe.kind, &state.rows()[*row].entry.matches)
                        }
                        Found::Miss(_) | Found::NoTarget | Found::NoNatPort | Found::AnswersTaken => {
                            NO_TARGET_OBSERVED
                        }
                    };
                    let observed = Observed { target, ..packet.observed(measured.key) };
                    Effect::Sum { pipe: id, key, bytes: packet.bytes.len(), observed }
                }
                None => Effect::Unflowed { pipe: id, why: Why::NoKey },
            });
        }
        answer
    }

    /// Returns the group that a packet picks from, or how its metadata fails to choose one.
    pub(super) fn group_for(&self, packet: &Packet, choice: GroupChoice) -> Result<GroupId, Difference> {
        let field = match choice {
            GroupChoice::One(group) => return Ok(group),
            GroupChoice::ByMeta(0) => Field::Meta0,
            GroupChoice::ByMeta(1) => Field::Meta1,
            GroupChoice::ByMeta(2) => Field::Meta2,
            GroupChoice::ByMeta(_) => Field::Meta3,
        };
        let value = packet.read(field).unwrap_or_default();
        let has = |number: Option<u16>| number.is_some_and(|number| u128::from(number) == value);
        let at = self.program.groups.iter().position(|group| has(group.number));
        at.map(|at| GroupId(at as u16)).ok_or_else(|| Difference {
            name: field.to_string(),
            wanted: "the number of a group".to_string(),
            actual: Some(value.to_string()),
            bits: 0,
        })
    }

    /// Returns the addresses of both back ends of a packet's row in a group filled like the GLB director's.
    pub(super) fn hops(&self, pipe: &Pipe, packet: &Packet) -> [u32; 2] {
        let group = pipe.kind.group().and_then(|choice| self.group_for(packet, choice).ok());
        let group = group.map(|group| &self.program.groups[group.index()]);
        let flow = packet.key(pipe.kind.key_source());
        match (group, flow) {
            (Some(group @ Group { fill: Fill::Glb(_, hash), .. }), Some(flow)) => {
                hops_of(group, hash.row(&flow) as u32)
            }
            _ => [0; 2],
        }
    }

    fn by_hash(
        &self,
        id: PipeId,
        packet: &Packet,
        key: Vec<KeyField>,
        (input, choice): (&HashInput, GroupChoice),
        now_ns: u64,
    ) -> Lookup {
        let state = &self.pipes[id.index()];
        let group = match self.group_for(packet, choice) {
            Ok(group) => group,
            Err(failed) => {
                return Lookup::new(key, Found::Miss(Miss { failed: vec![failed], nearest: None }));
            }
        };
        let hash = match input {
            HashInput::RoundRobin => return self.in_turn(id, key, group, now_ns),
            HashInput::Quic => return self.by_server(id, packet, key, (choice, group)),
            HashInput::Select(source) => Some(packet.select_hash(*source, self.program.select_seed)),
            // Buckets are picked by the upper 32 bits, so the NIC's hash is in both halves.
            HashInput::Rss if packet.hash != 0 => Some(u64::from(packet.hash) * 0x1_0000_0001),
            HashInput::Rss => Some(packet.select_hash(KeySource::Outer, self.program.select_seed)),
            HashInput::Fields(fields) => self.hash_of_fields(packet, fields),
        };
        let Some(hash) = hash else {
            let failed = key.iter().filter(|field| field.actual.is_none()).map(absent).collect();
            return Lookup::new(key, Found::Miss(Miss { failed, nearest: None }));
        };
        let rss = match (input, packet.hash) {
            (HashInput::Rss, 0) => Rss::Absent,
            (HashInput::Rss, hash) => Rss::Taken(hash),
            _ => Rss::NotAsked,
        };
        let pick = Pick { rss, ..self.pick(group, hash, packet.key(input.source()), now_ns) };
        let row = pick.target.as_ref().and_then(|(target, _)| state.row_of(&row_key(choice, group, *target)));
        Lookup { pick: Some(pick), ..Lookup::new(key, row.map_or(Found::NoTarget, Found::Row)) }
    }

    /// Picks the target whose server ID is in the packet's connection ID.
    fn by_server(
        &self,
        id: PipeId,
        packet: &Packet,
        key: Vec<KeyField>,
        (choice, group): (GroupChoice, GroupId),
    ) -> Lookup {
        let declared = &self.program.groups[group.index()];
        let configs = declared.quic.as_deref().unwrap_or_default();
        let server_id = quic::payload(packet).and_then(|payload| quic::server_id(configs, payload));
        let has = |target: &Target| {
            target.server_id.is_some_and(|one| server_id.as_deref() == Some(one.as_bytes()))
        };
        let target = declared.targets.iter().position(has);
        let row = target.and_then(|at| self.pipes[id.index()].row_of(&row_key(choice, group, at as u16)));
        let (Some(target), Some(row)) = (target, row) else {
            let wanted = format!("that of a target of group {} with an entry", declared.name);
            let failed = Difference {
                name: "server ID".into(),
                wanted,
                actual: server_id.as_ref().map(|id| write_hex(id, "")),
                bits: 0,
            };
            return Lookup::new(key, Found::Miss(Miss { failed: vec![failed], nearest: None }));
        };
        let named = Some((target as u16, declared.targets[target].name.clone()));
        let pick = Pick {
            group,
            name: declared.name.clone(),
            hash: 0,
            foreign: false,
            source: None,
            remembered: false,
            rss: Rss::NotAsked,
            turn: None,
            fewest: None,
            server_id,
            bucket: 0,
            moving: super::trace::Moving::No,
            target: named,
        };
        Lookup { pick: Some(pick), ..Lookup::new(key, Found::Row(row)) }
    }

    /// Picks in turn: the n-th packet of the pipe gets bucket n modulo the number of buckets.
    fn in_turn(&self, id: PipeId, key: Vec<KeyField>, group: GroupId, now_ns: u64) -> Lookup {
        let state = &self.pipes[id.index()];
        let bucket = (state.turns % self.buckets[group.index()].len() as u64) as usize;
        let pick = Pick { turn: Some(state.turns), ..self.pick_bucket(group, bucket, now_ns) };
        let row = pick.target.as_ref().and_then(|(target, _)| state.row_of(&EntryMatch::Target(*target)));
        let answer = Lookup::new(key, row.map_or(Found::NoTarget, Found::Row));
        Lookup { pick: Some(pick), effects: vec![Effect::Turn { pipe: id }], ..answer }
    }

    fn hash_of_fields(&self, packet: &Packet, fields: &[(weir_packet::Field, u128)]) -> Option<u64> {
        let mut words = Vec::new();
        for (field, mask) in fields {
            let value = packet.read(*field)? & mask;
            if width(*field) > 64 {
                words.push((value >> 64) as u64);
            }
            words.push(value as u64);
        }
        Some(select_hash(self.program.select_seed, &words))
    }

    /// Returns the bucket of a hash and its target, or the bucket that another system's hash gives the flow.
    pub(super) fn pick(&self, id: GroupId, hash: u64, flow: Option<FlowKey>, now_ns: u64) -> Pick {
        let (group, slots) = (&self.program.groups[id.index()], &self.buckets[id.index()]);
        if let Some(hash) = flow.and_then(|flow| group.fill.hash(&flow)) {
            let bucket = (hash % u64::from(group.size)) as usize;
            return Pick { hash, foreign: true, ..self.pick_bucket(id, bucket, now_ns) };
        }
        let source = group.affinity.zip(flow).map(|(affinity, flow)| prefix(affinity, flow.src()));
        let hash = source.map_or(hash, |(first, _)| self.hash_of_address(first));
        let hash = group.seed.map_or(hash, |seed| mixed(hash ^ seed));
        let bucket = ((u128::from(hash >> 32) * slots.len() as u128) >> 32) as usize;
        Pick { hash, source, ..self.pick_bucket(id, bucket, now_ns) }
    }

    fn hash_of_address(&self, address: IpAddr) -> u64 {
        let bits = match address {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address),
        };
        let (upper, lower) = ((bits >> 64) as u64, (bits & u128::from(u64::MAX)) as u64);
        select_hash(self.program.select_seed, &[upper, lower])
    }

    fn pick_bucket(&self, id: GroupId, bucket: usize, now_ns: u64) -> Pick {
        let group = &self.program.groups[id.index()];
        let target = self.target_of(id, bucket, now_ns);
        let target = group.targets.get(usize::from(target)).map(|one| (target, one.name.clone()));
        let moving = self.moving(id, bucket, now_ns);
        Pick {
            group: id,
            name: group.name.clone(),
            hash: 0,
            rss: Rss::NotAsked,
            foreign: false,
            source: None,
            remembered: false,
            turn: None,
            fewest: None,
            server_id: None,
            bucket,
            moving,
            target,
        }
    }

    fn by_flow(&self, id: PipeId, source: KeySource, packet: &Packet, at: FlowsAt<'_>, answer: &mut Lookup) {
        let state = &self.pipes[id.index()];
        let unflowed = |why| Effect::Unflowed { pipe: id, why };
        answer.effects.push(Effect::Met { pipe: id });
        let Some(key) = packet.key(source) else {
            answer.effects.push(unflowed(Why::NoKey));
            answer.flow = Some(FlowMet::new(None, Known::No));
            answer.found = Found::Miss(Miss { failed: vec![super::near::no_ip()], nearest: None });
            return;
        };
        if let Some(row) = state.row_of(&EntryMatch::Flow(key)) {
            answer.flow = Some(FlowMet::new(Some(key), Known::Found(FlowDecision::Own)));
            answer.found = Found::Row(row);
            let bare = || state.keep_bare(&state.rows()[row].entry);
            answer.kept = at.flows.kept(id, &key).unwrap_or_else(bare);
            answer.effects.push(packet.counts_in(id, key, source));
            return;
        }
        let known = at.flows.flow(id, &key);
        if let Some(ended) = known.filter(|flow| self.reopens(id, packet, flow)) {
            answer.effects.push(Effect::Reopened { pipe: id, key });
            let one_group = matches!(self.program.pipes[id.index()].kind.group(), Some(GroupChoice::One(_)));
            let without = Without { flows: at.flows, pipe: id, ended, one_group };
            self.by_known(id, packet, key, None, FlowsAt { flows: &without, ..at }, answer);
            answer.flow = answer.flow.map(|met| FlowMet { reopened: true, ..met });
        } else {
            self.by_known(id, packet, key, known, at, answer);
        }
    }

    /// Looks up a packet by its known flow, which does not have an entry of its own.
    fn by_known(
        &self,
        id: PipeId,
        packet: &Packet,
        key: FlowKey,
        known: Option<FlowSnapshot>,
        at: FlowsAt<'_>,
        answer: &mut Lookup,
    ) {
        let state = &self.pipes[id.index()];
        let unflowed = |why| Effect::Unflowed { pipe: id, why };
        let PipeKind::Flow { key: source, learn, .. } = self.program.pipes[id.index()].kind else { return };
        let counted = packet.counts_in(id, key, source);
        // Sentences A20 and N3. Known flows do not need a group.
        let learn =
            if known.is_none() && self.begins_no_flow(id, packet, &key) { Learn::Nothing } else { learn };
        let group = match learn.group().map(|choice| (choice, self.group_for(packet, choice))) {
            Some((choice, Ok(group))) => Some((choice, group)),
            // A flow that is pinned or has its own entry needs no group.
            Some((_, Err(failed)))
                if known.as_ref().is_none_or(|flow| flow.decision == FlowDecision::FollowChosen) =>
            {
                let known = known.map_or(Known::No, |flow| Known::Found(flow.decision));
                answer.flow = Some(FlowMet::new(Some(key), known));
                answer.found = Found::Miss(Miss { failed: vec![failed], nearest: None });
                answer.effects.push(unflowed(Why::NoGroup));
                return;
            }
            _ => None,
        };
        if let Some(flow) = known {
            answer.flow = Some(FlowMet::new(Some(key), Known::Found(flow.decision)));
            self.decide(state, &key, flow.decision, group, answer);
            // A flow in a worker may have ended since it was looked up: then this packet begins it again.
            answer.kept = match (at.flows.kept(id, &key), &answer.found) {
                (Some(kept), _) => kept,
                (None, Found::Row(row)) => self.keep(id, *row, packet, flow.binding),
                (None, _) => Vec::new(),
            };
            answer.effects.push(match answer.found {
                Found::Row(_) if self.is_about_pinned(id, packet) => unflowed(Why::IcmpError),
                Found::Row(_) => counted,
                _ => unflowed(Why::NoTarget),
            });
            return;
        }
        self.by_new_flow(NewFlow { pipe: id, packet, key, learn, group }, counted, at, answer);
    }

    /// Returns whether the packet is an ICMP error in a pipe that pins flows, or belongs to a flow that could
    /// not take an address from the pipe's NAT pool.
    fn begins_no_flow(&self, id: PipeId, packet: &Packet, key: &FlowKey) -> bool {
        let nat = &self.pipes[id.index()].nat;
        let cannot_be_bound = || {
            let source = if nat.is_ipv4() { Field::Ipv4Src } else { Field::Ipv6Src };
            let has = |field: Field| packet.read(field).is_some();
            !has(source) || !has(Field::L4Sport) || nat.has(key.dst())
        };
        self.is_about_pinned(id, packet) || nat.is_there() && cannot_be_bound()
    }

    /// Returns whether the packet is an ICMP error about a flow, in a pipe that pins flows.
    fn is_about_pinned(&self, id: PipeId, packet: &Packet) -> bool {
        match self.program.pipes[id.index()].kind {
            PipeKind::Flow { key, learn: Learn::Pin(_), .. } => packet.is_error(key),
            _ => false,
        }
    }

    /// Looks up a packet whose flow is unknown.
    fn by_new_flow(&self, new: NewFlow<'_>, counted: Effect, at: FlowsAt<'_>, answer: &mut Lookup) {
        let NewFlow { pipe: id, packet, key, learn, group } = new;
        let state = &self.pipes[id.index()];
        let unflowed = |why| Effect::Unflowed { pipe: id, why };
        let pins = group.filter(|_| matches!(learn, Learn::Pin(_)));
        let pick = pins.map(|(_, group)| self.pick_new(id, group, packet, key, at));
        let Some(decision) = decision_for(learn, group, pick, answer) else {
            answer.flow = Some(FlowMet::new(Some(key), Known::No));
            answer.effects.push(unflowed(match learn {
                Learn::Nothing => Why::Unknown,
                Learn::Default | Learn::Pin(_) | Learn::Follow(_) => Why::NoTarget,
            }));
            if learn == Learn::Nothing {
                let nearest = nearest_flow(&key, state.rows()).map(|near| near.shown);
                answer.found = Found::Miss(Miss { failed: Vec::new(), nearest });
            }
            return;
        };
        self.decide(state, &key, decision, group, answer);
        let Found::Row(row) = answer.found else {
            answer.effects.push(unflowed(Why::NoTarget));
            answer.flow = Some(FlowMet::new(Some(key), Known::No));
            return;
        };
        let binding = state.nat.is_there().then(|| at.flows.next_binding(id, &key, None));
        if binding == Some(None) {
            return answer.without_port(id, key);
        }
        let binding = binding.flatten();
        answer.kept = self.keep(id, row, packet, binding);
        let answers = match self.answers(id, &key, (row, binding), packet, at.flows) {
            Ok(answers) => answers,
            Err(Taken) => return answer.without_answers(id, key),
        };
        let known = if at.flows.has_room(id, 1 + answers.iter().len()) {
            let kept = answer.kept.clone();
            if let Some(Pick { group, turn: Some(turn), .. }) = answer.pick {
                answer.effects.push(Effect::TurnOfFlow { pipe: id, group, turn });
            }
            let begun = Effect::Learn { pipe: id, key, decision, kept, binding, answers: None };
            answer.effects.extend([begun, counted]);
            answer.effects.extend(self.remembers(id, answer.pick.as_ref()));
            answer.effects.extend(answers);
            Known::Learnt(decision)
        } else if binding.is_some() {
            answer.effects.push(unflowed(Why::Full));
            answer.found = Found::NoNatPort;
            Known::Full(decision)
        } else {
            self.without_room(new, answer)
        };
        answer.flow = Some(FlowMet::new(Some(key), known));
    }

    /// Looks up a packet whose flow is unknown and finds no room: it goes where the hash says.
    fn without_room(&self, new: NewFlow<'_>, answer: &mut Lookup) -> Known {
        let NewFlow { pipe: id, packet, key, learn, group } = new;
        let hash = select_hash(self.program.select_seed, &key.0);
        let pick = match (learn, group) {
            (Learn::Pin(_), Some(_)) if answer.pick.as_ref().is_some_and(|pick| pick.remembered) => {
                answer.pick.clone()
            }
            (Learn::Pin(_), Some((_, group))) => Some(self.pick(group, hash, Some(key), 0)),
            _ => None,
        };
        let unflowed = |why| Effect::Unflowed { pipe: id, why };
        let decision = decision_for(learn, group, pick, answer);
        if let Some(decision) = decision {
            self.decide(&self.pipes[id.index()], &key, decision, group, answer);
        }
        match (decision, &answer.found) {
            (Some(decision), Found::Row(row)) => {
                answer.kept = self.keep(id, *row, packet, None);
                answer.effects.push(unflowed(Why::Full));
                Known::Full(decision)
            }
            _ => {
                answer.found = Found::NoTarget;
                answer.effects.push(unflowed(Why::NoTarget));
                Known::No
            }
        }
    }

    /// Finds the entry for a flow's decision; `group` is the group that the packet picks from.
    fn decide(
        &self,
        state: &PipeState,
        key: &FlowKey,
        decision: FlowDecision,
        group: Option<(GroupChoice, GroupId)>,
        answer: &mut Lookup,
    ) {
        let wanted = match decision {
            FlowDecision::Default => Some(EntryMatch::Default),
            FlowDecision::Pinned(target) => Some(EntryMatch::Target(target)),
            FlowDecision::PinnedIn(group, target) => Some(EntryMatch::Member { group, target }),
            FlowDecision::Follow(_) | FlowDecision::FollowChosen => group.and_then(|(choice, group)| {
                let pick = self.pick(group, select_hash(self.program.select_seed, &key.0), Some(*key), 0);
                let target = pick.target.as_ref().map(|(target, _)| row_key(choice, group, *target));
                answer.pick = Some(pick);
                target
            }),
            FlowDecision::Own => Some(EntryMatch::Flow(*key)),
        };
        let row = wanted.and_then(|wanted| state.row_of(&wanted));
        answer.found = row.map_or(Found::NoTarget, Found::Row);
    }
}

/// Returns the first address of the prefix that a source is in, and the prefix's length.
fn prefix(affinity: Affinity, source: IpAddr) -> (IpAddr, u8) {
    let keep = |octets: &mut [u8], length: u8| {
        for (octet, at) in octets.iter_mut().zip(0_u8..) {
            let kept = length.saturating_sub(at * 8).min(8);
            *octet &= (0xff00_u16 >> kept) as u8;
        }
    };
    match source {
        IpAddr::V4(source) => {
            let mut octets = source.octets();
            keep(&mut octets, affinity.ipv4);
            (octets.into(), affinity.ipv4)
        }
        IpAddr::V6(source) => {
            let mut octets = source.octets();
            keep(&mut octets, affinity.ipv6);
            (octets.into(), affinity.ipv6)
        }
    }
}

/// Returns the decision that the first packet of a flow would write; `None` if it would write none. `pick` is
/// the target that the flow is pinned to.
fn decision_for(
    learn: Learn,
    group: Option<(GroupChoice, GroupId)>,
    pick: Option<Pick>,
    answer: &mut Lookup,
) -> Option<FlowDecision> {
    let by_meta = matches!(group, Some((GroupChoice::ByMeta(_), _)));
    match (learn, group) {
        (Learn::Nothing, _) => None,
        (Learn::Default, _) => Some(FlowDecision::Default),
        (Learn::Follow(_), _) if by_meta => Some(FlowDecision::FollowChosen),
        (Learn::Follow(_), group) => group.map(|(_, group)| FlowDecision::Follow(group)),
        (Learn::Pin(_), group) => {
            let (_, group) = group?;
            let target = pick.as_ref().and_then(|pick| pick.target.as_ref()).map(|(target, _)| *target);
            answer.pick = pick;
            let target = target?;
            Some(match by_meta {
                true => FlowDecision::PinnedIn(group, target),
                false => FlowDecision::Pinned(target),
            })
        }
    }
}

/// Returns how the entry of a target is named: with its group, if metadata has chosen the group.
pub(super) fn row_key(choice: GroupChoice, group: GroupId, target: u16) -> EntryMatch {
    match choice {
        GroupChoice::One(_) => EntryMatch::Target(target),
        GroupChoice::ByMeta(_) => EntryMatch::Member { group, target },
    }
}

/// One step of splitmix64 from a state: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// 2014.
pub(super) fn mixed(state: u64) -> u64 {
    let mut word = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
        word ^= word >> shift;
        word = word.wrapping_mul(factor);
    }
    word ^ (word >> 31)
}

/// Returns the fields that a pipe compares or hashes, with the packet's values.
fn key_fields(pipe: &Pipe, packet: &Packet) -> Vec<KeyField> {
    let one = |field, asked| KeyField { field, actual: packet.read(field), asked };
    let matched = pipe.matches.iter().map(|wanted| one(wanted.field, Asked::Match(wanted.criterion)));
    let hashed = match &pipe.kind {
        PipeKind::Hash { input: HashInput::Fields(fields), .. } => fields.as_slice(),
        _ => &[],
    };
    matched.chain(hashed.iter().map(|(field, mask)| one(*field, Asked::Hashed(*mask)))).collect()
}

pub(super) fn failed_constant(field: &KeyField) -> Option<super::trace::Difference> {
    match field.asked {
        Asked::Match(criterion @ Criterion::Const { .. }) => {
            (!satisfies(field, criterion, None)).then(|| difference(field, criterion, None))
        }
        _ => None,
    }
}

/// Looks up in a BASIC, LPM or ACL pipe.
fn by_entries(pipe: &Pipe, state: &PipeState, key: Vec<KeyField>) -> Lookup {
    match best(pipe, &key, state.rows()) {
        Some(at) => Lookup::new(key, Found::Row(at)),
        None => {
            let nearest = nearest(&key, state.rows()).map(|near| near.shown);
            Lookup::new(key, Found::Miss(Miss { failed: Vec::new(), nearest }))
        }
    }
}

/// Returns the entry that a packet hits in a BASIC, LPM or ACL pipe.
pub(super) fn best(pipe: &Pipe, key: &[KeyField], rows: &[Row]) -> Option<usize> {
    let matching = rows.iter().enumerate().filter(|(_, row)| matches_row(key, row));
    // Among equal entries, `min_by_key` takes the first.
    let best = match pipe.kind {
        PipeKind::Acl => matching.min_by_key(|(_, row)| row.entry.priority),
        PipeKind::Lpm => matching.min_by_key(|(_, row)| std::cmp::Reverse(prefix_length(row))),
        _ => matching.min_by_key(|_| 0),
    };
    best.map(|(at, _)| at)
}

fn matches_row(key: &[KeyField], row: &Row) -> bool {
    per_entry(key)
        .zip(&row.entry.matches)
        .all(|((field, criterion), wanted)| satisfies(field, criterion, Some(wanted)))
}

fn prefix_length(row: &Row) -> u8 {
    row.entry
        .matches
        .iter()
        .find_map(|wanted| if let EntryMatch::Prefix { length, .. } = wanted { Some(*length) } else { None })
        .unwrap_or_default()
}
