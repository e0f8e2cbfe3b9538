//! Continues a flow that another process had in its table.

use super::{Decision, Flow, FlowTable, Marks};
use crate::InsertError;
use crate::state::FlowState;
use weir_packet::FlowKey;

/// The state of a flow that is taken over from another process, besides its key. There are no counts, because
/// the other process has reported them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The time of the flow's first packet or last delta, in milliseconds of this table's clock.
    pub first: u32,
    /// When the flow's last packet was counted, in milliseconds of this table's clock.
    pub last: u32,
    /// How far the connection has got, which determines its timeout.
    pub state: FlowState,
    /// The highest byte of the flow's last TCP sequence number.
    pub seq: u8,
    /// How many packets were seen, up to [`HEARD_MAX`](super::HEARD_MAX).
    pub heard: u8,
}

impl FlowTable {
    /// Enters a flow that began elsewhere. Returns the flow's row.
    ///
    /// # Errors
    /// The table is full, or has the flow already.
    pub fn resume(
        &mut self,
        hash: u64,
        key: &FlowKey,
        decision: Decision,
        from: Resumed,
    ) -> Result<u32, InsertError> {
        let packed = decision.pack().ok_or(InsertError::Full)?;
        let mut flow = Flow::new(*key, packed, from.last);
        flow.go_on(from);
        self.adopt(hash, &flow)
    }

    /// Updates a flow that began elsewhere and has changed there. Returns false if the update is out of date,
    /// because the flow has had packets here.
    pub fn refresh(&mut self, row: u32, from: Resumed) -> bool {
        let flow = self.live_mut(row).filter(|flow| flow.packets == 0 && !is_older(from.last, flow.last));
        flow.map(|flow| flow.go_on(from)).is_some()
    }
}

/// Returns whether `time` is before `other`. Times wrap around, so a time that seems more than half of the
/// range ahead is behind.
fn is_older(time: u32, other: u32) -> bool {
    time.wrapping_sub(other) >= 1 << 31
}

impl Flow {
    fn go_on(&mut self, from: Resumed) {
        (self.first, self.last) = (from.first, from.last);
        (self.state, self.seq) = (from.state, from.seq);
        // Another process saw its first packet and has reported it.
        self.marks = Marks(Marks::RECORDED | Marks::GAVE).with_heard(from.heard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_goes_on_with_its_age_and_its_state_and_counts_from_0() {
        let mut table = FlowTable::with_capacity(1);
        let from = Resumed { first: 10, last: 70, state: FlowState::TcpEstablished, seq: 7, heard: 3 };
        let key = FlowKey([1; 5]);
        let row = table.resume(7, &key, Decision::Pinned(3), from).unwrap();
        let flow = table.flow(row).unwrap();
        assert_eq!((flow.decision(), flow.packets(), flow.bytes()), (Decision::Pinned(3), 0, 0));
        assert_eq!((flow.first(), flow.last(), flow.state()), (10, 70, FlowState::TcpEstablished));
        assert_eq!((flow.seq(), flow.heard()), (7, 3));
        assert!(table.resume(7, &key, Decision::Pinned(3), from).is_err());
        let later = Resumed { first: 90, last: 95, state: FlowState::TcpSyn, seq: 9, heard: 1 };
        assert!(table.refresh(row, later) && !table.refresh(row, from), "only what is later counts");
        let flow = table.flow(row).unwrap();
        assert_eq!((flow.first(), flow.last(), flow.state()), (90, 95, FlowState::TcpSyn));
        assert_eq!((flow.seq(), flow.heard()), (9, 1));
        table.count(row, 60, 96);
        assert!(!table.refresh(row, later), "it is this process's");
        assert!(table.resume(8, &FlowKey([2; 5]), Decision::Pinned(3), from).is_err());
    }
}
