//! Random actions: operations of the table in the fixed order, with random arguments.

use super::Choices;
use super::pools::value;
use super::programs::read_field;
use weir_packet::{Access, Field, Source};
use weir_program::Template;
use weir_program::operation::{OPERATIONS, Operation, Slot, Stage, Value};

/// Possible numbers of operations of a stage in an action, one of which is picked.
fn counts(stage: Stage) -> &'static [usize] {
    match stage {
        Stage::Rewrite => &[0, 0, 1, 1, 2, 3],
        Stage::Decap | Stage::PopVlan | Stage::PushVlan | Stage::Encap => &[1, 0, 0, 0, 0, 0, 0],
    }
}

/// Generates an action in the fixed order.
pub(super) fn template(random: &mut Choices, number: usize, flows: Flows) -> Template {
    let mut operations = Vec::new();
    for stage in [Stage::Decap, Stage::PopVlan, Stage::Rewrite, Stage::PushVlan, Stage::Encap] {
        let all: Vec<Operation> =
            OPERATIONS.iter().map(|line| line.blank).filter(|blank| blank.stage() == stage).collect();
        for _ in 0..random.pick(counts(stage)) {
            let blank = random.pick(&all);
            operations.push(operation(random, blank, flows));
        }
    }
    Template { name: format!("action{number}"), operations }
}

/// Generates an operation with random arguments. Fields come before numbers that could be read as fields.
pub(super) fn operation(random: &mut Choices, mut operation: Operation, flows: Flows) -> Operation {
    if flows == Flows::Answered
        && let Operation::Add(field, _) | Operation::Copy { to: field, .. } = &operation
    {
        let value = number(random, *field, flows);
        operation = Operation::Set(*field, value);
    }
    if let Operation::LimitLength { frame, .. } = operation {
        // About as long as packets are.
        let bytes = Value::Const(random.pick(&[0, 28, 40, 48, 60, 74, 100, 1500]));
        if random.percent(50) {
            return Operation::LimitLength { bytes, frame: random.percent(50) };
        }
        operation = Operation::LimitLength { bytes, frame };
    }
    for at in 0..operation.arguments().len() {
        let argument = &mut operation.arguments()[at];
        let needed = argument.needed;
        match &mut argument.slot {
            Slot::Number(value, like) => **value = number(random, *like, flows),
            Slot::Optional(value, like) => {
                **value = (needed || random.percent(50)).then(|| number(random, *like, flows));
            }
            Slot::Copied(copied, like) => **copied = random.percent(60).then(|| value(random, *like) as u8),
            Slot::Either(either, _) => **either = random.percent(50),
            Slot::Hashed(value, like) => **value = random.percent(40).then(|| number(random, *like, flows)),
            Slot::Read(field) => **field = read_field(random),
            Slot::Written(field) | Slot::Changed(field) => **field = written_field(random),
            Slot::OneOf(value, of) => **value = random.pick(of),
            Slot::Ipv6(ipv6) => **ipv6 = random.percent(40),
        }
    }
    operation
}

/// Picks a field to write: often one that every packet has.
fn written_field(random: &mut Choices) -> Field {
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

/// The kinds of values that the flows of a pipe may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flows {
    /// Nothing: it is not a FLOW pipe, or it follows.
    None,
    /// Values of its actions.
    Kept,
    /// Values of its actions, and answers are learnt: the action sets addresses and ports rather than
    /// computing them.
    Answered,
}

/// Picks a field from which a flow may learn a number for this field.
fn learnt_field(random: &mut Choices, like: Field) -> Field {
    loop {
        let field = if random.percent(60) { read_field(random) } else { written_field(random) };
        if matches!(field.spec().source, Source::Frame(_)) && field.spec().bits <= like.spec().bits {
            return field;
        }
    }
}

fn number(random: &mut Choices, like: Field, flows: Flows) -> Value {
    match random.below(10) {
        0..2 if flows != Flows::None => Value::PerFlow,
        2..4 if flows != Flows::None => Value::Learnt(learnt_field(random, like)),
        0..5 => Value::PerEntry,
        5 => Value::Const(like.max()),
        _ => Value::Const(value(random, like)),
    }
}
