//! Random programs: one to eight pipes of all types, each forwarding to later ones only.

use super::Choices;
use super::actions::{Flows, operation, template};
use super::entries::entries;
use super::pools::{mask, value};
use std::net::IpAddr;
use weir_packet::{Field, KeySource, TunnelKind};
use weir_program::operation::{NatPart, Operation, Stage, Value};
use weir_program::{
    Affinity, AppId, CounterId, Criterion, Encap, Fill, FlowState, Forward, Group, GroupChoice, GroupId,
    HashInput, Learn, Match, Measured, MeterConfig, MeterDeclaration, MeterId, MeterSecond, MeterUnit,
    Monitor, NatPool, NatPoolId, NatPrefix, NewFlows, Origin, OwnedBy, Pipe, PipeId, PipeKind,
    PortDeclaration, PortId, Program, QuicConfig, ServerId, SharedUse, Target, Template, Timeouts,
};
use weir_table::{GlbHash, KatranHash, KatranVersion};

/// A random program that passes the check, except that it may read metadata that was never written.
#[must_use]
pub fn program(random: &mut Choices) -> Program {
    let pipes = random.between(1, 8);
    let mut program = Program {
        ports: ports(random, pipes),
        counters: names("counter", random.below(4)),
        apps: names("app", random.below(3)),
        select_seed: random.bits(),
        follow_fragments: random.percent(50),
        ..Program::default()
    };
    if random.percent(10) {
        program.tunnels.set(random.pick(&[TunnelKind::Vxlan, TunnelKind::Geneve, TunnelKind::Gue]), 53);
    }
    program.meters = (0..random.below(6)).map(|at| meter(random, at)).collect();
    program.groups = (0..random.below(4)).map(|at| group(random, &program, pipes, at)).collect();
    let mut maker = Maker { meters: (0..program.meters.len() as u16).map(MeterId).collect(), program, pipes };
    for at in 0..pipes {
        let pipe = maker.pipe(random, at);
        maker.program.pipes.push(pipe);
    }
    maker.program
}

fn names(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|at| format!("{what}{at}")).collect()
}

fn ports(random: &mut Choices, pipes: usize) -> Vec<PortDeclaration> {
    let kernel_path = random.percent(70);
    let port = |at: usize, random: &mut Choices| PortDeclaration {
        root: match random.below(10) {
            0 if at > 0 => None,
            1 | 2 => Some(PipeId(random.below(pipes) as u16)),
            _ => Some(PipeId(0)),
        },
        kernel_path,
        ..PortDeclaration::new(format!("port{at}")).origin(Origin(at as u32 + 1))
    };
    (0..random.between(2, 4)).map(|at| port(at, random)).collect()
}

fn meter(random: &mut Choices, at: usize) -> MeterDeclaration {
    let unit = random.pick(&[MeterUnit::Bytes, MeterUnit::Packets]);
    let (rates, bursts): (&[u64], &[u64]) = match unit {
        MeterUnit::Bytes => (&[1, 1_000, 33_333, 1_000_000_007], &[64, 150, 1_500]),
        MeterUnit::Packets => (&[1, 7, 1_000, 333_333_333], &[1, 2, 5]),
    };
    let (cir, cbs) = (random.pick(rates), random.pick(bursts));
    let second = if random.percent(50) {
        MeterSecond::Excess { ebs: if random.percent(20) { 0 } else { random.pick(bursts) } }
    } else {
        MeterSecond::Peak { pir: cir + random.pick(&[0, 1, 500]), pbs: random.pick(bursts) }
    };
    let config = MeterConfig { unit, cir, cbs, second, colour_aware: random.percent(60) };
    MeterDeclaration::new(format!("meter{at}"), config).origin(Origin(100 + at as u32))
}

fn group(random: &mut Choices, program: &Program, pipes: usize, at: usize) -> Group {
    let fill = random.pick(&[Fill::Maglev, Fill::Wants, Fill::Given]);
    let size = match fill {
        Fill::Maglev => random.pick(&[5, 7, 13, 61]),
        Fill::Wants => random.pick(&[4, 8, 64, 256]),
        Fill::Given => random.pick(&[1, 2, 2, 16]),
        Fill::Katran(..) | Fill::Glb(..) => unreachable!("chosen below"),
    };
    let dead = random.percent(10);
    // Pipes before this one may use the group.
    let onward = random.between(1, pipes);
    let target = |number: usize, random: &mut Choices| Target {
        name: format!("target{number}"),
        weight: if dead || random.percent(15) { 0 } else { random.between(1, 3) as u32 },
        inactive: random.percent(20),
        address: Some(IpAddr::from([10, 0, 0, number as u8])),
        server_id: ServerId::new(&[number as u8]),
        forward: match random.below(8) {
            0 => Forward::InputPort,
            1 => Forward::Drop,
            2 if program.ports[0].kernel_path => Forward::Kernel,
            3 | 4 if onward < pipes => Forward::Pipe(PipeId(random.between(onward, pipes - 1) as u16)),
            5 if !program.apps.is_empty() => Forward::App(AppId(random.below(program.apps.len()) as u16)),
            _ => Forward::Port(PortId(random.below(program.ports.len()) as u16)),
        },
        origin: Origin(300 + number as u32),
    };
    let targets = (0..random.between(1, 4)).map(|number| target(number, random)).collect();
    let seed = random.percent(40).then(|| random.bits());
    let (fill, size, seed) = match seed.filter(|_| fill == Fill::Maglev).and_then(foreign) {
        Some(fill) => (fill, fill.fixed_size().unwrap_or_default(), None),
        None => (fill, size, seed),
    };
    let new_flows = match fill {
        Fill::Maglev | Fill::Wants => {
            random.pick(&[NewFlows::Hash, NewFlows::Hash, NewFlows::RoundRobin, NewFlows::LeastFlows])
        }
        Fill::Given | Fill::Katran(..) | Fill::Glb(..) => NewFlows::Hash,
    };
    let by_source = new_flows == NewFlows::Hash && matches!(fill, Fill::Maglev | Fill::Wants);
    let affinity = (by_source && random.percent(25)).then(|| Affinity {
        ipv4: random.between(0, 32) as u8,
        ipv6: random.between(0, 128) as u8,
        timeout_ns: random.pick(&[0, 1, 3_000_000_000]),
    });
    // A value that metadata often has; it starts as 0.
    let number = random.percent(70).then_some(at as u16 + 1);
    let (name, origin) = (format!("group{at}"), Origin(200 + at as u32));
    let quic = random.percent(25).then(|| quic(random).into());
    let apps = program.apps.len();
    let no_target = (apps > 0 && random.percent(40)).then(|| AppId(random.below(apps) as u16));
    // Not a random choice of its own, which would change everything that follows from a seed.
    let idle = no_target;
    Group { name, number, fill, size, seed, new_flows, affinity, quic, no_target, idle, targets, origin }
}

/// Configurations that encode server IDs of one octet.
fn quic(random: &mut Choices) -> Vec<QuicConfig> {
    let mut one = |id| {
        let key = random.percent(40).then(|| [random.below(256) as u8; 16]);
        QuicConfig { id, server_id: 1, nonce: random.pick(&[4, 5, 15]), key }
    };
    [0, 1, 2].map(&mut one).into()
}

/// Makes another system's fill from random bits; rarely, because such fills have many buckets.
fn foreign(bits: u64) -> Option<Fill> {
    let has = |bit: u32| bits >> (8 + bit) & 1 == 1;
    let version = if has(0) { KatranVersion::V1 } else { KatranVersion::V2 };
    let hash = KatranHash { any_port: has(1), no_sport: has(2), dport_only: has(3) };
    let fields = (bits >> 16) as u8 % 15 + 1;
    match bits % 24 {
        0 | 1 => Some(Fill::Katran(version, hash)),
        2 => Some(Fill::Glb([7; 16], GlbHash { key: [(bits >> 24) as u8; 16], fields })),
        _ => None,
    }
}

/// A forward that a pipe may use: the next pipes, ports, groups that lead onward, and so on.
pub(super) fn forward(random: &mut Choices, program: &Program, at: usize, pipes: usize) -> Forward {
    let groups = groups_onward(program, at);
    match random.weighted(&[50, 20, 6, 12, 5, 5, 5, 6]) {
        0 if at + 1 < pipes => {
            let last = if random.percent(70) { (at + 2).min(pipes - 1) } else { pipes - 1 };
            Forward::Pipe(PipeId(random.between(at + 1, last) as u16))
        }
        2 => Forward::InputPort,
        3 if !groups.is_empty() => Forward::Group(random.pick(&groups)),
        4 if !program.apps.is_empty() => Forward::App(AppId(random.below(program.apps.len()) as u16)),
        5 if program.ports[0].kernel_path => Forward::Kernel,
        6 => Forward::Drop,
        7 if !program.groups.is_empty() => Forward::Flood(GroupId(random.below(program.groups.len()) as u16)),
        _ => Forward::Port(PortId(random.below(program.ports.len()) as u16)),
    }
}

/// A forward of the pipe as a whole, which may also copy to an app.
fn own_forward(random: &mut Choices, program: &Program, at: usize, pipes: usize) -> Forward {
    match forward(random, program, at, pipes) {
        Forward::Pipe(next) if !program.apps.is_empty() && random.percent(25) => {
            Forward::Tee { app: AppId(random.below(program.apps.len()) as u16), next }
        }
        other => other,
    }
}

/// Returns the groups without a target that leads to this pipe or an earlier one.
fn groups_onward(program: &Program, at: usize) -> Vec<GroupId> {
    let onward = |target: &Target| !matches!(target.forward, Forward::Pipe(pipe) if pipe.index() <= at);
    let groups = (0..).map(GroupId).zip(&program.groups);
    groups.filter(|(_, group)| group.targets.iter().all(onward)).map(|(id, _)| id).collect()
}

/// Whether a pipe picks rows of a group, so that a packet has a second chance.
fn picks_rows(kind: &PipeKind) -> bool {
    let is_hash = matches!(kind, PipeKind::Hash { input, .. } if !matches!(input, HashInput::Select(_)));
    kind.group().is_some() && !is_hash
}

/// Removes a second chance where the check would refuse it.
fn allow_second_chance(kind: &PipeKind, operation: &mut Operation) {
    if let Operation::Encap(encap) = operation {
        encap.second_chance &= picks_rows(kind) && !encap.ipv6 && !encap.bare;
    }
}

/// A program under construction.
struct Maker {
    program: Program,
    pipes: usize,
    /// Meters that no pipe uses yet.
    meters: Vec<MeterId>,
}

impl Maker {
    fn pipe(&mut self, random: &mut Choices, at: usize) -> Pipe {
        let kind = self.kind(random);
        let flows = match kind {
            PipeKind::Flow { reverse: true, .. } => Flows::Answered,
            _ if kind.keeps_values() => Flows::Kept,
            _ => Flows::None,
        };
        let mut templates: Vec<_> =
            (0..random.between(1, 3)).map(|number| template(random, number, flows)).collect();
        templates.iter_mut().for_each(|template| self.second_chances(random, &kind, template));
        let nat =
            (flows == Flows::Answered && random.percent(50)).then(|| self.nat_pool(random, &mut templates));
        let operations = templates.iter_mut().flat_map(|template| &mut template.operations);
        operations.for_each(|operation| allow_second_chance(&kind, operation));
        let per_entry = random.percent(35);
        let forward = |random: &mut Choices, program: &Program| own_forward(random, program, at, self.pipes);
        let matches = matches(random, &kind);
        let mut pipe =
            Pipe::new(format!("pipe{at}"), kind).origin(Origin(1000 + 100 * at as u32)).actions(templates);
        pipe.matches = matches;
        pipe.nat = nat;
        pipe.forward = if per_entry { Forward::PerEntry } else { forward(random, &self.program) };
        pipe.miss = forward(random, &self.program);
        let apps = self.program.apps.len();
        pipe.too_long = (apps > 0 && random.percent(60)).then(|| AppId(random.below(apps) as u16));
        pipe.rehash = random.percent(20);
        pipe.monitor = self.monitor(random);
        pipe.entries = entries(random, &self.program, &pipe, at, self.pipes).into();
        // ACL tables store pieces of rules, so their capacity is not exact.
        let room = if pipe.kind == PipeKind::Acl { 64 } else { random.pick(&[0, 1, 2, 4, 60]) };
        if matches!(pipe.kind, PipeKind::Flow { .. }) && nat.is_none() {
            pipe.owner =
                random.pick(&[OwnedBy::Both, OwnedBy::Both, OwnedBy::Addresses, OwnedBy::Src, OwnedBy::Dst]);
        }
        pipe.capacity = (pipe.entries.len() + room).max(1) as u32;
        pipe
    }

    /// Adds second chances where a pipe picks the GLB director's rows.
    fn second_chances(&self, random: &mut Choices, kind: &PipeKind, template: &mut Template) {
        let is_director = |group: &Group| matches!(group.fill, Fill::Glb(..));
        let director = match kind.group().filter(|_| picks_rows(kind)) {
            Some(GroupChoice::One(one)) => is_director(&self.program.groups[one.index()]),
            Some(GroupChoice::ByMeta(_)) => self.program.groups.iter().any(is_director),
            None => false,
        };
        if director && random.percent(60) {
            template.operations.retain(|one| one.stage() < Stage::Encap);
            let blank = Operation::Encap(Encap::new(TunnelKind::Gue));
            if let Operation::Encap(encap) = operation(random, blank, Flows::None)
                && !encap.ipv6
            {
                // Often the address of a target, of which there are up to four.
                let dst = Value::Const(0x0a00_0000 + random.below(4) as u128);
                template.operations.push(Operation::Encap(Encap {
                    second_chance: true,
                    bare: false,
                    dst,
                    ..encap
                }));
            }
        }
    }

    /// Adds a pool, often a small one that is soon exhausted, and prepends an action that uses it to those of
    /// a pipe.
    fn nat_pool(&mut self, random: &mut Choices, templates: &mut Vec<Template>) -> NatPoolId {
        let id = NatPoolId(self.program.nat_pools.len() as u16);
        let is_ipv4 = random.percent(80);
        let first: IpAddr = if is_ipv4 {
            [198, 51, 100, 8 * id.0 as u8].into()
        } else {
            [0x2001, 0xdb8, 0xa, id.0, 0, 0, 0, 0].into()
        };
        let whole = if is_ipv4 { 32 } else { 128 };
        let prefixes = vec![NatPrefix { first, length: whole - random.pick(&[0, 0, 1, 3]) }];
        let (first, last) = random.pick(&[(1024, 1087), (1000, 1077), (40, 150), (64_000, 65_535)]);
        let origin = Origin(200 + u32::from(id.0));
        self.program.nat_pools.push(NatPool { name: format!("nat{}", id.0), prefixes, first, last, origin });
        let mut taking = template(random, 9, Flows::Answered);
        let sources = [Field::Ipv4Src, Field::Ipv6Src, Field::L4Sport, Field::TcpSport, Field::UdpSport];
        taking.operations.retain(|one| one.writes().is_none_or(|field| !sources.contains(&field)));
        let before = taking.operations.iter().filter(|one| one.stage() < Stage::Rewrite).count();
        let address = if is_ipv4 { Field::Ipv4Src } else { Field::Ipv6Src };
        taking.operations.insert(before, Operation::Set(address, Value::Nat(NatPart::Address)));
        taking.operations.insert(before, Operation::Set(Field::L4Sport, Value::Nat(NatPart::Port)));
        templates.insert(0, taking);
        id
    }

    /// A kind of pipe. From a group that is filled like another system's, packets pick by their flow keys.
    fn kind(&self, random: &mut Choices) -> PipeKind {
        let source = random.pick(&[KeySource::Outer, KeySource::Outer, KeySource::Inner]);
        let by_key = |choice: GroupChoice| {
            let picked = |(at, group): (usize, &Group)| match choice {
                GroupChoice::One(one) => one.index() == at,
                GroupChoice::ByMeta(_) => group.number.is_some(),
            };
            let mut groups = self.program.groups.iter().enumerate();
            groups.any(|(at, group)| group.picks_by_key() && picked((at, group)))
        };
        match self.any_kind(random, source) {
            PipeKind::Hash { input: HashInput::Quic, group } => {
                PipeKind::Hash { input: HashInput::Quic, group }
            }
            PipeKind::Hash { group, .. } if by_key(group) => {
                PipeKind::Hash { input: HashInput::Select(source), group }
            }
            kind => kind,
        }
    }

    fn any_kind(&self, random: &mut Choices, source: KeySource) -> PipeKind {
        let group = (!self.program.groups.is_empty())
            .then(|| GroupId(random.below(self.program.groups.len()) as u16));
        let given = |group: GroupId| self.program.groups[group.index()].fill == Fill::Given;
        let has_quic = |group: GroupId| self.program.groups[group.index()].quic.is_some();
        let numbered =
            (0..).map(GroupId).zip(&self.program.groups).filter(|(_, group)| group.number.is_some());
        let numbered: Vec<GroupId> = numbered.map(|(id, _)| id).collect();
        let choice = |random: &mut Choices, group: GroupId, flow: bool| {
            let unable = numbered.is_empty() || flow && numbered.iter().any(|group| given(*group));
            match !unable && random.percent(30) {
                true => GroupChoice::ByMeta(random.pick(&[0, 0, 3, 1, 2])),
                false => GroupChoice::One(group),
            }
        };
        match (random.weighted(&[30, 18, 25, 12, 15]), group) {
            (1, Some(group)) if has_quic(group) && random.percent(50) => {
                PipeKind::Hash { input: HashInput::Quic, group: group.into() }
            }
            (1, Some(group)) if random.percent(15) => {
                PipeKind::Hash { input: HashInput::Rss, group: choice(random, group, false) }
            }
            (1, Some(group)) if random.percent(30) => {
                PipeKind::Hash { input: HashInput::Select(source), group: choice(random, group, false) }
            }
            (1, Some(group)) if random.percent(35) => {
                PipeKind::Hash { input: HashInput::RoundRobin, group: group.into() }
            }
            (1, Some(group)) => {
                let one = |random: &mut Choices| {
                    let field = read_field(random);
                    (field, mask(random, field))
                };
                let fields = (0..random.between(1, 3)).map(|_| one(random)).collect();
                PipeKind::Hash { input: HashInput::Fields(fields), group: choice(random, group, false) }
            }
            (2, group) => {
                let group = group.filter(|group| !given(*group)).map(|group| choice(random, group, true));
                let learn = match (random.below(5), group) {
                    (0, _) => Learn::Nothing,
                    (1, Some(group)) | (2, Some(group)) => Learn::Pin(group),
                    (3, Some(group)) => Learn::Follow(group),
                    _ => Learn::Default,
                };
                let pins = source == KeySource::Outer && matches!(learn, Learn::Pin(_));
                let reverse = pins && random.percent(60);
                PipeKind::Flow {
                    key: source,
                    learn,
                    timeouts: timeouts(random),
                    first: random.percent(30),
                    reverse,
                }
            }
            (3, _) => PipeKind::Lpm,
            (4, _) => PipeKind::Acl,
            _ => PipeKind::Basic,
        }
    }

    fn monitor(&mut self, random: &mut Choices) -> Monitor {
        let counters = self.program.counters.len();
        let counter = (counters > 0 && random.percent(50)).then(|| match random.percent(50) {
            true => SharedUse::PerEntry,
            false => SharedUse::Pipe(CounterId(random.below(counters) as u16)),
        });
        // A meter belongs to one pipe. With meters per entry, the pipe gets all that are left.
        let meter = if self.meters.is_empty() || random.percent(25) {
            None
        } else if random.percent(20) {
            self.meters.clear();
            Some(SharedUse::PerEntry)
        } else {
            self.meters.pop().map(SharedUse::Pipe)
        };
        let idle_timeout_ns = random.pick(&[0, 0, 1, 3_000_000, 150_000_000]);
        let measured = random.percent(30).then(|| Measured {
            period_ms: random.pick(&[1, 3, 100, 5_000]),
            packets: random.pick(&[1, 2, 5, u32::MAX]),
            key: random.pick(&[KeySource::Outer, KeySource::Inner]),
            keys: random.pick(&[1, 20, 100]),
        });
        Monitor { counter, meter, drop_red: random.percent(25), idle_timeout_ns, measured }
    }
}

/// Timeouts of flows, by state half of the time.
fn timeouts(random: &mut Choices) -> Timeouts {
    let one = |random: &mut Choices| random.pick(&[0, 1_000, 5_000_000, 100_000_000]);
    let mut timeouts = Timeouts::all(one(random));
    if random.percent(50) {
        for state in FlowState::ALL {
            timeouts = timeouts.with(state, one(random));
        }
    }
    timeouts
}

/// A field to hash or copy; a port has a name rather than a number.
pub(super) fn read_field(random: &mut Choices) -> Field {
    loop {
        let field = match_field(random);
        if field != Field::InputPort {
            return field;
        }
    }
}

/// A field to match, often one that many packets have.
pub(super) fn match_field(random: &mut Choices) -> Field {
    const COMMON: &[Field] = &[
        Field::EthType,
        Field::EthDst,
        Field::IpVersion,
        Field::IpProtocol,
        Field::IpFragment,
        Field::Ipv4Src,
        Field::Ipv4Dst,
        Field::Ipv6Dst,
        Field::L4Sport,
        Field::L4Dport,
        Field::VxlanVni,
        Field::TunnelId,
        Field::VlanVid,
        Field::InputPort,
        Field::MeterColor,
        Field::Ipv4Dst.inner(),
        Field::IcmpType.inner(),
        Field::ArpTargetIp.inner(),
        Field::Icmpv6Code.inner(),
        Field::Icmpv6Type.inner(),
        Field::SecondVlanPcp.inner(),
        Field::ErrorV4Protocol,
        Field::ErrorV6Protocol,
        Field::ErrorV6Src,
    ];
    if random.percent(45) { random.pick(COMMON) } else { random.pick(Field::ALL) }
}

fn matches(random: &mut Choices, kind: &PipeKind) -> Vec<Match> {
    const PREFIXED: &[Field] = &[
        Field::Ipv4Src,
        Field::Ipv4Dst,
        Field::Ipv4Dst,
        Field::Ipv6Src,
        Field::Ipv6Dst,
        Field::ArpTargetIp,
        Field::Ipv4Dst.inner(),
        Field::Ipv6Dst.inner(),
    ];
    let mut list: Vec<(Field, Criterion)> = Vec::new();
    if random.percent(25) {
        let field = match_field(random);
        let mask = mask(random, field);
        list.push((field, Criterion::Const { value: value(random, field) & mask, mask }));
    }
    let distinct = |random: &mut Choices, count: usize| {
        let mut fields: Vec<Field> = (0..count).map(|_| match_field(random)).collect();
        fields.sort_unstable();
        fields.dedup();
        fields
    };
    match kind {
        PipeKind::Basic => {
            let count = random.between(0, 3);
            for field in distinct(random, count) {
                list.push((field, Criterion::PerEntry { mask: mask(random, field) }));
            }
        }
        PipeKind::Lpm => list.push((random.pick(PREFIXED), Criterion::Prefix)),
        PipeKind::Acl => {
            let count = random.between(1, 3);
            let mut ranges = 0;
            for field in distinct(random, count) {
                let range = ranges < 2 && field.max() <= 0xffff && random.percent(60);
                ranges += usize::from(range);
                list.push((field, if range { Criterion::Range } else { Criterion::Masked }));
            }
        }
        PipeKind::Hash { .. } | PipeKind::Flow { .. } => {}
    }
    list.into_iter().map(|(field, criterion)| Match { field, criterion, origin: Origin::default() }).collect()
}
