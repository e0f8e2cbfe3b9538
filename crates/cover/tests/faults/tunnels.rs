//! Faults in tunnels: each kind is written and removed, with outer IPv4 and IPv6.

use crate::{Subject, operations};
use weir_packet::{Field, TunnelKind};
use weir_program::builder::ProgramBuilder;
use weir_program::operation::Slot;
use weir_program::{Encap, Operation, Pipe, Program, Template, Value};

pub fn subjects() -> impl Iterator<Item = Subject> {
    let all = TunnelKind::ALL.iter().flat_map(|kind| [false, true].map(|ipv6| (*kind, ipv6)));
    all.map(|(kind, ipv6)| subject(kind, ipv6))
}

/// A tunnel with all that its kind has.
fn tunnel(kind: TunnelKind, ipv6: bool) -> Encap {
    let [src, dst] =
        if ipv6 { [1, 2].map(|low| 0x2001_0db8 << 96 | low) } else { [0x0a09_0001, 0x0a09_0002] };
    Encap {
        ipv6,
        eth_dst: Value::Const(0x0200_0000_0010),
        eth_src: Value::Const(0x0200_0000_0020),
        src: Value::Const(src),
        dst: Value::Const(dst),
        id: kind.spec().id.map(|_| Value::Const(0x01_0203)),
        ttl: Value::Const(60),
        dscp: None,
        sport: kind.is_udp().then_some(Value::Const(0xbeef)),
        ..Encap::new(kind)
    }
}

/// One port adds the headers, the other removes them.
fn subject(kind: TunnelKind, ipv6: bool) -> Subject {
    let mut program = ProgramBuilder::new();
    let [inside, outside] = program.ports(["inside", "outside"]);
    let encap = Operation::Encap(tunnel(kind, ipv6));
    let add = Pipe::basic("add").constant(Field::IpFragment, 0);
    let add = add.actions([Template::new("encap", [encap])]).entry(weir_program::Entry::default());
    let add = program.pipe(add.forward(outside));
    let remove = Pipe::basic("remove").actions([Template::new("decap", [Operation::Decap(kind)])]);
    let remove = remove.entry(weir_program::Entry::default()).constant(Field::IpFragment, 0);
    let remove = program.pipe(remove.forward(inside));
    program.root(inside, add);
    program.root(outside, remove);
    let mut subject = Subject::new(program.build());
    plant_in_numbers(&mut subject, kind, ipv6);
    plant_in_choices(&mut subject, kind, ipv6);
    plant_in_decap(&mut subject, kind, ipv6);
    subject
}

fn family(ipv6: bool) -> &'static str {
    if ipv6 { "IPv6" } else { "IPv4" }
}

fn encap(program: &mut Program) -> &mut Encap {
    match &mut operations(program, "add", "encap")[0] {
        Operation::Encap(encap) => encap,
        other => panic!("{other:?}"),
    }
}

fn plant_in_numbers(subject: &mut Subject, kind: TunnelKind, ipv6: bool) {
    let mut operation = Operation::Encap(tunnel(kind, ipv6));
    let keys: Vec<&str> = operation
        .arguments()
        .into_iter()
        .filter(|one| matches!(one.slot.number(), Some((Value::Const(_), _))))
        .map(|one| one.key)
        .collect();
    for key in keys {
        subject.plant(format!("encap_{kind}: {}, another {key}", family(ipv6)), move |program| {
            let operation = &mut operations(program, "add", "encap")[0];
            let argument = operation.arguments().into_iter().find(|one| one.key == key);
            match argument.map(|one| one.slot) {
                Some(
                    Slot::Number(Value::Const(number), _)
                    | Slot::Optional(Some(Value::Const(number)), _)
                    | Slot::Hashed(Some(Value::Const(number)), _),
                ) => *number ^= 4,
                other => panic!("{other:?}"),
            }
        });
    }
}

type Choice = (&'static str, fn(&mut Encap));

fn plant_in_choices(subject: &mut Subject, kind: TunnelKind, ipv6: bool) {
    let mut all: Vec<Choice> = vec![
        ("DSCP not copied", |encap| encap.dscp = Some(0)),
        ("source bits from the hash", |encap| encap.src_bits = Some(Value::Const(8))),
    ];
    if kind.is_udp() {
        all.push(("source port from the hash", |encap| encap.sport = None));
        all.push(("with a UDP checksum", |encap| encap.udp_checksum = true));
    }
    if kind.spec().ethernet && kind.spec().ip {
        all.push(("another content", |encap| encap.ethernet = !encap.ethernet));
    }
    if kind.spec().id.is_some() && !kind.spec().id_needed {
        all.push(("without an id", |encap| encap.id = None));
    }
    if kind == TunnelKind::Gue {
        all.push(("without a header", |encap| encap.bare = true));
    }
    for (what, change) in all {
        let name = format!("encap_{kind}: {}, {what}", family(ipv6));
        subject.plant(name, move |program| change(encap(program)));
    }
    subject.plant(format!("encap_{kind}: {}, left out", family(ipv6)), |program| {
        operations(program, "add", "encap").clear();
    });
    subject.plant(format!("encap_{kind}: {}, another kind", family(ipv6)), move |program| {
        let other = other(kind);
        *encap(program) = tunnel(other, ipv6);
    });
}

fn plant_in_decap(subject: &mut Subject, kind: TunnelKind, ipv6: bool) {
    subject.plant(format!("decap_{kind}: {}, left out", family(ipv6)), |program| {
        operations(program, "remove", "decap").clear();
    });
    subject.plant(format!("decap_{kind}: {}, another kind", family(ipv6)), move |program| {
        operations(program, "remove", "decap")[0] = Operation::Decap(other(kind));
    });
    if kind.is_udp() {
        let name = format!("decap_{kind}: {}, at another UDP port", family(ipv6));
        subject.plant(name, move |program| program.tunnels.set(kind, 7000));
    }
}

fn other(kind: TunnelKind) -> TunnelKind {
    TunnelKind::ALL[(kind as usize + 1) % TunnelKind::ALL.len()]
}
