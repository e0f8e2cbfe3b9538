//! Removes idle flows, a slice of the table at a time.

use super::Flows;
use table::Decision;

impl Flows {
    /// Removes idle flows in the next `rows` rows of the flow table, as long as no more than `room` deltas
    /// wait. Flows with an entry of their own start anew if `stays` holds for their row; the rows of the
    /// others are returned.
    pub fn age(&mut self, rows: u32, now_ms: u32, room: usize, stays: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut gone = Vec::new();
        if self.timeout_ms == 0 {
            return gone;
        }
        let first_new = self.deltas.len();
        self.age_slice(rows, now_ms, room);
        for at in first_new..self.deltas.len() {
            let key = self.deltas[at].key;
            let Some(&row) = self.own.get(&key) else { continue };
            if stays(row) {
                // There is room, because it was removed a moment ago.
                let _ = self.table.learn(self.hash(&key), &key, Decision::Pinned(row), now_ms);
            } else {
                self.own.remove(&key);
                gone.push(row);
            }
        }
        gone
    }

    /// Returns the age from which flows go, in milliseconds; 0 if they stay.
    pub fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// Returns in how many milliseconds the next flow goes if no packet hits it.
    pub fn rest_ms(&self, now_ms: u32) -> Option<u32> {
        let flows = self.table.iter().filter(|_| self.timeout_ms != 0);
        flows.map(|(_, flow)| self.timeout_ms.saturating_add(1).saturating_sub(flow.idle(now_ms))).min()
    }

    fn age_slice(&mut self, rows: u32, now_ms: u32, room: usize) {
        let (hash, deltas) = (self.hash, &mut self.deltas);
        let accept = |delta| {
            let accepted = deltas.len() < room;
            if accepted {
                deltas.push(delta);
            }
            accepted
        };
        // The table's timeout expires when reached, the pipe's when exceeded.
        self.table.age(rows, now_ms, self.timeout_ms + 1, |key| hash.hash(&key.0), accept);
    }
}
