//! The counts of the programs: `enum count` and `enum event`.

use super::shared::v44::{self, COUNT_NAMES, COUNTS, EVENTS};

/// Outcomes of frames by name: three sums, then the reasons why frames took the slow path.
pub const OVERLAY_COUNTS: [&str; COUNTS] = *COUNT_NAMES.first_chunk().expect("COUNTS follows them");

/// The outcomes of the frames of a direction, since the programs were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlayFrames(pub(super) [u64; OVERLAY_COUNTS.len()]);

impl OverlayFrames {
    /// Returns a count by its name in [`OVERLAY_COUNTS`]; 0 if there is none.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        OVERLAY_COUNTS.iter().position(|one| *one == name).map_or(0, |at| self.0[at])
    }

    /// Returns the reasons why frames took the slow path, each with the number of frames.
    pub fn slow(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OVERLAY_COUNTS.into_iter().zip(self.0).skip(3)
    }

    /// Returns true if every frame seen is counted under an outcome. While frames pass, one may be between
    /// the two counts.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.0[0] == self.0[1..].iter().sum::<u64>()
    }
}

/// Events of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlayEntries {
    /// Directions learnt from sent frames, and from received frames.
    pub learnt: [u64; 2],
    /// Frames from which nothing was learnt because the connection is not established.
    pub not_established: u64,
    /// Frames from which nothing was learnt because something changed while they were in flight.
    pub outdated: u64,
    /// Frames from which nothing was learnt because they left in another form, were for an unknown node, or
    /// were also flooded to other pods.
    pub unlearnable: u64,
    /// Flows that made room for others.
    pub evicted: u64,
    /// Flows forgotten because their connection ended.
    pub forgotten: u64,
    /// Directions invalidated by the global stamp, policy, the remote node, or the pod.
    pub void: [u64; 4],
    /// Frames changed by NAT, about which user space was queried.
    pub asked: u64,
    /// Frames whose copies went to several nodes.
    pub flooded: u64,
    /// Packets sent and received that flows have reported: all packets of ended flows, and some of others.
    pub gone_packets: [u64; 2],
    /// The bytes of these packets, sent and received.
    pub gone_bytes: [u64; 2],
    /// Flows that expired because they were idle.
    pub idled: u64,
    /// Records of flows' counts for which there was no room, and their packets.
    pub lost: [u64; 2],
}

impl OverlayEntries {
    pub(super) fn new(values: [u64; EVENTS]) -> OverlayEntries {
        let of = |event: usize| values[event];
        OverlayEntries {
            learnt: [v44::LEARNT_SEND, v44::LEARNT_RECEIVE].map(of),
            not_established: of(v44::NOT_ESTABLISHED),
            outdated: of(v44::OUTDATED),
            unlearnable: of(v44::UNLEARNABLE),
            evicted: of(v44::EVICTED),
            forgotten: of(v44::FORGOTTEN),
            void: [v44::VOID_GLOBAL, v44::VOID_POLICY, v44::VOID_NODE, v44::VOID_POD].map(of),
            asked: of(v44::ASKED),
            flooded: of(v44::FLOODED),
            gone_packets: [v44::GONE_SENT_PACKETS, v44::GONE_RECEIVED_PACKETS].map(of),
            gone_bytes: [v44::GONE_SENT_BYTES, v44::GONE_RECEIVED_BYTES].map(of),
            idled: of(v44::IDLED),
            lost: [v44::LOST_RECORDS, v44::LOST_PACKETS].map(of),
        }
    }
}
