//! What has been seen of a flow: one packet or more, and the flags of TCP headers. It determines how long the
//! flow may be without a packet, and has a byte in the flow's line.

/// What has been seen of a flow, which determines how long it may be idle.
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
    /// TCP: a FIN.
    TcpFin,
    /// TCP: an RST.
    TcpRst,
}

/// The flags of a TCP header that change a flow's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(pub u8);

impl Seen {
    /// A packet without a TCP header.
    pub const NO_TCP: Seen = Seen(0x80);
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;

    /// The flags of a TCP header.
    #[inline(always)]
    #[must_use]
    pub fn flags(flags: u8) -> Seen {
        Seen(flags & (Seen::FIN | Seen::SYN | Seen::RST))
    }

    /// Returns true if there is a TCP header with SYN.
    #[inline]
    #[must_use]
    pub fn is_syn(self) -> bool {
        self != Seen::NO_TCP && self.0 & Seen::SYN != 0
    }
}

impl FlowState {
    /// All states, in the order of their numbers.
    pub const ALL: [FlowState; 6] = [
        FlowState::Single,
        FlowState::Stream,
        FlowState::TcpSyn,
        FlowState::TcpEstablished,
        FlowState::TcpFin,
        FlowState::TcpRst,
    ];

    /// Returns its name.
    #[must_use]
    pub fn word(self) -> &'static str {
        ["single", "stream", "tcp_syn", "tcp_established", "tcp_fin", "tcp_rst"][self as usize]
    }

    /// Returns the state after a packet; `first` if the flow had none.
    #[inline]
    #[must_use]
    pub fn after(self, seen: Seen, first: bool) -> FlowState {
        if seen == Seen::NO_TCP {
            return match self {
                FlowState::Single if !first => FlowState::Stream,
                state => state,
            };
        }
        if seen.0 & Seen::RST != 0 {
            return FlowState::TcpRst;
        }
        if seen.0 & Seen::FIN != 0 {
            return FlowState::TcpFin;
        }
        let syn = seen.0 & Seen::SYN != 0;
        match self {
            FlowState::Single | FlowState::Stream => FlowState::TcpSyn,
            FlowState::TcpSyn if syn => FlowState::TcpSyn,
            FlowState::TcpFin | FlowState::TcpRst if syn => FlowState::TcpSyn,
            FlowState::TcpSyn | FlowState::TcpEstablished => FlowState::TcpEstablished,
            ended @ (FlowState::TcpFin | FlowState::TcpRst) => ended,
        }
    }
}
