//! Removes from random programs what the compiler refuses, so that the rest is compared.

use weir_openflow::{Compiled, Options, Part, Why, compile};
use weir_oracle::arbitrary::Choices;
use weir_packet::{Field, LevelId};
use weir_program::{
    Criterion, Entry, EntryMatch, Fill, Forward, Group, GroupChoice, HashInput, Match, Operation, Pipe,
    PipeId, PipeKind, PortDeclaration, Program, Template,
};

/// A program without what is refused, and what it compiles to.
pub fn tamed(mut program: Program, names: &[String], random: &mut Choices) -> (Program, Compiled) {
    program.follow_fragments = false;
    for group in &mut program.groups {
        tame_group(group);
    }
    for pipe in &mut program.pipes {
        tame_pipe(pipe, random);
    }
    let options = Options { ports: names, kernel_is_normal: false };
    loop {
        let compiled = compile(&program, &options);
        if compiled.refusals.is_empty() {
            return (program, compiled);
        }
        let mut entries: Vec<(usize, usize)> = Vec::new();
        for refusal in &compiled.refusals {
            match refusal.part {
                Part::Program => unreachable!("{}", refusal.why),
                Part::Pipe(pipe) => replace(&mut program.pipes[pipe.index()]),
                Part::Miss(pipe) => program.pipes[pipe.index()].miss = Forward::Drop,
                Part::Entry(pipe, at) => match program.pipes[pipe.index()].forward {
                    // One forward for all of them.
                    Forward::PerEntry => entries.push((pipe.index(), at)),
                    _ if matches!(refusal.why, Why::Kernel | Why::App | Why::Fill | Why::NoTarget) => {
                        program.pipes[pipe.index()].forward = Forward::InputPort;
                    }
                    _ => entries.push((pipe.index(), at)),
                },
            }
        }
        entries.sort_unstable();
        entries.dedup();
        for (pipe, at) in entries.into_iter().rev() {
            program.pipes[pipe].entries.edit(|list| drop(list.remove(at)));
        }
    }
}

fn tame_group(group: &mut Group) {
    group.no_target = None;
    group.idle = None;
    if !matches!(group.fill, Fill::Maglev | Fill::Wants) {
        (group.fill, group.size) = (Fill::Wants, 64);
    }
    for target in 0..group.targets.len() {
        let forward = tame_forward(group.targets[target].forward);
        group.target_mut(target).forward = forward;
    }
}

fn tame_forward(forward: Forward) -> Forward {
    match forward {
        Forward::Tee { next, .. } => Forward::Pipe(next),
        Forward::App(_) | Forward::Kernel => Forward::InputPort,
        other => other,
    }
}

fn tame_pipe(pipe: &mut Pipe, random: &mut Choices) {
    pipe.monitor.meter = None;
    pipe.monitor.measured = None;
    pipe.rehash = false;
    pipe.nat = None;
    pipe.forward = tame_forward(pipe.forward);
    pipe.miss = tame_forward(pipe.miss);
    match &mut pipe.kind {
        PipeKind::Hash { input, group } => {
            let expressible = matches!(input, HashInput::Select(_)) || random.percent(70);
            if !expressible || matches!(group, GroupChoice::ByMeta(_)) || matches!(input, HashInput::Quic) {
                replace(pipe);
            }
        }
        PipeKind::Flow { .. } => replace(pipe),
        PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => {}
    }
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    for entry in &mut entries {
        entry.forward = entry.forward.map(tame_forward);
        entry.meter = None;
    }
    tame_operations(&mut pipe.templates, &mut entries);
    tame_matches(pipe, &mut entries);
    pipe.entries.edit(|list| *list = entries);
}

/// Removes operations, with the values that entries give to them.
fn tame_operations(templates: &mut [Template], entries: &mut [Entry]) {
    for (number, template) in templates.iter_mut().enumerate() {
        let keep: Vec<bool> = template.operations.iter().map(is_expressible).collect();
        let given = |one: &Operation| one.numbers().filter(|(_, value, _)| value.is_given()).count();
        let of: Vec<usize> = template.operations.iter().map(given).collect();
        for entry in entries.iter_mut().filter(|entry| usize::from(entry.template) == number) {
            let mut values = std::mem::take(&mut entry.values).into_iter();
            for (keep, count) in keep.iter().zip(&of) {
                let some: Vec<u128> = values.by_ref().take(*count).collect();
                entry.values.extend(some.into_iter().filter(|_| *keep));
            }
        }
        let mut kept = keep.into_iter();
        template.operations.retain(|_| kept.next().unwrap());
    }
}

/// Removes matches, with those of entries; entries that are then equal become one.
fn tame_matches(pipe: &mut Pipe, entries: &mut Vec<Entry>) {
    let keep: Vec<bool> = pipe.matches.iter().map(|one| is_matched(pipe, one)).collect();
    let varies = |one: &Match| !matches!(one.criterion, Criterion::Const { .. });
    let own: Vec<bool> =
        keep.iter().zip(&pipe.matches).filter(|(_, one)| varies(one)).map(|(keep, _)| *keep).collect();
    if !matches!(pipe.kind, PipeKind::Hash { .. }) {
        for entry in entries.iter_mut() {
            let mut kept = own.iter();
            entry.matches.retain(|_| *kept.next().unwrap());
        }
        let mut seen: Vec<(Vec<EntryMatch>, u32)> = Vec::new();
        let is_acl = matches!(pipe.kind, PipeKind::Acl);
        entries.retain(|entry| {
            let key = (entry.matches.clone(), if is_acl { entry.priority } else { 0 });
            let new = !seen.contains(&key);
            seen.push(key);
            new
        });
    }
    let mut kept = keep.into_iter();
    pipe.matches.retain(|_| kept.next().unwrap());
}

/// Whether the compiler matches the field of a pipe at all: it compiles a program that matches nothing else.
fn is_matched(pipe: &Pipe, one: &Match) -> bool {
    let value = if one.field == Field::InputPort { 0 } else { one.field.max() & 4 };
    let criterion = Criterion::Const { value, mask: one.field.max() };
    let mut alone = pipe.without_entries();
    (alone.kind, alone.forward, alone.miss) = (PipeKind::Basic, Forward::Drop, Forward::Drop);
    alone.matches = vec![Match { criterion, ..*one }];
    alone.templates.iter_mut().for_each(|template| template.operations.clear());
    alone.entries.push(&Entry::default());
    let mut port = PortDeclaration::new("port0");
    port.root = Some(PipeId(0));
    let program = Program { ports: vec![port], pipes: vec![alone], ..Program::default() };
    let refusals = compile(&program, &Options { ports: &["port0".into()], kernel_is_normal: false }).refusals;
    one.field.name() == "eth.type" || !refusals.iter().any(|refusal| matches!(refusal.why, Why::Match(_)))
}

/// Makes it a pipe that every packet hits, with nothing else.
fn replace(pipe: &mut Pipe) {
    pipe.kind = PipeKind::Basic;
    pipe.matches.clear();
    pipe.templates.truncate(1);
    pipe.templates[0].operations.clear();
    let forward = pipe.entries.iter().next().and_then(|entry| entry.forward);
    let entry = Entry { forward, ..Entry::default() };
    pipe.entries.edit(|list| *list = vec![entry]);
    if let Forward::Group(_) = pipe.forward {
        pipe.forward = Forward::InputPort;
    }
}

fn is_expressible(operation: &Operation) -> bool {
    let values = operation.numbers().all(|(_, value, _)| !value.is_kept());
    let written = operation.writes().is_none_or(|field| {
        let tag = field.name().contains("vlan");
        field.level == LevelId::Outer && field.spec().tunnel.is_none() && !tag
    });
    let is = match operation {
        Operation::PopVlan | Operation::PushVlan { .. } | Operation::DecrementTtl | Operation::Set(..) => {
            true
        }
        Operation::Copy { from, .. } => {
            let name = from.name();
            ["eth.dst", "eth.src", "ipv4.src", "ipv4.dst", "meta.0", "l4.sport", "udp.dport"].contains(&name)
        }
        Operation::Add(..) | Operation::LimitLength { .. } | Operation::ClampMss { .. } => false,
        Operation::Decap(_) | Operation::Encap(_) => false,
    };
    is && values && written
}
