//! Checks an action: the order of its operations, and the validity of each argument.

use super::finding::FindingKind;
use super::pipes::too_large;
use super::{OPERATIONS_MAX, too_many};
use crate::operation::{Argument, Operation, Slot, Value};
use crate::{HashInput, PipeKind, Template};
use weir_packet::{Access, Field, Source};

/// Checks an action of a pipe of this kind.
pub(super) fn check(template: &Template, pipe: &PipeKind, kinds: &mut Vec<FindingKind>) {
    let keeps = pipe.keeps_values();
    let pairs = template.operations.windows(2);
    let wrong = pairs.into_iter().find(|pair| pair[1].stage() < pair[0].stage());
    kinds.extend(
        wrong.map(|pair| FindingKind::ActionOrder { earlier: pair[0].word(), later: pair[1].word() }),
    );
    too_many("operations of an action", template.operations.len(), OPERATIONS_MAX, kinds);
    if !keeps && template.operations.iter().any(Operation::is_kept) {
        kinds.push(FindingKind::KeptNowhere);
    }
    for (_, value, like) in template.operations.iter().flat_map(Operation::numbers) {
        let Value::Learnt(field) = value else { continue };
        if !matches!(field.spec().source, Source::Frame(_)) {
            kinds.push(FindingKind::LearntFrom { field });
        } else if field.spec().bits > like.spec().bits {
            kinds.push(FindingKind::LearntWider { field, from: field.spec().bits, bits: like.spec().bits });
        }
    }
    let picks = pipe.group().is_some()
        && !matches!(pipe, PipeKind::Hash { input, .. } if !matches!(input, HashInput::Select(_)));
    for operation in &template.operations {
        if let Operation::Encap(encap) = operation
            && encap.second_chance
        {
            kinds.extend(encap.ipv6.then_some(FindingKind::SecondChanceIpv6));
            kinds.extend(encap.bare.then_some(FindingKind::SecondChanceBare));
            kinds.extend((!picks).then_some(FindingKind::SecondChanceNowhere));
        }
        let mut operation: Operation = *operation;
        kinds.extend(operation.arguments().iter().filter_map(argument));
    }
}

fn argument(one: &Argument<'_>) -> Option<FindingKind> {
    match &one.slot {
        Slot::Number(Value::Const(value), like)
        | Slot::Optional(Some(Value::Const(value)), like)
        | Slot::Hashed(Some(Value::Const(value)), like) => {
            too_large(one.key.to_string(), *value, (*like).max())
        }
        Slot::Copied(Some(value), like) => too_large(one.key.to_string(), u128::from(*value), (*like).max()),
        Slot::Written(field) | Slot::Changed(field) => read_only(**field),
        Slot::Read(field) if **field == Field::InputPort => {
            Some(FindingKind::PortNumber { instead: "match it, and `set` a value for each port" })
        }
        Slot::OneOf(value, of) if !of.contains(value) => {
            Some(FindingKind::NotOneOf { what: one.help, of, value: **value })
        }
        _ => None,
    }
}

fn read_only(field: Field) -> Option<FindingKind> {
    (field.spec().access == Access::ReadOnly).then_some(FindingKind::ReadOnly { field })
}
