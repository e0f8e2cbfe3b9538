//! The state of a flow: whether it has one packet or more, and the TCP flags seen so far. The state
//! determines how long the flow may be idle, and occupies one byte of the flow's cache line.
//!
//! A NAT keeps an established TCP connection for at least 2 h 4 min and other connections for at least 4 min
//! (RFC 5382 §5, REQ-5), and a UDP mapping for at least 2 min (RFC 4787 §4.3, REQ-5). So states
//! distinguish TCP by its flags, and single packets from streams.

/// The state of a flow, which determines how long it may be idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlowState {
    /// One packet, not TCP.
    #[default]
    Single,
    /// More packets, not TCP.
    Stream,
    /// TCP: only a SYN, or one packet.
    TcpSyn,
    /// TCP: packets after the first.
    TcpEstablished,
    /// TCP: both directions have closed, each with a FIN. A single direction is never in this state.
    TcpFin,
    /// TCP: an RST.
    TcpRst,
    /// TCP: a FIN in one direction.
    TcpHalfClosed,
}

/// The parts of a packet that change its flow's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    flags: u8,
    /// The highest byte of the sequence number.
    seq: u8,
}

/// What a packet does to a flow besides changing its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateEvent {
    /// Nothing.
    None,
    /// A SYN is repeated.
    Repeated,
    /// The connection is reset, which affects both directions.
    Reset,
}

impl Seen {
    /// A packet without a TCP header.
    pub const NO_TCP: Seen = Seen { flags: 0x80, seq: 0 };
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const DATA: u8 = 8;
    const ACK: u8 = 16;

    /// A TCP segment: its flags, the highest byte of its sequence number, and whether it carries data.
    #[inline(always)]
    #[must_use]
    pub fn segment(flags: u8, seq: u8, has_data: bool) -> Seen {
        let flags = flags & (Seen::FIN | Seen::SYN | Seen::RST | Seen::ACK);
        Seen { flags: flags | if has_data { Seen::DATA } else { 0 }, seq }
    }

    #[inline(always)]
    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns true if there is a TCP header with SYN.
    #[inline]
    #[must_use]
    pub fn is_syn(self) -> bool {
        self.has(Seen::SYN)
    }

    /// Returns true if there is a TCP header that opens a connection: SYN without ACK, RST or FIN.
    #[inline]
    #[must_use]
    pub fn opens(self) -> bool {
        self.flags & (Seen::FIN | Seen::SYN | Seen::RST | Seen::ACK) == Seen::SYN
    }

    /// Returns true if there is a TCP header with FIN or RST.
    #[inline]
    #[must_use]
    pub fn closes(self) -> bool {
        self.has(Seen::FIN | Seen::RST)
    }

    /// Whether a sequence number is so far from the last one of its direction that no window reaches it: at
    /// least 16 MB.
    #[inline]
    fn is_far_from(self, seq: u8) -> bool {
        self.seq.wrapping_sub(seq).wrapping_add(1) > 2
    }
}

impl FlowState {
    /// All states, in the order of their numbers.
    pub const ALL: [FlowState; 7] = [
        FlowState::Single,
        FlowState::Stream,
        FlowState::TcpSyn,
        FlowState::TcpEstablished,
        FlowState::TcpFin,
        FlowState::TcpRst,
        FlowState::TcpHalfClosed,
    ];

    /// Returns its name.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            FlowState::Single => "single",
            FlowState::Stream => "stream",
            FlowState::TcpSyn => "tcp_syn",
            FlowState::TcpEstablished => "tcp_established",
            FlowState::TcpFin => "tcp_fin",
            FlowState::TcpRst => "tcp_rst",
            FlowState::TcpHalfClosed => "tcp_half_closed",
        }
    }

    /// Returns the state of one direction after a packet, and what else happens to the flow. `seq` is the
    /// highest byte of the last sequence number of that direction, and is updated.
    #[inline]
    #[must_use]
    pub fn after(self, seen: Seen, seq: &mut u8) -> (FlowState, StateEvent) {
        use FlowState::{Single, Stream, TcpEstablished, TcpFin, TcpHalfClosed, TcpRst, TcpSyn};
        let knows_window = matches!(self, TcpEstablished | TcpHalfClosed | TcpFin | TcpRst);
        if seen.has(Seen::RST | Seen::FIN) && knows_window && seen.is_far_from(*seq) {
            return (self, StateEvent::None);
        }
        if seen.has(Seen::RST) {
            return (TcpRst, StateEvent::Reset);
        }
        *seq = seen.seq;
        if seen.has(Seen::FIN) {
            return (if self == TcpFin { TcpFin } else { TcpHalfClosed }, StateEvent::None);
        }
        if seen.is_syn() {
            return match self {
                TcpSyn => (TcpSyn, StateEvent::Repeated),
                // The other end answers with an ACK, and the connection stays as it is.
                TcpEstablished | TcpHalfClosed | TcpFin => (self, StateEvent::None),
                Single | Stream | TcpRst => (TcpSyn, StateEvent::None),
            };
        }
        let state = match self {
            Single | Stream => TcpSyn,
            TcpSyn | TcpEstablished | TcpRst => TcpEstablished,
            // A closed direction still acknowledges, but sends no data.
            TcpFin | TcpHalfClosed if seen.has(Seen::DATA) => TcpEstablished,
            TcpFin | TcpHalfClosed => self,
        };
        (state, StateEvent::None)
    }

    /// Returns the state of one direction after a packet without a TCP header; `first` if it had none.
    #[inline]
    #[must_use]
    pub fn after_other(self, first: bool) -> FlowState {
        match self {
            FlowState::Single if !first => FlowState::Stream,
            state => state,
        }
    }

    /// Returns the state after any number of packets without SYN, FIN and RST, at least one, in a flow that
    /// has had one before. `None` if that depends on whether they carry data.
    #[must_use]
    pub fn after_plain_packets(self) -> Option<FlowState> {
        match self {
            FlowState::Single | FlowState::Stream => Some(FlowState::Stream),
            FlowState::TcpSyn | FlowState::TcpEstablished | FlowState::TcpRst => {
                Some(FlowState::TcpEstablished)
            }
            FlowState::TcpFin | FlowState::TcpHalfClosed => None,
        }
    }

    /// Returns the state of a flow that consists of this direction and `other`.
    #[inline]
    #[must_use]
    pub fn together(self, other: Option<FlowState>) -> FlowState {
        use FlowState::{Single, Stream, TcpEstablished, TcpFin, TcpHalfClosed, TcpRst, TcpSyn};
        let Some(other) = other else { return self };
        match (self, other) {
            (TcpRst, _) | (_, TcpRst) => TcpRst,
            (TcpFin | TcpHalfClosed, TcpFin | TcpHalfClosed) => TcpFin,
            (TcpFin | TcpHalfClosed, _) | (_, TcpFin | TcpHalfClosed) => TcpHalfClosed,
            (TcpEstablished, _) | (_, TcpEstablished) => TcpEstablished,
            (TcpSyn, _) | (_, TcpSyn) => TcpSyn,
            (Stream, _) | (_, Stream) => Stream,
            (Single, Single) => Single,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_packets_lead_to_one_state_unless_it_matters_whether_they_carry_data() {
        let plain = || {
            (0..=u8::MAX).flat_map(|seq| {
                [(0, false), (0, true), (Seen::ACK, false), (Seen::ACK, true)]
                    .map(|(flags, has_data)| Seen::segment(flags, seq, has_data))
            })
        };
        for state in FlowState::ALL {
            // A flow has TCP headers in all packets or in none.
            let after = |state: FlowState| match state {
                FlowState::Single | FlowState::Stream => vec![state.after_other(false)],
                tcp => plain()
                    .map(|seen| {
                        let (state, event) = tcp.after(seen, &mut 7);
                        assert_eq!(event, StateEvent::None);
                        state
                    })
                    .collect(),
            };
            let (first, once) = (after(state)[0], after(state));
            let is_one = once.iter().all(|one| *one == first);
            assert_eq!(state.after_plain_packets(), is_one.then_some(first), "{state:?}");
            if is_one {
                assert!(after(first).iter().all(|again| *again == first), "{state:?}");
            }
        }
    }
}
