//! The operations of an action: the headers they need, and their text for packets that have these.

use crate::Why;
use crate::flow_match::{Matches, with_ip, with_layer, with_layers_of};
use crate::switch_field::{SwitchField, TAGGED};
use weir_packet::{Field, FieldKind, Layer, LevelId};
use weir_program::{Operation, Value};

/// The number of tags that operations push, minus those that they pop. Those of tunnels count as none,
/// because [`applicable`] refuses tunnels.
pub(crate) fn tags(operations: &[Operation]) -> i32 {
    let one = |operation: &Operation| match operation {
        Operation::PushVlan { .. } => 1,
        Operation::PopVlan => -1,
        Operation::Set(..) | Operation::Add(..) | Operation::Copy { .. } => 0,
        Operation::DecrementTtl | Operation::LimitLength { .. } | Operation::ClampMss { .. } => 0,
        Operation::Decap(_) | Operation::Encap(_) => 0,
    };
    operations.iter().map(one).sum()
}

/// Keeps the packets to which all operations apply; weir drops the others (docs/reference/pipes.md A2).
/// `before` is how many tags were pushed, less those popped, in front of them.
pub(crate) fn applicable(matches: Matches, operations: &[Operation], before: i32) -> Result<Matches, Why> {
    let mut matches = matches;
    for (at, operation) in operations.iter().enumerate() {
        matches = match operation {
            Operation::PopVlan => match tags(&operations[..at]) {
                // A match shows only the first tag, and after a pop, not even that.
                ..0 => return Err(Why::SecondTag),
                0 if before < 0 => return Err(Why::SecondTag),
                0 => with_layer(matches, Layer::Vlan).ok_or(Why::SecondTag)?,
                1.. => matches,
            },
            Operation::Set(field, _) => with_layers_of(matches, *field).map_err(|_| not_written(*field))?,
            Operation::Copy { from, to } => {
                let readable =
                    |matches, field: Field| with_layers_of(matches, field).map_err(|_| Why::Copy(*from, *to));
                readable(readable(matches, *from)?, *to)?
            }
            Operation::DecrementTtl => with_ip(matches),
            Operation::PushVlan { .. } => matches,
            Operation::Add(..) | Operation::LimitLength { .. } | Operation::ClampMss { .. } => {
                return Err(Why::Operation(operation.word()));
            }
            Operation::Decap(_) | Operation::Encap(_) => return Err(Why::Tunnel),
        };
    }
    Ok(matches)
}

fn not_written(field: Field) -> Why {
    if field.level == LevelId::Inner || field.spec().tunnel.is_some() {
        Why::Tunnel
    } else if matches!(field.kind, FieldKind::SecondVlanPcp | FieldKind::SecondVlanVid) {
        Why::SecondTag
    } else {
        Why::Write(field)
    }
}

/// Returns the actions for packets of a transport protocol to which the operations apply. `values` are the
/// entry's.
pub(crate) fn text(
    operations: &[Operation],
    values: &[u128],
    protocol: Option<u128>,
) -> Result<Vec<String>, Why> {
    let mut actions = Vec::new();
    let mut values = values.iter().copied();
    let mut number = |value: Value, word: &'static str| match value {
        Value::Const(value) => Ok(value),
        Value::PerEntry => Ok(values.next().unwrap_or_default()),
        Value::PerFlow | Value::Learnt(_) | Value::Nat(_) => Err(Why::Operation(word)),
    };
    for operation in operations {
        match operation {
            Operation::PopVlan => actions.push("pop_vlan".to_string()),
            Operation::Set(field, value) => {
                let value = number(*value, operation.word())?;
                set(*field, value, protocol, &mut actions)?;
            }
            Operation::Copy { from, to } => copy(*from, *to, protocol, &mut actions)?,
            Operation::DecrementTtl => actions.push("dec_ttl".to_string()),
            Operation::PushVlan { tpid, vid, pcp } => {
                let vid = number(*vid, operation.word())? | TAGGED;
                let pcp = number(*pcp, operation.word())?;
                actions.push(format!("push_vlan:{tpid:#x}"));
                actions.push(format!("set_field:{vid:#x}->vlan_vid"));
                if pcp != 0 {
                    actions.push(format!("set_field:{pcp}->vlan_pcp"));
                }
            }
            Operation::Add(..) | Operation::LimitLength { .. } | Operation::ClampMss { .. } => {
                return Err(Why::Operation(operation.word()));
            }
            Operation::Decap(_) | Operation::Encap(_) => return Err(Why::Tunnel),
        }
    }
    Ok(actions)
}

/// Writes a number to a field.
fn set(field: Field, value: u128, protocol: Option<u128>, actions: &mut Vec<String>) -> Result<(), Why> {
    let mut write = |key: SwitchField, value: u128| {
        actions.push(format!("set_field:{}->{}", key.number(value), key.name(protocol)));
    };
    match field.kind {
        FieldKind::VlanPcp | FieldKind::VlanVid => return Err(Why::Dei(field)),
        FieldKind::Ipv6TrafficClass => {
            write(SwitchField::Dscp, value >> 2);
            write(SwitchField::Ecn, value & 3);
        }
        FieldKind::Ipv4Dscp => write(SwitchField::Dscp, value),
        FieldKind::Ipv4Ecn => write(SwitchField::Ecn, value),
        FieldKind::Ipv4Ttl | FieldKind::Ipv6HopLimit => write(SwitchField::Ttl, value),
        FieldKind::Ipv6FlowLabel => write(SwitchField::Ipv6Label, value),
        _ => write(plain(field).ok_or(Why::Write(field))?, value),
    }
    Ok(())
}

/// The field of Open vSwitch that has exactly the bits of a field, if an action may read and write it.
fn plain(field: Field) -> Option<SwitchField> {
    match field.kind {
        FieldKind::EthDst => Some(SwitchField::EthDst),
        FieldKind::EthSrc => Some(SwitchField::EthSrc),
        FieldKind::Ipv4Src => Some(SwitchField::Ipv4Src),
        FieldKind::Ipv4Dst => Some(SwitchField::Ipv4Dst),
        FieldKind::Ipv6Src => Some(SwitchField::Ipv6Src),
        FieldKind::Ipv6Dst => Some(SwitchField::Ipv6Dst),
        FieldKind::L4Sport | FieldKind::TcpSport | FieldKind::UdpSport => Some(SwitchField::SourcePort),
        FieldKind::L4Dport | FieldKind::TcpDport | FieldKind::UdpDport => Some(SwitchField::DestinationPort),
        FieldKind::Meta0 => Some(SwitchField::Register(0)),
        FieldKind::Meta1 => Some(SwitchField::Register(1)),
        FieldKind::Meta2 => Some(SwitchField::Register(2)),
        FieldKind::Meta3 => Some(SwitchField::Register(3)),
        _ => None,
    }
}

/// Copies the low bits of a field; the upper bits of a wider one become 0.
fn copy(from: Field, to: Field, protocol: Option<u128>, actions: &mut Vec<String>) -> Result<(), Why> {
    let (Some(read), Some(written)) = (plain(from), plain(to)) else {
        return Err(Why::Copy(from, to));
    };
    let (bits, wide) = (from.spec().bits.min(to.spec().bits), to.spec().bits);
    let (read, written) = (read.name(protocol), written.name(protocol));
    if read != written {
        actions.push(format!("move:{read}[0..{}]->{written}[0..{}]", bits - 1, bits - 1));
    }
    // A number in `load` has 64 bits.
    let mut at = bits;
    while at < wide {
        let next = wide.min(at + 64);
        actions.push(format!("load:0->{written}[{at}..{}]", next - 1));
        at = next;
    }
    Ok(())
}
