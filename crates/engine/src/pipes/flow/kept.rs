//! Values that flows keep: the numbers of actions at the time when a flow was learnt. They are stored in a
//! slab next to the 64-byte lines, one row for each row of the flow table, in the form that the steps of the
//! action need.
//!
//! A packet whose flow found no room in the table uses a spare row, one for each packet of a batch.
//!
//! Costs: nothing for pipes without such values. Otherwise the bytes of the longest action per flow, resident
//! as used; and the values of each entry once more.

use crate::batch::load::{KeyPlan, read};
use crate::batch::steps::{Kept, Plan};
use crate::pipes::lookup::Lookup;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{Field, FlowKey};
use weir_program::nat::Binding;
use weir_program::operation::{NatPart, Operation, Value};
use weir_program::snapshot::KeptOperations;
use weir_program::{Entry, Pipe, Program, Template};

/// The values that the flows of a pipe keep.
#[derive(Debug)]
pub struct FlowValues {
    /// By template: its operations, and how their values are laid out.
    plans: Vec<(Vec<Operation>, Plan)>,
    /// Fields that values are learnt from.
    learnt: Vec<(Field, KeyPlan)>,
    /// By template: how it rewrites the parts of a flow key.
    rewrites: Vec<Vec<Rewrite>>,
    /// By entry row: its template and its values.
    entries: Vec<(u16, Box<[u128]>)>,
    stride: usize,
    slab: Vec<u8>,
    /// Rows of the flow table.
    capacity: u32,
    /// The row of each packet of the batch.
    rows: [u32; 64],
    /// The address and port from the NAT pool of the flow that is about to begin.
    pub bound: Option<Binding>,
}

/// A part of a flow key that an action sets.
#[derive(Clone, Copy, Debug)]
struct Rewrite {
    field: Field,
    number: Number,
}

/// The source of the number.
#[derive(Clone, Copy, Debug)]
enum Number {
    Const(u128),
    /// The entry's value at this place.
    Own(usize),
    Learnt(Field),
    Nat(NatPart),
}

impl FlowValues {
    /// Creates a slab, if an action of the pipe has values kept by flows, or answers need the actions'
    /// rewrites.
    #[must_use]
    pub fn new(pipe: &Pipe, program: &Program, answers: bool) -> Option<Box<FlowValues>> {
        let plan = |one: &Template| (one.operations.clone(), Plan::new(one, &program.tunnels, false));
        let plans: Vec<_> = pipe.templates.iter().map(plan).collect();
        let stride = plans.iter().map(|(_, plan)| plan.flow_stride).max().unwrap_or(0);
        if stride == 0 && !answers {
            return None;
        }
        let operations = || pipe.templates.iter().flat_map(|template| &template.operations);
        let fields = operations().flat_map(Operation::learnt);
        let learnt = fields.map(|field| (field, KeyPlan::unpacked(&[(field, u128::MAX)]))).collect();
        let rewrites = pipe.templates.iter().map(|template| rewrites(&template.operations)).collect();
        Some(Box::new(FlowValues {
            plans,
            learnt,
            rewrites,
            entries: Vec::new(),
            stride,
            slab: vec![0; (pipe.capacity as usize + 64) * stride],
            capacity: pipe.capacity,
            rows: [0; 64],
            bound: None,
        }))
    }

    /// Sets the values that the entry of a row provides.
    pub fn set_entry(&mut self, row: u32, entry: &Entry) {
        let at = row as usize;
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, Default::default);
        }
        self.entries[at] = (entry.template, entry.values.clone().into());
    }

    /// Returns the template of the entry of a row.
    #[must_use]
    pub fn template(&self, row: u32) -> Option<u16> {
        self.entries.get(row as usize).map(|(template, _)| *template)
    }

    /// Records that the packet in a slot belongs to this flow, or to none.
    #[inline]
    pub fn meet(&mut self, slot: usize, flow: Option<u32>) {
        self.rows[slot] = flow.unwrap_or(self.capacity + slot as u32);
    }

    /// The flow of the packet in a slot ends before the packet's action runs: copies what the flow kept.
    pub fn set_apart(&mut self, slot: usize) {
        let spare = self.capacity + slot as u32;
        let from = self.rows[slot] as usize * self.stride;
        self.slab.copy_within(from..from + self.stride, spare as usize * self.stride);
        self.rows[slot] = spare;
    }

    /// Writes the values that a flow keeps which the packet in a slot begins, decided for the entry of `row`.
    /// Without a flow, writes the values that only this packet uses.
    pub fn begin(&mut self, flow: Option<u32>, row: u32, slot: usize, look: &Lookup<'_>) {
        let at = flow.unwrap_or(self.capacity + slot as u32);
        let bound = self.bound;
        self.write(at, row, |plans, value| match value {
            Value::Learnt(field) => learnt_by(plans, field, slot, look),
            Value::Nat(part) => part_of(bound, part),
            _ => 0,
        });
    }

    /// Writes the values that a flow with an entry of its own keeps, if no packet has begun the flow.
    pub fn begin_bare(&mut self, flow: u32, row: u32) {
        self.write(flow, row, |_, _| 0);
    }

    fn write(&mut self, at: u32, row: u32, learnt: impl Fn(&[(Field, KeyPlan)], Value) -> u128) {
        let FlowValues { plans, learnt: fields, entries, stride, slab, .. } = self;
        let Some((template, own)) = entries.get(row as usize) else { return };
        let start = at as usize * *stride;
        let (Some((_, plan)), Some(place)) =
            (plans.get(usize::from(*template)), slab.get_mut(start..start + *stride))
        else {
            return;
        };
        let fields: &[(Field, KeyPlan)] = fields;
        place.fill(0);
        plan.keep(own, place, |value| learnt(fields, value));
    }

    /// Returns how many bytes a flow keeps.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Copies what a flow keeps to another table's row.
    pub fn copy_from(&mut self, to: u32, old: &FlowValues, from: u32) {
        let place = |at: u32| at as usize * self.stride..(at as usize + 1) * self.stride;
        if self.stride == old.stride {
            self.slab[place(to)].copy_from_slice(&old.slab[place(from)]);
        }
    }

    /// Returns what the flow of a row keeps.
    pub fn of_row(&self, at: u32) -> &[u8] {
        &self.slab[at as usize * self.stride..(at as usize + 1) * self.stride]
    }

    /// Returns the operations of the action of an entry, by its row, with the numbers that the flow of a row
    /// keeps; `None` for those whose numbers it does not keep.
    pub fn operations_of_row(&self, at: u32, entry: u32) -> Option<KeptOperations> {
        let (template, _) = self.entries.get(entry as usize)?;
        let (operations, plan) = self.plans.get(usize::from(*template))?;
        Some(plan.kept(operations, self.of_row(at)))
    }

    /// Sets what the flow of a row keeps to the piece of `all` at this index.
    pub fn set_row(&mut self, row: u32, all: &[u8], number: usize) {
        let place = |at: usize| at * self.stride..(at + 1) * self.stride;
        self.slab[place(row as usize)].copy_from_slice(&all[place(number)]);
    }

    /// Takes over what flows keep, with the same rows.
    pub fn take_slab(&mut self, old: &mut FlowValues) {
        if (self.stride, self.capacity) == (old.stride, old.capacity) {
            std::mem::swap(&mut self.slab, &mut old.slab);
        }
    }

    /// Returns what the steps of an action read.
    #[inline]
    #[must_use]
    pub fn kept(&self) -> Option<Kept<'_>> {
        (self.stride != 0).then_some(Kept { rows: &self.rows, values: &self.slab, stride: self.stride })
    }

    /// Returns the key of the answers to a packet after the action of the entry in `row`.
    #[must_use]
    pub fn answers(&self, key: &FlowKey, row: u32, slot: usize, look: &Lookup<'_>) -> FlowKey {
        let (mut src, mut dst, mut ports) = (key.src(), key.dst(), (key.sport(), key.dport()));
        let none = (0, Box::default());
        let (template, own) = self.entries.get(row as usize).unwrap_or(&none);
        for rewrite in self.rewrites.get(usize::from(*template)).into_iter().flatten() {
            let number = match rewrite.number {
                Number::Const(number) => number,
                Number::Own(at) => own.get(at).copied().unwrap_or_default(),
                Number::Learnt(field) => learnt_by(&self.learnt, field, slot, look),
                Number::Nat(part) => part_of(self.bound, part),
            };
            match rewrite.field {
                Field::Ipv4Src if src.is_ipv4() => src = Ipv4Addr::from_bits(number as u32).into(),
                Field::Ipv4Dst if dst.is_ipv4() => dst = Ipv4Addr::from_bits(number as u32).into(),
                Field::Ipv6Src if src.is_ipv6() => src = Ipv6Addr::from_bits(number).into(),
                Field::Ipv6Dst if dst.is_ipv6() => dst = Ipv6Addr::from_bits(number).into(),
                Field::L4Sport | Field::TcpSport | Field::UdpSport => ports.0 = number as u16,
                Field::L4Dport | Field::TcpDport | Field::UdpDport => ports.1 = number as u16,
                _ => {}
            }
        }
        let same = |one: IpAddr, other: IpAddr| one.is_ipv4() == other.is_ipv4();
        debug_assert!(same(src, dst));
        FlowKey::new(dst, src, key.protocol(), (ports.1, ports.0), None)
    }
}

/// The parts of a flow key that an action sets.
fn rewrites(operations: &[Operation]) -> Vec<Rewrite> {
    let (mut list, mut given) = (Vec::new(), 0);
    for operation in operations {
        if let Operation::Set(field, value) = *operation {
            let number = match value {
                Value::Const(number) => Number::Const(number),
                Value::PerEntry | Value::PerFlow => Number::Own(given),
                Value::Learnt(from) => Number::Learnt(from),
                Value::Nat(part) => Number::Nat(part),
            };
            list.push(Rewrite { field, number });
        }
        given += operation.numbers().filter(|(_, value, _)| value.is_given()).count();
    }
    list
}

/// Returns an address or a port as a number; 0 if there is none.
fn part_of(bound: Option<Binding>, part: NatPart) -> u128 {
    match (part, bound) {
        (_, None) => 0,
        (NatPart::Port, Some((_, port))) => port.into(),
        (NatPart::Address, Some((IpAddr::V4(address), _))) => address.to_bits().into(),
        (NatPart::Address, Some((IpAddr::V6(address), _))) => address.to_bits(),
    }
}

/// Returns the current value of a field of the packet in a slot.
fn learnt_by(plans: &[(Field, KeyPlan)], field: Field, slot: usize, look: &Lookup<'_>) -> u128 {
    let plan = plans.iter().find(|(of, _)| *of == field);
    plan.and_then(|(_, plan)| read(plan, look.batch, look.packets, slot)).unwrap_or_default()
}
