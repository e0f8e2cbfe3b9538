//! Packets of a flow that another executor has counted.

use super::{Counted, FUTURE, Flow, FlowTable};
use crate::delta::{BYTES_MAX, PACKETS_MAX};

/// Packets of a flow that another executor has counted since the last request for its counts. None of these
/// packets has SYN, FIN or RST, and the flow has had a packet before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedElsewhere {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes in these packets.
    pub bytes: u64,
    /// When the last packet was counted, in milliseconds.
    pub last: u32,
    /// The highest byte of the last packet's TCP sequence number, if it has one.
    pub seq: Option<u8>,
}

impl Flow {
    /// Adds packets to the flow; `tracked` says whether the flow's state is tracked. Adds none of them, and
    /// returns false, if there is no room in the flow's counters.
    pub fn add(&mut self, more: &CountedElsewhere, tracked: bool) -> bool {
        let (packets, bytes) = (self.packets() + more.packets, self.bytes() + more.bytes);
        if packets > PACKETS_MAX || bytes > BYTES_MAX {
            return false;
        }
        self.packets = packets as u32;
        self.set_bytes(bytes);
        if more.packets > 0 && more.last.wrapping_sub(self.last) < FUTURE {
            self.last = more.last;
        }
        if more.packets > 0 && tracked {
            self.state = self.state.after_plain_packets().unwrap_or(self.state);
            self.seq = more.seq.unwrap_or(self.seq);
            self.marks.count_packets(more.packets);
        }
        true
    }

    /// Whether the flow's first packet was reported.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.marks.has(super::Marks::RECORDED)
    }
}

impl FlowTable {
    /// Adds packets to a flow; returns the same as if the packets had been counted here.
    pub fn add(&mut self, row: u32, more: &CountedElsewhere, tracked: bool) -> Counted {
        match self.live_mut(row).map(|flow| (flow.add(more, tracked), flow.is_high())) {
            None | Some((false, _)) => Counted::No,
            Some((true, true)) => Counted::High,
            Some((true, false)) => Counted::Yes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Decision, HEARD_MAX};
    use crate::state::{FlowState, Seen};
    use weir_packet::FlowKey;

    fn table(now: u32) -> FlowTable {
        let mut table = FlowTable::with_capacity(1);
        table.learn(7, &FlowKey([0, 1, 2, 3, 4]), Decision::Group(0), now).unwrap();
        table
    }

    fn more(packets: u64, last: u32, seq: Option<u8>) -> CountedElsewhere {
        CountedElsewhere { packets, bytes: 60 * packets, last, seq }
    }

    #[test]
    fn a_flow_is_as_if_its_packets_had_been_counted_here() {
        for flags in [None, Some(0x02), Some(0x10), Some(0x04)] {
            let first = flags.map_or(Seen::NO_TCP, |flags| Seen::segment(flags, 3, false));
            let plain = flags.map_or(Seen::NO_TCP, |_| Seen::segment(0x10, 9, true));
            for packets in 0..6 {
                let (mut here, mut elsewhere) = (table(10), table(10));
                for one in [&mut here, &mut elsewhere] {
                    one.see(0, first);
                    assert_eq!(one.count(0, 60, 10), Counted::Yes);
                }
                for at in 0..packets {
                    here.see(0, plain);
                    assert_eq!(here.count(0, 60, 11 + at as u32), Counted::Yes);
                }
                let seq = flags.map(|_| 9);
                let counted = elsewhere.add(0, &more(packets, 10 + packets as u32, seq), true);
                assert_eq!(counted, Counted::Yes);
                let view = |table: &FlowTable| format!("{:?}", table.flow(0).unwrap());
                assert_eq!(view(&here), view(&elsewhere), "{flags:?}, {packets} packets");
                assert!(here.flow(0).unwrap().heard() <= HEARD_MAX);
            }
        }
    }

    #[test]
    fn what_is_older_does_not_make_a_flow_older_and_closed_directions_stay_closed() {
        let mut table = table(u32::MAX - 1);
        table.see(0, Seen::segment(0x11, 3, false));
        assert_eq!(table.add(0, &more(1, u32::MAX - 5, None), true), Counted::Yes);
        let flow = *table.flow(0).unwrap();
        assert_eq!((flow.last(), flow.state(), flow.seq()), (u32::MAX - 1, FlowState::TcpHalfClosed, 3));
        assert_eq!(table.add(0, &more(1, 4, None), false), Counted::Yes);
        assert_eq!((table.flow(0).unwrap().last(), table.flow(0).unwrap().heard()), (4, 2));
    }

    #[test]
    fn counters_take_all_packets_or_none() {
        let mut table = table(0);
        assert_eq!(table.add(0, &more(PACKETS_MAX / 2, 0, None), false), Counted::Yes);
        assert_eq!(table.add(0, &more(1, 0, None), false), Counted::High);
        assert_eq!(table.add(0, &more(PACKETS_MAX / 2 + 1, 0, None), false), Counted::No);
        assert_eq!(table.flow(0).unwrap().packets(), PACKETS_MAX / 2 + 1);
        assert_eq!(table.add(1, &more(1, 0, None), false), Counted::No);
    }
}
