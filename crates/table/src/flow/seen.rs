//! What is known about a flow from its packets, and what else fits into a byte of its cache line.

use super::{Flow, FlowTable};
use crate::state::{FlowState, Seen, StateEvent};

/// Up to this number, the packets of a flow are remembered, even if its counts have been taken.
pub const HEARD_MAX: u8 = 4;

/// What else is known about a flow, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(pub u8);

impl Marks {
    /// Whether the first packet has been reported.
    pub const RECORDED: u8 = 1;
    /// Whether it has reported counts: if so, no packet is its first one.
    pub const GAVE: u8 = 2;
    /// How many packets were seen, up to [`HEARD_MAX`], in the bits starting here.
    const HEARD_AT: u32 = 2;

    #[inline(always)]
    pub fn has(self, mark: u8) -> bool {
        self.0 & mark != 0
    }

    #[inline(always)]
    pub fn set(&mut self, mark: u8) {
        self.0 |= mark;
    }

    #[inline(always)]
    fn heard(self) -> u8 {
        self.0 >> Marks::HEARD_AT
    }

    /// One more packet was seen.
    #[inline(always)]
    fn count_packet(&mut self) {
        self.0 += u8::from(self.heard() < HEARD_MAX) << Marks::HEARD_AT;
    }

    pub fn with_heard(self, heard: u8) -> Marks {
        Marks(self.0 & (Marks::RECORDED | Marks::GAVE) | heard.min(HEARD_MAX) << Marks::HEARD_AT)
    }
}

impl Flow {
    /// How many of its packets were seen, up to [`HEARD_MAX`], if its state is tracked.
    #[inline]
    #[must_use]
    pub fn heard(&self) -> u8 {
        self.marks.heard()
    }

    /// Returns the highest byte of the last TCP sequence number.
    #[must_use]
    pub fn seq(&self) -> u8 {
        self.seq
    }
}

impl FlowTable {
    /// Tracks the state of a flow, before its packet is counted. Returns what else happens to the flow: a
    /// repeated SYN does not establish the connection, and is not the first packet (RFC 9293 §3.8.1).
    #[inline]
    pub fn see(&mut self, row: u32, seen: Seen) -> StateEvent {
        let Some(flow) = self.live_mut(row) else { return StateEvent::None };
        let first = flow.packets == 0 && !flow.marks.has(Marks::GAVE);
        let before = if first { FlowState::Single } else { flow.state };
        flow.marks.count_packet();
        if seen == Seen::NO_TCP {
            flow.state = before.after_other(first);
            return StateEvent::None;
        }
        let (state, event) = before.after(seen, &mut flow.seq);
        flow.state = state;
        event
    }

    /// The connection of a flow was idle for too long and is about to be reset, which counts as a packet now.
    pub fn end(&mut self, row: u32, now: u32) {
        if let Some(flow) = self.live_mut(row) {
            (flow.state, flow.last) = (FlowState::TcpRst, now);
        }
    }

    /// The connection of a flow was reset by a packet of the other direction.
    #[cold]
    pub fn reset(&mut self, row: u32) {
        if let Some(flow) = self.live_mut(row) {
            flow.state = FlowState::TcpRst;
        }
    }
}
