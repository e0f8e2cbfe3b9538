//! Actions, compiled: a template becomes a few steps with their values laid out, and each step runs over all
//! packets of a list before the next one starts, so that dispatch happens once per batch.

use crate::batch::group::{GroupNumbers, GroupTable};
use crate::batch::icmp_error::{self, QuotedEnd};
use crate::batch::length;
use crate::batch::load::{KeyPlan, read};
use crate::batch::mend::{Cover, Transport, mend};
use crate::batch::packets::{Packets, Reading};
use crate::batch::rows::{ActionOf, Actions};
use crate::batch::tunnel::{Encapsulation, decap, read_outer, write_outer};
use weir_packet::fragment;
use weir_packet::{
    Base, Batch, Bits, DropReason, Field, Frame, Headers, Layer, Layers, LevelId, LevelLayers, Source, Sum,
    TunnelKind, TunnelPorts,
};
use weir_program::operation::Headers as Moved;
use weir_program::snapshot::KeptOperations;
use weir_program::{Encap, GroupChoice, Operation, PipeKind, Template, Value};

/// Maximum number of bytes for the values of one operation: the outer headers of a tunnel, with at most 14
/// bytes of Ethernet, 40 of IPv6, 8 of UDP and 16 of the tunnel, and the number of source addresses, 8.
const LAID_OUT_MAX: usize = 128;

/// Whose values a step uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The values of the entry that the packet hits.
    Entry,
    /// The values that the packet's flow keeps.
    Flow,
}

/// One compiled step. The number next to it in [`Plan`] is the offset of its value in an action row, or in
/// what a flow keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Decap(TunnelKind),
    PopVlan,
    /// Headers have moved and another step follows.
    FindHeaders,
    /// Six bytes at the start of the frame (destination) or after that (source).
    Mac(usize),
    /// Both MAC addresses, destination first.
    Macs,
    /// IPv4 address of the outer header, 12 or 16 bytes after its start.
    Ipv4Address(usize),
    /// Port of the outer TCP or UDP header; the layer it needs.
    Port(usize, Layers),
    /// Like `Port`, where flows are translated; in an ICMP error, the opposite port of the packet inside.
    FlowPort(usize, Layers),
    /// Address of the packet inside an ICMP error, with its length in bytes.
    AddressInside(QuotedEnd, usize),
    /// A word of the metadata.
    Meta(usize),
    Set(Target),
    Add(Target, KeyPlan),
    Copy(Target, KeyPlan),
    DecrementTtl,
    /// A limit of the IP packet's length, or of the whole frame's.
    LimitLength(bool),
    ClampMss,
    PushVlan,
    Encap(Encapsulation),
}

/// A field to be written, with what writing it entails.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    field: Field,
    needs: LevelLayers,
    cover: Cover,
}

/// A compiled template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<(Step, Whose, usize)>,
    fills: Vec<(Fill, Whose, usize)>,
    /// The number of bytes of values in an action row.
    pub stride: usize,
    /// The number of bytes of values that a flow keeps.
    pub flow_stride: usize,
    translates: bool,
    /// Whether the template writes to frames.
    writes: bool,
}

/// How an operation's values are laid out in an action row.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "an action has few operations")]
enum Fill {
    Number { value: Value, bytes: usize },
    Tag { tpid: u16, vid: Value, pcp: Value },
    Outer(Encap, TunnelPorts),
}

impl Eq for Fill {}

impl Plan {
    /// Compiles a template; `ports` are the destination ports of tunnels. `translates` says that it belongs
    /// to a pipe that translates flows and, with them, the ICMP errors about them (A20).
    #[must_use]
    pub fn new(template: &Template, ports: &TunnelPorts, translates: bool) -> Plan {
        let mut plan = Plan { translates, ..Plan::default() };
        let mut before = None;
        for operation in &template.operations {
            if needs_headers(before, operation) {
                plan.steps.push((Step::FindHeaders, Whose::Entry, 0));
            }
            plan.push(operation, ports);
            before = Some(operation);
        }
        plan.join_macs();
        let writes = |(step, ..): &(Step, Whose, usize)| {
            !matches!(step, Step::Meta(_) | Step::FindHeaders | Step::LimitLength(_))
        };
        plan.writes = plan.steps.iter().any(writes);
        plan
    }

    fn push(&mut self, operation: &Operation, ports: &TunnelPorts) {
        let whose = if operation.is_kept() { Whose::Flow } else { Whose::Entry };
        match *operation {
            Operation::Decap(kind) => self.bare(Step::Decap(kind)),
            Operation::PopVlan => self.bare(Step::PopVlan),
            Operation::Set(field, value) => self.set(whose, field, value),
            Operation::Add(field, value) => {
                let step = Step::Add(Target::new(field), KeyPlan::unpacked(&[(field, u128::MAX)]));
                self.with_value(whose, step, Fill::Number { value, bytes: 16 });
            }
            Operation::Copy { from, to } => {
                let step = Step::Copy(Target::new(to), KeyPlan::unpacked(&[(from, u128::MAX)]));
                self.bare(step);
            }
            Operation::DecrementTtl => self.bare(Step::DecrementTtl),
            Operation::LimitLength { bytes, frame } => {
                self.with_value(whose, Step::LimitLength(frame), Fill::Number { value: bytes, bytes: 2 });
            }
            Operation::ClampMss { mss } => {
                self.with_value(whose, Step::ClampMss, Fill::Number { value: mss, bytes: 2 });
            }
            Operation::PushVlan { tpid, vid, pcp } => {
                self.with_value(whose, Step::PushVlan, Fill::Tag { tpid, vid, pcp })
            }
            Operation::Encap(encap) => {
                let step = Step::Encap(Encapsulation::new(&encap));
                self.with_value(whose, step, Fill::Outer(encap, *ports));
            }
        }
    }

    fn set(&mut self, whose: Whose, field: Field, value: Value) {
        let spec = field.spec();
        let (step, bytes) = match field {
            Field::EthDst => (Step::Mac(0), 6),
            Field::EthSrc => (Step::Mac(6), 6),
            Field::Ipv4Src => (Step::Ipv4Address(12), 4),
            Field::Ipv4Dst => (Step::Ipv4Address(16), 4),
            _ if field.level == LevelId::Outer && spec.source == Source::Frame(Base::L4) => {
                let step = if self.translates { Step::FlowPort } else { Step::Port };
                (step(spec.offset as usize, spec.needs), 2)
            }
            _ if field.meta_word().is_some() => (Step::Meta(field.meta_word().unwrap_or_default()), 4),
            _ => (Step::Set(Target::new(field)), 16),
        };
        self.with_value(whose, step, Fill::Number { value, bytes });
        if self.translates
            && field.level == LevelId::Outer
            && let Some(end) = QuotedEnd::of_address(field)
            && let Some(&(_, whose, at)) = self.steps.last()
        {
            self.steps.push((Step::AddressInside(end, bytes), whose, at));
        }
    }

    /// Adds a step without values.
    fn bare(&mut self, step: Step) {
        self.steps.push((step, Whose::Entry, 0));
    }

    fn with_value(&mut self, whose: Whose, step: Step, fill: Fill) {
        let stride = match whose {
            Whose::Entry => &mut self.stride,
            Whose::Flow => &mut self.flow_stride,
        };
        self.steps.push((step, whose, *stride));
        self.fills.push((fill, whose, *stride));
        *stride += fill.bytes();
    }

    /// Combines steps that set destination and source one after the other, in either order, into one copy of
    /// twelve bytes.
    fn join_macs(&mut self) {
        let is_pair = |two: &[(Step, Whose, usize)]| {
            let macs = matches!((&two[0].0, &two[1].0), (Step::Mac(one), Step::Mac(other)) if one != other);
            macs && (two[1].1, two[1].2) == (two[0].1, two[0].2 + 6)
        };
        while let Some(pair) = self.steps.windows(2).position(is_pair) {
            let (first, whose, at) = (self.steps[pair].0.clone(), self.steps[pair].1, self.steps[pair].2);
            self.steps[pair].0 = Step::Macs;
            self.steps.remove(pair + 1);
            if first == Step::Mac(6) {
                // The destination's value is laid out first, whichever was given first.
                let fills = self.fills.iter_mut().filter(|(_, of, _)| *of == whose);
                for (_, _, place) in fills.filter(|(_, _, place)| *place == at || *place == at + 6) {
                    *place = 2 * at + 6 - *place;
                }
            }
        }
    }

    /// Lays out an entry's values (`own`, in order) in the form that the steps need.
    pub fn materialise(&self, own: &[u128], values: &mut [u8]) {
        self.lay_out(Whose::Entry, own, values, |_| 0);
    }

    /// Lays out what a flow keeps: `own` are the values of its entry, `learnt` gives the values that are the
    /// flow's own.
    pub fn keep(&self, own: &[u128], values: &mut [u8], learnt: impl Fn(Value) -> u128) {
        self.lay_out(Whose::Flow, own, values, learnt);
    }

    /// Returns the operations of the template that this plan was compiled from, with the numbers that a flow
    /// keeps; `None` for those whose numbers it does not keep.
    pub fn kept(&self, operations: &[Operation], values: &[u8]) -> KeptOperations {
        // There is one for each operation that has numbers.
        let mut fills = self.fills.iter();
        let kept = |operation: &Operation| {
            let (fill, whose, at) = operation.numbers().next().and_then(|_| fills.next())?;
            let place = values.get(*at..at + fill.bytes()).filter(|_| *whose == Whose::Flow)?;
            Some(read_back(*operation, place))
        };
        operations.iter().map(kept).collect()
    }

    fn lay_out(&self, of: Whose, own: &[u128], values: &mut [u8], learnt: impl Fn(Value) -> u128) {
        let mut own = own.iter().copied();
        let mut resolve = |value: Value| match value {
            Value::Const(value) => value,
            Value::PerEntry | Value::PerFlow => own.next().unwrap_or_default(),
            Value::Learnt(_) | Value::Nat(_) => learnt(value),
        };
        let mut unwanted = [0; LAID_OUT_MAX];
        for &(fill, whose, at) in &self.fills {
            let length = fill.bytes();
            let place = if whose == of { &mut values[at..at + length] } else { &mut unwanted[..length] };
            fill.write(&mut resolve, place);
        }
    }

    /// Carries out the steps on the packets of `list`. Failures are reported to `failed`; the mask of the
    /// other packets is returned.
    #[inline]
    pub fn run(
        &self,
        on: &mut Site<'_, impl ActionOf>,
        (actions, flows): (&Actions, Option<Kept<'_>>),
        list: u64,
        mut failed: impl FnMut(usize, DropReason),
    ) -> u64 {
        let mut good = list;
        if self.writes {
            on.packets.written |= list;
        }
        for (step, whose, at) in &self.steps {
            let mut gone = 0;
            let mut fail = |slot: usize, reason: DropReason| {
                gone |= 1 << slot;
                failed(slot, reason);
            };
            match (whose, flows) {
                (Whose::Flow, Some(Kept { rows, values, stride })) => {
                    let Site { batch, packets, reading, director, .. } = on;
                    let mut site = Site { batch, packets, action: rows, reading, director: *director };
                    step.column(&mut site, &Values { values, stride, at: *at }, good, &mut fail);
                }
                _ => {
                    let Actions { values, stride, .. } = actions;
                    step.column(on, &Values { values, stride: *stride, at: *at }, good, &mut fail);
                }
            }
            good &= !gone;
        }
        good
    }
}

impl Fill {
    fn bytes(&self) -> usize {
        match self {
            Fill::Number { bytes, .. } => *bytes,
            Fill::Tag { .. } => 4,
            Fill::Outer(encap, _) => Encapsulation::new(encap).row_length(),
        }
    }

    fn write(&self, resolve: &mut impl FnMut(Value) -> u128, place: &mut [u8]) {
        match *self {
            Fill::Number { value, bytes } => {
                place.copy_from_slice(&resolve(value).to_be_bytes()[16 - bytes..])
            }
            Fill::Tag { tpid, vid, pcp } => {
                let (vid, pcp) = (resolve(vid) as u16, resolve(pcp) as u16);
                place[..2].copy_from_slice(&tpid.to_be_bytes());
                place[2..].copy_from_slice(&((pcp & 7) << 13 | vid & 0xfff).to_be_bytes());
            }
            Fill::Outer(encap, ref ports) => {
                let Encap { eth_dst, eth_src, src, src_bits, dst, id, ttl, sport, .. } = encap;
                let [src_bits, id, sport] = [src_bits, id, sport].map(|one| one.unwrap_or(Value::Const(0)));
                let numbers = [eth_dst, eth_src, src, src_bits, dst, id, ttl, sport];
                write_outer(&encap, ports, &numbers.map(resolve), place);
            }
        }
    }
}

/// Returns the operation whose numbers are laid out in `place`.
fn read_back(operation: Operation, place: &[u8]) -> Operation {
    let number = |bytes: &[u8]| Value::Const(bytes.iter().fold(0, |all, byte| all << 8 | u128::from(*byte)));
    match operation {
        Operation::Set(field, _) => Operation::Set(field, number(place)),
        Operation::Add(field, _) => Operation::Add(field, number(place)),
        Operation::LimitLength { frame, .. } => Operation::LimitLength { bytes: number(place), frame },
        Operation::ClampMss { .. } => Operation::ClampMss { mss: number(place) },
        Operation::PushVlan { tpid, .. } => {
            let tag = place.last_chunk().map_or(0, |tag| u16::from_be_bytes(*tag));
            let (vid, pcp) = (Value::Const((tag & 0xfff).into()), Value::Const((tag >> 13).into()));
            Operation::PushVlan { tpid, vid, pcp }
        }
        Operation::Encap(encap) => Operation::Encap(read_outer(&encap, place)),
        Operation::Decap(_) | Operation::PopVlan | Operation::Copy { .. } | Operation::DecrementTtl => {
            operation
        }
    }
}

/// Whether headers must be parsed again between two operations. Removed bytes may have uncovered others; an
/// encapsulation reads IP after tags that were pushed.
fn needs_headers(before: Option<&Operation>, next: &Operation) -> bool {
    match before.map(Operation::headers) {
        Some(Moved::Removed) => true,
        Some(Moved::Added) => matches!(next, Operation::Encap(_)),
        Some(Moved::Stay) | None => false,
    }
}

/// Where steps work: the batch, what is known about its packets, and the action row of each packet.
pub struct Site<'a, Action> {
    pub batch: &'a mut Batch,
    pub packets: &'a mut Packets,
    pub action: &'a Action,
    pub reading: &'a Reading,
    pub director: DirectorRows<'a>,
}

/// Where to find the GLB director's rows that packets of a pipe pick.
#[derive(Clone, Copy)]
pub struct DirectorRows<'a> {
    pub pipe: &'a PipeKind,
    pub groups: &'a [GroupTable],
    pub numbers: &'a GroupNumbers,
}

impl DirectorRows<'_> {
    /// Returns the addresses of both back ends of a packet's row, 0 for a missing one.
    fn hops(&self, packets: &Packets, slot: usize) -> [u32; 2] {
        let group = match self.pipe.group() {
            Some(GroupChoice::One(group)) => Some(group),
            Some(GroupChoice::ByMeta(word)) => {
                self.numbers.group(packets.meta[slot & 63][usize::from(word) & 3])
            }
            None => None,
        };
        let group = group.and_then(|group| self.groups.get(group.index()));
        group.map_or([0; 2], |group| group.hops((packets.keys(self.pipe.key_source()), slot)))
    }
}

/// The values that flows keep, and each packet's row there.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    pub rows: &'a [u32; 64],
    pub values: &'a [u8],
    /// The number of bytes of a row.
    pub stride: usize,
}

/// The values of one step, by packet.
struct Values<'a> {
    values: &'a [u8],
    stride: usize,
    at: usize,
}

impl Values<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&self, action: u32) -> [u8; N] {
        let start = action as usize * self.stride + self.at;
        let bytes = self.values.get(start..start + N);
        bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    #[inline(always)]
    fn slice(&self, action: u32, length: usize) -> &[u8] {
        let start = action as usize * self.stride + self.at;
        &self.values[start..start + length]
    }
}

impl Step {
    fn column(
        &self,
        on: &mut Site<'_, impl ActionOf>,
        values: &Values<'_>,
        list: u64,
        fail: &mut impl FnMut(usize, DropReason),
    ) {
        match self {
            Step::Mac(offset) => {
                for slot in Bits(list) {
                    let mac: [u8; 6] = values.bytes(on.action.of(slot));
                    let bytes = on.batch.frame_mut(slot).bytes_mut();
                    if let Some(place) = bytes.get_mut(*offset..offset + 6) {
                        place.copy_from_slice(&mac);
                    }
                }
            }
            Step::Macs => {
                for slot in Bits(list) {
                    let macs: [u8; 12] = values.bytes(on.action.of(slot));
                    let bytes = on.batch.frame_mut(slot).bytes_mut();
                    if let Some(place) = bytes.get_mut(..12) {
                        place.copy_from_slice(&macs);
                    }
                }
            }
            Step::Meta(word) => {
                for slot in Bits(list) {
                    let value = u32::from_be_bytes(values.bytes(on.action.of(slot)));
                    on.packets.meta[slot][word & 3] = value;
                }
            }
            Step::FindHeaders => {
                on.packets.refresh(on.batch, list, on.reading, fail);
            }
            Step::Encap(how) => {
                for slot in Bits(list) {
                    let row = values.slice(on.action.of(slot), how.row_length());
                    let (frame, found) = (on.batch.frame_mut(slot), &on.packets.headers[slot]);
                    let hash = || on.packets.outer.select(slot, on.reading);
                    let hops = || on.director.hops(on.packets, slot);
                    if let Err(reason) = how.run(frame, found, row, (hash, hops)) {
                        fail(slot, reason);
                    }
                }
                on.packets.stale |= list;
            }
            _ => {
                for slot in Bits(list) {
                    if let Err(reason) = self.one(on, values, slot) {
                        fail(slot, reason);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn one(
        &self,
        on: &mut Site<'_, impl ActionOf>,
        values: &Values<'_>,
        slot: usize,
    ) -> Result<(), DropReason> {
        let action = on.action.of(slot);
        let headers = &on.packets.headers[slot];
        let frame = on.batch.frame_mut(slot);
        match self {
            Step::Ipv4Address(at) => ipv4_address(frame.bytes_mut(), headers, *at, values.bytes(action)),
            Step::Port(at, needs) | Step::FlowPort(at, needs) if on.packets.is_ported(slot) => {
                let new = values.bytes(action);
                port_of_fragment(frame.bytes_mut(), on.packets, slot, (*at, *needs), new)
            }
            Step::Port(at, needs) => port(frame.bytes_mut(), headers, (*at, *needs), values.bytes(action)),
            Step::FlowPort(at, needs) => {
                let (bytes, port_at, new) = (frame.bytes_mut(), (*at, *needs), values.bytes(action));
                match port(bytes, headers, port_at, new) {
                    Err(_) if icmp_error::set_port(bytes, headers, port_at, new) => Ok(()),
                    done => done,
                }
            }
            Step::AddressInside(end, length) => {
                icmp_error::set_address(frame.bytes_mut(), headers, *end, values.slice(action, *length));
                Ok(())
            }
            Step::Set(target) => target.write(on, slot, u128::from_be_bytes(values.bytes(action))),
            Step::Add(target, plan) => {
                let old = read(plan, on.batch, on.packets, slot).ok_or(DropReason::NotApplicable)?;
                target.write(on, slot, old.wrapping_add(u128::from_be_bytes(values.bytes(action))))
            }
            Step::Copy(target, plan) => {
                let value = read(plan, on.batch, on.packets, slot).ok_or(DropReason::NotApplicable)?;
                target.write(on, slot, value)
            }
            Step::DecrementTtl => decrement_ttl(frame.bytes_mut(), headers),
            Step::LimitLength(of_frame) => {
                let most = u16::from_be_bytes(values.bytes(action));
                let Some((reason, limit)) = length::refused(frame.bytes(), headers, most, *of_frame) else {
                    return Ok(());
                };
                on.packets.limit[slot] = limit;
                Err(reason)
            }
            Step::ClampMss => {
                length::clamp(frame.bytes_mut(), headers, u16::from_be_bytes(values.bytes(action)));
                Ok(())
            }
            Step::Decap(kind) => moved(decap(frame, headers, *kind), on.packets, slot),
            Step::PopVlan => moved(pop_vlan(frame, headers), on.packets, slot),
            Step::PushVlan => moved(push_vlan(frame, values.bytes(action)), on.packets, slot),
            Step::Mac(_) | Step::Macs | Step::Meta(_) | Step::FindHeaders | Step::Encap(_) => Ok(()),
        }
    }
}

#[inline(always)]
fn moved(done: Result<(), DropReason>, packets: &mut Packets, slot: usize) -> Result<(), DropReason> {
    packets.stale |= 1 << slot;
    done
}

#[inline(always)]
fn ipv4_address(bytes: &mut [u8], headers: &Headers, at: usize, new: [u8; 4]) -> Result<(), DropReason> {
    if !headers.outer().layers.has(Layer::Ipv4) {
        return Err(DropReason::NotApplicable);
    }
    let start = headers.outer().at(Base::L3) + at;
    let place = bytes.get_mut(start..start + 4).ok_or(DropReason::NotApplicable)?;
    let old = u32::from_be_bytes([place[0], place[1], place[2], place[3]]);
    place.copy_from_slice(&new);
    let change = Sum::default().replace32(old, u32::from_be_bytes(new));
    mend(bytes, headers, Cover::outer(true, Transport::Address), change);
    Ok(())
}

#[inline(always)]
fn port(
    bytes: &mut [u8],
    headers: &Headers,
    (at, needs): (usize, Layers),
    new: [u8; 2],
) -> Result<(), DropReason> {
    if !headers.outer().layers.has_all(needs) {
        return Err(DropReason::NotApplicable);
    }
    let start = headers.outer().at(Base::L4) + at;
    let place = bytes.get_mut(start..start + 2).ok_or(DropReason::NotApplicable)?;
    let old = u16::from_be_bytes([place[0], place[1]]);
    place.copy_from_slice(&new);
    let change = Sum::default().replace16(old, u16::from_be_bytes(new));
    mend(bytes, headers, Cover::outer(false, Transport::Port), change);
    Ok(())
}

/// Sets a port of a fragment. The first fragment has it in its bytes, along with a checksum, like a whole
/// packet.
#[cold]
fn port_of_fragment(
    bytes: &mut [u8],
    packets: &mut Packets,
    slot: usize,
    (at, needs): (usize, Layers),
    new: [u8; 2],
) -> Result<(), DropReason> {
    let headers = &packets.headers[slot];
    if !headers.outer().layers.has_all(needs) {
        return Err(DropReason::NotApplicable);
    }
    packets.fragments.ports[slot][at & 2..][..2].copy_from_slice(&new);
    match fragment::offset(bytes, headers.outer()) {
        0 => port(bytes, headers, (at, needs), new),
        _ => Ok(()),
    }
}

fn decrement_ttl(bytes: &mut [u8], headers: &Headers) -> Result<(), DropReason> {
    let outer = headers.outer();
    let l3 = outer.at(Base::L3);
    let is_ipv4 = outer.layers.has(Layer::Ipv4);
    if !is_ipv4 && !outer.layers.has(Layer::Ipv6) {
        return Err(DropReason::NotApplicable);
    }
    let ttl = bytes.get_mut(l3 + if is_ipv4 { 8 } else { 7 }).ok_or(DropReason::NotApplicable)?;
    if *ttl <= 1 {
        return Err(DropReason::TtlExpired);
    }
    *ttl -= 1;
    if is_ipv4 {
        // The TTL is the upper byte of its word.
        let (old, new) = (u16::from(*ttl + 1) << 8, u16::from(*ttl) << 8);
        mend(bytes, headers, Cover::outer(true, Transport::No), Sum::default().replace16(old, new));
    }
    Ok(())
}

fn pop_vlan(frame: &mut Frame, headers: &Headers) -> Result<(), DropReason> {
    if !headers.outer().layers.has(Layer::Vlan) {
        return Err(DropReason::NotApplicable);
    }
    frame.bytes_mut().copy_within(..12, 4);
    frame.trim_front(4).map_err(|_| DropReason::NotApplicable)
}

fn push_vlan(frame: &mut Frame, tag: [u8; 4]) -> Result<(), DropReason> {
    let bytes = frame.prepend(4).map_err(|_| DropReason::NoHeadroom)?;
    bytes.copy_within(4..16, 0);
    bytes[12..16].copy_from_slice(&tag);
    Ok(())
}

impl Target {
    fn new(field: Field) -> Target {
        Target { field, needs: field.needs(), cover: Cover::of(field) }
    }

    fn is_outer_l4(&self) -> bool {
        self.field.level == LevelId::Outer && self.field.spec().source == Source::Frame(Base::L4)
    }

    /// Writes the low bits of `value` into the field and mends what covers it.
    fn write<Action>(&self, on: &mut Site<'_, Action>, slot: usize, value: u128) -> Result<(), DropReason> {
        let value = value & self.field.max();
        if let Some(word) = self.field.meta_word() {
            on.packets.meta[slot][word] = value as u32;
            return Ok(());
        }
        let spec = self.field.spec();
        if self.is_outer_l4() && on.packets.is_ported(slot) {
            let bytes = on.batch.frame_mut(slot).bytes_mut();
            let (at, new) = ((spec.offset as usize, spec.needs), (value as u16).to_be_bytes());
            return port_of_fragment(bytes, on.packets, slot, at, new);
        }
        let headers = &mut on.packets.headers[slot];
        if !headers.has_all(self.needs) {
            return Err(DropReason::NotApplicable);
        }
        let Source::Frame(base) = spec.source else { return Err(DropReason::NotApplicable) };
        if base == Base::TunnelId {
            headers.tunnel_id = value as u32;
        }
        let base = headers.level(self.field.level).at(base);
        let bytes = on.batch.frame_mut(slot).bytes_mut();
        // Checksums work on words: take the whole words that contain the field. All headers here start at
        // even offsets from the start of what their checksums cover.
        let first = base + (spec.offset as usize & !1);
        let last = base + ((spec.offset as usize + usize::from(spec.bytes) + 1) & !1);
        let mut old = [0; 18];
        let held = bytes.get(first..last).ok_or(DropReason::NotApplicable)?;
        old[..held.len()].copy_from_slice(held);
        let length = held.len();
        insert(&mut bytes[base + spec.offset as usize..][..usize::from(spec.bytes)], value, self.field);
        let change = Sum::default().replace_bytes(&old[..length], &bytes[first..last]);
        mend(bytes, headers, self.cover, change);
        Ok(())
    }
}

/// Writes a value's bits into the bytes that hold the field, leaving the surrounding bits alone.
fn insert(place: &mut [u8], value: u128, field: Field) {
    let spec = field.spec();
    let mut whole = [0; 16];
    whole[16 - place.len()..].copy_from_slice(place);
    let mask = field.max() << spec.shift;
    let bits = u128::from_be_bytes(whole) & !mask | value << spec.shift;
    place.copy_from_slice(&bits.to_be_bytes()[16 - place.len()..]);
}
