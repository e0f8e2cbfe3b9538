//! Which flows lose most frames, by drop reason: a summary of bounded size, made from samples.

use std::fmt;
use weir_packet::{Batch, Bits, Depth, DropReason, FlowKey, KeySource, parse};
use weir_sketch::{KeyHash, KeyKind, Projection, Seed, TopCounts};

/// How many flows are kept for each reason. A flow whose share of a reason's sampled frames is more than one
/// divided by this number is among them (Space-Saving).
pub const DROPPED_FLOWS_MAX: usize = 16;

/// How many frames of a batch are looked at, so that an overload is not made worse.
const SAMPLES: usize = 4;

/// The key that identifies a flow in these counts.
const KEY: Projection = Projection::new(KeyKind::FiveTuple);

/// The flows that lose most frames.
#[derive(Clone)]
pub struct DroppedFlows {
    reasons: Vec<(DropReason, TopCounts<5>)>,
    hash: KeyHash,
    /// Which of a batch's frames is looked at first, so that no place in the batch is preferred.
    turn: usize,
}

impl Default for DroppedFlows {
    fn default() -> DroppedFlows {
        DroppedFlows { reasons: Vec::new(), hash: KeyHash::new(&Seed::random()), turn: 0 }
    }
}

impl fmt::Debug for DroppedFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DroppedFlows").field("reasons", &self.reasons).finish_non_exhaustive()
    }
}

impl DroppedFlows {
    /// Samples a list of frames before they are dropped, and scales the counts up to the whole list.
    #[inline(never)]
    pub(super) fn sample(&mut self, batch: &Batch, list: u64, reason: impl Fn(usize) -> DropReason) {
        let all = list.count_ones() as usize;
        let stride = all.div_ceil(SAMPLES);
        self.turn = self.turn.wrapping_add(1);
        for slot in Bits(list).skip(self.turn % stride.max(1)).step_by(stride.max(1)) {
            self.add(reason(slot), batch.frame(slot).bytes(), stride as u64);
        }
    }

    /// Adds `frames` dropped frames that are like `frame`. A frame without IP has no flow.
    pub(super) fn add(&mut self, reason: DropReason, frame: &[u8], frames: u64) {
        let Ok(headers) = parse(frame, Depth::L4) else { return };
        let Some(flow) = FlowKey::of(frame, &headers, KeySource::Outer) else { return };
        let item = self.hash.item(KEY.of(&flow));
        let bytes = frame.len() as u64 * frames;
        self.summary(reason).update(&item, frames, bytes);
    }

    fn summary(&mut self, reason: DropReason) -> &mut TopCounts<5> {
        let at = self.reasons.iter().position(|(of, _)| *of == reason).unwrap_or_else(|| {
            self.reasons.push((reason, TopCounts::new(DROPPED_FLOWS_MAX)));
            self.reasons.len() - 1
        });
        &mut self.reasons[at].1
    }

    /// Adds the flows of another worker.
    pub fn merge(&mut self, other: &DroppedFlows) {
        for (reason, flows) in &other.reasons {
            let hash = self.hash;
            let mine = self.summary(*reason);
            // Each worker has its own secret.
            for flow in flows.iter() {
                mine.update(&hash.item(flow.key), flow.packets, flow.bytes);
            }
        }
    }

    /// Returns the flows that lost most frames for a reason, the worst one first, with estimates of the
    /// numbers of frames.
    #[must_use]
    pub fn worst(&self, reason: DropReason, most: usize) -> Vec<(String, u64)> {
        let of = self.reasons.iter().find(|(of, _)| *of == reason);
        let top = of.map(|(_, flows)| flows.top(most)).unwrap_or_default();
        top.iter().map(|flow| (KEY.text(&flow.key), flow.packets)).collect()
    }
}
