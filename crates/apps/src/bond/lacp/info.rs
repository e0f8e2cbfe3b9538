//! Who speaks on a link: what each end says of itself, and what it believes of the other (802.1AX 6.4.2.3).

use std::fmt;
use std::ops::BitOr;

/// A system's identifier. The lower one leads (802.1AX 6.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct System {
    /// Lower is better.
    pub priority: u16,
    /// An address of the system's, all zeros for nobody.
    pub mac: [u8; 6],
}

impl System {
    /// Nobody: no partner has spoken.
    pub fn is_nobody(&self) -> bool {
        self.mac == [0; 6]
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.mac;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} priority {}", self.priority)
    }
}

/// A port's identifier within its system. The lower one is preferred (802.1AX 6.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Lower is better.
    pub priority: u16,
    /// Its number.
    pub number: u16,
}

/// What is said of one end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Whose end it is.
    pub system: System,
    /// Which of the system's ports may be aggregated with it.
    pub key: u16,
    /// The port.
    pub port: Port,
    /// Its state.
    pub state: State,
}

impl Info {
    /// Are both the same port, offered for aggregation alike? If not, it has to be selected anew.
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
    /// Speaks first.
    pub const ACTIVITY: State = State(0x01);
    /// Wants a PDU every second.
    pub const TIMEOUT: State = State(0x02);
    /// May be aggregated.
    pub const AGGREGATION: State = State(0x04);
    /// In the right aggregator.
    pub const SYNC: State = State(0x08);
    /// Takes frames.
    pub const COLLECTING: State = State(0x10);
    /// Sends frames.
    pub const DISTRIBUTING: State = State(0x20);
    /// Knows nothing of its partner.
    pub const DEFAULTED: State = State(0x40);
    /// Has not heard its partner for too long.
    pub const EXPIRED: State = State(0x80);

    const NAMES: [&str; 8] =
        ["activity", "timeout", "aggregation", "synchronized", "collecting", "distributing", "defaulted", "expired"];

    /// Are all of `bits` set?
    pub const fn has(self, bits: State) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// The same, with `bits` on or off.
    pub const fn with(self, bits: State, on: bool) -> State {
        if on { State(self.0 | bits.0) } else { State(self.0 & !bits.0) }
    }

    /// Those of `bits` that are set.
    pub const fn among(self, bits: State) -> State {
        State(self.0 & bits.0)
    }

    /// The names of the bits that are set, lowest first.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        State::NAMES.into_iter().enumerate().filter(move |(bit, _)| self.0 >> bit & 1 == 1).map(|(_, name)| name)
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
