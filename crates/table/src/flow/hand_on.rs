//! Passes counts from a flow in one table to the flow with the same key in another table, when both flows
//! stay.

use super::{Flow, FlowTable, Marks};
use crate::delta::{BYTES_MAX, PACKETS_MAX};
use crate::state::FlowState;

impl FlowTable {
    /// Resets the counts and the state of a flow that stays in the table, and returns the flow as it was
    /// before. The flow's times stay, so that the flow does not become younger. `None` if the row is not
    /// live.
    pub fn hand_on(&mut self, row: u32) -> Option<Flow> {
        let flow = self.live_mut(row)?;
        let before = *flow;
        flow.packets = 0;
        flow.set_bytes(0);
        flow.state = FlowState::Single;
        flow.marks = Marks(flow.marks.0 & Marks::GAVE);
        Some(before)
    }

    /// Adds the counts of another table's flow with the same key, and takes over its state. Returns false,
    /// and changes nothing, if the row is not live or a counter has no room for them.
    pub fn merge(&mut self, row: u32, other: &Flow) -> bool {
        let Some(flow) = self.live_mut(row) else { return false };
        let (packets, bytes) = (flow.packets() + other.packets(), flow.bytes() + other.bytes());
        if packets > PACKETS_MAX || bytes > BYTES_MAX {
            return false;
        }
        let earlier = |one: u32, other: u32| one.wrapping_sub(other) >= super::FUTURE;
        flow.packets = packets as u32;
        flow.set_bytes(bytes);
        if earlier(other.first, flow.first) {
            flow.first = other.first;
        }
        if earlier(flow.last, other.last) {
            flow.last = other.last;
        }
        if other.packets != 0 {
            (flow.state, flow.seq) = (other.state, other.seq);
        }
        flow.marks.set(other.marks.0 & Marks::RECORDED);
        flow.marks = flow.marks.with_heard(flow.heard() + other.heard());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decision;
    use weir_packet::FlowKey;

    fn one(count: u32, from: u32) -> FlowTable {
        let mut table = FlowTable::with_capacity(1);
        assert_eq!(table.learn(7, &FlowKey([1; 5]), Decision::Pinned(0), from), Ok(0));
        (0..count).for_each(|at| _ = table.count(0, 100, from + at));
        table
    }

    #[test]
    fn what_is_handed_on_is_merged_once_and_the_flow_that_stays_is_no_younger() {
        let (mut from, mut to) = (one(3, 10), one(2, 50));
        let handed = from.hand_on(0).unwrap();
        assert!(to.merge(0, &handed));
        let (left, sum) = (from.flow(0).unwrap(), to.flow(0).unwrap());
        assert_eq!((left.packets(), left.bytes(), left.first(), left.last()), (0, 0, 10, 12));
        assert_eq!((sum.packets(), sum.bytes(), sum.first(), sum.last()), (5, 500, 10, 51));
        assert!(from.hand_on(1).is_none() && !to.merge(1, &handed));
    }

    #[test]
    fn counts_that_do_not_fit_stay_where_they_are() {
        let (mut from, mut to) = (one(1, 0), one(1, 0));
        to.live_mut(0).unwrap().packets = u32::MAX;
        let handed = from.hand_on(0).unwrap();
        assert!(!to.merge(0, &handed));
        assert_eq!(to.flow(0).unwrap().packets(), u64::from(u32::MAX));
    }
}
