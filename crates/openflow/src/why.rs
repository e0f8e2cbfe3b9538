//! Why something cannot be expressed.

use std::fmt;
use weir_packet::Field;
use weir_program::{Origin, PipeId};

/// The part of a program that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The program as a whole.
    Program,
    /// A pipe with all of its entries.
    Pipe(PipeId),
    /// An entry, by its position in the pipe, from 0.
    Entry(PipeId, usize),
    /// The forward of a pipe's misses.
    Miss(PipeId),
}

/// A part of a program that Open vSwitch cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPart {
    /// The part of the program that cannot be expressed.
    pub part: Part,
    /// Its place in the configuration.
    pub origin: Origin,
    /// The reason.
    pub why: Why,
}

/// Why Open vSwitch cannot express something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The program has more pipes than a switch has tables.
    Tables,
    /// Fragments get the ports of their datagram.
    FollowFragments,
    /// The pipe keeps flows.
    Flows,
    /// The pipe has a meter.
    Meter,
    /// The pipe is measured.
    Measured,
    /// The pipe hashes what Open vSwitch cannot hash.
    HashInput(&'static str),
    /// The pipe hashes a field that Open vSwitch cannot hash.
    HashedField(Field),
    /// The group's buckets are not filled by weights.
    Fill,
    /// Metadata chooses the group.
    Chosen,
    /// The group's app gets packets without a target.
    NoTarget,
    /// The targets' actions need different headers.
    TargetsDiffer,
    /// A match has no such field.
    Match(Field),
    /// A match has the field as a whole only.
    Mask(Field),
    /// The tool reads the mask of the address as a length.
    MaskText(Field),
    /// A match cannot say that a packet is not IP.
    NotIp(Field),
    /// Open vSwitch matches only the lower byte of the operation, and other ARP as 0.
    Arp(Field),
    /// The entry would take too many flows.
    TooManyFlows,
    /// The pipe has more ranks of entries than there are priorities.
    Priorities,
    /// An action has no such operation.
    Operation(&'static str),
    /// An action cannot write the field.
    Write(Field),
    /// An action cannot copy between the fields.
    Copy(Field, Field),
    /// A tag that is rewritten loses its drop eligible indicator.
    Dei(Field),
    /// Tunnels belong to ports there.
    Tunnel,
    /// It needs the second of the tags that a packet was received with.
    SecondTag,
    /// Frames go to an app.
    App,
    /// Frames go to the host's stack.
    Kernel,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Tables => write!(f, "the program has more pipes than Open vSwitch has tables for (251)"),
            Why::FollowFragments => {
                write!(f, "with `fragments: follow`, fragments have ports, which OpenFlow's fragments do not")
            }
            Why::Flows => {
                write!(f, "a FLOW pipe learns flows, with states and timeouts that OpenFlow does not have")
            }
            Why::Meter => {
                write!(f, "OpenFlow's meters count differently: they neither start nor overflow as weir's do")
            }
            Why::Measured => write!(f, "Open vSwitch does not measure the pipe's packets"),
            Why::HashInput(what) => write!(f, "Open vSwitch does not hash {what}"),
            Why::HashedField(field) => write!(f, "Open vSwitch does not hash `{field}` under this mask"),
            Why::Fill => write!(f, "the group's buckets are not filled by weights alone"),
            Why::Chosen => write!(f, "metadata chooses the group, but an OpenFlow action names one"),
            Why::NoTarget => write!(f, "packets without a target go to an app"),
            Why::TargetsDiffer => write!(
                f,
                "the actions of the group's targets need different headers, which a group cannot test"
            ),
            Why::Match(field) => write!(f, "Open vSwitch does not match `{field}`"),
            Why::Mask(field) => write!(f, "Open vSwitch matches `{field}` as a whole or not at all"),
            Why::MaskText(field) => {
                write!(f, "`ovs-ofctl` takes a mask of `{field}` that begins with a digit for a length")
            }
            Why::NotIp(field) => write!(
                f,
                "`{field}` also matches packets without IP, and a match cannot say that a packet is not IP"
            ),
            Why::Arp(field) => write!(
                f,
                "`{field}`: Open vSwitch also matches ARP that it does not understand as 0; match an \
                 `arp.operation` from 1 to 255"
            ),
            Why::TooManyFlows => write!(f, "the entry's ranges take more than 4096 flows"),
            Why::Priorities => write!(f, "the pipe needs more than 65534 priorities"),
            Why::Operation(word) => write!(f, "Open vSwitch has no action for `{word}`"),
            Why::Write(field) => write!(f, "Open vSwitch does not write `{field}`"),
            Why::Copy(from, to) => write!(f, "this compiler does not copy `{from}` to `{to}`"),
            Why::Dei(field) => write!(
                f,
                "Open vSwitch clears the drop eligible indicator of a tag when it writes `{field}`; pop the \
                 tag and push another"
            ),
            Why::Tunnel => write!(
                f,
                "Open vSwitch encapsulates at tunnel ports, where it resolves the outer MAC addresses and \
                 picks the source port itself"
            ),
            Why::SecondTag => write!(f, "Open vSwitch cannot tell whether a packet has a second tag"),
            Why::App => write!(f, "the packets go to an app of weir's"),
            Why::Kernel => write!(
                f,
                "a bridge has no path back to the host's stack at a port; `--kernel-as normal` replaces it \
                 by Open vSwitch's own switching"
            ),
        }
    }
}
