//! What the programs have counted, in the order of `overlay/maps.h`.

/// Outcomes of frames by name: three sums, then the reasons why frames took the slow path.
pub const OVERLAY_COUNTS: [&str; 28] = [
    "seen",
    "fast",
    "dropped",
    "not_ip",
    "options",
    "fragment",
    "multicast",
    "link_local",
    "protocol",
    "control",
    "malformed",
    "last_hop",
    "oversize",
    "not_tunnel",
    "other_vni",
    "congestion",
    "checksum",
    "lease",
    "unknown",
    "half",
    "changed",
    "expired",
    "stale_global",
    "stale_policy",
    "stale_own",
    "stranger",
    "no_route",
    "no_room",
];

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

/// Events of entries, in the order of `enum event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlayEntries {
    /// Directions learnt from sent frames, and from received frames.
    pub learnt: [u64; 2],
    /// Frames from which nothing was learnt: the connection is not established,
    pub not_established: u64,
    /// something changed while they were in flight,
    pub outdated: u64,
    /// or they left in another form, were for an unknown node, or were flooded to other pods as well.
    pub unlearnable: u64,
    /// Flows that made room for others.
    pub evicted: u64,
    /// Flows forgotten because their connection ended.
    pub forgotten: u64,
    /// Directions invalidated by the global stamp, policy, the remote node, or the pod.
    pub void: [u64; 4],
    /// Frames changed by NAT, about which user space was asked.
    pub asked: u64,
    /// Frames whose copies went to several nodes.
    pub flooded: u64,
    /// Packets sent and received that flows have reported: all packets of ended flows, and some of others.
    pub gone_packets: [u64; 2],
    /// Their bytes.
    pub gone_bytes: [u64; 2],
    /// Flows that expired because they were idle.
    pub idled: u64,
    /// Records of flows' counts for which there was no room, and their packets.
    pub lost: [u64; 2],
}

/// Counts of `enum event`.
pub(super) const EVENTS: usize = 20;

impl OverlayEntries {
    pub(super) fn new(values: [u64; EVENTS]) -> OverlayEntries {
        let [sent, received, not_established, outdated, unlearnable, evicted, forgotten, rest @ ..] = values;
        let [global, policy, node, pod, asked, flooded, rest @ ..] = rest;
        let [sent_packets, received_packets, sent_bytes, received_bytes, idled, lost @ ..] = rest;
        OverlayEntries {
            learnt: [sent, received],
            not_established,
            outdated,
            unlearnable,
            evicted,
            forgotten,
            void: [global, policy, node, pod],
            asked,
            flooded,
            gone_packets: [sent_packets, received_packets],
            gone_bytes: [sent_bytes, received_bytes],
            idled,
            lost,
        }
    }
}
