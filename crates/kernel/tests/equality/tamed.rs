//! Removes what is never compiled from a random program, so that packets get further.

use crate::uncompiled::{forward, keep, simplify, tame};
use weir_oracle::arbitrary::Choices;
use weir_packet::{Field, KeySource, TunnelKind};
use weir_program::operation::Value;
use weir_program::{
    Criterion, Encap, Entry, Fill, Forward, GlbHash, Group, GroupChoice, HashInput, KatranHash,
    KatranVersion, Operation, Pipe, PipeId, PipeKind, PortDeclaration, PortId, Program, Target,
};

/// Where another system's hash picks from the group, a HASH pipe hashes the flow key: the check refuses
/// everything else (M23).
fn pick_by_flow(pipe: &mut Pipe, foreign: &[bool]) {
    let PipeKind::Hash { input, group } = &mut pipe.kind else { return };
    let is_foreign = match group {
        GroupChoice::One(group) => foreign[group.index()],
        GroupChoice::ByMeta(_) => foreign.contains(&true),
    };
    if is_foreign && !matches!(input, HashInput::Select(_)) {
        *input = HashInput::Select(KeySource::Outer);
    }
}

/// Tames most programs; some stay as they are.
pub fn tamed(mut program: Program, random: &mut Choices) -> Program {
    if random.percent(10) {
        return program;
    }
    if random.percent(88) {
        focus(&mut program, random);
    }
    for group in &mut program.groups {
        group.no_target = None;
        if group.fill == Fill::Given {
            refill(group, random);
        }
        let targets: Vec<_> = group.targets.iter().cloned().collect();
        group.targets = targets
            .into_iter()
            .map(|mut target| {
                target.forward = forward(target.forward);
                target
            })
            .collect();
    }
    let foreign: Vec<bool> = program.groups.iter().map(|group| group.fill.fixed_size().is_some()).collect();
    for pipe in &mut program.pipes {
        pick_by_flow(pipe, &foreign);
        // Values that flows keep have no meaning in another pipe.
        let was_flow = matches!(pipe.kind, PipeKind::Flow { .. });
        tame(pipe);
        if random.percent(85) || was_flow {
            simplify(pipe, false);
        }
    }
    let root = PipeId(random.below(program.pipes.len()) as u16);
    let last = program.ports.len() - 1;
    program.ports[last].root.iter_mut().for_each(|at| *at = root);
    if random.percent(85) {
        keep_one_root(&mut program, random);
    }
    program
}

/// Leaves pipes to one port only: each port has a program of its own, and checking one takes longer than all
/// packets.
fn keep_one_root(program: &mut Program, random: &mut Choices) {
    let with_root = |(_, port): &(usize, &PortDeclaration)| port.root.is_some();
    let ports: Vec<usize> = program.ports.iter().enumerate().filter(with_root).map(|(at, _)| at).collect();
    if !ports.is_empty() {
        let kept = random.pick(&ports);
        let others = program.ports.iter_mut().enumerate().filter(|(at, _)| *at != kept);
        others.for_each(|(_, port)| port.root = None);
    }
}

/// Buckets that are not given at run time, often those of another system.
fn refill(group: &mut Group, random: &mut Choices) {
    let has = |random: &mut Choices| random.percent(50);
    group.fill = match random.below(3) {
        0 => Fill::Maglev,
        1 => {
            let hash = KatranHash { any_port: has(random), no_sport: has(random), dport_only: has(random) };
            Fill::Katran(KatranVersion::V1, hash)
        }
        _ => Fill::Glb([7; 16], GlbHash { key: [9; 16], fields: random.between(1, 15) as u8 }),
    };
    if let Some(size) = group.fill.fixed_size() {
        (group.size, group.seed, group.affinity) = (size, None, None);
    }
}

/// Keeps two ports and one pipe, through which every packet leaves, with one operation in each action; often
/// one that moves headers.
fn focus(program: &mut Program, random: &mut Choices) {
    let is_hash = |at: &usize| matches!(program.pipes[*at].kind, PipeKind::Hash { .. });
    let hashes: Vec<usize> = (0..program.pipes.len()).filter(is_hash).collect();
    let at = match !hashes.is_empty() && random.percent(40) {
        true => random.pick(&hashes),
        false => random.below(program.pipes.len()),
    };
    let mut pipe = program.pipes.swap_remove(at);
    if random.percent(80) {
        pipe.matches.retain(|one| !matches!(one.criterion, Criterion::Const { .. }));
    }
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    if pipe.kind == PipeKind::Basic && random.percent(60) {
        pipe.matches.retain(|one| matches!(one.criterion, Criterion::Const { .. }));
        entries.truncate(1);
        entries.iter_mut().for_each(|entry| entry.matches.clear());
    }
    for (at, template) in (0..).zip(&mut pipe.templates) {
        let tunnel = random.percent(50).then(|| tunnel(random));
        let number = random.below(template.operations.len().max(1));
        let one = |place: usize, _: &Operation| tunnel.is_none() && place == number;
        keep(template, entries.iter_mut().filter(|entry| entry.template == at), one);
        template.operations.extend(tunnel);
    }
    let outward = |forward| match forward {
        Forward::Pipe(_) | Forward::Tee { .. } => Forward::InputPort,
        Forward::Port(port) => Forward::Port(PortId(port.0 % 2)),
        other => other,
    };
    (pipe.forward, pipe.miss) = (outward(pipe.forward), outward(pipe.miss));
    entries.iter_mut().for_each(|entry| entry.forward = entry.forward.map(outward));
    pipe.entries = entries.into();
    program.pipes = vec![pipe];
    for group in &mut program.groups {
        let targets: Vec<_> = group.targets.iter().cloned().collect();
        let outward = |target: Target| Target { forward: outward(target.forward), ..target };
        group.targets = targets.into_iter().map(outward).collect();
    }
    program.ports.truncate(2);
    program.ports.iter_mut().for_each(|port| port.root = Some(PipeId(0)));
    put_in_front(program, random);
}

/// Sometimes puts a pipe in front of the only one, through which every packet passes; always if metadata has
/// to choose a group.
fn put_in_front(program: &mut Program, random: &mut Choices) {
    let word = match &program.pipes[0].kind {
        PipeKind::Hash { group: GroupChoice::ByMeta(word), .. } => Some(usize::from(*word)),
        _ => None,
    };
    if word.is_none() && random.percent(80) {
        return;
    }
    let mut numbers: Vec<u16> = program.groups.iter().filter_map(|group| group.number).collect();
    numbers.push(1);
    let next = Forward::Pipe(PipeId(1));
    let is_chosen = |field: &&Field| field.meta_word() == Some(word.unwrap_or(3));
    let field = Field::ALL.iter().copied().find(|field| is_chosen(&field)).expect("four words of metadata");
    let note = Operation::Set(field, Value::Const(random.pick(&numbers).into()));
    let front = match random.below(if word.is_some() { 2 } else { 3 }) {
        0 => Pipe::basic("front").act([note]).entry(Entry::default()).forward(next),
        1 => Pipe::basic("front").act([note]).entry(Entry::default().to(next)).forward(Forward::PerEntry),
        _ => Pipe::basic("front").miss(next),
    };
    program.pipes.insert(0, front);
}

/// An operation that removes or adds the headers of a tunnel.
fn tunnel(random: &mut Choices) -> Operation {
    let kind = random.pick(TunnelKind::ALL);
    if random.percent(50) {
        return Operation::Decap(kind);
    }
    let blank = Encap::new(kind);
    let ipv6 = random.percent(40);
    let number = |random: &mut Choices, like: Field| Value::Const(random.wide() & like.max());
    let address = if ipv6 { Field::Ipv6Src } else { Field::Ipv4Src };
    let bits = random.pick(&[0, 1, 2, 9, 24, 32]);
    Operation::Encap(Encap {
        eth_dst: number(random, Field::EthDst),
        eth_src: number(random, Field::EthSrc),
        ipv6,
        src: number(random, address),
        src_bits: random.percent(40).then_some(Value::Const(bits)),
        dst: number(random, address),
        id: blank.id.map(|_| number(random, Field::VxlanVni)),
        ttl: number(random, Field::Ipv4Ttl),
        dscp: random.percent(50).then(|| random.below(64) as u8),
        sport: (kind.is_udp() && random.percent(50)).then(|| number(random, Field::UdpSport)),
        ..blank
    })
}

/// Removes an operation of an action, with the values that entries have for it.
pub fn drop_operation(pipe: &mut Pipe, template: u16, place: usize) {
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    let of = entries.iter_mut().filter(|entry| entry.template == template);
    keep(&mut pipe.templates[usize::from(template)], of, |at, _| at != place);
    pipe.entries = entries.into();
}
