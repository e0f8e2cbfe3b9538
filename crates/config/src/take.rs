//! Which frames a port takes from the kernel's stack. The port decides it in XDP, before a frame is weir's: what no rule
//! names stays the kernel's.

use engine::program::PortId;
use std::net::IpAddr;

/// Frames that a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TakeRule {
    /// The port.
    pub port: PortId,
    /// Which frames.
    pub frames: Frames,
}

/// Which frames a rule takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frames {
    /// All, also those addressed to other stations: the port is bridged.
    All,
    /// Those of an EtherType that are addressed to a group.
    Group(u16),
    /// IP packets.
    Ip(IpRule),
}

/// IP packets that a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpRule {
    /// Destination address; its family is the rule's.
    pub dst: IpAddr,
    /// Bits of `dst` that are compared.
    pub prefix: u8,
    /// Transport protocol; `None`: any.
    pub protocol: Option<u8>,
    /// Destination port; `None`: any.
    pub dport: Option<u16>,
    /// True: fragments only, which have no ports. False: unfragmented packets, and fragments too if neither port nor
    /// protocol is named.
    pub fragments: bool,
}
