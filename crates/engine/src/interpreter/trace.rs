//! What `explain` shows: every pipe a packet met, what was compared with what, what was done, and why it went where it
//! went. Structures to be rendered; only values know how they are written.

use crate::change::EntryKey;
use crate::program::{CounterId, Criterion, Forward, GroupId, MeterId, Operation, Origin, PipeId};
use crate::snapshot::FlowDecision;
use crate::verdict::Verdict;
use packet::{DropReason, Field, FieldKind, FlowKey};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// One pipe on a packet's way.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The pipe.
    pub pipe: PipeId,
    /// Its name.
    pub name: String,
    /// Bytes of the frame when it entered.
    pub bytes: usize,
    /// What was compared or hashed, field by field.
    pub key: Vec<KeyField>,
    /// FLOW: the flow.
    pub flow: Option<FlowMet>,
    /// HASH, and FLOW that pins or follows: the bucket.
    pub pick: Option<Pick>,
    /// What came of the look-up.
    pub lookup: Lookup,
    /// Counter and meter.
    pub monitor: Monitored,
    /// What was done to the packet, up to the first failure.
    pub operations: Vec<Performed>,
    /// The keys after the actions, when the pipe says `rehash`.
    pub rehash: Option<Rehashed>,
    /// What forward or miss said; `None` when the packet was dropped before.
    pub forward: Option<Forwarded>,
    /// Where that led.
    pub end: End,
}

/// A field that a pipe compares or hashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyField {
    /// Which.
    pub field: Field,
    /// Its value; `None`: the packet lacks the layer.
    pub actual: Option<u128>,
    /// What the pipe does with it.
    pub asked: Asked,
}

/// What a pipe does with a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked {
    /// Compares it.
    Match(Criterion),
    /// Hashes it under this mask.
    Hashed(u128),
}

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    /// An entry.
    Hit(Hit),
    /// None.
    Miss(Miss),
    /// A group without a live target, or a decision without an entry.
    NoTarget,
}

/// The entry that was hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Its key.
    pub entry: EntryKey,
    /// Where it was written.
    pub origin: Origin,
    /// Was it added at run time?
    pub run_time: bool,
    /// The name of its action template.
    pub template: String,
}

/// Why nothing was hit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Miss {
    /// What failed for the pipe as a whole: constants, absent fields.
    pub failed: Vec<Difference>,
    /// The entry with the fewest differing fields, then bits.
    pub nearest: Option<Nearest>,
}

/// The entry that came nearest.
#[derive(Clone, Debug, PartialEq)]
pub struct Nearest {
    /// Its key.
    pub entry: EntryKey,
    /// Where it was written.
    pub origin: Origin,
    /// Where the packet differs from it.
    pub differences: Vec<Difference>,
}

/// Something wanted that the packet does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The field, or a part of the flow key.
    pub name: String,
    /// What was wanted.
    pub wanted: String,
    /// What the packet has; `None`: it lacks the layer.
    pub actual: Option<String>,
    /// How many bits differ.
    pub bits: u32,
}

/// A bucket and what it names.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The group.
    pub group: GroupId,
    /// Its name.
    pub name: String,
    /// The hash, mixed with the group's seed if it has one.
    pub hash: u64,
    /// Is it the NIC's?
    pub rss: Rss,
    /// Round robin: how many packets its pipe had dealt before; nothing is hashed then.
    pub turn: Option<u64>,
    /// The bucket it falls into.
    pub bucket: usize,
    /// Is the bucket to move?
    pub moving: Moving,
    /// The bucket's target and its name; `None`: no live target.
    pub target: Option<(u16, String)>,
}

/// What became of the wish for the NIC's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rss {
    /// Nobody asked for it.
    NotAsked,
    /// The frame came without: the select hash was taken.
    Absent,
    /// It was taken: these 32 bits.
    Taken(u32),
}

/// How the move of a bucket stands when a packet meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// It is not to move.
    No,
    /// It moves later: packets have met it too short a while ago.
    Waits,
    /// It moves with this packet: it has rested, or nobody had it.
    Rested,
    /// It moves with this packet: it has waited as long as it may.
    Overdue,
}

/// A packet's flow in a FLOW pipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowMet {
    /// Its key; `None` without IP.
    pub key: Option<FlowKey>,
    /// What the table knew of it.
    pub known: Known,
}

/// What a flow table knew of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// No key, or an unknown flow that is not learnt.
    No,
    /// A live flow.
    Found(FlowDecision),
    /// Unknown; written now.
    Learnt(FlowDecision),
    /// Unknown, and the table is full.
    Full(FlowDecision),
}

/// What was counted and metered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Monitored {
    /// The shared counter and its name.
    pub counter: Option<(CounterId, String)>,
    /// The meter.
    pub meter: Option<Metered>,
}

/// What a meter said.
#[derive(Clone, Debug, PartialEq)]
pub struct Metered {
    /// The meter.
    pub meter: MeterId,
    /// Its name.
    pub name: String,
    /// The packet's colour before.
    pub before: Color,
    /// And after.
    pub after: Color,
}

/// The colour of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Color {
    /// 0.
    #[default]
    Green,
    /// 1.
    Yellow,
    /// 2.
    Red,
}

/// One operation carried out, or tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Performed {
    /// What was to be done.
    pub operation: Operation,
    /// What came of it.
    pub change: Change,
    /// Checksums mended.
    pub mended: Vec<Mended>,
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Gave a field a value.
    Field {
        /// The field.
        field: Field,
        /// Before.
        before: u128,
        /// After.
        after: u128,
    },
    /// Took so many bytes off the front (and what lay behind the tunnel).
    Removed(usize),
    /// Put so many bytes in front.
    Added(usize),
    /// Nothing: the packet is dropped.
    Failed(DropReason),
}

/// A checksum that was mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mended {
    /// Which.
    pub name: &'static str,
    /// Before.
    pub before: u16,
    /// After.
    pub after: u16,
}

/// Keys made anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rehashed {
    /// Of the outer headers.
    pub outer: Option<FlowKey>,
    /// Of the inner ones, or the outer again.
    pub inner: Option<FlowKey>,
}

/// What decided where the packet goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Forwarded {
    /// Was it the pipe's miss?
    pub miss: bool,
    /// Did the entry say it?
    pub per_entry: bool,
    /// What was said.
    pub said: Forward,
    /// The group's bucket, when it said a group.
    pub pick: Option<Pick>,
}

/// Where a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In another pipe.
    Pipe(PipeId),
    /// Here.
    Verdict(Verdict),
}

/// A field's value as a person writes it: MAC and IP addresses as such, numbers that people count in decimal, everything
/// else in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldValue {
    /// The field.
    pub field: Field,
    /// Its value.
    pub value: u128,
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.field.kind {
            FieldKind::EthDst | FieldKind::EthSrc => {
                let [_, _, a, b, c, d, e, g] = (value as u64).to_be_bytes();
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
            FieldKind::Ipv4Src | FieldKind::Ipv4Dst | FieldKind::ArpSenderIp | FieldKind::ArpTargetIp => {
                write!(f, "{}", Ipv4Addr::from_bits(value as u32))
            }
            FieldKind::Ipv6Src | FieldKind::Ipv6Dst => write!(f, "{}", Ipv6Addr::from_bits(value)),
            FieldKind::EthType | FieldKind::TcpFlags | FieldKind::Ipv4Identification | FieldKind::Ipv6FlowLabel => {
                write!(f, "{value:#x}")
            }
            FieldKind::Ipv4Dscp | FieldKind::Ipv6TrafficClass => write!(f, "{value:#x}"),
            FieldKind::Meta0 | FieldKind::Meta1 | FieldKind::Meta2 | FieldKind::Meta3 => write!(f, "{value:#x}"),
            FieldKind::MeterColor => match value {
                0 => f.write_str("green"),
                1 => f.write_str("yellow"),
                _ => f.write_str("red"),
            },
            _ => write!(f, "{value}"),
        }
    }
}

/// A mask: hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask(pub u128);

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Color {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Color::Green => "green",
            Color::Yellow => "yellow",
            Color::Red => "red",
        })
    }
}

impl Lookup {
    /// Was an entry hit?
    #[must_use]
    pub fn is_hit(&self) -> bool {
        matches!(self, Lookup::Hit(_))
    }
}
