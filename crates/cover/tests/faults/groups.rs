//! Faults in groups, and in pipes that pick from them.

use crate::{Subject, entry, pipe};
use weir_packet::{Field, KeySource};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Affinity, Entry, EntryMatch, Fill, Forward, GlbHash, Group, GroupChoice, GroupId, HashInput, KatranHash,
    KatranVersion, Operation, Pipe, PipeId, PipeKind, PortId, Program, Target, Value,
};

/// The pipes that pick, each with what it hashes and its group; an address leads to each.
fn pickers() -> [(&'static str, HashInput, GroupChoice); 7] {
    let select = HashInput::Select(KeySource::Outer);
    let fields = vec![(Field::Ipv4Src, 0xffff_ff00), (Field::L4Dport, 0xffff)];
    let one = |group: u16| GroupChoice::One(GroupId(group));
    [
        ("maglev", select.clone(), one(0)),
        ("wants", select.clone(), one(1)),
        ("fields", HashInput::Fields(fields), one(1)),
        ("turns", HashInput::RoundRobin, one(1)),
        ("affine", select.clone(), one(2)),
        ("given", select.clone(), one(3)),
        ("chosen", select, GroupChoice::ByMeta(0)),
    ]
}

fn targets(of: [PortId; 3]) -> impl Iterator<Item = Target> {
    let names = ["first", "second", "third"];
    names.into_iter().zip(of).map(|(name, port)| Target::new(name, port))
}

fn picker(name: &str, input: HashInput, choice: GroupChoice) -> Pipe {
    let mut pipe = Pipe::hash(name, input, choice);
    let groups: &[GroupId] = if choice.one().is_some() { &[GroupId(0)] } else { &[GroupId(0), GroupId(1)] };
    for (at, group) in groups.iter().enumerate() {
        for target in 0..3u16 {
            let mac = 0x0200_0000_0000 + 16 * at as u128 + u128::from(target);
            pipe = pipe.entry(Entry::on(choice.key(*group, target)).value(mac));
        }
    }
    pipe.act([Operation::Set(Field::EthDst, Value::PerEntry)])
}

pub fn subject() -> Subject {
    let mut program = ProgramBuilder::new();
    let ports = program.ports(["one", "two", "three"]);
    let app = program.app("no target");
    program.group(Group::new("maglev", Fill::Maglev, 31).number(1).targets(targets(ports)));
    program.group(Group::new("wants", Fill::Wants, 16).number(2).seed(7).targets(targets(ports)));
    let affinity = Some(Affinity { ipv4: 24, ipv6: 64, timeout_ns: 0 });
    program.group(Group::new("affine", Fill::Wants, 16).affinity(affinity).targets(targets(ports)));
    program.group(Group::new("given", Fill::Given, 16).no_target(Some(app)).targets(targets(ports)));
    let mut services = Pipe::basic("services")
        .per_entry(Field::Ipv4Dst)
        .act([Operation::Set(Field::Meta0, Value::PerEntry)])
        .forward(Forward::PerEntry);
    for (at, (name, input, choice)) in (0u32..).zip(pickers()) {
        let mut pipe = picker(name, input, choice).forward(ports[0]);
        if name == "wants" {
            pipe = pipe.forward(GroupId(0));
        }
        let pipe = program.pipe(pipe);
        services = services.entry(Entry::on(0x0a00_0001 + at).value(0).to(pipe));
        if choice.one().is_none() {
            services = services.entry(Entry::on(0x0a00_0100).value(1).to(pipe));
            services = services.entry(Entry::on(0x0a00_0101).value(2).to(pipe));
        }
    }
    services = services.entry(Entry::on(0x0a00_0200).value(0).to(GroupId(1)));
    services = services.entry(Entry::on(0x0a00_0201).value(0).to(Forward::Flood(GroupId(0))));
    let services = program.pipe(services);
    program.root(ports[0], services);
    let mut subject = Subject::new(program.build());
    plant_in_fills(&mut subject);
    plant_in_pickers(&mut subject);
    subject
}

fn plant_in_fills(subject: &mut Subject) {
    for (at, name) in ["maglev", "wants"].into_iter().enumerate() {
        subject.plant(format!("group: {name}, a weight"), move |program| {
            program.groups[at].target_mut(0).weight = 2;
        });
        subject.plant(format!("group: {name}, a target without weight"), move |program| {
            program.groups[at].target_mut(2).weight = 0;
        });
        subject.plant(format!("group: {name}, a seed"), move |program| program.groups[at].seed = Some(99));
        subject.plant(format!("group: {name}, another number"), move |program| {
            program.groups[at].number = Some(3);
        });
        subject.plant(format!("group: {name}, another size"), move |program| {
            program.groups[at].size = [37, 32][at];
        });
        subject.plant(format!("group: {name}, a target elsewhere"), move |program| {
            program.groups[at].target_mut(1).forward = Forward::Drop;
        });
    }
    subject.plant("group: the other fill", |program| {
        (program.groups[0].fill, program.groups[0].size) = (Fill::Wants, 32);
    });
    subject.plant("group: a longer prefix of clients", |program| {
        program.groups[2].affinity = Some(Affinity { ipv4: 25, ipv6: 64, timeout_ns: 0 });
    });
    subject.plant("group: no affinity", |program| program.groups[2].affinity = None);
    subject.plant("group: no app without targets", |program| program.groups[3].no_target = None);
    subject.plant("hash: the seed", |program| program.select_seed ^= 1);
}

fn input<'a>(program: &'a mut Program, name: &str) -> &'a mut HashInput {
    match &mut pipe(program, name).kind {
        PipeKind::Hash { input, .. } => input,
        other => panic!("{other:?}"),
    }
}

fn plant_in_pickers(subject: &mut Subject) {
    let fields = [
        ("loses a field", vec![(Field::Ipv4Src, 0xffff_ff00)]),
        ("loses a bit of a mask", vec![(Field::Ipv4Src, 0xffff_fe00), (Field::L4Dport, 0xffff)]),
        ("gains a bit of a mask", vec![(Field::Ipv4Src, 0xffff_ff80), (Field::L4Dport, 0xffff)]),
        ("has another field", vec![(Field::Ipv4Src, 0xffff_ff00), (Field::L4Sport, 0xffff)]),
        ("has another order", vec![(Field::L4Dport, 0xffff), (Field::Ipv4Src, 0xffff_ff00)]),
    ];
    for (what, by) in fields {
        subject.plant(format!("hash: the input {what}"), move |program| {
            *input(program, "fields") = HashInput::Fields(by.clone());
        });
    }
    subject.plant("hash: in turn instead of by hash", |program| {
        *input(program, "maglev") = HashInput::RoundRobin;
    });
    subject.plant("hash: by hash instead of in turn", |program| {
        *input(program, "turns") = HashInput::Select(KeySource::Outer);
    });
    subject.plant("hash: another group", |program| {
        if let PipeKind::Hash { group, .. } = &mut pipe(program, "maglev").kind {
            *group = GroupChoice::One(GroupId(1));
        }
    });
    subject.plant("hash: two targets swapped", |program| {
        entry(program, "maglev", 0, |entry| entry.matches[0] = EntryMatch::Target(1));
        entry(program, "maglev", 1, |entry| entry.matches[0] = EntryMatch::Target(0));
    });
    subject.plant("hash: a target without an entry", |program| {
        pipe(program, "wants").entries.edit(|all| drop(all.pop()));
    });
    subject.plant("hash: a member of another group", |program| {
        let member = |group, target| EntryMatch::Member { group: GroupId(group), target };
        entry(program, "chosen", 0, |entry| entry.matches[0] = member(1, 0));
        entry(program, "chosen", 3, |entry| entry.matches[0] = member(0, 0));
    });
    subject.plant("forward: to another group", |program| {
        pipe(program, "wants").forward = GroupId(1).into();
    });
    subject.plant("forward: a target instead of all", |program| {
        let last = pipe(program, "services").entries.len() - 1;
        entry(program, "services", last, |entry| entry.forward = Some(GroupId(0).into()));
    });
    subject.plant("forward: to another pipe", |program| {
        entry(program, "services", 0, |entry| entry.forward = Some(PipeId(1).into()));
    });
}

/// Groups that are filled like those of other systems.
pub fn foreign() -> Subject {
    let mut program = ProgramBuilder::new();
    let ports = program.ports(["one", "two", "three"]);
    let addressed = || {
        let addresses = (1u8..).map(|low| [10, 9, 0, low].into());
        targets(ports).zip(addresses).map(|(target, address)| target.address(address))
    };
    let katran = Fill::Katran(KatranVersion::V2, KatranHash::default());
    let glb = Fill::Glb([7; 16], GlbHash { key: [9; 16], fields: GlbHash::SOURCE });
    for (name, fill) in [("katran", katran), ("glb", glb)] {
        let size = fill.fixed_size().unwrap_or_default();
        program.group(Group::new(name, fill, size).targets(addressed()));
    }
    let mut services = Pipe::basic("services").per_entry(Field::Ipv4Dst).forward(Forward::PerEntry);
    for (at, name) in ["katran", "glb"].into_iter().enumerate() {
        let select = HashInput::Select(KeySource::Outer);
        let pipe = program.pipe(picker(name, select, GroupId(at as u16).into()).forward(ports[0]));
        services = services.entry(Entry::on(0x0a00_0001 + at as u32).to(pipe));
    }
    let services = program.pipe(services);
    program.root(ports[0], services);
    let mut subject = Subject::new(program.build());
    plant_in_foreign(&mut subject);
    subject
}

fn plant_in_foreign(subject: &mut Subject) {
    let katran = |change: fn(&mut KatranVersion, &mut KatranHash)| {
        move |program: &mut Program| {
            if let Fill::Katran(version, hash) = &mut program.groups[0].fill {
                change(version, hash);
            }
        }
    };
    subject.plant("katran: the destination port only", katran(|_, hash| hash.dport_only = true));
    subject.plant("katran: no source port", katran(|_, hash| hash.no_sport = true));
    subject.plant("katran: an address", |program| {
        program.groups[0].target_mut(0).address = Some([10, 9, 0, 77].into());
    });
    subject.plant("katran: a weight", |program| program.groups[0].target_mut(1).weight = 9);
    let glb = |change: fn(&mut [u8; 16], &mut GlbHash)| {
        move |program: &mut Program| {
            if let Fill::Glb(seed, hash) = &mut program.groups[1].fill {
                change(seed, hash);
            }
        }
    };
    subject.plant("glb: the seed of the table", glb(|seed, _| seed[0] ^= 1));
    subject.plant("glb: the key of the hash", glb(|_, hash| hash.key[0] ^= 1));
    subject.plant("glb: another field", glb(|_, hash| hash.fields = GlbHash::DESTINATION));
    subject.plant("glb: one more field", glb(|_, hash| hash.fields |= GlbHash::SOURCE_PORT));
    subject.plant("glb: an address", |program| {
        program.groups[1].target_mut(0).address = Some([10, 9, 0, 77].into());
    });
}
