//! Faults in pipes that compare fields, and in what they count and meter.

use crate::{Subject, entry, pipe};
use weir_packet::Field;
use weir_program::builder::ProgramBuilder;
use weir_program::{
    AppId, CounterId, Criterion, Entry, EntryMatch, Forward, MeterConfig, MeterDeclaration, MeterId, Pipe,
    PipeId, PortId, Program, SharedUse,
};
use weir_table::{MeterSecond, MeterUnit};

fn prefix(value: u128, length: u8) -> EntryMatch {
    EntryMatch::Prefix { value, length }
}

fn masked(value: u128, mask: u128) -> EntryMatch {
    EntryMatch::Masked { value, mask }
}

fn range(first: u16, last: u16) -> EntryMatch {
    EntryMatch::Range { first, last }
}

/// Rules of all kinds: two have the same priority and packets in common.
fn rules([one, two]: [PortId; 2]) -> Pipe {
    let any = EntryMatch::Any;
    let rule = |priority, src: EntryMatch, port: EntryMatch, protocol: EntryMatch, to: PortId| {
        Entry::on(src).and(port).and(protocol).priority(priority).to(to)
    };
    Pipe::acl("rules")
        .constant_bits(Field::Ipv4Dscp, 8, 0x38)
        .matching(Field::Ipv4Src, Criterion::Masked)
        .matching(Field::L4Dport, Criterion::Range)
        .matching(Field::IpProtocol, Criterion::Masked)
        .forward(Forward::PerEntry)
        .entry(rule(10, masked(0x0a00_0000, 0xff00_0000), range(1000, 2000), any, one))
        .entry(rule(20, masked(0x0a00_0100, 0xff00_ff00), any, masked(6, 0xff), two))
        .entry(rule(30, any, range(53, 53), masked(17, 0xff), one))
        .entry(rule(30, any, range(50, 60), masked(17, 0xff), two))
        .entry(rule(40, any, any, masked(1, 0xff), one))
}

pub fn subject() -> Subject {
    let mut program = ProgramBuilder::new();
    let [one, two, three] = program.ports(["one", "two", "three"]);
    let rules = program.pipe(rules([one, two]));
    let routes = Pipe::lpm("routes", Field::Ipv4Dst).forward(Forward::PerEntry).miss(two);
    let routes = program.pipe(
        routes
            .entry(Entry::on(prefix(0x0a00_0000, 8)).to(one))
            .entry(Entry::on(prefix(0x0a01_0000, 16)).to(two))
            .entry(Entry::on(prefix(0x0a01_0200, 24)).to(three))
            .entry(Entry::on(prefix(0x0a01_0203, 32)).to(one)),
    );
    let exact = Pipe::basic("exact")
        .constant(Field::IpProtocol, 17)
        .per_entry_bits(Field::Ipv4Dst, 0xffff_ff00)
        .per_entry(Field::L4Dport)
        .forward(Forward::PerEntry)
        .miss(Forward::InputPort)
        .entry(Entry::on(0x0a00_0100).and(53).to(one))
        .entry(Entry::on(0x0a00_0200).and(53).to(two))
        .entry(Entry::on(0x0a00_0100).and(80).to(three));
    let exact = program.pipe(exact);
    for (port, root) in [(one, rules), (two, routes), (three, exact)] {
        program.root(port, root);
    }
    let mut subject = Subject::new(program.build());
    plant_in_rules(&mut subject);
    plant_in_routes(&mut subject);
    plant_in_exact(&mut subject);
    subject
}

fn plant_in_rules(subject: &mut Subject) {
    let ranges =
        [(999, 2000, "from"), (1001, 2000, "later"), (1000, 1999, "shorter"), (1000, 2001, "longer")];
    for (first, last, what) in ranges {
        subject.plant(format!("acl: a range that is one {what}"), move |program| {
            entry(program, "rules", 0, |entry| entry.matches[1] = range(first, last));
        });
    }
    let masks = [
        ("a mask loses a bit", 0, masked(0x0a00_0000, 0xfe00_0000)),
        ("a mask gains a bit", 0, masked(0x0a00_0000, 0xff80_0000)),
        ("another value", 0, masked(0x0b00_0000, 0xff00_0000)),
        ("a mask with a gap loses a bit", 1, masked(0x0a00_0100, 0xff00_fd00)),
        ("any value instead of some", 1, EntryMatch::Any),
    ];
    for (what, at, by) in masks {
        subject.plant(format!("acl: {what}"), move |program| {
            entry(program, "rules", at, |entry| entry.matches[0] = by);
        });
    }
    subject.plant("acl: any protocol", |program| {
        entry(program, "rules", 2, |entry| entry.matches[2] = EntryMatch::Any);
    });
    subject.plant("acl: priorities swapped", |program| {
        entry(program, "rules", 0, |entry| entry.priority = 20);
        entry(program, "rules", 1, |entry| entry.priority = 10);
    });
    subject.plant("acl: the last of equal priority wins", |program| {
        entry(program, "rules", 3, |entry| entry.priority = 29);
    });
    subject.plant("acl: an entry is missing", |program| {
        pipe(program, "rules").entries.edit(|all| drop(all.pop()))
    });
    subject.plant("const: a mask loses a bit", |program| {
        pipe(program, "rules").matches[0].criterion = Criterion::Const { value: 8, mask: 0x18 };
    });
    subject.plant("const: another value", |program| {
        pipe(program, "rules").matches[0].criterion = Criterion::Const { value: 16, mask: 0x38 };
    });
    subject.plant("const: left out", |program| {
        pipe(program, "rules").matches.remove(0);
    });
}

fn plant_in_routes(subject: &mut Subject) {
    let changed = [
        ("a prefix is one bit longer", 0, prefix(0x0a00_0000, 9)),
        ("a prefix is one bit shorter", 0, prefix(0x0a00_0000, 7)),
        ("a prefix of 24 bits is longer", 2, prefix(0x0a01_0200, 25)),
        ("a prefix of 24 bits is shorter", 2, prefix(0x0a01_0200, 23)),
        ("an address becomes a prefix", 3, prefix(0x0a01_0202, 31)),
        ("another address", 3, prefix(0x0a01_0202, 32)),
        ("another prefix", 1, prefix(0x0a02_0000, 16)),
    ];
    for (what, at, by) in changed {
        subject.plant(format!("lpm: {what}"), move |program| {
            entry(program, "routes", at, |entry| entry.matches[0] = by);
        });
    }
    subject.plant("lpm: the longest prefix is missing", |program| {
        pipe(program, "routes").entries.edit(|all| drop(all.pop()));
    });
    subject.plant("forward: two entries swapped", |program| {
        entry(program, "routes", 0, |entry| entry.forward = Some(Forward::Port(PortId(1))));
        entry(program, "routes", 1, |entry| entry.forward = Some(Forward::Port(PortId(0))));
    });
    subject.plant("miss: another port", |program| pipe(program, "routes").miss = Forward::Port(PortId(0)));
    subject.plant("miss: dropped", |program| pipe(program, "routes").miss = Forward::Drop);
}

fn plant_in_exact(subject: &mut Subject) {
    subject.plant("basic: an entry's value", |program| {
        entry(program, "exact", 0, |entry| entry.matches[1] = EntryMatch::Value(54));
    });
    subject.plant("basic: an entry's masked value", |program| {
        entry(program, "exact", 0, |entry| entry.matches[0] = EntryMatch::Value(0x0a00_0300));
    });
    subject.plant("basic: a mask gains a bit", |program| {
        pipe(program, "exact").matches[1].criterion = Criterion::PerEntry { mask: 0xffff_ff80 };
    });
    subject.plant("basic: a mask loses a bit", |program| {
        pipe(program, "exact").matches[1].criterion = Criterion::PerEntry { mask: 0x7fff_ff00 };
    });
    subject.plant("basic: an entry is missing", |program| {
        pipe(program, "exact").entries.edit(|all| drop(all.remove(1)));
    });
    subject.plant("const: another protocol", |program| {
        pipe(program, "exact").matches[0].criterion = Criterion::Const { value: 6, mask: 0xff };
    });
    subject.plant("forward: two entries swapped (exact)", |program| {
        entry(program, "exact", 0, |entry| entry.forward = Some(Forward::Port(PortId(1))));
        entry(program, "exact", 1, |entry| entry.forward = Some(Forward::Port(PortId(0))));
    });
    subject.plant("miss: not to the port of arrival", |program| pipe(program, "exact").miss = Forward::Drop);
    subject.plant("root: two ports swapped", |program| {
        let root = program.ports[0].root;
        program.ports[0].root = program.ports[1].root;
        program.ports[1].root = root;
    });
}

/// A pipe that counts, meters and copies.
pub fn monitored() -> Subject {
    let mut program = ProgramBuilder::new();
    let [one, two] = program.ports(["one", "two"]);
    program.app("tap");
    program.app("other tap");
    for name in ["all", "web", "dns"] {
        program.counter(name);
    }
    for name in ["slow", "slower"] {
        let second = MeterSecond::Excess { ebs: 1 };
        let unit = MeterUnit::Packets;
        let cbs = if name == "slow" { 3 } else { 1 };
        program.meter(MeterDeclaration::new(
            name,
            MeterConfig { unit, cir: 1, cbs, second, colour_aware: false },
        ));
    }
    let colors = Pipe::basic("colors").per_entry(Field::MeterColor).forward(Forward::PerEntry);
    let colors = colors.entry(Entry::on(0).to(one)).entry(Entry::on(1).to(two));
    let colors = program.pipe(colors.counter(CounterId(0)));
    let ports = Pipe::basic("services")
        .per_entry(Field::L4Dport)
        .counter(SharedUse::PerEntry)
        .meter(SharedUse::PerEntry)
        .drop_red(true)
        .entry(Entry::on(80).counter(CounterId(1)).meter(MeterId(0)))
        .entry(Entry::on(53).counter(CounterId(2)).meter(MeterId(1)))
        .forward(Forward::Tee { app: AppId(0), next: colors });
    let ports = program.pipe(ports.miss(Forward::App(AppId(1))));
    program.root(one, ports);
    let mut subject = Subject::new(program.build());
    plant_in_monitors(&mut subject);
    subject
}

fn plant_in_monitors(subject: &mut Subject) {
    subject.plant("counter: left out", |program| pipe(program, "colors").monitor.counter = None);
    subject.plant("counter: another one", |program| {
        pipe(program, "colors").monitor.counter = Some(SharedUse::Pipe(CounterId(1)));
    });
    subject.plant("counter: another one of an entry", |program| {
        entry(program, "services", 0, |entry| entry.counter = Some(CounterId(2)));
    });
    subject.plant("meter: left out", |program| {
        pipe(program, "services").monitor.meter = None;
        pipe(program, "services").entries.edit(|all| all.iter_mut().for_each(|entry| entry.meter = None));
    });
    subject.plant("meter: red packets pass", |program| pipe(program, "services").monitor.drop_red = false);
    subject.plant("meter: another one of an entry", |program| {
        entry(program, "services", 0, |entry| entry.meter = Some(MeterId(1)));
    });
    subject.plant("meter: a larger burst", |program| program.meters[0].config.cbs = 4);
    subject.plant("meter: another excess burst", |program| {
        program.meters[0].config.second = MeterSecond::Excess { ebs: 2 };
    });
    subject.plant("meter: bytes instead of packets", |program| {
        program.meters[0].config.unit = MeterUnit::Bytes;
    });
    let tee = |program: &mut Program, forward| pipe(program, "services").forward = forward;
    subject.plant("tee: no copy", move |program| tee(program, Forward::Pipe(PipeId(0))));
    subject.plant("tee: to another app", move |program| {
        tee(program, Forward::Tee { app: AppId(1), next: PipeId(0) });
    });
    subject.plant("miss: another app", |program| pipe(program, "services").miss = Forward::App(AppId(0)));
    subject
        .plant("timeout: idle entries", |program| pipe(program, "services").monitor.idle_timeout_ns = 1_000);
}
