//! What can happen to an interface, in words for the operator.

use std::fmt;

use weir_packet::write_hex;

/// The state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceState {
    /// The interface exists and has carrier.
    Up,
    /// The interface is up, but has no carrier.
    NoCarrier,
    /// The interface is administratively down.
    Down,
    /// The interface exists, but weir cannot use it.
    Refused,
    /// The interface does not exist in this network namespace.
    Gone,
}

impl fmt::Display for InterfaceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InterfaceState::Up => "up",
            InterfaceState::NoCarrier => "no carrier",
            InterfaceState::Down => "down",
            InterfaceState::Refused => "refused",
            InterfaceState::Gone => "gone",
        })
    }
}

/// Something that happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceNews {
    /// The interface was deleted.
    Gone,
    /// The interface was moved to another network namespace.
    Moved,
    /// The interface is back, and in use.
    Back,
    /// The interface is back, but cannot be used, for this reason.
    Refused(String),
    /// The interface was renamed: the old name and the new one.
    Renamed(String, String),
    /// The interface went up or down.
    State(InterfaceState),
    /// The interface's MTU changed: the old value and the new one.
    Mtu(u32, u32),
    /// The interface's MAC address changed to this one.
    Mac([u8; 6]),
}

impl fmt::Display for InterfaceNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InterfaceNews::Gone => {
                f.write_str("is gone; frames for it are dropped as `interface_gone` until it returns")
            }
            InterfaceNews::Moved => f.write_str(
                "has moved to another network namespace; frames for it are dropped as `interface_gone` \
                 until it returns",
            ),
            InterfaceNews::Back => f.write_str("is back and in use"),
            InterfaceNews::Refused(why) => write!(f, "is back, but cannot be used: {why}"),
            InterfaceNews::Renamed(before, now) => write!(f, "was renamed from {before} to {now}"),
            InterfaceNews::State(InterfaceState::NoCarrier) => f.write_str("has no carrier"),
            InterfaceNews::State(state) => write!(f, "is {state}"),
            InterfaceNews::Mtu(before, now) => write!(f, "has MTU {now}, previously {before}"),
            InterfaceNews::Mac(mac) => write!(f, "has MAC address {}", write_hex(mac, ":")),
        }
    }
}
