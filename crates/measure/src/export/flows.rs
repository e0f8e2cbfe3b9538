//! The flows of a recording as records: frames in, one record per flow out.

use super::{End, Given};
use crate::FlowRecord;
use std::collections::HashMap;
use weir_packet::FlowKey;

/// The maximum number of flows that are remembered: 60 MB.
const FLOWS: usize = 1 << 18;

/// Flows that have not been reported yet. Packets and bytes of all records add up to those of all frames. A
/// flow has several records only if there are more flows than can be remembered at a time.
#[derive(Debug, Default)]
pub struct UnreportedFlows {
    flows: HashMap<FlowKey, FlowRecord>,
}

impl UnreportedFlows {
    /// Counts a frame of a flow. If there are too many flows, all are reported to `give`.
    pub fn add(&mut self, one: &FlowRecord, give: impl FnMut(Given)) {
        if let Some(flow) = self.flows.get_mut(&one.key) {
            flow.packets += one.packets;
            flow.bytes += one.bytes;
            flow.first_ns = flow.first_ns.min(one.first_ns);
            flow.last_ns = flow.last_ns.max(one.last_ns);
            flow.observed.join(&one.observed);
            return;
        }
        if self.flows.len() == FLOWS {
            self.drain(End::Evicted, give);
        }
        self.flows.insert(one.key, *one);
    }

    /// Reports all remaining flows, in the order of their first frames.
    pub fn end(mut self, give: impl FnMut(Given)) {
        self.drain(End::Forced, give);
    }

    fn drain(&mut self, end: End, mut give: impl FnMut(Given)) {
        let mut all: Vec<FlowRecord> = self.flows.drain().map(|(_, record)| record).collect();
        all.sort_unstable_by_key(|record| (record.first_ns, record.key));
        let given =
            |record| Given { record, end, target: None, ingress: None, point: None, names: [None, None] };
        all.into_iter().for_each(|record| give(given(record)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::Observed;

    fn frame(flow: u64, time_ns: u64) -> FlowRecord {
        let key = FlowKey([0, flow, 0, 0, 0]);
        let observed = Observed { octets: 86, flags: flow as u8 & 1 | 2, ..Observed::default() };
        FlowRecord { key, packets: 1, bytes: 100, first_ns: time_ns, last_ns: time_ns, observed }
    }

    #[test]
    fn every_frame_is_in_one_record_also_when_there_are_too_many_flows() {
        let (mut flows, mut given) = (UnreportedFlows::default(), Vec::new());
        let mut give = |one: Given| given.push(one);
        let count = FLOWS as u64 + 1000;
        for n in 0..2 * count {
            flows.add(&frame(n / 2, n), &mut give);
        }
        flows.end(&mut give);
        assert_eq!(given.len() as u64, count);
        assert!(given.iter().all(|one| (one.record.packets, one.record.bytes) == (2, 200)));
        assert!(given.iter().all(|one| one.record.observed.octets == 172));
        assert_eq!((given[7].record.first_ns, given[7].record.last_ns), (14, 15));
        assert_eq!((given[0].end, given[FLOWS].end), (End::Evicted, End::Forced));
    }
}
