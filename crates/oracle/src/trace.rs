//! The data behind `explain`: every pipe that a packet passed through, the comparisons, the operations, and
//! the reason for the packet's destination. Rendering happens elsewhere, except that field values know how
//! they are written.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{DropReason, Field, FieldKind, FlowKey, write_hex};
use weir_program::Verdict;
use weir_program::change::EntryKey;
use weir_program::snapshot::FlowDecision;
use weir_program::{CounterId, Criterion, Forward, GroupId, MeterId, Operation, Origin, PipeId};
pub use weir_table::Color;

/// The passage of a packet through one pipe.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The pipe that the packet entered.
    pub pipe: PipeId,
    /// The name of the pipe.
    pub name: String,
    /// Length of the frame on entry, in bytes.
    pub bytes: usize,
    /// The fields compared or hashed.
    pub key: Vec<KeyField>,
    /// The flow, in a FLOW pipe.
    pub flow: Option<FlowMet>,
    /// The bucket, in a HASH pipe or in a FLOW pipe that pins or follows.
    pub pick: Option<Pick>,
    /// The result of the lookup.
    pub lookup: Lookup,
    /// What was counted and metered.
    pub monitor: Monitored,
    /// Operations performed on the packet, up to the first that failed.
    pub operations: Vec<Performed>,
    /// The keys after the actions, if the pipe has `rehash`.
    pub rehash: Option<Rehashed>,
    /// The forward or miss that applied; `None` if the packet was dropped before.
    pub forward: Option<Forwarded>,
    /// Where the packet went next.
    pub end: End,
}

/// A field that a pipe compares or hashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyField {
    /// The field that the pipe reads.
    pub field: Field,
    /// The field's value; `None` if the packet does not have this field.
    pub actual: Option<u128>,
    /// How the pipe uses the field.
    pub asked: Asked,
}

/// How a pipe uses a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked {
    /// Compares the field by this criterion.
    Match(Criterion),
    /// Hashes the field under this mask.
    Hashed(u128),
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    /// An entry was hit.
    Hit(Hit),
    /// No entry was hit.
    Miss(Miss),
    /// The group has no live target, or its target has no entry.
    NoTarget,
}

/// The entry that was hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Key of the entry.
    pub entry: EntryKey,
    /// Where the entry is configured.
    pub origin: Origin,
    /// Whether the entry was added at run time.
    pub run_time: bool,
    /// Name of its action template.
    pub template: String,
}

/// Why no entry was hit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Miss {
    /// Conditions of the pipe itself that failed: constants, absent fields.
    pub failed: Vec<Difference>,
    /// The entry with the fewest differing fields and, among those, the fewest differing bits.
    pub nearest: Option<Nearest>,
}

/// The entry closest to the packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Nearest {
    /// Key of the entry.
    pub entry: EntryKey,
    /// Where the entry is configured.
    pub origin: Origin,
    /// How the packet differs from the entry.
    pub differences: Vec<Difference>,
}

/// A condition that the packet does not meet.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Name of the field or of the part of the flow key.
    pub name: String,
    /// The value required.
    pub wanted: String,
    /// The packet's value; `None` if it does not have the field.
    pub actual: Option<String>,
    /// Number of differing bits.
    pub bits: u32,
}

/// The bucket selected in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The group whose bucket was picked.
    pub group: GroupId,
    /// Name of the group.
    pub name: String,
    /// The hash, mixed with the group's seed if it has one.
    pub hash: u64,
    /// Whether the hash is that of the system that the group is filled for.
    pub foreign: bool,
    /// The prefix whose hash it is, in a group where sources pick.
    pub source: Option<(IpAddr, u8)>,
    /// Whether the target comes from an earlier flow of that prefix rather than from the bucket.
    pub remembered: bool,
    /// Whether the hash is the NIC's.
    pub rss: Rss,
    /// With round robin, the number of packets distributed before; nothing is then hashed. For a new flow,
    /// its place in the round.
    pub turn: Option<u64>,
    /// For a new flow that goes to the target with the fewest flows, the number of those flows.
    pub fewest: Option<u64>,
    /// For a QUIC packet, the server ID that led to the packet's target; there is then no bucket.
    pub server_id: Option<Vec<u8>>,
    /// Index of the bucket.
    pub bucket: usize,
    /// Whether the bucket is about to move.
    pub moving: Moving,
    /// Target of the bucket, with its name; `None` if there is no live one.
    pub target: Option<(u16, String)>,
}

/// Whether the NIC's hash was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rss {
    /// The NIC's hash was not requested.
    NotAsked,
    /// The frame arrived without a NIC's hash, so the select hash was used.
    Absent,
    /// The NIC's hash was used: these 32 bits.
    Taken(u32),
}

/// The state of a bucket's pending move when a packet meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// No move is pending.
    No,
    /// The bucket moves later, because its last packet was too recent.
    Waits,
    /// The bucket moves with this packet, having been idle long enough or having no target.
    Rested,
    /// The bucket moves with this packet, having reached its maximum wait.
    Overdue,
}

/// The flow of a packet in a FLOW pipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowMet {
    /// The flow's key; `None` without IP.
    pub key: Option<FlowKey>,
    /// What the table had for the packet.
    pub known: Known,
    /// Whether the table had a flow that has ended, and the packet begins another flow.
    pub reopened: bool,
}

impl FlowMet {
    pub(super) fn new(key: Option<FlowKey>, known: Known) -> FlowMet {
        FlowMet { key, known, reopened: false }
    }
}

/// The result of looking a packet up in a flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: there is no key, or the flow is unknown and not learnt.
    No,
    /// A live flow.
    Found(FlowDecision),
    /// A flow learnt from this packet.
    Learnt(FlowDecision),
    /// Nothing, and the table is full.
    Full(FlowDecision),
    /// Nothing: no address and port are free for the flow.
    NoNatPort,
    /// Nothing: another flow already has the flow's answers.
    AnswersTaken,
}

/// What was counted and metered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Monitored {
    /// The shared counter and its name.
    pub counter: Option<(CounterId, String)>,
    /// What the meter said, if the hit has one.
    pub meter: Option<Metered>,
}

/// The result of a meter.
#[derive(Clone, Debug, PartialEq)]
pub struct Metered {
    /// The meter that the packet met.
    pub meter: MeterId,
    /// The name of the meter.
    pub name: String,
    /// Colour of the packet before.
    pub before: Color,
    /// Colour of the packet after.
    pub after: Color,
}

/// An operation that was performed or attempted.
#[derive(Clone, Debug, PartialEq)]
pub struct Performed {
    /// The operation as the action template has it: some values may be left to the entry.
    pub operation: Operation,
    /// What the operation changed in the packet, or why it failed.
    pub change: Change,
    /// Checksums that were updated.
    pub mended: Vec<Mended>,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A field was written.
    Field {
        /// The field.
        field: Field,
        /// Value before.
        before: u128,
        /// Value after.
        after: u128,
    },
    /// A number of bytes were removed from the front (along with anything after the tunnel).
    Removed(usize),
    /// A number of bytes were added to the front.
    Added(usize),
    /// A number of bytes were added to the front, with the address of the back end that is the packet's
    /// second chance, if there is one.
    AddedWithSecondChance(usize, Option<Ipv4Addr>),
    /// The packet is within its maximum length: its length, and the maximum.
    Fits {
        /// Its length.
        length: usize,
        /// The limit.
        most: usize,
    },
    /// A maximum segment size was clamped.
    Mss {
        /// Value before.
        before: u16,
        /// Value after.
        after: u16,
    },
    /// The operation does not apply to the packet.
    Nothing,
    /// The operation failed, and the packet is dropped, or is too long and goes to an app.
    Failed(DropReason),
}

/// A checksum that was updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mended {
    /// Name of the checksum.
    pub name: &'static str,
    /// The value of the checksum field before the operation.
    pub before: u16,
    /// The value of the checksum field after the operation.
    pub after: u16,
}

/// The flow keys after a rehash.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rehashed {
    /// The key of the outer headers.
    pub outer: Option<FlowKey>,
    /// The key of the inner headers, or of the outer ones if there are none.
    pub inner: Option<FlowKey>,
}

/// The forward that applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Forwarded {
    /// Whether the forward was the pipe's miss.
    pub miss: bool,
    /// Whether the forward came from the entry.
    pub per_entry: bool,
    /// The forward as the program states it: a group is not resolved to a target's forward.
    pub said: Forward,
    /// The bucket, if the forward leads to a group.
    pub pick: Option<Pick>,
}

/// What follows a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Another pipe.
    Pipe(PipeId),
    /// The end of the walk.
    Verdict(Verdict),
}

/// A field's value, formatted for humans: MAC and IP addresses in their notations, counts and numbers in
/// decimal, everything else in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldValue {
    /// The field whose notation is used.
    pub field: Field,
    /// The value, in the low bits.
    pub value: u128,
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.field.kind {
            FieldKind::EthDst | FieldKind::EthSrc => {
                f.write_str(&write_hex(&(value as u64).to_be_bytes()[2..], ":"))
            }
            FieldKind::Ipv4Src
            | FieldKind::Ipv4Dst
            | FieldKind::ArpSenderIp
            | FieldKind::ArpTargetIp
            | FieldKind::ErrorV4Src
            | FieldKind::ErrorV4Dst => write!(f, "{}", Ipv4Addr::from_bits(value as u32)),
            FieldKind::Ipv6Src | FieldKind::Ipv6Dst | FieldKind::ErrorV6Src | FieldKind::ErrorV6Dst => {
                write!(f, "{}", Ipv6Addr::from_bits(value))
            }
            FieldKind::EthType | FieldKind::TcpFlags => write!(f, "{value:#x}"),
            FieldKind::Ipv4Identification | FieldKind::Ipv4Dscp => write!(f, "{value:#x}"),
            FieldKind::Ipv6FlowLabel | FieldKind::Ipv6TrafficClass => write!(f, "{value:#x}"),
            _ if self.field.meta_word().is_some() => write!(f, "{value:#x}"),
            FieldKind::MeterColor => [Color::Green, Color::Yellow, Color::Red][value.min(2) as usize].fmt(f),
            _ => write!(f, "{value}"),
        }
    }
}

/// A mask, formatted in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask(pub u128);

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Lookup {
    /// Whether an entry was hit.
    #[must_use]
    pub fn is_hit(&self) -> bool {
        matches!(self, Lookup::Hit(_))
    }
}
