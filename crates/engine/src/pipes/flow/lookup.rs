//! Finds the flow of each packet, learns new flows, and finds the row of each flow's decision.

use super::{Flows, Learn};
use crate::batch::packets::Packets;
use crate::pipes::table::{Hits, Lookup, NO_ROW};
use crate::program::GroupId;
use packet::Bits;
use table::{Decision, Flow, NO_TARGET};

impl Flows {
    /// Returns the packets of known flows and of those learnt now, and counts them in their flows.
    #[inline(never)]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        if !look.live {
            return self.peek(look);
        }
        let (batch, packets, now_ms) = (look.batch, look.packets, look.now_ms);
        let keys = packets.keys(self.source);
        let able = look.list & keys.known;
        let mut flows = [0; 64];
        let mut hits = self.table.lookup_batch(&keys.key, &keys.table, able, &mut flows);
        let known = hits;
        if self.learn != Learn::Nothing {
            // In arrival order, so that what one packet learns is found by the next.
            for slot in Bits(able & !known) {
                hits |= u64::from(self.learn_one(slot, look, &mut flows)) << slot;
            }
        }
        for slot in Bits(known) {
            look.rows[slot] = self.row_of_flow(flows[slot], packets, slot, look);
            if look.rows[slot] == NO_ROW {
                hits &= !(1 << slot);
                look.without_target(1 << slot);
            }
        }
        for slot in Bits(hits) {
            if flows[slot] != NO_ROW {
                self.deltas.extend(self.table.count(flows[slot], batch.frame(slot).len() as u32, now_ms));
            }
        }
        Hits::Each(hits)
    }

    /// Like `lookup`, without learning or counting.
    fn peek(&self, look: &mut Lookup<'_>) -> Hits {
        let (packets, mut hits) = (look.packets, 0);
        let keys = packets.keys(self.source);
        for slot in Bits(look.list & keys.known) {
            let row = match self.table.get(keys.table[slot], &keys.key[slot]) {
                Some(flow) => self.row_of_flow(flow, packets, slot, look),
                None if self.learn == Learn::Nothing => continue,
                None => self.decide(packets, slot, look).map_or(NO_ROW, |(_, row)| row),
            };
            if row == NO_ROW {
                look.without_target(1 << slot);
            } else {
                look.rows[slot] = row;
                hits |= 1 << slot;
            }
        }
        Hits::Each(hits)
    }

    #[inline]
    fn row_of_flow(&self, flow: u32, packets: &Packets, slot: usize, look: &Lookup<'_>) -> u32 {
        match self.table.flow(flow).map(Flow::decision) {
            Some(Decision::Pinned(row)) => row,
            // A FLOW pipe has a single group, whatever its number in the program.
            Some(Decision::Group(_)) => {
                self.learn.group().map_or(NO_ROW, |group| self.pick(group, packets, slot, look))
            }
            Some(Decision::Cached(_)) | None => NO_ROW,
        }
    }

    /// Returns the row of the target that the group's buckets give a packet.
    #[inline]
    fn pick(&self, group: GroupId, packets: &Packets, slot: usize, look: &Lookup<'_>) -> u32 {
        let hash = packets.keys(self.source).select[slot];
        self.targets.row(look.groups.get(group.index()).map_or(NO_TARGET, |group| group.pick(hash)))
    }

    /// Returns the decision for a packet of a new flow, and the row it selects now.
    fn decide(&self, packets: &Packets, slot: usize, look: &Lookup<'_>) -> Option<(Decision, u32)> {
        let (decision, row) = match self.learn {
            Learn::Nothing => return None,
            Learn::Default => (Decision::Pinned(self.default_row), self.default_row),
            Learn::Pin(group) => {
                let row = self.pick(group, packets, slot, look);
                (Decision::Pinned(row), row)
            }
            Learn::Follow(group) => (Decision::Group(0), self.pick(group, packets, slot, look)),
        };
        (row != NO_ROW).then_some((decision, row))
    }

    fn learn_one(&mut self, slot: usize, look: &mut Lookup<'_>, flows: &mut [u32; 64]) -> bool {
        let packets = look.packets;
        let keys = packets.keys(self.source);
        let (hash, key) = (keys.table[slot], &keys.key[slot]);
        if let Some(flow) = self.table.get(hash, key) {
            flows[slot] = flow;
            look.rows[slot] = self.row_of_flow(flow, packets, slot, look);
            if look.rows[slot] == NO_ROW {
                look.without_target(1 << slot);
            }
            return look.rows[slot] != NO_ROW;
        }
        let Some((decision, row)) = self.decide(packets, slot, look) else {
            look.without_target(1 << slot);
            return false;
        };
        look.rows[slot] = row;
        flows[slot] = match self.table.learn(hash, key, decision, look.now_ms) {
            Ok(flow) => flow,
            Err(table::Full) => {
                self.unflowed_full += 1;
                NO_ROW
            }
        };
        true
    }
}
