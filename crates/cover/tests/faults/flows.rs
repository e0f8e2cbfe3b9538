//! Faults in pipes that keep flows, and in NAT.

use crate::{Subject, entry, operations, pipe};
use weir_packet::{Field, FlowKey, KeySource};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Entry, EntryMatch, Fill, FlowState, Forward, Group, GroupId, Learn, NatPart, NatPool, NatPoolId,
    NatPrefix, NewFlows, Operation, Origin, Pipe, PipeKind, PortId, Program, Target, Template, Timeouts,
    Value,
};

fn targets() -> impl Iterator<Item = Target> {
    ["first", "second", "third"].into_iter().map(|name| Target::new(name, PortId(1)))
}

fn known_flow() -> FlowKey {
    FlowKey::new([192, 0, 2, 9].into(), [10, 0, 0, 3].into(), 17, (4000, 53), None)
}

fn learning(name: &str, learn: Learn, timeouts: Timeouts) -> Pipe {
    let pipe = Pipe::flow(name, learn).capacity(1024).timeouts(timeouts).forward(PortId(1));
    let pipe = pipe.act([Operation::Set(Field::EthDst, Value::PerEntry)]);
    match learn {
        Learn::Nothing => pipe.entry(Entry::on(EntryMatch::Flow(known_flow())).value(0x0200_0000_0077_u64)),
        Learn::Default => pipe.entry(Entry::on(EntryMatch::Default).value(0x0200_0000_0088_u64)),
        Learn::Pin(_) | Learn::Follow(_) => pipe.entries(
            (0..3u16).map(|at| Entry::on(EntryMatch::Target(at)).value(0x0200_0000_0000 + u64::from(at))),
        ),
    }
}

/// A pipe of every kind that learns, behind an address of its own.
pub fn subject() -> Subject {
    let mut program = ProgramBuilder::new();
    let [one, two] = program.ports(["one", "two"]);
    program.group(Group::new("hash", Fill::Maglev, 31).targets(targets()));
    program.group(Group::new("turns", Fill::Wants, 16).new_flows(NewFlows::RoundRobin).targets(targets()));
    let mut services = Pipe::basic("services").per_entry(Field::Ipv4Dst).forward(Forward::PerEntry);
    let kinds = [
        ("pin", Learn::Pin(GroupId(0).into())),
        ("follow", Learn::Follow(GroupId(0).into())),
        ("known", Learn::Nothing),
        ("default", Learn::Default),
        ("turns", Learn::Pin(GroupId(1).into())),
    ];
    for (at, (name, learn)) in (1u32..).zip(kinds) {
        let pipe = program.pipe(learning(name, learn, Timeouts::CONNTRACK).miss(two));
        services = services.entry(Entry::on(0x0a00_0000 + at).to(pipe));
    }
    let rewritten =
        Pipe::basic("rewrite").act([Operation::Set(Field::L4Sport, Value::Const(7))]).rehash(true);
    let behind = program.pipe(learning("behind", Learn::Pin(GroupId(0).into()), Timeouts::NEVER));
    let rewritten = program.pipe(rewritten.entry(Entry::default()).forward(behind));
    services = services.entry(Entry::on(0x0a00_0010).to(rewritten));
    let services = program.pipe(services);
    program.root(one, services);
    let mut subject = Subject::new(program.build());
    plant_in_learning(&mut subject);
    subject
}

fn learns(program: &mut Program, name: &str, by: Learn) {
    if let PipeKind::Flow { learn, .. } = &mut pipe(program, name).kind {
        *learn = by;
    }
}

fn plant_in_learning(subject: &mut Subject) {
    let group = GroupId(0).into();
    subject.plant("flow: follows instead of pinning", move |program| {
        learns(program, "pin", Learn::Follow(group))
    });
    subject.plant("flow: pins instead of following", move |program| {
        learns(program, "follow", Learn::Pin(group))
    });
    subject.plant("flow: pins to another group", |program| {
        learns(program, "pin", Learn::Pin(GroupId(1).into()));
    });
    subject.plant("flow: learns nothing", |program| {
        learns(program, "default", Learn::Nothing);
        pipe(program, "default").entries.edit(Vec::clear);
    });
    subject.plant("flow: learns what it must not", |program| {
        learns(program, "known", Learn::Default);
        pipe(program, "known").entries.edit(|all| all.push(Entry::on(EntryMatch::Default).value(5)));
    });
    subject.plant("flow: another known flow", |program| {
        let key = FlowKey::new([192, 0, 2, 9].into(), [10, 0, 0, 3].into(), 17, (4001, 53), None);
        entry(program, "known", 0, |entry| entry.matches[0] = EntryMatch::Flow(key));
    });
    subject.plant("flow: the value of a known flow", |program| {
        entry(program, "known", 0, |entry| entry.values[0] ^= 1);
    });
    subject.plant("flow: the value of a target", |program| {
        entry(program, "pin", 1, |entry| entry.values[0] ^= 0x100);
    });
    subject.plant("flow: the value of the default entry", |program| {
        entry(program, "default", 0, |entry| entry.values[0] ^= 1);
    });
    subject.plant("flow: the inner key", |program| {
        if let PipeKind::Flow { key, .. } = &mut pipe(program, "behind").kind {
            *key = KeySource::Inner;
        }
        pipe(program, "behind").matches.clear();
    });
    subject.plant("flow: room for one", |program| pipe(program, "pin").capacity = 1);
    subject.plant("flow: by hash instead of in turn", |program| program.groups[1].new_flows = NewFlows::Hash);
    subject.plant("flow: fewest flows instead of in turn", |program| {
        program.groups[1].new_flows = NewFlows::LeastFlows;
    });
    subject.plant("flow: another miss", |program| pipe(program, "known").miss = Forward::Drop);
    subject.plant("flow: another forward", |program| pipe(program, "pin").forward = Forward::Drop);
    subject.plant("rehash: left out", |program| pipe(program, "rewrite").rehash = false);
    subject.plant("rehash: without the rewrite", |program| {
        pipe(program, "rewrite").templates[0].operations.clear()
    });
    subject.plant("timeout: longer", |program| {
        if let PipeKind::Flow { timeouts, .. } = &mut pipe(program, "pin").kind {
            *timeouts = timeouts.with(FlowState::ALL[0], 3_000_000_000);
        }
    });
    subject.plant("timeout: without states", |program| {
        if let PipeKind::Flow { timeouts, .. } = &mut pipe(program, "pin").kind {
            *timeouts = Timeouts::NEVER;
        }
    });
}

/// Source NAT: one port translates, the other translates back.
pub fn translated() -> Subject {
    let mut program = ProgramBuilder::new();
    let [_, out] = program.ports(["inside", "outside"]);
    let set = Operation::Set;
    let there =
        [set(Field::Ipv4Src, Value::Nat(NatPart::Address)), set(Field::L4Sport, Value::Nat(NatPart::Port))];
    let back = [
        set(Field::Ipv4Dst, Value::Learnt(Field::Ipv4Src)),
        set(Field::L4Dport, Value::Learnt(Field::L4Sport)),
    ];
    program.group(Group::new("way", Fill::Wants, 4).target(Target::new("out", out)));
    let first = [198, 51, 100, 8].into();
    let prefixes = vec![NatPrefix { first, length: 30 }];
    let origin = Origin::default();
    program.nat_pool(NatPool { name: "pool".into(), prefixes, first: 2000, last: 2999, origin });
    let nat = Pipe::flow("nat", Learn::Pin(GroupId(0).into()))
        .reverse(true)
        .capacity(4096)
        .timeouts(Timeouts::CONNTRACK)
        .nat(NatPoolId(0))
        .actions([Template::new("there", there), Template::new("back", back)])
        .entry(Entry::on(EntryMatch::Target(0)))
        .entry(Entry::on(EntryMatch::Default).template(1))
        .forward(out);
    let nat = program.pipe(nat);
    program.root_of_all(nat);
    let mut subject = Subject::new(program.build());
    plant_in_nat(&mut subject);
    subject
}

fn plant_in_nat(subject: &mut Subject) {
    subject.plant("nat: another address", |program| {
        program.nat_pools[0].prefixes[0].first = [198, 51, 100, 12].into();
    });
    subject.plant("nat: fewer addresses", |program| program.nat_pools[0].prefixes[0].length = 32);
    subject.plant("nat: other ports", |program| {
        (program.nat_pools[0].first, program.nat_pools[0].last) = (3000, 3999)
    });
    subject.plant("nat: the last port", |program| program.nat_pools[0].last = 2998);
    subject.plant("nat: the address left out", |program| {
        operations(program, "nat", "there").remove(0);
    });
    subject.plant("nat: the port left out", |program| {
        operations(program, "nat", "there").remove(1);
    });
    subject.plant("nat: answers are not learnt", |program| {
        *pipe(program, "nat") = pipe(program, "nat").clone().reverse(false);
    });
    subject.plant("nat: the address of answers left out", |program| {
        operations(program, "nat", "back").remove(0);
    });
    subject.plant("nat: the port of answers left out", |program| {
        operations(program, "nat", "back").remove(1);
    });
    subject.plant("nat: answers get what was learnt elsewhere", |program| {
        operations(program, "nat", "back")[1] = Operation::Set(Field::L4Dport, Value::Learnt(Field::L4Dport));
    });
}
