//! Which frames a port takes from the kernel's stack. XDP decides this before a frame reaches weir; frames
//! that match no rule stay with the kernel.

use std::net::IpAddr;
use weir_program::PortId;

/// A rule: frames that a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TakeRule {
    /// The port.
    pub port: PortId,
    /// The frames.
    pub frames: Frames,
}

/// Which frames a rule takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frames {
    /// All frames, including those for other stations: the port is bridged.
    All,
    /// Frames of this EtherType to a group address.
    Group(u16),
    /// Frames of this EtherType to the port's own address.
    Own(u16),
    /// IP packets by their destination.
    Ip(IpRule),
    /// IP packets from this source address.
    From(IpAddr),
    /// Requests for the MAC address that belongs to this address, sent to any station: ARP requests (RFC 826)
    /// or neighbour solicitations (RFC 4861 §4.3).
    Asked(IpAddr),
    /// ICMP errors about packets that such a rule would take in the opposite direction: `dst` is the source
    /// of these packets, which the errors are sent to, and `dport` is their source port.
    Errors(IpRule),
}

/// IP packets that a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpRule {
    /// Destination address, which also determines the address family.
    pub dst: IpAddr,
    /// Number of leading bits of `dst` that are compared.
    pub prefix: u8,
    /// Transport protocol; `None` means any.
    pub protocol: Option<u8>,
    /// The lowest and the highest destination port; `None` means any. For ICMP and ICMPv6, the type (upper
    /// byte) and the code.
    pub dport: Option<(u16, u16)>,
    /// If true, only fragments, which have no ports. If false, whole packets, and also fragments if neither
    /// port nor protocol is given.
    pub fragments: bool,
}
