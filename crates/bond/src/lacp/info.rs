//! The information that each end of a link announces about itself, and its view of the other end (802.1AX
//! 6.4.2.3).

use std::fmt;
use std::ops::BitOr;
use weir_packet::write_hex;

/// A system identifier. The choices of the end with the lower one apply (802.1AX 6.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct System {
    /// Lower values are better.
    pub priority: u16,
    /// An address of the system; all zeros for no system.
    pub mac: [u8; 6],
}

impl System {
    /// Returns true for the system identifier that means that there is no partner.
    pub fn is_nobody(&self) -> bool {
        self.mac == [0; 6]
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} priority {}", write_hex(&self.mac, ":"), self.priority)
    }
}

/// A port identifier, unique in its system. Lower ones are preferred (802.1AX 6.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Lower values are better.
    pub priority: u16,
    /// The number of the port in its system; among ports of equal priority, the lower number is preferred.
    pub number: u16,
}

/// The information about one end of a link, as announced by that end or as assumed by the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// The system that the end belongs to.
    pub system: System,
    /// The key: ports of the system with the same key may be aggregated.
    pub key: u16,
    /// The identifier of the port at this end, which tells apart the links of one aggregator.
    pub port: Port,
    /// The state that the end announces, or is assumed to have.
    pub state: State,
}

impl Info {
    /// Returns true if both describe the same port, with the same key and aggregation. If not, the port must
    /// be reselected.
    pub(super) fn is_same_port(&self, other: &Info) -> bool {
        let aggregation = |info: &Info| info.state.has(State::AGGREGATION);
        (self.system, self.key, self.port) == (other.system, other.key, other.port)
            && aggregation(self) == aggregation(other)
    }
}

/// The eight bits of a port's state (802.1AX 6.4.2.3).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct State(pub u8);

impl State {
    /// LACP_Activity: the end is active, that is, it sends LACPDUs without having received any.
    pub const ACTIVITY: State = State(0x01);
    /// LACP_Timeout: the end uses the short timeout, so it wants an LACPDU every second rather than every 30.
    pub const TIMEOUT: State = State(0x02);
    /// Aggregation: the link may be aggregated with others; otherwise it is an individual link.
    pub const AGGREGATION: State = State(0x04);
    /// Synchronization: the end has attached the link to the right aggregator.
    pub const SYNC: State = State(0x08);
    /// Collecting: the end accepts frames that arrive on the link.
    pub const COLLECTING: State = State(0x10);
    /// Distributing: the end may send frames over the link.
    pub const DISTRIBUTING: State = State(0x20);
    /// Defaulted: the end has no information from its partner and uses default values instead.
    pub const DEFAULTED: State = State(0x40);
    /// Expired: the end has not received an LACPDU in time, and its information about the partner has
    /// expired.
    pub const EXPIRED: State = State(0x80);

    const NAMES: [&str; 8] = [
        "activity",
        "timeout",
        "aggregation",
        "synchronized",
        "collecting",
        "distributing",
        "defaulted",
        "expired",
    ];

    /// Returns true if all of `bits` are set.
    pub const fn has(self, bits: State) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Returns the state with `bits` set or cleared.
    pub const fn with(self, bits: State, on: bool) -> State {
        if on { State(self.0 | bits.0) } else { State(self.0 & !bits.0) }
    }

    /// Returns those of `bits` that are set.
    pub const fn among(self, bits: State) -> State {
        State(self.0 & bits.0)
    }

    /// Iterates over the names of the bits that are set, lowest bit first.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        State::NAMES
            .into_iter()
            .enumerate()
            .filter(move |(bit, _)| self.0 >> bit & 1 == 1)
            .map(|(_, name)| name)
    }
}

impl BitOr for State {
    type Output = State;

    fn bitor(self, other: State) -> State {
        State(self.0 | other.0)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(" "))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({self})")
    }
}
