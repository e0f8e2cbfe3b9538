//! Random actions: operations of the table in the fixed order, with random arguments.

use super::Random;
use super::pools::value;
use super::programs::read_field;
use crate::operation::{OPERATIONS, Operation, Slot, Stage, Value};
use crate::program::Template;
use packet::{Access, Field};

/// Numbers of operations of a stage that an action may have, of which one is picked.
fn counts(stage: Stage) -> &'static [usize] {
    match stage {
        Stage::Rewrite => &[0, 0, 1, 1, 2, 3],
        Stage::Decap | Stage::PopVlan | Stage::PushVlan | Stage::Encap => &[1, 0, 0, 0, 0, 0, 0],
    }
}

/// Generates an action in the fixed order.
pub(super) fn template(random: &mut Random, number: usize) -> Template {
    let mut operations = Vec::new();
    for stage in [Stage::Decap, Stage::PopVlan, Stage::Rewrite, Stage::PushVlan, Stage::Encap] {
        let all: Vec<Operation> =
            OPERATIONS.iter().map(|line| line.blank).filter(|blank| blank.stage() == stage).collect();
        for _ in 0..random.pick(counts(stage)) {
            let blank = random.pick(&all);
            operations.push(operation(random, blank));
        }
    }
    Template { name: format!("action{number}"), operations }
}

/// Generates an operation with random arguments. Fields come before numbers that could be read as fields.
fn operation(random: &mut Random, mut operation: Operation) -> Operation {
    for at in 0..operation.arguments().len() {
        let argument = &mut operation.arguments()[at];
        let needed = argument.needed;
        match &mut argument.slot {
            Slot::Number(value, like) => **value = number(random, *like),
            Slot::Optional(value, like) => {
                **value = (needed || random.percent(50)).then(|| number(random, *like));
            }
            Slot::Copied(copied, like) => **copied = random.percent(60).then(|| value(random, *like) as u8),
            Slot::Either(either, _) => **either = random.percent(50),
            Slot::Hashed(value, like) => **value = random.percent(40).then(|| number(random, *like)),
            Slot::Read(field) => **field = read_field(random),
            Slot::Written(field) | Slot::Changed(field) => **field = written_field(random),
            Slot::OneOf(value, of) => **value = random.pick(of),
            Slot::Ipv6(ipv6) => **ipv6 = random.percent(40),
        }
    }
    operation
}

/// Picks a field to write: often one that every packet has.
fn written_field(random: &mut Random) -> Field {
    const COMMON: &[Field] = &[
        Field::EthDst,
        Field::EthSrc,
        Field::Meta0,
        Field::Meta3,
        Field::Ipv4Src,
        Field::Ipv4Dst,
        Field::L4Dport,
    ];
    let writable: Vec<Field> =
        Field::ALL.iter().copied().filter(|field| field.spec().access == Access::Writable).collect();
    if random.percent(50) { random.pick(COMMON) } else { random.pick(&writable) }
}

fn number(random: &mut Random, like: Field) -> Value {
    match random.below(10) {
        0..5 => Value::PerEntry,
        5 => Value::Const(like.max()),
        _ => Value::Const(value(random, like)),
    }
}
