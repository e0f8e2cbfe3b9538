//! A packet on its way through the program, of which only the shape is known: where the value of each field
//! comes from.

use crate::shape::{HeaderSet, Layer4, Network, PacketShape};
use weir_packet::{Field, FieldKind, LevelId, TunnelKind};
use weir_program::{Encap, Operation, PortId, Program, Value};

/// Where the value of a field comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Term {
    /// The value is that of this field of the packet as it arrived.
    Arrived(Field),
    /// The value is this number.
    Number(u128),
    /// The value depends on something that the search does not compute: a hash, a sum, a checksum, an
    /// allocation.
    Unknown,
}

const KINDS: usize = FieldKind::ALL.len();

/// The headers of one level, and the values of their fields.
#[derive(Clone, Debug, PartialEq)]
struct SymbolicLevel {
    shape: HeaderSet,
    terms: [Term; KINDS],
}

/// A packet at some point of its walk.
#[derive(Clone, Debug, PartialEq)]
pub struct Symbols {
    outer: SymbolicLevel,
    /// The tunnel, and whether its header has an ID.
    tunnel: Option<(TunnelKind, bool)>,
    inner: Option<SymbolicLevel>,
    /// The headers behind a third tag, which were visible before it was pushed; the last such tag comes last.
    hidden: Vec<HiddenHeaders>,
    input: PortId,
    /// Whether the flow key and the hashes are those of the packet as it arrived.
    pub keys_as_received: bool,
}

/// The outer level, the tunnel and the inner level.
type HiddenHeaders = (SymbolicLevel, Option<(TunnelKind, bool)>, Option<SymbolicLevel>);

/// What an action does to a packet whose shape is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The packet passes. If the action decremented a TTL, the one in this field must be at least 2.
    Passes,
    /// The packet is dropped: an operation does not apply to its shape.
    DoesNotApply,
}

/// Returns the field that has the same bits, for fields with several names.
#[must_use]
pub fn canonical(field: Field) -> Field {
    let kind = match field.kind {
        FieldKind::TcpSport | FieldKind::UdpSport => FieldKind::L4Sport,
        FieldKind::TcpDport | FieldKind::UdpDport => FieldKind::L4Dport,
        FieldKind::VxlanVni | FieldKind::GeneveVni | FieldKind::GreKey => FieldKind::TunnelId,
        same => same,
    };
    Field { kind, ..field }
}

impl SymbolicLevel {
    fn arrived(shape: HeaderSet, at: LevelId) -> SymbolicLevel {
        let term = |kind: &FieldKind| Term::Arrived(canonical(Field { level: at, kind: *kind }));
        let mut terms = [Term::Unknown; KINDS];
        terms.iter_mut().zip(FieldKind::ALL).for_each(|(place, kind)| *place = term(kind));
        SymbolicLevel { shape, terms }
    }

    fn get(&self, kind: FieldKind) -> Term {
        self.terms[canonical_kind(kind) as usize]
    }

    fn set(&mut self, kind: FieldKind, term: Term) {
        self.terms[canonical_kind(kind) as usize] = term;
    }
}

fn canonical_kind(kind: FieldKind) -> FieldKind {
    canonical(Field { level: LevelId::Outer, kind }).kind
}

impl Symbols {
    /// Returns a packet that has just arrived.
    #[must_use]
    pub fn arrived(shape: &PacketShape, input: PortId, program: &Program) -> Symbols {
        let mut outer = SymbolicLevel::arrived(shape.outer, LevelId::Outer);
        for word in
            [FieldKind::Meta0, FieldKind::Meta1, FieldKind::Meta2, FieldKind::Meta3, FieldKind::MeterColor]
        {
            outer.set(word, Term::Number(0));
        }
        outer.set(FieldKind::InputPort, Term::Number(u128::from(input.0)));
        let tunnel = shape.tunnel.map(|(kind, id, _)| (kind, id));
        let inner = shape.tunnel.map(|(.., inner)| SymbolicLevel::arrived(inner, LevelId::Inner));
        let mut arrived = Symbols { outer, tunnel, inner, hidden: Vec::new(), input, keys_as_received: true };
        arrived.fix(LevelId::Outer, program);
        arrived.fix(LevelId::Inner, program);
        arrived
    }

    /// Stores the values that the shape determines. Later actions may change them.
    fn fix(&mut self, level: LevelId, program: &Program) {
        let shape = self.shape();
        for kind in FieldKind::ALL.iter().copied().filter(|kind| level == LevelId::Outer || kind.has_inner())
        {
            let field = Field { level, kind };
            if let Some(number) = shape.fixed(field, program).filter(|_| shape.has(field)) {
                self.write(field, Term::Number(number));
            }
        }
    }

    /// Returns the headers that the packet has now.
    #[must_use]
    pub fn shape(&self) -> PacketShape {
        let tunnel = self.tunnel.zip(self.inner.as_ref()).map(|((kind, id), inner)| (kind, id, inner.shape));
        PacketShape { outer: self.outer.shape, tunnel }
    }

    /// Returns where a field's value comes from; `None` if the packet does not have the field.
    #[must_use]
    pub fn term(&self, field: Field) -> Option<Term> {
        if !self.shape().has(field) {
            return None;
        }
        let level = if field.level == LevelId::Outer { Some(&self.outer) } else { self.inner.as_ref() };
        level.map(|level| level.get(field.kind))
    }

    fn write(&mut self, field: Field, term: Term) {
        match (field.level, &mut self.inner) {
            (LevelId::Outer, _) => self.outer.set(field.kind, term),
            (LevelId::Inner, Some(inner)) => inner.set(field.kind, term),
            (LevelId::Inner, None) => {}
        }
    }

    /// Performs an operation; `next` supplies the values of an entry. `ttl` gets the TTL that must be at
    /// least 2.
    pub fn perform(
        &mut self,
        operation: &Operation,
        program: &Program,
        next: &mut impl FnMut() -> u128,
        ttl: &mut Vec<Term>,
    ) -> Effect {
        let mut value = |value: &Value| match value {
            Value::Const(number) => Term::Number(*number),
            Value::PerEntry | Value::PerFlow => Term::Number(next()),
            Value::Learnt(_) | Value::Nat(_) => Term::Unknown,
        };
        match operation {
            Operation::Set(field, to) => {
                let term = match to {
                    Value::Learnt(from) => self.term(*from).unwrap_or(Term::Number(0)),
                    to => value(to),
                };
                if !self.shape().has(*field) {
                    return Effect::DoesNotApply;
                }
                self.write(*field, term);
            }
            Operation::Add(field, by) => {
                let by = value(by);
                let Some(term) = self.term(*field) else { return Effect::DoesNotApply };
                let sum = match (term, by) {
                    (Term::Number(number), Term::Number(by)) => {
                        Term::Number(number.wrapping_add(by) & (*field).max())
                    }
                    _ => Term::Unknown,
                };
                self.write(*field, sum);
            }
            Operation::Copy { from, to } => return self.copy(*from, *to),
            Operation::DecrementTtl => return self.decrement_ttl(ttl),
            Operation::LimitLength { bytes, .. } | Operation::ClampMss { mss: bytes } => {
                value(bytes);
            }
            Operation::PushVlan { vid, pcp, .. } => {
                let (vid, pcp) = (value(vid), value(pcp));
                let first = [self.outer.get(FieldKind::VlanVid), self.outer.get(FieldKind::VlanPcp)];
                if self.outer.shape.tags == 2 {
                    self.hide_behind_tags(program);
                } else {
                    self.outer.shape.tags += 1;
                }
                self.tag([vid, pcp], first);
            }
            Operation::PopVlan => return self.pop_vlan(),
            Operation::Decap(kind) => return self.decap(*kind),
            Operation::Encap(encap) => return self.encap(encap, program, value),
        }
        Effect::Passes
    }

    fn copy(&mut self, from: Field, to: Field) -> Effect {
        let Some(term) = self.term(from) else { return Effect::DoesNotApply };
        if !self.shape().has(to) {
            return Effect::DoesNotApply;
        }
        let narrower = to.spec().bits < from.spec().bits;
        let term = match term {
            Term::Number(number) => Term::Number(number & to.max()),
            Term::Arrived(_) if narrower => Term::Unknown,
            term => term,
        };
        self.write(to, term);
        Effect::Passes
    }

    fn decrement_ttl(&mut self, ttl: &mut Vec<Term>) -> Effect {
        let field = match self.outer.shape.network {
            Network::Ipv4 => Field::Ipv4Ttl,
            Network::Ipv6 => Field::Ipv6HopLimit,
            Network::Other | Network::Arp => return Effect::DoesNotApply,
        };
        let term = self.outer.get(field.kind);
        ttl.push(term);
        let less = match term {
            Term::Number(number) => Term::Number(number.saturating_sub(1)),
            Term::Arrived(_) | Term::Unknown => Term::Unknown,
        };
        self.write(field, less);
        Effect::Passes
    }

    fn pop_vlan(&mut self) -> Effect {
        if self.outer.shape.tags == 0 {
            return Effect::DoesNotApply;
        }
        if let Some(hidden) = self.hidden.pop() {
            self.show_behind_tags(hidden);
            return Effect::Passes;
        }
        let second = [self.outer.get(FieldKind::SecondVlanVid), self.outer.get(FieldKind::SecondVlanPcp)];
        self.tag(second, [Term::Unknown; 2]);
        self.outer.shape.tags -= 1;
        Effect::Passes
    }

    /// Hides what follows the second tag: the third tag is payload, and so is everything after it.
    fn hide_behind_tags(&mut self, program: &Program) {
        let shape = HeaderSet { network: Network::Other, transport: Layer4::Absent, ..self.outer.shape };
        self.hidden.push((self.outer.clone(), self.tunnel.take(), self.inner.take()));
        self.outer.shape = shape;
        self.outer.set(FieldKind::EthType, Term::Unknown);
        self.fix(LevelId::Outer, program);
    }

    /// Makes visible what the third tag hid.
    fn show_behind_tags(&mut self, (mut outer, tunnel, inner): HiddenHeaders) {
        let second_tag = [FieldKind::SecondVlanVid, FieldKind::SecondVlanPcp];
        let (first, second) =
            (second_tag.map(|kind| self.outer.get(kind)), second_tag.map(|kind| outer.get(kind)));
        for kind in FieldKind::ALL.iter().copied().filter(|kind| !kind.has_inner() || is_of_ethernet(*kind)) {
            outer.set(kind, self.outer.get(kind));
        }
        (self.outer, self.tunnel, self.inner) = (outer, tunnel, inner);
        self.tag(first, second);
    }

    fn tag(&mut self, first: [Term; 2], second: [Term; 2]) {
        let kinds =
            [FieldKind::VlanVid, FieldKind::VlanPcp, FieldKind::SecondVlanVid, FieldKind::SecondVlanPcp];
        for (kind, term) in kinds.into_iter().zip([first, second].concat()) {
            self.outer.set(kind, term);
        }
    }

    fn decap(&mut self, kind: TunnelKind) -> Effect {
        let (Some((own, _)), Some(mut inner)) = (self.tunnel, self.inner.clone()) else {
            return Effect::DoesNotApply;
        };
        if own != kind || inner.shape == HeaderSet::NOTHING {
            return Effect::DoesNotApply;
        }
        let packet_wide = |kind: FieldKind| !kind.has_inner();
        for kind in FieldKind::ALL.iter().copied() {
            let of_ethernet = !inner.shape.ethernet && is_of_ethernet(kind);
            if packet_wide(kind) || of_ethernet {
                inner.set(kind, self.outer.get(kind));
            }
        }
        if !inner.shape.ethernet {
            (inner.shape.ethernet, inner.shape.tags) = (true, self.outer.shape.tags);
        }
        // The ECN field may have changed.
        inner.set(FieldKind::Ipv4Ecn, Term::Unknown);
        inner.set(FieldKind::Ipv6TrafficClass, Term::Unknown);
        (self.outer, self.inner, self.tunnel) = (inner, None, None);
        Effect::Passes
    }

    fn encap(&mut self, encap: &Encap, program: &Program, mut value: impl FnMut(&Value) -> Term) -> Effect {
        if !encap.ethernet && !matches!(self.outer.shape.network, Network::Ipv4 | Network::Ipv6) {
            return Effect::DoesNotApply;
        }
        let shape = HeaderSet {
            ethernet: true,
            tags: 0,
            network: if encap.ipv6 { Network::Ipv6 } else { Network::Ipv4 },
            transport: Layer4::Tunnel,
        };
        let mut outer = SymbolicLevel { shape, terms: [Term::Unknown; KINDS] };
        for kind in FieldKind::ALL.iter().copied().filter(|kind| !kind.has_inner()) {
            outer.set(kind, self.outer.get(kind));
        }
        let mut operation = Operation::Encap(*encap);
        // All numbers of the entry are taken, in their order.
        for argument in operation.arguments() {
            use weir_program::operation::Slot;
            let term = match argument.slot {
                Slot::Number(number, _) => value(number),
                Slot::Optional(Some(number), _) | Slot::Hashed(Some(number), _) => value(number),
                _ => continue,
            };
            let kind = match argument.key {
                "eth.dst" => FieldKind::EthDst,
                "eth.src" => FieldKind::EthSrc,
                "dst" if encap.ipv6 => FieldKind::Ipv6Dst,
                "dst" => FieldKind::Ipv4Dst,
                "src" if encap.src_bits.is_some() => continue,
                "src" if encap.ipv6 => FieldKind::Ipv6Src,
                "src" => FieldKind::Ipv4Src,
                "vni" | "key" => FieldKind::TunnelId,
                "sport" => FieldKind::L4Sport,
                _ => continue,
            };
            outer.set(kind, term);
        }
        let mut inner = self.outer.clone();
        inner.shape.ethernet = encap.ethernet;
        if !encap.ethernet {
            inner.shape.tags = 0;
        }
        // A fragment inside a tunnel has no ports: only those that arrive as fragments are followed.
        if let Layer4::FirstFragment(is_udp) = inner.shape.transport {
            let protocol = if is_udp { weir_packet::PROTOCOL_UDP } else { weir_packet::PROTOCOL_TCP };
            inner.shape.transport = Layer4::Fragment;
            inner.set(FieldKind::IpProtocol, Term::Number(u128::from(protocol)));
        }
        if inner.shape.transport == Layer4::Tunnel {
            // What is in a tunnel inside a tunnel is not read.
            let over_udp = self.tunnel.is_some_and(|(kind, _)| kind.is_udp());
            inner.shape.transport = if over_udp { Layer4::Udp } else { Layer4::Other };
        }
        (self.outer, self.inner, self.tunnel) = (outer, Some(inner), Some((encap.kind, encap.id.is_some())));
        self.fix(LevelId::Outer, program);
        Effect::Passes
    }

    /// Whether a source address was written.
    #[must_use]
    pub fn has_written_source(&self) -> bool {
        let sources = [FieldKind::Ipv4Src, FieldKind::Ipv6Src];
        let levels = [Some(&self.outer), self.inner.as_ref()];
        let mut terms = levels.into_iter().flatten().flat_map(|level| sources.map(|kind| level.get(kind)));
        terms.any(|term| !matches!(term, Term::Arrived(_)))
    }

    /// The port on which the packet arrived.
    #[must_use]
    pub fn input(&self) -> PortId {
        self.input
    }
}

fn is_of_ethernet(kind: FieldKind) -> bool {
    matches!(
        kind,
        FieldKind::EthDst
            | FieldKind::EthSrc
            | FieldKind::VlanPcp
            | FieldKind::VlanVid
            | FieldKind::SecondVlanPcp
            | FieldKind::SecondVlanVid
    )
}
