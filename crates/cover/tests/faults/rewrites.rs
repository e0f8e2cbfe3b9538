//! Faults in operations that rewrite packets.

use crate::{Subject, operations, pipe};
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_packet::{ETHER_QINQ, ETHER_VLAN, Field};
use weir_program::builder::ProgramBuilder;
use weir_program::{Entry, Operation, Pipe, Template, Value};

const fn set(field: Field, number: u128) -> Operation {
    Operation::Set(field, Value::Const(number))
}

/// The actions of the pipe for IPv4: an address has each.
fn actions() -> Vec<Template> {
    let action = |name: &str, operations: &[Operation]| Template::new(name, operations.iter().copied());
    vec![
        action("set", &[Operation::Set(Field::EthDst, Value::PerEntry), set(Field::Ipv4Dscp, 10)]),
        action("add", &[Operation::Add(Field::L4Dport, Value::Const(5))]),
        action("copy", &[Operation::Copy { from: Field::EthDst, to: Field::EthSrc }]),
        action("ttl", &[Operation::DecrementTtl]),
        action("length", &[Operation::LimitLength { bytes: Value::Const(600), frame: false }]),
        action("frame", &[Operation::LimitLength { bytes: Value::Const(700), frame: true }]),
        action("mss", &[Operation::ClampMss { mss: Value::Const(1400) }]),
        action("push", &[push(ETHER_QINQ, 5, 3)]),
        action("pop", &[Operation::PopVlan]),
        action("meta", &[set(Field::Meta0, 7)]),
        action(
            "source",
            &[set(Field::Ipv4Src, 0x0a00_0001), Operation::Add(Field::Ipv4Ttl, Value::Const(1))],
        ),
    ]
}

fn push(tpid: u16, vid: u128, pcp: u128) -> Operation {
    Operation::PushVlan { tpid, vid: Value::Const(vid), pcp: Value::Const(pcp) }
}

pub fn subject() -> Subject {
    let mut program = ProgramBuilder::new();
    let [one, other] = program.ports(["one", "other"]);
    let app = program.app("pmtu");
    let after = Pipe::basic("after").per_entry(Field::Meta0);
    let after = after.forward(weir_program::Forward::PerEntry);
    let after = program.pipe(after.entry(Entry::on(0).to(other)).entry(Entry::on(7).to(one)));
    let ipv6 = Pipe::basic("ipv6").per_entry(Field::Ipv6Dst).forward(after).act([
        set(Field::Ipv6Src, 0x2001_0db8 << 96 | 0x77),
        set(Field::Ipv6TrafficClass, 0x28),
        set(Field::Ipv6FlowLabel, 0x12345),
        Operation::DecrementTtl,
    ]);
    let ipv6 = program.pipe(ipv6.entry(Entry::on(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9))));
    let mut ipv4 = Pipe::basic("ipv4").per_entry(Field::Ipv4Dst).actions(actions());
    for template in 0..actions().len() as u16 {
        let entry = Entry::on(Ipv4Addr::new(10, 1, 0, template as u8)).template(template);
        ipv4 = ipv4.entry(if template == 0 { entry.value([2, 0, 0, 0, 9, 9]) } else { entry });
    }
    let ipv4 = program.pipe(ipv4.forward(after).miss(ipv6).too_long(app));
    let start = Pipe::basic("start").act([set(Field::Meta0, 0)]).entry(Entry::default());
    let start = program.pipe(start.forward(ipv4));
    program.root(one, start);
    let mut subject = Subject::new(program.build());
    plant_in_values(&mut subject);
    plant_in_lengths_and_tags(&mut subject);
    subject
}

/// Plants another operation in place of the only or the first one of an action.
fn replace(subject: &mut Subject, name: &str, action: &'static str, by: Operation) {
    subject.plant(name, move |program| operations(program, "ipv4", action)[0] = by);
}

/// Leaves out an operation.
fn forget(subject: &mut Subject, name: &str, action: &'static str, place: usize) {
    subject.plant(name, move |program| {
        operations(program, "ipv4", action).remove(place);
    });
}

fn plant_in_values(subject: &mut Subject) {
    subject.plant("set: an entry's value", |program| {
        crate::entry(program, "ipv4", 0, |entry| entry.values[0] ^= 1);
    });
    replace(subject, "set: another field", "set", Operation::Set(Field::EthSrc, Value::PerEntry));
    subject.plant("set: another number", |program| {
        operations(program, "ipv4", "set")[1] = set(Field::Ipv4Dscp, 11);
    });
    forget(subject, "set: left out", "set", 1);
    forget(subject, "set: source address left out", "source", 0);
    replace(subject, "set: another source address", "source", set(Field::Ipv4Src, 0x0a00_0003));
    replace(subject, "set: other metadata", "meta", set(Field::Meta0, 0));
    replace(subject, "add: one more", "add", Operation::Add(Field::L4Dport, Value::Const(6)));
    replace(subject, "add: set instead", "add", set(Field::L4Dport, 5));
    replace(subject, "add: to the other port", "add", Operation::Add(Field::L4Sport, Value::Const(5)));
    forget(subject, "add: left out", "add", 0);
    forget(subject, "add: TTL left out", "source", 1);
    let copy = |from, to| Operation::Copy { from, to };
    replace(subject, "copy: from another field", "copy", copy(Field::Meta0, Field::EthSrc));
    replace(subject, "copy: to another field", "copy", copy(Field::EthDst, Field::Meta1));
    replace(subject, "copy: the other way", "copy", copy(Field::EthSrc, Field::EthDst));
    forget(subject, "copy: left out", "copy", 0);
    forget(subject, "decrement_ttl: left out", "ttl", 0);
    let add = Operation::Add(Field::Ipv4Ttl, Value::Const(255));
    replace(subject, "decrement_ttl: without the check", "ttl", add);
    subject.plant("decrement_ttl: twice", |program| {
        operations(program, "ipv4", "ttl").push(Operation::DecrementTtl);
    });
    for place in 0..4 {
        let kind = if place == 3 { "decrement_ttl" } else { "set" };
        subject.plant(format!("{kind}: IPv6, left out at {place}"), move |program| {
            pipe(program, "ipv6").templates[0].operations.remove(place);
        });
    }
}

fn plant_in_lengths_and_tags(subject: &mut Subject) {
    let limit = |bytes, frame| Operation::LimitLength { bytes: Value::Const(bytes), frame };
    replace(subject, "limit_length: one more", "length", limit(601, false));
    replace(subject, "limit_length: one less", "length", limit(599, false));
    replace(subject, "limit_length: of the frame", "length", limit(600, true));
    replace(subject, "limit_length: frame, one more", "frame", limit(701, true));
    replace(subject, "limit_length: of the packet", "frame", limit(700, false));
    forget(subject, "limit_length: left out", "length", 0);
    subject.plant("limit_length: no app", |program| pipe(program, "ipv4").too_long = None);
    let clamp = |mss| Operation::ClampMss { mss: Value::Const(mss) };
    replace(subject, "clamp_mss: one more", "mss", clamp(1401));
    replace(subject, "clamp_mss: one less", "mss", clamp(1399));
    forget(subject, "clamp_mss: left out", "mss", 0);
    replace(subject, "push_vlan: another id", "push", push(ETHER_QINQ, 4, 3));
    replace(subject, "push_vlan: another priority", "push", push(ETHER_QINQ, 5, 2));
    replace(subject, "push_vlan: another TPID", "push", push(ETHER_VLAN, 5, 3));
    forget(subject, "push_vlan: left out", "push", 0);
    forget(subject, "pop_vlan: left out", "pop", 0);
    subject.plant("pop_vlan: twice", |program| operations(program, "ipv4", "pop").push(Operation::PopVlan));
    subject.plant("order: an address gets the action of another", |program| {
        crate::entry(program, "ipv4", 3, |entry| entry.template = 9);
    });
}
