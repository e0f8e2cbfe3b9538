//! The operations of actions, as one table: the configuration, the check, random programs and their coverage,
//! `explain` and program swaps all take an operation's keyword, its place in the order and its arguments from
//! one line here.
//!
//! The effect of an operation on a packet is deliberately not defined here but in two independent places:
//! `batch/steps.rs` and `oracle/src/action.rs`.

use std::ops::RangeInclusive;
use std::sync::LazyLock;
use weir_packet::tunnel::OuterShape;
use weir_packet::{Depth, ETHER_QINQ, ETHER_VLAN, Field, TunnelKind};

/// The stage of an operation in the fixed order of an action (pipes.md A1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Removes outer headers.
    Decap,
    /// Removes VLAN tags.
    PopVlan,
    /// Writes fields, in the order of the configuration.
    Rewrite,
    /// Adds VLAN tags.
    PushVlan,
    /// Adds outer headers.
    Encap,
}

/// How an operation is written in YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Only the keyword.
    Alone,
    /// `word: { field: value, ... }`, one operation for each field.
    Fields,
    /// `word: { key: value, ... }`, one operation.
    Keys,
}

/// The effect of an operation on the position of the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// The headers do not move.
    Stay,
    /// Bytes in front of the headers are removed; the headers are found again before the next operation.
    Removed,
    /// Bytes are added in front of the headers; the headers are found again before the next pipe.
    Added,
}

/// A number in an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The same for all entries.
    Const(u128),
    /// Given by each entry: the next of [`crate::Entry::values`], in the order of
    /// [`Operation::arguments`].
    PerEntry,
    /// Given by each entry in the same way; a flow keeps the value with which it was learnt.
    PerFlow,
    /// The value, before the action, of this field in the packet that began the flow; 0 if the packet did not
    /// have the field.
    Learnt(Field),
    /// The address or port that the flow has taken from the pipe's NAT pool.
    Nat(NatPart),
}

/// A part of what a flow takes from a NAT pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatPart {
    /// The address.
    Address,
    /// The port.
    Port,
}

impl Value {
    /// Whether entries give this value.
    #[must_use]
    pub fn is_given(self) -> bool {
        matches!(self, Value::PerEntry | Value::PerFlow)
    }

    /// Whether flows keep this value.
    #[must_use]
    pub fn is_kept(self) -> bool {
        matches!(self, Value::PerFlow | Value::Learnt(_) | Value::Nat(_))
    }
}

/// An argument of an operation.
#[derive(Debug)]
pub struct Argument<'a> {
    /// The argument's key in the configuration.
    pub key: &'static str,
    /// A description of the argument for the JSON Schema and for errors, in one line.
    pub help: &'static str,
    /// Whether the configuration must give the argument. Otherwise its default is the value in
    /// [`Line::blank`].
    pub needed: bool,
    /// The argument's type, and where the operation stores the argument.
    pub slot: Slot<'a>,
}

/// Where an operation stores an argument, and the argument's type.
#[derive(Debug)]
pub enum Slot<'a> {
    /// A number or `per_entry`, with the width and notation of a field.
    Number(&'a mut Value, Field),
    /// Like `Number`, or absent.
    Optional(&'a mut Option<Value>, Field),
    /// Like `Number`; if absent, it is taken from the select hash.
    Hashed(&'a mut Option<Value>, Field),
    /// A number that is the same for all entries, or `copy` to take it from the packet.
    Copied(&'a mut Option<u8>, Field),
    /// A field that is read.
    Read(&'a mut Field),
    /// A field that is written.
    Written(&'a mut Field),
    /// A field that is read and written.
    Changed(&'a mut Field),
    /// One of a few numbers.
    OneOf(&'a mut u16, &'static [u16]),
    /// One of two words; the second means true.
    Either(&'a mut bool, [&'static str; 2]),
    /// Whether the addresses are IPv6. If absent, it follows from the addresses.
    Ipv6(&'a mut bool),
}

/// An operation of the table.
#[derive(Debug)]
pub struct Line {
    /// The operation's keyword in the configuration.
    pub word: &'static str,
    /// A description of the operation for the JSON Schema, in one line.
    pub help: &'static str,
    /// The operation with the defaults of its arguments.
    pub blank: Operation,
}

macro_rules! operations {
    ($(
        #[doc = $help:literal]
        $id:ident $(($($place:ident: $place_type:ty),*))? $({$($name:ident: $type:ty),*})?
            = $word:expr, $stage:ident $form:ident $depth:ident $headers:ident
            $blanks:expr => $arguments:expr;
    )*) => {
        /// An operation of an action.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "a program has few operations, and they are copied")]
        pub enum Operation {$(
            #[doc = $help]
            $id $(($($place_type),*))? $({$(#[doc = concat!("`", stringify!($name), "`.")] $name: $type),*})?,
        )*}

        /// All operations, in the order of an action.
        pub static OPERATIONS: LazyLock<Vec<Line>> = LazyLock::new(|| {
            let line = |help: &'static str, blank: Operation| Line { word: blank.word(),
                help: help.trim_ascii(), blank };
            let mut lines = Vec::new();
            $(lines.extend($blanks.map(|blank| line($help, blank)));)*
            lines
        });

        impl Operation {
            /// Returns the operation's keyword in the configuration.
            #[must_use]
            #[allow(unused_variables, reason = "only the words of tunnels depend on the arguments")]
            pub fn word(&self) -> &'static str {
                match self { $(Operation::$id $(($($place),*))? $({$($name),*})? => $word,)* }
            }

            /// Returns the operation's stage in the fixed order.
            #[must_use]
            pub fn stage(&self) -> Stage {
                match self { $(Operation::$id { .. } => Stage::$stage,)* }
            }

            /// Returns how the operation is written.
            #[must_use]
            pub fn form(&self) -> Form {
                match self { $(Operation::$id { .. } => Form::$form,)* }
            }

            /// Returns the operation's effect on the position of the headers.
            #[must_use]
            pub fn headers(&self) -> Headers {
                match self { $(Operation::$id { .. } => Headers::$headers,)* }
            }

            /// Returns how deep the operation reads besides the fields among its arguments.
            fn own_depth(&self) -> Depth {
                match self { $(Operation::$id { .. } => Depth::$depth,)* }
            }

            /// Returns the operation's arguments, in the order of an entry's values.
            #[allow(unused_variables, reason = "a tunnel's kind is in the word")]
            pub fn arguments(&mut self) -> Vec<Argument<'_>> {
                match self { $(Operation::$id $(($($place),*))? $({$($name),*})? => $arguments,)* }
            }
        }
    };
}

operations! {
    /// Removes the outer headers of a tunnel; the ECN field inside is set according to RFC 6040 §4.2.
    Decap(kind: TunnelKind) = &tunnel_words(*kind)[0], Decap Alone Inner Removed
        TunnelKind::ALL.iter().map(|kind| Operation::Decap(*kind)) => vec![];

    /// Removes the outer VLAN tag.
    PopVlan = "pop_vlan", PopVlan Alone L2 Removed [Operation::PopVlan] => vec![];

    /// `field = value`.
    Set(field: Field, value: Value) = "set", Rewrite Fields L2 Stay
        [Operation::Set(Field::EthDst, Value::Const(0))] => assign(Slot::Written, field, value);

    /// `field = field + value` modulo the field's width.
    Add(field: Field, value: Value) = "add", Rewrite Fields L2 Stay
        [Operation::Add(Field::EthDst, Value::Const(0))] => assign(Slot::Changed, field, value);

    /// `to = from`, the low bits where `to` is narrower.
    Copy { from: Field, to: Field } = "copy", Rewrite Keys L2 Stay
        [Operation::Copy { from: Field::EthDst, to: Field::EthDst }] => vec![
            needed("from", "the field that is read", Slot::Read(from)),
            needed("to", "the field that is written", Slot::Written(to))];

    /// Decrements the IPv4 TTL or IPv6 hop limit; 0 or 1 drops the packet.
    DecrementTtl = "decrement_ttl", Rewrite Alone L3 Stay [Operation::DecrementTtl] => vec![];

    /// Refuses a longer packet: it goes to the app named by the pipe's `too_long`, in its current form.
    LimitLength { bytes: Value, frame: bool } = "limit_length", Rewrite Keys L3 Stay
        [Operation::LimitLength { bytes: Value::Const(u16::MAX as u128), frame: false }] => vec![
            needed("bytes", "the length of the longest", Slot::Number(bytes, Field::UdpSport)),
            optional("of", "what is measured", Slot::Either(frame, ["ip", "frame"]))];

    /// Lowers the maximum segment size in the options of a TCP SYN; other packets stay as they are.
    ClampMss { mss: Value } = "clamp_mss", Rewrite Keys L4 Stay
        [Operation::ClampMss { mss: Value::Const(u16::MAX as u128) }] => vec![
            needed("mss", "the largest", Slot::Number(mss, Field::UdpSport))];

    /// Adds a VLAN tag in front of the others.
    PushVlan { tpid: u16, vid: Value, pcp: Value } = "push_vlan", PushVlan Keys L2 Added
        [Operation::PushVlan { tpid: ETHER_VLAN, vid: Value::Const(0), pcp: Value::Const(0) }] => vec![
            needed("vid", "the VLAN id", Slot::Number(vid, Field::VlanVid)),
            optional("pcp", "the priority", Slot::Number(pcp, Field::VlanPcp)),
            optional("tpid", "the TPID of a VLAN tag", Slot::OneOf(tpid, &[ETHER_VLAN, ETHER_QINQ]))];

    /// Adds the outer headers of a tunnel; their ECN field is that of the packet (RFC 6040 §4.1).
    Encap(encap: Encap) = &tunnel_words(encap.kind)[1], Encap Keys L3 Added
        TunnelKind::ALL.iter().map(|kind| Operation::Encap(Encap::new(*kind))) => encap.arguments();
}

/// Returns `decap_KIND` and `encap_KIND`.
fn tunnel_words(kind: TunnelKind) -> &'static [String; 2] {
    static WORDS: LazyLock<Vec<[String; 2]>> = LazyLock::new(|| {
        TunnelKind::ALL.iter().map(|kind| [format!("decap_{kind}"), format!("encap_{kind}")]).collect()
    });
    &WORDS[kind as usize]
}

/// The outer headers of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Encap {
    /// The kind of tunnel, which determines its header and whether there is an outer UDP header.
    pub kind: TunnelKind,
    /// Destination MAC address of the outer frame, 48 bits.
    pub eth_dst: Value,
    /// Source MAC address of the outer frame, 48 bits.
    pub eth_src: Value,
    /// Whether the outer addresses are IPv6 rather than IPv4.
    pub ipv6: bool,
    /// Source address of the outer IP header, of the version that `ipv6` says.
    pub src: Value,
    /// How many low bits of the outer source address come from the select hash (pipes.md A23); `None` means
    /// none.
    pub src_bits: Option<Value>,
    /// Destination address of the outer IP header, of the same version as `src`.
    pub dst: Value,
    /// VNI (24 bits) or GRE key (32 bits); `None` if the header has none.
    pub id: Option<Value>,
    /// TTL or hop limit of the outer IP header, 8 bits.
    pub ttl: Value,
    /// Outer DSCP; `None` copies that of the packet, or 0 if it is not IP.
    pub dscp: Option<u8>,
    /// Outer UDP source port; `None` takes it from the select hash, 49152..=65535 (RFC 7348 §5).
    pub sport: Option<Value>,
    /// Whether to compute the outer UDP checksum; otherwise it is 0.
    pub udp_checksum: bool,
    /// Whether to carry the whole frame rather than its IP packet.
    pub ethernet: bool,
    /// Whether a GUE header names the other back end of the packet's row in the group that its pipe picks
    /// from, filled like the GLB director's (pipes.md A25).
    pub second_chance: bool,
    /// Whether GUE uses variant 1, which has no header: the packet directly follows UDP.
    pub bare: bool,
}

/// Default TTL of outer headers, as recommended by RFC 1700.
const TTL: u128 = 64;

impl Encap {
    /// Returns the defaults of a kind. Kinds that can carry both carry Ethernet over UDP, and IP directly
    /// over IP.
    #[must_use]
    pub fn new(kind: TunnelKind) -> Encap {
        let (zero, spec) = (Value::Const(0), kind.spec());
        Encap {
            kind,
            eth_dst: zero,
            eth_src: zero,
            ipv6: false,
            src: zero,
            src_bits: None,
            dst: zero,
            id: spec.id_needed.then_some(zero),
            ttl: Value::Const(TTL),
            dscp: Some(0),
            sport: None,
            udp_checksum: false,
            ethernet: spec.ethernet && (kind.is_udp() || !spec.ip),
            second_chance: false,
            bare: false,
        }
    }

    /// Returns which numbers of [`Encap::src_bits`] make sense, besides 0: fewer leave no address; more
    /// exceed what an operator has (IPv4) or what the hash provides (IPv6).
    #[must_use]
    pub const fn src_bits_range(ipv6: bool) -> RangeInclusive<u8> {
        2..=if ipv6 { 64 } else { 24 }
    }

    /// Returns what determines the length of the outer headers.
    #[must_use]
    pub fn shape(&self) -> OuterShape {
        let extended = self.id.is_some() || self.second_chance;
        OuterShape { kind: self.kind, is_ipv6: self.ipv6, extended, bare: self.bare }
    }

    fn arguments(&mut self) -> Vec<Argument<'_>> {
        let (src, dst) =
            if self.ipv6 { (Field::Ipv6Src, Field::Ipv6Dst) } else { (Field::Ipv4Src, Field::Ipv4Dst) };
        let (kind, spec) = (self.kind, self.kind.spec());
        let mut list = vec![
            optional("ipv6", "are the outer addresses IPv6?", Slot::Ipv6(&mut self.ipv6)),
            needed("eth.dst", "the outer destination MAC", Slot::Number(&mut self.eth_dst, Field::EthDst)),
            needed("eth.src", "the outer source MAC", Slot::Number(&mut self.eth_src, Field::EthSrc)),
            needed("src", "the outer source address", Slot::Number(&mut self.src, src)),
            optional(
                "src_bits",
                "how many low bits of `src` come from the select hash",
                Slot::Optional(&mut self.src_bits, Field::Ipv4Ttl),
            ),
            needed("dst", "the outer destination address", Slot::Number(&mut self.dst, dst)),
        ];
        if let (Some((key, _)), Some(like)) = (spec.id, id_field(kind)) {
            let slot = Slot::Optional(&mut self.id, like);
            list.push(Argument { key, help: "the tunnel's id", needed: spec.id_needed, slot });
        }
        list.push(optional("ttl", "the outer TTL or hop limit", Slot::Number(&mut self.ttl, Field::Ipv4Ttl)));
        list.push(optional("dscp", "the outer DSCP", Slot::Copied(&mut self.dscp, Field::Ipv4Dscp)));
        if kind.is_udp() {
            list.push(optional(
                "sport",
                "the outer UDP source port",
                Slot::Hashed(&mut self.sport, Field::UdpSport),
            ));
            let slot = Slot::Either(&mut self.udp_checksum, ["false", "true"]);
            list.push(optional("udp_checksum", "whether the outer UDP checksum is computed", slot));
        }
        if kind == TunnelKind::Gue {
            let slot = Slot::Either(&mut self.second_chance, ["false", "true"]);
            let help = "whether the header names the second back end of the GLB director's row";
            list.push(optional("second_chance", help, slot));
            let slot = Slot::Either(&mut self.bare, ["0", "1"]);
            list.push(optional("variant", "its variant: 1 has no header", slot));
        }
        if spec.ethernet && spec.ip {
            let slot = Slot::Either(&mut self.ethernet, ["ip", "ethernet"]);
            list.push(optional("inner", "what is carried", slot));
        }
        list
    }
}

/// Returns the field of a kind's id, such as `vxlan.vni`.
fn id_field(kind: TunnelKind) -> Option<Field> {
    static FIELDS: LazyLock<Vec<Option<Field>>> = LazyLock::new(|| {
        let field = |kind: &TunnelKind| {
            let (word, bits) = kind.spec().id?;
            let like = if bits == 24 { Field::VxlanVni } else { Field::Meta0 };
            Some(Field::from_name(&format!("{kind}.{word}")).unwrap_or(like))
        };
        TunnelKind::ALL.iter().map(field).collect()
    });
    FIELDS[kind as usize]
}

fn needed<'a>(key: &'static str, help: &'static str, slot: Slot<'a>) -> Argument<'a> {
    Argument { key, help, needed: true, slot }
}

fn optional<'a>(key: &'static str, help: &'static str, slot: Slot<'a>) -> Argument<'a> {
    Argument { key, help, needed: false, slot }
}

/// Returns the arguments for `field: value`, where the field is the key.
fn assign<'a>(
    slot: fn(&'a mut Field) -> Slot<'a>,
    field: &'a mut Field,
    value: &'a mut Value,
) -> Vec<Argument<'a>> {
    let of = *field;
    let field = Argument { key: "field", help: "the field that is written", needed: true, slot: slot(field) };
    let value = Argument { key: of.name(), help: "its value", needed: true, slot: Slot::Number(value, of) };
    vec![field, value]
}

impl Slot<'_> {
    /// Returns the number in the slot, with the field whose notation it uses.
    #[must_use]
    pub fn number(&self) -> Option<(Value, Field)> {
        match self {
            Slot::Number(value, like) => Some((**value, *like)),
            Slot::Optional(value, like) | Slot::Hashed(value, like) => value.map(|value| (value, *like)),
            _ => None,
        }
    }
}

/// A number that each entry gives to an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Keyword of the operation: the key under which an entry gives the number.
    pub word: &'static str,
    /// Which operation with this keyword, among those with per-entry numbers.
    pub occurrence: usize,
    /// Key of the number.
    pub key: &'static str,
    /// The field whose notation it uses.
    pub field: Field,
}

/// Returns the numbers that entries give to `operations`, in the order of an entry's values.
#[must_use]
pub fn places(operations: &[Operation]) -> Vec<Place> {
    let mut list: Vec<Place> = Vec::new();
    for operation in operations {
        let (word, keys) = (operation.word(), operation.form() == Form::Keys);
        let before = list.iter().rev().find(|place| keys && place.word == word);
        let occurrence = before.map_or(0, |place| place.occurrence + 1);
        let own = operation.numbers().filter(|(_, value, _)| value.is_given());
        list.extend(own.map(|(key, _, field)| Place { word, occurrence, key, field }));
    }
    list
}

impl Operation {
    /// Iterates over the numbers among the operation's arguments: key, value, and the field whose notation
    /// the number uses.
    pub fn numbers(&self) -> impl Iterator<Item = (&'static str, Value, Field)> {
        let named = |one: &Argument<'_>| one.slot.number().map(|(value, like)| (one.key, value, like));
        { *self }.arguments().iter().filter_map(named).collect::<Vec<_>>().into_iter()
    }

    /// Returns the field among the operation's arguments that it reads.
    #[must_use]
    pub fn reads(&self) -> Option<Field> {
        { *self }.arguments().iter().find_map(|one| match &one.slot {
            Slot::Read(field) | Slot::Changed(field) => Some(**field),
            _ => None,
        })
    }

    /// Returns the field among the operation's arguments that it writes.
    #[must_use]
    pub fn writes(&self) -> Option<Field> {
        { *self }.arguments().iter().find_map(|one| match &one.slot {
            Slot::Written(field) | Slot::Changed(field) => Some(**field),
            _ => None,
        })
    }

    /// Returns true if the operation takes a number from the select hash.
    #[must_use]
    pub fn uses_hash(&self) -> bool {
        let outer = |encap: &Encap| encap.ipv6 || encap.src_bits.is_some();
        matches!(self, Operation::Encap(encap) if outer(encap)) || { *self }
            .arguments()
            .iter()
            .any(|one| matches!(one.slot, Slot::Hashed(None, _)))
    }

    /// Returns the tunnel whose headers the operation adds or removes.
    #[must_use]
    pub fn tunnel(&self) -> Option<TunnelKind> {
        match self {
            Operation::Decap(kind) => Some(*kind),
            Operation::Encap(encap) => Some(encap.kind),
            _ => None,
        }
    }

    /// Returns how deep a frame must be parsed for this operation to find its place and the checksums to
    /// update.
    #[must_use]
    pub fn depth(&self) -> Depth {
        let hash = if self.uses_hash() { Depth::L4 } else { Depth::L2 };
        let read = self.reads().map_or(Depth::L2, Field::depth);
        let written = self.writes().map_or(Depth::L2, write_depth);
        let learnt = self.learnt().map(Field::depth).max().unwrap_or_default();
        self.own_depth().max(hash).max(read).max(written).max(learnt)
    }

    /// Iterates over the fields from which the operation's numbers are learnt.
    pub fn learnt(&self) -> impl Iterator<Item = Field> {
        self.numbers().filter_map(|(_, value, _)| match value {
            Value::Learnt(field) => Some(field),
            Value::Const(_) | Value::PerEntry | Value::PerFlow | Value::Nat(_) => None,
        })
    }

    /// Whether flows keep the operation's numbers: if they keep one, they keep all.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.numbers().any(|(_, value, _)| value.is_kept())
    }

    /// Returns the operation's shape: constants become zero, per-entry numbers stay.
    #[must_use]
    pub fn without_constants(&self) -> Operation {
        let mut operation = *self;
        for one in operation.arguments() {
            match one.slot {
                Slot::Number(value, _) | Slot::Optional(Some(value), _) | Slot::Hashed(Some(value), _)
                    if matches!(value, Value::Const(_)) =>
                {
                    *value = Value::Const(0);
                }
                Slot::Copied(Some(value), _) => *value = 0,
                _ => {}
            }
        }
        operation
    }
}

/// Prints the operation's keyword and the fields among its arguments: `set ipv4.dst`,
/// `copy eth.src to eth.dst`.
impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())?;
        let mut link = " ";
        for one in { *self }.arguments() {
            if let Slot::Read(field) | Slot::Written(field) | Slot::Changed(field) = one.slot {
                write!(f, "{link}{field}")?;
                link = " to ";
            }
        }
        Ok(())
    }
}

/// Returns the depth needed to write a field. Addresses are part of the L4 checksum's pseudo header, so L4
/// must have been found.
fn write_depth(field: Field) -> Depth {
    match field {
        Field::Ipv4Src | Field::Ipv4Dst | Field::Ipv6Src | Field::Ipv6Dst => Depth::L4,
        other => other.depth(),
    }
}

/// Describes the fixed order in a sentence: the operations of each stage, with stages in order.
#[must_use]
pub fn order() -> String {
    let mut text = String::new();
    let mut before = Stage::Decap;
    // The keywords of one tunnel represent those of all.
    let all =
        OPERATIONS.iter().filter(|line| line.blank.tunnel().is_none_or(|kind| kind == TunnelKind::ALL[0]));
    for line in all {
        let stage = line.blank.stage();
        text += match (text.is_empty(), before == stage) {
            (true, _) => "",
            (false, true) => ", ",
            (false, false) if stage == Stage::Rewrite => "; as written ",
            (false, false) if before == Stage::Rewrite => "; ",
            (false, false) => ", ",
        };
        text += &line.blank.tunnel().map_or(line.word.into(), |kind| line.word.replace(kind.word(), "KIND"));
        before = stage;
    }
    text
}
