//! The values that a flow keeps (docs/reference/pipes.md A19): where they are in its lines, and their form.
//!
//! A flow keeps all numbers of the operations that use a value of the flow. The widest come first, so that
//! each is aligned.

use crate::flows;
use crate::layout::is_mac;
use weir_packet::Field;
use weir_program::operation::{Operation, Value};
use weir_program::{Pipe, Template};

/// Where a flow keeps a number.
#[derive(Clone, Copy, Debug)]
pub struct KeptPlace {
    /// From the start of the flow's first line.
    pub offset: i16,
    /// 2, 4, 8 or 16.
    pub bytes: usize,
}

/// Returns the places of the numbers of each operation; none for operations whose numbers flows do not keep.
pub fn places(template: &Template) -> Vec<Vec<KeptPlace>> {
    let operations = template.operations.iter().map(|one| one.is_kept().then_some(one));
    lay_out(&operations.collect::<Vec<_>>())
}

/// Returns how many bytes a flow with this action keeps.
pub fn bytes(template: &Template) -> usize {
    places(template).iter().flatten().map(|place| place.bytes).sum()
}

/// Returns how many bytes the flows of a pipe keep at most.
pub fn bytes_of_pipe(pipe: &Pipe) -> usize {
    pipe.templates.iter().map(bytes).max().unwrap_or(0)
}

/// Returns what the lines of a flow have for the operations of its action with the numbers that it keeps.
#[must_use]
pub fn kept_bytes(kept: &[Option<Operation>]) -> Vec<u8> {
    let places = lay_out(&kept.iter().map(Option::as_ref).collect::<Vec<_>>());
    let mut all = vec![0; places.iter().flatten().map(|place| place.bytes).sum()];
    for (operation, places) in kept.iter().zip(places) {
        let Some(operation) = operation else { continue };
        for ((_, value, like), place) in operation.numbers().zip(places) {
            let Value::Const(number) = value else { unreachable!("a flow keeps numbers") };
            let at = (place.offset - flows::KEPT) as usize;
            let as_in_frame = matches!(operation, Operation::Set(..)) && is_mac(like);
            write(&mut all[at..at + place.bytes], number, as_in_frame);
        }
    }
    all
}

/// The processor's words, the upper one first; a MAC address that is set lies as in a frame.
fn write(to: &mut [u8], number: u128, as_in_frame: bool) {
    match to.len() {
        2 => to.copy_from_slice(&(number as u16).to_ne_bytes()),
        4 => to.copy_from_slice(&(number as u32).to_ne_bytes()),
        8 if as_in_frame => to.copy_from_slice(&((number as u64) << 16).to_be_bytes()),
        8 => to.copy_from_slice(&(number as u64).to_ne_bytes()),
        16 => {
            to[..8].copy_from_slice(&((number >> 64) as u64).to_ne_bytes());
            to[8..].copy_from_slice(&(number as u64).to_ne_bytes());
        }
        bytes => unreachable!("a flow keeps 2, 4, 8 or 16 bytes, not {bytes}"),
    }
}

/// Returns the places of the operations' numbers.
fn lay_out(operations: &[Option<&Operation>]) -> Vec<Vec<KeptPlace>> {
    let sizes = |one: &Option<&Operation>| -> Vec<KeptPlace> {
        let numbers = one.iter().flat_map(|operation| operation.numbers());
        numbers.map(|(_, _, like)| KeptPlace { offset: 0, bytes: number_bytes(like) }).collect()
    };
    let mut places: Vec<Vec<KeptPlace>> = operations.iter().map(sizes).collect();
    let mut next = 0;
    for bytes in [16, 8, 4, 2] {
        for place in places.iter_mut().flatten().filter(|place| place.bytes == bytes) {
            place.offset = flows::KEPT + next as i16;
            next += bytes;
        }
    }
    places
}

fn number_bytes(like: Field) -> usize {
    usize::from(like.spec().bits).next_power_of_two().max(16) / 8
}
