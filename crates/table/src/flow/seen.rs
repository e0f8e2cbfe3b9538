//! The state of a flow that its packets reveal, and marks that fit into a byte of its cache line.

use super::{Flow, FlowTable};
use crate::state::{FlowState, Seen, StateEvent};

/// The maximum number of packets of a flow that are remembered even if the flow's counts have been reset.
pub const HEARD_MAX: u8 = 4;

/// Marks of a flow, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(pub u8);

impl Marks {
    /// Whether the first packet has been reported.
    pub const RECORDED: u8 = 1;
    /// Whether the flow has reported counts. If so, the flow's next packet is not its first.
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

    /// Counts a packet.
    #[inline(always)]
    fn count_packet(&mut self) {
        self.0 += u8::from(self.heard() < HEARD_MAX) << Marks::HEARD_AT;
    }

    /// Adds `packets` to the number of packets seen.
    pub fn count_packets(&mut self, packets: u64) {
        *self = self.with_heard((u64::from(self.heard()) + packets.min(u64::from(HEARD_MAX))) as u8);
    }

    pub fn with_heard(self, heard: u8) -> Marks {
        Marks(self.0 & (Marks::RECORDED | Marks::GAVE) | heard.min(HEARD_MAX) << Marks::HEARD_AT)
    }
}

impl Flow {
    /// How many of the flow's packets were seen, up to [`HEARD_MAX`], if the flow's state is tracked.
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
    /// Tracks the state of a flow, before the flow's packet is counted. Returns what else happens to the
    /// flow: a repeated SYN does not establish the connection, and is not the first packet (RFC 9293 §3.8.1).
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

    /// Records that the connection of a flow was idle for too long and is about to be reset. The reset counts
    /// as a packet at this time.
    pub fn end(&mut self, row: u32, now: u32) {
        if let Some(flow) = self.live_mut(row) {
            (flow.state, flow.last) = (FlowState::TcpRst, now);
        }
    }

    /// Records that a packet of the other direction has reset the connection of a flow.
    #[cold]
    pub fn reset(&mut self, row: u32) {
        if let Some(flow) = self.live_mut(row) {
            flow.state = FlowState::TcpRst;
        }
    }
}
